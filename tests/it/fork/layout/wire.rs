//! Real clients, shortened: `tests/golden/wire/<client>/NNN.forked.json` is what goes out for a child; `UPDATE=1`
//! rewrites it. The answers are those that the clients sent back as history.

use std::collections::BTreeSet;
use std::path::PathBuf;

use forkpoint::engine::cache::breakpoints::{self, Profile, Situation, StaticEnds};
use forkpoint::engine::family::fanout::{Newcomer, Recognised};
use forkpoint::engine::fork::betas;
use forkpoint::engine::words::{Origin, Refusal};
use forkpoint::sim::settings::Signatures;
use forkpoint::sim::{Latency, Sim, SimConfig};
use serde_json::{Value, json};

use super::{Fate, Hints, House};

fn folder(client: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/wire").join(client)
}

/// The requests of a client, in order: headers and body.
fn requests(client: &str) -> Vec<(Value, Vec<u8>)> {
    let heads = std::fs::read(folder(client).join("requests.json")).unwrap();
    let heads: Vec<Value> = serde_json::from_slice(&heads).unwrap();
    let body = |number: usize| std::fs::read(folder(client).join(format!("{number:03}.json"))).unwrap();
    let bodies = restored((1..=heads.len()).map(body).collect());
    heads.iter().map(|head| head["headers"].clone()).zip(bodies).collect()
}

/// Some directives were shortened to less than a directive must have: wherever a call's words open a conversation,
/// they get some more.
fn restored(bodies: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let all: Vec<_> = bodies.iter().map(|body| messages(body)).collect();
    let blocks = |message: &Value| message["content"].as_array().cloned().unwrap_or_default();
    let calls = all.iter().flatten().flat_map(blocks).filter(|block| block["type"] == "tool_use");
    let words: BTreeSet<_> = calls.flat_map(|call| strings(&call["input"])).collect();
    let opens = |words: &&String| all.iter().any(|messages| strings(&messages[0]).contains(words));
    let short = words.iter().filter(|words| words.len() < 80).filter(opens);
    let spelt = short.map(|words| {
        let longer = format!("{words}and report all that you find there, in the order that you found it");
        (Value::from(words.as_str()).to_string(), Value::from(longer).to_string())
    });
    let spelt: Vec<_> = spelt.collect();
    let lengthen = |body: Vec<u8>| {
        let body = String::from_utf8(body).unwrap();
        spelt.iter().fold(body, |body, (short, long)| body.replace(short, long)).into_bytes()
    };
    bodies.into_iter().map(lengthen).collect()
}

fn messages(body: &[u8]) -> Vec<Value> {
    let body: Value = serde_json::from_slice(body).unwrap();
    body["messages"].as_array().unwrap().clone()
}

/// The texts of a first message.
fn said(message: &Value) -> String {
    match &message["content"] {
        Value::String(text) => text.clone(),
        blocks => {
            blocks.as_array().unwrap().iter().map(|block| block["text"].as_str().unwrap_or("")).collect()
        }
    }
}

/// The answer to a request: what its client sends back as history in its next one.
fn answer_to(index: usize, all: &[(Value, Vec<u8>)]) -> Option<Value> {
    let own = messages(&all[index].1);
    let next = all[index + 1..].iter().map(|(_, body)| messages(body)).find(|later| {
        later.len() > own.len() && said(&later[0]) == said(&own[0]) && later[own.len()]["role"] == "assistant"
    })?;
    Some(next[own.len()]["content"].clone())
}

/// Plays a client's requests, and hands over each fate.
fn play(client: &str, mut see: impl FnMut(usize, &[u8], &Fate)) {
    let mut house = House::new();
    // The kind of agent that this client's script asks for.
    house.policy.general_types.push("scout".into());
    let all = requests(client);
    for (index, (headers, body)) in all.iter().enumerate() {
        let header = |name: &str| headers[name].as_str();
        let hints =
            Hints { session: header("x-claude-code-session-id"), agent: header("x-claude-code-agent-id") };
        let fate = house.handle(body, hints);
        see(index + 1, body, &fate);
        let Some(content) = answer_to(index, &all) else { continue };
        match fate {
            Fate::Forked(_, binding) => house.child_answered(binding, body, &content),
            Fate::Refused(_) | Fate::Other => {
                let answer = json!({"id": format!("msg_{index}"), "stop_reason": "tool_use", "content": content,
                    "usage": {"input_tokens": 1000, "output_tokens": 10}});
                house.answered(body, hints, &answer);
            }
        }
    }
}

#[test]
fn recorded_children_go_out_as_the_goldens_say() {
    for (client, forked) in [
        ("anthropic-python", vec![3, 4, 5, 6, 7, 8]),
        ("claude-code", vec![2, 3, 4, 6, 7, 8]),
        ("claude-code-fork", vec![]),
        ("deepagents", vec![3, 4, 5, 6, 7, 8]),
        ("vercel-ai", vec![2, 3, 4, 5, 6, 7]),
    ] {
        let mut seen = Vec::new();
        play(client, |number, _, fate| {
            let Fate::Forked(composed, _) = fate else {
                assert!(!matches!(fate, Fate::Refused(_)), "{client} {number:03}");
                return;
            };
            seen.push(number);
            let body = composed.body.pieces.concat();
            let golden = folder(client).join(format!("{number:03}.forked.json"));
            if std::env::var_os("UPDATE").is_some() {
                std::fs::write(&golden, &body).unwrap();
            }
            let expected = std::fs::read(&golden).unwrap_or_default();
            assert!(
                expected == body,
                "{client} {number:03} differs; run with UPDATE=1 and look at the change"
            );
        });
        assert_eq!(seen, forked, "{client}");
    }
}

#[test]
fn the_words_of_recorded_children_are_all_there() {
    for client in ["anthropic-python", "claude-code", "deepagents", "vercel-ai"] {
        play(client, |number, sent, fate| {
            let Fate::Forked(composed, _) = fate else { return };
            let made = composed.body.pieces.concat();
            let made: Value = serde_json::from_slice(&made).unwrap();
            let made = strings(&made);
            let sent: Value = serde_json::from_slice(sent).unwrap();
            for text in strings(&json!([sent["system"], sent["messages"]])) {
                assert!(made.contains(&text), "{client} {number:03} has lost {text:?}");
            }
        });
    }
}

#[test]
fn a_recorded_specialist_is_left_alone() {
    let mut house = House::new();
    let all = requests("deepagents");
    let content = answer_to(1, &all).unwrap();
    let answer = json!({"id": "msg", "stop_reason": "tool_use", "content": content});
    house.answered(&all[1].1, Hints::default(), &answer).unwrap();
    let fate = house.handle(&all[2].1, Hints::default());
    assert!(matches!(fate, Fate::Refused(Refusal::Specialist)));
}

/// Claude Code forks by itself: each child carries its own call alone, so that siblings share the parent's history.
#[test]
fn a_recorded_fork_of_the_client_keeps_its_layout_and_finds_its_parents_entry() {
    let mut house = House::new();
    let all = requests("claude-code-fork");
    let hints = |index: usize| {
        let header = |name: &str| all[index].0[name].as_str();
        Hints { session: header("x-claude-code-session-id"), agent: header("x-claude-code-agent-id") }
    };
    // The parent's whole turn is in its second request.
    let mut content = messages(&all[4].1)[2]["content"].clone();
    for call in content.as_array_mut().unwrap().iter_mut().filter(|block| block["type"] == "tool_use") {
        // It was shortened to less than a directive must have.
        call["input"]["prompt"] = json!(format!("{} {}", call["id"], "look closely ".repeat(10)));
    }
    let answer = json!({"id": "msg", "stop_reason": "tool_use", "content": content});
    house.answered(&all[0].1, hints(0), &answer).unwrap();
    let parent = super::read(&all[0].1);
    let entry = super::written(&parent).unwrap().piece;
    for (index, (_, body)) in all.iter().enumerate().take(4).skip(1) {
        let request = super::read(body);
        let newcomer =
            Newcomer { request: &request, who: super::who(&request, hints(index)), explicit: None };
        let Recognised::ClientFork(child) = house.recognise(&newcomer) else { panic!("{index}") };
        let shared = child.last_shared(&request).unwrap();
        assert_eq!(shared, parent.anatomy().pieces.len() - 1, "the end of the parent's request");
        assert_eq!(shared, entry);
        let situation = Situation {
            shared: Some(shared),
            last_written: Some(entry),
            read_by_others: StaticEnds::BOTH,
            ..Situation::new(Profile::Anthropic)
        };
        let plan = breakpoints::plan(request.body(), request.anatomy(), &situation);
        let last_tool = request.anatomy().tools - 1;
        let is_added = |point: &&breakpoints::Breakpoint| point.origin == Origin::Added;
        let added: Vec<_> = plan.breakpoints.iter().filter(is_added).map(|point| point.piece).collect();
        assert_eq!(added, [last_tool], "nothing else was missing");
        let places: Vec<_> = plan.breakpoints.iter().map(|point| point.piece).collect();
        assert_eq!(places.last(), Some(&(request.anatomy().pieces.len() - 1)), "the tail");
        assert!(
            places.iter().any(|place| (entry..=entry + 19).contains(place)),
            "{places:?}: {entry} is found"
        );
    }
}

#[tokio::test]
async fn the_simulator_takes_every_recorded_child() {
    let mut config = SimConfig { latency: Latency::none(), ..SimConfig::default() };
    // Their thinking was signed elsewhere.
    config.rules.signatures = Signatures::Ignored;
    let sim = Sim::start(config).await.unwrap();
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    for client in ["anthropic-python", "claude-code", "deepagents", "vercel-ai"] {
        let mut forked = Vec::new();
        play(client, |number, _, fate| {
            if let Fate::Forked(composed, _) = fate {
                forked.push((number, composed.body.pieces.concat()));
            }
        });
        let header =
            |index: usize| requests(client)[index].0["anthropic-beta"].as_str().unwrap_or("").to_owned();
        for (number, body) in forked {
            let betas = betas(&header(0), &header(number - 1));
            let request =
                http.post(format!("{}/v1/messages?beta=true", sim.url())).header("x-api-key", "sk-test");
            let request = request.header("anthropic-version", "2023-06-01").header("anthropic-beta", betas);
            let answer = request.header("content-type", "application/json").body(body).send().await.unwrap();
            let status = answer.status();
            assert_eq!(status, 200, "{client} {number:03}: {}", answer.text().await.unwrap());
        }
    }
}

/// Every string of a value that is no key.
fn strings(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => vec![text.clone()],
        Value::Array(items) => items.iter().flat_map(strings).collect(),
        Value::Object(members) => members
            .iter()
            .filter(|(key, _)| *key != "cache_control")
            .flat_map(|(_, item)| strings(item))
            .collect(),
        _ => Vec::new(),
    }
}
