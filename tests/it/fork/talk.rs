//! Requests whose answers the test writes itself, and what forkpoint took them for.

use std::sync::{Arc, Mutex};

use forkpoint::config::{Config, Mode};
use serde_json::{Value, json};

use crate::harness::peer::Reply;
use crate::harness::upstream::Answering;
use crate::harness::{Forkpoint, PATIENCE, Upstream, post, samples};
use crate::workload::{prose, tool};

use super::fan_out::{MODEL, agent_tool};

/// forkpoint, and an upstream that answers each request with what was written for it.
pub struct Talk {
    pub forkpoint: Forkpoint,
    pub upstream: Answering,
    answers: Arc<Mutex<Vec<Vec<u8>>>>,
}

/// The answer to a request.
#[derive(Debug)]
pub struct Told {
    pub reply: Reply,
}

/// A request and its headers.
#[derive(Clone, Debug)]
pub struct Call {
    pub headers: String,
    pub body: Value,
}

impl Talk {
    pub async fn new() -> Talk {
        Talk::with(|_| ()).await
    }

    pub async fn with(configure: impl FnOnce(&mut Config)) -> Talk {
        let answers: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let written = answers.clone();
        let answer = move |request: &Reply| {
            let number: usize = request.head.get("x-answer").unwrap().parse().unwrap();
            written.lock().unwrap()[number].clone()
        };
        let upstream = Upstream::answering_with(answer).await;
        let patient = |config: &mut Config| {
            config.server.mode = Mode::Align;
            config.gate.max_hold = PATIENCE;
            configure(config);
        };
        let forkpoint = Forkpoint::with(&upstream.url(), patient).await;
        Talk { forkpoint, upstream, answers }
    }

    /// Sends a request and gives it this answer: head and body, as bytes.
    pub async fn answered(&self, call: &Call, answer: Vec<u8>) -> Told {
        let body = serde_json::to_vec(&call.body).unwrap();
        self.answered_as_spelt(&call.headers, &body, answer).await
    }

    /// The same of a body that is written elsewhere.
    pub async fn answered_as_spelt(&self, headers: &str, body: &[u8], answer: Vec<u8>) -> Told {
        self.answered_at("/v1/messages", headers, body, answer).await
    }

    /// The same of a request to another path.
    pub async fn answered_at(&self, target: &str, headers: &str, body: &[u8], answer: Vec<u8>) -> Told {
        let number = {
            let mut answers = self.answers.lock().unwrap();
            answers.push(answer);
            answers.len() - 1
        };
        let headers = format!("{headers}x-answer: {number}\r\n");
        let request = post(target, &headers, body);
        Told { reply: self.forkpoint.client().await.ask(&request).await }
    }

    /// The same with a stream of these blocks.
    pub async fn say(&self, call: &Call, id: &str, blocks: &[Value]) -> Told {
        self.answered(call, streamed(&events(id, prompt_tokens(&call.body), blocks))).await
    }

    /// A request that is answered with words.
    pub async fn ask(&self, call: &Call) -> Told {
        self.say(call, "msg_words", &[text("Here is what I found.")]).await
    }

    /// A parent that fans out to these directives; its fork point is the one of `id`.
    pub async fn fan_out(&self, parent: &Call, id: &str, directives: &[&str]) -> Told {
        let calls: Vec<Value> = directives
            .iter()
            .enumerate()
            .map(|(index, directive)| agent_call(&format!("{id}_{index}"), directive))
            .collect();
        let told = self.say(parent, id, &calls).await;
        assert_eq!(told.reply.status(), 200);
        told
    }

    pub fn children(&self) -> u64 {
        self.forkpoint.metric("forkpoint_children_total", &[]) as u64
    }
}

impl Told {
    pub fn role(&self) -> String {
        self.reply.head.get("x-forkpoint-role").unwrap()
    }

    pub fn fork(&self) -> Option<String> {
        self.reply.head.get("x-forkpoint-fork")
    }

    /// That it was taken for a child, and of which fork point.
    #[track_caller]
    pub fn child(&self) -> String {
        assert_eq!((self.reply.status(), self.role().as_str()), (200, "child"));
        self.fork().expect("a child has a fork point")
    }

    #[track_caller]
    pub fn is_plain(&self) {
        assert_eq!((self.reply.status(), self.role().as_str(), self.fork()), (200, "plain", None));
    }

    #[track_caller]
    pub fn is_parent_of(&self, fork: &str) {
        assert_eq!((self.role().as_str(), self.fork().as_deref()), ("parent", Some(fork)));
    }
}

impl Call {
    pub fn new(body: Value) -> Call {
        Call { headers: "x-api-key: key\r\ncontent-type: application/json\r\n".to_owned(), body }
    }

    pub fn with(mut self, name: &str, value: &str) -> Call {
        self.headers += &format!("{name}: {value}\r\n");
        self
    }

    /// Of another credential.
    pub fn of(mut self, key: &str) -> Call {
        self.headers = self.headers.replace("x-api-key: key", &format!("x-api-key: {key}"));
        self
    }

    /// With other or additional top-level members.
    pub fn and(mut self, member: &str, value: Value) -> Call {
        self.body[member] = value;
        self
    }

    pub fn then(mut self, message: Value) -> Call {
        self.body["messages"].as_array_mut().unwrap().push(message);
        self
    }
}

/// A conversation that fans out, and opens with these words.
pub fn parent(opening: &str) -> Call {
    Call::new(json!({
        "model": MODEL, "max_tokens": 4_000, "stream": true, "tools": [agent_tool(), tool("read_file")],
        "system": [{"type": "text", "text": prose("You lead a team of agents.", 1_500)}],
        "messages": [user(opening)],
    }))
}

/// A new conversation with a tool of its own that opens with these words.
pub fn newcomer(content: impl Into<Value>) -> Call {
    Call::new(json!({
        "model": MODEL, "max_tokens": 4_000, "stream": true, "tools": [tool("read_file")],
        "system": [{"type": "text", "text": prose("You are a worker.", 1_500)}],
        "messages": [user(content)],
    }))
}

/// Long enough to be a directive, and nobody else's.
pub fn directive(about: &str) -> String {
    format!(
        "Survey everything about {about}, read what matters there, and report what you found in a few words."
    )
}

pub fn user(content: impl Into<Value>) -> Value {
    json!({"role": "user", "content": content.into()})
}

pub fn assistant(blocks: &[Value]) -> Value {
    json!({"role": "assistant", "content": blocks})
}

pub fn text(words: &str) -> Value {
    json!({"type": "text", "text": words})
}

pub fn tool_use(id: &str, name: &str, input: Value) -> Value {
    json!({"type": "tool_use", "id": id, "name": name, "input": input})
}

pub fn agent_call(id: &str, directive: &str) -> Value {
    tool_use(id, "Agent", json!({"description": "Survey", "prompt": directive}))
}

pub fn result(id: &str) -> Value {
    json!({"type": "tool_result", "tool_use_id": id, "content": "It is all there."})
}

/// The tokens that a prompt is billed: one for four bytes.
pub fn prompt_tokens(body: &Value) -> usize {
    body.to_string().len() / 4
}

/// A stream of these blocks that ends as such a turn does, bill included.
pub fn events(id: &str, tokens: usize, blocks: &[Value]) -> Vec<String> {
    let calls = blocks.iter().any(|block| block["type"] == "tool_use");
    let stop_reason = if calls { "tool_use" } else { "end_turn" };
    let usage = json!({"input_tokens": 1, "cache_read_input_tokens": 0, "output_tokens": 1,
        "cache_creation_input_tokens": tokens, "cache_creation": {"ephemeral_5m_input_tokens": tokens}});
    let message = json!({"id": id, "type": "message", "role": "assistant", "model": MODEL, "content": [], "usage": usage});
    let mut events = vec![event(json!({"type": "message_start", "message": message}))];
    for (index, block) in blocks.iter().enumerate() {
        let (start, delta) = match block["type"].as_str().unwrap() {
            "tool_use" => (
                json!({"type": "tool_use", "id": block["id"], "name": block["name"], "input": {}}),
                json!({"type": "input_json_delta", "partial_json": block["input"].to_string()}),
            ),
            _ => (text(""), json!({"type": "text_delta", "text": block["text"]})),
        };
        events.push(event(json!({"type": "content_block_start", "index": index, "content_block": start})));
        events.push(event(json!({"type": "content_block_delta", "index": index, "delta": delta})));
        events.push(event(json!({"type": "content_block_stop", "index": index})));
    }
    let delta = json!({"stop_reason": stop_reason});
    events.push(event(json!({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 9}})));
    events.push(event(json!({"type": "message_stop"})));
    events
}

pub fn event(data: Value) -> String {
    format!("event: {}\ndata: {data}\n\n", data["type"].as_str().unwrap())
}

/// Events as an answer of declared length.
pub fn streamed(events: &[String]) -> Vec<u8> {
    samples::answer("content-type: text/event-stream\r\n", events.concat().as_bytes())
}

/// Blocks as one JSON body.
pub fn whole(id: &str, tokens: usize, blocks: &[Value]) -> Vec<u8> {
    let calls = blocks.iter().any(|block| block["type"] == "tool_use");
    let stop_reason = if calls { "tool_use" } else { "end_turn" };
    let message = json!({"id": id, "type": "message", "role": "assistant", "model": MODEL, "content": blocks,
        "stop_reason": stop_reason, "usage": {"input_tokens": tokens, "output_tokens": 9}});
    samples::answer("content-type: application/json\r\n", message.to_string().as_bytes())
}
