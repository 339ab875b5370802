//! A simulator on a free port and a client that speaks to it in sentences.

use forkpoint::sim::{Latency, RequestRecord, Sim, SimConfig};
use reqwest::{Client, RequestBuilder, Response};
use serde_json::{Value, json};

/// A running simulator and a client for it.
pub struct Bench {
    pub sim: Sim,
    pub client: Client,
}

/// No latency: for tests about bytes and tokens.
pub async fn bench() -> Bench {
    bench_with(|_| {}).await
}

pub async fn bench_with(change: impl FnOnce(&mut SimConfig)) -> Bench {
    let mut config = SimConfig { latency: Latency::none(), ..SimConfig::default() };
    change(&mut config);
    let sim = Sim::start(config).await.unwrap();
    sim.clock().freeze();
    Bench { sim, client: Client::builder().no_proxy().build().unwrap() }
}

impl Bench {
    pub fn post(&self, path: &str) -> RequestBuilder {
        let request = self.client.post(format!("{}{path}", self.sim.url()));
        request.header("x-api-key", "sk-test").header("anthropic-version", "2023-06-01")
    }

    pub fn get(&self, path: &str) -> RequestBuilder {
        let request = self.client.get(format!("{}{path}", self.sim.url()));
        request.header("x-api-key", "sk-test").header("anthropic-version", "2023-06-01")
    }

    pub async fn send(&self, body: &Value) -> Response {
        self.post("/v1/messages").json(body).send().await.unwrap()
    }

    /// The answer to a request that must be accepted.
    pub async fn message(&self, body: &Value) -> Value {
        let response = self.send(body).await;
        let status = response.status();
        let answer: Value = response.json().await.unwrap();
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// Status and message of a request that must be refused.
    pub async fn refusal(&self, body: &Value) -> (u16, String) {
        let response = self.send(body).await;
        let status = response.status().as_u16();
        let answer: Value = response.json().await.unwrap();
        assert_eq!(answer["type"], "error", "{answer}");
        (status, answer["error"]["message"].as_str().unwrap().to_owned())
    }

    /// The message of a 400.
    pub async fn invalid(&self, body: &Value) -> String {
        let (status, message) = self.refusal(body).await;
        assert_eq!(status, 400, "{message}");
        message
    }

    pub fn beta(&self, betas: &str) -> RequestBuilder {
        self.post("/v1/messages").header("anthropic-beta", betas)
    }

    /// The answer to a request with these betas, which must be accepted.
    pub async fn message_beta(&self, betas: &str, body: &Value) -> Value {
        let response = self.beta(betas).json(body).send().await.unwrap();
        let status = response.status();
        let answer: Value = response.json().await.unwrap();
        assert_eq!(status, 200, "{answer}");
        answer
    }

    /// Status and `error` of a request with these betas, which must be refused.
    pub async fn refusal_beta(&self, betas: &str, body: &Value) -> (u16, Value) {
        let response = self.beta(betas).json(body).send().await.unwrap();
        let status = response.status().as_u16();
        let mut answer: Value = response.json().await.unwrap();
        assert_eq!(answer["type"], "error", "{answer}");
        (status, answer["error"].take())
    }

    pub async fn usage(&self, body: &Value) -> Tokens {
        Tokens::of(&self.message(body).await["usage"])
    }

    pub fn last_record(&self) -> RequestRecord {
        self.sim.requests().pop().unwrap()
    }
}

/// The prompt side of a usage object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tokens {
    pub read: u64,
    pub write_5m: u64,
    pub write_1h: u64,
    pub uncached: u64,
}

impl Tokens {
    pub fn of(usage: &Value) -> Tokens {
        let count = |value: &Value| value.as_u64().unwrap();
        let tokens = Tokens {
            read: count(&usage["cache_read_input_tokens"]),
            write_5m: count(&usage["cache_creation"]["ephemeral_5m_input_tokens"]),
            write_1h: count(&usage["cache_creation"]["ephemeral_1h_input_tokens"]),
            uncached: count(&usage["input_tokens"]),
        };
        assert_eq!(count(&usage["cache_creation_input_tokens"]), tokens.write_5m + tokens.write_1h);
        tokens
    }

    pub fn writes(&self) -> u64 {
        self.write_5m + self.write_1h
    }
}

pub const OPUS: &str = "claude-opus-4-8";
pub const BOUND: &str = "claude-opus-5-5";

/// A request of the given messages.
pub fn request(messages: Value) -> Value {
    json!({"model": OPUS, "max_tokens": 8000, "messages": messages})
}

/// `request` with other or additional top-level members.
pub fn with(mut body: Value, members: Value) -> Value {
    for (key, value) in members.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// A user message that says so much.
pub fn user(content: impl Into<Value>) -> Value {
    json!({"role": "user", "content": content.into()})
}

pub fn assistant(content: impl Into<Value>) -> Value {
    json!({"role": "assistant", "content": content.into()})
}

pub fn text(words: &str) -> Value {
    json!({"type": "text", "text": words})
}

/// A text block of exactly so many tokens.
pub fn block(label: &str, tokens: usize) -> Value {
    let frame = r#"{"type":"text","text":""}"#.len();
    let padding = tokens * 4 - frame - label.len();
    text(&format!("{label}{}", "x".repeat(padding)))
}

/// The block with a breakpoint on it.
pub fn marked(block: Value) -> Value {
    with(block, json!({"cache_control": {"type": "ephemeral"}}))
}

pub fn marked_1h(block: Value) -> Value {
    with(block, json!({"cache_control": {"type": "ephemeral", "ttl": "1h"}}))
}

pub fn tool(name: &str) -> Value {
    json!({"name": name, "description": format!("The {name} tool."), "input_schema":
        {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}})
}

pub fn agent_tool() -> Value {
    json!({"name": "Agent", "description": "Starts a sub-agent.", "input_schema": {"type": "object",
        "properties": {"description": {"type": "string"}, "prompt": {"type": "string"}},
        "required": ["description", "prompt"]}})
}

/// The events of a stream, as (name, data), checked to be well formed.
pub fn events(stream: &str) -> Vec<(String, Value)> {
    let frames = stream.split("\n\n").filter(|frame| !frame.is_empty());
    frames
        .map(|frame| {
            let (name, data) = frame.split_once('\n').unwrap();
            let name = name.strip_prefix("event: ").unwrap().to_owned();
            let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
            assert_eq!(data["type"], name.as_str());
            (name, data)
        })
        .collect()
}

/// Waits until something is true, by looking; fails when it never is.
pub async fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let looking = async {
        while !is_true() {
            tokio::task::yield_now().await;
        }
    };
    let limit = std::time::Duration::from_secs(20);
    assert!(tokio::time::timeout(limit, looking).await.is_ok(), "it never became true that {what}");
}

/// The bytes of a stream until `needle` has come; the stream stays open.
pub async fn read_until(response: &mut Response, needle: &str) -> String {
    let mut seen = String::new();
    while !seen.contains(needle) {
        let chunk = response.chunk().await.unwrap().expect("the stream ended early");
        seen.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    seen
}
