//! Simulator, proxy and admin, each on a free port of this machine.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::admin::{self, Hosts};
use crate::config::{Config, Mode, ValueOrigin, load_prices};
use crate::sim::{Latency, Sim, SimConfig};

use super::super::Failure;
use super::super::start::{self, ServerTask};
use super::agent::ClientCall;
use super::table::Row;

/// In the range of what hosted models take.
pub const LATENCY: Latency = Latency {
    base: Duration::from_millis(600),
    per_uncached_token: Duration::from_micros(50),
    pace: Duration::ZERO,
};

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
    AsSent,
    Aligned,
    Forked,
}

impl DemoArm {
    pub const ALL: [DemoArm; 3] = [DemoArm::AsSent, DemoArm::Aligned, DemoArm::Forked];

    pub fn title(self) -> &'static str {
        match self {
            DemoArm::AsSent => "as sent",
            DemoArm::Aligned => "aligned",
            DemoArm::Forked => "forked",
        }
    }

    /// The mode of the forkpoint in between, if there is one.
    pub fn mode(self) -> Option<Mode> {
        match self {
            DemoArm::AsSent => None,
            DemoArm::Aligned => Some(Mode::Align),
            DemoArm::Forked => Some(Mode::Fork),
        }
    }
}

pub struct DemoStage {
    sim: Sim,
    mode: Option<Mode>,
    proxy: SocketAddr,
    admin: SocketAddr,
    /// Dropped with the stage: the proxy stops.
    _server: ServerTask,
}

impl DemoStage {
    /// Starts a simulator with this latency and, in front of it, a forkpoint in this mode.
    pub async fn with(
        mode: Option<Mode>,
        latency: Latency,
        mut config: Config,
    ) -> Result<DemoStage, Failure> {
        let sim = SimConfig { latency, ..SimConfig::default() };
        let sim = Sim::start(sim).await.map_err(failed("start the simulator"))?;
        config.server.mode = mode.unwrap_or(Mode::Observe);
        config.upstream.url = sim.url().parse().map_err(failed("use the simulator's address"))?;
        let prices = load_prices(None, &ValueOrigin::Default).map_err(failed("read the prices"))?;
        let (proxy, metrics) = start::proxy(config, prices)?;
        let (server, proxy) = ServerTask::on_free_port(Arc::new(proxy)).await?;
        let (admin_listener, admin) = start::free_port().await?;
        let readiness = admin::Readiness::default();
        readiness.set(true);
        let pages = admin::router(metrics, readiness);
        tokio::spawn(admin::serve(admin_listener, pages, Hosts::OfThisMachine));
        Ok(DemoStage { sim, mode, proxy, admin, _server: server })
    }

    /// The client's base URL.
    pub fn client_url(&self) -> String {
        match self.mode {
            None => self.sim.url(),
            Some(_) => format!("http://{}", self.proxy),
        }
    }

    pub fn admin_url(&self) -> String {
        format!("http://{}", self.admin)
    }

    pub fn sim_url(&self) -> String {
        self.sim.url()
    }

    /// The simulator's bill for each call.
    pub fn bill(&self, calls: &[ClientCall]) -> Result<Vec<Row>, Failure> {
        let records = self.sim.requests();
        let bill = |call: &ClientCall| {
            let record = records.iter().find(|record| record.request_id == call.request_id)?;
            Some(Row {
                who: call.who.clone(),
                turn: call.turn,
                plan: call.plan.clone(),
                reason: call.reason.clone(),
                usage: record.usage?,
                cost_usd: record.cost_usd,
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
