//! The memory between requests, tenant by tenant; nothing ever crosses from one to another.
//!
//! Everything is bounded twice: by what one tenant may take, and by what all may. When all together take too
//! much, the tenant that takes most gives up its oldest, so that a quiet one is not pushed out by a busy one.
//!
//! A child keeps its prefix for life. So what goes first is what nobody stands on: fork points and snapshots, then
//! tenants without forked children, then spellings. Only then do the prefixes of children go whose last answer left
//! them nothing to do, the longest unused first; and if those that work fill what there is, no more are forked.
//!
//! Rule: nothing is remembered of a tenant before the upstream accepted one of its requests. An invented
//! credential leaves no trace.

mod choices;
mod forked;
mod recent;
mod tenant;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use arc_swap::ArcSwap;
use dashmap::DashMap;

pub use forked::{Bound, Fate, SharedFacts};
pub use recent::Hint;
pub use tenant::{ReadMode, Tenant, View};

use crate::engine::family::fanout::{FanOuts, Rules};
use crate::engine::words::TenantId;

/// Tenants at once: what a tenant takes at least, and the time to look for the largest, are bounded by it.
const TENANTS_MAX: usize = 4096;

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
pub struct Memory {
    tenants: DashMap<TenantId, Arc<Tenant>>,
    limits: Limits,
    rules: ArcSwap<Rules>,
    totals: Arc<Totals>,
    /// Counts uses, so that the tenant that was away for longest is known.
    clock: AtomicU64,
}

/// The totals of all tenants together.
#[derive(Debug, Default)]
struct Totals {
    spelling_bytes: AtomicUsize,
    /// Fork points, snapshots and children, what they stand on included.
    fork_bytes: AtomicUsize,
    recent_bytes: AtomicUsize,
    forks: AtomicUsize,
    /// By layer.
    prefixes: [AtomicUsize; 4],
}

impl Totals {
    /// Returns the number of bytes that `store.max_bytes` bounds.
    fn kept_bytes(&self) -> usize {
        self.spelling_bytes.load(Relaxed) + self.fork_bytes.load(Relaxed)
    }
}

/// The store as requests use it. What it gives out is this process's own view of a tenant: reading and writing
/// it takes no I/O, and a store that keeps it elsewhere too does so behind this.
pub trait Store: Send + Sync {
    /// As metrics call it.
    fn name(&self) -> &'static str;

    /// Returns a tenant, if anything is known of it.
    fn tenant(&self, id: &TenantId) -> Option<Arc<Tenant>>;

    /// Returns a tenant whose request was accepted: from now on it is known.
    fn admit(&self, id: &TenantId) -> Arc<Tenant>;

    /// Makes room, if there is too little. To be called after something was added.
    fn shrink(&self);

    /// Makes room for so many bytes beside recent bodies; whether there is.
    fn make_room(&self, bytes: usize) -> bool;

    /// Returns the number of bytes held, recent bodies included.
    fn bytes(&self) -> usize;

    /// The prefixes of all tenants that are remembered, by layer.
    fn prefixes(&self) -> [usize; 4];

    /// The fork points of all tenants.
    fn forks(&self) -> usize;

    /// Other rules of who is a child, from now on.
    fn configure(&self, rules: Rules);

    /// Every tenant of which this process knows anything.
    fn known(&self) -> Vec<(TenantId, Arc<Tenant>)>;

    /// Forgets all that is known of a tenant, for good; whether there was anything.
    fn forget(&self, id: &TenantId) -> bool;
}

impl Memory {
    /// `rules` say who is a child; what fork points may hold is a part of the limits.
    pub fn new(limits: Limits, rules: Rules) -> Memory {
        let rules = ArcSwap::from_pointee(Rules { bytes: limits.share(limits.max_bytes), ..rules });
        Memory { tenants: DashMap::new(), limits, rules, totals: Arc::default(), clock: AtomicU64::new(0) }
    }

    pub fn tenants(&self) -> usize {
        self.tenants.len()
    }

    fn rules(&self) -> Rules {
        Rules::clone(&self.rules.load())
    }

    /// Forgets what is missed least; `false` if there is nothing but children that work.
    fn forget_something(&self) -> bool {
        let mut tenants: Vec<_> = self.tenants.iter().map(|tenant| Arc::clone(&tenant)).collect();
        tenants.sort_by_key(|tenant| std::cmp::Reverse(tenant.kept_bytes()));
        tenants.iter().any(|tenant| tenant.with_fan_outs(FanOuts::forget_oldest_point))
            || self.forget_longest_unused(|tenant| !tenant.has_forked_children())
            || tenants.iter().any(|tenant| tenant.forget_spellings())
            || tenants.iter().any(|tenant| tenant.with_fan_outs(FanOuts::forget_resting_child))
    }

    fn largest(&self, size: fn(&Tenant) -> usize) -> Option<Arc<Tenant>> {
        self.tenants.iter().max_by_key(|tenant| size(tenant)).map(|tenant| Arc::clone(&tenant))
    }

    fn forget_longest_unused(&self, may_go: fn(&Tenant) -> bool) -> bool {
        let oldest = self.tenants.iter().filter(|tenant| may_go(tenant));
        let oldest = oldest.min_by_key(|tenant| tenant.last_used()).map(|tenant| *tenant.key());
        oldest.is_some_and(|id| self.tenants.remove(&id).is_some())
    }
}

impl Store for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn tenant(&self, id: &TenantId) -> Option<Arc<Tenant>> {
        let tenant = self.tenants.get(id)?;
        tenant.used(self.clock.fetch_add(1, Relaxed));
        Some(Arc::clone(&tenant))
    }

    fn admit(&self, id: &TenantId) -> Arc<Tenant> {
        if let Some(tenant) = self.tenant(id) {
            return tenant;
        }
        if self.tenants.len() >= TENANTS_MAX
            && !self.forget_longest_unused(|tenant| !tenant.has_forked_children())
        {
            self.forget_longest_unused(|_| true);
        }
        let new = || Arc::new(Tenant::new(*id, self.limits, self.rules(), Arc::clone(&self.totals)));
        let tenant = Arc::clone(&self.tenants.entry(*id).or_insert_with(new));
        tenant.used(self.clock.fetch_add(1, Relaxed));
        tenant
    }

    fn shrink(&self) {
        // A little more than necessary goes, so that this is not done for every request that comes.
        let goal = self.limits.recent_bytes - self.limits.recent_bytes / 8;
        if self.totals.recent_bytes.load(Relaxed) > self.limits.recent_bytes {
            while self.totals.recent_bytes.load(Relaxed) > goal {
                let largest = self.largest(Tenant::recent_bytes);
                if !largest.is_some_and(|tenant| tenant.forget_oldest_body()) {
                    break;
                }
            }
        }
        self.make_room(0);
    }

    fn make_room(&self, bytes: usize) -> bool {
        while self.totals.kept_bytes().saturating_add(bytes) > self.limits.max_bytes {
            if !self.forget_something() {
                return false;
            }
        }
        true
    }

    fn bytes(&self) -> usize {
        self.totals.kept_bytes() + self.totals.recent_bytes.load(Relaxed)
    }

    fn prefixes(&self) -> [usize; 4] {
        [0, 1, 2, 3].map(|layer| self.totals.prefixes[layer].load(Relaxed))
    }

    fn forks(&self) -> usize {
        self.totals.forks.load(Relaxed)
    }

    fn configure(&self, rules: Rules) {
        let rules = Rules { bytes: self.rules().bytes, ..rules };
        self.rules.store(Arc::new(rules.clone()));
        for (_, tenant) in self.known() {
            tenant.with_fan_outs(|fan_outs| fan_outs.configure(rules.clone()));
        }
    }

    fn known(&self) -> Vec<(TenantId, Arc<Tenant>)> {
        self.tenants.iter().map(|tenant| (*tenant.key(), Arc::clone(&tenant))).collect()
    }

    fn forget(&self, id: &TenantId) -> bool {
        self.tenants.remove(id).is_some()
    }
}

#[cfg(test)]
mod tests;
