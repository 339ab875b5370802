//! A request on its way in the state of its tenant. One that comes to nothing leaves it when this is dropped, so that
//! nobody has to remember to say so: the next one leads at the gate, and a child that was bound is free again.

use std::sync::Arc;

use tokio::runtime::Handle;

use crate::engine::answer::turn::{Block, Turn};
use crate::engine::answer::usage::Usage;
use crate::engine::cache::entry::EntryKey;
use crate::engine::fork::SnapshotScope;
use crate::engine::policy::Policy;
use crate::engine::tenant::{self, Accepted, Flight, Settlement, TenantAccess, TenantState, accept, settle};
use crate::engine::words::TenantId;
use crate::metrics::Metrics;
use crate::store::{Eviction, Store, Tenant};

use super::clock::Clock;
use super::lease::{Answers, HeldLeases};

/// Longer than any name of a tool that the API takes.
const TOOL_CHARS_MAX: usize = 128;

/// A request that went out and has not been answered.
pub struct InFlight {
    home: Home,
    /// Taken when the request is answered.
    flight: Option<Box<Flight>>,
    /// The leases of what it writes, where replicas share a store.
    pub(super) leases: Option<HeldLeases>,
}

/// A request that the upstream took, until the end of its answer.
pub struct AcceptedFlight {
    home: Home,
    /// Taken at the end.
    accepted: Option<Accepted>,
    /// Taken when what it writes can be read.
    leases: Option<HeldLeases>,
}

/// The tenant of a request, and what is needed to tell it of that.
#[derive(Clone)]
pub struct Home {
    pub tenant: Arc<Tenant>,
    pub policy: Arc<Policy>,
    pub clock: Arc<Clock>,
}

impl InFlight {
    pub fn new(home: Home, flight: Box<Flight>) -> InFlight {
        InFlight { home, flight: Some(flight), leases: None }
    }

    pub fn flight(&self) -> Option<&Flight> {
        self.flight.as_deref()
    }

    pub fn tenant(&self) -> &Arc<Tenant> {
        &self.home.tenant
    }

    /// Looks into the state of its tenant, which may change it too.
    pub fn look<R>(&mut self, look: impl FnOnce(&mut TenantState, &mut Flight) -> R) -> Option<R> {
        let flight = self.flight.as_deref_mut()?;
        Some(self.home.tenant.look(|state| look(state, flight)))
    }

    pub fn home(&self) -> &Home {
        &self.home
    }

    /// It has waited after it was let go, and is sent now.
    pub(super) fn sent_later(&mut self) {
        let now = self.home.clock.now();
        if let Some(flight) = &mut self.flight {
            flight.sent_later(now);
        }
    }

    /// How its answer comes, as far as others wait for what it writes. None if nobody waits for that.
    pub(super) fn answers(&self) -> Option<Answers> {
        let flight = self.flight.as_ref()?;
        if flight.request.streams {
            return Some(Answers::Streamed);
        }
        let hold_ms = self.home.tenant.look(|state| state.whole_hold_ms(flight))?;
        Some(Answers::Whole { presumed_after_ms: hold_ms })
    }

    /// Returns the tenant, and the entries that the request writes and that others would wait for, the shortest first.
    pub(super) fn large_writes(&self) -> (TenantId, Vec<EntryKey>) {
        let Some(flight) = &self.flight else { return (TenantId::NOBODY, Vec::new()) };
        self.home.tenant.look(|state| (state.id, state.large_writes(flight)))
    }

    /// Another replica has written these entries.
    pub(super) fn written_elsewhere(&self, entries: &[EntryKey]) {
        if let Some(flight) = &self.flight {
            let now = self.home.clock.now();
            self.home.tenant.look(|state| state.written_elsewhere(flight, entries, now));
        }
    }

    /// The upstream took the request: from here on it is known, and its tenant too.
    pub fn accept(mut self, store: &Arc<Store>) -> Option<AcceptedFlight> {
        let flight = self.flight.take()?;
        let mut home = self.home.clone();
        let id = home.tenant.look(|state| state.id);
        let known = store.admit(&id, &home.tenant);
        let flight = if Arc::ptr_eq(&known, &home.tenant) {
            flight
        } else {
            // Another request of a tenant that nothing was known of was answered first, or the tenant was forgotten.
            // Those that wait for this one there go next.
            home.tenant.look(|state| state.stop_waiting(flight.ticket, home.clock.now()));
            home.tenant = known;
            home.tenant.look(|state| state.adopt(flight))
        };
        let keeps_snapshots = home.policy.fork.snapshots == SnapshotScope::Latest;
        let accepted = accept(&*home.tenant, flight, keeps_snapshots, home.clock.now());
        make_room(store);
        Some(AcceptedFlight { home, accepted: Some(accepted), leases: self.leases.take() })
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if let Some(flight) = &self.flight {
            tenant::abandon(&*self.home.tenant, flight, self.home.clock.now());
        }
    }
}

impl AcceptedFlight {
    pub fn accepted(&self) -> Option<&Accepted> {
        self.accepted.as_ref()
    }

    /// Returns true once the first content has come.
    pub fn has_begun(&self) -> bool {
        self.accepted.as_ref().is_some_and(Accepted::has_begun)
    }

    /// The first content of the answer has come: what the request wrote can be read from now on.
    pub fn first_content(&mut self, usage: Option<Usage>) {
        let Some(accepted) = &mut self.accepted else { return };
        let Home { tenant, policy, clock } = &self.home;
        tenant::first_content(&**tenant, accepted, usage, policy, clock.now());
        if let Some(leases) = self.leases.take() {
            leases.written();
        }
    }

    /// Returns true if finished blocks are of interest.
    pub fn listens(&self) -> bool {
        self.accepted.as_ref().is_some_and(Accepted::listens)
    }

    /// A block of the answer has finished.
    pub fn block(&mut self, message_id: Option<&str>, block: Block) {
        if let Some(accepted) = &mut self.accepted {
            tenant::block(&*self.home.tenant, accepted, message_id, block, self.home.clock.now());
        }
    }

    /// The answer has ended. Returns what was found, and the request that it belongs to.
    pub fn settle(mut self, turn: Option<&Turn>, metrics: &Metrics) -> Option<(Settlement, Box<Flight>)> {
        let mut accepted = self.accepted.take()?;
        let Home { tenant, policy, clock } = &self.home;
        let settlement = settle(&**tenant, &mut accepted, turn, policy, clock.now());
        let stood_down = settlement.child.iter().flat_map(|child| &child.stood_down);
        for (tool, why) in stood_down {
            note_stand_down(metrics, &self.home.tenant, tool, why.as_str());
        }
        Some((settlement, accepted.flight))
    }

    pub fn policy(&self) -> &Arc<Policy> {
        &self.home.policy
    }
}

impl Drop for AcceptedFlight {
    fn drop(&mut self) {
        if let Some(accepted) = &self.accepted {
            tenant::abandon(&*self.home.tenant, &accepted.flight, self.home.clock.now());
        }
    }
}

/// Makes room in the store. What takes more than one step is done by a task of its own, step by step.
fn make_room(store: &Arc<Store>) {
    let mut eviction = Eviction::default();
    if store.shrink(&mut eviction) {
        return;
    }
    if let (Ok(runtime), Some(evictor)) = (Handle::try_current(), store.evictor()) {
        let store = Arc::clone(store);
        runtime.spawn(async move {
            let _evictor = evictor;
            while !store.shrink(&mut eviction) {
                tokio::task::yield_now().await;
            }
        });
    }
}

/// Counts and logs that forking stands down. A tool that is not known to start agents is not named.
pub fn note_stand_down(metrics: &Metrics, tenant: &Tenant, tool: &str, reason: &'static str) {
    metrics.standdowns_total.with_label_values(&[reason]).inc();
    let is_name = tool.len() <= TOOL_CHARS_MAX && tool.bytes().all(|byte| byte.is_ascii_graphic());
    let (id, is_known) = tenant.look(|state| (state.id, state.fan_outs.points().knows_tool(tool)));
    let tool = if is_name && is_known { tool } else { "other" };
    tracing::warn!(tenant = %id, tool, reason, "forking stands down");
}

#[cfg(test)]
mod tests;
