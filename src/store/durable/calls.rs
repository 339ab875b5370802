//! The calls to a store: each has an end, is counted, and counts for the breaker.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::{Instant, timeout};

use super::breaker::Breaker;
use crate::engine::records::Change;
use crate::engine::words::{StoreError, StoreOp, TenantId};
use crate::store::records::{Changes, RecordStore};

/// The longest time of a call, whatever a store promises.
pub const CALL_MAX: Duration = Duration::from_secs(10);

/// Something to be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreEvent {
    /// A call has ended.
    Op { op: StoreOp, outcome: &'static str, took: Duration },
    /// So many records were not written.
    Dropped(usize),
    /// So many records could not be read.
    Unreadable(usize),
}

/// Hears of every event.
pub type Listener = Box<dyn Fn(StoreEvent) + Send + Sync>;

pub struct Calls {
    store: Arc<dyn RecordStore>,
    listener: Listener,
    /// A store may take nothing and still tell what it has.
    reads: Breaker,
    writes: Breaker,
}

impl Calls {
    /// `error`: why the store is known not to work.
    pub fn new(store: Arc<dyn RecordStore>, error: Option<StoreError>, listener: Listener) -> Calls {
        let now = Instant::now();
        Calls { store, listener, reads: Breaker::new(error, now), writes: Breaker::new(error, now) }
    }

    pub fn store(&self) -> &dyn RecordStore {
        &*self.store
    }

    /// Returns all that was written for a tenant after a version, page by page. Of more than `bytes_max` bytes the newest.
    pub async fn changes(
        &self,
        tenant: TenantId,
        after: u64,
        bytes_max: usize,
    ) -> Result<Changes, StoreError> {
        let op = match tenant {
            TenantId::NOBODY => StoreOp::Weights,
            _ if after == 0 => StoreOp::Load,
            _ => StoreOp::News,
        };
        let outcome = |found: &Changes| if found.changes.is_empty() { "miss" } else { "hit" };
        self.call(op, &self.reads, outcome, || Box::pin(self.pages(tenant, after, bytes_max))).await
    }

    pub async fn write(&self, tenant: TenantId, changes: Vec<Change>) -> Result<u64, StoreError> {
        self.call(StoreOp::Write, &self.writes, |_| "ok", || self.store.write(tenant, changes)).await
    }

    pub async fn forget(&self, tenant: TenantId) -> Result<bool, StoreError> {
        let outcome = |was_known: &bool| if *was_known { "hit" } else { "miss" };
        self.call(StoreOp::Forget, &self.writes, outcome, || self.store.forget(tenant)).await
    }

    pub fn tell(&self, event: StoreEvent) {
        (self.listener)(event);
    }

    /// The error of a store that is not asked.
    pub fn error(&self) -> Option<StoreError> {
        self.reads.error().or(self.writes.error())
    }

    /// The time until reads are let through again.
    pub fn reads_pause(&self) -> Option<Duration> {
        self.reads.pause(Instant::now())
    }

    /// The time until writes are let through again.
    pub fn writes_pause(&self) -> Option<Duration> {
        self.writes.pause(Instant::now())
    }

    async fn pages(&self, tenant: TenantId, after: u64, bytes_max: usize) -> Result<Changes, StoreError> {
        let mut found = self.store.changes(tenant, after).await?;
        while found.has_more {
            let more = self.store.changes(tenant, found.version).await?;
            if more.has_more && more.version <= found.version {
                return Err(StoreError::Garbage);
            }
            found.changes.extend(more.changes);
            (found.version, found.has_more) = (more.version, more.has_more);
            forget_oldest(&mut found.changes, bytes_max);
        }
        forget_oldest(&mut found.changes, bytes_max);
        Ok(found)
    }

    async fn call<'a, T>(
        &'a self,
        op: StoreOp,
        breaker: &Breaker,
        outcome: impl Fn(&T) -> &'static str,
        call: impl FnOnce() -> BoxFuture<'a, Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let began = Instant::now();
        breaker.enter(began)?;
        // A store that panics is one that fails.
        let call = AssertUnwindSafe(async { call().await }).catch_unwind();
        let result = match timeout(CALL_MAX, call).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(StoreError::Down),
            Err(_) => Err(StoreError::Slow),
        };
        let outcome = match &result {
            Ok(found) => outcome(found),
            Err(error) => error.as_str(),
        };
        self.tell(StoreEvent::Op { op, outcome, took: began.elapsed() });
        let (store, op) = (self.store.name(), op.as_str());
        match &result {
            Ok(_) => {
                if let Some(had) = breaker.succeeded() {
                    tracing::info!(store, op, had = had.as_str(), "the store works again");
                }
            }
            Err(error) => {
                if breaker.failed(*error, Instant::now()) {
                    let error = error.as_str();
                    tracing::warn!(
                        store,
                        op,
                        error,
                        "the store fails; forkpoint goes on in memory, and tries again"
                    );
                }
            }
        }
        result
    }
}

/// Forgets the oldest changes until no more than this many bytes are left.
fn forget_oldest(changes: &mut Vec<Change>, bytes_max: usize) {
    let size = |change: &Change| match change {
        Change::Put(_, record) => {
            record.body.len() + record.blobs.iter().map(|blob| blob.len()).sum::<usize>()
        }
        Change::Delete(_) => 0,
    };
    let mut bytes = 0_usize;
    let fits = |change: &&Change| {
        bytes = bytes.saturating_add(size(change));
        bytes <= bytes_max
    };
    let kept = changes.iter().rev().take_while(fits).count();
    changes.drain(..changes.len() - kept);
}
