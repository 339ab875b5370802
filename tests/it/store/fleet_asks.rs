//! What a request asks the store that replicas share.

use super::SCRIPT;
use super::fleet::Fleet;
use crate::fork::children::{BOUND, FORKED, child, extend, parent, plan};
use crate::harness::redis::RedisServer;
use crate::harness::{PATIENCE, until};

/// The calls of one kind that a replica has made, whatever came of them.
fn asked(fleet: &Fleet, replica: usize, op: &str) -> f64 {
    fleet.replicas[replica].metric("forkpoint_store_ops_total", &[&format!("op=\"{op}\"")])
}

/// The commands of one name that a server has taken.
fn commands(redis: &RedisServer, name: &str) -> u64 {
    let stats = redis.command(&["INFO", "commandstats"]);
    let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{name}:")));
    line.and_then(|line| line.split(['=', ',']).nth(1)?.parse().ok()).unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_turn_on_another_replica_asks_for_news_its_prompt_and_a_lease_and_a_next_turn_asks_nothing() {
    let redis = RedisServer::start();
    let fleet = Fleet::new(&redis.url(), 2).await;
    let told = fleet.fan_out(&parent(BOUND, SCRIPT)).await;
    fleet.settles().await;
    let before = ["load", "lease"].map(|op| asked(&fleet, 1, op));
    let chunks = commands(&redis, "getrange");
    let mut body = child(BOUND, &told[0]);
    let first = fleet.send(1, &body).await;
    assert_eq!((first.status, plan(&first)), (200, FORKED));
    // One that is taken, and given back when the answer has begun.
    until("the lease is given back", || asked(&fleet, 1, "lease") - before[1] >= 2.0).await;
    assert_eq!(asked(&fleet, 1, "lease") - before[1], 2.0);
    assert!(asked(&fleet, 1, "load") - before[0] <= 1.0);
    assert!(commands(&redis, "getrange") > chunks, "the parent's prompt comes from the store");
    extend(&mut body, &first);
    fleet.settles().await;
    // From here on whoever asks waits for a long time.
    redis.pause();
    let next = tokio::time::timeout(PATIENCE / 3, fleet.send(1, &body)).await;
    redis.resume();
    let next = next.expect("a warm turn waits for the store");
    assert_eq!((next.status, plan(&next)), (200, FORKED));
}
