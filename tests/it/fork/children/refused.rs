//! Rewrites that the upstream refuses.

use forkpoint::config::{Config, Mode};
use forkpoint::sim::faults::{FaultCondition, InjectedFault, Rule};
use serde_json::json;

use super::{BOUND, FORKED, FREE, Stage, child, extend, narrow, parent, plan};
use crate::fork::scene::{Scene, closing};
use crate::fork::talk::{events, streamed, text};
use crate::harness::peer::Reply;

const TAG: &str = "forkpoint-child";

/// The simulator refuses forked bodies.
pub fn refuse_forks(stage: &Stage, status: u16) {
    let fault = InjectedFault::Status { status, retry_after_s: None };
    let matching = FaultCondition { body_contains: Some(TAG.to_owned()), ..FaultCondition::default() };
    stage.sim.faults().order(Rule { fault, count: 1_000, matching }).unwrap();
}

#[tokio::test]
async fn a_refused_fork_goes_out_once_more_as_it_came_and_the_fork_point_stands_down() {
    for (status, reason) in [(400, "refused"), (413, "too_large"), (415, "refused"), (422, "refused")] {
        for model in [FREE, BOUND] {
            let stage = Stage::new(|_| ()).await;
            let script = "[[sim:fan_out n=3 tool=Agent field=prompt thinking=20 | text]]";
            let told = stage.fan_out(&parent(model, script)).await;
            refuse_forks(&stage, status);
            let first = stage.send(&child(model, &told[0])).await;
            assert_eq!((first.status, first.is_untouched()), (200, true));
            assert_eq!(plan(&first), ["child", "passthrough", "refused"]);
            assert_eq!(stage.count("fallbacks_total", &[&format!("reason=\"{reason}\"")]), 1);
            let second = stage.send(&child(model, &told[1])).await;
            assert_eq!((second.status, plan(&second)), (200, ["child", "aligned", "stood_down"]));
            assert_eq!(stage.count("standdowns_total", &["reason=\"refused\""]), 1);
        }
    }
}

#[tokio::test]
async fn a_child_for_whom_the_window_is_too_small_with_its_parent_goes_without() {
    for model in [FREE, BOUND] {
        let stage = Stage::before(narrow(100_000), |_| ()).await;
        let told = stage.fan_out(&parent(model, "[[sim:fan_out n=2 tool=Agent field=prompt | text]]")).await;
        let mut wordy = child(model, &told[0]);
        wordy["max_tokens"] = json!(30_000);
        let exchange = stage.send(&wordy).await;
        assert_eq!((exchange.status, exchange.is_untouched()), (200, true), "{model}");
        assert_eq!(plan(&exchange), ["child", "passthrough", "refused"], "{model}");
        assert_eq!(stage.count("fallbacks_total", &["reason=\"window\""]), 1, "{model}");
        assert_eq!(stage.count("standdowns_total", &["reason=\"refused\""]), 1, "{model}");
    }
}

#[tokio::test]
async fn a_bound_child_keeps_its_prefix_when_its_fork_point_stands_down() {
    let stage = Stage::new(|_| ()).await;
    let script =
        "[[sim:fan_out n=2 tool=Agent field=prompt thinking=20 | tools turns=2 tool=search thinking=20]]";
    let told = stage.fan_out(&parent(BOUND, script)).await;
    let mut body = child(BOUND, &told[0]);
    let first = stage.send(&body).await;
    assert_eq!(plan(&first), FORKED);
    extend(&mut body, &first);
    refuse_forks(&stage, 413);
    assert_eq!(plan(&stage.send(&child(BOUND, &told[1])).await), ["child", "passthrough", "refused"]);
    stage.sim.faults().clear();
    let second = stage.send(&body).await;
    assert_eq!((second.status, plan(&second)), (200, FORKED));
}

#[tokio::test]
async fn what_fails_as_it_came_too_is_the_childs_own_fault() {
    let stage = Stage::new(|_| ()).await;
    let told = stage.fan_out(&parent(FREE, "[[sim:fan_out n=2 tool=Agent field=prompt | text]]")).await;
    let mut wrong = child(FREE, &told[0]);
    wrong["max_tokens"] = json!("many");
    let answer = stage.send(&wrong).await;
    assert_eq!(answer.status, 400);
    assert_eq!(stage.count("standdowns_total", &[]), 0);
    let right = stage.send(&child(FREE, &told[1])).await;
    assert_eq!((right.status, plan(&right)), (200, FORKED));
}

/// An answer that refuses.
const NO: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\nno";

fn is_forked(request: &Reply) -> bool {
    String::from_utf8_lossy(&request.body).contains(TAG)
}

#[tokio::test]
async fn who_waits_for_a_fork_that_is_refused_is_planned_again() {
    let forks = |config: &mut Config| {
        config.server.mode = Mode::Fork;
        config.fork.policy.max_cost_ratio = 1_000.0;
    };
    let scene = Scene::fanned_out(4, forks).await;
    let mut clients = Vec::new();
    for number in 0..4 {
        clients.push(scene.arrives(number, number + 1).await);
    }
    let (mut peer, leader) = scene.upstream.asked().await;
    assert!(is_forked(&leader));
    peer.send(&closing(NO)).await;
    // What came of the leader decides for the others: none goes before that is known.
    let (mut peer, original) = scene.upstream.asked().await;
    assert!(!is_forked(&original));
    assert_eq!(scene.forkpoint.proxy.waiting(), 3);
    let answer = closing(&streamed(&events("msg_child", 2_000, &[text("Here it is.")])));
    peer.send(&answer).await;
    for _ in 1..4 {
        let (mut peer, request) = scene.upstream.asked().await;
        assert!(!is_forked(&request), "what was refused is not tried again");
        peer.send(&answer).await;
    }
    let mut reasons = Vec::new();
    for client in &mut clients {
        let reply = client.reply().await;
        assert_eq!(reply.status(), 200);
        reasons.push(reply.reason().unwrap());
    }
    assert_eq!(reasons, ["refused", "stood_down", "stood_down", "stood_down"]);
    scene.forkpoint.recorded(5).await;
    let count = |metric: &str| scene.forkpoint.metric(&format!("forkpoint_{metric}"), &[]);
    assert_eq!([count("fallbacks_total"), count("standdowns_total")], [1.0, 1.0]);
    assert_eq!(scene.forkpoint.proxy.at_gate(), 0);
}

#[tokio::test]
async fn a_leader_whose_original_fails_too_hands_the_lead_on() {
    let forks = |config: &mut Config| {
        config.server.mode = Mode::Fork;
        config.fork.policy.max_cost_ratio = 1_000.0;
    };
    let scene = Scene::fanned_out(2, forks).await;
    let mut clients = [scene.arrives(0, 1).await, scene.arrives(1, 2).await];
    for _ in 0..2 {
        scene.upstream.asked().await.0.send(&closing(NO)).await;
    }
    let (mut peer, next) = scene.upstream.asked().await;
    assert!(is_forked(&next), "the fault was the first one's own");
    peer.send(&closing(&streamed(&events("msg_child", 2_000, &[text("Here it is.")])))).await;
    assert_eq!(clients[0].reply().await.status(), 400);
    assert_eq!(clients[1].reply().await.reason().as_deref(), Some("none"));
}

#[tokio::test]
async fn a_turn_that_is_sent_again_after_an_overload_is_sent_in_the_same_bytes() {
    let stage = Stage::new(|_| ()).await;
    let script = "[[sim:fan_out n=2 tool=Agent field=prompt | tools turns=4 calls=12 tool=search]]";
    let told = stage.fan_out(&parent(FREE, script)).await;
    let mut body = child(FREE, &told[0]);
    for _ in 1..=2 {
        let exchange = stage.send(&body).await;
        assert_eq!(plan(&exchange), FORKED);
        extend(&mut body, &exchange);
    }
    refuse_forks(&stage, 529);
    let refused = stage.send(&body).await;
    assert_eq!(refused.status, 529);
    stage.sim.faults().clear();
    let again = stage.send(&body).await;
    assert_eq!((again.status, plan(&again)), (200, FORKED));
    assert!(again.forwarded == refused.forwarded, "the breakpoints of the turn before are still known");
}

#[tokio::test]
async fn overload_is_relayed_and_the_retry_is_forked() {
    let stage = Stage::new(|_| ()).await;
    let told = stage.fan_out(&parent(FREE, "[[sim:fan_out n=2 tool=Agent field=prompt | text]]")).await;
    refuse_forks(&stage, 529);
    let before = stage.sim.requests().len();
    assert_eq!(stage.send(&child(FREE, &told[0])).await.status, 529);
    assert_eq!(stage.sim.requests().len(), before + 1, "not retried by us");
    stage.sim.faults().clear();
    assert_eq!(plan(&stage.send(&child(FREE, &told[0])).await), FORKED);
}
