//! The newest turn of every conversation, for requests that go on from it without its client's knowing: summaries,
//! suggestions, what is worth remembering. `fork.snapshots = "latest"`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::holdings::Holdings;
use super::point::{Draft, FinishedTurn, ForkId, ForkPoint};
use super::recognise::{Child, Newcomer};
use super::rules::Rules;
use super::shape;
use crate::engine::words::{FanOutDropped, Moment, Rank, TenantId, WhyPlain};

/// Conversations of one tenant whose newest turn is kept.
const SNAPSHOTS_MAX: usize = 256;

/// The value of `x-forkpoint-parent` that means the newest turn of the session.
pub const LATEST: &str = "latest";

/// The snapshots of one tenant. They live as long as fork points do.
#[derive(Debug)]
pub struct Snapshots {
    tenant: TenantId,
    rules: Rules,
    /// By age, counted in numbers that are never used twice.
    slots: BTreeMap<u64, SnapshotSlot>,
    ages: HashMap<ForkId, u64>,
    next: u64,
}

#[derive(Debug)]
struct SnapshotSlot {
    point: Arc<ForkPoint>,
    since: Moment,
}

impl Snapshots {
    pub(super) fn new(tenant: TenantId, rules: Rules) -> Snapshots {
        Snapshots { tenant, rules, slots: BTreeMap::new(), ages: HashMap::new(), next: 0 }
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Keeps a finished turn in the place of the one before it, whose message id is `before`.
    pub(super) fn record(
        &mut self,
        draft: &mut Draft,
        turn: FinishedTurn,
        before: Option<&str>,
        now: Moment,
        holdings: &mut Holdings,
    ) -> Result<Arc<ForkPoint>, FanOutDropped> {
        self.expire(now, holdings);
        let id = ForkId::of(self.tenant, &turn.message_id);
        let point = draft.whole_point(id, turn, holdings);
        let before = before.map(|before| ForkId::of(self.tenant, before));
        before.into_iter().chain([id]).for_each(|id| self.forget(id, holdings));
        if point.memory_bytes() > holdings.limit() {
            return Err(FanOutDropped::TooLarge);
        }
        let point = Arc::new(point);
        holdings.hold(&point);
        self.next += 1;
        self.ages.insert(id, self.next);
        self.slots.insert(self.next, SnapshotSlot { point: Arc::clone(&point), since: now });
        while (holdings.is_overdrawn() || self.slots.len() > SNAPSHOTS_MAX) && self.evict(holdings) {}
        if self.ages.contains_key(&id) { Ok(point) } else { Err(FanOutDropped::TooLarge) }
    }

    /// Since when the one has been known that would be forgotten next.
    pub(super) fn oldest(&self) -> Option<Moment> {
        self.slots.values().next().map(|slot| slot.since)
    }

    /// Forgets the oldest; `false` if there is none.
    pub(super) fn evict(&mut self, holdings: &mut Holdings) -> bool {
        let oldest = self.slots.values().next().map(|slot| slot.point.id);
        oldest.inspect(|id| self.forget(*id, holdings)).is_some()
    }

    /// The turn that a request names as its parent; vetoes hold as for any other child.
    pub(super) fn find(&self, newcomer: &Newcomer<'_>, now: Moment) -> Result<Child, WhyPlain> {
        let explicit = newcomer.explicit.ok_or(WhyPlain::NoForkPoint)?;
        if newcomer.request.anatomy().ambiguous {
            return Err(WhyPlain::Unreadable);
        }
        if !shape::is_first_turn(newcomer.request) {
            return Err(WhyPlain::LaterTurn);
        }
        let who = &newcomer.who;
        let slot = match explicit.message_id {
            LATEST if who.session.is_none() => return Err(WhyPlain::Hints),
            LATEST => self.slots.values().rev().find(|slot| slot.point.parent.who.agrees(who)),
            id => self.ages.get(&ForkId::of(self.tenant, id)).and_then(|age| self.slots.get(age)),
        };
        let slot = slot.ok_or(WhyPlain::UnknownParent)?;
        let late = now.since(slot.since) > self.rules.match_window_s.saturating_mul(1_000);
        if !slot.point.parent.who.agrees(who) {
            return Err(WhyPlain::Hints);
        }
        if !who.hinted() && late {
            return Err(WhyPlain::Window);
        }
        let fork = Arc::clone(&slot.point);
        let call = match explicit.tool_use {
            Some(id) => Some(fork.call(id).ok_or(WhyPlain::UnknownCall)?),
            None => None,
        };
        Ok(Child { fork, call, rank: Rank::Explicit })
    }

    /// Forgets what has outlived `fork.ttl_s`.
    pub(super) fn expire(&mut self, now: Moment, holdings: &mut Holdings) {
        let ttl_ms = self.rules.ttl_s.saturating_mul(1_000);
        while self.slots.values().next().is_some_and(|slot| now.since(slot.since) > ttl_ms) {
            self.evict(holdings);
        }
    }

    fn forget(&mut self, id: ForkId, holdings: &mut Holdings) {
        if let Some(slot) = self.ages.remove(&id).and_then(|age| self.slots.remove(&age)) {
            holdings.release(&slot.point);
        }
    }
}
