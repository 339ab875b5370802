//! The only place that measures: one record per exchange, written exactly once.
//!
//! The log line holds no prompt text, no credential, no path and no raw id: endpoints, roles, plans,
//! reasons and endings are enums, sessions and agents are digests, models and clients are bounded names.

mod arms;
mod count;
mod line;
mod money;
mod told;
pub mod traces;
mod witnesses;

pub use arms::warn_of_stand_down;
pub use count::show_store;
pub use told::{Line, Told};
pub use witnesses::Witnesses;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::engine::anatomy::{Anatomy, Layer};
use crate::engine::breakpoints::{self, Place, Skip};
use crate::engine::clients::NONE;
use crate::engine::conversation::Trace;
use crate::engine::fanout::ForkId;
use crate::engine::fork::{Forecast, Note};
use crate::engine::identify::Sender;
use crate::engine::prefix::PrefixHash;
use crate::engine::recall::Reading;
use crate::engine::turn::{Block, Turn};
use crate::engine::types::{BodyDigest, Ending, Endpoint, Moment, Plan, Reason, Role, TenantId, Why};
use crate::engine::usage::Usage;
use crate::metrics::{Admit, Metrics};

use super::Modes;
use super::clock::{Clock, millis};
use super::family::{Claims, Family, Fanout};
use super::hold::{Gate, Held, Pass};
use super::memo::Memo;
use super::recording::Tape;
use traces::Traced;

/// Longer than any request id; more is not one.
const REQUEST_ID_BYTES_MAX: usize = 128;

static REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
static ROLE: HeaderName = HeaderName::from_static("x-forkpoint-role");
static PLAN: HeaderName = HeaderName::from_static("x-forkpoint-plan");
static REASON: HeaderName = HeaderName::from_static("x-forkpoint-reason");
static PREFIX: HeaderName = HeaderName::from_static("x-forkpoint-prefix");
static BYTES_SHARED: HeaderName = HeaderName::from_static("x-forkpoint-bytes-shared");
static HELD_MS: HeaderName = HeaderName::from_static("x-forkpoint-held-ms");
static FORK: HeaderName = HeaderName::from_static("x-forkpoint-fork");

/// What is known about one exchange.
pub struct Facts {
    /// Its number, given when it is recorded.
    pub id: u64,
    /// The number of the configuration that it began with.
    pub generation: u64,
    pub endpoint: Endpoint,
    /// How much may be done to it.
    pub(super) modes: Option<Modes>,
    pub role: Role,
    pub plan: Plan,
    pub sender: Option<Sender>,
    /// What it says about its family.
    pub claims: Claims,
    /// What the gate did.
    pub hold: Option<Held>,
    /// What the gate would have saved, had it been asked.
    pub missed_tokens: Option<u64>,
    pub child_turn: Option<u64>,
    /// As the request listed them.
    pub betas: String,
    pub model: Option<String>,
    pub stream: bool,
    pub received: Option<BodyDigest>,
    pub sent: Option<BodyDigest>,
    pub received_bytes: Option<usize>,
    /// The prefix that other requests may share: everything before the messages.
    pub prefix: Option<PrefixHash>,
    /// How much of what goes out the conversation's last request brought too.
    pub shared_bytes: usize,
    pub markers_added: usize,
    /// It is a child for which nothing is to be written at its end.
    pub ends_without_tail: bool,
    pub started: Instant,
    pub sent_at: Option<Instant>,
    pub first_byte_at: Option<Instant>,
    pub read_time: Duration,
    pub align_time: Duration,
    pub fork_time: Duration,
    /// How long it waited for the end of its parent's answer.
    pub awaited: Duration,
    /// When it began to wait, for that or at the gate.
    pub waits_since: Option<Instant>,
    /// What was done to a forked child, beside putting it on its parent's prefix.
    pub notes: Vec<Note>,
    /// What a child was predicted to cost.
    pub forecast: Option<Forecast>,
    /// Why a child would not be forked in mode fork, or `none` if it would.
    pub would_fork: Option<&'static str>,
    /// Tokens that it would have read, had it gone out as it came.
    pub own_read: u64,
    pub observe_time: Duration,
    pub status: Option<StatusCode>,
    pub answer_bytes: u64,
    pub upstream_request_id: Option<String>,
    /// The reason of an answer of our own.
    pub fault: Option<&'static str>,
}

impl Facts {
    pub fn new(endpoint: Endpoint, generation: u64) -> Facts {
        Facts {
            id: 0,
            generation,
            endpoint,
            modes: None,
            role: Role::Plain,
            plan: Plan::Passthrough(Reason::Endpoint),
            sender: None,
            claims: Claims::default(),
            hold: None,
            missed_tokens: None,
            child_turn: None,
            betas: String::new(),
            model: None,
            stream: false,
            received: None,
            sent: None,
            received_bytes: None,
            prefix: None,
            shared_bytes: 0,
            markers_added: 0,
            ends_without_tail: false,
            started: Instant::now(),
            sent_at: None,
            first_byte_at: None,
            read_time: Duration::ZERO,
            align_time: Duration::ZERO,
            fork_time: Duration::ZERO,
            awaited: Duration::ZERO,
            waits_since: None,
            notes: Vec::new(),
            forecast: None,
            would_fork: None,
            own_read: 0,
            observe_time: Duration::ZERO,
            status: None,
            answer_bytes: 0,
            upstream_request_id: None,
            fault: None,
        }
    }

    /// What the body says about itself.
    pub fn learn(&mut self, body: &[u8], anatomy: &Anatomy) {
        self.model = anatomy.model(body).map(String::from);
        self.stream = anatomy.stream(body);
        if let (Some(sender), Some(user_id)) = (&mut self.sender, anatomy.user_id(body)) {
            sender.hint(&user_id);
        }
    }

    /// How the request goes out, as seen by the cache.
    pub fn traced(&mut self, trace: &Trace, before: Option<&Trace>) {
        let forwarded = trace.reading();
        self.prefix = Some(forwarded.chain().layer(forwarded.anatomy(), Layer::System));
        if self.plan == Plan::Forked {
            return;
        }
        let shared = before.map_or(0, |before| before.reading().shared_pieces(forwarded));
        self.shared_bytes =
            forwarded.anatomy().pieces.iter().take(shared).map(|piece| piece.span.len()).sum();
    }

    /// Other bytes than came go out: named by what came, what the model reads now, and their length.
    pub fn changed(&mut self, forwarded: &Reading, pieces: &[Bytes]) {
        let received = self.received.map_or([0; 8], |digest| digest.0);
        let length: usize = pieces.iter().map(Bytes::len).sum();
        let tip = forwarded.chain().tip();
        self.sent = Some(BodyDigest::of_pieces([&received[..], tip.as_bytes(), &length.to_le_bytes()]));
    }

    /// Which breakpoints were added, and why none where none was.
    pub fn planned(&mut self, plan: &breakpoints::Plan) {
        self.markers_added = plan.edits.len();
        let matters = |place| matches!(place, Place::Request | Place::Tail);
        let skipped = plan.skipped.iter().find(|(place, _)| matters(*place));
        self.plan = Plan::Aligned(skipped.map_or(Why::Mode, |(_, skip)| Why::Skipped(*skip)));
    }

    /// Whether this is a child for which nothing is written at its end: it will not go on.
    pub fn is_child_without_tail(&self) -> bool {
        let ends = matches!(self.plan, Plan::Aligned(Why::Skipped(Skip::OneShot | Skip::SeldomContinues)));
        self.role == Role::Child && ends
    }

    /// The head of the upstream's answer has come.
    pub fn answered(&mut self, status: StatusCode, headers: &HeaderMap) {
        self.status = Some(status);
        let id = headers.get(&REQUEST_ID).and_then(|id| id.to_str().ok());
        self.upstream_request_id = id.filter(|id| is_request_id(id)).map(String::from);
    }

    pub fn answer_chunk(&mut self, bytes: usize, came: Instant) {
        self.first_byte_at.get_or_insert(came);
        self.answer_bytes += bytes as u64;
    }

    pub fn held_ms(&self) -> u64 {
        millis(self.hold.map_or(Duration::ZERO, |hold| hold.time) + self.awaited)
    }

    pub fn reason(&self) -> &'static str {
        self.fault.unwrap_or(self.plan.reason())
    }
}

/// Whether this is the id that a provider gives to a request, and not something else that came in its place:
/// `req_` and what follows, or hex digits in groups.
fn is_request_id(id: &str) -> bool {
    let named = |rest: &str| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let is_named = id.strip_prefix("req_").is_some_and(named);
    let is_hex = !id.is_empty() && id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    id.len() <= REQUEST_ID_BYTES_MAX && (is_named || is_hex)
}

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
        self.record(ending, turn);
    }

    fn record(&mut self, ending: Ending, turn: Option<Turn>) {
        if std::mem::replace(&mut self.done, true) {
            return;
        }
        let now = self.clock.now();
        if let Some(memo) = self.memo.as_mut().filter(|_| !self.begun) {
            // Whatever was billed: an answer without content has written nothing that anybody can read.
            memo.land();
        }
        if self.facts.status.is_none() {
            self.release();
        }
        let fanout = self.part(turn.as_ref(), now);
        self.teach(turn.as_ref());
        let verdict = self.memo.as_mut().map(|memo| memo.finished(turn.as_ref(), now)).unwrap_or_default();
        let (model, client) = self.names();
        let series = self.series(&model, client.as_deref());
        self.count(&series, client.as_deref(), turn.as_ref(), &verdict);
        self.count_family(&series, turn.as_ref(), fanout.as_ref());
        self.count_recall(&series);
        if let Some(turn) = &turn {
            self.count_arms(turn, now);
        }
        let usage = turn.as_ref().and_then(|turn| turn.usage);
        let money = usage.map(|usage| self.count_money(&series, &usage)).unwrap_or_default();
        self.facts.id = line::next_id();
        let names = (&*model, client.as_deref());
        let tape = self.tape.take();
        let told = self.told(names, ending, turn.as_ref(), &verdict, fanout.as_ref(), money);
        told.log();
        if let Some(tape) = tape {
            self.tape(tape, &told, turn.as_ref());
        }
        self.trace(names, turn.as_ref(), &verdict);
    }

    /// The answer has ended: a fan-out is sealed, or was none.
    fn part(&mut self, turn: Option<&Turn>, now: Moment) -> Option<Fanout> {
        let (memo, family) = (self.memo.as_ref()?, self.family.as_mut()?);
        family.ended(&*memo.tenant()?, turn.unwrap_or(&Turn::default()), now)
    }

    /// Tells the gate whether a wait behind an answer that was not streamed was long enough.
    fn teach(&mut self, turn: Option<&Turn>) {
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
        self.record(Ending::ClientLeft, None);
    }
}
