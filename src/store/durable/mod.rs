//! The store behind the memory: what is known of a tenant outlives this process.
//!
//! ```text
//! a tenant is seen first ───────────── load ──▶ restored into its state       load.rs
//! a conversation begins, not known ─── news ──▶ restored   (shared stores)    load.rs
//! a look that changed something ────▶ queue ──▶ taken, written in its turn    link.rs, queue.rs, save.rs
//! every call has an end, and counts for the breaker                           calls.rs, breaker.rs
//! ```
//!
//! The rule: memory is what requests work with. A store that is slow or fails is one that knows nothing, and what could
//! not be written is written anew from memory once it works again.

mod access;
mod breaker;
mod calls;
mod link;
mod load;
mod queue;
mod save;
mod weights;
mod worth;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use dashmap::DashMap;
use futures_util::future::BoxFuture;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

pub use access::{Forgotten, Met};
pub use calls::{Listener, StoreEvent};
pub use link::Link;

use super::records::{self, Changes, RecordStore};
use super::{Store, Tenant};
use crate::engine::records::{Change, Times, Writer};
use crate::engine::words::{StoreError, TenantId};
use calls::Calls;
use load::Load;
use queue::Queue;

/// Writes at a time: one slow tenant does not hold up the others.
const WRITERS: usize = 4;
/// How often the tenants in use hear what other processes have written.
const SHARE_EVERY: Duration = Duration::from_secs(1);

/// What is needed of the process.
pub struct Surroundings {
    /// One moment by the clock of the process and by the calendar's.
    pub times: Box<dyn Fn() -> Times + Send + Sync>,
    pub listener: Listener,
    /// The longest that a request waits for the store.
    pub wait: Duration,
}

/// A store that was opened, or that cannot be.
pub struct Opened {
    store: Arc<dyn RecordStore>,
    error: Option<StoreError>,
}

/// The state of the store, for those who look after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition {
    pub store: &'static str,
    /// Why nothing is known of it, and nothing is written; none if all is well.
    pub error: Option<StoreError>,
    /// Tenants with something to be written, or of which something is being written.
    pub queued: usize,
    /// The bytes that it takes, if it knows them.
    pub bytes: Option<u64>,
}

pub struct Durable {
    calls: Calls,
    queue: Queue,
    /// The memory that this store is behind.
    memory: OnceLock<Weak<Store>>,
    /// The loads that are under way, or wait for their turn.
    loads: DashMap<TenantId, Arc<Load>>,
    turns: Semaphore,
    /// Tenants that are to be forgotten, and of which the store may still know something.
    forgetting: Mutex<BTreeSet<TenantId>>,
    /// True while other processes write to the store, and until what they wrote last was heard.
    is_shared: watch::Sender<bool>,
    /// The name under which this process writes.
    writer: Writer,
    /// The version up to which the tokens to a byte are known that all tenants share; none before they were read.
    weights: Mutex<Option<u64>>,
    times: Box<dyn Fn() -> Times + Send + Sync>,
    wait: Duration,
    /// The most bytes of records of one tenant that are read.
    load_bytes: usize,
}

impl Opened {
    /// Opens a store. One that cannot be opened is one that fails from the start.
    pub async fn open(options: records::Options) -> Opened {
        let name = options.place.name();
        match records::open(options).await {
            Ok(store) => Opened { store, error: None },
            Err(error) => {
                tracing::warn!(
                    store = name,
                    error = error.as_str(),
                    "the store cannot be opened; forkpoint begins in memory alone"
                );
                Opened { store: Arc::new(Unusable { name, error }), error: Some(error) }
            }
        }
    }
}

impl Opened {
    /// The name of the store in metrics.
    pub fn name(&self) -> &'static str {
        self.store.name()
    }

    pub fn records(&self) -> &Arc<dyn RecordStore> {
        &self.store
    }
}

impl From<Arc<dyn RecordStore>> for Opened {
    fn from(store: Arc<dyn RecordStore>) -> Opened {
        Opened { store, error: None }
    }
}

impl Durable {
    pub(super) fn new(opened: Opened, surroundings: Surroundings, load_bytes: usize) -> Durable {
        let Surroundings { times, listener, wait } = surroundings;
        let is_shared = watch::Sender::new(opened.store.is_shared());
        Durable {
            calls: Calls::new(opened.store, opened.error, listener),
            queue: Queue::default(),
            memory: OnceLock::new(),
            loads: DashMap::new(),
            turns: Semaphore::new(load::LOADS_MAX),
            forgetting: Mutex::default(),
            is_shared,
            writer: random_writer(),
            weights: Mutex::default(),
            times,
            wait,
            load_bytes,
        }
    }

    /// Begins to write what changes and, with a store that others share, to hear what they write.
    pub(super) fn start(self: &Arc<Self>, store: &Arc<Store>) {
        // It is started once.
        let _ = self.memory.set(Arc::downgrade(store));
        for _ in 0..WRITERS {
            tokio::spawn(Arc::clone(self).write(Arc::downgrade(store)));
        }
        tokio::spawn(Arc::clone(self).share(Arc::downgrade(store)));
        tokio::spawn(Arc::clone(self).share_weights(Arc::downgrade(store)));
    }

    pub fn writer(&self) -> Writer {
        self.writer
    }

    /// Returns true if other processes write to the store at the same time, or did and were not heard to the end.
    pub fn is_shared(&self) -> bool {
        *self.is_shared.borrow()
    }

    pub fn condition(&self) -> Condition {
        let store = self.calls.store();
        Condition {
            store: store.name(),
            error: self.calls.error(),
            queued: self.queue.len(),
            bytes: store.bytes(),
        }
    }

    /// From now on nothing of a tenant is read or written.
    fn begin_to_forget(&self, id: TenantId) {
        self.forgetting().insert(id);
        if let Some(load) = self.loads.get(&id) {
            load.tenant().forget();
        }
    }

    /// Forgets a tenant in the store, for good. What cannot be done now is done as soon as the store works again, as long
    /// as this process lives; until then nothing of the tenant is read or written.
    pub(super) async fn forget(
        self: &Arc<Self>,
        id: TenantId,
        link: Option<&Link>,
    ) -> Result<bool, StoreError> {
        // What is being written now is written first, and forgotten then.
        let turn = match link {
            Some(link) => Some(link.turn.lock().await),
            None => None,
        };
        let forgotten = self.calls.forget(id).await;
        drop(turn);
        match forgotten {
            Ok(_) => {
                self.forgetting().remove(&id);
            }
            Err(_) => {
                tokio::spawn(Arc::clone(self).forget_later(id));
            }
        }
        forgotten
    }

    async fn forget_later(self: Arc<Self>, id: TenantId) {
        loop {
            let pause = self.calls.writes_pause().unwrap_or(SHARE_EVERY);
            tokio::time::sleep(pause).await;
            if self.calls.forget(id).await.is_ok() {
                self.forgetting().remove(&id);
                tracing::info!(tenant = %id, "a tenant was forgotten by the store too");
                return;
            }
        }
    }

    /// Another process has forgotten this tenant, for good.
    fn forget_here(&self, tenant: &Arc<Tenant>) {
        tenant.forget();
        if let Some(memory) = self.memory.get().and_then(Weak::upgrade) {
            memory.forget_this(tenant);
        }
    }

    fn is_forgetting(&self, id: &TenantId) -> bool {
        self.forgetting().contains(id)
    }

    fn forgetting(&self) -> MutexGuard<'_, BTreeSet<TenantId>> {
        self.forgetting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn write(self: Arc<Self>, store: Weak<Store>) {
        loop {
            let (id, pace) = self.queue.next().await;
            let Some(store) = store.upgrade() else { return };
            if let Some(tenant) = store.peek(&id) {
                self.take_turn(&store, &tenant, pace).await;
            }
            self.queue.done();
        }
    }

    /// Hears what other processes write, until none does any more: then once more of every tenant, so that nothing is
    /// missed that they wrote last.
    async fn share(self: Arc<Self>, store: Weak<Store>) {
        while self.is_shared() {
            tokio::time::sleep(SHARE_EVERY).await;
            let Some(store) = store.upgrade() else { return };
            // Asked before the round, which then hears of everything.
            let is_over = !self.calls.store().is_shared();
            for (_, tenant) in store.known() {
                if tenant.link().is_some_and(|link| link.take_due(Instant::now()) || is_over) {
                    self.news(&tenant).await;
                }
            }
            if is_over {
                self.is_shared.send_replace(false);
            }
        }
    }
}

/// Draws a name that no other process has.
fn random_writer() -> Writer {
    use std::hash::{BuildHasher as _, Hasher as _, RandomState};
    Writer(RandomState::new().build_hasher().finish().to_be_bytes())
}

/// A store that could not be opened.
struct Unusable {
    name: &'static str,
    error: StoreError,
}

impl RecordStore for Unusable {
    fn name(&self) -> &'static str {
        self.name
    }

    fn changes(&self, _tenant: TenantId, _after: u64) -> BoxFuture<'_, Result<Changes, StoreError>> {
        Box::pin(async { Err(self.error) })
    }

    fn write(&self, _tenant: TenantId, _changes: Vec<Change>) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async { Err(self.error) })
    }

    fn forget(&self, _tenant: TenantId) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async { Err(self.error) })
    }
}

#[cfg(test)]
mod tests;
