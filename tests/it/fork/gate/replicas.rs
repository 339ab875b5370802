//! Replicas that share a store: one of them writes an entry, and the others wait for it.

use std::sync::Arc;
use std::time::Duration;

use forkpoint::store::records::RecordStore;
use forkpoint::store::redis::{RedisAddress, RedisOptions, RedisStore};
use futures_util::FutureExt;

use crate::fork::scene::{Scene, sibling};
use crate::harness::redis::RedisServer;
use crate::harness::{PATIENCE, until};

const SHORT: Duration = Duration::from_millis(400);

/// Two replicas that know the same fan-out, each before an upstream of its own.
struct Replicas {
    redis: RedisServer,
    one: Scene,
    other: Scene,
}

impl Replicas {
    async fn fanned_out(max_hold: Duration) -> Replicas {
        let redis = RedisServer::start();
        let replica = async || {
            let scene = Scene::fanned_out(3, |config| config.gate.max_hold = max_hold).await;
            let store = RedisStore::open(RedisOptions {
                address: RedisAddress::parse(&redis.url()).unwrap(),
                key: None,
                deadline: PATIENCE,
                max_age: PATIENCE,
                tenant_bytes: 64 << 20,
            });
            let is_there =
                async || store.changes(forkpoint::engine::words::TenantId([1; 32]), 0).await.is_ok();
            while !is_there().await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            scene.forkpoint.proxy.share_leases(Arc::new(store));
            scene
        };
        let (one, other) = (replica().await, replica().await);
        Replicas { redis, one, other }
    }

    /// How often a lease was asked for.
    fn asked(&self) -> u64 {
        let stats = self.redis.command(&["INFO", "commandstats"]);
        let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap_or("=0,");
        line.split(['=', ',']).nth(1).unwrap().parse().unwrap()
    }

    /// The other replica's request has asked for a lease in vain, at least twice.
    async fn waits(&self) {
        let before = self.asked();
        until("it has asked twice", || self.asked() >= before + 8).await;
        assert!(self.other.next().now_or_never().is_none(), "it went");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_on_another_replica_waits_for_the_first_content_of_the_leader() {
    let replicas = Replicas::fanned_out(PATIENCE).await;
    let mut leads = replicas.one.arrives(0, 1).await;
    let mut leader = replicas.one.next().await;
    let mut follows = replicas.other.arrives(1, 1).await;
    let mut behind_it = replicas.other.arrives(2, 2).await;
    replicas.waits().await;
    leader.start().await;
    replicas.waits().await;
    leader.finish_after_start().await;
    let mut answered = replicas.other.answer(2).await;
    answered.sort_unstable();
    assert_eq!(answered, [1, 2]);
    for client in [&mut leads, &mut follows, &mut behind_it] {
        assert_eq!(client.reply().await.status(), 200);
    }
    assert_eq!((replicas.one.holds("led"), replicas.other.holds("led")), (1, 0));
    assert_eq!(replicas.other.holds("released"), 2);
    // What is known to be warm costs no round trip.
    let before = replicas.asked();
    let mut again = replicas.other.calls(&sibling("", 0), 0).await;
    replicas.other.answer(1).await;
    assert_eq!(again.reply().await.status(), 200);
    assert_eq!(replicas.asked(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_one_leads_when_the_leader_on_another_replica_comes_to_nothing() {
    let replicas = Replicas::fanned_out(PATIENCE).await;
    let leads = replicas.one.arrives(0, 1).await;
    let mut leader = replicas.one.next().await;
    let mut follows = replicas.other.arrives(1, 1).await;
    replicas.waits().await;
    drop(leads);
    leader.gone().await;
    replicas.other.answer(1).await;
    assert_eq!(follows.reply().await.status(), 200);
    until("it is counted", || replicas.other.holds("succeeded") == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_all_that_wait_for_a_dead_replica_one_leads_when_its_lease_ends() {
    let replicas = Replicas::fanned_out(PATIENCE).await;
    let mut leads = replicas.one.arrives(0, 1).await;
    let mut leader = replicas.one.next().await;
    let mut follows = replicas.other.arrives(1, 1).await;
    replicas.waits().await;
    // The leases now belong to a process that was killed a while ago.
    let leases = replicas.redis.command(&["KEYS", "*:lease"]);
    assert!(!leases.is_empty());
    for lease in leases.lines() {
        assert_eq!(replicas.redis.command(&["SET", lease, "dead", "PX", "300"]), "OK");
    }
    replicas.other.answer(1).await;
    assert_eq!(follows.reply().await.status(), 200);
    until("it is counted", || replicas.other.holds("succeeded") == 1).await;
    leader.answer().await;
    assert_eq!(leads.reply().await.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_for_another_replica_beyond_its_deadline() {
    let replicas = Replicas::fanned_out(SHORT).await;
    let mut leads = replicas.one.arrives(0, 1).await;
    let mut leader = replicas.one.next().await;
    // Somebody keeps the lease for longer than anybody may wait.
    for lease in replicas.redis.command(&["KEYS", "*:lease"]).lines() {
        replicas.redis.command(&["SET", lease, "somebody", "PX", "60000"]);
    }
    let mut follows = replicas.other.arrives(1, 1).await;
    replicas.other.answer(1).await;
    assert_eq!(follows.reply().await.status(), 200);
    until("it is counted", || replicas.other.holds("timed_out") == 1).await;
    leader.answer().await;
    assert_eq!(leads.reply().await.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_does_not_answer_holds_nobody_beyond_its_deadline() {
    let replicas = Replicas::fanned_out(SHORT).await;
    // The store may take as long as the test.
    replicas.redis.pause();
    let mut follows = replicas.other.arrives(1, 1).await;
    replicas.other.answer(1).await;
    assert_eq!(follows.reply().await.status(), 200);
    until("it is counted", || replicas.other.holds("timed_out") == 1).await;
    replicas.redis.resume();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_store_is_asked_about_leases_is_counted() {
    let replicas = Replicas::fanned_out(PATIENCE).await;
    let asked = |scene: &Scene, outcome: &str| {
        let labels = ["op=\"lease\"", &format!("outcome=\"{outcome}\"")];
        scene.forkpoint.metric("forkpoint_store_ops_total", &labels)
    };
    let mut leads = replicas.one.arrives(0, 1).await;
    let mut leader = replicas.one.next().await;
    assert_eq!(asked(&replicas.one, "ok"), 1.0);
    let mut follows = replicas.other.arrives(1, 1).await;
    until("it has asked in vain", || asked(&replicas.other, "miss") > 0.0).await;
    leader.answer().await;
    replicas.other.answer(1).await;
    assert_eq!((leads.reply().await.status(), follows.reply().await.status()), (200, 200));
    assert_eq!(asked(&replicas.other, "hit"), 1.0);
    until("it has said so", || asked(&replicas.one, "ok") == 2.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_streams_does_not_wait_for_a_whole_answer_on_another_replica() {
    let replicas = Replicas::fanned_out(PATIENCE).await;
    let whole = sibling("", 0).and("stream", serde_json::json!(false));
    let _leads = replicas.one.calls(&whole, 1).await;
    let _leader = replicas.one.next().await;
    let mut streams = replicas.other.arrives(1, 1).await;
    replicas.other.answer(1).await;
    assert_eq!(streams.reply().await.status(), 200);
    until("it is counted", || replicas.other.holds("led") == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_dies_while_somebody_waits_lets_it_go() {
    let mut replicas = Replicas::fanned_out(PATIENCE).await;
    let mut leads = replicas.one.arrives(0, 1).await;
    let mut leader = replicas.one.next().await;
    let mut follows = replicas.other.arrives(1, 1).await;
    replicas.waits().await;
    replicas.redis.kill();
    replicas.other.answer(1).await;
    assert_eq!(follows.reply().await.status(), 200);
    leader.answer().await;
    assert_eq!(leads.reply().await.status(), 200);
}
