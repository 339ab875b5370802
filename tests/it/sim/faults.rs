//! Faults on demand, and the control endpoints.

use std::io::Read;
use std::time::Duration;

use forkpoint::sim::faults::{FaultCondition, Rule};
use forkpoint::sim::{Encoding, ExchangeEnding, InjectedFault, RefusalCode};
use serde_json::{Value, json};

use super::harness::{
    Bench, bench, bench_with, block, events, marked, read_until, request, until, user, with,
};

fn ask() -> Value {
    request(json!([user("[[sim:text words=200]]")]))
}

fn streamed() -> Value {
    with(ask(), json!({"stream": true}))
}

/// The bytes that arrive, and how the body ended.
async fn drain(mut response: reqwest::Response) -> (Vec<u8>, Result<(), reqwest::Error>) {
    let mut seen = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) => seen.extend_from_slice(&chunk),
            Ok(None) => return (seen, Ok(())),
            Err(error) => return (seen, Err(error)),
        }
    }
}

async fn control(bench: &Bench, path: &str, body: Value) -> reqwest::Response {
    bench.client.post(format!("{}{path}", bench.sim.url())).json(&body).send().await.unwrap()
}

#[tokio::test]
async fn ordered_failures_have_the_apis_shape_and_a_rate_limit_names_a_time() {
    let bench = bench().await;
    for (status, kind) in [(429, "rate_limit_error"), (529, "overloaded_error"), (500, "api_error")] {
        bench.sim.faults().order(InjectedFault::Status { status, retry_after_s: None }).unwrap();
        let response = bench.send(&ask()).await;
        assert_eq!(response.status(), status);
        assert_eq!(response.headers().contains_key("retry-after"), status == 429);
        let answer: Value = response.json().await.unwrap();
        assert_eq!(answer["error"]["type"], kind);
        assert_eq!(answer["request_id"], bench.last_record().request_id.as_str());
    }
    assert_eq!(bench.send(&ask()).await.status(), 200, "each was used up");
}

#[tokio::test]
async fn an_ordered_refusal_has_its_code_in_the_details() {
    let bench = bench().await;
    for code in RefusalCode::ALL {
        control(&bench, "/sim/faults", json!({"fault": "refusal", "code": code})).await;
        let response = bench.send(&ask()).await;
        let status = match code {
            RefusalCode::ThreadNotFound => 404,
            RefusalCode::CompactionUnavailable => 529,
            _ => 400,
        };
        assert_eq!(response.status(), status);
        let answer: Value = response.json().await.unwrap();
        assert_eq!(answer["error"]["details"]["error_code"], code.as_str(), "{answer}");
        assert_eq!(bench.last_record().error_code.as_deref(), Some(code.as_str()));
    }
    let by_header = bench.post("/v1/messages").header("x-sim-refusal", "thread_not_found").json(&ask());
    assert_eq!(by_header.send().await.unwrap().status(), 404);
    let plain = bench.post("/v1/messages").header("x-sim-status", "400").json(&ask());
    let answer: Value = plain.send().await.unwrap().json().await.unwrap();
    assert!(answer["error"].get("details").is_none(), "{answer}");
}

#[tokio::test]
async fn faults_are_ordered_over_http_for_matching_requests() {
    let bench = bench().await;
    let rules = json!([
        {"fault": "status", "status": 529, "count": 2, "match": {"body_contains": "worker 2"}},
        {"fault": "latency", "ms": 0, "match": {"headers": {"x-tag": "t"}}},
    ]);
    assert_eq!(control(&bench, "/sim/faults", rules).await.status(), 200);
    assert_eq!(bench.send(&request(json!([user("worker 1")]))).await.status(), 200);
    assert_eq!(bench.send(&request(json!([user("worker 2")]))).await.status(), 529);
    let waiting: Value = bench.get("/sim/faults").send().await.unwrap().json().await.unwrap();
    assert_eq!(waiting["faults"][0]["count"], 1);
    assert_eq!(waiting["faults"].as_array().unwrap().len(), 2);
    bench.client.delete(format!("{}/sim/faults", bench.sim.url())).send().await.unwrap();
    assert_eq!(bench.send(&request(json!([user("worker 2")]))).await.status(), 200);
}

#[tokio::test]
async fn a_control_request_that_makes_no_sense_says_why() {
    let bench = bench().await;
    for (path, body) in [
        ("/sim/faults", json!({"fault": "earthquake"})),
        ("/sim/faults", json!({"fault": "cut"})),
        ("/sim/clock", json!({"advance": 5})),
    ] {
        let response = control(&bench, path, body.clone()).await;
        assert_eq!(response.status(), 400, "{body}");
        assert!(!response.json::<Value>().await.unwrap()["error"].as_str().unwrap().is_empty());
    }
}

#[tokio::test]
async fn a_cut_breaks_the_connection_at_exactly_that_byte() {
    let bench = bench().await;
    let whole = bench.send(&streamed()).await.bytes().await.unwrap();
    for at in [0, 1, 57, 700, whole.len() - 1] {
        let request = bench.post("/v1/messages").header("x-sim-cut-at", at.to_string());
        let (seen, ending) = drain(request.json(&streamed()).send().await.unwrap()).await;
        assert_eq!(seen.len(), at);
        assert!(ending.is_err(), "cut at {at} must not end cleanly");
        until("the record says so", || bench.last_record().ending == ExchangeEnding::Cut).await;
    }
}

#[tokio::test]
async fn a_json_answer_is_cut_below_its_promised_length() {
    let bench = bench().await;
    bench.sim.faults().order(InjectedFault::Cut { at_byte: 40 }).unwrap();
    let response = bench.send(&ask()).await;
    assert!(response.content_length().unwrap() > 40);
    let (seen, ending) = drain(response).await;
    assert_eq!(seen.len(), 40);
    assert!(ending.is_err());
}

#[tokio::test]
async fn a_stall_holds_the_stream_and_lets_it_go_on_when_it_has_a_length() {
    let bench = bench().await;
    let whole = bench.send(&streamed()).await.text().await.unwrap();
    let request = bench.post("/v1/messages").header("x-sim-stall-at", "100").header("x-sim-stall-ms", "1");
    let (seen, ending) = drain(request.json(&streamed()).send().await.unwrap()).await;
    assert!(ending.is_ok());
    assert_eq!(events(std::str::from_utf8(&seen).unwrap()).len(), events(&whole).len());
}

#[tokio::test]
async fn a_client_that_leaves_a_stalled_stream_is_recorded_as_gone() {
    let bench = bench().await;
    bench.sim.faults().order(InjectedFault::Stall { at_byte: 60, ms: None }).unwrap();
    let mut response = bench.send(&streamed()).await;
    read_until(&mut response, "message_start").await;
    assert_eq!(bench.last_record().ending, ExchangeEnding::Running);
    drop(response);
    until("the client left", || bench.last_record().ending == ExchangeEnding::ClientLeft).await;
}

#[tokio::test]
async fn an_error_event_comes_after_the_headers_and_ends_the_stream() {
    let bench = bench().await;
    let response =
        bench.post("/v1/messages").header("x-sim-error-after", "3").json(&streamed()).send().await.unwrap();
    assert_eq!(response.status(), 200);
    let events = events(&response.text().await.unwrap());
    assert_eq!(events.len(), 4);
    let (name, data) = &events[3];
    assert_eq!(name, "error");
    assert_eq!(data["error"], json!({"type": "overloaded_error", "message": "Overloaded"}));
}

#[tokio::test]
async fn a_stream_that_fails_before_its_first_content_publishes_no_entry() {
    let bench = bench().await;
    let body = with(request(json!([user(json!([marked(block("a", 1200))]))])), json!({"stream": true}));
    bench.sim.faults().order(InjectedFault::ErrorEvent { after_events: 1, status: None }).unwrap();
    bench.send(&body).await.text().await.unwrap();
    assert!(bench.sim.cache_entries().is_empty());
}

fn decode(encoding: Encoding, bytes: &[u8]) -> String {
    let mut text = String::new();
    let read = match encoding {
        Encoding::Gzip => flate2::read::GzDecoder::new(bytes).read_to_string(&mut text),
        Encoding::Deflate => flate2::read::ZlibDecoder::new(bytes).read_to_string(&mut text),
        Encoding::Br => brotli::Decompressor::new(bytes, 4096).read_to_string(&mut text),
        Encoding::Zstd => zstd::stream::read::Decoder::new(bytes).unwrap().read_to_string(&mut text),
    };
    read.unwrap();
    text
}

#[tokio::test]
async fn answers_are_compressed_in_each_coding_the_client_accepts() {
    for encoding in Encoding::ALL {
        let bench = bench().await;
        for body in [ask(), streamed()] {
            let plain =
                Bench::post(&bench, "/v1/messages").json(&body).send().await.unwrap().text().await.unwrap();
            let request =
                bench.post("/v1/messages").header("accept-encoding", "gzip, deflate, br;q=0.9, zstd");
            let request = request.header("x-sim-compress", encoding.as_str());
            let response = request.json(&body).send().await.unwrap();
            assert_eq!(response.headers()["content-encoding"], encoding.as_str());
            let bytes = response.bytes().await.unwrap();
            assert_eq!(decode(encoding, &bytes).len(), plain.len(), "{encoding:?}");
        }
    }
}

#[tokio::test]
async fn nobody_gets_a_coding_they_did_not_accept() {
    let bench = bench_with(|config| config.compress = Some(Encoding::Gzip)).await;
    for (accepted, is_compressed) in [("br", false), ("gzip;q=0", false), ("identity, gzip", true)] {
        let request = bench.post("/v1/messages").header("accept-encoding", accepted);
        let response = request.json(&ask()).send().await.unwrap();
        assert_eq!(response.headers().contains_key("content-encoding"), is_compressed, "{accepted}");
    }
}

#[tokio::test]
async fn a_compressed_stream_can_be_decoded_as_it_arrives() {
    let bench = bench().await;
    let request =
        bench.post("/v1/messages").header("accept-encoding", "gzip").header("x-sim-compress", "gzip");
    let body = with(request_paced(), json!({"stream": true}));
    let mut response = request.json(&body).send().await.unwrap();
    let first = response.chunk().await.unwrap().unwrap();
    let mut decoder = flate2::write::GzDecoder::new(Vec::new());
    std::io::Write::write_all(&mut decoder, &first).unwrap();
    std::io::Write::flush(&mut decoder).unwrap();
    assert!(std::str::from_utf8(decoder.get_ref()).unwrap().starts_with("event: message_start"));
}

/// An answer whose second event is a minute away.
fn request_paced() -> Value {
    request(json!([user("[[sim:text pace_ms=60000]]")]))
}

#[tokio::test]
async fn the_clock_is_set_advanced_and_frozen_over_http() {
    let bench = bench().await;
    let now = async |body: Value| control(&bench, "/sim/clock", body).await.json::<Value>().await.unwrap();
    assert_eq!(now(json!({"set_ms": 1000, "frozen": true})).await, json!({"now_ms": 1000, "frozen": true}));
    assert_eq!(now(json!({"advance_ms": 300_000})).await["now_ms"], 301_000);
    assert_eq!(bench.sim.clock().now_ms(), 301_000);
    let shown: Value = bench.get("/sim/clock").send().await.unwrap().json().await.unwrap();
    assert_eq!(shown["now_ms"], 301_000);
}

#[tokio::test]
async fn the_live_entries_are_shown_and_can_be_forgotten() {
    let bench = bench().await;
    let body = request(json!([user(json!([marked(block("a", 1200))]))]));
    bench.usage(&body).await;
    bench.usage(&body).await;
    let shown: Value = bench.get("/sim/cache").send().await.unwrap().json().await.unwrap();
    let entry = &shown["entries"][0];
    assert_eq!((&entry["tokens"], &entry["ttl"], &entry["reads"]), (&json!(1200), &json!("5m"), &json!(1)));
    assert_eq!(entry["prefix"].as_str().unwrap().len(), 16);
    bench.client.delete(format!("{}/sim/cache", bench.sim.url())).send().await.unwrap();
    assert_eq!(bench.usage(&body).await.read, 0);
    bench.sim.clock().advance(Duration::from_secs(301));
    assert!(bench.sim.cache_entries().is_empty());
}

#[tokio::test]
async fn a_rule_can_wait_for_a_path_and_let_some_requests_pass() {
    let bench = bench().await;
    let matching = FaultCondition {
        path: Some("/v1/messages/count_tokens".to_owned()),
        skip: 1,
        ..FaultCondition::default()
    };
    let rule = Rule { fault: InjectedFault::Status { status: 500, retry_after_s: None }, count: 1, matching };
    bench.sim.faults().order(rule).unwrap();
    assert_eq!(bench.send(&ask()).await.status(), 200);
    let count =
        async || bench.post("/v1/messages/count_tokens").json(&ask()).send().await.unwrap().status().as_u16();
    assert_eq!([count().await, count().await, count().await], [200, 500, 200]);
}
