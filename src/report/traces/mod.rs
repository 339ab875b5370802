//! Traces: OpenTelemetry over OTLP/HTTP, in its JSON form.
//!
//! An exchange has four spans: the whole, the time it was held, the call upstream, and the wait for the first byte.
//! They are made from its record and sent in batches by a task of their own; when that is behind by
//! [`QUEUE_EXCHANGES`], traces are dropped and counted. Like the log line they hold no prompt text, no credential,
//! and ids only as digests. Without a configured endpoint nothing of this runs.

mod context;
mod otlp;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use crate::config::{Config, Profile};
use crate::engine::request::identify::is_signed;
use crate::engine::words::{Endpoint, GateOutcome};
use crate::metrics::Metrics;

use super::{ExchangeRecord, StartError};
pub use context::{Context, Ids, SpanId, TRACEPARENT, TraceId};
use otlp::{Kind, Resource, Span};

/// The path for traces, below the collector's URL.
pub const PATH: &str = "/v1/traces";
/// The most exchanges that wait to be sent.
const QUEUE_EXCHANGES: usize = 4096;
/// The most exchanges in one request.
const BATCH: usize = 256;
/// The longest time that an exchange waits for others.
const GATHER: Duration = Duration::from_millis(500);
/// The longest time that the collector may take.
pub const EXPORT: Duration = Duration::from_secs(10);
/// The longest time for sending the last traces when the process ends.
const FLUSH: Duration = Duration::from_secs(2);
/// The most bytes of the file of headers, more than any collector asks for.
const HEADERS_BYTES_MAX: u64 = 64 * 1024;

/// Posts a body with these headers to the collector. Returns the status of the answer, or the reason why there was
/// none.
pub type Post = Box<
    dyn Fn(HeaderMap, Bytes) -> Pin<Box<dyn Future<Output = Result<StatusCode, &'static str>> + Send>>
        + Send
        + Sync,
>;

pub struct Tracer {
    queue: mpsc::Sender<Job>,
    ids: Ids,
    sample: f64,
    propagate: bool,
    provider: &'static str,
    /// The host and port of the upstream.
    server: (Option<String>, Option<u16>),
    metrics: Arc<Metrics>,
}

enum Job {
    Spans(Vec<Span>),
    Flush(oneshot::Sender<()>),
}

/// The trace of one exchange while it runs.
pub struct Trace {
    tracer: Arc<Tracer>,
    own: Context,
    /// The caller's span.
    parent: Option<SpanId>,
    /// The span of the call upstream.
    upstream: SpanId,
}

impl Tracer {
    /// Starts the task that sends.
    pub fn start(config: &Config, metrics: &Arc<Metrics>, post: Post) -> Result<Arc<Tracer>, StartError> {
        let trace = &config.trace;
        let headers = headers(trace.headers_file.as_deref())?;
        let (queue, jobs) = mpsc::channel(QUEUE_EXCHANGES);
        let resource = Resource::new(&trace.resource);
        let exporter = Exporter { post, headers, resource, metrics: Arc::clone(metrics), failed: false };
        tokio::spawn(exporter.work(jobs));
        let upstream = &config.upstream.url;
        let port =
            upstream.port_u16().or(if upstream.scheme_str() == Some("https") { Some(443) } else { Some(80) });
        Ok(Arc::new(Tracer {
            queue,
            ids: Ids::default(),
            sample: trace.sample,
            propagate: trace.propagate,
            provider: provider(config.upstream.profile),
            server: (upstream.host().map(str::to_owned), port),
            metrics: Arc::clone(metrics),
        }))
    }

    /// Continues the caller's trace, or begins one. Returns `None` for a trace that is not kept, which is decided
    /// where it begins.
    pub fn begin(self: &Arc<Tracer>, headers: &mut HeaderMap) -> Option<Trace> {
        let caller = Context::of(headers);
        let trace = caller.map_or_else(|| self.ids.trace(), |caller| caller.trace);
        let sampled = caller.map_or_else(|| trace.is_within(self.sample), |caller| caller.sampled);
        if !sampled {
            return None;
        }
        let own = Context { trace, span: self.ids.span(), sampled };
        let upstream = self.ids.span();
        // The signature of a signed request may cover the header.
        if self.propagate
            && !is_signed(headers)
            && let Some(value) = (Context { span: upstream, ..own }).header()
        {
            headers.insert(TRACEPARENT, value);
        }
        Some(Trace { tracer: Arc::clone(self), own, parent: caller.map(|caller| caller.span), upstream })
    }

    fn send(&self, spans: Vec<Span>) {
        if self.queue.try_send(Job::Spans(spans)).is_err() {
            self.metrics.traces_dropped_total.with_label_values(&["queue"]).inc();
        }
    }

    /// Waits, for a limited time, until all traces so far are sent.
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

/// Reads `name: value` lines. The values may be credentials, and are never shown.
fn headers(path: Option<&std::path::Path>) -> Result<HeaderMap, StartError> {
    use std::io::Read;
    let mut headers = HeaderMap::new();
    let Some(path) = path else { return Ok(headers) };
    let wrong = |why: String| StartError::TraceHeaders { path: path.to_owned(), why };
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
    post: Post,
    headers: HeaderMap,
    resource: Resource,
    metrics: Arc<Metrics>,
    /// True if the last batch could not be sent, so that a warning was logged.
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
                    next = tokio::time::timeout_at(deadline, jobs.recv()).await.unwrap_or(None);
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
        let body = Bytes::from(otlp::request(&self.resource, spans).to_string());
        let mut headers = self.headers.clone();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        match tokio::time::timeout(EXPORT, (self.post)(headers, body)).await {
            Ok(Ok(status)) if status.is_success() => Ok(()),
            Ok(Ok(status)) => Err(format!("it answered {status}")),
            Ok(Err(reason)) => Err(reason.to_owned()),
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

/// Returns the provider's name in the conventions for generative AI.
fn provider(profile: Profile) -> &'static str {
    match profile {
        Profile::Anthropic | Profile::Automatic => "anthropic",
        Profile::Bedrock => "aws.bedrock",
        Profile::Vertex => "gcp.vertex_ai",
    }
}

impl Trace {
    pub fn id(&self) -> TraceId {
        self.own.trace
    }

    /// Sends the spans of an exchange that has ended.
    pub fn end(self, record: &ExchangeRecord) {
        let times = &record.details.times;
        let mut spans = vec![self.whole(record)];
        spans.extend(self.hold(record));
        if let Some(sent) = times.sent {
            spans.push(self.call(record, sent));
            if let Some(first) = times.first_byte {
                let id = self.tracer.ids.span();
                spans.push(self.span(id, Some(self.upstream), "first_byte", Kind::Internal, [sent, first]));
            }
        }
        self.tracer.send(spans);
    }

    fn span(&self, id: SpanId, parent: Option<SpanId>, name: &str, kind: Kind, [from, to]: [u64; 2]) -> Span {
        Span::new(self.own.trace, id, parent, name.to_owned(), kind, from, to)
    }

    /// Returns the span of the whole exchange.
    fn whole(&self, record: &ExchangeRecord) -> Span {
        let times = &record.details.times;
        let name = format!("forkpoint {}", record.endpoint);
        let mut span =
            self.span(self.own.span, self.parent, &name, Kind::Server, [times.started, times.ended]);
        span.number("forkpoint.request.id", Some(record.id));
        span.text("forkpoint.endpoint", Some(&record.endpoint));
        span.text("forkpoint.role", Some(&record.role));
        span.text("forkpoint.plan", Some(&record.plan));
        span.text("forkpoint.reason", Some(&record.reason));
        span.text("forkpoint.client", record.client.as_ref());
        span.text("forkpoint.tenant", record.tenant.as_ref());
        span.text("forkpoint.session", record.session.as_ref());
        span.text("forkpoint.agent", record.agent.as_ref());
        span.text("forkpoint.fork", record.fork.as_ref());
        span.text("forkpoint.cache_break.cause", record.break_cause.as_ref());
        span.number("forkpoint.cache_break.tokens", record.break_tokens);
        span.number("http.response.status_code", record.status.map(u64::from));
        let is_failed = record.status.is_some_and(|status| status >= 500);
        span.failed(record.details.fault.or(is_failed.then_some("upstream")));
        span
    }

    /// Returns the span of the time that the request was held back, if it was: for its parent's last byte, at the
    /// gate, or until its client left.
    fn hold(&self, record: &ExchangeRecord) -> Option<Span> {
        let details = &record.details;
        let from = details.times.waited?;
        let is_at_gate = details.gate.is_some_and(|(outcome, _)| outcome != GateOutcome::Unneeded);
        if !is_at_gate && details.awaited.is_zero() && details.times.sent.is_some() {
            return None;
        }
        let to = details.times.sent.unwrap_or(details.times.ended);
        let id = self.tracer.ids.span();
        let mut span = self.span(id, Some(self.own.span), "hold", Kind::Internal, [from, to]);
        let left = details.left_at_gate.then_some(GateOutcome::ClientLeft);
        let outcome = details.gate.map(|(outcome, _)| outcome).or(left);
        span.text("forkpoint.gate.outcome", outcome.map(GateOutcome::as_str));
        let awaited_ms = details.awaited.as_millis() as u64;
        span.number("forkpoint.parent.awaited_ms", (awaited_ms > 0).then_some(awaited_ms));
        Some(span)
    }

    /// Returns the span of the call upstream.
    fn call(&self, record: &ExchangeRecord, sent: u64) -> Span {
        let is_chat = record.details.is_messages;
        let name = if is_chat { format!("chat {}", record.model) } else { "upstream".to_owned() };
        let times = [sent, record.details.times.ended];
        let mut span = self.span(self.upstream, Some(self.own.span), &name, Kind::Client, times);
        span.number("http.response.status_code", record.status.map(u64::from));
        span.text("server.address", self.tracer.server.0.as_ref());
        span.number("server.port", self.tracer.server.1.map(u64::from));
        if is_chat {
            let usage = record.usage();
            let written = usage.map(|usage| usage.cache_write_5m + usage.cache_write_1h);
            span.text("gen_ai.operation.name", Some("chat"));
            let is_vertex = record.endpoint == Endpoint::Vertex.as_str();
            let name = if is_vertex { provider(Profile::Vertex) } else { self.tracer.provider };
            span.text("gen_ai.provider.name", Some(name));
            span.text("gen_ai.request.model", Some(&record.model));
            span.text("gen_ai.response.id", record.details.response_id.as_ref());
            span.text("gen_ai.response.model", record.details.response_model.as_ref());
            // Conversations without a session of their client have no name that is stable.
            span.text("gen_ai.conversation.id", record.session.as_ref().or(record.agent.as_ref()));
            span.number("gen_ai.usage.input_tokens", usage.map(|usage| usage.uncached + usage.cached()));
            span.number("gen_ai.usage.output_tokens", usage.map(|usage| usage.output));
            span.number("gen_ai.usage.cache_read.input_tokens", usage.map(|usage| usage.cache_read));
            span.number("gen_ai.usage.cache_creation.input_tokens", written);
            span.texts("gen_ai.response.finish_reasons", record.stop_reason.as_deref());
        }
        span.failed(record.error.as_deref());
        span
    }
}
