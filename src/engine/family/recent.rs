//! The recent requests of one tenant: the last of each conversation, to compare the next one with.
//!
//! Any number of conversations may open alike: a swarm of agents is sent off with the same words. All of them are
//! kept while there is room; how many are *looked at* is limited.

mod held;
mod saved;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;

use super::arrival::Predecessor;
use super::choices::{self, Choices};
use super::conversation::{Conversation, ConversationId, Outcome, Trace};
use super::outlines::Outlines;
use super::shared_memory::{Allocation, SharedMemory};
use crate::engine::request::recall::{
    CANDIDATES_MAX, FirstAnswer, KnownLayer, Opening, Remembered, Shared, SharedParts,
};
use crate::engine::respell::canonical::Pins;
use crate::engine::respell::echo::Spelling;
use crate::engine::words::{IdDigest, Layer};

/// Of conversations that open alike, this many are asked whether they have the tools and system of a request: one
/// comparison of two hashes each.
const STATICS_MAX: usize = 256;

/// The longest time that a server holds an answer from which nobody goes on.
const HELD_MS_MAX: u64 = 60 * 60 * 1_000;

/// A client's hint about which conversation a request belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hint {
    pub session: IdDigest,
    pub agent: Option<IdDigest>,
}

/// Names a request that is kept; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecentId(u64);

#[derive(Debug, Default)]
pub struct Recent {
    /// By the order of their arrival.
    slots: BTreeMap<RecentId, RecentSlot>,
    next: u64,
    conversations: Conversations,
    hinted: HashMap<Hint, RecentId>,
    /// Of requests that open alike, those whose first answer is the same, or that have none yet.
    answered: HashMap<(Opening, Option<FirstAnswer>), BTreeSet<RecentId>>,
    opened: HashMap<Opening, BTreeSet<RecentId>>,
    /// Those whose answer the server holds, by the id of that.
    threads: HashMap<Arc<str>, RecentId>,
    tools: VecDeque<Arc<KnownLayer>>,
    system: VecDeque<Arc<KnownLayer>>,
    /// The prefixes that requests are made of, which they share.
    shared: SharedMemory,
    bytes: usize,
    /// The choices of conversations whose body had to go.
    choices: Choices,
    /// The outlines of requests whose body had to go.
    outlines: Outlines,
    /// True if any of the tenant's clients was seen to spell anew what it said before.
    respells: bool,
}

#[derive(Debug)]
struct RecentSlot {
    trace: Arc<Trace>,
    outcome: Outcome,
    conversation: ConversationId,
    hint: Option<Hint>,
    answer: Option<FirstAnswer>,
    /// The id of its answer, if the server holds that.
    thread: Option<Arc<str>>,
    bytes: usize,
}

/// A request that was accepted, to be kept.
#[derive(Debug)]
pub struct AcceptedRequest {
    pub trace: Arc<Trace>,
    /// True if it goes on from an answer that the server holds, which nothing else can do from then on.
    pub resumes: bool,
    pub outcome: Outcome,
    pub conversation: Conversation,
    /// New spellings for the conversation.
    pub pins: Pins,
    pub hint: Option<Hint>,
    /// The spelling in which its tools and inputs went out, if not as they came.
    pub spelling: Option<Spelling>,
    /// Tools and system prompts that others may bring too.
    pub layers: Vec<(Layer, KnownLayer)>,
    /// The request that it continues, if only the outline of that is known.
    pub faded: Option<RecentId>,
}

/// The conversations of the requests and choices that are kept.
#[derive(Debug, Default)]
struct Conversations {
    known: HashMap<ConversationId, KeptConversation>,
    next: u64,
}

#[derive(Debug)]
struct KeptConversation {
    state: Conversation,
    /// The spelling in which its tools and inputs go out, if its client spells them anew each turn.
    spelling: Option<Spelling>,
    /// The requests and choices of it that are kept.
    holders: usize,
}

impl Conversations {
    /// Takes one holder more of a conversation. If it is not known any more, what the holder knows of it counts.
    fn hold(&mut self, state: Conversation) -> ConversationId {
        let id = state.id.unwrap_or_else(|| {
            self.next += 1;
            ConversationId(self.next)
        });
        let kept = self.known.entry(id).or_insert_with(|| {
            let mut state = state;
            state.id = Some(id);
            KeptConversation { state, spelling: None, holders: 0 }
        });
        kept.holders += 1;
        id
    }

    fn release(&mut self, id: ConversationId) {
        let Some(kept) = self.known.get_mut(&id) else { return };
        kept.holders -= 1;
        if kept.holders == 0 {
            self.known.remove(&id);
        }
    }

    fn get(&self, id: ConversationId) -> Option<&Conversation> {
        self.known.get(&id).map(|kept| &kept.state)
    }
}

impl Recent {
    pub fn bytes(&self) -> usize {
        self.bytes + self.shared.bytes() + self.choices.bytes() + self.outlines.bytes()
    }

    /// The outlines of requests whose body had to go.
    pub fn outlines(&self) -> &Outlines {
        &self.outlines
    }

    /// Returns true if any of the tenant's clients was seen to spell anew what it said before.
    pub fn respells(&self) -> bool {
        self.respells
    }

    /// The conversation of a request whose last body had to go, if its thinking is bound.
    pub fn chosen(&self, request: &Remembered, hint: Option<Hint>) -> Option<Conversation> {
        self.conversations.get(self.choices.find(request, hint)?).cloned()
    }

    pub fn hinted(&self, hint: &Hint) -> Option<RecentId> {
        self.hinted.get(hint).copied()
    }

    /// A request as it came.
    pub fn received(&self, id: RecentId) -> Option<&Arc<Remembered>> {
        self.slots.get(&id).map(|slot| &slot.trace.received)
    }

    /// A request as the predecessor of another, which has yet to be compared with it.
    pub fn predecessor(&self, id: RecentId) -> Option<Predecessor> {
        let slot = self.slots.get(&id)?;
        Some(Predecessor {
            id,
            trace: Arc::clone(&slot.trace),
            outcome: slot.outcome.clone(),
            conversation: self.conversations.get(slot.conversation)?.clone(),
            same: SharedParts::default(),
            as_sent: false,
            continued: false,
        })
    }

    /// Those that open alike, the newest first.
    pub fn opened(&self, opening: Opening) -> impl Iterator<Item = RecentId> {
        newest(self.opened.get(&opening)).take(CANDIDATES_MAX)
    }

    /// Those of them whose first answer is this one, then those that have none yet; a few of each.
    pub fn answered(&self, opening: Opening, answer: Option<FirstAnswer>) -> impl Iterator<Item = RecentId> {
        const EACH_MAX: usize = CANDIDATES_MAX / 2;
        let alike = move |answer| newest(self.answered.get(&(opening, answer))).take(EACH_MAX);
        answer.into_iter().flat_map(move |answer| alike(Some(answer))).chain(alike(None))
    }

    pub fn layers(&self, layer: Layer) -> Vec<Arc<KnownLayer>> {
        match layer {
            Layer::Tools => self.tools.iter().cloned().collect(),
            Layer::System => self.system.iter().cloned().collect(),
            Layer::Model | Layer::Messages => Vec::new(),
        }
    }

    /// Which of the recent requests this is, and whether the hint names it.
    pub fn find(&self, request: &Arc<Remembered>, hint: Option<&Hint>) -> Option<(RecentId, bool)> {
        let is = |id: &RecentId| self.received(*id).is_some_and(|received| Arc::ptr_eq(received, request));
        if let Some(id) = hint.and_then(|hint| self.hinted(hint)).filter(is) {
            return Some((id, true));
        }
        // It was one of the newest that open alike when it was found, and few have come since.
        let mut alike = newest(request.opening().and_then(|opening| self.opened.get(&opening)));
        alike.find(is).map(|id| (id, false))
    }

    /// Of those that open alike and are as long as `like`, the one that has most in common with a request whose
    /// tools or system are not those of `like`: one question may be put to several agents.
    pub fn closest(&self, like: RecentId, request: &Remembered) -> RecentId {
        let Some(first) = self.slots.get(&like).map(|slot| &slot.trace) else { return like };
        let turns = first.received.anatomy().messages.len();
        let shared = |trace: &Trace| trace.received.shared_pieces(request);
        let most = shared(first);
        if most >= request.anatomy().tools + request.anatomy().system {
            return like;
        }
        let statics = |request: &Remembered| request.chain().layer(request.anatomy(), Layer::System);
        let key = request.opening().map(|opening| (opening, first.received.answer_key()));
        let alike = || {
            let ids = newest(key.as_ref().and_then(|key| self.answered.get(key)));
            ids.filter_map(|id| self.slots.get(&id).map(|slot| (id, &slot.trace)))
        };
        let fits = |(_, trace): &(RecentId, &Arc<Trace>)| {
            trace.received.anatomy().messages.len() == turns && trace.is_continued_by(request, false)
        };
        let wanted = statics(request);
        let same = |one: &(RecentId, &Arc<Trace>)| statics(&one.1.received) == wanted && fits(one);
        if let Some((same, _)) = alike().take(STATICS_MAX).find(same) {
            return same;
        }
        let closest = alike().take(CANDIDATES_MAX).filter(fits).max_by_key(|(_, trace)| shared(trace));
        closest.filter(|(_, trace)| shared(trace) > most).map_or(like, |(id, _)| id)
    }

    /// Takes the spelling of a conversation out, to read or write by it. It is to be brought back.
    pub fn take_spelling(&mut self, conversation: Option<ConversationId>) -> Option<Spelling> {
        self.conversations.known.get_mut(&conversation?)?.spelling.take()
    }

    pub fn bring_back_spelling(&mut self, conversation: Option<ConversationId>, spelling: Spelling) {
        let kept = conversation.and_then(|id| self.conversations.known.get_mut(&id));
        if let Some(kept) = kept {
            kept.spelling.get_or_insert(spelling);
        }
    }

    /// Keeps a request, in the place of the one that it continues. One whose answer the server holds keeps its place
    /// beside a whole request, which may be a fork of it: its own client goes on from that answer.
    pub fn insert(&mut self, request: AcceptedRequest, continued: Option<&Predecessor>) -> RecentId {
        let AcceptedRequest { trace, resumes, outcome, conversation, pins, hint, spelling, layers, faded } =
            request;
        if let Some(faded) = faded {
            self.outlines.continued(faded);
        }
        layers.into_iter().for_each(|(layer, value)| self.learn_layer(layer, value));
        let conversation = self.conversations.hold(conversation);
        let mut answer = None;
        if let Some(last) = continued
            && let Some(old) = self.slots.get(&last.id)
            // An id that was given in another state of the tenant may be another request's here.
            && Arc::ptr_eq(&old.trace, &last.trace)
        {
            if old.answer.is_some() && trace.received.is_answered_like(&old.trace.received) {
                answer = old.answer;
            }
            let held_for = outcome.sent.since(old.outcome.sent);
            if resumes || old.thread.is_none() || held_for >= HELD_MS_MAX {
                self.remove(last.id);
            }
        }
        let answer = answer.or_else(|| trace.received.answer_key());
        let id = RecentId(self.next);
        self.next += 1;
        if let Some(hint) = hint {
            self.hinted.insert(hint, id);
        }
        if let Some(opening) = trace.received.opening() {
            self.opened.entry(opening).or_default().insert(id);
            self.answered.entry((opening, answer)).or_default().insert(id);
        }
        let mut bytes = trace.memory_bytes();
        if let Some(kept) = self.conversations.known.get_mut(&conversation) {
            kept.state.pin(pins);
            if spelling.is_some() {
                (kept.spelling, self.respells) = (spelling, true);
            }
            bytes += kept.state.memory_bytes() + kept.spelling.as_ref().map_or(0, Spelling::memory_bytes);
            let turn = choices::Turn {
                trace: &trace,
                hint,
                sent: outcome.sent,
                conversation: &kept.state,
                id: conversation,
            };
            let gone = self.choices.seen(&turn, answer);
            gone.into_iter().for_each(|id| self.conversations.release(id));
        }
        self.bytes += bytes;
        if let Some(shared) = trace.shared() {
            self.shared.hold(allocation(shared), shared.memory_bytes());
        }
        self.slots.insert(id, RecentSlot { trace, outcome, conversation, hint, answer, thread: None, bytes });
        id
    }

    /// Returns the outcome of a request, if it or its outline is still kept.
    pub fn outcome_mut(&mut self, id: RecentId) -> Option<&mut Outcome> {
        match self.slots.get_mut(&id) {
            Some(slot) => Some(&mut slot.outcome),
            None => self.outlines.outcome_mut(id),
        }
    }

    /// The conversation of a request, if that is still kept.
    pub fn conversation_of(&mut self, id: RecentId) -> Option<&mut Conversation> {
        let id = self.slots.get(&id)?.conversation;
        self.conversation_mut(id)
    }

    pub fn conversation_mut(&mut self, id: ConversationId) -> Option<&mut Conversation> {
        self.conversations.known.get_mut(&id).map(|kept| &mut kept.state)
    }

    fn learn_layer(&mut self, layer: Layer, value: KnownLayer) {
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

    /// Forgets the body of the oldest request, then the layers, then the outlines, then what conversations chose. Returns
    /// false if nothing is left. `room`: what all of it may take.
    pub fn forget_oldest(&mut self, room: usize) -> bool {
        if let Some((id, slot)) = self.slots.first_key_value() {
            let (id, trace, hint) = (*id, Arc::clone(&slot.trace), slot.hint);
            let (answer, outcome) = (slot.answer, Outcome { held: None, ..slot.outcome.clone() });
            self.choose(id, slot.conversation, room);
            self.remove(id);
            self.outlines.keep(id, &trace, (hint, answer), outcome, room);
            return true;
        }
        if self.tools.len() + self.system.len() > 0 {
            self.tools.clear();
            self.system.clear();
            self.bytes = 0;
            return true;
        }
        if self.outlines.forget_oldest() {
            return true;
        }
        let gone = self.choices.forget_oldest();
        gone.inspect(|id| self.conversations.release(*id)).is_some()
    }

    /// Keeps the choice of a conversation whose body goes.
    fn choose(&mut self, id: RecentId, conversation: ConversationId, room: usize) {
        let (Some(slot), Some(kept)) = (self.slots.get(&id), self.conversations.known.get_mut(&conversation))
        else {
            return;
        };
        let turn = choices::Turn {
            trace: &slot.trace,
            hint: slot.hint,
            sent: slot.outcome.sent,
            conversation: &kept.state,
            id: conversation,
        };
        let (is_kept, gone) = self.choices.keep(&turn, room);
        if is_kept {
            kept.holders += 1;
        }
        gone.into_iter().for_each(|id| self.conversations.release(id));
    }

    fn remove(&mut self, id: RecentId) -> bool {
        let Some(slot) = self.slots.remove(&id) else { return false };
        self.bytes -= slot.bytes;
        if let Some(hint) = slot.hint
            && self.hinted.get(&hint) == Some(&id)
        {
            self.hinted.remove(&hint);
        }
        if let Some(thread) = slot.thread
            && self.threads.get(&thread) == Some(&id)
        {
            self.threads.remove(&thread);
        }
        if let Some(shared) = slot.trace.shared() {
            self.shared.release(allocation(shared));
        }
        if let Some(opening) = slot.trace.received.opening() {
            forget(&mut self.opened, &opening, id);
            forget(&mut self.answered, &(opening, slot.answer), id);
        }
        self.conversations.release(slot.conversation);
        true
    }
}

fn newest(ids: Option<&BTreeSet<RecentId>>) -> impl Iterator<Item = RecentId> {
    ids.into_iter().flat_map(|ids| ids.iter().rev().copied())
}

fn allocation(shared: &Shared) -> Allocation {
    Allocation(Arc::as_ptr(&shared.request).addr())
}

fn forget<K: Eq + Hash>(alike: &mut HashMap<K, BTreeSet<RecentId>>, key: &K, id: RecentId) {
    if let Some(ids) = alike.get_mut(key) {
        ids.remove(&id);
        if ids.is_empty() {
            alike.remove(key);
        }
    }
}
