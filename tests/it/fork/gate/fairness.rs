//! Fan-outs do not stand in each other's way, and nothing is left of those that are over.

use serde_json::json;

use crate::harness::until;
use crate::workload::{Letter, prose};

use crate::fork::fan_out::{Stage, child, directives, parent, together, writers};
use crate::fork::scene::{Scene, request, sibling};
use crate::fork::talk::{Call, text};

/// The child of another fan-out, with a prompt of its own.
fn other(child: usize) -> Call {
    sibling(" b", child).and("system", json!([text(&prose("You are a worker of team b.", 3_000))]))
}

#[tokio::test]
async fn two_fan_outs_do_not_wait_for_each_other() {
    let scene = Scene::fanned_out(2, |_| ()).await;
    scene.fan_out(" b", 2).await;
    let mut stuck = [scene.arrives(0, 1).await, scene.arrives(1, 2).await];
    let mut leader = scene.next().await;
    let mut first = scene.calls(&other(0), 3).await;
    scene.next().await.answer().await;
    assert_eq!(first.reply().await.status(), 200);
    let mut second = scene.forkpoint.client().await;
    second.send(&request(&other(1))).await;
    assert_eq!(scene.answer(1).await, [1]);
    assert_eq!(second.reply().await.status(), 200);
    scene.at_gate(2).await;
    leader.answer().await;
    scene.answer(1).await;
    for client in &mut stuck {
        assert_eq!(client.reply().await.status(), 200);
    }
}

#[tokio::test]
async fn a_tenant_does_not_wait_for_another_ones_leader() {
    let scene = Scene::fanned_out(1, |config| config.fork.min_children = 1).await;
    let _leader = scene.arrives(0, 1).await;
    let _asked = scene.next().await;
    let mut stranger = scene.forkpoint.client().await;
    stranger.send(&request(&sibling("", 0).of("another-key"))).await;
    scene.next().await.answer().await;
    let reply = stranger.reply().await;
    assert_eq!(reply.head.get("x-forkpoint-role").as_deref(), Some("plain"));
    assert_eq!(reply.head.get("x-forkpoint-held-ms").as_deref(), Some("0"));
}

#[tokio::test]
async fn a_follower_whose_client_leaves_is_forgotten_and_never_sent() {
    let scene = Scene::fanned_out(4, |_| ()).await;
    let mut first = scene.arrives(0, 1).await;
    let mut leader = scene.next().await;
    let leaving = scene.arrives(1, 2).await;
    let mut third = scene.arrives(2, 3).await;
    drop(leaving);
    scene.at_gate(2).await;
    until("the leaver to be counted", || scene.holds("client_left") == 1).await;
    leader.answer().await;
    assert_eq!(scene.answer(1).await, [2]);
    assert_eq!((first.reply().await.status(), third.reply().await.status()), (200, 200));
    scene.at_gate(0).await;
    assert_eq!((scene.holds("led"), scene.holds("released")), (1, 1));
    let left = scene.forkpoint.metric("forkpoint_requests_total", &["status=\"none\""]);
    assert_eq!(left, 1.0, "recorded once, without a status");
}

/// Many fan-outs come and go under small limits.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_over_leaves_no_memory() {
    const ROUNDS: usize = 60;
    let limit = 2 << 20;
    let stage = Stage::new(|config| {
        config.store.max_bytes = limit;
        config.store.recent_bytes = limit;
    })
    .await;
    let line = stage.line();
    let store = stage.forkpoint.proxy.store();
    for round in 0..ROUNDS {
        let instruction = format!("Round {round}. [[sim:fan_out n=4 words=20 | text words=5]]");
        let fan_out = line.send(&Letter::alone(&parent(&instruction))).await;
        until("the seal", || crate::fork::fan_out::forks(&stage.forkpoint, "sealed") == round as u64 + 1)
            .await;
        let mut letters: Vec<Letter> =
            directives(&fan_out).iter().map(|told| Letter::alone(&child(told))).collect();
        // Each round has a prompt of its own to write, and a child that nobody waits for.
        for letter in &mut letters {
            let body = String::from_utf8(letter.body.clone()).unwrap();
            letter.body = body.replace("You are a worker", &format!("You are worker {round}")).into_bytes();
        }
        assert_eq!(writers(&together(&line, letters).await), 1, "round {round}");
        assert!(store.bytes() <= 2 * limit, "round {round}: {}", store.bytes());
        // A tenth of an hour later.
        stage.forkpoint.proxy.clock().skip(360_000);
        stage.sim.clock().advance(std::time::Duration::from_secs(360));
    }
    assert_eq!(stage.forkpoint.proxy.at_gate(), 0);
    assert!((1..=11).contains(&store.forks()), "fork points live an hour: {}", store.forks());
    assert!(stage.holds("led") >= ROUNDS as u64);
    assert_eq!((stage.holds("timed_out"), stage.holds("full")), (0, 0));
}
