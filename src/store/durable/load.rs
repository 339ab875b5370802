//! Reading: all records of a tenant that is seen first, and what other processes have written since.
//!
//! Requests that come at once share one load, and one tenant: what comes after they went on is merged into it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::calls::{CALL_MAX, StoreEvent};
use super::{Durable, Link};
use crate::engine::durable::{Origin, restore};
use crate::engine::records::Change;
use crate::engine::tenant::TenantAccess;
use crate::engine::words::{StoreError, StoreOp, TenantId};
use crate::store::{Store, Tenant};

/// Loads at a time. Further ones wait for their turn, so that invented tenants delay others and do not shut them out.
pub(super) const LOADS_MAX: usize = 256;
/// Loads that wait for their turn. Beyond it nothing is known of a tenant that is seen first; one that memory knows has
/// earned its turn.
const LOADS_WAITING_MAX: usize = 4096;

/// A load that is under way.
pub(super) struct Load {
    /// The tenant of all who wait for it.
    tenant: Arc<Tenant>,
    is_done: watch::Sender<bool>,
}

/// The rounds in which others' changes of a tenant are asked for.
pub(super) struct News {
    rounds: Mutex<Rounds>,
    /// The last round that was answered.
    answered: watch::Sender<u64>,
}

#[derive(Default)]
struct Rounds {
    /// The round that was begun last.
    begun: u64,
    is_under_way: bool,
    /// True if somebody came during it.
    is_wanted: bool,
}

impl Default for News {
    fn default() -> News {
        News { rounds: Mutex::default(), answered: watch::Sender::new(0) }
    }
}

impl News {
    /// Takes part in a round that has not been begun. Returns its number, and true if the caller is to begin it.
    fn join(&self) -> (u64, bool) {
        let mut rounds = self.lock();
        if rounds.is_under_way {
            rounds.is_wanted = true;
            return (rounds.begun + 1, false);
        }
        rounds.begun += 1;
        rounds.is_under_way = true;
        (rounds.begun, true)
    }

    /// A round has ended. Returns true if somebody waits for another, which begins now.
    fn goes_on(&self) -> bool {
        let mut rounds = self.lock();
        self.answered.send_replace(rounds.begun);
        rounds.is_under_way = std::mem::take(&mut rounds.is_wanted);
        rounds.begun += u64::from(rounds.is_under_way);
        rounds.is_under_way
    }

    async fn done(&self, round: u64) {
        let _ = self.answered.subscribe().wait_for(|answered| *answered >= round).await;
    }

    fn lock(&self) -> MutexGuard<'_, Rounds> {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Load {
    pub fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    async fn done(&self) {
        let _ = self.is_done.subscribe().wait_for(|is_done| *is_done).await;
    }
}

/// A load until its end, whatever that is.
struct Underway<'a> {
    durable: &'a Durable,
    id: TenantId,
    load: &'a Load,
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        self.durable.loads.remove(&self.id);
        self.load.is_done.send_replace(true);
    }
}

impl Durable {
    /// Returns a tenant with what the store knows of it, if that comes in time.
    pub(in crate::store) async fn meet(
        self: &Arc<Self>,
        store: &Arc<Store>,
        id: &TenantId,
        known: Option<Arc<Tenant>>,
    ) -> Arc<Tenant> {
        let Some(load) = self.begin_load(store, id, known.clone()) else {
            return known.unwrap_or_else(|| store.tenant(id));
        };
        let began = Instant::now();
        if timeout(self.wait, load.done()).await.is_err() {
            self.waited_too_long(began);
        }
        store.known_tenant(id).unwrap_or_else(|| Arc::clone(&load.tenant))
    }

    /// Waits until the records of a tenant were read, if that is possible now.
    pub(super) async fn load_whole(
        self: &Arc<Self>,
        store: &Arc<Store>,
        id: &TenantId,
        tenant: &Arc<Tenant>,
    ) {
        if let Some(load) = self.begin_load(store, id, Some(Arc::clone(tenant))) {
            load.done().await;
        }
    }

    /// Begins to load a tenant, or takes part in the load that is under way; none if it cannot be loaded now.
    fn begin_load(
        self: &Arc<Self>,
        store: &Arc<Store>,
        id: &TenantId,
        known: Option<Arc<Tenant>>,
    ) -> Option<Arc<Load>> {
        if *id == TenantId::NOBODY || self.is_forgetting(id) || self.calls.reads_pause().is_some() {
            return None;
        }
        let link = known.as_ref().and_then(|tenant| tenant.link());
        if link.is_some_and(|link| !link.may_load(Instant::now())) {
            return None;
        }
        if known.is_none() && self.loads.len() >= LOADS_MAX + LOADS_WAITING_MAX {
            return self.loads.get(id).map(|load| Arc::clone(&load));
        }
        let mut is_new = false;
        let begin = || {
            is_new = true;
            let tenant = known.unwrap_or_else(|| store.tenant(id));
            Arc::new(Load { tenant, is_done: watch::Sender::new(false) })
        };
        let load = Arc::clone(&self.loads.entry(*id).or_insert_with(begin));
        if is_new {
            let (durable, store, id, load) = (Arc::clone(self), Arc::clone(store), *id, Arc::clone(&load));
            tokio::spawn(async move {
                // Also if it panics: nobody waits for ever.
                let underway = Underway { durable: &durable, id, load: &load };
                durable.load(&store, &id, &load).await;
                drop(underway);
            });
        }
        Some(load)
    }

    async fn load(self: &Arc<Self>, store: &Arc<Store>, id: &TenantId, load: &Load) {
        let Some(link) = load.tenant.link() else { return };
        let Ok(_turn) = self.turns.acquire().await else { return };
        // Asked first: whoever wrote meanwhile may have ended.
        let is_shared = self.is_shared();
        let began = Instant::now();
        let found = match self.calls.changes(*id, 0, self.load_bytes).await {
            Ok(found) => found,
            Err(error) => {
                // Of a store that fails the breaker takes care.
                if error == StoreError::Garbage || began.elapsed() >= CALL_MAX {
                    link.not_loaded(Instant::now());
                }
                return;
            }
        };
        if self.is_forgetting(id) || load.tenant.is_forgotten() {
            return;
        }
        let is_known = !found.changes.is_empty();
        self.restore(&load.tenant, found.changes, Origin::Everything { is_shared }).await;
        link.loaded(found.version);
        if is_shared && !self.is_shared() {
            // The last round of news may have left it out.
            self.hear(&load.tenant, link).await;
        }
        if is_known && !load.tenant.is_forgotten() {
            store.admit(id, &load.tenant);
        }
    }

    /// Asks what other processes have written of a tenant since. Returns true if there was something. Callers that come
    /// during a round take part in the next. A caller that stops waiting does not end its round.
    pub async fn news(self: &Arc<Self>, tenant: &Arc<Tenant>) -> bool {
        let Some(link) = tenant.link().filter(|link| self.is_shared() && link.is_loaded()) else {
            return false;
        };
        let before = link.version();
        let (round, is_first) = link.news.join();
        if is_first {
            let (durable, tenant) = (Arc::clone(self), Arc::clone(tenant));
            tokio::spawn(async move {
                let Some(link) = tenant.link() else { return };
                while {
                    durable.hear(&tenant, link).await;
                    link.news.goes_on()
                } {}
            });
        }
        link.news.done(round).await;
        link.version() != before
    }

    /// As [`Durable::news`], for a request: it waits no longer than for the store at all.
    pub async fn news_in_time(self: &Arc<Self>, tenant: &Arc<Tenant>) -> bool {
        let began = Instant::now();
        timeout(self.wait, self.news(tenant)).await.unwrap_or_else(|_| {
            self.waited_too_long(began);
            false
        })
    }

    /// Counts a request that goes on without an answer.
    fn waited_too_long(&self, began: Instant) {
        let outcome = StoreError::Slow.as_str();
        self.calls.tell(StoreEvent::Op { op: StoreOp::Wait, outcome, took: began.elapsed() });
    }

    async fn hear(&self, tenant: &Arc<Tenant>, link: &Link) {
        let id = tenant.id();
        if self.is_forgetting(&id) {
            return;
        }
        let after = link.version();
        let Ok(mut found) = self.calls.changes(id, after, self.load_bytes).await else { return };
        if found.was_forgotten {
            // Whoever comes next reads what was written since.
            self.forget_here(tenant);
            return;
        }
        if found.version < after {
            // It was emptied, and has begun anew: what is known here is told to it again.
            tenant.look(|state| state.save_all_anew());
            let Ok(all) = self.calls.changes(id, 0, self.load_bytes).await else { return };
            found = all;
        }
        if !tenant.is_forgotten() && !found.changes.is_empty() {
            self.restore(tenant, found.changes, Origin::Since).await;
        }
        link.loaded(found.version);
    }

    /// Merges what the store has told into what is known, away from the threads that serve requests.
    async fn restore(&self, tenant: &Arc<Tenant>, changes: Vec<Change>, origin: Origin) {
        let (tenant, times) = (Arc::clone(tenant), (self.times)());
        let restored = tokio::task::spawn_blocking(move || restore(&*tenant, &changes, origin, times)).await;
        match restored {
            Ok(restored) if restored.unreadable > 0 => {
                self.calls.tell(StoreEvent::Unreadable(restored.unreadable));
            }
            Ok(_) => {}
            Err(error) => {
                tracing::error!(%error, "what the store has told was not understood: a bug of forkpoint")
            }
        }
    }
}
