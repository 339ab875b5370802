//! The only place that measures: one record per exchange, written exactly once.
//!
//! The log line holds no prompt text, no credential, no path and no raw id: endpoints, roles, plans,
//! reasons and endings are enums, sessions and agents are digests, models and clients are bounded names.

mod arms;
mod count;
mod facts;
mod line;
mod money;
mod told;
pub mod traces;
mod witnesses;

pub use arms::warn_of_stand_down;
pub use count::show_store;
pub use facts::Facts;
pub use told::{Line, Told};
pub use witnesses::Witnesses;

use std::sync::Arc;
use std::time::Instant;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::engine::clients::NONE;
use crate::engine::fanout::ForkId;
use crate::engine::turn::{Block, Turn};
use crate::engine::usage::Usage;
use crate::engine::words::{Ending, Endpoint, Moment, TenantId};
use crate::metrics::{Admit, Metrics};

use super::clock::Clock;
use super::family::{Family, Fanout};
use super::hold::{Gate, Pass};
use super::memo::{Memo, Verdict};
use super::recording::Tape;
use money::Bill;
use traces::Traced;

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

/// Travels with the exchange and writes its record once: in `finish`, or when dropped (the client left).
pub struct Recorder {
    pub facts: Facts,
    /// What the store is told, if the request is anybody's.
    pub memo: Option<Memo>,
    pub family: Option<Family>,
    /// The right to write, given back when the answer begins, or comes to nothing.
    pub pass: Option<Pass>,
    /// At the gate right now.
    pub waits: bool,
    /// What the recording is told, if there is one.
    pub tape: Option<Tape>,
    /// Its trace, if it is kept.
    span: Option<Traced>,
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
        (tape, span): (Option<Tape>, Option<Traced>),
        facts: Facts,
    ) -> Recorder {
        let (memo, family, pass) = (None, None, None);
        let (waits, begun, done) = (false, false, false);
        Recorder { facts, memo, family, pass, waits, tape, span, gate, metrics, clock, begun, done }
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

    /// Whether anybody wants to know of finished blocks.
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
        self.tape.iter_mut().for_each(Tape::begun);
        if let Some(memo) = &mut self.memo {
            memo.begun(usage, self.clock.now());
        }
        if let Some(pass) = &mut self.pass {
            pass.begun();
        }
    }

    pub fn finish(mut self, ending: Ending, turn: Option<Turn>) {
        if let Some(ended) = self.end(ending, turn) {
            self.tell(&ended);
        }
    }

    /// Everything that later requests may depend on; nothing if that was done.
    fn end(&mut self, ending: Ending, turn: Option<Turn>) -> Option<Ended> {
        if std::mem::replace(&mut self.done, true) {
            return None;
        }
        let now = self.clock.now();
        if let Some(memo) = self.memo.as_mut().filter(|_| !self.begun) {
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
        if let Some(turn) = &turn {
            self.count_arms(turn, now);
        }
        let usage = turn.as_ref().and_then(|turn| turn.usage);
        let memo = self.memo.as_mut();
        let otherwise = usage.zip(memo).map(|(usage, memo)| memo.settle_elsewhere(&usage, now));
        let price = self.memo.as_ref().and_then(|memo| memo.price().cloned());
        let recalled = |memo: &Memo| (memo.store().name(), memo.arrival.predecessor().is_some());
        Some(Ended {
            ending,
            at: Instant::now(),
            verdict,
            fanout,
            fork: self.fork_id(),
            kin: self.family.as_ref().map(|family| family.why),
            recalled: self.memo.as_ref().map(recalled),
            bill: usage.zip(price).map(|(usage, price)| Bill {
                as_sent: otherwise.map_or(usage, |otherwise| otherwise.as_sent),
                billed: usage,
                imagined: otherwise.and_then(|otherwise| otherwise.aligned),
                forecast: self.forecast(),
                price,
            }),
            turn,
        })
    }

    /// Counts the exchange and writes its line.
    fn tell(&mut self, ended: &Ended) {
        let Ended { turn, verdict, fanout, .. } = ended;
        let (turn, fanout) = (turn.as_ref(), fanout.as_ref());
        let (model, client) = self.names();
        let series = self.series(&model, client.as_deref());
        self.count(&series, client.as_deref(), turn, verdict);
        self.count_family(&series, turn, fanout);
        if let Some((store, known)) = ended.recalled {
            series.recall(&self.metrics, store, known);
        }
        let money = ended.bill.as_ref().map(|bill| self.count_money(&series, bill)).unwrap_or_default();
        self.facts.id = line::next_id();
        let names = (&*model, client.as_deref());
        let tape = self.tape.take();
        let told = self.told(names, ended, money);
        told.log();
        if let Some(tape) = tape {
            self.tape(tape, &told, turn);
        }
        self.trace(names, turn, verdict);
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

    /// What is shown for the model and the client. A new name takes one of the bounded places only once the
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
        if let Some(ended) = self.end(Ending::ClientLeft, None) {
            self.tell(&ended);
        }
    }
}

/// An exchange that has ended, and all that there is to tell of it beside its facts.
struct Ended {
    ending: Ending,
    at: Instant,
    turn: Option<Turn>,
    verdict: Verdict,
    fanout: Option<Fanout>,
    /// The fan-out that it belongs to, and why or why not.
    fork: Option<ForkId>,
    kin: Option<&'static str>,
    /// Which store was asked for its conversation, and whether that was known.
    recalled: Option<(&'static str, bool)>,
    bill: Option<Bill>,
}
