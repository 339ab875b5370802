//! Requests of real clients, shortened, in the order they were sent, each answered as it really was: what the
//! client carried back later.

use serde_json::{Value, json};

use crate::align::wire::{CLIENTS, letters};
use crate::workload::Letter;

use crate::fork::talk::{Call, Talk, Told, events, prompt_tokens, streamed, text, whole};

/// The part of the directives that shortening removed.
const FILLER: &str = " and then read what matters there, and report what you found in a few words";

/// The requests of a client, with directives as long as they were.
fn calls(client: &str) -> Vec<Call> {
    let letters = letters(client);
    let directives = directives(&letters);
    assert!(directives.len() >= 3, "{client}");
    let call = |letter: &Letter| {
        let mut body = String::from_utf8(letter.body.clone()).unwrap();
        for told in &directives {
            body = body.replace(told, &format!("{told}{FILLER}"));
        }
        let headers = letter.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        Call { headers, body: serde_json::from_str(&body).unwrap() }
    };
    letters.iter().map(call).collect()
}

/// The directives of the spawning calls of all turns.
fn directives(letters: &[Letter]) -> Vec<String> {
    let mut told: Vec<String> = Vec::new();
    for letter in letters {
        let body: Value = serde_json::from_slice(&letter.body).unwrap();
        for block in body["messages"].as_array().unwrap().iter().flat_map(blocks) {
            let input = |name: &str| block["input"][name].as_str().map(|text| text.trim().to_owned());
            let spawns =
                block["input"].get("subagent_type").is_some() || block["input"].get("task").is_some();
            let found = input("prompt").or_else(|| input("task")).or_else(|| input("description"));
            if spawns {
                told.extend(found);
            }
        }
    }
    told.sort();
    told.dedup();
    told
}

/// The blocks of a message without markers, a string as one of them.
fn blocks(message: &Value) -> Vec<Value> {
    let mut blocks = match &message["content"] {
        Value::String(words) => vec![text(words)],
        content => content.as_array().unwrap().clone(),
    };
    for block in &mut blocks {
        block.as_object_mut().unwrap().shift_remove("cache_control");
    }
    blocks
}

/// The longest turn that any later request carries after what this one said.
fn answer(call: &Call, all: &[Call]) -> Vec<Value> {
    let messages = |call: &Call| -> Vec<Vec<Value>> {
        call.body["messages"].as_array().unwrap().iter().map(blocks).collect()
    };
    let said = messages(call);
    let turn = |later: &Call| {
        let carried = messages(later);
        let next = later.body["messages"].get(said.len()).filter(|next| next["role"] == "assistant")?;
        (carried[..said.len()] == said[..]).then(|| blocks(next))
    };
    let turns = all.iter().filter_map(turn);
    turns.max_by_key(Vec::len).unwrap_or_else(|| vec![text("Done.")])
}

/// Sends the requests of a client, each answered as it was.
pub async fn play(talk: &Talk, client: &str) -> Vec<Told> {
    let calls = calls(client);
    let mut played = Vec::new();
    for (index, call) in calls.iter().enumerate() {
        let (blocks, tokens, id) = (answer(call, &calls), prompt_tokens(&call.body), format!("msg_{index}"));
        let answer = if call.body["stream"] == json!(true) {
            // The sample streams have no thinking.
            let blocks: Vec<Value> = blocks.into_iter().filter(|block| block["type"] != "thinking").collect();
            streamed(&events(&id, tokens, &blocks))
        } else {
            whole(&id, tokens, &blocks)
        };
        played.push(talk.answered(call, answer).await);
    }
    played
}

/// The role of each request.
async fn roles(client: &str) -> (Talk, Vec<String>) {
    let talk = Talk::new().await;
    let played = play(&talk, client).await;
    let mut forks: Vec<_> = played.iter().filter_map(Told::fork).collect();
    forks.dedup();
    assert_eq!(forks.len(), 1, "{client}: one fan-out, one fork point");
    let roles = played.iter().map(Told::role).collect();
    (talk, roles)
}

#[tokio::test]
async fn every_request_of_the_recorded_clients_is_taken_for_what_it_is() {
    let (p, c, r) = ("plain", "child", "parent");
    for client in CLIENTS {
        let expected: &[&str] = match client {
            "claude-code" => &[p, c, c, c, r, c, c, c, p],
            "claude-code-fork" => &[p, c, c, c, r, c, c, c, p],
            "vercel-ai" => &[p, c, c, c, c, c, c, r],
            "deepagents" | "anthropic-python" => &[p, p, c, c, c, c, c, c, r],
            other => panic!("what does {other} send?"),
        };
        let (talk, roles) = roles(client).await;
        assert_eq!(roles, expected, "{client}");
        assert_eq!(
            (talk.children(), crate::fork::fan_out::forks(&talk.forkpoint, "sealed")),
            (3, 1),
            "{client}"
        );
    }
}
