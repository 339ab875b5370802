//! The only place that measures: one record per exchange, made and reported exactly once.

mod arms;
mod build;
mod facts;
mod money;
mod sinks;

pub use arms::warn_of_stand_down;
pub use facts::Facts;
pub use sinks::{show_store, start_sinks};

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::engine::answer::turn::{Block, Turn};
use crate::engine::answer::usage::Usage;
use crate::engine::family::fanout::ForkId;
use crate::engine::request::clients::NONE;
use crate::engine::words::{Ending, Endpoint, Moment, TenantId};
use crate::metrics::{Admit, Metrics};
use crate::report::traces::Trace;
use crate::report::{ExchangeRecord, ExchangeSinks, RecordingDraft, report};

use super::clock::Clock;
use super::family::{Family, Fanout};
use super::hold::{Gate, Pass};
use super::memo::Memo;
use build::add_verdict;

static ROLE: HeaderName = HeaderName::from_static("x-forkpoint-role");
static PLAN: HeaderName = HeaderName::from_static("x-forkpoint-plan");
static REASON: HeaderName = HeaderName::from_static("x-forkpoint-reason");
static PREFIX: HeaderName = HeaderName::from_static("x-forkpoint-prefix");
static BYTES_SHARED: HeaderName = HeaderName::from_static("x-forkpoint-bytes-shared");
static HELD_MS: HeaderName = HeaderName::from_static("x-forkpoint-held-ms");
static FORK: HeaderName = HeaderName::from_static("x-forkpoint-fork");

/// Says on the answer what was done and why.
pub fn mark(headers: &mut HeaderMap, recorder: &Recorder) {
    let facts = &recorder.facts;
    headers.insert(&ROLE, HeaderValue::from_static(facts.role.as_str()));
    headers.insert(&PLAN, HeaderValue::from_static(facts.plan.as_str()));
    headers.insert(&REASON, HeaderValue::from_static(facts.reason()));
    if let Some(prefix) = facts.prefix.and_then(|prefix| HeaderValue::try_from(prefix.to_string()).ok()) {
        headers.insert(&PREFIX, prefix);
        headers.insert(&BYTES_SHARED, HeaderValue::from(facts.shared_bytes));
    }
    if facts.endpoint == Endpoint::Messages {
        headers.insert(&HELD_MS, HeaderValue::from(facts.held_ms()));
    }
    if let Some(fork) = recorder.fork_id().and_then(|fork| HeaderValue::try_from(fork.to_string()).ok()) {
        headers.insert(&FORK, fork);
    }
}

/// Travels with the exchange and reports it once: in `finish`, or when dropped (the client left).
pub struct Recorder {
    pub facts: Facts,
    /// The record for the store, if the request is anybody's.
    pub memo: Option<Memo>,
    pub family: Option<Family>,
    /// The right to write, given back when the answer begins, or comes to nothing.
    pub pass: Option<Pass>,
    /// At the gate right now.
    pub waits: bool,
    /// The draft of its line in the recording, if there is one.
    pub tape: Option<RecordingDraft>,
    /// Its trace, if it is kept.
    trace: Option<Trace>,
    gate: Arc<Gate>,
    metrics: Arc<Metrics>,
    clock: Arc<Clock>,
    begun: bool,
    done: bool,
}

impl Recorder {
    pub fn new(
        metrics: Arc<Metrics>,
        clock: Arc<Clock>,
        gate: Arc<Gate>,
        sinks: ExchangeSinks,
        facts: Facts,
    ) -> Recorder {
        let (memo, family, pass) = (None, None, None);
        let (waits, begun, done) = (false, false, false);
        let ExchangeSinks { draft: tape, trace } = sinks;
        Recorder { facts, memo, family, pass, waits, tape, trace, gate, metrics, clock, begun, done }
    }

    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The request goes upstream now.
    pub fn sent(&mut self, now: Moment) {
        if let Some(memo) = &mut self.memo {
            memo.sent(now);
        }
    }

    pub fn fork_id(&self) -> Option<ForkId> {
        self.family.as_ref().and_then(Family::fork_id)
    }

    pub fn tenant(&self) -> Option<&TenantId> {
        self.facts.sender.as_ref().and_then(|sender| sender.tenant.as_ref())
    }

    /// The head of the upstream's answer has come: what the client is told about its request is known now.
    pub fn answered(&mut self, status: StatusCode, headers: &HeaderMap) {
        self.facts.answered(status, headers);
        if let Some((memo, trace)) = self.memo.as_ref().and_then(|memo| Some((memo, memo.trace.as_ref()?))) {
            let before = memo.arrival.before.as_ref().map(|before| &*before.trace);
            self.facts.traced(trace, before);
        }
    }

    /// The upstream took the request, or did not.
    pub fn judged(&mut self) {
        if !self.facts.status.is_some_and(|status| status.is_success()) {
            // It writes nothing: the next one leads.
            self.pass = None;
            return self.release();
        }
        if let Some(classes) = self.memo.as_mut().and_then(Memo::accepted) {
            self.metrics.sighted(classes);
        }
        self.settle();
    }

    /// Nothing came of the request.
    fn release(&mut self) {
        let (Some(memo), Some(family)) = (&self.memo, &mut self.family) else { return };
        if let Some(tenant) = memo.tenant() {
            family.release(&tenant);
        }
    }

    /// The family is told that the request was accepted.
    fn settle(&mut self) {
        let now = self.clock.now();
        let (Some(memo), Some(family)) = (&self.memo, &mut self.family) else { return };
        let (Some(trace), Some(tenant)) = (&memo.trace, memo.tenant()) else { return };
        let Facts { plan, forecast, .. } = self.facts;
        self.facts.child_turn = family.accepted(&tenant, trace, &self.facts.betas, plan, forecast, now);
    }

    /// Returns true if anybody wants to know of finished blocks.
    pub fn listens(&self) -> bool {
        self.family.as_ref().is_some_and(Family::listens)
    }

    /// A block of the answer has finished.
    pub fn block(&mut self, message_id: Option<&str>, block: Block) {
        let now = self.clock.now();
        let (Some(memo), Some(family)) = (&self.memo, &mut self.family) else { return };
        if let Some(tenant) = memo.tenant() {
            family.block(&tenant, message_id, block, now);
        }
    }

    /// The first content of the answer has come: what the request wrote can be read from now on.
    pub fn begun(&mut self, usage: Option<Usage>) {
        if !self.facts.status.is_some_and(|status| status.is_success())
            || std::mem::replace(&mut self.begun, true)
        {
            return;
        }
        if let Some(draft) = &mut self.tape {
            draft.begun();
        }
        if let Some(memo) = &mut self.memo {
            memo.begun(usage, self.clock.now());
        }
        if let Some(pass) = &mut self.pass {
            pass.begun();
        }
    }

    pub fn finish(mut self, ending: Ending, turn: Option<Turn>) {
        if let Some(record) = self.end(ending, turn) {
            let sinks = self.sinks();
            report(record, &self.metrics, sinks);
        }
    }

    /// Settles everything that later requests may depend on, and makes the record; only the first call does.
    fn end(&mut self, ending: Ending, turn: Option<Turn>) -> Option<ExchangeRecord> {
        if std::mem::replace(&mut self.done, true) {
            return None;
        }
        let now = self.clock.now();
        if let (false, Some(memo)) = (self.begun, &mut self.memo) {
            // Whatever was billed: an answer without content has written nothing that anybody can read.
            memo.abandon();
        }
        if self.facts.status.is_none() {
            self.release();
        }
        let fanout = self.seal_fan_out(turn.as_ref(), now);
        self.learn_hold(turn.as_ref());
        let finish = |memo: &mut Memo| memo.finished(turn.as_ref(), now);
        let verdict = self.memo.as_mut().map(finish).unwrap_or_default();
        let mut record = self.record(ending, turn.as_ref(), fanout);
        add_verdict(&mut record, verdict);
        if let Some(turn) = &turn {
            self.add_child(&mut record.details, turn, now);
        }
        if let Some(usage) = turn.as_ref().and_then(|turn| turn.usage) {
            self.add_money(&mut record, &usage, now);
        }
        if let Some(mut draft) = self.tape.take() {
            self.complete(&mut draft, &mut record, turn.as_ref());
            self.tape = Some(draft);
        }
        Some(record)
    }

    fn sinks(&mut self) -> ExchangeSinks {
        ExchangeSinks { draft: self.tape.take(), trace: self.trace.take() }
    }

    /// The answer has ended: a fan-out is sealed, or was none.
    fn seal_fan_out(&mut self, turn: Option<&Turn>, now: Moment) -> Option<Fanout> {
        let (memo, family) = (self.memo.as_ref()?, self.family.as_mut()?);
        family.ended(&*memo.tenant()?, turn.unwrap_or(&Turn::default()), now)
    }

    /// Tells the gate whether a wait behind an answer that was not streamed was long enough.
    fn learn_hold(&mut self, turn: Option<&Turn>) {
        let lesson = self.pass.take().and_then(|pass| pass.let_go.lesson.clone());
        if let (Some(lesson), Some(usage)) = (lesson, turn.and_then(|turn| turn.usage)) {
            self.gate.learned(lesson, usage.cache_read > 0);
        }
    }

    /// Returns the names shown for model and client. A new name takes one of the bounded places only once the
    /// upstream accepted it.
    fn names(&self) -> (String, Option<String>) {
        let admit = match self.facts.status {
            Some(status) if status.is_success() => Admit::New,
            _ => Admit::KnownOnly,
        };
        let model = self.facts.model.as_deref().unwrap_or(NONE);
        let client = self.facts.sender.as_ref().map(|sender| &*sender.client);
        let client = client.map(|client| self.metrics.clients.label(client, admit).to_owned());
        (self.metrics.models.label(model, admit).to_owned(), client)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if let Some(record) = self.end(Ending::ClientLeft, None) {
            report(record, &self.metrics.clone(), self.sinks());
        }
    }
}
