//! The outlines of requests whose body had to go: what their conversation's next turn lost of the cache, and why, can
//! still be said.
//!
//! An outline is digests and places, a small part of the body. So outlines have a room of their own, and last for many
//! more conversations than bodies do.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::conversation::{Outcome, Trace};
use super::recent::{Hint, RecentId};
use crate::engine::cache::breakpoints::Breakpoint;
use crate::engine::cache::breaks::{Answered, Sent};
use crate::engine::cache::entry::Parameters;
use crate::engine::request::recall::{FirstAnswer, Opening, Reading, Remembered};

/// Of what recent bodies may take, this part may be outlines.
const SHARE_OF_OUTLINES: usize = 2;
/// No cache entry lives longer after its last use.
const LIFE_MS: u64 = 3_600_000;
/// The bytes that an outline takes beside what was read of its request: parameters, outcome, its slots in the maps.
const OUTLINE_BYTES: usize = 1_024;

/// The key by which a conversation is found again. Without an answer: its first request was the last that was kept.
type Name = (Option<Hint>, Opening, Option<FirstAnswer>);

/// A request as it went out, without its bytes.
#[derive(Debug)]
pub struct Outline {
    sent: Arc<Reading>,
    parameters: Parameters,
    breakpoints: Vec<Breakpoint>,
}

/// The request that another continues, of which only the outline is known.
#[derive(Clone, Debug)]
pub struct Faded {
    pub id: RecentId,
    pub outline: Arc<Outline>,
    pub outcome: Outcome,
}

impl Outline {
    fn of(trace: &Trace) -> Outline {
        Outline {
            sent: trace.shared_reading(),
            parameters: trace.parameters.clone(),
            breakpoints: trace.breakpoints.clone(),
        }
    }

    /// Returns what was read of the request.
    pub fn reading(&self) -> &Reading {
        &self.sent
    }

    /// Returns the request as it was sent, with its answer, once that was billed.
    pub fn as_answered(&self, outcome: &Outcome) -> Option<Answered<'_>> {
        let usage = outcome.answer.as_ref()?.usage?;
        let subject = self.sent.without_bytes();
        let sent =
            Sent { subject, parameters: &self.parameters, breakpoints: &self.breakpoints, at: outcome.sent };
        Some(Answered { sent, begun: outcome.begun, usage })
    }

    fn memory_bytes(&self) -> usize {
        OUTLINE_BYTES + self.sent.memory_bytes()
    }
}

/// The outlines of one tenant's requests.
#[derive(Debug, Default)]
pub struct Outlines {
    /// By the order in which their requests came.
    slots: BTreeMap<RecentId, OutlineSlot>,
    names: HashMap<Name, RecentId>,
    bytes: usize,
    /// True once one had to go before its time.
    has_forgotten: bool,
}

#[derive(Debug)]
struct OutlineSlot {
    name: Name,
    outline: Arc<Outline>,
    outcome: Outcome,
    /// Another conversation of the same name was kept meanwhile, so that it is not known which of them goes on.
    is_ambiguous: bool,
}

impl Outlines {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true if a conversation was forgotten for want of room.
    pub fn has_forgotten(&self) -> bool {
        self.has_forgotten
    }

    /// Keeps the outline of a request whose body goes. `room`: what recent bodies may take.
    pub(super) fn keep(
        &mut self,
        id: RecentId,
        trace: &Trace,
        (hint, answer): (Option<Hint>, Option<FirstAnswer>),
        outcome: Outcome,
        room: usize,
    ) {
        let Some(opening) = trace.received.opening() else { return };
        let now = outcome.sent;
        let name = (hint, opening, answer);
        let outline = Arc::new(Outline::of(trace));
        let rival = self.names.get(&name).copied().and_then(|rival| self.remove(rival));
        let is_rival =
            |rival: &OutlineSlot| rival.is_ambiguous || rival.outline.sent.chain() != outline.sent.chain();
        let is_ambiguous = answer.is_none() && rival.as_ref().is_some_and(is_rival);
        self.bytes += outline.memory_bytes();
        self.names.insert(name, id);
        self.slots.insert(id, OutlineSlot { name, outline, outcome, is_ambiguous });
        while self.slots.values().next().is_some_and(|slot| now.since(slot.outcome.sent) > LIFE_MS) {
            self.remove_oldest();
        }
        while self.bytes > room / SHARE_OF_OUTLINES && self.forget_oldest() {}
    }

    /// The request that another continues, if its outline is kept.
    pub fn find(&self, request: &Remembered, hint: Option<Hint>) -> Option<Faded> {
        let (opening, answer) = (request.opening()?, Some(request.answer_key()?));
        let mut found =
            [answer, None].into_iter().filter_map(|answer| self.names.get(&(hint, opening, answer)));
        let id = *found.next()?;
        let slot = self.slots.get(&id).filter(|slot| !slot.is_ambiguous)?;
        let turns = |reading: &Reading| reading.anatomy().messages.len();
        let is_continued = turns(slot.outline.reading()) < turns(request);
        is_continued.then(|| Faded { id, outline: Arc::clone(&slot.outline), outcome: slot.outcome.clone() })
    }

    pub(super) fn outcome_mut(&mut self, id: RecentId) -> Option<&mut Outcome> {
        self.slots.get_mut(&id).map(|slot| &mut slot.outcome)
    }

    /// Forgets the outline of a request that was continued.
    pub(super) fn continued(&mut self, id: RecentId) {
        self.remove(id);
    }

    fn remove(&mut self, id: RecentId) -> Option<OutlineSlot> {
        let slot = self.slots.remove(&id)?;
        self.bytes -= slot.outline.memory_bytes();
        if self.names.get(&slot.name) == Some(&id) {
            self.names.remove(&slot.name);
        }
        Some(slot)
    }

    /// Forgets the oldest for want of room; `false` if there is none.
    pub(super) fn forget_oldest(&mut self) -> bool {
        let is_gone = self.remove_oldest();
        self.has_forgotten |= is_gone;
        is_gone
    }

    fn remove_oldest(&mut self) -> bool {
        self.slots.keys().next().copied().and_then(|id| self.remove(id)).is_some()
    }
}
