//! A parent that fans out, its children, and what they cost.

use forkpoint::config::{Config, Mode};
use forkpoint::sim::{BilledUsage, Sim, SimConfig};
use serde_json::{Value, json};

use crate::harness::{Forkpoint, PATIENCE};
use crate::workload::{Exchange, Letter, Line, prose, tool};

pub const MODEL: &str = "claude-sonnet-4-6";

/// The simulator, and forkpoint in front of it with a gate that outlasts a busy machine.
pub struct Stage {
    pub sim: Sim,
    pub forkpoint: Forkpoint,
}

impl Stage {
    pub async fn new(configure: impl FnOnce(&mut Config)) -> Stage {
        let sim = Sim::start(SimConfig::default()).await.unwrap();
        let patient = |config: &mut Config| {
            config.server.mode = Mode::Align;
            config.gate.max_hold = PATIENCE;
            configure(config);
        };
        let forkpoint = Forkpoint::with(&sim.url(), patient).await;
        Stage { sim, forkpoint }
    }

    pub fn line(&self) -> Line<'_> {
        let url = format!("http://{}", self.forkpoint.address);
        Line::through(url, self.forkpoint.proxy.clone(), &self.sim)
    }

    /// The sum of the gate's outcomes of this name.
    pub fn holds(&self, outcome: &str) -> u64 {
        holds(&self.forkpoint, outcome)
    }
}

pub fn holds(forkpoint: &Forkpoint, outcome: &str) -> u64 {
    forkpoint.metric("forkpoint_gate_holds_total", &[&format!("outcome=\"{outcome}\"")]) as u64
}

pub fn forks(forkpoint: &Forkpoint, outcome: &str) -> u64 {
    forkpoint.metric("forkpoint_forks_total", &[&format!("outcome=\"{outcome}\"")]) as u64
}

/// The tool that starts agents.
pub fn agent_tool() -> Value {
    json!({"name": "Agent", "description": "Starts a sub-agent.", "input_schema": {"type": "object",
        "properties": {"description": {"type": "string"}, "prompt": {"type": "string"}},
        "required": ["description", "prompt"]}})
}

/// A parent that does what the instruction says.
pub fn parent(instruction: &str) -> Value {
    json!({
        "model": MODEL, "max_tokens": 60_000, "stream": true,
        "tools": [agent_tool(), tool("read_file"), tool("search")],
        "system": [{"type": "text", "text": prose("You lead a team of agents.", 1_500)}],
        "messages": [{"role": "user", "content": format!("Survey the project. {instruction}")}],
    })
}

/// A child as an agent framework starts it: instructions and tools of its own, and the directive.
pub fn child(directive: &str) -> Value {
    json!({
        "model": MODEL, "max_tokens": 4_000, "stream": true,
        "tools": [tool("read_file"), tool("search")],
        "system": [{"type": "text", "text": prose("You are a worker and report once.", 4_000),
            "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": directive}]}],
    })
}

/// The directives that a fan-out gave out, in the order of its calls.
pub fn directives(fan_out: &Exchange) -> Vec<String> {
    let blocks = fan_out.blocks().expect("a fan-out");
    let calls = blocks.iter().filter(|block| block["type"] == "tool_use");
    calls.map(|call| call["input"]["prompt"].as_str().unwrap().to_owned()).collect()
}

/// Sends all at once.
pub async fn together(line: &Line<'_>, letters: Vec<Letter>) -> Vec<Exchange> {
    futures_util::future::join_all(letters.iter().map(|letter| line.send(letter))).await
}

pub fn usage(exchange: &Exchange) -> BilledUsage {
    exchange.usage.expect("an answer that was billed")
}

/// Prompt tokens weighed by price: 1 uncached, 1.25 written, 0.1 read.
pub fn cost(exchanges: &[Exchange]) -> f64 {
    let units = |usage: BilledUsage| {
        usage.uncached as f64 + 1.25 * usage.cache_write() as f64 + 0.1 * usage.cache_read as f64
    };
    exchanges.iter().map(|exchange| units(usage(exchange))).sum()
}

/// Returns true if the answer came to its end.
pub fn is_whole(exchange: &Exchange) -> bool {
    let text = String::from_utf8_lossy(&exchange.answer);
    exchange.status == 200
        && (text.contains("event: message_stop") || text.contains("\"stop_reason\":\"end_turn\""))
}

/// Those that read nothing, and so wrote what all of them share.
pub fn writers(exchanges: &[Exchange]) -> usize {
    exchanges.iter().filter(|exchange| usage(exchange).cache_read == 0).count()
}
