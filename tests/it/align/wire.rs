//! Requests of real clients, shortened, in the order they were sent: what `align` makes of each of them.
//!
//! `tests/golden/wire/<client>/NNN.json` has the structure, key order and markers of the wire with filler for
//! prose; `NNN.aligned.json` is what goes out, where that is not the same; `UPDATE=1` rewrites it. All these
//! clients spell stably, so the law is that nothing changes but added markers.

use std::collections::HashMap;
use std::path::PathBuf;

use bytes::Bytes;
use forkpoint::engine::cache::breakpoints::{Profile, Situation, plan};
use forkpoint::engine::request::anatomy::Anatomy;
use forkpoint::engine::request::edit::apply;
use forkpoint::engine::respell::canonical::{
    Choice, Conversation, Limits, Order, Table, Thinking, canonicalize, splice,
};
use forkpoint::sim::settings::Signatures;
use serde_json::Value;

use crate::workload::{Letter, resend};

use super::{Stage, markers_added, reading};

pub const CLIENTS: [&str; 5] =
    ["anthropic-python", "claude-code", "claude-code-fork", "deepagents", "vercel-ai"];

fn folder(client: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/wire").join(client)
}

/// The requests of a client, in order.
pub fn letters(client: &str) -> Vec<Letter> {
    let heads: Value =
        serde_json::from_slice(&std::fs::read(folder(client).join("requests.json")).unwrap()).unwrap();
    let letter = |(index, head): (usize, &Value)| {
        let file = folder(client).join(format!("{:03}.json", index + 1));
        let body = std::fs::read(file).unwrap();
        let mut headers = Letter::alone(&Value::Null).headers;
        for (name, value) in head["headers"].as_object().unwrap() {
            headers.push((&*name.clone().leak(), value.as_str().unwrap().to_owned()));
        }
        let target = if head["target"] == "/v1/messages" { "/v1/messages" } else { "/v1/messages?beta=true" };
        Letter { target, headers, body }
    };
    heads.as_array().unwrap().iter().enumerate().map(letter).collect()
}

/// The engine's two steps over all requests of one tenant, with nothing known but what they said before.
struct ByHand {
    table: Table,
    /// Of conversations whose thinking is bound, by how they open.
    choices: HashMap<String, Choice>,
}

impl ByHand {
    fn new() -> ByHand {
        ByHand { table: Table::new(Limits::TENANT), choices: HashMap::new() }
    }

    fn forward(&mut self, body: Vec<u8>) -> Vec<u8> {
        let body = Bytes::from(body);
        let said = reading(&body);
        let canonical = match said["model"].as_str().unwrap() {
            "claude-opus-5-5" => self.bound(&body, &said),
            _ => self.spell(&body, Thinking::Free),
        };
        let situation = Situation::new(Profile::Anthropic);
        let plan = plan(&canonical, &Anatomy::read(&canonical).unwrap(), &situation);
        apply(&canonical, &plan.edits).pieces.concat()
    }

    fn bound(&mut self, body: &Bytes, said: &Value) -> Bytes {
        let opening = format!("{} {} {}", said["system"], said["tools"], said["messages"][0]);
        let choice = self.choices.remove(&opening);
        let is_first = said["messages"].as_array().unwrap().iter().all(|turn| turn["role"] != "assistant");
        let conversation = if is_first {
            Conversation::Started
        } else {
            Conversation::Continued { choice: choice.as_ref() }
        };
        let anatomy = Anatomy::read(body).unwrap();
        let thinking = Thinking::Bound(conversation);
        let canonical = canonicalize(body, &anatomy, Order::FirstSeen, thinking, &self.table);
        let spelt = Bytes::from(splice(body, &canonical.replacements).concat());
        let mut choice = choice.unwrap_or_else(|| Choice::new(Order::FirstSeen, Limits::CONVERSATION));
        choice.pin(canonical.pins);
        self.table.remember(canonical.interns);
        self.choices.insert(opening, choice);
        spelt
    }

    fn spell(&mut self, body: &Bytes, thinking: Thinking<'_>) -> Bytes {
        let anatomy = Anatomy::read(body).unwrap();
        let canonical = canonicalize(body, &anatomy, Order::FirstSeen, thinking, &self.table);
        let spelt = splice(body, &canonical.replacements).concat();
        self.table.remember(canonical.interns);
        Bytes::from(spelt)
    }
}

#[test]
fn recorded_clients_are_forwarded_as_the_goldens_say() {
    for client in CLIENTS {
        let mut engine = ByHand::new();
        for (index, letter) in letters(client).into_iter().enumerate() {
            let at = format!("{client} {:03}", index + 1);
            let forwarded = engine.forward(letter.body.clone());
            let added = markers_added(&letter.body, &forwarded);
            assert!(added.is_some(), "{at}: a stable client was respelt");
            assert_eq!(reading(&letter.body), reading(&forwarded), "{at}");
            let golden = folder(client).join(format!("{:03}.aligned.json", index + 1));
            if std::env::var_os("UPDATE").is_some() {
                if forwarded == letter.body {
                    drop(std::fs::remove_file(&golden))
                } else {
                    std::fs::write(&golden, &forwarded).unwrap()
                }
            }
            let expected = std::fs::read(&golden).unwrap_or(letter.body);
            assert!(expected == forwarded, "{at} differs; run again with UPDATE=1 and look at the change");
        }
    }
}

#[test]
fn a_client_that_marks_its_tail_and_its_prompt_gets_the_end_of_its_tools_at_most() {
    for client in ["claude-code", "claude-code-fork", "deepagents"] {
        let mut engine = ByHand::new();
        for (index, letter) in letters(client).into_iter().enumerate() {
            let forwarded = engine.forward(letter.body.clone());
            let added = markers_added(&letter.body, &forwarded);
            assert!(added.is_some_and(|added| added <= 1), "{client} {:03}: {added:?}", index + 1);
            let tools = |body: &[u8]| serde_json::from_slice::<Value>(body).unwrap()["tools"].to_string();
            let is_of_tools = tools(&forwarded).len() > tools(&letter.body).len();
            assert_eq!(added == Some(1), is_of_tools, "{client} {:03}", index + 1);
        }
    }
}

#[test]
fn a_client_without_markers_gets_them() {
    for client in ["anthropic-python", "vercel-ai"] {
        let mut engine = ByHand::new();
        for (index, letter) in letters(client).into_iter().enumerate() {
            let forwarded = engine.forward(letter.body.clone());
            let added = markers_added(&letter.body, &forwarded);
            assert!(added.is_some_and(|added| added > 0), "{client} {:03}", index + 1);
        }
    }
}

#[tokio::test]
async fn through_the_proxy_recorded_clients_change_by_markers_only() {
    for client in CLIENTS {
        // Their thinking was signed elsewhere.
        let stage = Stage::aligned_under(|rules| rules.signatures = Signatures::Ignored).await;
        let exchanges = resend(letters(client), &stage.line()).await;
        for (index, exchange) in exchanges.iter().enumerate() {
            let at = format!("{client} {:03}", index + 1);
            assert_eq!(exchange.status, 200, "{at}: {}", String::from_utf8_lossy(&exchange.answer));
            assert!(markers_added(&exchange.sent.body, &exchange.forwarded).is_some(), "{at}");
            assert_eq!(exchange.said("role"), Some("plain"), "{at}");
        }
    }
}
