//! The store that replicas share: Redis 7.0 or Valkey, a single server or a cluster.
//!
//! ```text
//! write     cut the blobs into chunks ─ one script: list them ─ ask which are there, and prolong them ─ set the others
//!           ─ one script: records
//! changes   one script: records after a version ─ the chunks that are not known here yet
//! ```
//!
//! A record comes last, so that all of its chunks are there when it is seen. Where nothing is new, `changes` is one
//! round trip. Chunks are never taken away one by one, since another record may come to need them meanwhile: they end by
//! their own TTL, soon after the last record that has them, or with all others of their generation, when two later ones
//! have taken their share of bytes or the tenant is forgotten. A process that is killed between two steps of a write while
//! another one forgets the tenant may leave a chunk behind until its TTL is over.
//!
//! What Redis has confirmed outlives this process. It outlives Redis as far as that is set up to persist.

mod chunk_cache;
mod chunks;
mod form;
mod leases;
mod link;
mod names;
mod read;
mod write;

pub use link::RedisAddress;

use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;

use chunk_cache::ChunkCache;
use link::{Link, Script};
use names::Names;

use super::records::{Changes, Lease, RecordStore};
use super::seal::Seal;
use crate::engine::records::Change;
use crate::engine::words::{StoreError, TenantId};

/// The settings of [`RedisStore`].
#[derive(Clone)]
pub struct RedisOptions {
    pub address: RedisAddress,
    /// The key that everything is encrypted with.
    pub key: Option<Vec<u8>>,
    /// The time for each step of a call.
    pub deadline: Duration,
    /// The longest life of a record.
    pub max_age: Duration,
    /// The most bytes of the prompts of one tenant, before they are compressed.
    pub tenant_bytes: usize,
}

/// Records in Redis.
pub struct RedisStore {
    link: Link,
    names: Names,
    seal: Seal,
    max_age_ms: u64,
    /// The most records of one tenant.
    records_max: usize,
    /// The most bytes of the chunks of one tenant that are written before the oldest go: two generations are kept.
    generation_bytes: usize,
    /// The version of the records that are written. Later ones are left alone.
    version: u32,
    /// One for each chunk on its way to the server.
    uploads: Semaphore,
    chunk_cache: ChunkCache,
    scripts: Scripts,
}

struct Scripts {
    write: Script,
    changes: Script,
    forget: Script,
    list: Script,
    lease: Script,
    release: Script,
}

impl RedisStore {
    /// Begins to connect: until that is done, and while it cannot be, every call fails. To be called within a runtime.
    pub fn open(options: RedisOptions) -> RedisStore {
        let key = options.key.as_deref();
        RedisStore {
            link: Link::open(options.address, options.deadline),
            names: Names::new(key),
            seal: Seal::new(key),
            max_age_ms: (options.max_age.as_millis() as u64).max(1),
            records_max: write::RECORDS_MAX,
            generation_bytes: (options.tenant_bytes / 2).max(write::GENERATION_BYTES_MIN),
            version: form::VERSION,
            uploads: Semaphore::new(write::UPLOADS_MAX),
            chunk_cache: ChunkCache::default(),
            scripts: Scripts {
                write: Script::new(include_str!("scripts/write.lua")),
                changes: Script::new(include_str!("scripts/changes.lua")),
                forget: Script::new(include_str!("scripts/forget.lua")),
                list: Script::new(include_str!("scripts/list.lua")),
                lease: Script::new(include_str!("scripts/lease.lua")),
                release: Script::new(include_str!("scripts/release.lua")),
            },
        }
    }
}

impl RecordStore for RedisStore {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn changes(&self, tenant: TenantId, after: u64) -> BoxFuture<'_, Result<Changes, StoreError>> {
        Box::pin(self.read(tenant, after))
    }

    fn write(&self, tenant: TenantId, changes: Vec<Change>) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            // What depends on no version is never refused.
            self.write_all(tenant, 0, changes).await?.ok_or(StoreError::Garbage)
        })
    }

    fn write_after(
        &self,
        tenant: TenantId,
        known: u64,
        changes: Vec<Change>,
    ) -> BoxFuture<'_, Result<Option<u64>, StoreError>> {
        Box::pin(self.write_all(tenant, known, changes))
    }

    fn forget(&self, tenant: TenantId) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(self.forget_all(tenant))
    }

    fn lease(
        &self,
        tenant: TenantId,
        entry: &str,
        owner: &str,
        hold: Duration,
    ) -> BoxFuture<'_, Result<Lease, StoreError>> {
        let (key, owner) = (self.names.of(tenant).lease(entry), owner.to_owned());
        Box::pin(async move { self.take_lease(&key, &owner, hold).await })
    }

    fn release(
        &self,
        tenant: TenantId,
        entry: &str,
        owner: &str,
        written: Option<Duration>,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        let (key, owner) = (self.names.of(tenant).lease(entry), owner.to_owned());
        Box::pin(async move { self.give_lease_back(key, &owner, written).await })
    }
}

#[cfg(test)]
mod tests;
