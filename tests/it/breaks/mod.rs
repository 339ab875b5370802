//! Cache breaks: each has its cause and its price, and where nothing broke nothing is said.

mod causes;
mod calm;
mod stress;
mod volatile;
mod diagnostics;
mod headers;
mod replay_agrees;
mod faded;

use std::time::Duration;

use forkpoint::config::{Config, Mode};
use forkpoint::sim::{BilledUsage, Latency, Sim, SimConfig};
use serde_json::{Value, json};

use super::harness::{Forkpoint, Log, until};
use super::workload::{Exchange, Letter, Line, prose, tool};

/// A simulator, forkpoint in front of it, and what forkpoint says.
struct Stage {
    sim: Sim,
    forkpoint: Forkpoint,
    log: Log,
}

const ALIGN: fn(&mut Config) = |config| config.server.mode = Mode::Align;
const OBSERVE: fn(&mut Config) = |config| config.server.mode = Mode::Observe;

impl Stage {
    async fn with(configure: impl FnOnce(&mut Config)) -> Stage {
        let log = Log::start();
        let config = SimConfig { latency: Latency::none(), ..SimConfig::default() };
        let sim = Sim::start(config).await.unwrap();
        let forkpoint = Forkpoint::with(&sim.url(), configure).await;
        Stage { sim, forkpoint, log }
    }

    fn line(&self) -> Line<'_> {
        let url = format!("http://{}", self.forkpoint.address);
        Line::through(url, self.forkpoint.proxy.clone(), &self.sim)
    }

    /// Sends a body, and waits until forkpoint has said what it thinks of the answer.
    async fn send(&self, letter: &Letter) -> (Exchange, Value) {
        self.send_on(&self.line(), letter).await
    }

    /// The same, for those who have much to say.
    async fn send_on(&self, line: &Line<'_>, letter: &Letter) -> (Exchange, Value) {
        let before = self.log.count();
        let exchange = line.send(letter).await;
        assert_eq!(exchange.status, 200, "{}", String::from_utf8_lossy(&exchange.answer));
        until("a line in the log", || self.log.count() > before).await;
        (exchange, self.log.records().remove(before))
    }

    async fn ask(&self, body: &Value) -> (Exchange, Value) {
        self.send(&Letter::alone(body)).await
    }

    /// Lets time pass, for all of us.
    fn pass(&self, time: Duration) {
        self.sim.clock().advance(time);
        self.forkpoint.proxy.clock().skip(u64::try_from(time.as_millis()).unwrap());
    }

    /// Lets the simulator forget what is cached.
    async fn forget(&self) {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        client.delete(format!("{}/sim/cache", self.sim.url())).send().await.unwrap();
    }

    /// How often the cache broke, by the metric with these labels.
    fn breaks(&self, labels: &[&str]) -> f64 {
        self.forkpoint.metric("forkpoint_cache_breaks_total", labels)
    }

    /// Fails if anything was said to have broken in so many exchanges.
    async fn is_calm(&self, exchanges: usize, what: &str) {
        until("all lines in the log", || self.log.count() >= exchanges).await;
        for (index, record) in self.log.records().iter().enumerate() {
            assert_eq!(record.get("break_cause"), None, "{what}, request {}: {record}", index + 1);
        }
        assert_eq!(self.breaks(&[]), 0.0, "{what}");
    }
}

/// The tokens that a request read from the cache or left in it.
fn cached(exchange: &Exchange) -> u64 {
    let usage: BilledUsage = exchange.usage.unwrap();
    usage.cache_read + usage.cache_write()
}

fn read(exchange: &Exchange) -> u64 {
    exchange.usage.unwrap().cache_read
}

fn text(text: impl Into<String>) -> Value {
    json!({"type": "text", "text": text.into()})
}

fn marked(mut block: Value) -> Value {
    block["cache_control"] = json!({"type": "ephemeral"});
    block
}

fn user(blocks: Value) -> Value {
    json!({"role": "user", "content": blocks})
}

/// The request of a turn: everything said so far, with the static part and the end marked.
fn turn(number: usize) -> Value {
    let mut messages = Vec::new();
    for asked in 1..=number {
        if asked > 1 {
            messages.push(json!({"role": "assistant", "content": [text(format!("Answer {}.", asked - 1))]}));
        }
        messages.push(user(json!([text(prose(&format!("Question {asked}."), 100))])));
    }
    let last = messages.last_mut().unwrap();
    last["content"][0] = marked(last["content"][0].clone());
    json!({
        "model": "claude-opus-4-8",
        "max_tokens": 1_000,
        "tools": [tool("search"), tool("run")],
        "system": [marked(text(prose("You find out why.", 1_200)))],
        "messages": messages,
    })
}
