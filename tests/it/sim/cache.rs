//! The prompt cache, rule by rule.

use serde_json::{Value, json};

use super::harness::{Tokens, bench, block, marked, marked_1h, request, text, user};

/// Blocks of 100 tokens each in one user message, breakpoints at the given indexes.
fn blocks(count: usize, breakpoints: &[usize]) -> Value {
    let blocks: Vec<Value> = (0..count)
        .map(|index| {
            let block = block(&format!("block {index} "), 100);
            if breakpoints.contains(&index) { marked(block) } else { block }
        })
        .collect();
    request(json!([user(blocks)]))
}

#[tokio::test]
async fn a_prefix_written_at_a_breakpoint_is_read_by_the_next_request() {
    let bench = bench().await;
    let first = bench.usage(&blocks(12, &[10])).await;
    assert_eq!(first, Tokens { read: 0, write_5m: 1100, write_1h: 0, uncached: 100 });
    let second = bench.usage(&blocks(12, &[10])).await;
    assert_eq!(second, Tokens { read: 1100, write_5m: 0, write_1h: 0, uncached: 100 });
}

/// The worked example of the documentation: entry at block 15, breakpoint at 35, positions 35…16 checked.
#[tokio::test]
async fn lookback_misses_by_one_when_the_entry_is_the_twenty_first_position() {
    let bench = bench().await;
    bench.usage(&blocks(16, &[15])).await;
    let missed = bench.usage(&blocks(36, &[35])).await;
    assert_eq!(missed, Tokens { read: 0, write_5m: 3600, write_1h: 0, uncached: 0 });
}

#[tokio::test]
async fn lookback_hits_the_twentieth_position_counting_the_breakpoint_as_the_first() {
    let bench = bench().await;
    bench.usage(&blocks(16, &[15])).await;
    let hit = bench.usage(&blocks(35, &[34])).await;
    assert_eq!(hit, Tokens { read: 1600, write_5m: 1900, write_1h: 0, uncached: 0 });
    assert_eq!(bench.last_record().hit.unwrap().position, 15);
}

#[tokio::test]
async fn a_second_breakpoint_starts_a_second_window() {
    let bench = bench().await;
    bench.usage(&blocks(16, &[15])).await;
    let hit = bench.usage(&blocks(36, &[15, 35])).await;
    assert_eq!(hit, Tokens { read: 1600, write_5m: 2000, write_1h: 0, uncached: 0 });
}

/// The worked example of mixed lifetimes: A the highest hit, B the highest 1h marker after it, C the last marker.
#[tokio::test]
async fn mixed_lifetimes_bill_a_read_b_minus_a_for_an_hour_and_c_minus_b_for_five_minutes() {
    let bench = bench().await;
    let a = marked_1h(block("a", 1100));
    bench.usage(&request(json!([user(json!([a]))]))).await;
    let body = request(json!([user(json!([
        a,
        marked_1h(block("b", 300)),
        marked(block("c", 200)),
        block("d", 50)
    ]))]));
    let usage = bench.usage(&body).await;
    assert_eq!(usage, Tokens { read: 1100, write_1h: 300, write_5m: 200, uncached: 50 });
}

#[tokio::test]
async fn a_prefix_below_the_models_minimum_is_silently_not_cached() {
    let bench = bench().await;
    let below = request(json!([user(json!([marked(block("small", 1023)), text("go")]))]));
    assert_eq!(bench.usage(&below).await.writes(), 0);
    assert_eq!(bench.usage(&below).await.read, 0);
    let enough = request(json!([user(json!([marked(block("enough", 1024)), text("go")]))]));
    assert_eq!(bench.usage(&enough).await.write_5m, 1024);
}
