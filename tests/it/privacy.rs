//! The words of clients stay between them and the upstream.

use serde_json::{Value, json};

use crate::harness::http2::{Http2, request};
use crate::harness::peer::Reply;
use crate::harness::samples::{self, EVENTS};
use crate::harness::{Binary, Forkpoint, Upstream, post};
use crate::traces::receiver::Receiver;

const CANARY: &str = "cAnArY-7f3a";

fn requests() -> Vec<Vec<u8>> {
    let body = format!(
        "{{\"model\":\"claude-x\",\"system\":\"{CANARY}\",\"messages\":[{{\"role\":\"user\",\"content\":\"{CANARY}\"}}],\
         \"metadata\":{{\"user_id\":\"{CANARY}\"}},\"{CANARY}\":1}}"
    );
    let later = json!({
        "model": "claude-x",
        "tools": [{"name": "t", "description": CANARY, "input_schema": {"properties": {CANARY: {"type": CANARY}}}}],
        "messages": [
            {"role": "user", "content": [{"type": CANARY, "text": CANARY, CANARY: CANARY}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": CANARY, "name": "t", "input": {CANARY: [CANARY]}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": CANARY, "content": CANARY}]},
        ],
        "stop_sequences": [CANARY],
    });
    let headers = format!(
        "x-api-key: {CANARY}\r\nauthorization: Bearer {CANARY}\r\nx-claude-code-session-id: {CANARY}\r\n\
         x-claude-code-agent-id: {CANARY}\r\nx-forkpoint-session: {CANARY}\r\nx-custom: {CANARY}\r\n\
         anthropic-workspace-id: {CANARY}\r\ncookie: {CANARY}\r\nanthropic-beta: {CANARY}\r\n\
         x-forkpoint-parent: {CANARY}\r\nx-forkpoint-tool-use: {CANARY}\r\ntracestate: v={CANARY}\r\nuser-agent: claude-cli/2.1.3 ({CANARY})\r\n"
    );
    let broken = format!(
        "POST /v1/messages HTTP/1.1\r\nx: {CANARY}\r\ntransfer-encoding: chunked\r\n\r\n{CANARY}\r\n"
    );
    // Clients, betas and headers that nobody knows, on requests that the upstream refuses in its own words.
    let unknown = format!(
        "x-api-key: {CANARY}\r\nuser-agent: {CANARY}/7.3 {CANARY}\r\n{CANARY}: {CANARY}\r\nx-forkpoint-mode: {CANARY}\r\n\
         anthropic-version: {CANARY}\r\ntraceparent: {CANARY}\r\nx-request-id: {CANARY}\r\n"
    );
    let refused = |model: &str, stream: bool| {
        let body = json!({"model": model, "stream": stream, "max_tokens": 9, "service_tier": CANARY,
            "messages": [{"role": CANARY, "content": CANARY}, {"role": "user", "content": "hello"}]});
        post(&format!("/v1/messages?{CANARY}={CANARY}"), &unknown, body.to_string().as_bytes())
    };
    vec![
        post(&format!("/v1/messages?beta={CANARY}"), &headers, body.as_bytes()),
        refused(CANARY, false),
        // A model that is taken may be named.
        refused("claude-x", true),
        post(&format!("/model/{CANARY}/invoke?{CANARY}"), &unknown, body.as_bytes()),
        post("/v1/messages", &headers, later.to_string().as_bytes()),
        post(&format!("/v1/files/{CANARY}?q={CANARY}"), &headers, CANARY.as_bytes()),
        post("/v1/messages", &headers, CANARY.as_bytes()),
        broken.into_bytes(),
        format!("CONNECT {CANARY}:443 HTTP/1.1\r\nhost: {CANARY}\r\n\r\n").into_bytes(),
        format!("GET /{CANARY} HTTP/1.1\r\nx: {CANARY}\0\r\n\r\n").into_bytes(),
    ]
}

/// The upstream's answer to a version that it does not know: at once, or in the middle of a stream.
fn refusal(request: &Reply) -> Option<Vec<u8>> {
    request.head.get("anthropic-version").filter(|version| version == CANARY)?;
    let body: Value = serde_json::from_slice(&request.body).ok()?;
    let error = json!({"type": "error", "error": {"type": CANARY, "message": CANARY}, "request_id": CANARY});
    if body["stream"] == true {
        let events = [EVENTS[0], EVENTS[1], &format!("event: error\ndata: {error}\n\n")].concat();
        return Some(samples::answer("content-type: text/event-stream\r\n", events.as_bytes()));
    }
    let body = error.to_string();
    let head = format!(
        "HTTP/1.1 404 {CANARY}\r\ncontent-type: application/json\r\n{CANARY}: {CANARY}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    Some([head, body].concat().into_bytes())
}

#[tokio::test]
async fn nothing_that_was_said_appears_in_the_log_the_metrics_a_trace_an_admin_answer_or_a_recording() {
    let said = format!(
        "data: {{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{{\"type\":\"text_delta\",\"text\":\"{CANARY}\"}}}}\n\n"
    );
    let stop = EVENTS[4].replace("end_turn", CANARY);
    let stream = [EVENTS[0], EVENTS[1], &said, EVENTS[3], &stop, EVENTS[5]].concat();
    let headers = format!("content-type: text/event-stream\r\nset-cookie: {CANARY}\r\nrequest-id: req_1\r\n");
    let stream = samples::answer(&headers, stream.as_bytes());
    let upstream = Upstream::answering_with(move |request| match refusal(request) {
        Some(refusal) => refusal,
        None => stream.clone(),
    })
    .await;
    for (format, level, bodies) in
        [("json", "trace", "redacted"), ("human", "trace", "off"), ("json", "info", "redacted")]
    {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("r.jsonl");
        let mut collector = Receiver::start().await;
        let url = collector.url();
        let settings = [
            ("TRACE__ENDPOINT", &*url),
            ("LOG__FORMAT", format),
            ("LOG__LEVEL", level),
            ("RECORD__FILE", file.to_str().unwrap()),
            ("RECORD__BODIES", bodies),
        ];
        let mut binary = Binary::serve(&upstream.url(), &settings).await;
        for request in requests() {
            let mut client = binary.client().await;
            client.send(&request).await;
            client.head().await;
        }
        let mut multiplexed = Http2::at(binary.proxy).await;
        let call = request("POST", &format!("/v1/messages?q={CANARY}")).header("x-api-key", CANARY);
        multiplexed.ask(call.body(()).unwrap(), format!("{{\"system\":\"{CANARY}\"}}").as_bytes()).await;
        // Those that are no HTTP have no line.
        binary.lines("forkpoint::request", requests().len() - 1).await;
        for path in
            ["/metrics", "/healthz", "/readyz", "/api/forks", "/api/prefixes", "/api/breaks", "/api/config"]
        {
            let (status, page) = binary.admin(path).await;
            assert!(status == 200 && !page.contains(CANARY), "{path}: {status} {page}");
        }
        let events = crate::events::snapshot(binary.admin).await;
        assert!(events["exchanges"].as_array().is_some_and(|exchanges| exchanges.len() >= 3), "{events}");
        assert!(!events.to_string().contains(CANARY), "{events}");
        let said = binary.said();
        assert!(level != "trace" || said.iter().any(|line| line.contains("TRACE")), "trace is on");
        for line in said {
            assert!(!line.contains(CANARY), "{format} {level}: {line}");
        }
        binary.signal("TERM").await;
        binary.exit().await;
        let traces = collector.so_far().await;
        assert!(!traces.is_empty(), "no trace came");
        for trace in traces {
            assert!(!trace.body.contains(CANARY), "{}", trace.body);
        }
        let recorded = crate::recording::lines(&file);
        assert!(recorded.len() >= 3, "{} lines", recorded.len());
        let kept = recorded.iter().filter(|line| line.request.is_some() && line.answer.is_some()).count();
        assert_eq!(kept > 0, bodies == "redacted", "bodies are {bodies}");
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(!text.contains(CANARY), "{text}");
    }
}

#[tokio::test]
async fn a_log_line_holds_digests_ids_and_counts() {
    let stream = EVENTS.concat();
    let headers = "content-type: text/event-stream\r\nrequest-id: req_1\r\n";
    let upstream = Upstream::answering(&samples::answer(headers, stream.as_bytes())).await;
    let binary = Binary::serve(&upstream.url(), &[("LOG__FORMAT", "json")]).await;
    let request = requests().remove(0);
    binary.client().await.ask(&request).await;
    let record = binary.records(1).await.remove(0);
    for (field, value) in [
        ("endpoint", "messages"),
        ("role", "plain"),
        ("plan", "passthrough"),
        ("reason", "unknown_parent"),
        ("ending", "complete"),
        ("model", "claude-x"),
        ("client", "claude-cli/2.1"),
        ("upstream_request_id", "req_1"),
        ("stop_reason", "end_turn"),
        ("turn", "whole"),
        ("level", "INFO"),
    ] {
        assert_eq!(record[field], value, "{field} in {record}");
    }
    assert_eq!(
        (&record["status"], &record["output"], &record["cache_write_1h"]),
        (&200.into(), &5.into(), &4.into())
    );
    assert_eq!(record["received"], record["sent"]);
    for (field, digits) in [("received", 16), ("tenant", 8), ("session", 8), ("agent", 8)] {
        let digest = record[field].as_str().unwrap_or_else(|| panic!("{field} in {record}"));
        assert_eq!(digest.len(), digits, "{field}");
        assert!(digest.bytes().all(|b| b.is_ascii_hexdigit()), "{field}: {digest}");
    }
}

/// Whatever an upstream accepts or invents: names and statuses that nobody knows are counted as others.
#[tokio::test]
async fn neither_a_key_in_the_place_of_a_model_nor_an_invented_status_is_a_label() {
    let status = |request: &Reply| request.head.get("x-status").unwrap();
    let upstream = Upstream::answering_with(move |request| {
        format!("HTTP/1.1 {} Told\r\ncontent-length: 2\r\n\r\n{{}}", status(request)).into_bytes()
    });
    let upstream = upstream.await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let key = "kE7".repeat(22);
    let mut client = forkpoint.client().await;
    let mut count = 0;
    for status in (200..1000).step_by(3).chain([529]) {
        let body =
            json!({"model": key[..64], "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]});
        let headers = format!("x-api-key: key\r\nx-status: {status}\r\n");
        // What has no body ends without one.
        let has_body = !matches!(status, 204 | 205 | 304);
        if has_body {
            let reply = client.ask(&post("/v1/messages", &headers, body.to_string().as_bytes())).await;
            assert_eq!(reply.status(), status);
            count += 1;
        }
    }
    forkpoint.recorded(count).await;
    let metrics = forkpoint.metrics.render().unwrap();
    assert!(!metrics.contains(&key[..20]), "{metrics}");
    let counted = |label: &str| forkpoint.metric("forkpoint_requests_total", &[label]);
    let series = metrics.lines().filter(|line| line.starts_with("forkpoint_requests_total{")).count();
    assert!(series < 80, "{series} of {count}");
    assert!(counted("status=\"other\"") > 0.0 && counted("status=\"529\"") == 1.0);
    assert_eq!(counted("model=\"other\""), f64::from(count));
}
