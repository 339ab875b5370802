//! Many tenants, each with a sign of its own in its key, in all that it says and in all that it is answered.
//!
//! A sign that is found where it does not belong is a foreign byte: the mock looks into every head and body, and the
//! client compares each answer with the one that its own sign makes. A conversation fans out to `SIGNED_CHILDREN`
//! agents, hears from each of them, and goes on:
//!
//! ```text
//! parent ── fan-out ──▶ child 1 ── child 2 ──▶ parent, with what they said
//! ```

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::answers::{self, Answer, SIGNED_CHILDREN};

/// The header by which the mock knows whose request it is.
pub const HEADER: &str = "x-bench-sign";

/// Every sign begins so, and it stands nowhere else.
const MARK: &str = "sign-of-";
/// Digits of the tenant in a sign; the number of the conversation follows.
const TENANT_DIGITS: usize = 6;

/// About a page of text for each part of a prompt.
const REPEATS: usize = 16;

/// Returns true if a sign of another tenant is in these bytes, or none at all.
pub fn is_foreign(sign: &str, bytes: &[u8]) -> bool {
    let own = &sign.as_bytes()[..(MARK.len() + TENANT_DIGITS).min(sign.len())];
    let mut signs = memchr::memmem::find_iter(bytes, MARK).peekable();
    signs.peek().is_none() || own.len() <= MARK.len() || signs.any(|at| !bytes[at..].starts_with(own))
}

/// A conversation of one tenant.
pub struct Signed {
    sign: String,
    key: String,
    step: usize,
}

/// A request and the answer that must come.
pub struct Exchange {
    pub request: Vec<u8>,
    pub answer: String,
}

impl Signed {
    pub fn new(tenant: u64, number: u64) -> Signed {
        let key = format!("{MARK}{tenant:0TENANT_DIGITS$}");
        Signed { sign: format!("{key}-{number}"), key, step: 0 }
    }

    /// The next request, or none when the conversation is over.
    pub fn next(&mut self, target: SocketAddr) -> Option<Exchange> {
        self.step += 1;
        let (answer, expected, body) = match self.step {
            1 => (Answer::SignedFanOut, answers::signed_fan_out(&self.sign), self.parent(None)),
            step if step <= 1 + SIGNED_CHILDREN => {
                (Answer::Signed, answers::signed(&self.sign), self.child(step - 1))
            }
            step if step == 2 + SIGNED_CHILDREN => {
                let said: Value = serde_json::from_str(&answers::signed_fan_out(&self.sign)).unwrap();
                (Answer::Signed, answers::signed(&self.sign), self.parent(Some(&said["content"])))
            }
            _ => return None,
        };
        let body = body.to_string();
        let (sign, key, answer) = (&self.sign, &self.key, answer.as_str());
        let head = format!(
            "POST /v1/messages HTTP/1.1\r\nhost: {target}\r\ncontent-type: application/json\r\nx-api-key: {key}\r\n\
             anthropic-version: 2023-06-01\r\nx-claude-code-session-id: {sign}\r\n{HEADER}: {sign}\r\n\
             x-bench-answer: {answer}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        Some(Exchange { request: [head.as_bytes(), body.as_bytes()].concat(), answer: expected })
    }

    fn parent(&self, answered: Option<&Value>) -> Value {
        let mut body = json!({
            "model": "claude-sonnet-4-6", "max_tokens": 4000, "system": self.page("You lead a team"),
            "tools": [tool("Agent", &["description", "prompt"]), tool("Read", &["path"])],
            "messages": [{"role": "user", "content": self.page("Survey the project")}],
        });
        if let (Some(turn), Some(messages)) = (answered, body["messages"].as_array_mut()) {
            let calls = turn.as_array().into_iter().flatten();
            let results: Vec<Value> = calls
                .map(|call| json!({"type": "tool_result", "tool_use_id": call["id"], "content": self.sign}))
                .collect();
            messages.push(json!({"role": "assistant", "content": turn}));
            messages.push(json!({"role": "user", "content": results}));
        }
        body
    }

    fn child(&self, number: usize) -> Value {
        json!({
            "model": "claude-sonnet-4-6", "max_tokens": 4000, "system": self.page("You are a worker"),
            "tools": [tool("Read", &["path"])],
            "messages": [{"role": "user", "content": answers::signed_directive(&self.sign, number)}],
        })
    }

    fn page(&self, words: &str) -> String {
        format!("{words}, and this is for {}. ", self.sign).repeat(REPEATS)
    }
}

fn tool(name: &str, fields: &[&str]) -> Value {
    let properties: serde_json::Map<String, Value> =
        fields.iter().map(|field| ((*field).to_owned(), json!({"type": "string"}))).collect();
    json!({"name": name, "description": format!("{name} something."),
        "input_schema": {"type": "object", "required": fields, "properties": properties}})
}
