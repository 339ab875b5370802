//! What a store adds to requests, beside memory alone in the same run; and how soon after its answer a fan-out is durable.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forkpoint::config::{Config, StoreKind, StoreUrl};
use forkpoint::engine::records::Change;
use forkpoint::engine::words::{RecordKind, StoreError, TenantId};
use forkpoint::store::records::{Changes, Lease, RecordStore};
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use super::fleet::{Fleet, child, directives, parent};
use super::redis::RedisServer;
use super::{milliseconds, sorted};

/// Fan-outs on each store.
const ROUNDS: usize = 300;
const WARM_UP: usize = 20;
/// The longest time to wait for a write.
const PATIENCE: Duration = Duration::from_secs(10);
const REQUESTS: [&str; 3] = ["a new conversation, which fans out", "a child's first turn", "a next turn"];

/// A store that notes when it has confirmed a fork point.
pub struct Confirming {
    pub inner: Arc<dyn RecordStore>,
    pub confirmed: Arc<Mutex<Vec<Instant>>>,
}

impl RecordStore for Confirming {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn is_shared(&self) -> bool {
        self.inner.is_shared()
    }

    fn bytes(&self) -> Option<u64> {
        self.inner.bytes()
    }

    fn changes(&self, tenant: TenantId, after: u64) -> BoxFuture<'_, Result<Changes, StoreError>> {
        self.inner.changes(tenant, after)
    }

    fn write(&self, tenant: TenantId, changes: Vec<Change>) -> BoxFuture<'_, Result<u64, StoreError>> {
        self.inner.write(tenant, changes)
    }

    fn write_after(
        &self,
        tenant: TenantId,
        known: u64,
        changes: Vec<Change>,
    ) -> BoxFuture<'_, Result<Option<u64>, StoreError>> {
        let is_fork_point = |change: &Change| change.key().kind == RecordKind::ForkPoint;
        let has_fork_point = changes.iter().any(is_fork_point);
        Box::pin(async move {
            let written = self.inner.write_after(tenant, known, changes).await?;
            if has_fork_point {
                self.confirmed.lock().unwrap().push(Instant::now());
            }
            Ok(written)
        })
    }

    fn forget(&self, tenant: TenantId) -> BoxFuture<'_, Result<bool, StoreError>> {
        self.inner.forget(tenant)
    }

    fn lease(
        &self,
        tenant: TenantId,
        entry: &str,
        owner: &str,
        hold: Duration,
    ) -> BoxFuture<'_, Result<Lease, StoreError>> {
        self.inner.lease(tenant, entry, owner, hold)
    }

    fn release(
        &self,
        tenant: TenantId,
        entry: &str,
        owner: &str,
        written: Option<Duration>,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.release(tenant, entry, owner, written)
    }
}

/// The times of the requests of one store.
#[derive(Default)]
struct Times {
    requests: [Vec<Duration>; REQUESTS.len()],
    /// From the end of the answer that fans out until the store has confirmed the fork point.
    durable: Vec<Duration>,
    /// Children that were not forked.
    unforked: usize,
}

/// A parent, one of its children, and the parent's next turn.
async fn round(fleet: &Fleet, number: usize, times: &mut Times) {
    let confirmed = || fleet.confirmed.lock().unwrap().len();
    let mut timed = async |at: usize, body: &Value| {
        let began = Instant::now();
        let (answer, is_forked) = fleet.send(0, body).await;
        times.requests[at].push(began.elapsed());
        times.unforked += usize::from(at == 1 && !is_forked);
        answer
    };
    let (before, mut body) = (confirmed(), parent(number));
    let answer = timed(0, &body).await;
    let ended = Instant::now();
    if fleet.is_stored {
        while confirmed() == before {
            assert!(ended.elapsed() < PATIENCE, "a fork point is not written");
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        let at = fleet.confirmed.lock().unwrap()[before];
        times.durable.push(at.saturating_duration_since(ended));
    }
    timed(1, &child(&directives(&answer)[0])).await;
    let calls = answer["content"].as_array().unwrap().iter().filter(|block| block["type"] == "tool_use");
    let results: Vec<Value> = calls
        .map(|call| json!({"type": "tool_result", "tool_use_id": call["id"], "content": "It is done."}))
        .collect();
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": answer["content"]}));
    messages.push(json!({"role": "user", "content": results}));
    timed(2, &body).await;
}

/// Prints the times of requests of 100 KB behind each store, what each adds to memory alone, and the time until a fan-out
/// is durable.
pub async fn measure(folder: &Path, server: Option<&RedisServer>) {
    let in_folder = |config: &mut Config| {
        config.store.kind = StoreKind::File;
        config.store.path = Some(folder.join("requests"));
    };
    let mut fleets =
        vec![("memory", Fleet::start(1, |_| ()).await), ("file", Fleet::start(1, in_folder).await)];
    if let Some(server) = server {
        let in_redis = |config: &mut Config| {
            config.store.kind = StoreKind::Redis;
            config.store.url = Some(StoreUrl::new(server.url()));
        };
        fleets.push(("redis", Fleet::start(1, in_redis).await));
    }
    let mut all: Vec<Times> = fleets.iter().map(|_| Times::default()).collect();
    for number in 0..WARM_UP + ROUNDS {
        for ((_, fleet), times) in fleets.iter().zip(&mut all) {
            let mut warm_up = Times::default();
            round(fleet, number, if number < WARM_UP { &mut warm_up } else { times }).await;
            fleet.sim.forget_requests();
        }
    }
    println!(
        "| request | store | p50 ms | p99 ms | added to memory's p50 | p99 |\n|---|---|---|---|---|---|"
    );
    for (at, request) in REQUESTS.iter().enumerate() {
        let memory = sorted(&all[0].requests[at]);
        for ((name, _), times) in fleets.iter().zip(&all) {
            let own = sorted(&times.requests[at]);
            let [half, most] = [0.5, 0.99].map(|share| milliseconds(&own, share));
            let added = [0.5, 0.99].map(|share| {
                let [own, memory] = [&own, &memory].map(|times| milliseconds(times, share));
                format!("{:+.2}", own.parse::<f64>().unwrap() - memory.parse::<f64>().unwrap())
            });
            println!("| {request} | {name} | {half} | {most} | {} | {} |", added[0], added[1]);
        }
    }
    let unforked: usize = all.iter().map(|times| times.unforked).sum();
    println!("\n{unforked} of {} children were not forked", fleets.len() * ROUNDS);
    println!("\n| store | answer's end to confirmed write, p50 ms | p99 ms | most ms |\n|---|---|---|---|");
    for ((name, _), times) in fleets.iter().zip(&all).filter(|((_, fleet), _)| fleet.is_stored) {
        let durable = sorted(&times.durable);
        let [half, most, worst] = [0.5, 0.99, 1.0].map(|share| milliseconds(&durable, share));
        println!("| {name} | {half} | {most} | {worst} |");
    }
    println!();
}
