//! What was decided for a child, found again on each of its later turns.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use super::rules::Who;
use super::shape;
use crate::engine::anatomy::Layer;
use crate::engine::prefix::PrefixHash;
use crate::engine::recall::Remembered;
use crate::engine::types::Moment;

/// Calls by which one child is known: its newest. Every request carries those of all its turns.
const CALLS_MAX: usize = 64;
/// Ids of one request that are looked up.
const LOOKUPS_MAX: usize = 256;
/// What a binding costs beside its value: its keys, and its slots in the maps.
const BINDING_BYTES: usize = 512;

/// What bindings may hold, and for how long after their last use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    pub ttl_s: u64,
    pub count: usize,
    pub bytes: usize,
}

/// The name of a binding while it lives; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Binding(u64);

/// The children of one tenant. A later turn is known by any call that streamed to its conversation, else by
/// its first user message and first assistant turn. Agent, model and tools must agree; and where only words
/// are compared, which two users may share, session and user too.
#[derive(Debug)]
pub struct Bindings<B> {
    life: Life,
    slots: BTreeMap<Binding, Slot<B>>,
    /// By last use, oldest first.
    uses: BTreeSet<(Moment, Binding)>,
    calls: HashMap<Arc<str>, Binding>,
    starts: HashMap<[u8; 32], Vec<Binding>>,
    next: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Slot<B> {
    value: Arc<B>,
    who: Who,
    /// Model and tools.
    tools: PrefixHash,
    used: Moment,
    calls: VecDeque<Arc<str>>,
    start: Option<[u8; 32]>,
    bytes: usize,
}

impl<B> Bindings<B> {
    pub fn new(life: Life) -> Bindings<B> {
        Bindings {
            life,
            slots: BTreeMap::new(),
            uses: BTreeSet::new(),
            calls: HashMap::new(),
            starts: HashMap::new(),
            next: 0,
            bytes: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
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
        let bytes = bytes + BINDING_BYTES;
        let tools = tools(request);
        self.bytes += bytes;
        self.uses.insert((now, binding));
        let calls = VecDeque::new();
        self.slots.insert(binding, Slot { value, who, tools, used: now, calls, start: None, bytes });
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
        let id: Arc<str> = Arc::from(id);
        // An id that two children were given names neither.
        if let Some(other) = self.calls.insert(Arc::clone(&id), binding)
            && other != binding
        {
            self.calls.remove(&id);
            return;
        }
        slot.bytes += id.len();
        self.bytes += id.len();
        slot.calls.push_back(id);
        if slot.calls.len() > CALLS_MAX
            && let Some(oldest) = slot.calls.pop_front()
        {
            slot.bytes -= oldest.len();
            self.bytes -= oldest.len();
            self.calls.remove(&oldest);
        }
    }

    /// The first turn of this child has ended with this assistant message.
    pub fn answered(&mut self, binding: Binding, request: &Remembered, message: &[u8]) {
        let Some(slot) = self.slots.get_mut(&binding).filter(|slot| slot.start.is_none()) else { return };
        // A client's own fork starts with its parent's turns, and goes on with them.
        slot.start = shape::start_meaning(request).or_else(|| shape::start_meaning_with(request, message));
        if let Some(start) = slot.start {
            self.starts.entry(start).or_default().push(binding);
        }
    }

    /// What was decided for the conversation of this request, if it is a later turn of a child.
    pub fn find(&mut self, request: &Remembered, who: &Who, now: Moment) -> Option<(Binding, Arc<B>)> {
        self.make_room(now);
        if self.is_empty() || request.anatomy().ambiguous || shape::is_first_turn(request) {
            return None;
        }
        let tools = tools(request);
        let agrees = |binding: &Binding| {
            self.slots.get(binding).is_some_and(|slot| slot.who.agent == who.agent && slot.tools == tools)
        };
        let by_call = shape::call_ids(request).take(LOOKUPS_MAX).find_map(|id| self.calls.get(&*id).copied());
        let found = match by_call {
            Some(binding) => Some(binding).filter(agrees),
            None => {
                let start = shape::start_meaning(request)?;
                let same = |binding: &Binding| {
                    agrees(binding) && self.slots.get(binding).is_some_and(|slot| slot.who.agrees(who))
                };
                let mut alike = self.starts.get(&start)?.iter().copied().filter(same);
                alike.next().filter(|_| alike.next().is_none())
            }
        }?;
        let slot = self.slots.get_mut(&found)?;
        self.uses.remove(&(slot.used, found));
        slot.used = now;
        self.uses.insert((now, found));
        Some((found, Arc::clone(&slot.value)))
    }

    /// Forgets what was not used for too long, and what there is no room for.
    pub fn make_room(&mut self, now: Moment) {
        while let Some((used, binding)) = self.uses.first() {
            let old = now.since(*used) > self.life.ttl_s.saturating_mul(1_000);
            if !old && self.slots.len() <= self.life.count && self.bytes <= self.life.bytes {
                return;
            }
            let binding = *binding;
            self.forget(binding);
        }
    }

    fn forget(&mut self, binding: Binding) {
        let Some(slot) = self.slots.remove(&binding) else { return };
        self.uses.remove(&(slot.used, binding));
        self.bytes -= slot.bytes;
        for id in &slot.calls {
            if self.calls.get(id) == Some(&binding) {
                self.calls.remove(id);
            }
        }
        if let Some(start) = slot.start
            && let Some(alike) = self.starts.get_mut(&start)
        {
            alike.retain(|other| *other != binding);
            if alike.is_empty() {
                self.starts.remove(&start);
            }
        }
    }
}

fn tools(request: &Remembered) -> PrefixHash {
    request.chain().layer(request.anatomy(), Layer::Tools)
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
        self.uses.len() + self.calls.len() + self.starts.len()
    }
}
