//! Makes room: what is missed least goes first.
//!
//! The sizes of all tenants are looked at once for many things that go, without a lock. A request makes room in steps of
//! bounded length. The rest is left to a background task, which goes on where the step has ended.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool,
    Ordering::{AcqRel, Release},
};

use super::{ByteKind, Store, TENANTS_PER_PAYER_MAX, Tenant};
use crate::engine::tenant::TenantAccess;
use crate::engine::words::TenantId;

/// The bodies that go in one step: they are dropped in well under a millisecond.
const BODIES_PER_STEP: usize = 64;

/// The work of one step, where a look at a tenant counts one.
const WORK_PER_STEP: usize = 1_024;
/// The work of forgetting something.
const GIVING: usize = WORK_PER_STEP / BODIES_PER_STEP;
/// The work of forgetting a whole tenant.
const FORGETTING: usize = WORK_PER_STEP / 4;

/// What goes, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Fork points and snapshots that no child needs.
    Points,
    /// Tenants without forked children, those first that were away for longest.
    Tenants,
    Spellings,
    /// Children that have nothing left to do.
    Children,
}

const STAGES: [Stage; 4] = [Stage::Points, Stage::Tenants, Stage::Spellings, Stage::Children];

/// Makes room beside everything else. There is one at a time.
pub struct Evictor(Arc<AtomicBool>);

impl Drop for Evictor {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

/// How far the making of room has got.
pub struct Eviction {
    stages: std::slice::Iter<'static, Stage>,
    stage: Stage,
    /// The tenants that were not asked yet in this stage; the greatest is next.
    tenants: BinaryHeap<(u64, TenantId)>,
}

/// The outcome of a step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Enough,
    More,
    /// Nobody has anything left to give.
    NothingLeft,
}

impl Default for Eviction {
    fn default() -> Eviction {
        Eviction { stages: STAGES.iter(), stage: Stage::Points, tenants: BinaryHeap::new() }
    }
}

impl Store {
    /// Makes room, if there is too little. To be called after something was added. Returns false if there is more to do:
    /// then it is to be called again, by the [`evictor`](Store::evictor).
    pub fn shrink(&self, eviction: &mut Eviction) -> bool {
        let has_kept = self.forget_kept(eviction);
        self.forget_bodies() && has_kept
    }

    /// Somebody whom nobody waits for, to make room; `None` if there is one already.
    pub fn evictor(&self) -> Option<Evictor> {
        let is_busy = self.is_evicting.swap(true, AcqRel);
        (!is_busy).then(|| Evictor(Arc::clone(&self.is_evicting)))
    }

    /// Makes room for this many bytes beside recent bodies, as far as that is done in a step; `false` if there is none.
    pub fn make_room(&self, bytes: usize) -> bool {
        let has_room = || self.budget.kept().saturating_add(bytes) <= self.limits.max_bytes;
        has_room() || self.step(&mut Eviction::default(), has_room) == Step::Enough
    }

    /// Forgets a step of what `store.max_bytes` bounds, if it is too much; `false` if there is more to do.
    fn forget_kept(&self, eviction: &mut Eviction) -> bool {
        let step = self.step(eviction, || self.budget.kept() <= self.limits.max_bytes);
        if step != Step::More {
            *eviction = Eviction::default();
        }
        step != Step::More
    }

    /// Forgets one thing after the other, until it is enough or the work of a step is done.
    fn step(&self, eviction: &mut Eviction, is_enough: impl Fn() -> bool) -> Step {
        let mut work = 0;
        while !is_enough() {
            if work >= WORK_PER_STEP {
                return Step::More;
            }
            let Some((_, id)) = eviction.tenants.pop() else {
                let Some(stage) = eviction.stages.next() else { return Step::NothingLeft };
                eviction.stage = *stage;
                eviction.tenants = self.by_stage(*stage);
                continue;
            };
            work += 1;
            let Some(tenant) = self.peek(&id) else { continue };
            match eviction.stage {
                Stage::Tenants if tenant.has_forked_children() => {}
                Stage::Tenants => {
                    work += FORGETTING;
                    self.forget(&id);
                }
                stage => {
                    // One that has nothing left to give is not asked again.
                    if give(&tenant, stage) {
                        work += GIVING;
                        eviction.tenants.push((tenant.kept_bytes() as u64, id));
                    }
                }
            }
        }
        Step::Enough
    }

    /// Every tenant, the one last that is asked first.
    fn by_stage(&self, stage: Stage) -> BinaryHeap<(u64, TenantId)> {
        let order = |tenant: &Tenant| match stage {
            Stage::Tenants => u64::MAX - tenant.last_used(),
            _ => tenant.kept_bytes() as u64,
        };
        self.tenants.iter().map(|tenant| (order(&tenant), *tenant.key())).collect()
    }

    /// Makes room for one tenant more.
    pub(super) fn make_room_for_tenant(&self) {
        let mut tenants = self.by_last_use();
        let oldest = tenants.peek().map(|Reverse((_, id))| *id);
        let in_order = std::iter::from_fn(|| tenants.pop()).map(|Reverse((_, id))| id);
        let goes = in_order.into_iter().find(|id| !self.has_forked_children(id)).or(oldest);
        goes.inspect(|id| {
            self.forget(id);
        });
    }

    /// Makes room for one tenant more of a credential: its own oldest goes, before anybody else's.
    pub(super) fn make_room_for_tenant_of(&self, payer: TenantId) {
        let all = self.tenants.iter().filter(|tenant| tenant.payer() == payer);
        let own: Vec<_> = all.map(|tenant| (tenant.last_used(), *tenant.key())).collect();
        if own.len() < TENANTS_PER_PAYER_MAX {
            return;
        }
        let goes = own.iter().min_by_key(|(used, id)| (self.has_forked_children(id), *used));
        goes.inspect(|(_, id)| {
            self.forget(id);
        });
    }

    /// Forgets recent bodies if there are too many; `false` if there still are.
    fn forget_bodies(&self) -> bool {
        if self.budget.held(ByteKind::Recent) <= self.limits.recent_bytes {
            return true;
        }
        // A little more than necessary goes, so that this is not done for every request that comes.
        let goal = self.limits.recent_bytes - self.limits.recent_bytes / 8;
        let left = Cell::new(BODIES_PER_STEP);
        let is_enough = || left.get() == 0 || self.budget.held(ByteKind::Recent) <= goal;
        self.largest_give(is_enough, Tenant::recent_bytes, |tenant| {
            left.set(left.get() - 1);
            tenant.look(|state| state.forget_oldest_body())
        });
        self.budget.held(ByteKind::Recent) <= self.limits.recent_bytes || left.get() > 0
    }

    /// Lets the tenant that has most give something up, and again, until it is enough.
    fn largest_give(
        &self,
        is_enough: impl Fn() -> bool,
        size: fn(&Tenant) -> usize,
        give: impl Fn(&Tenant) -> bool,
    ) {
        let all = self.tenants.iter();
        let mut tenants: BinaryHeap<_> = all.map(|tenant| (size(&tenant), *tenant.key())).collect();
        while !is_enough() {
            let Some((_, id)) = tenants.pop() else { return };
            let Some(largest) = self.tenants.get(&id).map(|tenant| Arc::clone(&tenant)) else { continue };
            // One that has nothing left to give is not asked again.
            if give(&largest) {
                tenants.push((size(&largest), id));
            }
        }
    }

    fn has_forked_children(&self, id: &TenantId) -> bool {
        let tenant = self.tenants.get(id).map(|tenant| Arc::clone(&tenant));
        tenant.is_some_and(|tenant| tenant.has_forked_children())
    }

    /// Every tenant, the one first that was away for longest.
    fn by_last_use(&self) -> BinaryHeap<Reverse<(u64, TenantId)>> {
        self.tenants.iter().map(|tenant| Reverse((tenant.last_used(), *tenant.key()))).collect()
    }
}

/// Lets a tenant give up the oldest of what goes in this stage; `false` if it has none.
fn give(tenant: &Tenant, stage: Stage) -> bool {
    match stage {
        Stage::Points => tenant.look(|state| state.fan_outs.forget_oldest_point()),
        Stage::Spellings => tenant.forget_spellings(),
        Stage::Children => tenant.look(|state| state.fan_outs.forget_resting_child()),
        Stage::Tenants => false,
    }
}
