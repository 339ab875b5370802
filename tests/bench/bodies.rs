//! Request bodies that look like an agent's: a system prompt, tools, and a history of text full of
//! newlines and quotes, in the member order of a coding agent (`messages` before `system` and `tools`).
//!
//! No two bodies of a run are equal. A body is built once per connection and then only its *slots* are
//! overwritten, sixteen hex digits each, so that the generator costs next to nothing per request:
//!
//! ```text
//! Known   {"model":…,"messages":[ history, history, …, {"role":"user", … SLOT … } ],"system":…,"tools":…}
//! Fresh   the same with a SLOT in the first system block, the session and every message
//! ```
//!
//! A scenario that changes more between turns becomes another `Bodies` variant and another arm of `next`.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::json;

/// How one body relates to those before it on the same connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Bodies {
    /// The next turn of a conversation seen before: only the last user message is new.
    Known,
    /// A conversation never seen before, from its first message on.
    Fresh,
}

/// One conversation: a whole HTTP message (head and body) whose slots are rewritten for each request.
pub struct Conversation {
    message: Vec<u8>,
    slots: Vec<usize>,
    head_len: usize,
}

/// What stands in a slot before the first request: sixteen digits that occur nowhere else.
const SLOT: &str = "5107510751075107";

/// Bytes of the last user message, the part that is new on every turn.
const LAST_TURN_BYTES: usize = 2_000;

impl Conversation {
    /// `head` holds the request line and headers without content-length and the empty line.
    pub fn new(head: &str, body_bytes: usize, bodies: Bodies, streamed: bool, seed: u64) -> Conversation {
        let body = build(body_bytes, bodies, streamed, seed);
        assert_eq!(body.len(), body_bytes, "a body must have exactly the size that the table states");
        let mut message = format!("{head}content-length: {}\r\n\r\n", body.len()).into_bytes();
        let head_len = message.len();
        message.extend_from_slice(body.as_bytes());
        let slots = memchr::memmem::find_iter(&message, SLOT).collect();
        Conversation { message, slots, head_len }
    }

    /// The whole request with this number written into its slots.
    pub fn next(&mut self, nonce: u64) -> &[u8] {
        let digits = format!("{nonce:016x}");
        for slot in &self.slots {
            self.message[*slot..*slot + SLOT.len()].copy_from_slice(digits.as_bytes());
        }
        &self.message
    }

    pub fn body(&self) -> &[u8] {
        &self.message[self.head_len..]
    }

    pub fn body_len(&self) -> usize {
        self.message.len() - self.head_len
    }
}

fn build(body_bytes: usize, bodies: Bodies, streamed: bool, seed: u64) -> String {
    let mut words = Words(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let everywhere = if bodies == Bodies::Fresh { SLOT } else { "" };
    let tail = tail(&mut words, everywhere, streamed, seed);

    let mut body = String::with_capacity(body_bytes + 4_096);
    body.push_str(r#"{"model":"claude-sonnet-4-5","messages":["#);
    let mut turn = 0;
    while body.len() + tail.len() + LAST_TURN_BYTES + LONGEST_TURN < body_bytes {
        body.push_str(&turn_text(&mut words, everywhere, turn));
        body.push(',');
        turn += 1;
    }
    // What is missing goes into the last message, as text that needs no escape.
    let open = format!(
        r#"{{"role":"user","content":[{{"type":"text","text":"{SLOT} Please go on, and say \"done\" when it is.\n{}"#,
        escaped(&words.text(LAST_TURN_BYTES / 2))
    );
    let close = r#"","cache_control":{"type":"ephemeral"}}]}"#;
    let missing = body_bytes - body.len() - open.len() - close.len() - tail.len();
    body.push_str(&open);
    body.extend("so that every byte of it is read. ".chars().cycle().take(missing));
    body.push_str(close);
    body.push_str(&tail);
    body
}

/// A turn is at most this long, so that the filling of the last message stays short.
const LONGEST_TURN: usize = 4_200;

fn turn_text(words: &mut Words, mark: &str, turn: usize) -> String {
    let call = format!("toolu_01Bench{turn:08}");
    match turn % 4 {
        0 => json!({"role": "user", "content": [{"type": "text", "text": format!("{mark}{}", words.text(1_200))}]}),
        1 => json!({"role": "assistant", "content": [
            {"type": "text", "text": format!("{mark}{}", words.text(400))},
            {"type": "tool_use", "id": call, "name": "Read", "input": {"file_path": format!("src/part_{turn}.rs"), "limit": 400}}]}),
        2 => json!({"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": format!("toolu_01Bench{:08}", turn - 1), "content": format!("{mark}{}", words.text(3_000))}]}),
        _ => json!({"role": "assistant", "content": [{"type": "text", "text": format!("{mark}{}", words.text(900))}]}),
    }
    .to_string()
}

/// Everything after the messages.
fn tail(words: &mut Words, mark: &str, streamed: bool, seed: u64) -> String {
    let mut tools = Vec::new();
    for name in ["Read", "Edit", "Bash", "Grep", "Agent"] {
        tools.push(json!({
            "name": name,
            "description": words.text(700),
            "input_schema": {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
                "properties": {"file_path": {"type": "string", "description": words.text(80)},
                               "limit": {"type": "number", "minimum": 1, "description": words.text(80)},
                               "mode": {"type": "string", "enum": ["a", "b", "c"]}},
                "required": ["file_path"], "additionalProperties": false}
        }));
    }
    let system = json!([
        {"type": "text", "text": format!("You are a careful engineer. {mark}")},
        {"type": "text", "text": words.text(5_000), "cache_control": {"type": "ephemeral"}}]);
    let mut tail = String::new();
    let _ = write!(
        tail,
        r#"],"system":{system},"tools":{},"metadata":{{"user_id":"user_bench_session_{seed:08x}{mark}"}},"max_tokens":32000,"temperature":1,"stream":{streamed}}}"#,
        serde_json::Value::Array(tools)
    );
    tail
}

fn escaped(text: &str) -> String {
    let quoted = json!(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// A small repeatable source of text (xorshift), so that every run sends the same conversations.
struct Words(u64);

impl Words {
    fn pick(&mut self) -> &'static str {
        const LIST: [&str; 24] = [
            "the",
            "request",
            "\"config\"",
            "returns",
            "a",
            "stream",
            "of",
            "bytes\n",
            "when",
            "`deadline`",
            "is",
            "reached;",
            "fn main() {\n    let x = \"y\";\n}\n",
            "then",
            "naïve",
            "path\\to\\file",
            "3.14",
            "— and",
            "tests/it/main.rs:42:",
            "error:",
            "expected",
            "two",
            "lines\n\n",
            "instead",
        ];
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        LIST[(self.0 >> 33) as usize % LIST.len()]
    }

    fn text(&mut self, bytes: usize) -> String {
        let mut text = String::with_capacity(bytes + 40);
        while text.len() < bytes {
            text.push_str(self.pick());
            text.push(' ');
        }
        text
    }
}
