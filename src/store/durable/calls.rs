//! The calls to a store: each has an end, is counted, and counts for the breaker.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::{Instant, timeout_at};

use super::breaker::Breaker;
use super::worth::{SharedBlobs, forget_least};
use crate::engine::records::Change;
use crate::engine::words::{StoreError, StoreOp, TenantId};
use crate::store::records::{Changes, RecordStore};

/// The longest time of a call, whatever a store promises.
pub const CALL_MAX: Duration = Duration::from_secs(10);

/// A store that has no room for this much has room for nothing: what is larger may be too large for it alone.
pub const SMALL_BYTES: usize = 64 << 10;

/// Something to be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreEvent {
    /// A call has ended.
    Op { op: StoreOp, outcome: &'static str, took: Duration },
    /// So many records were not written or, of a tenant that has more than memory may hold, not read.
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
    /// The tenant whose records were the last that the store could not make sense of.
    garbled: Mutex<Option<TenantId>>,
}

/// A call: what it is counted as, by whom, and what it brings.
struct Call {
    op: StoreOp,
    tenant: TenantId,
    bytes: usize,
}

/// Why a call has failed.
struct Failure {
    error: StoreError,
    /// True if it may be for this call alone, whatever the error.
    is_its_own: bool,
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        Failure { error, is_its_own: false }
    }
}

impl Calls {
    /// `error`: why the store is known not to work.
    pub fn new(store: Arc<dyn RecordStore>, error: Option<StoreError>, listener: Listener) -> Calls {
        let now = Instant::now();
        let (reads, writes) = (Breaker::new(error, now), Breaker::new(error, now));
        Calls { store, listener, reads, writes, garbled: Mutex::default() }
    }

    pub fn store(&self) -> &dyn RecordStore {
        &*self.store
    }

    /// Returns all that was written for a tenant after a version, page by page. Of more than `bytes_max` bytes what is
    /// worth most.
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
        let call = Call { op, tenant, bytes: 0 };
        let pages = Box::pin(self.pages(tenant, after, bytes_max));
        let found = self.call(call, &self.reads, outcome, pages).await?;
        if found.damaged > 0 {
            self.tell(StoreEvent::Unreadable(found.damaged));
        }
        Ok(found)
    }

    /// Writes what depends on the records up to the version `known`; none if the tenant was forgotten after it.
    pub async fn write(
        &self,
        tenant: TenantId,
        known: u64,
        changes: Vec<Change>,
    ) -> Result<Option<u64>, StoreError> {
        let bytes = changes.iter().map(size).sum();
        let write =
            Box::pin(async move { self.step(|| self.store.write_after(tenant, known, changes)).await });
        self.call(Call { op: StoreOp::Write, tenant, bytes }, &self.writes, |_| "ok", write).await
    }

    pub async fn forget(&self, tenant: TenantId) -> Result<bool, StoreError> {
        let outcome = |was_known: &bool| if *was_known { "hit" } else { "miss" };
        let forget = Box::pin(async move { self.step(|| self.store.forget(tenant)).await });
        self.call(Call { op: StoreOp::Forget, tenant, bytes: 0 }, &self.writes, outcome, forget).await
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

    /// The pages of a tenant take no longer than a call may: one with too many is a failure of its own.
    async fn pages(&self, tenant: TenantId, after: u64, bytes_max: usize) -> Result<Changes, Failure> {
        let end = Instant::now() + CALL_MAX;
        let mut found = self.step(|| self.store.changes(tenant, after)).await?;
        let (mut blobs, mut dropped) = (SharedBlobs::default(), 0);
        blobs.share(&mut found.changes);
        while found.has_more {
            let next = self.step(|| self.store.changes(tenant, found.version));
            let Ok(more) = timeout_at(end, next).await else {
                return Err(Failure { error: StoreError::Slow, is_its_own: true });
            };
            let mut more = more?;
            if more.has_more && more.version <= found.version {
                return Err(StoreError::Garbage.into());
            }
            blobs.share(&mut more.changes);
            found.changes.extend(more.changes);
            (found.version, found.has_more) = (more.version, more.has_more);
            found.damaged += more.damaged;
            found.was_forgotten |= more.was_forgotten;
            dropped += forget_least(&mut found.changes, bytes_max);
        }
        dropped += forget_least(&mut found.changes, bytes_max);
        if dropped > 0 {
            self.tell(StoreEvent::Dropped(dropped));
        }
        Ok(found)
    }

    /// Asks the store once.
    async fn step<'a, T>(
        &'a self,
        ask: impl FnOnce() -> BoxFuture<'a, Result<T, StoreError>>,
    ) -> Result<T, Failure> {
        // A store that panics is one that fails.
        let step = AssertUnwindSafe(async { ask().await }).catch_unwind();
        match timeout_at(Instant::now() + CALL_MAX, step).await {
            Ok(Ok(result)) => result.map_err(Failure::from),
            Ok(Err(_)) => Err(StoreError::Down.into()),
            Err(_) => Err(StoreError::Slow.into()),
        }
    }

    #[cfg(test)]
    pub fn read_failed(&self, error: StoreError) {
        self.reads.failed(error, Instant::now());
    }

    async fn call<T>(
        &self,
        call: Call,
        breaker: &Breaker,
        outcome: impl Fn(&T) -> &'static str,
        run: BoxFuture<'_, Result<T, Failure>>,
    ) -> Result<T, StoreError> {
        let began = Instant::now();
        breaker.enter(began)?;
        let result = run.await;
        let word = match &result {
            Ok(found) => outcome(found),
            Err(failure) => failure.error.as_str(),
        };
        self.tell(StoreEvent::Op { op: call.op, outcome: word, took: began.elapsed() });
        let (store, op) = (self.store.name(), call.op.as_str());
        // What is said is said once, of reads and writes together.
        let other = if std::ptr::eq(breaker, &self.reads) { &self.writes } else { &self.reads };
        let is_of_store = result.as_ref().is_err_and(|failure| self.is_of_store(&call, failure));
        match &result {
            Err(Failure { error, .. }) if is_of_store => {
                if breaker.failed(*error, Instant::now()) && other.error().is_none() {
                    let error = error.as_str();
                    tracing::warn!(
                        store,
                        op,
                        error,
                        "the store fails; forkpoint goes on in memory, and tries again"
                    );
                }
            }
            Err(_) => breaker.undecided(Instant::now()),
            Ok(_) => {
                if let Some(had) = breaker.succeeded()
                    && other.error().is_none()
                {
                    tracing::info!(store, op, had = had.as_str(), "the store works again");
                }
            }
        }
        result.map_err(|Failure { error, .. }| error)
    }

    /// Returns true if a failure is the store's, so that others would fail too, and not of one tenant's records.
    fn is_of_store(&self, call: &Call, failure: &Failure) -> bool {
        match failure.error {
            _ if failure.is_its_own => false,
            StoreError::Full => call.bytes <= SMALL_BYTES,
            // Records of two tenants in a row: this is not a store of ours.
            StoreError::Garbage => {
                let mut garbled = self.garbled.lock().unwrap_or_else(PoisonError::into_inner);
                garbled.replace(call.tenant).is_some_and(|other| other != call.tenant)
            }
            StoreError::Down | StoreError::Slow | StoreError::ReadOnly | StoreError::Locked => true,
        }
    }
}

/// The bytes that a change brings.
pub fn size(change: &Change) -> usize {
    match change {
        Change::Put(_, record) => {
            record.body.len() + record.blobs.iter().map(|blob| blob.len()).sum::<usize>()
        }
        Change::Delete(_) => 0,
    }
}
