//! The request path: collect, read, plan, send, observe, report.
//!
//! # Disconnects
//!
//! A client that leaves drops the future (or the answer's body) of its request, and with it the upstream call: HTTP/1
//! closes that upstream connection, HTTP/2 resets the one stream. The [`Exchange`](exchange::Exchange) travels with
//! whichever of the two is alive, so it is reported exactly once, and its [flight](flight::InFlight) leaves the state of
//! its tenant when it is dropped.

pub mod handle;
mod held;
pub mod caller;
pub mod account;
pub mod displaced;
pub mod collect;
pub mod body;
pub mod read;
pub mod encoded;
pub mod large;
pub mod plan;
pub mod wait;
pub mod lease;
pub mod send;
pub mod count;
pub mod forward;
pub mod client_pool;
pub mod answer;
pub mod observe;
pub mod watch;
pub mod observer;
pub mod decode;
pub mod flight;
pub mod exchange;
pub mod record;
pub mod headers;
pub mod not_found;
pub mod error;
pub mod stall;
pub mod slow_reader;
pub mod server;
pub mod door;
pub mod activity;
pub mod client_io;
pub mod files;
pub mod live;
pub mod rules;
pub mod clock;
pub mod panic_injection;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::config::{self, Config};
use crate::engine::cache::prices::Prices;
use crate::engine::policy::Policy;
use crate::engine::words::{Endpoint, Moment};
use crate::metrics::Metrics;
use crate::report::Sinks;
use crate::store::{self, Opened, Store, Surroundings};

use account::Accounts;
use clock::Clock;
use forward::Upstream;
use large::LargeBodies;
use lease::Leases;
use live::Generation;
use not_found::NotFound;
use panic_injection::PanicInjection;

/// Everything that requests share.
pub struct Proxy {
    config: Config,
    policy: Arc<Policy>,
    /// For calls whose path is Vertex's.
    vertex_policy: Arc<Policy>,
    generation: Generation,
    upstream: Arc<Upstream>,
    accounts: Arc<Accounts>,
    large: Arc<LargeBodies>,
    store: Arc<Store>,
    leases: Arc<Leases>,
    /// The number of files that the system allows.
    files: usize,
    /// Until when a child may have a prefix, in milliseconds of the clock.
    prefixes_until: Arc<AtomicU64>,
    /// Until when nothing more is said about forgotten conversations, in milliseconds of the clock.
    quiet_until: Arc<AtomicU64>,
    clock: Arc<Clock>,
    panics: Arc<PanicInjection>,
    not_found: Arc<NotFound>,
    metrics: Arc<Metrics>,
    sinks: Arc<Sinks>,
}

impl Proxy {
    pub fn new(config: Config, prices: Prices, metrics: Arc<Metrics>) -> Result<Proxy, forward::SetupError> {
        let upstream = Arc::new(Upstream::new(&config.upstream)?);
        metrics.models.reserve(prices.models().map(|model| &*model.id));
        metrics.name_tenants(config.tenants.clone());
        metrics.may_refuse(&error::Fault::REASONS);
        let config::Store { max_bytes, tenant_share, recent_bytes, .. } = config.store;
        let limits = store::Limits { max_bytes, recent_bytes, tenant_share };
        let (policy, vertex_policy) = rules::policies(&config, prices);
        let store = Arc::new(Store::new(limits, policy.fan_out.clone(), rules::gate(&config)));
        let accounts = Arc::<Accounts>::default();
        let clock = Arc::new(Clock::new());
        record::show_at_scrape(&metrics, Arc::clone(&store), Arc::clone(&accounts));
        let generation = Generation::first(&config, &metrics);
        let sinks = record::start_sinks(&config, &metrics, &clock)?;
        sinks.events.configured(record::configured(&config, &generation));
        Ok(Proxy {
            sinks,
            config,
            policy,
            vertex_policy,
            generation,
            upstream,
            accounts,
            large: Arc::default(),
            store,
            leases: Arc::default(),
            files: files::limit(),
            prefixes_until: Arc::default(),
            quiet_until: Arc::default(),
            clock,
            panics: Arc::default(),
            not_found: Arc::default(),
            metrics,
        })
    }

    /// Puts a store behind the memory of this process, so that what is known outlives it. To be called before requests
    /// come.
    pub fn put_behind(&self, opened: Opened) {
        let (clock, metrics) = (Arc::clone(&self.clock), Arc::clone(&self.metrics));
        let surroundings = Surroundings {
            times: Box::new(move || clock.times()),
            listener: record::store_listener(metrics, opened.name()),
            wait: self.config.store.deadline,
        };
        if opened.records().is_shared() {
            self.share_leases(Arc::clone(opened.records()));
        }
        self.store.put_behind(opened, surroundings);
        // A child of a process before this one may have a prefix; and so may one of those that write to the store too,
        // for as long after the last of them has ended.
        let (clock, until) = (Arc::clone(&self.clock), Arc::clone(&self.prefixes_until));
        let child_ttl = clock::millis(self.config.store.child_ttl);
        let lasts = move || until.fetch_max(clock.now().after(child_ttl).0, Relaxed);
        lasts();
        if self.store.is_shared() {
            let ends = self.store.sharing_ends();
            tokio::spawn(async move {
                ends.await;
                lasts();
            });
        }
    }

    /// Returns true if a child may have a prefix that a process before this one, or another, has put it on.
    fn may_have_prefix(&self, now: Moment) -> bool {
        now.0 < self.prefixes_until.load(Relaxed) || self.store.is_shared()
    }

    /// The settings that calls to this part of the API are planned by.
    fn policy_of(&self, endpoint: Endpoint) -> &Arc<Policy> {
        if endpoint == Endpoint::Vertex { &self.vertex_policy } else { &self.policy }
    }

    /// The most exchanges at once: `limits.connections`, or as many as there are files for.
    pub fn exchanges_max(&self) -> usize {
        self.config.limits.connections.min(files::exchanges(self.files))
    }
}

#[cfg(test)]
mod tests;
