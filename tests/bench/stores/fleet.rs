//! Fan-outs a second on two replicas behind a round robin, beside one replica and one without a store, round by round.
//!
//! All of them, the clients and the simulator share the cores of this machine: the ratio shows what sharing costs, and not
//! what a second machine brings.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forkpoint::cli::records;
use forkpoint::config::{Config, StoreKind, StoreUrl, ValueOrigin, load_prices};
use forkpoint::metrics::Metrics;
use forkpoint::proxy::live::Live;
use forkpoint::proxy::{Proxy, server};
use forkpoint::sim::{Latency, Sim, SimConfig};
use forkpoint::store::Opened;
use forkpoint::store::records::RecordStore;
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::redis::RedisServer;
use super::requests::Confirming;

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(4);
/// Fan-outs under way at a time, and the children of each.
const AT_ONCE: usize = 4;
const CHILDREN: usize = 3;
const MODEL: &str = "claude-sonnet-4-6";
const PROMPT: usize = 100_000;

/// Replicas in front of a simulator of their own.
pub struct Fleet {
    pub sim: Sim,
    urls: Vec<String>,
    _stops: Vec<watch::Sender<bool>>,
    http: reqwest::Client,
    pub is_stored: bool,
    /// When fork points were confirmed by the store.
    pub confirmed: Arc<Mutex<Vec<Instant>>>,
}

impl Fleet {
    pub async fn start(replicas: usize, configure: impl Fn(&mut Config)) -> Fleet {
        let config = SimConfig { latency: Latency::none(), ..SimConfig::default() };
        let sim = Sim::start(config).await.unwrap();
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let confirmed = Arc::default();
        let (urls, _stops) = (Vec::new(), Vec::new());
        let mut fleet = Fleet { sim, urls, _stops, http, is_stored: false, confirmed };
        for _ in 0..replicas {
            let mut config = Config::default();
            config.upstream.url = fleet.sim.url().parse().unwrap();
            config.fork.policy.context_premium = 100.0;
            config.fork.policy.max_cost_ratio = 100.0;
            configure(&mut config);
            let options = records::options(&config).unwrap();
            let prices = load_prices(None, &ValueOrigin::Default).unwrap();
            let proxy = Arc::new(Proxy::new(config, prices, Arc::new(Metrics::new().unwrap())).unwrap());
            if let Some(options) = options {
                let inner = Arc::clone(Opened::open(options).await.records());
                let confirming = Confirming { inner, confirmed: Arc::clone(&fleet.confirmed) };
                let store: Arc<dyn RecordStore> = Arc::new(confirming);
                proxy.put_behind(Opened::from(store));
                fleet.is_stored = true;
            }
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            fleet.urls.push(format!("http://{}/v1/messages", listener.local_addr().unwrap()));
            let (stop, stopped) = watch::channel(false);
            tokio::spawn(server::serve(listener, Live::from(proxy), stopped));
            fleet._stops.push(stop);
        }
        // The connections to the store are made meanwhile.
        tokio::time::sleep(Duration::from_millis(500)).await;
        fleet
    }

    /// Returns the answer, and true if it was a child on its parent's prefix.
    pub async fn send(&self, replica: usize, body: &Value) -> (Value, bool) {
        let url = &self.urls[replica % self.urls.len()];
        let request =
            self.http.post(url).header("x-api-key", "key").header("anthropic-version", "2023-06-01");
        let answer = request.body(body.to_string()).send().await.unwrap();
        assert_eq!(answer.status().as_u16(), 200);
        let is_forked = answer.headers().get("x-forkpoint-plan").is_some_and(|plan| plan == "forked");
        (serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap_or_default(), is_forked)
    }

    /// A parent, and its children at once, each through the next replica. Returns the number of those that were forked.
    async fn fan_out(&self, number: usize) -> usize {
        let (answer, _) = self.send(number, &parent(number)).await;
        let told: Vec<Value> = directives(&answer).iter().map(|directive| child(directive)).collect();
        assert_eq!(told.len(), CHILDREN);
        let sent = told.iter().enumerate().map(|(place, body)| self.send(number + place, body));
        join_all(sent).await.into_iter().filter(|(_, is_forked)| *is_forked).count()
    }

    /// Returns fan-outs a second in one round, and the share of children that were forked.
    async fn round(&self, round: usize) -> (f64, f64) {
        let began = Instant::now();
        let worker = async |worker: usize| {
            let (mut fan_outs, mut forked) = (0, 0);
            while began.elapsed() < ROUND {
                forked += self.fan_out(round * 1_000_000 + worker * 100_000 + fan_outs).await;
                fan_outs += 1;
            }
            (fan_outs, forked)
        };
        let done = join_all((0..AT_ONCE).map(worker)).await;
        let (fan_outs, forked): (usize, usize) =
            done.iter().fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
        self.sim.forget_requests();
        let took = began.elapsed().as_secs_f64();
        (fan_outs as f64 / took, forked as f64 / (fan_outs * CHILDREN).max(1) as f64)
    }
}

fn tool(name: &str) -> Value {
    json!({"name": name, "description": "Does what it says.", "input_schema": {"type": "object"}})
}

/// What an answer tells its children.
pub fn directives(answer: &Value) -> Vec<String> {
    let calls = answer["content"].as_array().unwrap().iter().filter(|block| block["type"] == "tool_use");
    calls.map(|call| call["input"]["prompt"].as_str().unwrap().to_owned()).collect()
}

pub fn parent(number: usize) -> Value {
    let words = "The parser returns a span of bytes, and the test expects one. ".repeat(PROMPT / 62);
    json!({
        "model": MODEL, "max_tokens": 4_000, "tools": [tool("Agent"), tool("read_file")],
        "system": [{"type": "text", "text": words}],
        "messages": [{"role": "user", "content": [{"type": "text", "text":
            format!("Survey {number}. [[sim:fan_out n={CHILDREN} tool=Agent field=prompt | text words=20]]")}]}],
    })
}

pub fn child(directive: &str) -> Value {
    json!({
        "model": MODEL, "max_tokens": 4_000, "stream": true, "tools": [tool("read_file")],
        "system": [{"type": "text", "text": "You are a worker and report once."}],
        "messages": [{"role": "user", "content": directive}],
    })
}

/// Prints fan-outs a second of each fleet, and each ratio to one replica in the same round: the middle one and both ends.
pub async fn measure(server: &RedisServer) {
    let shared = |config: &mut Config| {
        config.store.kind = StoreKind::Redis;
        config.store.url = Some(StoreUrl::new(server.url()));
    };
    let alone = Fleet::start(1, |_| ()).await;
    let one = Fleet::start(1, shared).await;
    server.command(&["FLUSHALL"]);
    let two = Fleet::start(2, shared).await;
    let fleets = [("one, no store", alone), ("one, redis", one), ("two, redis", two)];
    let mut rounds = vec![Vec::new(); fleets.len()];
    for round in 0..ROUNDS {
        for ((_, fleet), rounds) in fleets.iter().zip(&mut rounds) {
            rounds.push(fleet.round(round).await);
        }
    }
    println!("| replicas | fan-outs/s | × one, redis | children forked |\n|---|---|---|---|");
    for ((name, _), own) in fleets.iter().zip(&rounds) {
        let ratios = own.iter().zip(&rounds[1]).map(|(own, one)| own.0 / one.0);
        let [_, ratio, _] = spread(ratios.clone());
        let [least, _, most] = spread(ratios);
        let [_, rate, _] = spread(own.iter().map(|round| round.0));
        let [_, forked, _] = spread(own.iter().map(|round| round.1));
        println!("| {name} | {rate:.1} | {ratio:.2}, {least:.2}–{most:.2} | {:.0} % |", 100.0 * forked);
    }
}

/// The least, the middle and the most of some figures.
fn spread(figures: impl Iterator<Item = f64>) -> [f64; 3] {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    [figures[0], figures[figures.len() / 2], figures[figures.len() - 1]]
}
