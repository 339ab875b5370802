//! The recent requests of one tenant: the last of each conversation, to compare the next one with.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::engine::anatomy::Layer;
use crate::engine::conversation::Trace;
use crate::engine::quick::QuickMap;
use crate::engine::recall::{CANDIDATES_MAX, KnownLayer, Opening, Remembered};
use crate::engine::types::IdDigest;

/// What a client says about which conversation a request belongs to.
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
    hinted: QuickMap<Hint, u64>,
    opened: QuickMap<Opening, VecDeque<u64>>,
    tools: VecDeque<Arc<KnownLayer>>,
    system: VecDeque<Arc<KnownLayer>>,
    bytes: usize,
}

#[derive(Debug)]
struct Slot {
    trace: Arc<Trace>,
    hint: Option<Hint>,
    bytes: usize,
}

impl Recent {
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn hinted(&self, hint: &Hint) -> Option<&Arc<Trace>> {
        self.slots.get(self.hinted.get(hint)?).map(|slot| &slot.trace)
    }

    /// Those that open alike, the newest first.
    pub fn opened(&self, opening: Opening) -> impl Iterator<Item = &Arc<Trace>> {
        let ids = self.opened.get(&opening).into_iter().flatten();
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
        self.opened(request.opening()?).find(is).map(|trace| (Arc::clone(trace), false))
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
        let alike = request.opening().into_iter().flat_map(|opening| self.opened(opening));
        let as_long = alike.filter(|trace| trace.received.anatomy().messages.len() == turns);
        let continued = as_long.filter(|trace| trace.is_continued_by(request, false));
        let closest = continued.max_by_key(|trace| shared(trace)).filter(|trace| shared(trace) > most);
        closest.map_or(like, Arc::clone)
    }

    /// Remembers a request, in the place of the one that it continues.
    pub fn insert(&mut self, trace: Arc<Trace>, hint: Option<Hint>, continued: Option<&Arc<Trace>>) {
        if let Some(old) = continued.and_then(|old| self.id_of(old)) {
            self.remove(old);
        }
        let id = self.next;
        self.next += 1;
        if let Some(hint) = hint {
            self.hinted.insert(hint, id);
        }
        if let Some(opening) = trace.received.opening() {
            let alike = self.opened.entry(opening).or_default();
            alike.push_front(id);
            // Of the others that open alike only a few are ever looked at.
            if alike.len() > CANDIDATES_MAX
                && let Some(surplus) = alike.pop_back()
            {
                self.remove(surplus);
            }
        }
        let bytes = trace.memory_bytes();
        self.bytes += bytes;
        self.slots.insert(id, Slot { trace, hint, bytes });
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

    /// Forgets the oldest request, and the layers with the last; answers how much is left, if anything went.
    pub fn forget_oldest(&mut self) -> bool {
        match self.slots.keys().next().copied() {
            Some(id) => self.remove(id),
            None => {
                let layers = self.tools.len() + self.system.len();
                *self = Recent { next: self.next, ..Recent::default() };
                layers > 0
            }
        }
    }

    fn id_of(&self, trace: &Arc<Trace>) -> Option<u64> {
        let alike = self.opened.get(&trace.received.opening()?)?;
        alike
            .iter()
            .copied()
            .find(|id| self.slots.get(id).is_some_and(|slot| Arc::ptr_eq(&slot.trace, trace)))
    }

    fn remove(&mut self, id: u64) -> bool {
        let Some(slot) = self.slots.remove(&id) else { return false };
        self.bytes -= slot.bytes;
        if let Some(hint) = slot.hint
            && self.hinted.get(&hint) == Some(&id)
        {
            self.hinted.remove(&hint);
        }
        if let Some(opening) = slot.trace.received.opening()
            && let Some(alike) = self.opened.get_mut(&opening)
        {
            alike.retain(|other| *other != id);
            if alike.is_empty() {
                self.opened.remove(&opening);
            }
        }
        true
    }
}
