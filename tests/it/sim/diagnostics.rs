//! `diagnostics`: its three forms, and whose messages it knows.

use serde_json::{Value, json};

use super::harness::{Bench, bench, bench_with, events, request, user, with};

fn asking(previous: Value) -> Value {
    with(request(json!([user("go")])), json!({"diagnostics": {"previous_message_id": previous}}))
}

async fn turned(value: &str) -> Bench {
    bench_with(|config| config.rules.set("diagnosis", value).unwrap()).await
}

#[tokio::test]
async fn a_pending_diagnosis_has_a_reason_of_null() {
    let bench = turned("pending").await;
    let first = bench.message(&asking(Value::Null)).await;
    assert_eq!(first["diagnostics"], Value::Null, "a first turn has nothing to wait for");
    let second = bench.message(&asking(first["id"].clone())).await;
    assert_eq!(second["diagnostics"], json!({"cache_miss_reason": null}));
}

#[tokio::test]
async fn a_diagnosis_can_be_unavailable() {
    let bench = turned("unavailable").await;
    let answer = bench.message(&asking(json!("msg_any"))).await;
    assert_eq!(answer["diagnostics"], json!({"cache_miss_reason": {"type": "unavailable"}}));
}

#[tokio::test]
async fn only_requests_that_ask_leave_a_fingerprint() {
    let bench = bench().await;
    let silent = bench.message(&request(json!([user("go")]))).await;
    let answer = bench.message(&asking(silent["id"].clone())).await;
    assert_eq!(answer["diagnostics"]["cache_miss_reason"]["type"], "previous_message_not_found");
}

#[tokio::test]
async fn a_stream_carries_its_diagnosis_in_message_start() {
    let bench = bench().await;
    let body = with(asking(json!("msg_unknown")), json!({"stream": true}));
    let stream = bench.send(&body).await.text().await.unwrap();
    let start = &events(&stream)[0].1["message"];
    assert_eq!(start["diagnostics"]["cache_miss_reason"]["type"], "previous_message_not_found");
}

#[tokio::test]
async fn a_diagnosis_does_not_depend_on_whether_the_cache_hit() {
    let bench = bench().await;
    let first = bench.message(&asking(Value::Null)).await;
    let again = bench.message(&asking(first["id"].clone())).await;
    assert_eq!(again["usage"]["cache_read_input_tokens"], 0);
    assert_eq!(again["diagnostics"], Value::Null, "nothing was cached, and nothing diverged");
}

#[tokio::test]
async fn a_diagnosis_needs_a_message_id_or_null() {
    let bench = bench().await;
    let ask = |diagnostics: Value| with(request(json!([user("go")])), json!({"diagnostics": diagnostics}));
    assert_eq!(bench.invalid(&ask(json!({}))).await, "diagnostics.previous_message_id: Field required");
    assert_eq!(
        bench.invalid(&ask(json!({"previous_message_id": 7}))).await,
        "diagnostics.previous_message_id: Input should be a valid string"
    );
}

#[tokio::test]
async fn the_oldest_fingerprints_are_forgotten_first() {
    let bench = bench_with(|config| config.limits.fingerprints = 2).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(bench.message(&asking(Value::Null)).await["id"].clone());
    }
    let newest = bench.message(&asking(ids[2].clone())).await;
    assert_eq!(newest["diagnostics"], Value::Null);
    let oldest = bench.message(&asking(ids[0].clone())).await;
    assert_eq!(oldest["diagnostics"]["cache_miss_reason"]["type"], "previous_message_not_found");
}
