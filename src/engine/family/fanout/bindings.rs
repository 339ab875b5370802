//! The decision for a child, found again on each of its later turns.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Weak};

use super::account::{Account, Charge};
use super::rules::Who;
use super::shape;
use crate::engine::request::prefix::PrefixHash;
use crate::engine::request::recall::Remembered;
use crate::engine::words::{IdDigest, Layer, Moment};

/// Calls by which one child is known: its newest. Every request carries those of all its turns.
const CALLS_MAX: usize = 64;
/// Ids of one request that are looked up.
const LOOKUPS_MAX: usize = 256;
/// The memory of a binding beside its value: its keys, and its slots in the maps.
const BINDING_BYTES: usize = 512;

/// How many bindings there may be, and for how long after their last use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    pub ttl_s: u64,
    pub count: usize,
}

/// The name of a binding while it lives; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Binding(u64);

/// The children of one tenant. A later turn is known by any call that streamed to its conversation, else by
/// its first user message and first assistant turn. Agent, session, user, model and tools must agree.
#[derive(Debug)]
pub struct Bindings<B> {
    life: Life,
    slots: BTreeMap<Binding, Slot<B>>,
    /// By last use, oldest first.
    uses: BTreeSet<(Moment, Binding)>,
    calls: HashMap<Arc<str>, Called>,
    /// The tools of live children: siblings have the same ones.
    toolsets: HashMap<PrefixHash, Weak<Toolset>>,
    starts: HashMap<[u8; 32], Vec<Binding>>,
    /// Those whose agent has an id.
    agents: HashMap<IdDigest, Vec<Binding>>,
    next: u64,
    account: Account,
}

#[derive(Debug)]
struct Slot<B> {
    value: Arc<B>,
    who: Who,
    tools: Arc<Toolset>,
    used: Moment,
    calls: VecDeque<Arc<str>>,
    start: Option<[u8; 32]>,
    charge: Charge,
}

/// Model and tools of a child: as they were spelt, and as they are meant.
#[derive(Debug)]
struct Toolset {
    spelt: PrefixHash,
    meant: [u8; 32],
}

impl Toolset {
    /// Those of most turns are spelt alike; what they say is read only if they are not.
    fn agrees(&self, spelt: PrefixHash, meant: impl FnOnce() -> [u8; 32]) -> bool {
        self.spelt == spelt || self.meant == meant()
    }
}

/// The children that were given one call id.
#[derive(Debug)]
struct Called {
    /// The only one. What two were given names neither of them, as long as one lives.
    only: Option<Binding>,
    children: usize,
}

impl<B> Bindings<B> {
    /// `account`: on which they are counted, with what they hold.
    pub fn new(life: Life, account: Account) -> Bindings<B> {
        Bindings {
            life,
            slots: BTreeMap::new(),
            uses: BTreeSet::new(),
            calls: HashMap::new(),
            toolsets: HashMap::new(),
            starts: HashMap::new(),
            agents: HashMap::new(),
            next: 0,
            account,
        }
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Binds a conversation from its first request on. `bytes`: what the value holds in memory.
    pub fn bind(
        &mut self,
        request: &Remembered,
        who: Who,
        value: Arc<B>,
        bytes: usize,
        now: Moment,
    ) -> Binding {
        self.next += 1;
        let binding = Binding(self.next);
        let charge = self.account.charge(bytes + BINDING_BYTES);
        let tools = self.toolset(request);
        self.uses.insert((now, binding));
        if let Some(agent) = who.agent {
            self.agents.entry(agent).or_default().push(binding);
        }
        let calls = VecDeque::new();
        self.slots.insert(binding, Slot { value, who, tools, used: now, calls, start: None, charge });
        self.make_room(now);
        binding
    }

    /// The first request of this child came to nothing: its next attempt is bound anew.
    pub fn release(&mut self, binding: Binding) {
        self.forget(binding);
    }

    /// A call streamed to this child.
    pub fn called(&mut self, binding: Binding, id: &str) {
        let Some(slot) = self.slots.get_mut(&binding) else { return };
        if slot.calls.iter().any(|known| **known == *id) {
            return;
        }
        let id: Arc<str> = Arc::from(id);
        let called = self.calls.entry(Arc::clone(&id)).or_insert(Called { only: Some(binding), children: 0 });
        called.only = called.only.filter(|only| *only == binding);
        called.children += 1;
        slot.charge.grow(id.len());
        slot.calls.push_back(id);
        if slot.calls.len() > CALLS_MAX
            && let Some(oldest) = slot.calls.pop_front()
        {
            slot.charge.shrink(oldest.len());
            self.uncall(&oldest);
        }
    }

    /// The first turn of this child has ended with this assistant message; or the first since it has replaced all
    /// that it had said by a summary.
    pub fn answered(&mut self, binding: Binding, request: &Remembered, message: &[u8]) {
        let starts = |slot: &&mut Slot<B>| slot.start.is_none() || shape::is_first_turn(request);
        let Some(slot) = self.slots.get_mut(&binding).filter(starts) else { return };
        // A client's own fork starts with its parent's turns, and goes on with them.
        let start = shape::start_meaning(request).or_else(|| shape::start_meaning_with(request, message));
        let before = std::mem::replace(&mut slot.start, start);
        if let Some(before) = before {
            strike(&mut self.starts, &before, binding);
        }
        if let Some(start) = start {
            self.starts.entry(start).or_default().push(binding);
        }
    }

    /// Returns the decision for the conversation of this request, if it is a later turn of a child.
    pub fn find(&mut self, request: &Remembered, who: &Who, now: Moment) -> Option<(Binding, Arc<B>)> {
        self.make_room(now);
        if self.is_empty() || request.anatomy().ambiguous {
            return None;
        }
        let found = self.named(request, who)?;
        let slot = self.slots.get_mut(&found)?;
        self.uses.remove(&(slot.used, found));
        slot.used = now;
        self.uses.insert((now, found));
        Some((found, Arc::clone(&slot.value)))
    }

    fn named(&self, request: &Remembered, who: &Who) -> Option<Binding> {
        let (spelt, meant) = (spelt(request), LazyCell::new(|| shape::tools_meaning(request)));
        let agrees = |slot: &Slot<B>| {
            slot.who.agent == who.agent && slot.who.agrees(who) && slot.tools.agrees(spelt, || *meant)
        };
        let same = |binding: &Binding| self.slots.get(binding).is_some_and(agrees);
        if shape::is_first_turn(request) {
            // One that has answered and starts anew has summed up what it said. Only its agent's id names it then.
            let goes_on = |slot: &Slot<B>| slot.start.is_some() && agrees(slot);
            let own = self.agents.get(&who.agent?)?.iter().copied();
            return only(own.filter(|binding| self.slots.get(binding).is_some_and(goes_on)));
        }
        let by_call = shape::call_ids(request).take(LOOKUPS_MAX).find_map(|id| self.calls.get(&*id)?.only);
        match by_call {
            Some(binding) => Some(binding).filter(same),
            None => {
                let alike = self.starts.get(&shape::start_meaning(request)?)?;
                only(alike.iter().copied().filter(same))
            }
        }
    }

    /// Forgets what was not used for too long, and what there are too many of.
    pub fn make_room(&mut self, now: Moment) {
        while let Some((used, binding)) = self.uses.first() {
            let old = now.since(*used) > self.life.ttl_s.saturating_mul(1_000);
            if !old && self.slots.len() <= self.life.count {
                return;
            }
            let binding = *binding;
            self.forget(binding);
        }
    }

    /// Forgets the longest unused of those that may go; `false` if there is none.
    pub fn evict(&mut self, may_go: impl Fn(&B) -> bool) -> bool {
        let goes =
            |binding: &&(Moment, Binding)| self.slots.get(&binding.1).is_some_and(|slot| may_go(&slot.value));
        let oldest = self.uses.iter().find(goes).map(|(_, binding)| *binding);
        oldest.inspect(|binding| self.forget(*binding)).is_some()
    }

    /// Returns true if there is one like this.
    pub fn any(&self, like: impl Fn(&B) -> bool) -> bool {
        self.slots.values().any(|slot| like(&slot.value))
    }

    fn forget(&mut self, binding: Binding) {
        let Some(slot) = self.slots.remove(&binding) else { return };
        self.uses.remove(&(slot.used, binding));
        slot.calls.iter().for_each(|id| self.uncall(id));
        if let Some(start) = slot.start {
            strike(&mut self.starts, &start, binding);
        }
        if let Some(agent) = slot.who.agent {
            strike(&mut self.agents, &agent, binding);
        }
        let spelt = slot.tools.spelt;
        drop(slot);
        if self.toolsets.get(&spelt).is_some_and(|tools| tools.strong_count() == 0) {
            self.toolsets.remove(&spelt);
        }
    }

    /// One child less was given this id.
    fn uncall(&mut self, id: &str) {
        let Some(called) = self.calls.get_mut(id) else { return };
        called.children -= 1;
        if called.children == 0 {
            self.calls.remove(id);
        }
    }

    fn toolset(&mut self, request: &Remembered) -> Arc<Toolset> {
        let spelt = spelt(request);
        if let Some(tools) = self.toolsets.get(&spelt).and_then(Weak::upgrade) {
            return tools;
        }
        let tools = Arc::new(Toolset { spelt, meant: shape::tools_meaning(request) });
        self.toolsets.insert(spelt, Arc::downgrade(&tools));
        tools
    }
}

fn spelt(request: &Remembered) -> PrefixHash {
    request.chain().layer(request.anatomy(), Layer::Tools)
}

/// One less stands under this key.
fn strike<K: Eq + Hash>(listed: &mut HashMap<K, Vec<Binding>>, key: &K, binding: Binding) {
    let Some(alike) = listed.get_mut(key) else { return };
    alike.retain(|other| *other != binding);
    if alike.is_empty() {
        listed.remove(key);
    }
}

/// The one binding, if there are no two.
fn only(mut alike: impl Iterator<Item = Binding>) -> Option<Binding> {
    let first = alike.next()?;
    alike.next().is_none().then_some(first)
}

#[cfg(test)]
impl Binding {
    /// A name that no binding has.
    pub fn named(number: u64) -> Binding {
        Binding(number)
    }
}

#[cfg(test)]
impl<B> Bindings<B> {
    /// Everything that could be left over.
    pub(super) fn keys(&self) -> usize {
        self.uses.len() + self.calls.len() + self.starts.len() + self.toolsets.len() + self.agents.len()
    }
}
