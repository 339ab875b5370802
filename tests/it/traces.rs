//! Traces, as a receiver in another process decodes them.

pub mod receiver;

use std::collections::HashMap;

use forkpoint::config::GateScope;
use forkpoint::sim::{Sim, SimConfig};
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1::Span;
use serde_json::json;

use crate::fork::scene::Scene;
use crate::harness::samples::{self, EVENTS};
use crate::harness::upstream::Answering;
use crate::harness::{Binary, Forkpoint, Upstream, post, until};
use crate::workload::prose;

use receiver::{Export, Receiver};

const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// The spans of one request to the receiver, by name.
fn spans(told: &Export) -> HashMap<String, Span> {
    all_spans(told).into_iter().map(|span| (span.name.clone(), span)).collect()
}

fn all_spans(told: &Export) -> Vec<Span> {
    told.spans.clone().unwrap_or_else(|| panic!("not decoded: {}", told.body))
}

fn attribute(span: &Span, key: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key == key)?;
    Some(match found.value.clone()?.value? {
        Any::StringValue(text) => text,
        Any::IntValue(number) => number.to_string(),
        Any::ArrayValue(list) => format!("{} values", list.values.len()),
        other => panic!("{key}: {other:?}"),
    })
}

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn upstream() -> Answering {
    let headers = "content-type: text/event-stream\r\nrequest-id: req_1\r\n";
    Upstream::answering(&samples::answer(headers, EVENTS.concat().as_bytes())).await
}

fn call(headers: &str) -> Vec<u8> {
    post("/v1/messages", &format!("x-api-key: key\r\n{headers}"), samples::PROMPT)
}

#[tokio::test]
async fn an_exchange_continues_the_callers_trace_and_changes_no_header() {
    let (mut collector, mut upstream) = (Receiver::start().await, upstream().await);
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("headers");
    std::fs::write(&secret, "x-collector-key: hush\n").unwrap();
    let url = collector.url();
    let settings = [("TRACE__ENDPOINT", &*url), ("TRACE__HEADERS_FILE", secret.to_str().unwrap())];
    let binary = Binary::serve(&upstream.url(), &settings).await;
    let session = "x-claude-code-session-id: 0b4f9a52-7d6e-4c3b-9a51-2f6f8f3f5c11\r\n";
    let headers = format!("{session}traceparent: {TRACEPARENT}\r\ntracestate: a=b\r\n");
    binary.client().await.ask(&call(&headers)).await;
    let asked = upstream.next().await;
    assert_eq!(asked.head.get("traceparent").as_deref(), Some(TRACEPARENT));
    assert_eq!(asked.head.get("tracestate").as_deref(), Some("a=b"));
    let told = collector.next().await;
    assert_eq!(told.line, "POST /v1/traces HTTP/1.1");
    assert_eq!(
        (&*told.headers["content-type"], &*told.headers["x-collector-key"]),
        ("application/json", "hush")
    );
    let spans = spans(&told);
    let (whole, chat, first) = (&spans["forkpoint messages"], &spans["chat claude-x"], &spans["first_byte"]);
    for span in spans.values() {
        assert_eq!(hex(&span.trace_id), "0af7651916cd43dd8448eb211c80319c");
        assert!(span.start_time_unix_nano > 0 && span.start_time_unix_nano <= span.end_time_unix_nano);
    }
    assert_eq!(hex(&whole.parent_span_id), "b7ad6b7169203331");
    assert_eq!((&chat.parent_span_id, &first.parent_span_id), (&whole.span_id, &chat.span_id));
    assert_eq!((whole.kind, chat.kind, first.kind), (2, 3, 1));
    for (key, value) in [
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.request.model", "claude-x"),
        ("gen_ai.usage.input_tokens", "10"),
        ("gen_ai.usage.output_tokens", "5"),
        ("gen_ai.usage.cache_read.input_tokens", "2"),
        ("gen_ai.usage.cache_creation.input_tokens", "7"),
        ("gen_ai.response.finish_reasons", "1 values"),
        ("http.response.status_code", "200"),
        ("gen_ai.response.id", "msg_1"),
        ("gen_ai.response.model", "claude-x"),
        ("server.address", "127.0.0.1"),
    ] {
        assert_eq!(attribute(chat, key).as_deref(), Some(value), "{key}");
    }
    assert_eq!(attribute(whole, "forkpoint.plan").as_deref(), Some("aligned"));
    assert_eq!(attribute(whole, "forkpoint.tenant").unwrap().len(), 8);
    assert_eq!(attribute(chat, "gen_ai.conversation.id"), attribute(whole, "forkpoint.session"));
    assert_eq!(attribute(chat, "gen_ai.conversation.id").unwrap().len(), 8);
    assert!(upstream.url().ends_with(&attribute(chat, "server.port").unwrap()));
    let id = binary.line("forkpoint::request").await;
    assert!(id.contains(" trace_id=0af7651916cd43dd8448eb211c80319c "), "{id}");
    assert!(id.contains(&format!("id={} ", attribute(whole, "forkpoint.request.id").unwrap())), "{id}");
}

#[tokio::test]
async fn the_variables_of_open_telemetry_name_collector_and_sender_where_no_key_does() {
    let (mut collector, upstream) = (Receiver::start().await, upstream().await);
    let url = collector.url();
    let settings = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &*url),
        ("OTEL_SERVICE_NAME", "checkout"),
        ("OTEL_RESOURCE_ATTRIBUTES", "team=a%2Cb"),
        ("LOG__FORMAT", "json"),
    ];
    let binary = Binary::serve(&upstream.url(), &settings).await;
    binary.client().await.ask(&call("")).await;
    let told = collector.next().await;
    let attributes =
        &serde_json::from_str::<serde_json::Value>(&told.body).unwrap()["resourceSpans"][0]["resource"];
    for (name, value) in [("service.name", "checkout"), ("team", "a,b")] {
        let attribute = json!({"key": name, "value": {"stringValue": value}});
        let all = attributes["attributes"].as_array().unwrap();
        assert!(all.contains(&attribute), "{attributes}");
        assert_eq!(all.iter().filter(|one| one["key"] == name).count(), 1, "{attributes}");
    }
    let trace = hex(&all_spans(&told)[0].trace_id);
    assert_eq!(binary.records(1).await[0]["trace_id"], trace, "of the trace that began here");
}

#[tokio::test]
async fn the_trace_of_a_caller_is_in_the_log_where_none_is_sent() {
    let upstream = upstream().await;
    let binary = Binary::serve(&upstream.url(), &[("LOG__FORMAT", "json")]).await;
    for headers in [String::new(), format!("traceparent: {TRACEPARENT}\r\n")] {
        binary.client().await.ask(&call(&headers)).await;
    }
    let records = binary.records(2).await;
    assert_eq!(records[0].get("trace_id"), None);
    assert_eq!(records[1]["trace_id"], "0af7651916cd43dd8448eb211c80319c");
}

#[tokio::test]
async fn the_upstream_is_told_only_if_asked_for() {
    let (mut collector, mut upstream) = (Receiver::start().await, upstream().await);
    let url = collector.url();
    let settings = [("TRACE__ENDPOINT", &*url), ("TRACE__PROPAGATE", "true")];
    let binary = Binary::serve(&upstream.url(), &settings).await;
    for headers in [String::new(), format!("traceparent: {TRACEPARENT}\r\n")] {
        binary.client().await.ask(&call(&headers)).await;
        let asked = upstream.next().await.head.get("traceparent").unwrap();
        let spans = spans(&collector.next().await);
        let chat = &spans["chat claude-x"];
        assert_eq!(asked, format!("00-{}-{}-01", hex(&chat.trace_id), hex(&chat.span_id)));
        assert_eq!(headers.is_empty(), spans["forkpoint messages"].parent_span_id.is_empty());
    }
}

#[tokio::test]
async fn what_is_not_sampled_is_not_told() {
    let (mut collector, upstream) = (Receiver::start().await, upstream().await);
    let url = collector.url();
    let settings = [("TRACE__ENDPOINT", &*url), ("TRACE__SAMPLE", "0.0")];
    let mut binary = Binary::serve(&upstream.url(), &settings).await;
    let unsampled = TRACEPARENT.replace("-01", "-00");
    binary.client().await.ask(&call("")).await;
    binary.client().await.ask(&call(&format!("traceparent: {unsampled}\r\n"))).await;
    binary.client().await.ask(&call(&format!("traceparent: {TRACEPARENT}\r\n"))).await;
    binary.signal("TERM").await;
    assert!(binary.exit().await.success());
    let told: Vec<_> = collector.so_far().await.iter().map(|told| spans(told).len()).collect();
    assert_eq!(told, [3], "the one that its sender sampled, before the process ended");
}

#[tokio::test]
async fn a_collector_that_is_gone_costs_traces_and_nothing_else() {
    let upstream = upstream().await;
    // Bound and not listening, so that no other test gets the port.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let gone = format!("http://{}", socket.local_addr().unwrap());
    let forkpoint =
        Forkpoint::with(&upstream.url(), |config| config.trace.endpoint = Some(gone.parse().unwrap())).await;
    for _ in 0..3 {
        assert_eq!(forkpoint.client().await.ask(&call("")).await.status(), 200);
    }
    let dropped = || forkpoint.metric("forkpoint_traces_dropped_total", &["reason=\"export\""]);
    until("three dropped traces", || dropped() == 3.0).await;
    assert_eq!(forkpoint.metric("forkpoint_traces_total", &[]), 0.0);
}

#[tokio::test]
async fn a_hold_has_a_span_of_its_own() {
    let mut collector = Receiver::start().await;
    let sim = Sim::start(SimConfig::default()).await.unwrap();
    let forkpoint = Forkpoint::with(&sim.url(), |config| {
        config.trace.endpoint = Some(collector.url().parse().unwrap());
        config.gate.scope = GateScope::All;
    })
    .await;
    let headers = "x-api-key: key\r\nanthropic-version: 2023-06-01\r\n";
    for system in ["First.", "Second."] {
        let body = json!({"model": "claude-opus-5-5", "max_tokens": 9, "stream": true,
            "system": [{"type": "text", "text": prose(system, 3_000), "cache_control": {"type": "ephemeral"}}],
            "messages": [{"role": "user", "content": "hello"}]});
        let reply =
            forkpoint.client().await.ask(&post("/v1/messages", headers, body.to_string().as_bytes())).await;
        assert_eq!(reply.status(), 200);
        forkpoint.proxy.sinks().flush().await;
    }
    let told: Vec<_> = collector.so_far().await.iter().map(spans).collect();
    let hold = told[1].get("hold").expect("a span");
    assert_eq!(attribute(hold, "forkpoint.gate.outcome").as_deref(), Some("led"));
    assert_eq!(hold.parent_span_id, told[1]["forkpoint messages"].span_id);
}

#[tokio::test]
async fn a_signed_request_keeps_its_own_context() {
    let (mut collector, mut upstream) = (Receiver::start().await, upstream().await);
    let url = collector.url();
    let settings =
        [("TRACE__ENDPOINT", &*url), ("TRACE__PROPAGATE", "true"), ("UPSTREAM__PROFILE", "bedrock")];
    let binary = Binary::serve(&upstream.url(), &settings).await;
    let signed = format!("traceparent: {TRACEPARENT}\r\ndigest: sha-256=x\r\n");
    binary.client().await.ask(&call(&signed)).await;
    assert_eq!(upstream.next().await.head.get("traceparent").as_deref(), Some(TRACEPARENT));
    let spans = spans(&collector.next().await);
    assert_eq!(attribute(&spans["chat claude-x"], "gen_ai.provider.name").as_deref(), Some("aws.bedrock"));
    assert!(!spans.contains_key("hold"), "nobody waited");
}

#[tokio::test]
async fn a_call_of_vertex_names_its_provider_and_the_model_of_its_path() {
    let (mut collector, upstream) = (Receiver::start().await, upstream().await);
    let url = collector.url();
    let binary = Binary::serve(&upstream.url(), &[("TRACE__ENDPOINT", &*url)]).await;
    let target = "/v1/projects/p/locations/l/publishers/anthropic/models/claude-x:rawPredict";
    binary.client().await.ask(&post(target, "authorization: Bearer t\r\n", b"{\"messages\":[]}")).await;
    let spans = spans(&collector.next().await);
    let named = attribute(&spans["chat claude-x"], "gen_ai.provider.name");
    assert_eq!(named.as_deref(), Some("gcp.vertex_ai"));
}

#[tokio::test]
async fn a_client_that_leaves_at_the_gate_was_held_until_then() {
    let mut collector = Receiver::start().await;
    let endpoint = collector.url().parse().unwrap();
    let scene = Scene::fanned_out(2, |config| config.trace.endpoint = Some(endpoint)).await;
    let leader = scene.arrives(0, 1).await;
    let asked = scene.next().await;
    drop(scene.arrives(1, 2).await);
    scene.at_gate(1).await;
    until("the line", || scene.holds("client_left") == 1).await;
    scene.forkpoint.proxy.sinks().flush().await;
    let told: Vec<_> = collector.so_far().await.iter().flat_map(all_spans).collect();
    let left = |span: &&Span| attribute(span, "forkpoint.gate.outcome").as_deref() == Some("client_left");
    let held = told.iter().find(left).expect("a span");
    assert_eq!(held.name, "hold");
    assert!(!told.iter().any(|span| span.trace_id == held.trace_id && span.name.starts_with("chat")));
    drop((leader, asked));
}

#[test]
fn headers_that_cannot_be_used_are_named_and_not_shown() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("headers");
    std::fs::write(&file, "fine: 1\nhush hush\n").unwrap();
    let run = std::process::Command::new(env!("CARGO_BIN_EXE_forkpoint"))
        .env_clear()
        .env("FORKPOINT_TRACE__ENDPOINT", "http://127.0.0.1:4318")
        .env("FORKPOINT_TRACE__HEADERS_FILE", &file)
        .args(["serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(!run.status.success());
    assert!(said.contains("trace.headers_file") && said.contains("line 2"), "{said}");
    assert!(!said.contains("hush"), "{said}");
}
