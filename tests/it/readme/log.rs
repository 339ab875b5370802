//! The line of a request: its fields are those of `config/README.md`, and every plan and reason has a sample.
//!
//! `tests/golden/log.jsonl` holds one line for each: what goes with it, and what does not. Times and the like are
//! masked; `UPDATE=1` writes the file anew.

use std::collections::BTreeSet;
use std::path::PathBuf;

use forkpoint::config::{Config, Mode, Profile};
use forkpoint::engine::words::{Reason, Refusal, Skip, Why};
use forkpoint::proxy::panic_injection::Step;
use forkpoint::report::ExchangeRecord;
use forkpoint::sim::faults::{FaultCondition, Rule};
use forkpoint::sim::{InjectedFault, Latency, Sim, SimConfig};
use serde_json::{Value, json};

use super::recorded::Recorded;
use super::{CONFIG, read};
use crate::harness::{Forkpoint, Log, get, post, until};
use crate::workload::{prose, tool};

const MODEL: &str = "claude-sonnet-4-6";
const KEY: &str = "x-api-key: key\r\nanthropic-version: 2023-06-01\r\nuser-agent: claude-cli/2.1.3\r\n";
/// Other every time, and masked.
const MASKED: [&str; 8] = [
    "timestamp",
    "id",
    "gate_ticket",
    "gate_leader",
    "held_ms",
    "first_byte_ms",
    "duration_ms",
    "overhead_us",
];
/// What the subscriber adds to every line.
pub const OF_EVERY_LINE: [&str; 3] = ["timestamp", "level", "target"];

/// A forkpoint before a simulator, and what it logs.
struct Stage {
    sim: Sim,
    forkpoint: Forkpoint,
    log: Log,
    recorded: Recorded,
}

impl Stage {
    async fn new(configure: fn(&mut Config)) -> Stage {
        let log = Log::start();
        let sim = Sim::start(SimConfig { latency: Latency::none(), ..SimConfig::default() }).await.unwrap();
        let recorded = Recorded::new();
        let forkpoint = Forkpoint::with(&sim.url(), recorded.with(configure)).await;
        Stage { sim, forkpoint, log, recorded }
    }

    /// The line of this request, of which the recording says the same.
    async fn line(&self, request: &[u8]) -> Value {
        let before = self.log.count();
        self.forkpoint.client().await.ask(request).await;
        until("the line", || self.log.count() > before).await;
        let line = self.log.records().remove(before);
        self.recorded.says(&self.forkpoint, &line);
        line
    }
}

/// A turn of a conversation with a tool and a system prompt that is worth caching.
fn body() -> Value {
    json!({
        "model": MODEL, "max_tokens": 100, "stream": true, "tools": [tool("read_file")],
        "system": [{"type": "text", "text": prose("You are careful.", 2_000)}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Look around."}]}],
    })
}

/// The same, changed.
fn with(change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let mut body = body();
    change(&mut body);
    ask(&body)
}

fn ask(body: &Value) -> Vec<u8> {
    post("/v1/messages", KEY, body.to_string().as_bytes())
}

fn with_headers(headers: &str) -> Vec<u8> {
    post("/v1/messages", &format!("{KEY}{headers}"), body().to_string().as_bytes())
}

fn marked(count: usize) -> Value {
    let block = |n: usize| json!({"type": "text", "text": prose(&format!("Part {n}."), 1_500), "cache_control": {"type": "ephemeral"}});
    (0..count).map(block).collect()
}

const ALIGN: fn(&mut Config) = |config| config.server.mode = Mode::Align;

/// One line per reason why a request is left alone.
async fn left_alone() -> Vec<Value> {
    let mut lines = Vec::new();
    let chunked = "transfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n0\r\nx-sum: 1\r\n\r\n";
    let twice = body().to_string().replacen('{', "{\"tools\":[],", 1);
    let without_key = String::from_utf8(ask(&body())).unwrap().replace("x-api-key: key\r\n", "");
    let stage = Stage::new(ALIGN).await;
    for request in [
        get("/v1/models"),
        format!("POST /v1/messages HTTP/1.1\r\nhost: here\r\n{KEY}{chunked}").into_bytes(),
        with_headers("content-encoding: gzip\r\n"),
        post("/v1/messages", KEY, b"hello"),
        with_headers("digest: sha-256=x\r\n"),
        without_key.into_bytes(),
        with_headers("x-forkpoint-mode: observe\r\n"),
        with_headers("anthropic-beta: oauth-2025-04-20\r\n"),
        with_headers("x-forkpoint-parent: msg_of_nobody\r\n"),
        post(
            "/v1/messages",
            KEY,
            br#"{"thread":{"type":"continue","previous_message_id":"msg_of_nobody"},"messages":[]}"#,
        ),
        post("/v1/messages", KEY, twice.as_bytes()),
    ] {
        lines.push(stage.line(&request).await);
    }
    let limits: [fn(&mut Config); 3] = [
        |config| config.limits.body_bytes = 100,
        |config| config.limits.held_requests = 0,
        |config| config.limits.held_bytes = 100,
    ];
    for limit in limits {
        lines.push(Stage::new(limit).await.line(&ask(&body())).await);
    }
    lines.push(refused().await);
    lines.push(failing().await);
    lines
}

/// No request can ask for a bug of ours, so that one is ordered.
async fn failing() -> Value {
    let stage = Stage::new(ALIGN).await;
    stage.forkpoint.proxy.panics().inject(Step::Align);
    stage.line(&ask(&body())).await
}

/// The second turn of a conversation whose first was refused as it was aligned.
async fn refused() -> Value {
    let stage = Stage::new(ALIGN).await;
    let matching =
        FaultCondition { body_contains: Some("cache_control".to_owned()), ..FaultCondition::default() };
    let fault = InjectedFault::Status { status: 400, retry_after_s: None };
    stage.sim.faults().order(Rule { fault, count: 9, matching }).unwrap();
    stage.line(&ask(&body())).await;
    stage.line(&later_turn(&body())).await
}

fn later_turn(body: &Value) -> Vec<u8> {
    let mut body = body.clone();
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": "I did."}));
    messages.push(json!({"role": "user", "content": "Go on."}));
    ask(&body)
}

/// One line per reason why no breakpoint was added, and one with breakpoints.
async fn aligned() -> Vec<Value> {
    let mut lines = Vec::new();
    let block = |members: Value| {
        let mut block = json!({"type": "text", "text": "Look."});
        block.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        json!([block])
    };
    let forever = block(json!({"cache_control": {"type": "forever"}}));
    let twice = body().to_string().replacen('{', "{\"cache_control\":null,\"cache_control\":null,", 1);
    let stage = Stage::new(ALIGN).await;
    for request in [
        ask(&body()),
        with(|body| body["messages"][0]["content"] = forever),
        with(|body| body["system"] = marked(5)),
        with(|body| body["system"] = marked(4)),
        with(|body| {
            body.as_object_mut().unwrap().remove("tools");
            body["system"] = json!(prose("You are asked once.", 2_000));
        }),
        with(|body| body["system"] = json!("Be brief.")),
        post("/v1/messages", KEY, twice.as_bytes()),
    ] {
        lines.push(stage.line(&request).await);
    }
    let automatic: fn(&mut Config) = |config| config.upstream.profile = Profile::Automatic;
    lines.push(Stage::new(automatic).await.line(&ask(&body())).await);
    // Where markers stand on blocks only, a string cannot carry one.
    let bedrock: fn(&mut Config) = |config| config.upstream.profile = Profile::Bedrock;
    let string = with(|body| body["messages"][0]["content"] = json!("Look around."));
    lines.push(Stage::new(bedrock).await.line(&string).await);
    lines.push(Stage::new(ALIGN).await.line(&ask(&marked_inside_a_result())).await);
    lines.push(seldom_continues().await);
    lines.push(never_read().await);
    lines
}

/// A client's hour inside a tool result, where it may do nothing.
fn marked_inside_a_result() -> Value {
    let mut body = body();
    let hour = json!({"type": "ephemeral", "ttl": "1h"});
    let text = json!({"type": "text", "text": "Found.", "cache_control": hour});
    let call = json!({"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {}});
    let result = json!({"type": "tool_result", "tool_use_id": "toolu_1", "content": [text]});
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": [call]}));
    messages.push(json!({"role": "user", "content": [result]}));
    body
}

/// After several conversations that nobody went on with.
async fn seldom_continues() -> Value {
    let stage = Stage::new(ALIGN).await;
    let open =
        |number: usize| with(|body| body["messages"][0]["content"] = json!(format!("Question {number}.")));
    for number in 0..20 {
        stage.line(&open(number)).await;
    }
    stage.line(&open(20)).await
}

/// The turn after several that each had another system prompt.
async fn never_read() -> Value {
    let stage = Stage::new(ALIGN).await;
    let mut body = body();
    for day in 1..4 {
        body["system"][0]["text"] = json!(prose(&format!("Today is the {day}."), 2_000));
        stage.line(&ask(&body)).await;
        let messages = body["messages"].as_array_mut().unwrap();
        messages.push(json!({"role": "assistant", "content": [{"type": "text", "text": "Yes."}]}));
        messages.push(json!({"role": "user", "content": [{"type": "text", "text": "And now?"}]}));
    }
    body["system"][0]["text"] = json!(prose("Today is another day.", 2_000));
    stage.line(&ask(&body)).await
}

fn reason(line: &Value) -> (String, String) {
    let text = |field: &str| line[field].as_str().unwrap_or_else(|| panic!("{field} in {line}")).to_owned();
    (text("plan"), text("reason"))
}

/// Plans and reasons that a request may get.
fn promised() -> BTreeSet<(String, String)> {
    let passed = Reason::ALL.iter().map(|reason| ("passthrough", reason.as_str()));
    let skipped = Skip::ALL.iter().map(|skip| ("aligned", skip.as_str()));
    let refused = Refusal::ALL.iter().map(|refusal| ("aligned", refusal.as_str()));
    let others = [Why::Mode, Why::NotAChild, Why::ClientFork].map(|why| ("aligned", why.as_str()));
    let all = passed.chain(skipped).chain(refused).chain(others).chain([("forked", "none")]);
    all.map(|(plan, reason)| (plan.to_owned(), reason.to_owned())).collect()
}

#[tokio::test]
async fn every_plan_and_reason_has_a_sample_line() {
    let mut lines = left_alone().await;
    lines.extend(aligned().await);
    lines.extend(super::forks::lines().await);
    lines.extend(super::written::lines().await);
    let shown: BTreeSet<_> = lines.iter().map(reason).collect();
    let missing: Vec<_> = promised().difference(&shown).cloned().collect();
    assert_eq!((missing, shown.len()), (vec![], promised().len()), "{shown:?}");
    let masked = lines.iter_mut().map(|line| {
        for field in MASKED {
            line.as_object_mut().unwrap().entry(field).and_modify(|value| *value = json!("~"));
        }
        format!("{line}\n")
    });
    let actual: String = masked.collect();
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/log.jsonl");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&golden, &actual).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(&golden).unwrap();
    assert!(
        expected == actual,
        "the lines differ; run again with UPDATE=1 and look at the change:\n{actual}"
    );
}

/// The names in the first column of the table under this heading.
fn documented(text: &str, heading: &str) -> BTreeSet<String> {
    let (_, table) = text.split_once(heading).expect("the table");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

#[test]
fn the_page_names_every_field_and_no_other() {
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    let mut logged = set(ExchangeRecord::LOGGED);
    logged.extend(OF_EVERY_LINE.map(String::from));
    let text = read(CONFIG);
    assert_eq!(documented(&text, "| field | meaning |"), logged);
    assert_eq!(documented(&text, "| member | meaning |"), set(ExchangeRecord::RECORDED));
}

#[test]
fn the_page_explains_every_reason() {
    let text = read(CONFIG);
    for (_, reason) in promised() {
        assert!(text.contains(&format!("`{reason}`")), "{reason}");
    }
}
