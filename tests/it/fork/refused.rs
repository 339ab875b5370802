//! Rewrites that the upstream refuses.

use forkpoint::sim::faults::{Fault, Match, Rule};
use serde_json::json;

use super::{BOUND, FORKED, FREE, Stage, child, extend, narrow, parent, plan};

const TAG: &str = "forkpoint-child";

/// The simulator refuses forked bodies.
fn refuse_forks(stage: &Stage, status: u16) {
    let fault = Fault::Status { status, retry_after_s: None };
    let matching = Match { body_contains: Some(TAG.to_owned()), ..Match::default() };
    stage.sim.faults().order(Rule { fault, count: 1_000, matching }).unwrap();
}

#[tokio::test]
async fn a_refused_fork_goes_out_once_more_as_it_came_and_the_fork_point_stands_down() {
    for (status, reason) in [(400, "refused"), (413, "too_large")] {
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
