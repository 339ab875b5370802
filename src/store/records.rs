//! The promises of a store that outlives this process.
//!
//! The memory of this process stays what requests work with. A [`RecordStore`] stands behind it: a tenant's records are
//! read when the tenant is seen first, and written some moments after they have changed, never while a request waits.

use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::engine::records::Change;
use crate::engine::words::{StoreError, TenantId};

/// Changes in the order in which they were written, each record once, as it is now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    pub changes: Vec<Change>,
    /// The version to ask for changes after.
    pub version: u64,
    /// True if there are more than one answer may hold: ask again, after `version`.
    pub has_more: bool,
}

/// The answer to a request for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    /// It belongs to whoever asked.
    Taken,
    /// Another owner has it.
    Held,
    /// Another owner had it, and has written the entry.
    Written,
}

/// A store that outlives this process.
///
/// # Promises
///
/// - **Isolation**: a tenant sees its own records alone. Its blobs are its own too: equal prompts of two tenants are
///   kept twice.
/// - **Order**: versions of one tenant rise. What was written together is seen together or not at all, unless the
///   records belong to different groups. A write may come back in `changes` of whoever wrote it.
/// - **Whole records**: a record is returned with all of its blobs, byte for byte, or not at all.
/// - **Bounds**: a record that does not [fit](crate::engine::records::Record::fits) is refused. A record is gone when its TTL is over, and a
///   blob with the last record that has it. A store that is full refuses, or forgets the oldest records first.
/// - **Time**: each step of a call ends within the deadline that the store was opened with, and 20 ms more for each MiB
///   that it moves, or the call fails as [`StoreError::Slow`].
/// - **Loss**: what `write` has confirmed outlives this process, killed or not. It may be lost with the machine, as far
///   as the store's documentation says so. A record that is lost is missing, never another one.
/// - **Damage**: a record that cannot be read is left out of `changes`, and counted by whoever keeps the store.
pub trait RecordStore: Send + Sync + 'static {
    /// The name of the store in metrics.
    fn name(&self) -> &'static str;

    /// Returns true if other processes write to it at the same time.
    fn is_shared(&self) -> bool {
        false
    }

    /// Returns all that was written for a tenant after a version; after 0, all that lives, and no deletions.
    fn changes(&self, tenant: TenantId, after: u64) -> BoxFuture<'_, Result<Changes, StoreError>>;

    /// Writes in this order, durably. Returns the version of the last.
    fn write(&self, tenant: TenantId, changes: Vec<Change>) -> BoxFuture<'_, Result<u64, StoreError>>;

    /// Forgets all that is known of a tenant, for good; `false` if there was nothing.
    fn forget(&self, tenant: TenantId) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// Takes the lease of an entry that is about to be written, for `hold` at most, unless another owner has it. Whoever
    /// has it already is told so again.
    fn lease(
        &self,
        _tenant: TenantId,
        _entry: &str,
        _owner: &str,
        _hold: Duration,
    ) -> BoxFuture<'_, Result<Lease, StoreError>> {
        Box::pin(async { Ok(Lease::Taken) })
    }

    /// Gives a lease back, if this owner has it. If the entry was written, others are told so for `written`.
    fn release(
        &self,
        _tenant: TenantId,
        _entry: &str,
        _owner: &str,
        _written: Option<Duration>,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async { Ok(()) })
    }

    /// Writes out all that is pending and lets go of what other processes wait for. Nothing is written after it.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}
