//! What outlives a process. A restart is one of the same simulator: what its cache holds is still there.

mod failing;
mod fleet;
mod fleet_apart;
mod fleet_asks;
mod fleet_faults;
mod fleet_threads;
mod keys;
mod restart;
mod rolling;

use std::path::PathBuf;

use forkpoint::config::{Config, StoreKind};
use forkpoint::sim::{Sim, SimConfig};
use serde_json::Value;

use crate::fork::children::directives;
use crate::harness::{Forkpoint, PATIENCE, until};
use crate::workload::{Exchange, Letter, Line};

/// A parent that starts two children, which look around for some turns.
const SCRIPT: &str =
    "[[sim:fan_out n=3 tool=Agent field=prompt thinking=20 | tools turns=4 tool=search thinking=20]]";

/// The simulator, and forkpoint in front of it with a folder that outlives it.
struct House {
    sim: Sim,
    folder: tempfile::TempDir,
    forkpoint: Forkpoint,
}

impl House {
    async fn new() -> House {
        let sim = Sim::start(SimConfig::default()).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let forkpoint = House::forkpoint(&sim, folder.path().join("store"), |_| ()).await;
        House { sim, folder, forkpoint }
    }

    async fn forkpoint(sim: &Sim, path: PathBuf, configure: impl FnOnce(&mut Config)) -> Forkpoint {
        let behind = |config: &mut Config| {
            config.gate.max_hold = PATIENCE;
            config.store.kind = StoreKind::File;
            config.store.path = Some(path);
            // A test on a busy machine is about what is known, not about when.
            config.store.deadline = PATIENCE;
            configure(config);
        };
        Forkpoint::with(&sim.url(), behind).await
    }

    /// Ends this process as a drain does, and starts another in its place.
    async fn restart(self) -> House {
        self.restart_as(|_| ()).await
    }

    async fn restart_as(self, configure: impl FnOnce(&mut Config)) -> House {
        let House { sim, folder, forkpoint } = self;
        forkpoint.drained().await;
        let forkpoint = House::forkpoint(&sim, folder.path().join("store"), configure).await;
        House { sim, folder, forkpoint }
    }

    fn line(&self) -> Line<'_> {
        let url = format!("http://{}", self.forkpoint.address);
        Line::through(url, self.forkpoint.proxy.clone(), &self.sim)
    }

    async fn send(&self, body: &Value) -> Exchange {
        self.line().send(&Letter::alone(body)).await
    }

    /// Lets a parent fan out, and answers what it told its children.
    async fn fan_out(&self, body: &Value) -> Vec<String> {
        self.fanned_out(&self.send(body).await).await
    }

    /// The directives of a fan-out, once it is known.
    async fn fanned_out(&self, fan_out: &Exchange) -> Vec<String> {
        let sealed = || self.count("forks_total", &["outcome=\"sealed\""]) > 0;
        until("the fan-out to be sealed", sealed).await;
        directives(fan_out)
    }

    fn count(&self, metric: &str, labels: &[&str]) -> u64 {
        self.forkpoint.metric(&format!("forkpoint_{metric}"), labels) as u64
    }

    fn usd(&self, metric: &str) -> f64 {
        self.forkpoint.metric(&format!("forkpoint_{metric}"), &[])
    }
}

/// A request without its markers, which move from turn to turn.
fn unmarked(body: &[u8]) -> Vec<u8> {
    const MARKER: &str = r#","cache_control":{"#;
    let mut text = String::from_utf8(body.to_vec()).unwrap();
    while let Some(start) = text.find(MARKER) {
        let end = start + text[start..].find('}').unwrap();
        text.replace_range(start..=end, "");
    }
    text.into_bytes()
}

/// The bytes that two requests share from their first on, markers aside.
fn shared(one: &[u8], other: &[u8]) -> usize {
    unmarked(one).iter().zip(unmarked(other)).take_while(|(one, other)| *one == other).count()
}

/// The number of bytes of a forked child's prefix, markers aside.
fn prefix_bytes(exchange: &Exchange) -> usize {
    let marked: usize = exchange.said("bytes-shared").unwrap().parse().unwrap();
    marked - (exchange.forwarded.len() - unmarked(&exchange.forwarded).len())
}
