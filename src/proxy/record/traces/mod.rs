//! Traces: OpenTelemetry over OTLP/HTTP, in its JSON form.
//!
//! An exchange is four spans: itself, the time it was held, the call upstream, and the wait for its first byte. They
//! are made when it has ended, from what was measured anyway, and sent in batches by a task of their own; when that
//! is behind by [`QUEUE_EXCHANGES`], traces are dropped and counted. Like the log line they hold no prompt text, no
//! credential and no ids but digests. Where no endpoint is configured nothing of this runs.

mod context;
mod otlp;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use crate::config::{self, Config, Profile};
use crate::engine::identify::is_signed;
use crate::engine::turn::Turn;
use crate::engine::words::{Endpoint, GateOutcome};
use crate::metrics::Metrics;
use crate::proxy::clock::millis;
use crate::proxy::forward::{SentBody, SetupError, Upstream};
use crate::proxy::memo::Verdict;

use super::Recorder;
use super::line::stop_reason;
pub use context::{Context, Ids, SpanId, TRACEPARENT};
use otlp::{Kind, Span};

/// Exchanges that may wait to be sent.
const QUEUE_EXCHANGES: usize = 4096;
/// Exchanges in one request.
const BATCH: usize = 256;
/// How long an exchange may wait for others.
const GATHER: Duration = Duration::from_millis(500);
/// How long the collector may take.
const EXPORT: Duration = Duration::from_secs(10);
/// How long the last traces may take when the process ends.
const FLUSH: Duration = Duration::from_secs(2);
/// Longer than any set of headers that a collector asks for.
const HEADERS_BYTES_MAX: u64 = 64 * 1024;

pub struct Tracer {
    queue: mpsc::Sender<Job>,
    ids: Ids,
    sample: f64,
    propagate: bool,
    provider: &'static str,
    metrics: Arc<Metrics>,
}

enum Job {
    Spans(Vec<Span>),
    Flush(oneshot::Sender<()>),
}

/// The trace of one exchange while it runs.
pub struct Traced {
    tracer: Arc<Tracer>,
    own: Context,
    parent: Option<SpanId>,
    upstream: SpanId,
}

impl Tracer {
    /// What the configuration asks for, if it asks.
    pub fn start(config: &Config, metrics: &Arc<Metrics>) -> Result<Option<Arc<Tracer>>, SetupError> {
        let trace = &config.trace;
        let Some(endpoint) = &trace.endpoint else { return Ok(None) };
        let provider = provider(config.upstream.profile);
        let upstream = config::Upstream { url: endpoint.clone(), idle: EXPORT, ..Config::default().upstream };
        let (queue, jobs) = mpsc::channel(QUEUE_EXCHANGES);
        let exporter = Exporter {
            upstream: Upstream::new(&upstream)?,
            headers: headers(trace.headers_file.as_deref())?,
            metrics: Arc::clone(metrics),
            failed: false,
        };
        tokio::spawn(exporter.work(jobs));
        let (ids, sample, propagate) = (Ids::default(), trace.sample, trace.propagate);
        Ok(Some(Arc::new(Tracer { queue, ids, sample, propagate, provider, metrics: Arc::clone(metrics) })))
    }

    /// Takes up the caller's trace, or begins one. Whether it is kept was decided by whoever began it.
    pub fn begin(self: &Arc<Tracer>, headers: &mut HeaderMap) -> Option<Traced> {
        let caller = Context::of(headers);
        let trace = caller.map_or_else(|| self.ids.trace(), |caller| caller.trace);
        let sampled = caller.map_or_else(|| trace.is_within(self.sample), |caller| caller.sampled);
        if !sampled {
            return None;
        }
        let own = Context { trace, span: self.ids.span(), sampled };
        let upstream = self.ids.span();
        // A signature may cover the header.
        if self.propagate
            && !is_signed(headers)
            && let Some(value) = (Context { span: upstream, ..own }).header()
        {
            headers.insert(TRACEPARENT, value);
        }
        Some(Traced { tracer: Arc::clone(self), own, parent: caller.map(|caller| caller.span), upstream })
    }

    fn send(&self, spans: Vec<Span>) {
        if self.queue.try_send(Job::Spans(spans)).is_err() {
            self.metrics.traces_dropped_total.with_label_values(&["queue"]).inc();
        }
    }

    /// Waits, a little, until everything before is sent.
    pub async fn flush(&self) {
        let (done, sent) = oneshot::channel();
        let flush = async {
            if self.queue.send(Job::Flush(done)).await.is_ok() {
                let _ = sent.await;
            }
        };
        let _ = tokio::time::timeout(FLUSH, flush).await;
    }
}

/// `name: value` lines; values may be credentials and are never shown.
fn headers(path: Option<&std::path::Path>) -> Result<HeaderMap, SetupError> {
    use std::io::Read;
    let mut headers = HeaderMap::new();
    let Some(path) = path else { return Ok(headers) };
    let wrong = |why: String| SetupError::TraceHeaders { path: path.to_owned(), why };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| wrong(error.to_string()))?;
    file.take(HEADERS_BYTES_MAX).read_to_string(&mut text).map_err(|error| wrong(error.to_string()))?;
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let header = line.split_once(':').and_then(|(name, value)| {
            let name = HeaderName::try_from(name.trim()).ok()?;
            Some((name, HeaderValue::try_from(value.trim()).ok()?))
        });
        let (name, mut value) = header.ok_or_else(|| wrong(format!("line {number} is not name: value")))?;
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Ok(headers)
}

/// The task that sends.
struct Exporter {
    upstream: Upstream,
    headers: HeaderMap,
    metrics: Arc<Metrics>,
    /// The last batch was not taken, and that was said.
    failed: bool,
}

impl Exporter {
    async fn work(mut self, mut jobs: mpsc::Receiver<Job>) {
        let mut batch = Vec::new();
        while let Some(job) = jobs.recv().await {
            let mut waiting = None;
            let deadline = tokio::time::Instant::now() + GATHER;
            let mut next = Some(job);
            while let Some(job) = next.take() {
                match job {
                    Job::Spans(spans) => batch.push(spans),
                    Job::Flush(done) => waiting = Some(done),
                }
                if batch.len() < BATCH && waiting.is_none() {
                    next = tokio::time::timeout_at(deadline, jobs.recv()).await.ok().flatten();
                }
            }
            if !batch.is_empty() {
                let count = batch.len() as u64;
                let sent = self.export(std::mem::take(&mut batch)).await;
                self.count(sent, count);
            }
            if let Some(done) = waiting {
                let _ = done.send(());
            }
        }
    }

    async fn export(&self, batch: Vec<Vec<Span>>) -> Result<(), String> {
        let spans: Vec<Value> = batch.iter().flatten().map(Span::json).collect();
        let body = Bytes::from(otlp::request(spans).to_string());
        let mut request = Request::new(SentBody::whole(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = http::Uri::from_static("/v1/traces");
        *request.headers_mut() = self.headers.clone();
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        match tokio::time::timeout(EXPORT, self.upstream.send(request)).await {
            Ok(Ok(answer)) if answer.response.status().is_success() => Ok(()),
            Ok(Ok(answer)) => Err(format!("it answered {}", answer.response.status())),
            Ok(Err(fault)) => Err(fault.reason().to_owned()),
            Err(_) => Err("it did not answer in time".to_owned()),
        }
    }

    fn count(&mut self, sent: Result<(), String>, count: u64) {
        match sent {
            Ok(()) => {
                self.metrics.traces_total.with_label_values::<&str>(&[]).inc_by(count);
                self.failed = false;
            }
            Err(why) => {
                self.metrics.traces_dropped_total.with_label_values(&["export"]).inc_by(count);
                if !std::mem::replace(&mut self.failed, true) {
                    tracing::warn!(
                        why,
                        "the collector of traces (trace.endpoint) takes nothing; traces are lost until it does"
                    );
                }
            }
        }
    }
}

/// As the conventions for generative AI call it.
fn provider(profile: Profile) -> &'static str {
    match profile {
        Profile::Anthropic | Profile::Automatic => "anthropic",
        Profile::Bedrock => "aws.bedrock",
        Profile::Vertex => "gcp.vertex_ai",
    }
}

impl Recorder {
    /// When the request was held back, if it was: for its parent's last byte, at the gate, or until its client left.
    fn held_from(&self) -> Option<Instant> {
        let facts = &self.facts;
        let at_gate = facts.hold.is_some_and(|hold| hold.outcome != GateOutcome::Unneeded);
        let waited = at_gate || !facts.awaited.is_zero() || facts.sent_at.is_none();
        facts.waits_since.filter(|_| waited)
    }

    /// The spans of an exchange that has ended, if it is traced.
    pub(super) fn trace(
        &mut self,
        (model, client): (&str, Option<&str>),
        turn: Option<&Turn>,
        verdict: &Verdict,
    ) {
        let Some(Traced { tracer, own, parent, upstream }) = self.span.take() else { return };
        let facts = &self.facts;
        let (now, end) = (Instant::now(), SystemTime::now());
        let nanos = |at: Instant| {
            let time = end.checked_sub(now.saturating_duration_since(at)).unwrap_or(UNIX_EPOCH);
            time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
        };
        let span = |id, parent, name: String, kind, from, to| {
            Span::new(own.trace, id, parent, name, kind, nanos(from), nanos(to))
        };
        let sender = facts.sender.as_ref();
        let endpoint = facts.endpoint.as_str();
        let status = facts.status.map(|status| u64::from(status.as_u16()));
        let mut whole =
            span(own.span, parent, format!("forkpoint {endpoint}"), Kind::Server, facts.started, now);
        whole.number("forkpoint.request.id", Some(facts.id));
        whole.text("forkpoint.endpoint", Some(endpoint));
        whole.text("forkpoint.role", Some(facts.role.as_str()));
        whole.text("forkpoint.plan", Some(facts.plan.as_str()));
        whole.text("forkpoint.reason", Some(facts.reason()));
        whole.text("forkpoint.client", client);
        whole.text("forkpoint.tenant", sender.and_then(|sender| sender.tenant));
        whole.text("forkpoint.session", sender.and_then(|sender| sender.session));
        whole.text("forkpoint.agent", sender.and_then(|sender| sender.agent));
        whole.text("forkpoint.fork", self.fork_id());
        let lost = verdict.cache_break.as_ref();
        whole.text("forkpoint.cache_break.cause", lost.map(|lost| lost.cause.as_str()));
        whole.number("forkpoint.cache_break.tokens", lost.map(|lost| lost.tokens_lost));
        whole.number("http.response.status_code", status);
        whole.failed(facts.fault.or(status.filter(|status| *status >= 500).map(|_| "upstream")));
        let mut spans = vec![whole];
        if let Some(from) = self.held_from() {
            let to = facts.sent_at.unwrap_or(now);
            let mut held = span(tracer.ids.span(), Some(own.span), "hold".into(), Kind::Internal, from, to);
            let left = self.waits.then_some(GateOutcome::ClientLeft);
            let outcome = facts.hold.map(|hold| hold.outcome).or(left);
            held.text("forkpoint.gate.outcome", outcome.map(GateOutcome::as_str));
            let awaited = Some(millis(facts.awaited)).filter(|awaited| *awaited > 0);
            held.number("forkpoint.parent.awaited_ms", awaited);
            spans.push(held);
        }
        if let Some(sent) = facts.sent_at {
            let is_chat = facts.endpoint == Endpoint::Messages;
            let name = if is_chat { format!("chat {model}") } else { "upstream".to_owned() };
            let mut call = span(upstream, Some(own.span), name, Kind::Client, sent, now);
            call.number("http.response.status_code", status);
            if is_chat {
                call.text("gen_ai.operation.name", Some("chat"));
                call.text("gen_ai.provider.name", Some(tracer.provider));
                call.text("gen_ai.request.model", Some(model));
                let usage = turn.and_then(|turn| turn.usage);
                let written = usage.map(|usage| usage.cache_write_5m + usage.cache_write_1h);
                call.number("gen_ai.usage.input_tokens", usage.map(|usage| usage.uncached + usage.cached()));
                call.number("gen_ai.usage.output_tokens", usage.map(|usage| usage.output));
                call.number("gen_ai.usage.cache_read.input_tokens", usage.map(|usage| usage.cache_read));
                call.number("gen_ai.usage.cache_creation.input_tokens", written);
                let why = turn.and_then(|turn| turn.stop_reason.as_deref()).map(stop_reason);
                call.texts("gen_ai.response.finish_reasons", why);
            }
            call.failed(turn.and_then(|turn| turn.error.as_deref()));
            spans.push(call);
            if let Some(first) = facts.first_byte_at {
                let id = tracer.ids.span();
                spans.push(span(id, Some(upstream), "first_byte".into(), Kind::Internal, sent, first));
            }
        }
        tracer.send(spans);
    }
}
