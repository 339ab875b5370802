//! Replicas that see different parts of one fan-out, one of them a process that is killed.

use std::time::Duration;

use forkpoint::config::{Config, Mode};
use forkpoint::sim::{Sim, SimConfig};
use serde_json::Value;

use super::SCRIPT;
use super::fleet::{is_connected, shares};
use crate::fork::children::{FORKED, FREE, child, directives, extend, parent, plan};
use crate::fork::scene::{HEAD, closing, request, sibling, task};
use crate::fork::talk;
use crate::harness::redis::RedisServer;
use crate::harness::{Binary, Forkpoint, PATIENCE, Peer, Upstream, until, within};
use crate::workload::{Exchange, Letter, Line};

async fn replica(upstream: &Upstream, redis: &RedisServer) -> Forkpoint {
    let behind = |config: &mut Config| {
        config.server.mode = Mode::Fork;
        config.gate.max_hold = PATIENCE;
        config.fork.await_parent = PATIENCE;
        config.store.deadline = PATIENCE;
        shares(config, &redis.url());
    };
    let replica = Forkpoint::with(&upstream.url(), behind).await;
    is_connected(&replica).await;
    replica
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_waits_for_the_end_of_its_parents_answer_through_another_replica() {
    let (upstream, redis) = (Upstream::bind().await, RedisServer::start());
    let (here, there) = (replica(&upstream, &redis).await, replica(&upstream, &redis).await);
    let call = talk::parent("Survey it.");
    let mut leads = here.client().await;
    leads.send(&request(&call)).await;
    let (mut answers, _) = upstream.asked().await;
    answers.send(HEAD).await;
    let calls: Vec<Value> = (0..2).map(|n| talk::agent_call(&format!("toolu_{n}"), &task("", n))).collect();
    let events = talk::events("msg_parent", talk::prompt_tokens(&call.body), &calls);
    let (finished, rest) = events.split_at(events.len() - 2);
    for event in finished {
        answers.send_chunk(event.as_bytes()).await;
    }
    until("it is shared that the parent starts agents", || {
        here.metric("forkpoint_store_ops_total", &["op=\"write\"", "outcome=\"ok\""]) > 0.0
            && here.metric("forkpoint_store_queue", &[]) == 0.0
    })
    .await;
    let mut child = there.client().await;
    child.send(&request(&sibling("", 0))).await;
    until("the child waits for the end", || there.proxy.awaiting_seal() == 1).await;
    for event in rest {
        answers.send_chunk(event.as_bytes()).await;
    }
    answers.send(b"0\r\n\r\n").await;
    let (mut peer, asked) = upstream.asked().await;
    let answer = talk::events("msg_child", asked.body.len() / 4, &[talk::text("Here it is.")]);
    peer.send(&closing(&talk::streamed(&answer))).await;
    let reply = child.reply().await;
    let said = ["role", "plan", "reason"].map(|name| reply.head.get(&format!("x-forkpoint-{name}")).unwrap());
    assert_eq!((reply.status(), said), (200, FORKED.map(String::from)));
    // It has heard of the end, and not waited for its own.
    let held_ms: u128 = reply.head.get("x-forkpoint-held-ms").unwrap().parse().unwrap();
    assert!(held_ms < PATIENCE.as_millis() / 3, "held for {held_ms} ms");
}

/// The settings of a process that shares a store.
fn settings<'a>(url: &'a str, mode: &'a str, max_hold_ms: &'a str) -> [(&'a str, &'a str); 8] {
    [
        ("FORKPOINT_STORE", "redis"),
        ("STORE__URL", url),
        ("STORE__DEADLINE_MS", "10000"),
        ("SERVER__MODE", mode),
        ("GATE__MAX_HOLD_MS", max_hold_ms),
        ("FORK__MAX_COST_RATIO", "100"),
        ("FORK__CONTEXT_PREMIUM", "100"),
        ("LOG__FORMAT", "json"),
    ]
}

async fn metric(binary: &Binary, name: &str, labels: &[&str]) -> f64 {
    crate::harness::sum(&binary.admin("/metrics").await.1, name, labels)
}

/// Waits until a process has written all that it knows.
async fn has_written(binary: &Binary) {
    within("all to be written", async {
        while metric(binary, "forkpoint_store_queue", &[]).await > 0.0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_one_leads_within_the_lease_when_the_leading_process_is_killed() {
    const MAX_HOLD_MS: &str = "3000";
    let (upstream, redis) = (Upstream::bind().await, RedisServer::start());
    let url = redis.url();
    let settings = settings(&url, "align", MAX_HOLD_MS);
    let leader = Binary::serve(&upstream.url(), &settings).await;
    let other = Binary::serve(&upstream.url(), &settings).await;
    let call = talk::parent("Survey it.");
    let mut client = leader.client().await;
    client.send(&request(&call)).await;
    let (mut peer, _) = upstream.asked().await;
    let calls: Vec<Value> = (0..3).map(|n| talk::agent_call(&format!("toolu_{n}"), &task("", n))).collect();
    let events = talk::events("msg_parent", talk::prompt_tokens(&call.body), &calls);
    peer.send(&closing(&talk::streamed(&events))).await;
    assert_eq!(client.reply().await.status(), 200);
    has_written(&leader).await;
    let mut leads = leader.client().await;
    leads.send(&request(&sibling("", 0))).await;
    let (_never_answered, _) = upstream.asked().await;
    // The other one comes later, so that it may wait beyond the end of this lease.
    let lease_ms = || {
        let leases = redis.command(&["KEYS", "*:lease"]);
        let left = leases.lines().map(|lease| redis.command(&["PTTL", lease]).parse::<i64>().unwrap());
        left.max().unwrap_or(i64::MAX)
    };
    until("the lease to grow old", || lease_ms() < 2_000).await;
    let mut follows = other.client().await;
    follows.send(&request(&sibling("", 1))).await;
    within("it has asked for the lease in vain", async {
        let asked = ["op=\"lease\"", "outcome=\"miss\""];
        while metric(&other, "forkpoint_store_ops_total", &asked).await < 2.0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    leader.signal("KILL").await;
    let (mut peer, asked) = upstream.asked().await;
    let answer = talk::events("msg_child", asked.body.len() / 4, &[talk::text("Here it is.")]);
    peer.send(&closing(&talk::streamed(&answer))).await;
    assert_eq!(follows.reply().await.status(), 200);
    let record = other.records(1).await.remove(0);
    assert_eq!(record["gate"], "succeeded", "{record}");
}

async fn send(binary: &Binary, sim: &Sim, body: &Value) -> Exchange {
    let mut line = Line::direct(sim);
    line.url = format!("http://{}", binary.proxy);
    line.send(&Letter::alone(body)).await
}

async fn ask_admin(binary: &Binary, method: &str, path: &str) -> (u16, Value) {
    let request = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let reply = Peer::connect(binary.admin).await.ask(request.as_bytes()).await;
    (reply.status(), serde_json::from_slice(&reply.body).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_that_one_process_forgets_is_forgotten_by_the_store_and_by_the_others() {
    let (sim, redis) = (Sim::start(SimConfig::default()).await.unwrap(), RedisServer::start());
    let url = redis.url();
    let settings = settings(&url, "fork", "5000");
    let here = Binary::serve(&sim.url(), &settings).await;
    let there = Binary::serve(&sim.url(), &settings).await;
    let told = directives(&send(&here, &sim, &parent(FREE, SCRIPT)).await);
    has_written(&here).await;
    let mut body = child(FREE, &told[0]);
    let first = send(&there, &sim, &body).await;
    assert_eq!((first.status, plan(&first)), (200, FORKED));
    extend(&mut body, &first);
    has_written(&there).await;
    assert!(redis.command(&["DBSIZE"]).parse::<u64>().unwrap() > 0);
    let (_, prefixes) = ask_admin(&here, "GET", "/api/prefixes").await;
    let tenant = prefixes["tenants"][0]["tenant"].as_str().unwrap().to_owned();
    let (status, gone) = ask_admin(&here, "DELETE", &format!("/api/tenants/{tenant}")).await;
    assert_eq!((status, &gone["forgotten"]), (200, &Value::Bool(true)), "{gone}");
    within("the other process to hear of it", async {
        while ask_admin(&there, "GET", "/api/forks").await.1["live"] != 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    // What it was about to write is not written any more: the records and prompts of a tenant have its tag.
    let tenants =
        |names: &str| names.lines().filter(|name| name.contains(":r:") || name.contains(":c:")).count();
    assert_eq!(tenants(&redis.command(&["KEYS", "fp1:*"])), 0, "{}", redis.command(&["KEYS", "*"]));
    for binary in [&here, &there] {
        let late = send(binary, &sim, &child(FREE, &told[1])).await;
        assert_eq!((late.status, plan(&late)[0]), (200, "plain"));
    }
}
