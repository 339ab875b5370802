//! The fork points of one tenant.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::directive::{Call, NAME_BYTES_MAX};
use super::holdings::Holdings;
use super::leaves::Leaves;
use super::point::{Draft, EndedDraft, ForkId, ForkPoint};
use super::rules::{Rules, Who};
use crate::engine::words::{BodyDigest, FanOutDropped, IdDigest, Moment, Spawning, TenantId};

/// Names of tools that are remembered as starting agents.
const LEARNED_MAX: usize = 256;

/// Sessions that are known to name their agents: far more than one tenant has at once.
const AGENT_SESSIONS_MAX: usize = 1_024;

/// Every fork point of one tenant, found by directive, by call and by message id.
///
/// A fork point lives `fork.ttl_s`; a holder of its [`Arc`] keeps its bytes longer. When memory runs short
/// the oldest goes first, but none that a child or a request in flight holds, since that would free nothing.
#[derive(Debug)]
pub struct Forks {
    pub(super) tenant: TenantId,
    pub(super) rules: Arc<Rules>,
    pub(super) slots: HashMap<ForkId, Slot>,
    /// Shared with the searches that are under way.
    pub(super) leaves: Arc<Leaves>,
    /// By age, counted in numbers that are never used twice.
    ages: BTreeMap<u64, ForkId>,
    calls: HashMap<Arc<str>, ForkId>,
    pub(super) learned: BTreeSet<Arc<str>>,
    /// The sessions in which a request came with an agent's id, the newest last.
    agent_sessions: VecDeque<IdDigest>,
    next: u64,
    pending: usize,
}

#[derive(Debug)]
pub(super) struct Slot {
    pub point: Arc<ForkPoint>,
    pub age: u64,
    /// The moment when it was sealed or, while pending, begun.
    pub since: Moment,
    /// The first request that has started from each call. Without hints it is the only one that may.
    pub claims: BTreeMap<usize, Claim>,
    /// The calls whose results came back.
    pub returned: BTreeSet<usize>,
}

/// The request that has started from a call.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Claim {
    pub body: BodyDigest,
    pub agent: Option<IdDigest>,
    /// True once the upstream took it: its client has no reason to send it again.
    pub is_accepted: bool,
}

impl Forks {
    pub(super) fn new(tenant: TenantId, rules: Rules) -> Forks {
        Forks {
            tenant,
            rules: Arc::new(rules),
            slots: HashMap::new(),
            leaves: Arc::default(),
            ages: BTreeMap::new(),
            calls: HashMap::new(),
            learned: BTreeSet::new(),
            agent_sessions: VecDeque::new(),
            next: 0,
            pending: 0,
        }
    }

    pub fn rules(&self) -> &Arc<Rules> {
        &self.rules
    }

    /// Other rules for whatever comes from now on. What they may hold is not theirs to say.
    pub(super) fn configure(&mut self, rules: Rules) {
        self.rules = Arc::new(Rules { bytes: self.rules.bytes, ..rules });
    }

    /// Returns true if a tool is known to start agents, by its name or by what came of it.
    pub fn knows_tool(&self, name: &str) -> bool {
        self.rules.lists(name) || self.learned.contains(name)
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// A fork point by the id of its message.
    pub fn by_message(&self, message_id: &str) -> Option<&Arc<ForkPoint>> {
        self.get(ForkId::of(self.tenant, message_id))
    }

    pub fn get(&self, id: ForkId) -> Option<&Arc<ForkPoint>> {
        self.slots.get(&id).map(|slot| &slot.point)
    }

    /// The newest fork point that one of these calls belongs to.
    pub fn parent_of<I: AsRef<str>>(&self, ids: impl IntoIterator<Item = I>) -> Option<&Arc<ForkPoint>> {
        let known = ids.into_iter().filter_map(|id| self.slots.get(self.calls.get(id.as_ref())?));
        known.max_by_key(|slot| slot.age).map(|slot| &slot.point)
    }

    /// Makes known what a draft holds so far, so that children that come before the seal are recognised.
    pub(super) fn pending(
        &mut self,
        message_id: &str,
        draft: &mut Draft,
        now: Moment,
        holdings: &mut Holdings,
    ) -> Result<ForkId, FanOutDropped> {
        let id = ForkId::of(self.tenant, message_id);
        let began = self.slots.get(&id).filter(|slot| !slot.point.is_sealed()).map(|slot| slot.since);
        if began.is_none() && self.pending >= self.rules.pending_forks {
            return Err(FanOutDropped::PendingForks);
        }
        draft.pending = Some(id);
        match draft.spoilt {
            None => {
                let point = draft.pending_point(id, holdings);
                self.put(point, began.unwrap_or(now), holdings).map(|_| id)
            }
            Some(why) => {
                self.take(id, holdings);
                Err(why)
            }
        }
    }

    /// The turn has ended: seals its fork point, or forgets it and says why. Every draft ends here, whether it
    /// was pending or not.
    pub(super) fn seal(
        &mut self,
        ended: EndedDraft,
        now: Moment,
        holdings: &mut Holdings,
    ) -> Result<Arc<ForkPoint>, FanOutDropped> {
        let EndedDraft { mut draft, turn } = ended;
        let sealed = turn.and_then(|turn| {
            let id = ForkId::of(self.tenant, &turn.message_id);
            let point = draft.whole_point(id, turn, holdings);
            self.put(point, now, holdings)
        });
        if let (Err(_), Some(id)) = (&sealed, draft.pending) {
            self.take(id, holdings);
        }
        sealed
    }

    /// Forgets what has outlived `fork.ttl_s`.
    pub(super) fn expire(&mut self, now: Moment, holdings: &mut Holdings) {
        while let Some((_, id)) = self.ages.first_key_value() {
            let id = *id;
            let lived = self.slots.get(&id).map_or(u64::MAX, |slot| now.since(slot.since));
            if lived <= self.rules.ttl_s.saturating_mul(1_000) {
                return;
            }
            self.take(id, holdings);
        }
    }

    /// Forgets the oldest sealed fork point that nobody holds; `false` if there is none.
    pub(super) fn evict(&mut self, holdings: &mut Holdings) -> bool {
        self.evict_but(None, holdings)
    }

    /// Since when the one has been known that would be forgotten next.
    pub(super) fn oldest(&self) -> Option<Moment> {
        self.slots.get(&self.free(None)?).map(|slot| slot.since)
    }

    /// The tool's fan-outs to come are known to start agents, once children of one were seen.
    pub(super) fn note_child(&mut self, id: ForkId, call: usize) {
        let Some(slot) = self.slots.get(&id) else { return };
        let calls = &slot.point.calls;
        let Some(name) = calls.get(call).map(|call| Arc::clone(&call.name)) else { return };
        let seen = slot.claims.keys().filter(|call| calls.get(**call).is_some_and(|call| call.name == name));
        if seen.count() >= self.rules.min_children && self.learned.len() < LEARNED_MAX {
            self.learned.insert(name);
        }
    }

    /// The upstream took the request that has started from this call.
    pub(super) fn accepted(&mut self, id: ForkId, call: usize) {
        let claim = self.slots.get_mut(&id).and_then(|slot| slot.claims.get_mut(&call));
        claim.into_iter().for_each(|claim| claim.is_accepted = true);
    }

    /// The results of these calls came back. Returns the fork points that they belong to.
    pub(super) fn returned<I: AsRef<str>>(&mut self, ids: impl IntoIterator<Item = I>) -> Vec<ForkId> {
        let mut changed = Vec::new();
        for id in ids {
            let slot = self.calls.get(id.as_ref()).and_then(|fork| self.slots.get_mut(fork));
            if let Some(slot) = slot
                && let Some(call) = slot.point.call(id.as_ref())
            {
                slot.returned.insert(call);
                changed.push(slot.point.id);
            }
        }
        changed
    }

    /// Notes that the client of a session names its agents, if this request shows it. Returns true if that is news.
    pub(super) fn note_agent(&mut self, who: &Who) -> bool {
        let (Some(session), Some(_)) = (who.session, who.agent) else { return false };
        if self.names_agents(who) {
            return false;
        }
        self.agent_sessions.push_back(session.hints);
        if self.agent_sessions.len() > AGENT_SESSIONS_MAX {
            self.agent_sessions.pop_front();
        }
        true
    }

    /// Returns true if the client of this session names its agents, so that a request without such a name is no
    /// child's. Older versions of the same client do not.
    pub(super) fn names_agents(&self, who: &Who) -> bool {
        who.session.is_some_and(|session| self.agent_sessions.contains(&session.hints))
    }

    /// Forgets one, if it is known.
    pub(super) fn forget(&mut self, id: ForkId, holdings: &mut Holdings) -> bool {
        self.take(id, holdings).is_some()
    }

    /// The tools that were learned to start agents, and the sessions that name theirs.
    pub(super) fn habits(&self) -> (Vec<Arc<str>>, Vec<IdDigest>) {
        (self.learned.iter().cloned().collect(), self.agent_sessions.iter().copied().collect())
    }

    pub(super) fn restore_habits(&mut self, tools: Vec<String>, sessions: Vec<IdDigest>) {
        for tool in tools.into_iter().filter(|tool| tool.len() <= NAME_BYTES_MAX) {
            if self.learned.len() < LEARNED_MAX {
                self.learned.insert(tool.into());
            }
        }
        for session in sessions.into_iter().rev() {
            if !self.agent_sessions.contains(&session) && self.agent_sessions.len() < AGENT_SESSIONS_MAX {
                self.agent_sessions.push_front(session);
            }
        }
    }

    fn evict_but(&mut self, keep: Option<ForkId>, holdings: &mut Holdings) -> bool {
        self.free(keep).and_then(|id| self.take(id, holdings)).is_some()
    }

    /// The oldest that is sealed and that nobody holds.
    fn free(&self, keep: Option<ForkId>) -> Option<ForkId> {
        let free = |slot: &Slot| slot.point.is_sealed() && Arc::strong_count(&slot.point) == 1;
        let goes = |id: &&ForkId| Some(**id) != keep && self.slots.get(id).is_some_and(free);
        self.ages.values().find(goes).copied()
    }

    /// Puts a fork point in the place of what was known of it, whose tools are judged now.
    fn put(
        &mut self,
        mut point: ForkPoint,
        since: Moment,
        holdings: &mut Holdings,
    ) -> Result<Arc<ForkPoint>, FanOutDropped> {
        let before = self
            .slots
            .get(&point.id)
            .filter(|old| !old.point.is_sealed() && old.point.parent_number == point.parent_number);
        self.judge_tools(&mut point, before);
        self.restore(point, since, holdings)
    }

    /// Puts a fork point in the place of what was known of it, whose tools were judged before.
    pub(super) fn restore(
        &mut self,
        point: ForkPoint,
        since: Moment,
        holdings: &mut Holdings,
    ) -> Result<Arc<ForkPoint>, FanOutDropped> {
        let id = point.id;
        let taken = |call: &Call| self.calls.get(&call.id).is_some_and(|owner| *owner != id);
        let refused = if point.memory_bytes() > holdings.limit() {
            Some(FanOutDropped::TooLarge)
        } else if point.calls.iter().any(taken) {
            Some(FanOutDropped::ReusedId)
        } else {
            None
        };
        let old = self.take(id, holdings);
        if let Some(why) = refused {
            return Err(why);
        }
        // Only what began as this turn goes on: another one under the same id has other calls.
        let goes_on = |old: &Slot| !old.point.is_sealed() && old.point.parent_number == point.parent_number;
        let same = old.filter(goes_on);
        let age = match &same {
            Some(old) if !point.is_sealed() => old.age,
            _ => {
                self.next += 1;
                self.next
            }
        };
        let claims = same.map(|old| old.claims).unwrap_or_default();
        let point = Arc::new(point);
        let slot = Slot { point: Arc::clone(&point), age, since, claims, returned: BTreeSet::new() };
        self.index(slot, holdings);
        while holdings.is_overdrawn() && self.evict_but(Some(id), holdings) {}
        if holdings.is_overdrawn() {
            self.take(id, holdings);
            return Err(FanOutDropped::TooLarge);
        }
        Ok(point)
    }

    /// A tool is judged once for each fan-out, so that siblings are treated alike.
    fn judge_tools(&self, point: &mut ForkPoint, before: Option<&Slot>) {
        let before = before.map_or(&[][..], |before| &before.point.calls);
        for call in point.calls.iter_mut().filter(|call| call.spawning == Spawning::Unknown) {
            match before.iter().find(|old| old.name == call.name) {
                Some(old) => call.spawning = old.spawning,
                None if self.learned.contains(&call.name) => call.spawning = Spawning::Learned,
                None => {}
            }
        }
    }

    fn index(&mut self, slot: Slot, holdings: &mut Holdings) {
        let id = slot.point.id;
        holdings.hold(&slot.point);
        let leaves = Arc::make_mut(&mut self.leaves);
        for (number, call) in slot.point.calls.iter().enumerate() {
            self.calls.insert(Arc::clone(&call.id), id);
            let owner = slot.point.owner(number);
            call.directives.iter().for_each(|text| leaves.insert(text, owner));
        }
        self.ages.insert(slot.age, id);
        self.pending += usize::from(!slot.point.is_sealed());
        self.slots.insert(id, slot);
    }

    fn take(&mut self, id: ForkId, holdings: &mut Holdings) -> Option<Slot> {
        let slot = self.slots.remove(&id)?;
        holdings.release(&slot.point);
        self.ages.remove(&slot.age);
        self.pending -= usize::from(!slot.point.is_sealed());
        let leaves = Arc::make_mut(&mut self.leaves);
        for (number, call) in slot.point.calls.iter().enumerate() {
            self.calls.remove(&call.id);
            let owner = slot.point.owner(number);
            call.directives.iter().for_each(|text| leaves.remove(text, owner));
        }
        Some(slot)
    }
}
