//! The promises of a store that outlives this process.
//!
//! The memory of this process stays what requests work with. A [`RecordStore`] stands behind it: a tenant's records are
//! read when the tenant is seen first, and written some moments after they have changed, never while a request waits.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::file::FileStore;
use super::redis::{RedisAddress, RedisOptions, RedisStore};
use super::seal::Seal;

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
    /// The number of records that were left out, since they cannot be read.
    pub damaged: usize,
    /// True if the tenant was forgotten after the version that was asked for: what was known of it until then is void.
    pub was_forgotten: bool,
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

/// How a store is opened.
#[derive(Debug)]
pub struct Options {
    pub place: Place,
    pub seal: Seal,
    /// The most bytes of all tenants, as they are kept.
    pub max_bytes: u64,
    /// The part of them that one tenant may take.
    pub tenant_share: f64,
    /// The longest time that a call takes.
    pub deadline: Duration,
    /// The longest time to wait for a folder that another process has.
    pub lock_wait: Duration,
    /// The longest time that a record is kept after it was written, whatever its TTL.
    pub max_age: Duration,
}

/// Where a store keeps its records.
#[derive(Clone)]
pub enum Place {
    /// A folder of this machine.
    File(PathBuf),
    /// A Redis server, or some of a cluster. Neither the password in the URL nor the key is ever shown.
    Redis { url: String, key: Option<Vec<u8>> },
}

impl Place {
    /// The name of the store in metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Place::File(_) => "file",
            Place::Redis { .. } => "redis",
        }
    }
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::File(path) => f.debug_tuple("File").field(path).finish(),
            Place::Redis { .. } => f.write_str("Redis"),
        }
    }
}

/// Opens a store. One that cannot be opened leaves the process with its memory alone.
pub async fn open(options: Options) -> Result<Arc<dyn RecordStore>, StoreError> {
    match &options.place {
        Place::File(path) => Ok(Arc::new(FileStore::open(path.clone(), options).await?)),
        Place::Redis { url, key } => {
            let address = RedisAddress::parse(url).map_err(|error| {
                tracing::error!(error, "store.url cannot be used");
                StoreError::Down
            })?;
            Ok(Arc::new(RedisStore::open(RedisOptions {
                address,
                key: key.clone(),
                deadline: options.deadline,
                max_age: options.max_age,
                tenant_bytes: (options.max_bytes as f64 * options.tenant_share) as usize,
            })))
        }
    }
}

/// A store that outlives this process.
///
/// # Promises
///
/// - **Isolation**: a tenant sees its own records alone. Its blobs are its own too: equal prompts of two tenants are
///   kept twice.
/// - **Order**: each change takes the next version of its tenant; one that changes nothing may take none. So whoever writes
///   `n` changes after a version and is told that version and `n` more knows that nobody else has written. What was written together is seen together or not at all, unless the
///   records belong to different groups. A write may come back in `changes` of whoever wrote it.
/// - **Whole records**: a record is returned with all of its blobs, byte for byte, or not at all.
/// - **Bounds**: a record that does not [fit](crate::engine::records::Record::fits) is refused. A record is gone when its TTL is over, and a
///   blob with the last record that has it. A store that is full refuses, or forgets the oldest records first. What one
///   tenant has is bounded too: beyond it that tenant's oldest go.
/// - **Time**: each step of a call ends within the deadline that the store was opened with, and 20 ms more for each MiB
///   that it moves, or the call fails as [`StoreError::Slow`]. A disk that stalls is given up after ten seconds.
/// - **Loss**: what `write` has confirmed outlives this process, killed or not. It may be lost with the machine, as far
///   as the store's documentation says so. A record that is lost is missing, never another one.
/// - **Damage**: a record that cannot be read is left out of `changes`, and counted there. One that a later version has
///   written is left out, not counted, and left alone.
/// - **Forgetting**: whoever asks for changes after a version learns whether the tenant was forgotten since, as long as a
///   record may live, if other processes may have forgotten it. What depends on a version from before that is not written
///   ([`write_after`](RecordStore::write_after)).
/// - **Fairness**: calls are served in the order in which they come, whosever tenant they are of, and each does a bounded
///   part of the work: the records that are written together, or one answer. So a tenant that has much, or asks often,
///   delays another by no more than the calls that came before.
pub trait RecordStore: Send + Sync + 'static {
    /// The name of the store in metrics.
    fn name(&self) -> &'static str;

    /// Returns true if other processes write to it at the same time. A store may be shared for a while, such as while the
    /// process before this one drains.
    fn is_shared(&self) -> bool {
        false
    }

    /// Returns the number of bytes that it takes, if the store knows it.
    fn bytes(&self) -> Option<u64> {
        None
    }

    /// Returns all that was written for a tenant after a version; after 0, all that lives, and no deletions. A store that
    /// has lost what it had answers with an earlier version than that.
    fn changes(&self, tenant: TenantId, after: u64) -> BoxFuture<'_, Result<Changes, StoreError>>;

    /// Writes in this order, durably. Returns the version of the last.
    fn write(&self, tenant: TenantId, changes: Vec<Change>) -> BoxFuture<'_, Result<u64, StoreError>>;

    /// Writes what depends on the records up to the version `known`, or on none (0). Returns none, and has written
    /// nothing, if the tenant was forgotten after it. A store that one process alone writes to never refuses that.
    fn write_after(
        &self,
        tenant: TenantId,
        _known: u64,
        changes: Vec<Change>,
    ) -> BoxFuture<'_, Result<Option<u64>, StoreError>> {
        Box::pin(async move { self.write(tenant, changes).await.map(Some) })
    }

    /// Forgets all that is known of a tenant, for good; `false` if there was nothing.
    fn forget(&self, tenant: TenantId) -> BoxFuture<'_, Result<bool, StoreError>>;

    /// Takes the lease of an entry that is about to be written, for `hold` at most, unless another owner has it. An owner
    /// that has it already has it for the whole time again. The name of an owner whose answer comes as a whole begins with
    /// `j`, and that of one whose answer streams with another letter: the latter takes the lease over from the former.
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

    /// To be called once nothing more is accepted, and before what runs has ended: lets go of what the next process waits
    /// for. What is written after it still reaches that process.
    fn hand_over(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    /// Writes out all that is pending and lets go of what other processes wait for. Nothing is written after it.
    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}
