//! The recent requests of one tenant: the last of each conversation, to compare the next one with.
//!
//! Any number of conversations may open alike: a swarm of agents is sent off with the same words. All of them are
//! kept while there is room; how many are *looked at* is limited.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;

use super::choices::Choices;
use crate::engine::family::conversation::{Conversation, Trace};
use crate::engine::request::recall::{CANDIDATES_MAX, FirstAnswer, KnownLayer, Opening, Remembered};
use crate::engine::words::{IdDigest, Layer};

/// Of conversations that open alike, so many are asked whether they have the tools and system of a request: one
/// comparison of two hashes each.
const STATICS_MAX: usize = 256;

/// A client's hint about which conversation a request belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hint {
    pub session: IdDigest,
    pub agent: Option<IdDigest>,
}

#[derive(Debug, Default)]
pub(super) struct Recent {
    /// By the order of their arrival.
    slots: BTreeMap<u64, Slot>,
    next: u64,
    hinted: HashMap<Hint, u64>,
    /// Of requests that open alike, those whose first answer is the same, or that have none yet.
    answered: HashMap<(Opening, Option<FirstAnswer>), BTreeSet<u64>>,
    opened: HashMap<Opening, BTreeSet<u64>>,
    /// By their addresses, which are theirs as long as they are kept.
    places: HashMap<[u8; 8], u64>,
    tools: VecDeque<Arc<KnownLayer>>,
    system: VecDeque<Arc<KnownLayer>>,
    /// How many stand on the same request, by its address: it is counted once.
    shared: HashMap<[u8; 8], Standing>,
    bytes: usize,
    /// The choices of conversations whose body had to go.
    choices: Choices,
}

#[derive(Debug)]
struct Slot {
    trace: Arc<Trace>,
    hint: Option<Hint>,
    answer: Option<FirstAnswer>,
    bytes: usize,
}

#[derive(Debug)]
struct Standing {
    count: usize,
    bytes: usize,
}

impl Recent {
    pub fn bytes(&self) -> usize {
        self.bytes + self.choices.bytes()
    }

    /// The conversation of a request whose last body had to go, if its thinking is bound.
    pub fn chosen(&self, request: &Remembered, hint: Option<Hint>) -> Option<Arc<Conversation>> {
        self.choices.find(request, hint).cloned()
    }

    pub fn hinted(&self, hint: &Hint) -> Option<&Arc<Trace>> {
        self.slots.get(self.hinted.get(hint)?).map(|slot| &slot.trace)
    }

    /// Those that open alike, the newest first.
    pub fn opened(&self, opening: Opening) -> impl Iterator<Item = &Arc<Trace>> {
        self.newest(self.opened.get(&opening)).take(CANDIDATES_MAX)
    }

    /// Those of them whose first answer is this one, then those that have none yet; a few of each.
    pub fn answered(
        &self,
        opening: Opening,
        answer: Option<FirstAnswer>,
    ) -> impl Iterator<Item = &Arc<Trace>> {
        const EACH_MAX: usize = CANDIDATES_MAX / 2;
        let alike = move |answer| self.newest(self.answered.get(&(opening, answer))).take(EACH_MAX);
        answer.into_iter().flat_map(move |answer| alike(Some(answer))).chain(alike(None))
    }

    fn newest<'r>(&'r self, ids: Option<&'r BTreeSet<u64>>) -> impl Iterator<Item = &'r Arc<Trace>> {
        let ids = ids.into_iter().flat_map(|ids| ids.iter().rev());
        ids.filter_map(|id| self.slots.get(id).map(|slot| &slot.trace))
    }

    pub fn layers(&self, layer: Layer) -> Vec<Arc<KnownLayer>> {
        match layer {
            Layer::Tools => self.tools.iter().cloned().collect(),
            Layer::System => self.system.iter().cloned().collect(),
            Layer::Model | Layer::Messages => Vec::new(),
        }
    }

    /// Which of the recent requests this is.
    pub fn trace_of(&self, request: &Arc<Remembered>, hint: Option<&Hint>) -> Option<(Arc<Trace>, bool)> {
        let is = |trace: &&Arc<Trace>| Arc::ptr_eq(&trace.received, request);
        if let Some(trace) = hint.and_then(|hint| self.hinted(hint)).filter(is) {
            return Some((Arc::clone(trace), true));
        }
        let slot = self.slots.get(self.places.get(&place(request))?)?;
        Some((Arc::clone(&slot.trace), false))
    }

    /// Of those that open alike and are as long as `like`, the one that has most in common with a request whose
    /// tools or system are not those of `like`: one question may be put to several agents.
    pub fn closest(&self, like: Arc<Trace>, request: &Remembered) -> Arc<Trace> {
        let turns = like.received.anatomy().messages.len();
        let shared = |trace: &Arc<Trace>| trace.received.shared_pieces(request);
        let most = shared(&like);
        if most >= request.anatomy().tools + request.anatomy().system {
            return like;
        }
        let statics = |request: &Remembered| request.chain().layer(request.anatomy(), Layer::System);
        let key = request.opening().map(|opening| (opening, like.received.answer_key()));
        let alike = || self.newest(key.as_ref().and_then(|key| self.answered.get(key)));
        let fits = |trace: &&Arc<Trace>| {
            trace.received.anatomy().messages.len() == turns && trace.is_continued_by(request, false)
        };
        let wanted = statics(request);
        let same = |trace: &&Arc<Trace>| statics(&trace.received) == wanted && fits(trace);
        if let Some(same) = alike().take(STATICS_MAX).find(same) {
            return Arc::clone(same);
        }
        let closest = alike().take(CANDIDATES_MAX).filter(fits).max_by_key(|trace| shared(trace));
        closest.filter(|trace| shared(trace) > most).map_or(like, Arc::clone)
    }

    /// Remembers a request, in the place of the one that it continues.
    pub fn insert(&mut self, trace: Arc<Trace>, hint: Option<Hint>, continued: Option<&Arc<Trace>>) {
        let mut answer = None;
        if let Some((old, id)) = continued.and_then(|old| Some((old, self.id_of(old)?))) {
            let known = self.slots.get(&id).and_then(|slot| slot.answer);
            if known.is_some() && trace.received.is_answered_like(&old.received) {
                answer = known;
            }
            self.remove(id);
        }
        let answer = answer.or_else(|| trace.received.answer_key());
        self.choices.seen(&trace, hint, answer);
        let id = self.next;
        self.next += 1;
        if let Some(hint) = hint {
            self.hinted.insert(hint, id);
        }
        if let Some(opening) = trace.received.opening() {
            self.opened.entry(opening).or_default().insert(id);
            self.answered.entry((opening, answer)).or_default().insert(id);
        }
        self.places.insert(place(&trace.received), id);
        let bytes = trace.memory_bytes();
        self.bytes += bytes;
        if let Some(shared) = trace.shared() {
            let standing = self.shared.entry(place(&shared.request)).or_insert_with(|| {
                let bytes = shared.memory_bytes();
                self.bytes += bytes;
                Standing { count: 0, bytes }
            });
            standing.count += 1;
        }
        self.slots.insert(id, Slot { trace, hint, answer, bytes });
    }

    pub fn learn_layer(&mut self, layer: Layer, value: KnownLayer) {
        let known = match layer {
            Layer::Tools => &mut self.tools,
            Layer::System => &mut self.system,
            Layer::Model | Layer::Messages => return,
        };
        match known.iter().position(|known| known.value() == value.value()) {
            Some(place) => {
                let again = known.remove(place);
                again.into_iter().for_each(|layer| known.push_front(layer));
            }
            None => {
                self.bytes += value.memory_bytes();
                known.push_front(Arc::new(value));
            }
        }
        if known.len() > CANDIDATES_MAX
            && let Some(oldest) = known.pop_back()
        {
            self.bytes -= oldest.memory_bytes();
        }
    }

    /// Forgets the oldest request, then the layers, then what conversations chose; whether anything went. `room`:
    /// what all of it may take.
    pub fn forget_oldest(&mut self, room: usize) -> bool {
        if let Some((id, slot)) = self.slots.first_key_value() {
            let id = *id;
            self.choices.keep(&slot.trace, slot.hint, room);
            return self.remove(id);
        }
        if self.tools.len() + self.system.len() > 0 {
            let choices = std::mem::take(&mut self.choices);
            *self = Recent { next: self.next, choices, ..Recent::default() };
            return true;
        }
        self.choices.forget_oldest()
    }

    fn id_of(&self, trace: &Arc<Trace>) -> Option<u64> {
        let id = *self.places.get(&place(&trace.received))?;
        self.slots.get(&id).filter(|slot| Arc::ptr_eq(&slot.trace, trace)).map(|_| id)
    }

    fn remove(&mut self, id: u64) -> bool {
        let Some(slot) = self.slots.remove(&id) else { return false };
        self.bytes -= slot.bytes;
        if let Some(hint) = slot.hint
            && self.hinted.get(&hint) == Some(&id)
        {
            self.hinted.remove(&hint);
        }
        self.places.remove(&place(&slot.trace.received));
        if let Some(shared) = slot.trace.shared() {
            self.leave(place(&shared.request));
        }
        if let Some(opening) = slot.trace.received.opening() {
            forget(&mut self.opened, &opening, id);
            forget(&mut self.answered, &(opening, slot.answer), id);
        }
        true
    }

    /// One less stands on a request.
    fn leave(&mut self, place: [u8; 8]) {
        let Some(standing) = self.shared.get_mut(&place) else { return };
        standing.count -= 1;
        if standing.count == 0 {
            self.bytes -= standing.bytes;
            self.shared.remove(&place);
        }
    }
}

fn place(request: &Arc<Remembered>) -> [u8; 8] {
    (Arc::as_ptr(request).addr() as u64).to_le_bytes()
}

fn forget<K: Eq + Hash>(alike: &mut HashMap<K, BTreeSet<u64>>, key: &K, id: u64) {
    if let Some(ids) = alike.get_mut(key) {
        ids.remove(&id);
        if ids.is_empty() {
            alike.remove(key);
        }
    }
}
