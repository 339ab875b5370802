//! Simulator, proxy and admin, each on a free port of this machine.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::admin::{self, Hosts};
use crate::config::Config;
use crate::engine::cache::prices::Prices;
use crate::proxy::Proxy;
use crate::proxy::clock::millis;
use crate::proxy::live::Live;
use crate::report::{Entries, ExchangeRecord, Recording};
use crate::sim::{Latency, Sim, SimConfig};

use super::super::Failure;
use super::super::start::{self, ServerTask};
use super::agent::ClientCall;
use super::model::DemoModel;
use super::table::Row;

/// In the range of what hosted models take.
pub const LATENCY: Latency = Latency {
    base: Duration::from_millis(600),
    per_uncached_token: Duration::from_micros(50),
    pace: Duration::ZERO,
};
/// More than any play has requests.
const RECORDS_MAX: usize = 8_192;
/// How often records are looked for, and how long: a record follows its answer's last byte within milliseconds.
const LOOK_EVERY: Duration = Duration::from_millis(1);
const LOOK_AT_MOST: Duration = Duration::from_secs(10);

/// The pace of the model that is simulated, in words.
pub fn pace() -> String {
    format!(
        "Simulated: {} ms to the first token and {} µs per uncached token.",
        LATENCY.base.as_millis(),
        LATENCY.per_uncached_token.as_micros()
    )
}

/// A model that is faster by this factor.
pub fn faster(speed: u32) -> Latency {
    let speed = speed.max(1);
    Latency {
        base: LATENCY.base / speed,
        per_uncached_token: LATENCY.per_uncached_token / speed,
        pace: Duration::ZERO,
    }
}

/// How the client reaches the simulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DemoArm {
    /// Without forkpoint.
    AsSent,
    /// Mode `align`.
    Aligned,
    /// Mode `fork`, and every child that may be forked is, whatever it costs.
    Forked,
    /// The default configuration.
    AsChosen,
}

impl DemoArm {
    pub const ALL: [DemoArm; 4] = [DemoArm::AsSent, DemoArm::Aligned, DemoArm::Forked, DemoArm::AsChosen];

    pub fn title(self) -> &'static str {
        match self {
            DemoArm::AsSent => "as sent",
            DemoArm::Aligned => "aligned",
            DemoArm::Forked => "forked",
            DemoArm::AsChosen => "as chosen",
        }
    }
}

pub struct DemoStage {
    sim: Sim,
    /// False if the client goes straight to the simulator.
    is_proxied: bool,
    proxy: Arc<Proxy>,
    address: SocketAddr,
    admin: SocketAddr,
    entries: Entries,
    records: RefCell<Vec<ExchangeRecord>>,
    model: String,
    /// Dropped with the stage: the proxy stops.
    _server: ServerTask,
}

impl DemoStage {
    /// Starts a simulator with this latency and, in front of it, a forkpoint with this configuration.
    pub async fn with(
        config: Option<Config>,
        prices: &Prices,
        latency: Latency,
        model: &DemoModel,
    ) -> Result<DemoStage, Failure> {
        let sim = SimConfig { latency, models: model.sim_models(), ..SimConfig::default() };
        let sim = Sim::start(sim).await.map_err(failed("start the simulator"))?;
        let is_proxied = config.is_some();
        let mut config = config.unwrap_or_default();
        config.upstream.url = sim.url().parse().map_err(failed("use the simulator's address"))?;
        let (proxy, metrics) = start::proxy(config, prices.clone())?;
        let (recording, entries) = Recording::to_memory(&metrics, RECORDS_MAX);
        let proxy = Arc::new(proxy.recording_to(recording));
        let (server, address) = ServerTask::on_free_port(Arc::clone(&proxy)).await?;
        let (admin_listener, admin) = start::free_port().await?;
        let readiness = admin::Readiness::default();
        readiness.set(true);
        let live = Live::from(Arc::clone(&proxy));
        let pages = admin::pages(&live, metrics, readiness, None);
        tokio::spawn(admin::serve(admin_listener, pages, Hosts::OfThisMachine, live, "admin"));
        let (records, model) = (RefCell::default(), model.id.clone());
        Ok(DemoStage { sim, is_proxied, proxy, address, admin, entries, records, model, _server: server })
    }

    /// The client's base URL.
    pub fn client_url(&self) -> String {
        if self.is_proxied { format!("http://{}", self.address) } else { self.sim.url() }
    }

    pub fn admin_url(&self) -> String {
        format!("http://{}", self.admin)
    }

    pub fn sim_url(&self) -> String {
        self.sim.url()
    }

    pub fn model(&self) -> &str {
        &self.model
    }

    /// Lets time pass for simulator and proxy, once these calls are recorded: none of them takes that long.
    pub async fn pass(&self, time: Duration, calls: &[ClientCall]) -> Result<(), Failure> {
        self.recorded(calls).await?;
        self.sim.clock().advance(time);
        self.proxy.clock().skip(millis(time));
        Ok(())
    }

    /// Waits until forkpoint has recorded these calls.
    async fn recorded(&self, calls: &[ClientCall]) -> Result<(), Failure> {
        let since = Instant::now();
        while self.is_proxied && self.records.borrow().len() < calls.len() {
            let new = self.entries.take().into_iter().map(|entry| entry.into_record());
            self.records.borrow_mut().extend(new);
            if since.elapsed() > LOOK_AT_MOST {
                return Err(Failure::new(format!("{} requests were not recorded", calls.len())));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    /// Lets go of what was recorded so far.
    pub fn forget(&self) {
        self.entries.take();
        self.records.borrow_mut().clear();
    }

    /// The simulator's bill for each call, and forkpoint's record of it.
    pub async fn bill(&self, calls: &[ClientCall]) -> Result<Vec<Row>, Failure> {
        self.recorded(calls).await?;
        let (billed, records) = (self.sim.requests(), self.records.borrow());
        let bill = |call: &ClientCall| {
            let bill = billed.iter().find(|bill| bill.request_id == call.request_id)?;
            let is_its =
                |record: &&ExchangeRecord| record.upstream_request_id.as_ref() == Some(&call.request_id);
            Some(Row {
                who: call.who.clone(),
                fan_out: call.fan_out,
                turn: call.turn,
                usage: bill.usage?,
                cost_usd: bill.cost_usd?,
                record: records.iter().find(is_its).cloned(),
            })
        };
        calls
            .iter()
            .map(|call| bill(call).ok_or_else(|| Failure::new(format!("{} was not billed", call.who))))
            .collect()
    }
}

fn failed<E: std::error::Error>(what: &'static str) -> impl Fn(E) -> Failure {
    move |error| Failure::new(format!("cannot {what}: {}", super::super::cause(&error)))
}
