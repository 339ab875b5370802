//! The sinks besides log and metrics: events for the live page, and if asked for the recording and the collector of
//! traces.

use std::path::PathBuf;
use std::sync::Arc;

use http::HeaderMap;

use crate::config::Config;
use crate::metrics::Metrics;

use super::events::{Events, Feed};
use super::recording::{Now, OpenError, Recording, RecordingDraft};
use super::traces::{Context, Post, Trace, TraceId, Tracer};

/// The sinks of a process.
#[derive(Default)]
pub struct Sinks {
    pub recording: Option<Arc<Recording>>,
    pub tracer: Option<Arc<Tracer>>,
    pub events: Arc<Events>,
}

/// The reason why a sink could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Recording(#[from] OpenError),
    #[error("cannot use {} (trace.headers_file): {why}", path.display())]
    TraceHeaders { path: PathBuf, why: String },
}

/// The sinks of one exchange.
#[derive(Default)]
pub struct ExchangeSinks {
    pub draft: Option<RecordingDraft>,
    pub trace: Option<Trace>,
    /// The trace that the exchange belongs to: its own, or that of its caller where none is sent from here.
    pub trace_id: Option<TraceId>,
    pub feed: Option<Feed>,
}

impl Sinks {
    /// Starts the sinks that the configuration asks for; `post` calls the collector of traces, if there is one.
    pub fn start(
        config: &Config,
        metrics: &Arc<Metrics>,
        now: Now,
        post: Option<Post>,
    ) -> Result<Sinks, StartError> {
        let recording = Recording::start(config, metrics, now)?;
        let tracer = match post {
            Some(post) => Some(Tracer::start(config, metrics, post)?),
            None => None,
        };
        Ok(Sinks { recording, tracer, events: Arc::default() })
    }

    /// Begins the report of a request with these headers.
    pub fn begin(&self, headers: &mut HeaderMap) -> ExchangeSinks {
        let draft = self.recording.as_ref().map(RecordingDraft::new);
        let of_caller = Context::of(headers).map(|caller| caller.trace);
        let trace = self.tracer.as_ref().and_then(|tracer| tracer.begin(headers));
        let trace_id = trace.as_ref().map(Trace::id).or(of_caller);
        ExchangeSinks { draft, trace, trace_id, feed: Some(self.events.feed()) }
    }

    /// Waits a limited time until everything that was reported is written and sent.
    pub async fn flush(&self) {
        if let Some(recording) = self.recording.clone() {
            let _ = tokio::task::spawn_blocking(move || recording.flush()).await;
        }
        if let Some(tracer) = &self.tracer {
            tracer.flush().await;
        }
    }
}
