//! Starts the sinks of reports, and shows what the store holds.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Uri};

use crate::config::{self, Config};
use crate::engine::cache::learned::LAYERS;
use crate::metrics::Metrics;
use crate::proxy::Proxy;
use crate::proxy::account::Accounts;
use crate::proxy::clock::Clock;
use crate::proxy::forward::{SentBody, SetupError, Upstream};
use crate::proxy::live::Generation;
use crate::report::events::Configured;
use crate::report::{Recording, Sinks, traces};
use crate::store::{Listener, Store, StoreEvent};

impl Proxy {
    /// Records there instead of where the configuration says.
    pub fn recording_to(mut self, recording: Arc<Recording>) -> Proxy {
        let events = Arc::clone(&self.sinks.events);
        self.sinks = Arc::new(Sinks { recording: Some(recording), tracer: None, events });
        self
    }

    pub fn recording(&self) -> Option<&Arc<Recording>> {
        self.sinks.recording.as_ref()
    }

    pub fn sinks(&self) -> &Arc<Sinks> {
        &self.sinks
    }
}

/// Starts the sinks that the configuration asks for.
pub fn start_sinks(
    config: &Config,
    metrics: &Arc<Metrics>,
    clock: &Arc<Clock>,
) -> Result<Arc<Sinks>, SetupError> {
    let clock = Arc::clone(clock);
    let now = Arc::new(move || clock.now());
    Ok(Arc::new(Sinks::start(config, metrics, now, collector(config)?)?))
}

/// Returns a client of the collector of traces, if one is configured.
fn collector(config: &Config) -> Result<Option<traces::Post>, SetupError> {
    let Some(endpoint) = &config.trace.endpoint else { return Ok(None) };
    let upstream =
        config::Upstream { url: endpoint.clone(), idle: traces::EXPORT, ..Config::default().upstream };
    let upstream = Arc::new(Upstream::new(&upstream)?);
    Ok(Some(Box::new(move |headers: HeaderMap, body: Bytes| {
        let upstream = Arc::clone(&upstream);
        let mut request = Request::new(SentBody::whole(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = Uri::from_static(traces::PATH);
        *request.headers_mut() = headers;
        Box::pin(async move {
            let answer = upstream.send(request).await.map_err(|fault| fault.reason())?;
            Ok(answer.response.status())
        })
    })))
}

/// Returns the settings that subscribers of events are shown.
pub fn configured(config: &Config, generation: &Generation) -> Configured {
    Configured {
        mode: config.server.mode.as_str(),
        config: generation.number,
        tenants: config.tenants.clone(),
    }
}

/// Counts what the store behind the memory is asked, and how that goes.
pub fn store_listener(metrics: Arc<Metrics>, store: &'static str) -> Listener {
    metrics.has_store(store);
    Box::new(move |event| match event {
        StoreEvent::Op { op, outcome, took } => {
            metrics.store_ops_total.with_label_values(&[store, op.as_str(), outcome]).inc();
            metrics.store_seconds.with_label_values(&[store, op.as_str()]).observe(took.as_secs_f64());
        }
        StoreEvent::Dropped(records) => {
            metrics.store_dropped_total.with_label_values(&[store]).inc_by(records as u64);
        }
        StoreEvent::Unreadable(records) => {
            metrics.store_unreadable_total.with_label_values(&[store]).inc_by(records as u64);
        }
    })
}

/// Shows what the store holds, and what requests under way take, whenever metrics are asked for.
pub fn show_at_scrape(metrics: &Metrics, store: Arc<Store>, accounts: Arc<Accounts>) {
    metrics.at_scrape(move |metrics| {
        metrics.store_bytes.with_label_values::<&str>(&[]).set(store.bytes() as i64);
        if let Some(condition) = store.condition() {
            let store = &[condition.store];
            metrics.store_degraded.with_label_values(store).set(i64::from(condition.error.is_some()));
            metrics.store_queue.with_label_values(store).set(condition.queued as i64);
            if let Some(bytes) = condition.bytes {
                metrics.store_kept_bytes.with_label_values(store).set(bytes as i64);
            }
        }
        metrics.forks_live.with_label_values::<&str>(&[]).set(store.forks() as i64);
        metrics.held.with_label_values(&["requests"]).set(accounts.requests.taken() as i64);
        metrics.held.with_label_values(&["bytes"]).set(accounts.bytes.taken() as i64);
        metrics.held.with_label_values(&["prompt_bytes"]).set(accounts.prompts.taken() as i64);
        metrics.exchanges.with_label_values::<&str>(&[]).set(accounts.exchanges.taken() as i64);
        for (layer, count) in LAYERS.into_iter().zip(store.prefixes()) {
            metrics.prefixes_live.with_label_values(&[layer.as_str()]).set(count as i64);
        }
    });
}
