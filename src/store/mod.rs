//! The memory between requests, tenant by tenant. No byte, digest or time crosses from one to another.
//!
//! All share `SharedWeights`: how many tokens a byte makes, per model and kind of block, learned from every
//! tenant's bills. It is a property of the model, and without it the first forecasts of a new tenant would be guesses.
//!
//! Everything is bounded twice: by what one tenant may take, and by what all may. When all together take too
//! much, the tenant that takes most gives up its oldest, so that a quiet one is not pushed out by a busy one.
//!
//! A child keeps its prefix for life. So what goes first is what nobody stands on: fork points and snapshots, then
//! tenants without forked children, then spellings. Only then do the prefixes of children go whose last answer left
//! them nothing to do, the longest unused first; and if those that work fill what there is, no more are forked.
//!
//! Rule: nothing is remembered of a tenant before the upstream accepted one of its requests, or said of one that it
//! holds its conversation. An invented credential leaves no trace.

mod budget;
mod durable;
mod eviction;
mod payers;
pub mod file;
pub mod records;
pub mod redis;
pub mod seal;
mod shared;
mod tenant;
mod weights;

/// The lock of a tenant. A test builds [`shared`] a second time, with a lock that tries other orders.
mod sync {
    pub use std::sync::{Mutex, MutexGuard};
}

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use dashmap::DashMap;

pub use budget::{Budget, ByteKind};
pub use durable::{Condition, Forgotten, Listener, Met, Opened, StoreEvent, Surroundings};
pub use eviction::{Eviction, Evictor};
pub use tenant::Tenant;

use crate::engine::family::fanout::Rules;
use crate::engine::fork::experiment::{Declined, ForkExperiment, Rereads};
use crate::engine::gate::GateSettings;
use crate::engine::request::identify::Sender;
use crate::engine::tenant::TenantAccess;
use crate::engine::words::{Arm, Moment, Refusal, TenantId, Ticket};
use durable::{Durable, Link};
use payers::Payers;
use weights::SharedWeights;

/// Tenants at once: what a tenant takes at least, and the time to look for the largest, are bounded by it.
const TENANTS_MAX: usize = 4096;

/// Tenants of one credential: it can name any number of workspaces.
const TENANTS_PER_PAYER_MAX: usize = 64;

/// The limits on what may be remembered.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Of all tenants, recent bodies aside.
    pub max_bytes: usize,
    /// Of recent bodies.
    pub recent_bytes: usize,
    /// The part of either that one tenant may take.
    pub tenant_share: f64,
}

impl Limits {
    fn share(&self, bytes: usize) -> usize {
        (bytes as f64 * self.tenant_share) as usize
    }
}

/// The memory of this process.
pub struct Store {
    tenants: DashMap<TenantId, Arc<Tenant>>,
    limits: Limits,
    rules: ArcSwap<Rules>,
    gate: ArcSwap<GateSettings>,
    budget: Arc<Budget>,
    /// True while there is an [`Evictor`].
    is_evicting: Arc<AtomicBool>,
    weights: Arc<SharedWeights>,
    payers: Payers,
    /// Counts uses, so that the tenant that was away for longest is known.
    uses: AtomicU64,
    tickets: AtomicU64,
    /// The store that outlives this process, if there is one.
    durable: OnceLock<Arc<Durable>>,
}

impl Store {
    /// `rules` say who is a child; what fork points may hold is a part of the limits.
    pub fn new(limits: Limits, rules: Rules, gate: GateSettings) -> Store {
        let rules = ArcSwap::from_pointee(Rules { bytes: limits.share(limits.max_bytes), ..rules });
        Store {
            tenants: DashMap::new(),
            limits,
            rules,
            gate: ArcSwap::from_pointee(gate),
            budget: Arc::default(),
            is_evicting: Arc::default(),
            weights: Arc::default(),
            payers: Payers::default(),
            uses: AtomicU64::new(0),
            tickets: AtomicU64::new(1),
            durable: OnceLock::new(),
        }
    }

    /// The name of the store in metrics.
    pub fn name(&self) -> &'static str {
        "memory"
    }

    /// Numbers a request that is planned; the lower, the earlier it came.
    pub fn ticket(&self) -> Ticket {
        Ticket(self.tickets.fetch_add(1, Relaxed))
    }

    /// Returns a tenant. One that nothing is known of is empty, and forgotten with its last request, unless it is
    /// admitted.
    pub fn tenant(&self, id: &TenantId) -> Arc<Tenant> {
        self.known_tenant(id).unwrap_or_else(|| Arc::new(self.new_tenant(id)))
    }

    /// Returns a tenant, if anything is known of it.
    pub fn known_tenant(&self, id: &TenantId) -> Option<Arc<Tenant>> {
        let tenant = self.tenants.get(id)?;
        tenant.used(self.uses.fetch_add(1, Relaxed));
        Some(Arc::clone(&tenant))
    }

    /// Returns who pays for a sender, if it has credentials. `is_known`: one of its requests was accepted.
    pub fn payer(&self, sender: &Sender, is_known: bool) -> Option<TenantId> {
        Some(self.payers.of(sender.payer?, &sender.credentials, is_known))
    }

    /// Returns a tenant, if anything is known of it, for somebody whose look is no use.
    fn peek(&self, id: &TenantId) -> Option<Arc<Tenant>> {
        self.tenants.get(id).map(|tenant| Arc::clone(&tenant))
    }

    /// Keeps a tenant whose request was accepted: from now on it is known. Returns the one that counts: another request
    /// may have brought it first, and one that was forgotten does not come back.
    pub fn admit(&self, id: &TenantId, tenant: &Arc<Tenant>) -> Arc<Tenant> {
        if let Some(known) = self.known_tenant(id) {
            return known;
        }
        if self.tenants.len() >= TENANTS_MAX {
            self.make_room_for_tenant();
        }
        let payer = tenant.payer();
        if payer != *id {
            self.make_room_for_tenant_of(payer);
        }
        let fresh = || {
            if !tenant.is_forgotten() {
                return Arc::clone(tenant);
            }
            let again = self.new_tenant(id);
            again.paid_by(payer);
            Arc::new(again)
        };
        let tenant = Arc::clone(&self.tenants.entry(*id).or_insert_with(fresh));
        tenant.used(self.uses.fetch_add(1, Relaxed));
        tenant.admit();
        tenant
    }

    /// The budget of all bytes that are held in memory.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Returns the number of bytes remembered, recent bodies included.
    pub fn bytes(&self) -> usize {
        self.budget.kept() + self.budget.held(ByteKind::Recent)
    }

    /// The prefixes of all tenants that are remembered, by layer.
    pub fn prefixes(&self) -> [usize; 4] {
        let mut all = [0; 4];
        for (_, tenant) in self.known() {
            let of_tenant = tenant.look(|state| state.learned.prefixes());
            all.iter_mut().zip(of_tenant).for_each(|(all, count)| *all += count);
        }
        all
    }

    /// The fork points of all tenants.
    pub fn forks(&self) -> usize {
        self.sum(|tenant| tenant.look(|state| state.fan_outs.points().len()))
    }

    /// Other rules of who is a child, and of who waits, from now on. Who waits already keeps its deadline.
    pub fn configure(&self, rules: Rules, gate: GateSettings) {
        let rules = Rules { bytes: self.rules.load().bytes, ..rules };
        self.rules.store(Arc::new(rules.clone()));
        self.gate.store(Arc::new(gate));
        for (_, tenant) in self.known() {
            tenant.look(|state| {
                state.fan_outs.configure(rules.clone());
                state.gate.configure(gate);
            });
        }
    }

    /// Every tenant of which this process knows anything.
    pub fn known(&self) -> Vec<(TenantId, Arc<Tenant>)> {
        self.tenants.iter().map(|tenant| (*tenant.key(), Arc::clone(&tenant))).collect()
    }

    /// Returns what the children of each tenant, tool and arm have read again, if anything.
    pub fn rereads(&self) -> Vec<(TenantId, String, Arm, Rereads)> {
        self.experiments(|id, experiment| {
            let read = experiment.rereads().filter(|(_, _, rereads)| rereads.turns > 0);
            read.map(|(tool, arm, rereads)| (id, tool.to_owned(), arm, *rereads)).collect()
        })
    }

    /// Returns the children of each tenant and tool that were not forked, by reason.
    pub fn declined(&self) -> Vec<(String, Option<Refusal>, Declined)> {
        self.experiments(|_, experiment| {
            let all = experiment.all_declined();
            all.map(|(tool, why, declined)| (tool.to_owned(), why, declined)).collect()
        })
    }

    /// Gathers what is known of the children of every tenant.
    fn experiments<R>(&self, of: impl Fn(TenantId, &ForkExperiment) -> Vec<R>) -> Vec<R> {
        let tenants = self.known().into_iter();
        tenants.flat_map(|(id, tenant)| tenant.look(|state| of(id, &state.experiment))).collect()
    }

    /// Forgets all that this process knows of a tenant; `false` if there was nothing. The store behind it still knows it.
    pub fn forget(&self, id: &TenantId) -> bool {
        let forgotten = self.tenants.remove_if(id, |_, tenant| {
            tenant.forget();
            true
        });
        forgotten.is_some()
    }

    /// Another process has forgotten this tenant, for good.
    fn forget_this(&self, tenant: &Arc<Tenant>) {
        self.tenants.remove_if(&tenant.id(), |_, known| Arc::ptr_eq(known, tenant));
        tenant.forget();
    }

    pub fn tenants(&self) -> usize {
        self.tenants.len()
    }

    /// The number of requests that wait, those aside whose time has come and who have not noticed.
    pub fn waiting(&self, now: Moment) -> usize {
        self.sum(|tenant| tenant.look(|state| state.gate.waiting(now) + state.awaiting_seal(now)))
    }

    /// Until when the first of them waits.
    pub fn next_due(&self) -> Option<Moment> {
        self.tenants.iter().filter_map(|tenant| tenant.look(|state| state.next_due())).min()
    }

    /// The number of requests that wait at the gate, or have gone and not begun.
    pub fn at_gate(&self) -> usize {
        self.sum(|tenant| tenant.look(|state| state.gate.requests()))
    }

    /// The number of children that wait for the end of their parent's answer.
    pub fn awaiting_seal(&self) -> usize {
        self.sum(|tenant| tenant.look(|state| state.awaiting_seal(Moment(0))))
    }

    fn sum(&self, count: impl Fn(&Tenant) -> usize) -> usize {
        self.tenants.iter().map(|tenant| count(&tenant)).sum()
    }

    fn new_tenant(&self, id: &TenantId) -> Tenant {
        let rules = Rules::clone(&self.rules.load());
        let (budget, weights) = (Arc::clone(&self.budget), Arc::clone(&self.weights));
        let mut tenant = Tenant::new(*id, self.limits, rules, **self.gate.load(), budget, weights);
        if let Some(durable) = self.durable.get() {
            tenant.link_to(Link::new(Arc::clone(durable), *id));
        }
        tenant
    }
}

#[cfg(test)]
pub(crate) mod tests;
