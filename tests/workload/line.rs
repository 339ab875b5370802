//! A line to a simulator, direct or through a proxy, and what went over it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forkpoint::proxy::Proxy;
use forkpoint::sim::{BilledUsage, Sim};
use http::HeaderMap;
use serde_json::{Value, json};

use super::client::{Client, Letter};

/// Simulated time between two turns of a conversation.
const PAUSE: Duration = Duration::from_secs(20);

pub struct Line<'s> {
    /// Where letters are sent: the simulator, or what stands before it.
    pub url: String,
    pub sim: &'s Sim,
    proxy: Option<Arc<Proxy>>,
    http: reqwest::Client,
}

/// One request and its answer, as both ends saw them.
#[derive(Clone, Debug)]
pub struct Exchange {
    pub sent: Letter,
    pub status: u16,
    pub headers: HeaderMap,
    pub answer: Bytes,
    /// The bytes that arrived at the simulator.
    pub forwarded: Bytes,
    pub model: String,
    /// What was billed; nothing if it was refused.
    pub usage: Option<BilledUsage>,
}

impl<'s> Line<'s> {
    pub fn direct(sim: &'s Sim) -> Line<'s> {
        Line::new(sim.url(), sim, None)
    }

    /// Through a proxy that listens at `url` and forwards to the simulator.
    pub fn through(url: String, proxy: Arc<Proxy>, sim: &'s Sim) -> Line<'s> {
        Line::new(url, sim, Some(proxy))
    }

    fn new(url: String, sim: &'s Sim, proxy: Option<Arc<Proxy>>) -> Line<'s> {
        sim.clock().freeze();
        Line { url, sim, proxy, http: reqwest::Client::builder().no_proxy().build().unwrap() }
    }

    /// Lets simulated time pass, for all that stand on the line.
    pub fn pause(&self, pause: Duration) {
        self.sim.clock().advance(pause);
        if let Some(proxy) = &self.proxy {
            proxy.clock().skip(u64::try_from(pause.as_millis()).unwrap());
        }
    }

    pub async fn send(&self, letter: &Letter) -> Exchange {
        let mut request = self.http.post(format!("{}{}", self.url, letter.target));
        for (name, value) in &letter.headers {
            request = request.header(*name, value);
        }
        let answer = request.body(letter.body.clone()).send().await.unwrap();
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let answer = answer.bytes().await.unwrap();
        let id = headers.get("request-id").unwrap().to_str().unwrap();
        let records = self.sim.requests();
        let record = records.into_iter().rev().find(|record| record.request_id == id).unwrap();
        Exchange {
            sent: letter.clone(),
            status,
            headers,
            answer,
            forwarded: record.body,
            model: record.model.unwrap_or_default(),
            usage: record.usage,
        }
    }
}

impl Exchange {
    /// Whether what was sent is what arrived.
    pub fn is_untouched(&self) -> bool {
        self.forwarded == self.sent.body
    }

    /// A header of ours.
    pub fn said(&self, name: &str) -> Option<&str> {
        self.headers.get(format!("x-forkpoint-{name}"))?.to_str().ok()
    }

    /// The blocks of the answer; none if it was a refusal.
    pub fn blocks(&self) -> Option<Vec<Value>> {
        if self.status != 200 {
            return None;
        }
        let kind = self.headers.get("content-type").unwrap().to_str().unwrap();
        match kind.starts_with("text/event-stream") {
            true => Some(streamed(std::str::from_utf8(&self.answer).unwrap())),
            false => {
                let message: Value = serde_json::from_slice(&self.answer).unwrap();
                Some(message["content"].as_array().unwrap().clone())
            }
        }
    }
}

/// Lets a client speak for so many turns; ends early with a refusal.
pub async fn play(client: &mut Client, line: &Line<'_>, turns: usize) -> Vec<Exchange> {
    let mut exchanges: Vec<Exchange> = Vec::with_capacity(turns);
    while exchanges.len() < turns {
        if !exchanges.is_empty() {
            line.pause(PAUSE);
        }
        let exchange = line.send(&client.letter()).await;
        let blocks = exchange.blocks();
        exchanges.push(exchange);
        match blocks {
            Some(blocks) => client.answered(blocks),
            None => break,
        }
    }
    exchanges
}

/// Sends letters that were written elsewhere, at the same pace.
pub async fn resend(letters: impl IntoIterator<Item = Letter>, line: &Line<'_>) -> Vec<Exchange> {
    resend_every(PAUSE, letters, line).await
}

/// Sends letters so far apart.
pub async fn resend_every(
    pause: Duration,
    letters: impl IntoIterator<Item = Letter>,
    line: &Line<'_>,
) -> Vec<Exchange> {
    let mut exchanges: Vec<Exchange> = Vec::new();
    for letter in letters {
        if !exchanges.is_empty() {
            line.pause(pause);
        }
        exchanges.push(line.send(&letter).await);
    }
    exchanges
}

/// Puts the blocks of a stream together, as an SDK does.
fn streamed(stream: &str) -> Vec<Value> {
    let mut blocks: Vec<Value> = Vec::new();
    let mut inputs: Vec<String> = Vec::new();
    for data in stream.lines().filter_map(|line| line.strip_prefix("data: ")) {
        let event: Value = serde_json::from_str(data).unwrap();
        let index = event["index"].as_u64().unwrap_or_default() as usize;
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                blocks.push(event["content_block"].clone());
                inputs.push(String::new());
            }
            "content_block_delta" => {
                let delta = &event["delta"];
                match delta["type"].as_str().unwrap() {
                    "input_json_delta" => inputs[index].push_str(delta["partial_json"].as_str().unwrap()),
                    "signature_delta" => blocks[index]["signature"] = delta["signature"].clone(),
                    kind => append(&mut blocks[index], kind.strip_suffix("_delta").unwrap(), delta),
                }
            }
            "content_block_stop" if blocks[index]["type"] == "tool_use" => {
                let input = if inputs[index].is_empty() { "{}" } else { &inputs[index] };
                blocks[index]["input"] = serde_json::from_str(input).unwrap();
            }
            _ => {}
        }
    }
    blocks
}

fn append(block: &mut Value, member: &str, delta: &Value) {
    let text = format!("{}{}", block[member].as_str().unwrap(), delta[member].as_str().unwrap());
    block[member] = json!(text);
}
