//! The decision for a child, found again on each of its later turns.

mod saved;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::holdings::Holdings;
use super::marks::{ChildMarks, StartMeaning, Toolset, UnreadMark};
use super::point::ForkPoint;
use super::rules::{Rules, Who};
use super::shape;
use crate::engine::records::Writer;
use crate::engine::request::prefix::PrefixHash;
use crate::engine::request::recall::Remembered;
use crate::engine::words::{IdDigest, Moment};

/// Children of one tenant that are known at once.
const CHILDREN_MAX: usize = 4096;
/// Calls by which one child is known: its newest. Every request carries those of all its turns.
const CALLS_MAX: usize = 64;
/// The memory of a binding beside its value: its keys, and its slots in the maps.
const BINDING_BYTES: usize = 512;

/// The limits on bindings: their number, and their lifetime after their last use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    pub ttl_s: u64,
    pub count: usize,
}

impl Life {
    pub fn of(rules: &Rules) -> Life {
        Life { ttl_s: rules.child_ttl_s, count: CHILDREN_MAX }
    }
}

/// The name of a binding while it lives; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Binding(u64);

/// The name of a child in every process that knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ChildName {
    /// The process that has bound it.
    pub writer: Writer,
    pub number: u64,
}

/// A child as it is bound.
#[derive(Debug)]
pub struct Bindable<B> {
    /// Read on its first request.
    pub tools: Toolset,
    pub who: Who,
    /// The decision for it.
    pub value: B,
    /// The bytes that the value holds in memory, the fork point aside.
    pub bytes: usize,
    /// The fork point whose prefix it was put on; none if it keeps its own prompt.
    pub point: Option<Arc<ForkPoint>>,
}

/// The children of one tenant. A later turn is known by any call that streamed to its conversation, else by
/// its first user message and first assistant turn. Agent, session, user, model and tools must agree.
#[derive(Debug)]
pub struct Bindings<B> {
    pub(super) life: Life,
    slots: BTreeMap<Binding, BindingSlot<B>>,
    /// By last use, oldest first.
    uses: BTreeSet<(Moment, Binding)>,
    calls: HashMap<Arc<str>, Called>,
    /// The tools of live children by their spelling: siblings have the same ones.
    toolsets: HashMap<PrefixHash, KnownTools>,
    starts: HashMap<StartMeaning, Vec<Binding>>,
    /// Those whose agent has an id.
    agents: HashMap<IdDigest, Vec<Binding>>,
    names: HashMap<ChildName, Binding>,
    /// The number of those that hold a fork point.
    forked: usize,
    next: u64,
}

#[derive(Debug)]
struct BindingSlot<B> {
    name: ChildName,
    /// The moment when its prefix is to be written again, once it was: before what was written of it ends.
    due: Option<Moment>,
    value: B,
    who: Who,
    tools: Toolset,
    used: Moment,
    calls: VecDeque<Arc<str>>,
    start: Option<StartMeaning>,
    /// The fork point that it holds.
    point: Option<Arc<ForkPoint>>,
    /// Its last answer left nothing to do: it may never come again.
    rests: bool,
    /// Counts the changes of its calls, its start and its rest, those included that another process has made: of two that
    /// are known for one turn, the one with more of them is the later. No clock says that of two processes.
    revision: u64,
    /// Its bytes beside that fork point.
    bytes: usize,
}

#[derive(Debug)]
struct KnownTools {
    tools: Toolset,
    children: usize,
}

/// The children that were given one call id.
#[derive(Debug)]
struct Called {
    /// The only one. What two were given names neither of them, as long as one lives.
    only: Option<Binding>,
    children: usize,
}

impl<B> Bindings<B> {
    pub(super) fn new(life: Life) -> Bindings<B> {
        Bindings {
            life,
            slots: BTreeMap::new(),
            uses: BTreeSet::new(),
            calls: HashMap::new(),
            toolsets: HashMap::new(),
            starts: HashMap::new(),
            agents: HashMap::new(),
            names: HashMap::new(),
            forked: 0,
            next: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Returns the decision for a child, as long as it is bound.
    pub fn get(&self, binding: Binding) -> Option<&B> {
        self.slots.get(&binding).map(|slot| &slot.value)
    }

    pub(super) fn get_mut(&mut self, binding: Binding) -> Option<&mut B> {
        self.slots.get_mut(&binding).map(|slot| &mut slot.value)
    }

    /// Returns the tools of this spelling, if a child has them.
    pub fn toolset(&self, spelt: PrefixHash) -> Option<Toolset> {
        self.toolsets.get(&spelt).map(|known| known.tools)
    }

    /// Binds a conversation from its first request on.
    pub(super) fn bind(
        &mut self,
        child: Bindable<B>,
        now: Moment,
        writer: Writer,
        holdings: &mut Holdings,
    ) -> Binding {
        // A process that reads again what it had forgotten knows children of its own by higher numbers.
        let mut name = ChildName { writer, number: self.next + 1 };
        while self.names.contains_key(&name) {
            name.number += 1;
        }
        self.bind_as(name, child, now, holdings)
    }

    fn bind_as(
        &mut self,
        name: ChildName,
        child: Bindable<B>,
        now: Moment,
        holdings: &mut Holdings,
    ) -> Binding {
        self.next += 1;
        let binding = Binding(self.next);
        self.names.insert(name, binding);
        let Bindable { tools, who, value, bytes, point } = child;
        // Both mean the same, but one meaning for each spelling is kept.
        let known = self.toolsets.entry(tools.spelt).or_insert(KnownTools { tools, children: 0 });
        known.children += 1;
        let tools = known.tools;
        self.uses.insert((now, binding));
        if let Some(agent) = who.agent {
            self.agents.entry(agent).or_default().push(binding);
        }
        let bytes = bytes + BINDING_BYTES;
        holdings.grow(bytes);
        if let Some(point) = &point {
            holdings.hold(point);
            self.forked += 1;
        }
        let slot = BindingSlot {
            name,
            due: None,
            value,
            who,
            tools,
            used: now,
            calls: VecDeque::new(),
            start: None,
            point,
            rests: false,
            revision: 0,
            bytes,
        };
        self.slots.insert(binding, slot);
        self.make_room(now, holdings);
        binding
    }

    /// A call streamed to this child.
    pub(super) fn called(&mut self, binding: Binding, id: &str, holdings: &mut Holdings) {
        let Some(slot) = self.slots.get_mut(&binding) else { return };
        if slot.calls.iter().any(|known| **known == *id) {
            return;
        }
        let id: Arc<str> = Arc::from(id);
        let called = self.calls.entry(Arc::clone(&id)).or_insert(Called { only: Some(binding), children: 0 });
        called.only = called.only.filter(|only| *only == binding);
        called.children += 1;
        slot.revision += 1;
        slot.bytes += id.len();
        holdings.grow(id.len());
        slot.calls.push_back(id);
        if slot.calls.len() > CALLS_MAX
            && let Some(oldest) = slot.calls.pop_front()
        {
            slot.bytes -= oldest.len();
            holdings.shrink(oldest.len());
            self.uncall(&oldest);
        }
    }

    /// Returns true if the start of this child is to be read, now that this request of it has been answered: the first
    /// one, or the first since it has replaced all that it had said by a summary.
    pub fn needs_start(&self, binding: Binding, request: &Remembered) -> bool {
        let slot = self.slots.get(&binding);
        slot.is_some_and(|slot| slot.start.is_none() || shape::is_first_turn(request))
    }

    /// From now on this child is known by this start.
    pub(super) fn answered(&mut self, binding: Binding, start: Option<StartMeaning>) {
        let Some(slot) = self.slots.get_mut(&binding) else { return };
        slot.revision += 1;
        let before = std::mem::replace(&mut slot.start, start);
        if let Some(before) = before {
            strike(&mut self.starts, &before, binding);
        }
        if let Some(start) = start {
            self.starts.entry(start).or_default().push(binding);
        }
    }

    /// A turn of this child begins, or has ended for this reason.
    pub(super) fn rest(&mut self, binding: Binding, stop_reason: Option<&str>) {
        if let Some(slot) = self.slots.get_mut(&binding) {
            slot.revision += 1;
            slot.rests = matches!(stop_reason, Some("end_turn" | "stop_sequence" | "refusal"));
        }
    }

    /// Finds the child that these marks are of, if they are of a later turn of one. `Err`: more of the request is to be
    /// read first.
    pub(super) fn find(
        &mut self,
        marks: &ChildMarks<'_>,
        who: &Who,
        now: Moment,
    ) -> Result<Option<Binding>, UnreadMark> {
        if self.is_empty() || marks.is_ambiguous() {
            return Ok(None);
        }
        let Some(found) = self.named(marks, who)? else { return Ok(None) };
        self.used(found, now);
        Ok(Some(found))
    }

    /// A turn of this child has come.
    pub(super) fn used(&mut self, found: Binding, now: Moment) {
        if let Some(slot) = self.slots.get_mut(&found) {
            self.uses.remove(&(slot.used, found));
            slot.used = now;
            self.uses.insert((now, found));
        }
    }

    fn named(&self, marks: &ChildMarks<'_>, who: &Who) -> Result<Option<Binding>, UnreadMark> {
        if marks.is_first_turn() {
            // One that has answered and starts anew has summed up what it said. Only its agent's id names it then.
            let own = who.agent.and_then(|agent| self.agents.get(&agent)).map_or(&[][..], Vec::as_slice);
            let goes_on =
                |binding: &&Binding| self.slots.get(binding).is_some_and(|slot| slot.start.is_some());
            return self.only(own.iter().filter(goes_on), marks, who);
        }
        let by_call = marks.calls()?.find_map(|id| self.calls.get(id)?.only);
        if let Some(binding) = by_call {
            return self.only([binding].iter(), marks, who);
        }
        let alike = marks.start()?.and_then(|start| self.starts.get(&start));
        self.only(alike.map_or(&[][..], Vec::as_slice).iter(), marks, who)
    }

    /// The one binding that the sender, the model and the tools agree with, if there are no two.
    fn only<'b>(
        &self,
        alike: impl Iterator<Item = &'b Binding>,
        marks: &ChildMarks<'_>,
        who: &Who,
    ) -> Result<Option<Binding>, UnreadMark> {
        let mut found = None;
        for binding in alike {
            let Some(slot) = self.slots.get(binding) else { continue };
            let is_sender = slot.who.agent == who.agent && slot.who.agrees(who);
            if !is_sender || !marks.agrees(&slot.tools)? {
                continue;
            }
            if found.is_some() {
                return Ok(None);
            }
            found = Some(*binding);
        }
        Ok(found)
    }

    /// Forgets what was not used for too long, and what there are too many of.
    pub(super) fn make_room(&mut self, now: Moment, holdings: &mut Holdings) {
        while let Some((used, binding)) = self.uses.first() {
            let old = now.since(*used) > self.life.ttl_s.saturating_mul(1_000);
            if !old && self.slots.len() <= self.life.count {
                return;
            }
            let binding = *binding;
            self.forget(binding, holdings);
        }
    }

    /// Forgets the longest unused of the forked children whose last answer left them nothing to do; `false` if there is
    /// none. The prefix of a child which works never goes.
    pub(super) fn evict(&mut self, holdings: &mut Holdings) -> bool {
        let may_go = |slot: &BindingSlot<B>| slot.point.is_some() && slot.rests;
        let goes = |(_, binding): &&(Moment, Binding)| self.slots.get(binding).is_some_and(may_go);
        let oldest = self.uses.iter().find(goes).map(|(_, binding)| *binding);
        oldest.inspect(|binding| self.forget(*binding, holdings)).is_some()
    }

    /// Returns true if a child was put on its parent's prefix.
    pub(super) fn has_forked(&self) -> bool {
        self.forked > 0
    }

    pub(super) fn forget(&mut self, binding: Binding, holdings: &mut Holdings) {
        let Some(slot) = self.slots.remove(&binding) else { return };
        self.names.remove(&slot.name);
        holdings.shrink(slot.bytes);
        if let Some(point) = &slot.point {
            holdings.release(point);
            self.forked -= 1;
        }
        self.uses.remove(&(slot.used, binding));
        slot.calls.iter().for_each(|id| self.uncall(id));
        if let Some(start) = slot.start {
            strike(&mut self.starts, &start, binding);
        }
        if let Some(agent) = slot.who.agent {
            strike(&mut self.agents, &agent, binding);
        }
        if let Some(known) = self.toolsets.get_mut(&slot.tools.spelt) {
            known.children -= 1;
            if known.children == 0 {
                self.toolsets.remove(&slot.tools.spelt);
            }
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
}

/// Takes one binding from those under this key.
fn strike<K: Eq + Hash>(listed: &mut HashMap<K, Vec<Binding>>, key: &K, binding: Binding) {
    let Some(alike) = listed.get_mut(key) else { return };
    alike.retain(|other| *other != binding);
    if alike.is_empty() {
        listed.remove(key);
    }
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
