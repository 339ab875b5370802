//! The newest turn of every conversation, for requests that go on from it without its client's knowing: summaries,
//! suggestions, what is worth remembering. `fork.snapshots = "latest"`.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::account::Account;
use super::point::{Draft, ForkId, ForkPoint, Parent};
use super::recognise::{Child, Newcomer};
use super::rules::Rules;
use super::shape;
use crate::engine::answer::turn::Turn;
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
    slots: BTreeMap<u64, Slot>,
    ages: HashMap<ForkId, u64>,
    next: u64,
    account: Account,
}

#[derive(Debug)]
struct Slot {
    point: Arc<ForkPoint>,
    since: Moment,
}

impl Snapshots {
    pub fn new(tenant: TenantId, rules: Rules) -> Snapshots {
        let account = Account::alone(rules.bytes);
        Snapshots::with(tenant, rules, account)
    }

    /// The snapshots of a tenant, on its account.
    pub fn with(tenant: TenantId, rules: Rules, account: Account) -> Snapshots {
        Snapshots { tenant, rules, slots: BTreeMap::new(), ages: HashMap::new(), next: 0, account }
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Returns the bytes held on their account, the requests included.
    pub fn bytes(&self) -> usize {
        self.account.bytes()
    }

    /// Keeps a finished turn in the place of the one before it, whose message id is `before`. `bound`: the request
    /// was a child's, which nothing is put upon.
    pub fn record(
        &mut self,
        parent: impl Into<Arc<Parent>>,
        bound: bool,
        turn: &Turn,
        before: Option<&str>,
        now: Moment,
    ) -> Result<Arc<ForkPoint>, FanOutDropped> {
        self.expire(now);
        let draft = Draft::begin(parent, bound)?;
        let id = turn.id.as_deref().ok_or(FanOutDropped::NoMessageId)?;
        let mut point = draft.snapshot(ForkId::of(self.tenant, id), turn, &self.rules)?;
        let before = before.map(|before| ForkId::of(self.tenant, before));
        before.into_iter().chain([point.id]).for_each(|id| self.forget(id));
        if point.memory_bytes() > self.account.limit() {
            return Err(FanOutDropped::TooLarge);
        }
        point.charge(&self.account);
        let point = Arc::new(point);
        self.next += 1;
        self.ages.insert(point.id, self.next);
        self.slots.insert(self.next, Slot { point: Arc::clone(&point), since: now });
        while (self.account.is_overdrawn() || self.slots.len() > SNAPSHOTS_MAX) && self.evict() {}
        if self.ages.contains_key(&point.id) { Ok(point) } else { Err(FanOutDropped::TooLarge) }
    }

    /// Since when the one has been known that would be forgotten next.
    pub fn oldest(&self) -> Option<Moment> {
        self.slots.values().next().map(|slot| slot.since)
    }

    /// Forgets the oldest; `false` if there is none.
    pub fn evict(&mut self) -> bool {
        let oldest = self.slots.values().next().map(|slot| slot.point.id);
        oldest.inspect(|id| self.forget(*id)).is_some()
    }

    /// The turn that a request names as its parent; vetoes hold as for any other child.
    pub fn find(&mut self, newcomer: &Newcomer<'_>, now: Moment) -> Result<Child, WhyPlain> {
        self.expire(now);
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

    fn expire(&mut self, now: Moment) {
        let ttl_ms = self.rules.ttl_s.saturating_mul(1_000);
        while self.slots.values().next().is_some_and(|slot| now.since(slot.since) > ttl_ms) {
            self.evict();
        }
    }

    fn forget(&mut self, id: ForkId) {
        self.ages.remove(&id).and_then(|age| self.slots.remove(&age));
    }
}
