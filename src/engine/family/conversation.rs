//! The trace that a request leaves behind for the next one of its conversation.
//!
//! A [`Trace`] never changes, but for what its answer adds; a conversation is a row of traces, each replaced by
//! the one that continues it. What holds for all of them is in the [`Conversation`] they share.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard};

use super::arrival::Arrival;
use crate::engine::answer::usage::Usage;
use crate::engine::cache::breakpoints::Breakpoint;
use crate::engine::cache::breaks::{Answered, Sent};
use crate::engine::cache::entry::{Parameters, Probes};
use crate::engine::request::prefix::Subject;
use crate::engine::request::recall::{InParts, Reading, Remembered, Shared};
use crate::engine::respell::canonical::{Choice, Order, Pins};
use crate::engine::respell::echo::Spelling;
use crate::engine::words::{Layer, Moment};

/// So many turns in a row may write what the next does not read, before nothing more is written.
const LOSSES_MAX: u32 = 2;

/// One request as it came and as it went out.
#[derive(Debug)]
pub struct Trace {
    pub received: Arc<Remembered>,
    /// The request that went out, less the markers that were added.
    forwarded: Forwarded,
    pub conversation: Arc<Conversation>,
    /// Where the forwarded request asked for cache entries, in the order of the cache.
    pub breakpoints: Vec<Breakpoint>,
    pub parameters: Parameters,
    /// True if an aligned request in the place of this one would have been spelt as this one came.
    imagined: OnceLock<bool>,
    sent: OnceLock<Moment>,
    begun: OnceLock<Moment>,
    answer: OnceLock<Answer>,
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

/// The state that all requests of one conversation share.
#[derive(Debug, Default)]
pub struct Conversation {
    /// The spelling, if the model's thinking is bound to it and the conversation was seen from its start.
    choice: Option<RwLock<Choice>>,
    /// Its first request came to us too: nobody else has put it on another prefix.
    from_start: bool,
    /// A turn of it was put on its parent's prefix, and accepted.
    forked: AtomicBool,
    /// A refused request was sent once more as it came.
    fell_back: AtomicBool,
    /// True once a request was accepted as it came but not as we made it: from then on all go out as they came.
    stood_down: AtomicBool,
    /// Turns in a row that lost what the one before had cached, and the first layer that was lost.
    losses: Mutex<Option<(u32, Layer)>>,
    /// How its tools and inputs go out, if its client spells them anew each turn.
    spelling: Mutex<Option<Spelling>>,
}

impl Trace {
    pub fn new(
        arrival: &Arrival,
        forwarded: Arc<Remembered>,
        conversation: Arc<Conversation>,
        breakpoints: Vec<Breakpoint>,
    ) -> Trace {
        Trace::with(arrival, forwarded.into(), conversation, breakpoints, arrival.parameters.clone())
    }

    /// Returns the trace of a request whose parameters are not those that came.
    pub fn with(
        arrival: &Arrival,
        forwarded: Forwarded,
        conversation: Arc<Conversation>,
        breakpoints: Vec<Breakpoint>,
        parameters: Parameters,
    ) -> Trace {
        Trace {
            received: Arc::clone(&arrival.received),
            parameters,
            forwarded,
            conversation,
            breakpoints,
            imagined: OnceLock::new(),
            sent: OnceLock::new(),
            begun: OnceLock::new(),
            answer: OnceLock::new(),
        }
    }

    /// Returns the reading of the forwarded request.
    pub fn reading(&self) -> &Reading {
        self.forwarded.reading()
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

    /// Returns the part that this shares with others, and keeps in memory with them.
    pub fn shared(&self) -> Option<&Shared> {
        match &self.forwarded {
            Forwarded::Whole(_) => None,
            Forwarded::InParts(request) => Some(request.shared()),
        }
    }

    /// Where the cache looks for entries of the forwarded request.
    pub fn probes(&self) -> Probes<'_> {
        Probes::of(self.reading().anatomy(), self.reading().chain(), &self.breakpoints)
    }

    /// The request as a break is judged by. `subject` is what was forwarded.
    pub fn as_sent<'a>(&'a self, subject: Subject<'a>) -> Sent<'a> {
        let breakpoints = &self.breakpoints;
        Sent { subject, parameters: &self.parameters, breakpoints, at: self.sent_at() }
    }

    /// The request goes out.
    pub fn sent(&self, now: Moment) {
        let _ = self.sent.set(now);
    }

    /// When it went out.
    pub fn sent_at(&self) -> Moment {
        self.sent.get().copied().unwrap_or_default()
    }

    /// Returns the request as it was sent, with its answer, once that was billed.
    pub fn as_answered<'a>(&'a self, forwarded: &'a Remembered) -> Option<Answered<'a>> {
        let usage = self.answer()?.usage?;
        Some(Answered { sent: self.as_sent(forwarded.as_subject()), begun: self.begun.get().copied(), usage })
    }

    /// The answer has begun.
    pub fn begun(&self, now: Moment) {
        let _ = self.begun.set(now);
    }

    /// Notes whether an aligned request in the place of this one would have been spelt as this one came.
    pub fn imagine(&self, as_it_came: bool) {
        let _ = self.imagined.set(as_it_came);
    }

    /// Returns true if this went out in the spelling that it came in, or would have.
    pub fn is_as_it_came(&self, imagined: bool) -> bool {
        if imagined {
            return self.imagined.get().is_some_and(|as_it_came| *as_it_came);
        }
        self.whole().is_some_and(|sent| Arc::ptr_eq(sent, &self.received))
    }

    /// Returns true if `request` goes on where this one ended, rather than starting anew or from an earlier turn.
    /// `hinted`: the client says that both are of one session and agent.
    pub fn is_continued_by(&self, request: &Remembered, hinted: bool) -> bool {
        let turns = (self.received.anatomy().messages.len(), request.anatomy().messages.len());
        // Several turns are no coincidence: then the first message itself was rewritten.
        turns.0 < turns.1 && (self.received.starts_like(request) || (hinted && turns.0 >= 3))
    }

    pub fn answered(&self, answer: Answer) {
        let _ = self.answer.set(answer);
    }

    pub fn answer(&self) -> Option<&Answer> {
        self.answer.get()
    }

    /// About how much memory this takes, beside what it shares.
    pub fn memory_bytes(&self) -> usize {
        let forwarded = match &self.forwarded {
            Forwarded::Whole(request) if Arc::ptr_eq(&self.received, request) => 0,
            Forwarded::Whole(request) => request.memory_bytes(),
            Forwarded::InParts(request) => request.memory_bytes(),
        };
        let choice = self.conversation.choice().map_or(0, |choice| choice.bytes());
        let spelling = self.conversation.spelling().as_ref().map_or(0, Spelling::memory_bytes);
        size_of::<Trace>() + self.received.memory_bytes() + forwarded + choice + spelling
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
        Conversation { choice: choice.map(RwLock::new), from_start, ..Conversation::default() }
    }

    /// A conversation that opens like this one: what was refused there would be refused here too.
    pub fn again(&self, choice: Option<Choice>, from_start: bool) -> Conversation {
        let again = Conversation::new(choice, from_start);
        again.fell_back.store(self.fell_back.load(Relaxed), Relaxed);
        again.stood_down.store(self.is_stood_down(), Relaxed);
        again
    }

    pub fn choice(&self) -> Option<RwLockReadGuard<'_, Choice>> {
        self.choice.as_ref().map(|choice| choice.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn pin(&self, pins: Pins) {
        if let Some(choice) = &self.choice
            && !pins.is_empty()
        {
            choice.write().unwrap_or_else(PoisonError::into_inner).pin(pins);
        }
    }

    /// How its tools and inputs go out, if its client spells something anew each turn.
    pub fn spelling(&self) -> MutexGuard<'_, Option<Spelling>> {
        self.spelling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request of it did not go out as it came, but so.
    pub fn respelt(&self, request: &Remembered) {
        let mut spelling = self.spelling();
        if !spelling.as_ref().is_some_and(|spelling| spelling.is_of(request)) {
            *spelling = Some(Spelling::of(request));
        }
    }

    /// Which spelling is the one for it, where the tenant's is this.
    pub fn order(&self, tenants: Order) -> Order {
        self.choice().map_or(tenants, |choice| choice.order())
    }

    /// Returns true if its thinking is bound to nothing but what its client sends, as far as forkpoint goes.
    pub fn is_its_own(&self) -> bool {
        self.from_start && !self.was_forked()
    }

    pub fn forked(&self) {
        self.forked.store(true, Relaxed);
    }

    pub fn was_forked(&self) -> bool {
        self.forked.load(Relaxed)
    }

    /// A turn drifted from the one before, and lost what that had cached from this layer on.
    pub fn lost(&self, layer: Layer) {
        let mut losses = self.losses.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, first) = losses.unwrap_or((0, layer));
        *losses = Some((count.saturating_add(1), first.min(layer)));
    }

    /// A turn extended the one before.
    pub fn extended(&self) {
        *self.losses.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The layer from which on nothing is read again, as far as can be told.
    pub fn unread_from(&self) -> Option<Layer> {
        let losses = self.losses.lock().unwrap_or_else(PoisonError::into_inner);
        losses.filter(|(count, _)| *count >= LOSSES_MAX).map(|(_, layer)| layer)
    }

    /// Returns true if a refused request may be sent once more as it came; asked once, it may not be again.
    pub fn may_fall_back(&self) -> bool {
        !self.fell_back.swap(true, Relaxed)
    }

    pub fn stand_down(&self) {
        self.stood_down.store(true, Relaxed);
    }

    pub fn is_stood_down(&self) -> bool {
        self.stood_down.load(Relaxed)
    }
}
