//! The proxy as it is now. Settings change while it runs, and a request keeps those that it began with.
//!
//! A [`Proxy`] is one configuration in force and what all of them share: connections, gate, store, clock, metrics.
//! Loading another makes another proxy around the same things, and whoever asks next gets that one. Only what
//! requests do together, the gate and the recognition of fan-outs, takes its new settings at once.

use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::config::{Config, Mode, Reload};
use crate::engine::cache::prices::Prices;
use crate::metrics::{self, Metrics};
use crate::store::Store;

use super::clock::Clock;
#[cfg(feature = "panic-injection")]
use super::panic_injection::PanicInjection;
use super::{Proxy, record, rules};

/// Which configuration is in force.
#[derive(Clone, Debug)]
pub struct Generation {
    /// The one that the process was started with is 1.
    pub number: u64,
    /// Keys whose new values wait for a restart.
    pub left: Vec<&'static str>,
}

impl Generation {
    pub(super) fn first(config: &Config, metrics: &Metrics) -> Generation {
        Generation::set(1, Vec::new(), config, metrics)
    }

    fn set(number: u64, left: Vec<&'static str>, config: &Config, metrics: &Metrics) -> Generation {
        metrics.config_generation.with_label_values::<&str>(&[]).set(number as i64);
        show(config, metrics);
        Generation { number, left }
    }
}

/// Shows in the metrics which mode and which limits are in force.
fn show(config: &Config, metrics: &Metrics) {
    for mode in Mode::ALL {
        let is_in_force = mode == config.server.mode;
        metrics.mode.with_label_values(&[mode.as_str()]).set(i64::from(is_in_force));
    }
    let limits = [
        ("gate.max_hold_ms", Some(config.gate.max_hold.as_millis() as usize)),
        ("limits.connections", Some(config.limits.connections)),
        ("limits.held_requests", Some(config.limits.held_requests)),
        ("limits.held_bytes", Some(config.limits.held_bytes)),
        ("store.max_bytes", Some(config.store.max_bytes)),
        ("memory", metrics::memory_limit().map(|bytes| bytes as usize)),
    ];
    for (key, limit) in limits {
        let Some(limit) = limit else { continue };
        metrics.limit.with_label_values(&[key]).set(i64::try_from(limit).unwrap_or(i64::MAX));
    }
}

/// The proxy, whatever its configuration is at the moment.
#[derive(Clone)]
pub struct Live(Arc<ArcSwap<Proxy>>);

impl From<Arc<Proxy>> for Live {
    fn from(proxy: Arc<Proxy>) -> Live {
        Live(Arc::new(ArcSwap::new(proxy)))
    }
}

impl Live {
    /// The proxy with the settings in force; they stay what they are for whoever has it.
    pub fn now(&self) -> Arc<Proxy> {
        self.0.load_full()
    }

    /// Puts another configuration in force, as far as that can be done while running. One caller at a time.
    pub fn reload(&self, reload: Reload, prices: Prices) -> Arc<Proxy> {
        let next = Arc::new(self.now().with(reload, prices));
        self.0.store(Arc::clone(&next));
        next
    }
}

impl Proxy {
    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn generation(&self) -> &Generation {
        &self.generation
    }

    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Returns the switch by which tests make a step panic.
    #[cfg(feature = "panic-injection")]
    pub fn panics(&self) -> &PanicInjection {
        &self.panics
    }

    /// Returns the store of all that is remembered.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The number of requests that wait, those aside that may go and have not noticed.
    pub fn waiting(&self) -> usize {
        self.store.waiting(self.clock.now())
    }

    /// In how many milliseconds the first of them has waited long enough.
    pub fn next_due_ms(&self) -> Option<u64> {
        Some(self.store.next_due()?.since(self.clock.now()))
    }

    /// How many requests wait at the gate, or have gone and not begun.
    pub fn at_gate(&self) -> usize {
        self.store.at_gate()
    }

    /// How many children wait for the end of their parent's answer.
    pub fn awaiting_seal(&self) -> usize {
        self.store.awaiting_seal()
    }

    fn with(&self, reload: Reload, prices: Prices) -> Proxy {
        let Reload { config, left, changed } = reload;
        if let Some(recording) = self.recording()
            && changed.iter().any(|key| key.starts_with("record.match"))
        {
            recording.match_from(&config.record);
        }
        let (policy, vertex_policy) = rules::policies(&config, prices);
        self.store.configure(policy.fan_out.clone(), rules::gate(&config));
        self.metrics.models.reserve(policy.prices.models().map(|model| &*model.id));
        let generation = Generation::set(self.generation.number + 1, left, &config, &self.metrics);
        self.sinks.events.configured(record::configured(&config, &generation));
        Proxy {
            config,
            policy,
            vertex_policy,
            generation,
            upstream: self.upstream.clone(),
            accounts: self.accounts.clone(),
            large: self.large.clone(),
            store: self.store.clone(),
            leases: self.leases.clone(),
            files: self.files,
            prefixes_until: self.prefixes_until.clone(),
            quiet_until: self.quiet_until.clone(),
            clock: self.clock.clone(),
            panics: self.panics.clone(),
            not_found: self.not_found.clone(),
            metrics: self.metrics.clone(),
            sinks: self.sinks.clone(),
        }
    }
}
