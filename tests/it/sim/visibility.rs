//! When an entry can be read: once its writer's response has begun, and not before.

use std::time::Duration;

use forkpoint::sim::{ExchangeEnding, Latency};
use serde_json::{Value, json};

use super::harness::{Bench, bench, bench_with, block, marked, read_until, request, text, until, user, with};

/// A request on the shared prefix, with its own last words.
fn sibling(words: &str) -> Value {
    request(json!([user(json!([marked(block("shared", 1200)), text(words)]))]))
}

fn stream(body: Value) -> Value {
    with(body, json!({"stream": true}))
}

/// Sends a request that will not be waited for.
fn start(bench: &Bench, body: &Value) -> tokio::task::JoinHandle<()> {
    let sending = bench.post("/v1/messages").json(body).send();
    tokio::spawn(async move {
        let _ = sending.await;
    })
}

async fn until_consulted(bench: &Bench) {
    until("the leader consulted the cache", || {
        bench.sim.requests().first().is_some_and(|record| !record.breakpoints.is_empty())
    })
    .await;
}

#[tokio::test]
async fn a_sibling_sent_before_the_leaders_first_token_misses() {
    let bench = bench().await;
    let leader = start(&bench, &stream(sibling("[[sim:text first_ms=60000]]")));
    until_consulted(&bench).await;
    let follower = bench.usage(&sibling("b")).await;
    assert_eq!((follower.read, follower.write_5m), (0, 1200));
    leader.abort();
}

#[tokio::test]
async fn the_message_start_event_is_not_yet_content() {
    let bench = bench().await;
    let mut leader = bench.send(&stream(sibling("[[sim:text pace_ms=60000]]"))).await;
    read_until(&mut leader, "message_start").await;
    assert_eq!(bench.sim.cache_entries().len(), 0);
    assert_eq!(bench.usage(&sibling("b")).await.read, 0);
}

#[tokio::test]
async fn a_sibling_sent_after_the_leaders_first_content_hits_while_the_leader_still_streams() {
    let bench = bench().await;
    let body = stream(sibling("[[sim:text words=500]]"));
    let mut leader =
        bench.post("/v1/messages").header("x-sim-stall-at", "1500").json(&body).send().await.unwrap();
    read_until(&mut leader, "content_block_start").await;
    assert_eq!(bench.usage(&sibling("b")).await.read, 1200);
    assert_eq!(bench.sim.requests()[0].ending, ExchangeEnding::Running);
}

#[tokio::test]
async fn the_entry_of_a_json_answer_is_readable_before_the_answer_is_sent() {
    let bench = bench().await;
    let leader = start(&bench, &sibling("[[sim:text pace_ms=60000]]"));
    until("the entry is there", || !bench.sim.cache_entries().is_empty()).await;
    assert_eq!(bench.usage(&sibling("b")).await.read, 1200);
    assert_eq!(bench.sim.requests()[0].first_byte_us, None);
    leader.abort();
}

#[tokio::test]
async fn the_moment_of_visibility_is_a_setting() {
    let early = bench_with(|config| config.rules.set("visibility", "headers").unwrap()).await;
    let mut leader = early.send(&stream(sibling("[[sim:text pace_ms=60000]]"))).await;
    read_until(&mut leader, "message_start").await;
    assert_eq!(early.usage(&sibling("b")).await.read, 1200);

    let late = bench_with(|config| config.rules.set("visibility", "end").unwrap()).await;
    let body = stream(sibling("[[sim:text words=500]]"));
    let mut leader =
        late.post("/v1/messages").header("x-sim-stall-at", "1500").json(&body).send().await.unwrap();
    read_until(&mut leader, "content_block_start").await;
    assert_eq!(late.usage(&sibling("b")).await.read, 0);
    assert_eq!(late.usage(&sibling("c")).await.read, 1200, "a finished answer has published");
}

#[tokio::test]
async fn a_client_that_leaves_before_the_answer_begins_leaves_no_entry() {
    let bench = bench().await;
    let leader = start(&bench, &stream(sibling("[[sim:text first_ms=60000]]")));
    until_consulted(&bench).await;
    leader.abort();
    until("the visit ended", || bench.sim.requests()[0].ending == ExchangeEnding::ClientLeft).await;
    assert_eq!(bench.sim.cache_entries().len(), 0);
}

#[tokio::test]
async fn a_refused_request_leaves_no_entry() {
    let bench = bench().await;
    let refused =
        bench.post("/v1/messages").header("x-sim-status", "529").json(&sibling("a")).send().await.unwrap();
    assert_eq!(refused.status(), 529);
    assert_eq!(bench.sim.cache_entries().len(), 0);
}

#[tokio::test]
async fn siblings_sent_together_all_miss_and_all_write() {
    let bench = bench_with(|config| config.latency.base = Duration::from_secs(60)).await;
    let siblings: Vec<_> = ["a", "b", "c", "d", "e"].map(|words| start(&bench, &sibling(words))).into();
    until("all five consulted the cache", || {
        let records = bench.sim.requests();
        records.len() == 5 && records.iter().all(|record| record.usage.is_some())
    })
    .await;
    for record in bench.sim.requests() {
        let usage = record.usage.unwrap();
        assert_eq!((usage.cache_read, usage.cache_write_5m), (0, 1200));
    }
    for sibling in siblings {
        sibling.abort();
    }
}

#[tokio::test]
async fn time_to_first_token_grows_with_uncached_tokens_only() {
    let latency = Latency::default();
    assert!(latency.to_first_token(0) > Duration::ZERO);
    assert!(latency.to_first_token(50_000) > latency.to_first_token(1_000));
    assert_eq!(Latency::none().to_first_token(50_000), Duration::ZERO);
}
