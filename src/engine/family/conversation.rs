//! The trace that a request leaves behind for the next one of its conversation.
//!
//! A [`Trace`] never changes; what becomes of its request is its [`Outcome`]. A conversation is a row of traces, each
//! replaced by the one that continues it. What holds for all of them is their [`Conversation`]. All three are plain
//! values: [`Recent`](super::recent::Recent) keeps them, and a request works on copies of what it has found there.

mod saved;

pub use saved::{SavedThread, ThreadBytes};

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::arrival::Arrival;
use super::fanout::ChildName;
use super::thread::HeldAnswer;
use crate::engine::answer::usage::Usage;
use crate::engine::cache::breakpoints::Breakpoint;
use crate::engine::cache::breaks::{Answered, Sent};
use crate::engine::cache::entry::{Parameters, Probes};
use crate::engine::cache::habits::READ_COVERS;
use crate::engine::cache::worlds::Lead;
use crate::engine::request::prefix::Subject;
use crate::engine::request::recall::{InParts, Reading, Remembered, Shared};
use crate::engine::respell::canonical::{Choice, Order, Pins};
use crate::engine::words::{Layer, Moment, Ttl};

/// So many turns in a row may write what the next does not read, before nothing more is written.
const LOSSES_MAX: u32 = 2;

/// One request as it came and as it went out.
#[derive(Debug)]
pub struct Trace {
    pub received: Arc<Remembered>,
    /// The request that went out, less the markers that were added.
    forwarded: Forwarded,
    /// The breakpoints of the forwarded request, in the order of the cache.
    pub breakpoints: Vec<Breakpoint>,
    pub parameters: Parameters,
}

/// The outcome of a request that went out.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    pub sent: Moment,
    /// True if it went on with a conversation and found nothing of its messages in the cache.
    pub resumes: bool,
    /// True if an aligned request in its place would have been spelt as it came.
    pub would_be_as_it_came: bool,
    /// The moment when its answer began.
    pub begun: Option<Moment>,
    /// How much sooner it would have ended in the other worlds.
    pub lead: Lead,
    /// Its answer, once that was billed.
    pub answer: Option<Answer>,
    /// Its answer, if the server holds that.
    pub held: Option<HeldAnswer>,
    /// The child whose turn it is, if it is one.
    pub child: Option<ChildName>,
    /// True if it asked for thinking of another prefix to be dropped, which its client has not done.
    pub drops_lost: bool,
}

/// A request as it went out.
#[derive(Debug)]
pub enum Forwarded {
    /// The received one itself if nothing was respelt.
    Whole(Arc<Remembered>),
    /// On its parent's prefix, which is not copied for every child.
    InParts(InParts),
}

impl From<Arc<Remembered>> for Forwarded {
    fn from(request: Arc<Remembered>) -> Forwarded {
        Forwarded::Whole(request)
    }
}

/// The answer that came back.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    pub message_id: Option<String>,
    pub usage: Option<Usage>,
}

/// Names a conversation of one tenant; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConversationId(pub u64);

/// The state that all requests of one conversation share.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Conversation {
    /// None if it starts with the request at hand.
    #[serde(skip)]
    pub id: Option<ConversationId>,
    /// The spelling, if the model's thinking is bound to it and the conversation was seen from its start.
    #[serde(skip)]
    choice: Option<Arc<Choice>>,
    /// A string `system` goes out as one text block.
    pub system_is_block: bool,
    /// Its first request came to us too: it was not put on another prefix elsewhere.
    from_start: bool,
    /// A turn of it was put on its parent's prefix, and accepted.
    was_forked: bool,
    /// A turn of it was changed, and accepted.
    was_changed: bool,
    /// A refused request was sent once more as it came.
    fell_back: bool,
    /// True once a request was accepted as it came but not as we made it: from then on all go out as they came.
    stood_down: bool,
    /// Its client was asked for the whole of it, which the server may have held otherwise. All turns after that go out
    /// as they came.
    #[serde(default)]
    asked_whole: bool,
    /// Turns in a row that lost what the one before had cached, and the first layer that was lost.
    losses: Option<(u32, Layer)>,
    pauses: Pauses,
}

/// The turns of a conversation that came while what the one before wrote was there to be read, and those that came
/// later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pauses {
    in_time: u32,
    late: u32,
}

impl Pauses {
    /// With a turn that comes so long after the one before.
    pub fn with(self, pause_ms: u64) -> Pauses {
        let Pauses { in_time, late } = self;
        if pause_ms < Ttl::FiveMinutes.ms() {
            Pauses { in_time: in_time.saturating_add(1), late }
        } else {
            Pauses { in_time, late: late.saturating_add(1) }
        }
    }

    /// Returns true if the next turn will hardly come in time, as far as those before it tell.
    pub fn are_mostly_long(self) -> bool {
        self.late > self.in_time.saturating_mul(READ_COVERS)
    }
}

impl Trace {
    pub fn new(arrival: &Arrival, forwarded: Arc<Remembered>, breakpoints: Vec<Breakpoint>) -> Trace {
        Trace::with(arrival, forwarded.into(), breakpoints, arrival.parameters.clone())
    }

    /// Returns the trace of a request whose parameters are not those that came.
    pub fn with(
        arrival: &Arrival,
        forwarded: Forwarded,
        breakpoints: Vec<Breakpoint>,
        parameters: Parameters,
    ) -> Trace {
        Trace { received: Arc::clone(&arrival.received), parameters, forwarded, breakpoints }
    }

    /// Returns the reading of the forwarded request.
    pub fn reading(&self) -> &Reading {
        self.forwarded.reading()
    }

    /// Returns an outline of it, to be kept without the request.
    pub(super) fn shared_reading(&self) -> Arc<Reading> {
        match &self.forwarded {
            Forwarded::Whole(request) => Arc::clone(request.reading()),
            Forwarded::InParts(request) => Arc::clone(request.shared_reading()),
        }
    }

    /// The forwarded request with its bytes, which may have to be put together for that.
    pub fn forwarded(&self) -> Arc<Remembered> {
        match &self.forwarded {
            Forwarded::Whole(request) => Arc::clone(request),
            Forwarded::InParts(request) => Arc::new(request.whole()),
        }
    }

    /// The forwarded request, if it is kept as one.
    pub fn whole(&self) -> Option<&Arc<Remembered>> {
        match &self.forwarded {
            Forwarded::Whole(request) => Some(request),
            Forwarded::InParts(_) => None,
        }
    }

    /// The number of bytes that went out.
    pub fn sent_bytes(&self) -> usize {
        match &self.forwarded {
            Forwarded::Whole(request) => request.body().len(),
            Forwarded::InParts(request) => request.body_bytes(),
        }
    }

    /// Returns the part that this shares with others, and keeps in memory with them.
    pub fn shared(&self) -> Option<&Shared> {
        match &self.forwarded {
            Forwarded::Whole(_) => None,
            Forwarded::InParts(request) => Some(request.shared()),
        }
    }

    /// Returns where the cache looks for entries of the forwarded request.
    pub fn probes(&self) -> Probes<'_> {
        Probes::of(self.reading().anatomy(), self.reading().chain(), &self.breakpoints)
    }

    /// The request as a break is judged by. `subject` is what was forwarded.
    pub fn as_sent<'a>(&'a self, subject: Subject<'a>, at: Moment) -> Sent<'a> {
        Sent { subject, parameters: &self.parameters, breakpoints: &self.breakpoints, at }
    }

    /// Returns the request as it was sent, with its answer, once that was billed.
    pub fn as_answered<'a>(&'a self, forwarded: &'a Remembered, outcome: &Outcome) -> Option<Answered<'a>> {
        let usage = outcome.answer.as_ref()?.usage?;
        let sent = self.as_sent(forwarded.as_subject(), outcome.sent);
        Some(Answered { sent, begun: outcome.begun, usage })
    }

    /// Returns true if this went out in the spelling that it came in.
    pub fn is_as_it_came(&self) -> bool {
        self.whole().is_some_and(|sent| Arc::ptr_eq(sent, &self.received))
    }

    /// Returns true if the cache reads the same prompt in both, their breakpoints aside.
    pub fn has_prompt_of(&self, other: &Trace) -> bool {
        let same_words = Arc::ptr_eq(&self.received, &other.received) && self.is_as_it_came();
        (same_words && other.is_as_it_came() || self.reading().chain() == other.reading().chain())
            && self.parameters.scope() == other.parameters.scope()
    }

    /// Returns true if `request` goes on where this one ended, rather than starting anew or from an earlier turn.
    /// `hinted`: the client says that both are of one session and agent.
    pub fn is_continued_by(&self, request: &Remembered, hinted: bool) -> bool {
        let turns = (self.received.anatomy().messages.len(), request.anatomy().messages.len());
        // Several turns are no coincidence: then the first message itself was rewritten.
        turns.0 < turns.1 && (self.received.starts_like(request) || (hinted && turns.0 >= 3))
    }

    /// About how much memory this takes, beside what it shares.
    pub fn memory_bytes(&self) -> usize {
        let forwarded = match &self.forwarded {
            Forwarded::Whole(request) if Arc::ptr_eq(&self.received, request) => 0,
            Forwarded::Whole(request) => request.memory_bytes(),
            Forwarded::InParts(request) => request.memory_bytes(),
        };
        size_of::<Trace>() + self.received.memory_bytes() + forwarded
    }
}

impl Forwarded {
    fn reading(&self) -> &Reading {
        match self {
            Forwarded::Whole(request) => request,
            Forwarded::InParts(request) => request.reading(),
        }
    }
}

impl Conversation {
    /// `from_start`: this is its first request.
    pub fn new(choice: Option<Choice>, from_start: bool) -> Conversation {
        Conversation { choice: choice.map(Arc::new), from_start, ..Conversation::default() }
    }

    /// A conversation that opens like this one: what was refused there would be refused here too.
    pub fn again(&self, choice: Option<Choice>, from_start: bool) -> Conversation {
        let (fell_back, stood_down) = (self.fell_back, self.stood_down);
        Conversation { fell_back, stood_down, ..Conversation::new(choice, from_start) }
    }

    pub fn choice(&self) -> Option<&Choice> {
        self.choice.as_deref()
    }

    pub fn pin(&mut self, pins: Pins) {
        if let Some(choice) = &mut self.choice
            && !pins.is_empty()
        {
            Arc::make_mut(choice).pin(pins);
        }
    }

    /// Which spelling is the one for it, where the tenant's is this.
    pub fn order(&self, tenants: Order) -> Order {
        self.choice().map_or(tenants, Choice::order)
    }

    /// Returns true if its thinking is bound to nothing but what its client sends, as far as forkpoint goes.
    pub fn is_its_own(&self) -> bool {
        self.from_start && !self.was_forked
    }

    /// A turn of it was put on its parent's prefix, and accepted.
    pub fn forked(&mut self) {
        self.was_forked = true;
    }

    pub fn was_forked(&self) -> bool {
        self.was_forked
    }

    /// A turn of it was changed, and accepted.
    pub fn changed(&mut self) {
        self.was_changed = true;
    }

    /// Returns true if a turn of it was changed, so that the server may hold of it what its client has not sent.
    pub fn was_changed(&self) -> bool {
        self.was_changed
    }

    /// Returns true if its client may be asked for the whole of it; asked once, it may not be again.
    pub fn ask_whole(&mut self) -> bool {
        !std::mem::replace(&mut self.asked_whole, true)
    }

    pub fn is_asked_whole(&self) -> bool {
        self.asked_whole
    }

    /// A turn came so long after the one before.
    pub fn paused(&mut self, pause_ms: u64) {
        self.pauses = self.pauses.with(pause_ms);
    }

    pub fn pauses(&self) -> Pauses {
        self.pauses
    }

    /// A turn drifted from the one before, and lost what that had cached from this layer on.
    pub fn lost(&mut self, layer: Layer) {
        let (count, first) = self.losses.unwrap_or((0, layer));
        self.losses = Some((count.saturating_add(1), first.min(layer)));
    }

    /// A turn extended the one before.
    pub fn extended(&mut self) {
        self.losses = None;
    }

    /// The layer from which on nothing is read again, as far as is known.
    pub fn unread_from(&self) -> Option<Layer> {
        self.losses.filter(|(count, _)| *count >= LOSSES_MAX).map(|(_, layer)| layer)
    }

    /// Returns true if a refused request may be sent once more as it came; asked once, it may not be again.
    pub fn may_fall_back(&mut self) -> bool {
        !std::mem::replace(&mut self.fell_back, true)
    }

    pub fn stand_down(&mut self) {
        self.stood_down = true;
    }

    pub fn is_stood_down(&self) -> bool {
        self.stood_down
    }

    /// About how much memory this takes.
    pub fn memory_bytes(&self) -> usize {
        self.choice().map_or(0, Choice::bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_mostly_long_until_turns_in_time_outweigh_them() {
        const LATE: u64 = Ttl::FiveMinutes.ms();
        let first = Pauses::default();
        assert!(!first.are_mostly_long() && !first.with(LATE - 1).are_mostly_long());
        assert!(first.with(LATE).are_mostly_long(), "nothing tells that the next one will be in time");
        let mut pauses = first.with(LATE).with(0);
        for _ in 1..READ_COVERS {
            pauses = pauses.with(LATE);
            assert!(!pauses.are_mostly_long(), "what was read covers it: {pauses:?}");
        }
        assert!(pauses.with(LATE).are_mostly_long());
    }
}
