//! Children on their parent's prefix, through a real forkpoint: what goes out is what the simulator gets, and what
//! it costs is what the simulator bills.

mod turns;
mod by_client;
mod refused;
mod lost;
pub mod seal;
mod snapshots;
mod required;
mod many;
mod kept;
mod arms;
mod rereads;
mod canary;
mod wire;
mod betas;
mod compaction;
mod open_lists;
mod images;
mod counts;
mod directories;
pub mod threads;
mod compressed;
mod vertex;
mod explained;

use forkpoint::config::Config;
use forkpoint::sim::models::{ModelSpec, public_models};
use forkpoint::sim::{BilledUsage, Sim, SimConfig};
use serde_json::{Value, json};

use crate::harness::{Forkpoint, PATIENCE, until};
use crate::workload::{Exchange, Letter, Line, prose, tool};

/// A model whose thinking is bound to its prefix, and one whose thinking is not.
pub const BOUND: &str = "claude-opus-5-5";
pub const FREE: &str = "claude-sonnet-4-6";

/// The simulator, and forkpoint in its default mode in front of it.
pub struct Stage {
    sim: Sim,
    pub forkpoint: Forkpoint,
}

impl Stage {
    pub async fn new(configure: impl FnOnce(&mut Config)) -> Stage {
        Stage::before(SimConfig::default(), configure).await
    }

    /// Before a simulator of this kind.
    async fn before(sim: SimConfig, configure: impl FnOnce(&mut Config)) -> Stage {
        let sim = Sim::start(sim).await.unwrap();
        let forkpoint = Stage::forkpoint(&sim, configure).await;
        Stage { sim, forkpoint }
    }

    async fn forkpoint(sim: &Sim, configure: impl FnOnce(&mut Config)) -> Forkpoint {
        let patient = |config: &mut Config| {
            config.gate.max_hold = PATIENCE;
            configure(config);
        };
        Forkpoint::with(&sim.url(), patient).await
    }

    /// Another process in the place of this one: it remembers nothing.
    async fn restart(&mut self) {
        self.restart_as(|_| ()).await;
    }

    async fn restart_as(&mut self, configure: impl FnOnce(&mut Config)) {
        self.forkpoint = Stage::forkpoint(&self.sim, configure).await;
    }

    fn line(&self) -> Line<'_> {
        let url = format!("http://{}", self.forkpoint.address);
        Line::through(url, self.forkpoint.proxy.clone(), &self.sim)
    }

    pub async fn send(&self, body: &Value) -> Exchange {
        self.line().send(&Letter::alone(body)).await
    }

    /// The same by an agent that its client names.
    async fn send_as(&self, agent: &str, body: &Value) -> Exchange {
        self.line().send(&Letter::alone(body).with("x-claude-code-agent-id", agent)).await
    }

    /// Lets a parent fan out, and answers what it told its children.
    pub async fn fan_out(&self, body: &Value) -> Vec<String> {
        let before = self.count("forks_total", &["outcome=\"sealed\""]);
        let fan_out = self.send(body).await;
        let told = directives(&fan_out);
        let sealed = || self.count("forks_total", &["outcome=\"sealed\""]) > before;
        until("the fan-out to be sealed", sealed).await;
        told
    }

    fn count(&self, metric: &str, labels: &[&str]) -> u64 {
        self.forkpoint.metric(&format!("forkpoint_{metric}"), labels) as u64
    }

    fn usd(&self, metric: &str) -> f64 {
        self.forkpoint.metric(&format!("forkpoint_{metric}"), &[])
    }
}

/// A simulator whose models have a window of so many tokens.
fn narrow(window_tokens: u64) -> SimConfig {
    let models = public_models().into_iter().map(|model| ModelSpec { window_tokens, ..model });
    SimConfig { models: models.collect(), ..SimConfig::default() }
}

/// A parent with a long history that does what the instruction says.
pub fn parent(model: &str, instruction: &str) -> Value {
    json!({
        "model": model, "max_tokens": 32_000, "stream": true, "thinking": {"type": "adaptive"},
        "tools": [tool("Agent"), tool("read_file"), tool("search")],
        "system": [{"type": "text", "text": prose("You lead a team of agents.", 9_000)}],
        "messages": [
            {"role": "user", "content": prose("Here is the whole project.", 40_000)},
            {"role": "assistant", "content": [{"type": "text", "text": "I have read it."}]},
            {"role": "user", "content": [{"type": "text", "text": format!("Survey it. {instruction}")}]},
        ],
    })
}

/// A child as an agent framework starts it: instructions and tools of its own, and the directive.
pub fn child(model: &str, directive: &str) -> Value {
    json!({
        "model": model, "max_tokens": 4_000, "stream": true, "thinking": {"type": "adaptive"},
        "tools": [tool("read_file"), tool("search")],
        "system": [{"type": "text", "text": prose("You are a worker and report once.", 30_000)}],
        "messages": [{"role": "user", "content": directive}],
    })
}

/// The directives that a fan-out gave out, in the order of its calls.
pub fn directives(fan_out: &Exchange) -> Vec<String> {
    let blocks = fan_out.blocks().expect("a fan-out");
    let calls = blocks.iter().filter(|block| block["type"] == "tool_use");
    calls.map(|call| call["input"]["prompt"].as_str().unwrap().to_owned()).collect()
}

/// Appends the answer and, if it calls tools, their results.
pub fn extend(body: &mut Value, exchange: &Exchange) {
    let blocks = exchange.blocks().unwrap();
    let results: Vec<_> = blocks
        .iter()
        .filter(|block| block["type"] == "tool_use")
        .map(|call| json!({"type": "tool_result", "tool_use_id": call["id"], "content": "found"}))
        .collect();
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": blocks}));
    messages.push(json!({"role": "user", "content": results}));
}

pub fn usage(exchange: &Exchange) -> BilledUsage {
    exchange.usage.unwrap_or_else(|| panic!("not billed: {}", String::from_utf8_lossy(&exchange.answer)))
}

/// Prompt tokens weighed by price: 1 uncached, 1.25 written, 0.1 read.
fn units(usage: BilledUsage) -> f64 {
    usage.uncached as f64 + 1.25 * usage.cache_write() as f64 + 0.1 * usage.cache_read as f64
}

pub fn plan(exchange: &Exchange) -> [&str; 3] {
    ["role", "plan", "reason"].map(|name| exchange.said(name).unwrap_or("none said"))
}

pub const FORKED: [&str; 3] = ["child", "forked", "none"];

pub fn forwarded(exchange: &Exchange) -> Value {
    serde_json::from_slice(&exchange.forwarded).unwrap()
}

/// A value without its markers.
pub fn without_markers(mut body: Value) -> Value {
    fn walk(value: &mut Value) {
        match value {
            Value::Object(members) => {
                members.remove("cache_control");
                members.values_mut().for_each(walk);
            }
            Value::Array(items) => items.iter_mut().for_each(walk),
            _ => {}
        }
    }
    walk(&mut body);
    body
}
