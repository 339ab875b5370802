//! Conversations whose thinking is bound to their spelling, after their last body had to go.
//!
//! A choice made at a conversation's first request holds for its life, and its next turn may come long after other
//! conversations needed the room. A choice is small beside a body, and most of it is what all conversations of the
//! tenant have in common: that is counted once.

use std::collections::{BTreeMap, HashMap};

use super::conversation::{Conversation, ConversationId, Trace};
use super::recent::Hint;
use super::shared_memory::{Allocation, SharedMemory};
use crate::engine::request::recall::{FirstAnswer, Opening, Remembered};
use crate::engine::words::Moment;

/// Choices of one tenant.
const CHOICES_MAX: usize = 4_096;
/// Of what recent bodies may take, this part may be choices.
const SHARE_OF_CHOICES: usize = 4;
/// As long after its last request as a child is remembered, and as the longest-lived cache entry.
const LIFE_MS: u64 = 3_600_000;
/// The bytes that a choice takes beside what it holds: its slots in the maps.
const CHOICE_BYTES: usize = 256;

/// The key by which a conversation is found again. Without an answer: its first request was the last that was kept.
type ChoiceName = (Option<Hint>, Opening, Option<FirstAnswer>);

#[derive(Debug, Default)]
pub(super) struct Choices {
    /// By the order in which their bodies went.
    slots: BTreeMap<u64, ChoiceSlot>,
    names: HashMap<ChoiceName, u64>,
    next: u64,
    /// The spellings that conversations have in common.
    shared: SharedMemory,
    /// Of the rest.
    bytes: usize,
}

#[derive(Debug)]
struct ChoiceSlot {
    name: ChoiceName,
    conversation: ConversationId,
    last_sent: Moment,
    parts: Vec<Allocation>,
}

/// A request that was kept, of a conversation.
#[derive(Clone, Copy)]
pub(super) struct Turn<'a> {
    pub trace: &'a Trace,
    pub hint: Option<Hint>,
    pub sent: Moment,
    pub conversation: &'a Conversation,
    pub id: ConversationId,
}

impl Choices {
    pub fn bytes(&self) -> usize {
        self.bytes + self.shared.bytes()
    }

    /// Keeps the conversation of a body that goes, if it has chosen. `room`: what recent bodies may take. Returns
    /// whether it was kept, and the conversations that had to go for it.
    pub fn keep(&mut self, turn: &Turn<'_>, room: usize) -> (bool, Vec<ConversationId>) {
        let Turn { trace, hint, sent, conversation, id } = *turn;
        let (Some(opening), Some(choice)) = (trace.received.opening(), conversation.choice()) else {
            return (false, Vec::new());
        };
        let name = (hint, opening, trace.received.answer_key());
        let mut gone: Vec<_> = self.forget(&name).into_iter().collect();
        let mut parts = Vec::new();
        self.bytes += CHOICE_BYTES;
        for (address, bytes) in choice.parts() {
            let part = Allocation(address);
            self.shared.hold(part, bytes);
            self.bytes += size_of_val(&part);
            parts.push(part);
        }
        self.names.insert(name, self.next);
        self.slots.insert(self.next, ChoiceSlot { name, conversation: id, last_sent: sent, parts });
        self.next += 1;
        while self.bytes() > room / SHARE_OF_CHOICES || self.slots.len() > CHOICES_MAX {
            gone.extend(self.forget_oldest());
        }
        (true, gone)
    }

    /// The conversation that a request goes on with.
    pub fn find(&self, request: &Remembered, hint: Option<Hint>) -> Option<ConversationId> {
        let (opening, answer) = (request.opening()?, Some(request.answer_key()?));
        let found = [answer, None].into_iter().find_map(|answer| self.names.get(&(hint, opening, answer)));
        self.slots.get(found?).map(|slot| slot.conversation)
    }

    /// A request of this conversation is kept again, and what is too old goes. Returns the conversations that are
    /// not kept here any more.
    pub fn seen(&mut self, turn: &Turn<'_>, answer: Option<FirstAnswer>) -> Vec<ConversationId> {
        let mut gone = Vec::new();
        if let Some(opening) = turn.trace.received.opening() {
            for answer in [answer, None] {
                let name = (turn.hint, opening, answer);
                let slot = self.names.get(&name).and_then(|id| self.slots.get(id));
                if slot.is_some_and(|slot| slot.conversation == turn.id) {
                    gone.extend(self.forget(&name));
                }
            }
        }
        while self.slots.values().next().is_some_and(|slot| turn.sent.since(slot.last_sent) > LIFE_MS) {
            gone.extend(self.forget_oldest());
        }
        gone
    }

    pub fn forget_oldest(&mut self) -> Option<ConversationId> {
        let oldest = self.slots.values().next().map(|slot| slot.name)?;
        self.forget(&oldest)
    }

    fn forget(&mut self, name: &ChoiceName) -> Option<ConversationId> {
        let slot = self.names.remove(name).and_then(|id| self.slots.remove(&id))?;
        self.bytes -= CHOICE_BYTES;
        for part in slot.parts {
            self.bytes -= size_of_val(&part);
            self.shared.release(part);
        }
        Some(slot.conversation)
    }
}
