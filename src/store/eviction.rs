//! Makes room: what is missed least goes first.
//!
//! The sizes of all tenants are looked at once for many things that go, without a lock. A request makes room in steps of
//! bounded length. The rest is left to a background task.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use super::{ByteKind, Store, Tenant};
use crate::engine::tenant::TenantAccess;
use crate::engine::words::TenantId;

/// The bodies that go in one step: they are dropped in well under a millisecond.
const BODIES_PER_STEP: usize = 64;

impl Store {
    /// Makes room, if there is too little. To be called after something was added. Returns false if there is more to do:
    /// then it is to be called again, by somebody whom nobody waits for.
    pub fn shrink(&self) -> bool {
        self.make_room(0);
        self.forget_bodies()
    }

    /// Makes room for this many bytes beside recent bodies; `false` if there is none.
    pub fn make_room(&self, bytes: usize) -> bool {
        let has_room = || self.budget.kept().saturating_add(bytes) <= self.limits.max_bytes;
        has_room()
            || self.largest_give(has_room, Tenant::kept_bytes, |tenant| {
                tenant.look(|state| state.fan_outs.forget_oldest_point())
            })
            || self.longest_unused_go(has_room)
            || self.largest_give(has_room, Tenant::kept_bytes, Tenant::forget_spellings)
            || self.largest_give(has_room, Tenant::kept_bytes, |tenant| {
                tenant.look(|state| state.fan_outs.forget_resting_child())
            })
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

    /// Forgets recent bodies if there are too many; `false` if there still are.
    fn forget_bodies(&self) -> bool {
        if self.budget.held(ByteKind::Recent) <= self.limits.recent_bytes {
            return true;
        }
        // A little more than necessary goes, so that this is not done for every request that comes.
        let goal = self.limits.recent_bytes - self.limits.recent_bytes / 8;
        let mut left = BODIES_PER_STEP;
        let is_enough = || self.budget.held(ByteKind::Recent) <= goal;
        self.largest_give(is_enough, Tenant::recent_bytes, |tenant| {
            let may_go = left > 0;
            left = left.saturating_sub(1);
            may_go && tenant.look(|state| state.forget_oldest_body())
        });
        self.budget.held(ByteKind::Recent) <= self.limits.recent_bytes || left > 0
    }

    /// Lets the tenant that has most give something up, and again, until it is enough. Returns true if it is.
    fn largest_give(
        &self,
        is_enough: impl Fn() -> bool,
        size: fn(&Tenant) -> usize,
        mut give: impl FnMut(&Tenant) -> bool,
    ) -> bool {
        let all = self.tenants.iter();
        let mut tenants: BinaryHeap<_> = all.map(|tenant| (size(&tenant), *tenant.key())).collect();
        while !is_enough() {
            let Some((_, id)) = tenants.pop() else { return false };
            let Some(largest) = self.tenants.get(&id).map(|tenant| Arc::clone(&tenant)) else { continue };
            // One that has nothing left to give is not asked again.
            if give(&largest) {
                tenants.push((size(&largest), id));
            }
        }
        true
    }

    /// Forgets tenants without forked children, those first that were away for longest, until it is enough. Returns true
    /// if it is.
    fn longest_unused_go(&self, is_enough: impl Fn() -> bool) -> bool {
        let mut tenants = self.by_last_use();
        while !is_enough() {
            let Some(Reverse((_, id))) = tenants.pop() else { return false };
            if !self.has_forked_children(&id) {
                self.forget(&id);
            }
        }
        true
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
