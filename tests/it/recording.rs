//! The recording: one line per Messages exchange, and what `explain --request` makes of it.

use std::path::Path;
use std::process::Output;

use forkpoint::config::{Bodies, Selector};
use forkpoint::report::ExchangeRecord;
use forkpoint::sim::{Sim, SimConfig};
use serde_json::{Value, json};

use crate::harness::samples::{self, EVENTS};
use crate::harness::{Binary, Forkpoint, Upstream, call, post};
use crate::workload::{prose, tool};

pub fn lines(path: &Path) -> Vec<ExchangeRecord> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

fn explain(args: &[&str]) -> Output {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_forkpoint"));
    command.arg("explain").args(args).env_clear().output().unwrap()
}

#[tokio::test]
async fn a_line_says_what_the_log_line_says() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("r.jsonl");
    let headers = "content-type: text/event-stream\r\nrequest-id: req_1\r\n";
    let upstream = Upstream::answering(&samples::answer(headers, EVENTS.concat().as_bytes())).await;
    let settings = [("RECORD__FILE", file.to_str().unwrap()), ("LOG__FORMAT", "json")];
    let mut binary = Binary::serve(&upstream.url(), &settings).await;
    for body in [samples::PROMPT, b"no json"] {
        let headers = "x-api-key: key\r\nx-claude-code-session-id: s\r\nx-claude-code-agent-id: a\r\n\
                       anthropic-beta: one-2025-01-01\r\n";
        binary.client().await.ask(&post("/v1/messages", headers, body)).await;
    }
    binary.client().await.ask(&post("/v1/messages/count_tokens", "", b"{}")).await;
    let logged = binary.records(3).await;
    let (_, metrics) = binary.admin("/metrics").await;
    binary.signal("TERM").await;
    assert!(binary.exit().await.success());
    assert!(metrics.contains("forkpoint_record_lines_total"), "{metrics}");
    let recorded: Vec<Value> = lines(&file).iter().map(|line| serde_json::to_value(line).unwrap()).collect();
    assert_eq!(recorded.len(), 2, "one line per Messages exchange");
    for (line, log) in recorded.iter().zip(&logged) {
        for field in forkpoint::report::ExchangeRecord::LOGGED {
            assert_eq!(line.get(field), log.get(field), "{field}");
        }
        assert_eq!(line["betas"], json!(["one-2025-01-01"]));
        assert_eq!(line["bodies"], "off");
        assert!(line.get("request").is_none());
    }
}

/// Two turns of a conversation whose tools come in another order the second time.
fn turns() -> [Value; 2] {
    let body = |tools: Value, messages: Value| {
        json!({"model": "claude-sonnet-4-6", "max_tokens": 99, "stream": true, "tools": tools,
            "system": [{"type": "text", "text": prose("You are terse.", 3_000)}], "messages": messages})
    };
    let (one, two) = (tool("read_file"), tool("search"));
    let first = json!({"role": "user", "content": [{"type": "text", "text": "Look around."}]});
    [
        body(json!([one, two]), json!([first])),
        body(
            json!([two, one]),
            json!([first, {"role": "assistant", "content": "I see."}, {"role": "user", "content": "And now?"}]),
        ),
    ]
}

#[tokio::test]
async fn what_came_and_what_went_out_are_kept_and_explained() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("r.jsonl");
    let sim = Sim::start(SimConfig::default()).await.unwrap();
    let forkpoint = Forkpoint::with(&sim.url(), |config| {
        config.record.file = Some(file.clone());
        config.record.bodies = Bodies::Redacted;
        config.record.matching = Some(Selector::Agent("00000000".into()));
    })
    .await;
    let version = "x-api-key: key\r\nanthropic-version: 2023-06-01\r\n";
    for body in turns() {
        let reply =
            forkpoint.client().await.ask(&post("/v1/messages", version, body.to_string().as_bytes())).await;
        assert_eq!(reply.status(), 200);
    }
    forkpoint.recorded(2).await;
    forkpoint.proxy.recording().unwrap().flush();
    let recorded = lines(&file);
    assert!(lines(&folder.path().join("r.jsonl.match")).is_empty(), "nobody matches");
    for (line, arrived) in recorded.iter().zip(sim.requests()) {
        let forwarded = line.forwarded.as_ref().or(line.request.as_ref()).unwrap();
        assert_eq!(forwarded.len(), arrived.body.len());
        assert!(line.answer.is_some() && line.begun_ms.is_some());
    }
    assert!(recorded[1].forwarded.is_some(), "the order of its tools was restored");
    let id = recorded[1].id.to_string();
    let shown = explain(&["--request", &id, "--recording", file.to_str().unwrap()]);
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
    let made = "what was made of it: it says the same as before; ";
    for part in
        ["billed: ", "as it came", "as it went out", made, "tools[0]", "tools[1]", "aligned", "breakpoint"]
    {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(!text.contains("would add"), "what was done is told, not what could be: {text}");
    let shown = explain(&["--json", "--request", &id, "--recording", file.to_str().unwrap()]);
    let report: Value = serde_json::from_slice(&shown.stdout).unwrap();
    let changes = report["changes"].as_array().unwrap();
    assert!(
        changes.iter().any(|change| change["change"] == "moved" && change["layer"] == "tools"),
        "{report}"
    );
}

#[tokio::test]
async fn whoever_matches_is_kept_in_full() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("r.jsonl");
    let upstream = Upstream::answering(&samples::message()).await;
    let key = call(samples::PROMPT);
    let digest = {
        let plain = Forkpoint::with(&upstream.url(), |config| config.record.file = Some(file.clone())).await;
        plain.client().await.ask(&key).await;
        plain.recorded(1).await;
        plain.proxy.recording().unwrap().flush();
        lines(&file)[0].tenant.clone().unwrap()
    };
    let forkpoint = Forkpoint::with(&upstream.url(), |config| {
        config.record.file = Some(file.clone());
        config.record.matching = Some(Selector::Tenant(digest));
    })
    .await;
    forkpoint.client().await.ask(&key).await;
    forkpoint.client().await.ask(&post("/v1/messages", "x-api-key: another\r\n", samples::PROMPT)).await;
    forkpoint.recorded(2).await;
    forkpoint.proxy.recording().unwrap().flush();
    assert!(lines(&file).iter().all(|line| line.request.is_none()));
    let matched = lines(&folder.path().join("r.jsonl.match"));
    assert_eq!(matched.len(), 1);
    assert_eq!(matched[0].request.as_deref().map(str::as_bytes), Some(samples::PROMPT));
}

/// A recorded request and what it became.
fn told(line: &Value) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("r.jsonl");
    std::fs::write(&file, format!("{line}\n")).unwrap();
    let shown = explain(&["--request", "1", "--recording", file.to_str().unwrap()]);
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
    String::from_utf8(shown.stdout).unwrap()
}

#[test]
fn forked_refused_and_untouched_requests_are_told_apart() {
    let body = |system: &str| json!({"model": "m", "system": system, "messages": []}).to_string();
    let untouched =
        json!({"v": 1, "id": 1, "plan": "passthrough", "reason": "observe", "request": body("a")});
    assert!(told(&untouched).ends_with("it went out as it came, byte for byte\n"), "{}", told(&untouched));
    let mut refused = untouched.clone();
    refused["refused"] = json!(body("b"));
    assert!(told(&refused).contains("byte for byte, after it had gone out changed and was refused"));
    let mut forked = untouched;
    (forked["plan"], forked["forwarded"]) = (json!("forked"), json!(body("b")));
    (forked["uncached"], forked["cache_read"], forked["output"]) = (json!(3), json!(12_000), json!(7));
    (forked["cache_write_5m"], forked["cache_write_1h"], forked["cost_usd"]) =
        (json!(0), json!(0), json!(0.25));
    (forked["break_cause"], forked["break_layer"], forked["break_at"]) =
        (json!("ttl_expired"), json!("tools"), json!("tools[1]"));
    let text = told(&forked);
    for part in [
        "cache read 12,000 · cache write 5m 0 · cache write 1h 0 · output 7 · $0.250000\n",
        "cache break: ttl_expired, in tools at tools[1], 0 tokens",
        "what was made of it: it was put on its parent's prompt.",
        "+ added ",
        "- left out ",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn a_request_that_is_not_there_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("r.jsonl");
    std::fs::write(&file, "{\"v\":1,\"id\":4}\n").unwrap();
    let path = file.to_str().unwrap();
    for (args, said) in [
        (vec!["--request", "9", "--recording", path], "no request 9"),
        (vec!["--request", "4", "--recording", path], "record.bodies"),
        (vec!["--request", "4"], "--recording"),
        (vec!["--request", "4", "--recording", "/nowhere/r"], "cannot read /nowhere/r"),
    ] {
        let shown = explain(&args);
        let error = String::from_utf8_lossy(&shown.stderr);
        assert!(!shown.status.success() && error.contains(said), "{said} in {error}");
    }
}

#[tokio::test]
async fn a_reload_names_whom_to_keep_and_the_minutes_end() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("r.jsonl");
    let upstream = Upstream::answering(&samples::message()).await;
    let forkpoint = Forkpoint::with(&upstream.url(), |config| config.record.file = Some(file.clone())).await;
    let mut asked = 0;
    let mut kept = async || {
        asked += 1;
        forkpoint.client().await.ask(&call(samples::PROMPT)).await;
        forkpoint.recorded(asked).await;
        forkpoint.proxy.recording().unwrap().flush();
        let matched = std::fs::read_to_string(folder.path().join("r.jsonl.match")).unwrap_or_default();
        matched.lines().count()
    };
    assert_eq!(kept().await, 0);
    let tenant = lines(&file)[0].tenant.clone().unwrap();
    forkpoint.reload(|config| {
        config.record.matching = Some(Selector::Tenant(tenant));
        config.record.match_minutes = 7;
    });
    assert_eq!(kept().await, 1);
    forkpoint.proxy.clock().skip(6 * 60_000);
    assert_eq!(kept().await, 2);
    // A reload that says nothing about it does not begin anew.
    forkpoint.reload(|config| config.gate.min_tokens = 1);
    forkpoint.proxy.clock().skip(60_000);
    assert_eq!(kept().await, 2, "the minutes are over");
    forkpoint.reload(|config| config.record.match_minutes = 8);
    assert_eq!(kept().await, 3, "from here on");
    assert_eq!(lines(&file).len(), 5, "everybody has a line");
    let matched = folder.path().join("r.jsonl.match");
    let id = lines(&matched)[0].id.to_string();
    let shown = explain(&["--request", &id, "--recording", matched.to_str().unwrap()]);
    assert!(shown.status.success(), "{}", String::from_utf8_lossy(&shown.stderr));
}
