//! The only place that measures: one record per exchange, written exactly once.
//!
//! The log line holds no prompt text, no credential, no path and no raw id: endpoints, roles, plans,
//! reasons and endings are enums, sessions and agents are digests, models and clients are bounded names.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderValue, StatusCode};

use crate::engine::anatomy::{Anatomy, Layer};
use crate::engine::breakpoints::{self, Place};
use crate::engine::conversation::Trace;
use crate::engine::identify::Sender;
use crate::engine::learned::LAYERS;
use crate::engine::prefix::PrefixHash;
use crate::engine::turn::{Turn, Wholeness};
use crate::engine::types::{BodyDigest, Ending, Endpoint, Plan, Reason, Role};
use crate::engine::usage::Usage;
use crate::metrics::{Admit, Metrics};

use super::memo::Memo;

/// Longer than any request id; more is not one.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// What is known about one exchange.
pub struct Facts {
    pub endpoint: Endpoint,
    pub role: Role,
    pub plan: Plan,
    pub sender: Option<Sender>,
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
    pub started: Instant,
    pub sent_at: Option<Instant>,
    pub first_byte_at: Option<Instant>,
    pub read_time: Duration,
    pub align_time: Duration,
    pub observe_time: Duration,
    pub status: Option<StatusCode>,
    pub answer_bytes: u64,
    pub upstream_request_id: Option<String>,
    /// The reason of an answer of our own.
    pub fault: Option<&'static str>,
}

impl Facts {
    pub fn new(endpoint: Endpoint) -> Facts {
        Facts {
            endpoint,
            role: Role::Plain,
            plan: Plan::Passthrough(Reason::Endpoint),
            sender: None,
            model: None,
            stream: false,
            received: None,
            sent: None,
            received_bytes: None,
            prefix: None,
            shared_bytes: 0,
            markers_added: 0,
            started: Instant::now(),
            sent_at: None,
            first_byte_at: None,
            read_time: Duration::ZERO,
            align_time: Duration::ZERO,
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
        let forwarded = &trace.forwarded;
        self.prefix = Some(forwarded.chain().layer(forwarded.anatomy(), Layer::System));
        let shared = before.map_or(0, |before| before.forwarded.shared_pieces(forwarded));
        self.shared_bytes =
            forwarded.anatomy().pieces.iter().take(shared).map(|piece| piece.span.len()).sum();
    }

    /// Which breakpoints were added, and why none where none was.
    pub fn planned(&mut self, plan: &breakpoints::Plan) {
        self.markers_added = plan.edits.len();
        let matters = |place| matches!(place, Place::Request | Place::Tail);
        let skipped = plan.skipped.iter().find(|(place, _)| matters(*place));
        self.plan = Plan::Aligned(skipped.map(|(_, skip)| *skip));
    }

    /// The head of the upstream's answer has come.
    pub fn answered(&mut self, status: StatusCode, headers: &HeaderMap) {
        self.status = Some(status);
        let plain = |id: &&str| id.len() <= REQUEST_ID_BYTES_MAX && id.bytes().all(|b| b.is_ascii_graphic());
        let id = headers.get("request-id").and_then(|id| id.to_str().ok());
        self.upstream_request_id = id.filter(plain).map(String::from);
    }

    pub fn answer_chunk(&mut self, bytes: usize) {
        self.first_byte_at.get_or_insert_with(Instant::now);
        self.answer_bytes += bytes as u64;
    }

    fn reason(&self) -> &'static str {
        self.fault.unwrap_or(self.plan.reason())
    }
}

/// Says on the answer what was done and why.
pub fn mark(headers: &mut HeaderMap, facts: &Facts) {
    headers.insert("x-forkpoint-role", HeaderValue::from_static(facts.role.as_str()));
    headers.insert("x-forkpoint-plan", HeaderValue::from_static(facts.plan.as_str()));
    headers.insert("x-forkpoint-reason", HeaderValue::from_static(facts.reason()));
    if let Some(prefix) = facts.prefix.and_then(|prefix| HeaderValue::try_from(prefix.to_string()).ok()) {
        headers.insert("x-forkpoint-prefix", prefix);
        headers.insert("x-forkpoint-bytes-shared", HeaderValue::from(facts.shared_bytes));
    }
    if facts.endpoint == Endpoint::Messages {
        headers.insert("x-forkpoint-held-ms", HeaderValue::from_static("0"));
    }
}

/// Travels with the exchange and writes its record once: in `finish`, or when dropped (the client left).
pub struct Recorder {
    pub facts: Facts,
    /// What the store is told, if the request is anybody's.
    pub memo: Option<Memo>,
    metrics: Arc<Metrics>,
    done: bool,
}

impl Recorder {
    pub fn new(metrics: Arc<Metrics>, facts: Facts) -> Recorder {
        Recorder { facts, memo: None, metrics, done: false }
    }

    /// The head of the upstream's answer has come.
    pub fn answered(&mut self, status: StatusCode, headers: &HeaderMap) {
        self.facts.answered(status, headers);
        if let Some(memo) = &mut self.memo {
            if let Some(trace) = &memo.trace {
                let before = memo.arrival.before.as_ref().map(|before| &*before.trace);
                self.facts.traced(trace, before);
            }
            let classes = if status.is_success() { memo.accepted() } else { None };
            for (layer, class) in LAYERS.into_iter().zip(classes.into_iter().flatten()) {
                let labels = [layer.as_str(), class.as_str()];
                self.metrics.prefix_sightings_total.with_label_values(&labels).inc();
            }
        }
    }

    pub fn finish(mut self, ending: Ending, turn: Option<Turn>) {
        self.record(ending, turn);
    }

    fn record(&mut self, ending: Ending, turn: Option<Turn>) {
        if std::mem::replace(&mut self.done, true) {
            return;
        }
        if let (Some(memo), Some(turn)) = (&self.memo, &turn) {
            memo.finished(turn);
        }
        let model = self.model_label();
        self.count(&model, turn.as_ref());
        self.log(&model, ending, turn.as_ref());
    }

    /// A model name takes one of the bounded places only once the upstream accepted it.
    fn model_label(&self) -> String {
        let admit = match self.facts.status {
            Some(status) if status.is_success() => Admit::New,
            _ => Admit::KnownOnly,
        };
        match &self.facts.model {
            Some(model) => self.metrics.models.label(model, admit).to_owned(),
            None => "none".to_owned(),
        }
    }

    fn count(&self, model: &str, turn: Option<&Turn>) {
        let Recorder { facts, metrics, .. } = self;
        let (role, plan) = (facts.role.as_str(), facts.plan.as_str());
        let status = facts.status.as_ref().map_or("none", StatusCode::as_str);
        metrics.requests_total.with_label_values(&[role, plan, model, status]).inc();
        match facts.fault {
            Some(fault) => metrics.refused_total.with_label_values(&[fault]).inc(),
            None if matches!(facts.plan, Plan::Passthrough(_)) => {
                metrics.passthrough_total.with_label_values(&[facts.plan.reason()]).inc();
            }
            None => {}
        }
        if let Some(sender) = &facts.sender {
            let client = metrics.clients.label(&sender.client, Admit::New);
            metrics.client_requests_total.with_label_values(&[client, plan]).inc();
        }
        if facts.endpoint == Endpoint::Messages {
            let overhead = |phase, time: Duration| {
                metrics.overhead_seconds.with_label_values(&[phase]).observe(time.as_secs_f64());
            };
            overhead("read", facts.read_time);
            overhead("align", facts.align_time);
            overhead("observe", facts.observe_time);
            if let (Some(sent), Some(first)) = (facts.sent_at, facts.first_byte_at) {
                let wait = first.duration_since(sent).as_secs_f64();
                metrics.upstream_first_byte_seconds.with_label_values::<&str>(&[]).observe(wait);
            }
        }
        if let Some(usage) = turn.and_then(|turn| turn.usage) {
            self.count_tokens(model, &usage);
        }
    }

    fn count_tokens(&self, model: &str, usage: &Usage) {
        let Recorder { facts, metrics, .. } = self;
        let tenant = facts.sender.as_ref().and_then(|sender| sender.tenant);
        let tenant = tenant.map_or_else(|| "none".to_owned(), |tenant| tenant.to_string());
        let tenant = metrics.tenants.label(&tenant, Admit::New);
        for (kind, count) in usage.kinds() {
            metrics.tokens_total.with_label_values(&[facts.role.as_str(), model, kind]).inc_by(count);
            metrics.tenant_tokens_total.with_label_values(&[tenant, kind]).inc_by(count);
        }
    }

    fn log(&self, model: &str, ending: Ending, turn: Option<&Turn>) {
        let facts = &self.facts;
        let sender = facts.sender.as_ref();
        let ms = |at: Option<Instant>| at.map(|at| at.duration_since(facts.started).as_millis() as u64);
        let usage = turn.and_then(|turn| turn.usage);
        tracing::info!(
            target: "forkpoint::request",
            id = next_id(),
            endpoint = facts.endpoint.as_str(),
            role = facts.role.as_str(),
            plan = facts.plan.as_str(),
            reason = facts.reason(),
            status = facts.status.map(|status| status.as_u16()),
            ending = ending.as_str(),
            model,
            stream = facts.stream,
            client = sender.map(|sender| sender.client.as_str()),
            tenant = sender.and_then(|sender| sender.tenant).map(tracing::field::display),
            session = sender.and_then(|sender| sender.session).map(tracing::field::display),
            agent = sender.and_then(|sender| sender.agent).map(tracing::field::display),
            upstream_request_id = facts.upstream_request_id.as_deref(),
            received = facts.received.map(tracing::field::display),
            sent = facts.sent.map(tracing::field::display),
            received_bytes = facts.received_bytes,
            prefix = facts.prefix.map(tracing::field::display),
            shared_bytes = facts.shared_bytes,
            markers_added = facts.markers_added,
            answer_bytes = facts.answer_bytes,
            uncached = usage.map(|usage| usage.uncached),
            cache_read = usage.map(|usage| usage.cache_read),
            cache_write_5m = usage.map(|usage| usage.cache_write_5m),
            cache_write_1h = usage.map(|usage| usage.cache_write_1h),
            output = usage.map(|usage| usage.output),
            stop_reason = turn.and_then(|turn| turn.stop_reason.as_deref()).map(stop_reason),
            error = turn.and_then(|turn| turn.error.as_deref()),
            turn = turn.map(|turn| wholeness(turn.wholeness)),
            first_byte_ms = ms(facts.first_byte_at),
            duration_ms = facts.started.elapsed().as_millis() as u64,
            overhead_us = (facts.read_time + facts.align_time + facts.observe_time).as_micros() as u64,
        );
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.record(Ending::ClientLeft, None);
    }
}

/// Numbers the requests of this process.
fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Relaxed)
}

/// The known stop reasons; text of another kind does not reach the log.
fn stop_reason(reason: &str) -> &'static str {
    const KNOWN: [&str; 8] = [
        "end_turn",
        "max_tokens",
        "stop_sequence",
        "tool_use",
        "pause_turn",
        "compaction",
        "refusal",
        "model_context_window_exceeded",
    ];
    KNOWN.iter().find(|known| **known == reason).copied().unwrap_or("other")
}

fn wholeness(wholeness: Wholeness) -> &'static str {
    match wholeness {
        Wholeness::Whole => "whole",
        Wholeness::Unfinished => "unfinished",
        Wholeness::Unfaithful => "unfaithful",
        Wholeness::TooLarge => "too_large",
    }
}
