//! A store of records in this process: the reference of the conformance suite, and the durable store of unit tests.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Instant;

use futures_util::future::BoxFuture;

use crate::engine::records::{Change, Record, RecordKey};
use crate::engine::words::{StoreError, TenantId};
use crate::store::records::{Changes, RecordStore};

#[derive(Default)]
pub struct MemoryRecords {
    tenants: Mutex<BTreeMap<TenantId, Tenant>>,
}

#[derive(Default)]
struct Tenant {
    version: u64,
    /// The version at which it was forgotten.
    forgotten: u64,
    /// The version and time of each record; none if it was deleted.
    records: BTreeMap<RecordKey, (u64, Instant, Option<Record>)>,
}

impl Tenant {
    fn write(&mut self, change: Change) {
        self.version += 1;
        let (key, record) = match change {
            Change::Put(key, record) => (key, Some(record)),
            Change::Delete(key) => (key, None),
        };
        self.records.insert(key, (self.version, Instant::now(), record));
    }

    fn changes(&self, after: u64) -> Changes {
        let mut found = Vec::new();
        for (key, (version, written, record)) in &self.records {
            let age_ms = written.elapsed().as_millis() as u64;
            let live = record.as_ref().filter(|record| age_ms < record.ttl_ms);
            let change = match live {
                Some(record) => {
                    let ttl_ms = record.ttl_ms - age_ms;
                    Change::Put(key.clone(), Record { ttl_ms, ..record.clone() })
                }
                None if after > 0 => Change::Delete(key.clone()),
                None => continue,
            };
            if *version > after {
                found.push((*version, change));
            }
        }
        found.sort_by_key(|(version, _)| *version);
        let changes = found.into_iter().map(|(_, change)| change).collect();
        let was_forgotten = after > 0 && after < self.forgotten;
        Changes { changes, version: self.version, was_forgotten, ..Changes::default() }
    }
}

impl RecordStore for MemoryRecords {
    fn name(&self) -> &'static str {
        "test"
    }

    fn changes(&self, tenant: TenantId, after: u64) -> BoxFuture<'_, Result<Changes, StoreError>> {
        Box::pin(async move {
            let tenants = self.tenants.lock().unwrap();
            Ok(tenants.get(&tenant).map(|tenant| tenant.changes(after)).unwrap_or_default())
        })
    }

    fn write(&self, tenant: TenantId, changes: Vec<Change>) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            let fits = |change: &Change| !matches!(change, Change::Put(_, record) if !record.fits());
            if !changes.iter().all(fits) {
                return Err(StoreError::Full);
            }
            let mut tenants = self.tenants.lock().unwrap();
            let tenant = tenants.entry(tenant).or_default();
            changes.into_iter().for_each(|change| tenant.write(change));
            Ok(tenant.version)
        })
    }

    fn write_after(
        &self,
        tenant: TenantId,
        known: u64,
        changes: Vec<Change>,
    ) -> BoxFuture<'_, Result<Option<u64>, StoreError>> {
        Box::pin(async move {
            let forgotten = self.tenants.lock().unwrap().get(&tenant).map_or(0, |tenant| tenant.forgotten);
            if known > 0 && known < forgotten {
                return Ok(None);
            }
            self.write(tenant, changes).await.map(Some)
        })
    }

    fn forget(&self, tenant: TenantId) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move {
            let mut tenants = self.tenants.lock().unwrap();
            let Some(tenant) = tenants.get_mut(&tenant) else { return Ok(false) };
            let had_records = !tenant.records.is_empty();
            let version = tenant.version + 1;
            *tenant = Tenant { version, forgotten: version, ..Tenant::default() };
            Ok(had_records)
        })
    }
}

impl MemoryRecords {
    /// Loses all that it has, as a server that was started again without its files.
    pub fn empty(&self) {
        self.tenants.lock().unwrap().clear();
    }
}

#[tokio::test]
async fn records_in_memory_keep_the_promises_of_a_store() {
    super::conformance::conforms(&MemoryRecords::default()).await;
    let forgets = super::conformance::tells_that_a_tenant_was_forgotten;
    forgets(&MemoryRecords::default(), super::conformance::tenant(12)).await;
}
