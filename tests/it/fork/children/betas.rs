//! Children with betas that their parent does not have: what that costs is learned from bills.

use std::time::Duration;

use forkpoint::config::{Config, Mode};
use forkpoint::sim::SimConfig;
use forkpoint::sim::settings::PromptLayer;
use serde_json::{Value, json};

use super::{Exchange, FORKED, FREE, Stage, child, extend, parent, plan, usage};
use crate::harness::Log;
use crate::workload::{Letter, prose};

const PARENTS: &str = "one-2099-01-01";
const BOTH: &str = "one-2099-01-01,two-2099-01-01";
const FAN_OUT: &str = "[[sim:fan_out n=2 tool=Agent field=prompt | text words=5]]";

/// An upstream whose cache depends on betas from this layer on.
async fn before(betas: PromptLayer, configure: impl FnOnce(&mut Config)) -> Stage {
    let mut sim = SimConfig::default();
    sim.rules.invalidation.betas = betas;
    let as_sent = |config: &mut Config| {
        config.fork.policy.max_cost_ratio = 1.0;
        configure(config);
    };
    Stage::before(sim, as_sent).await
}

impl Stage {
    async fn with_betas(&self, body: &Value, betas: &str) -> Exchange {
        let exchange = self.line().send(&Letter::alone(body).with("anthropic-beta", betas)).await;
        assert_eq!(exchange.status, 200, "{:?}", exchange.answer);
        exchange
    }

    /// A conversation of two turns, the second with one more beta.
    async fn one_more_beta(&self, subject: &str) -> Exchange {
        let mut body = parent(FREE, "[[sim:tools turns=2 tool=search]]");
        body["messages"][0]["content"] = json!(prose(subject, 40_000));
        // Its tools and system are known already, so that its first turn is worth marking.
        let first = self.with_betas(&body, PARENTS).await;
        extend(&mut body, &first);
        self.with_betas(&body, BOTH).await
    }

    /// The directives of a parent with one beta.
    async fn fan_out_with_one(&self, subject: &str) -> Vec<String> {
        let mut lead = parent(FREE, FAN_OUT);
        lead["messages"][0]["content"] = json!(prose(subject, 40_000));
        let sealed = self.count("forks_total", &["outcome=\"sealed\""]);
        let fan_out = self.with_betas(&lead, PARENTS).await;
        super::until("the seal", || self.count("forks_total", &["outcome=\"sealed\""]) > sealed).await;
        super::directives(&fan_out)
    }

    /// A child that would cost less as sent if it had to write its parent's messages again.
    async fn small_child(&self, told: &str) -> Exchange {
        let mut body = child(FREE, told);
        body["system"] = json!(prose("You are a worker and report once.", 12_000));
        self.with_betas(&body, BOTH).await
    }

    async fn child_with_both(&self, subject: &str) -> Exchange {
        let told = self.fan_out_with_one(subject).await;
        self.small_child(&told[0]).await
    }
}

#[tokio::test]
async fn betas_that_a_conversation_has_shown_to_cost_nothing_are_priced_so() {
    for mode in [Mode::Fork, Mode::Align] {
        let stage = before(PromptLayer::Nothing, |_| ()).await;
        stage.forkpoint.reload(|config| config.server.mode = mode);
        let before = stage.child_with_both("It is about trains.").await;
        if mode == Mode::Fork {
            assert_eq!(plan(&before), ["child", "aligned", "cost"], "nothing is known yet");
        }
        stage.one_more_beta("It is about ships.").await;
        let second = stage.one_more_beta("It is about planes.").await;
        assert!(usage(&second).cache_read * 10 > usage(&second).prompt() * 9, "{:?}", usage(&second));
        stage.forkpoint.reload(|config| config.server.mode = Mode::Fork);
        let after = stage.child_with_both("It is about roads.").await;
        assert_eq!(plan(&after), FORKED, "{mode:?}");
        assert!(usage(&after).cache_read * 10 > usage(&after).prompt() * 7, "{:?}", usage(&after));
    }
}

#[tokio::test]
async fn a_bill_that_shows_the_contrary_makes_betas_dear_again() {
    let log = Log::start();
    let stage = before(PromptLayer::Nothing, |_| ()).await;
    stage.one_more_beta("It is about ships.").await;
    stage.one_more_beta("It is about planes.").await;
    let told = stage.fan_out_with_one("It is about roads.").await;
    // The upstream loses its entries before it should.
    stage.sim.clock().advance(Duration::from_secs(600));
    let dear = stage.small_child(&told[0]).await;
    assert_eq!(plan(&dear), FORKED, "as was learned");
    assert_eq!(usage(&dear).cache_read, 0);
    assert_eq!(plan(&stage.child_with_both("It is about woods.").await), ["child", "aligned", "cost"]);
    stage.one_more_beta("It is about towns.").await;
    // What was lost so far keeps it from being forked, and not its betas.
    assert_eq!(plan(&stage.child_with_both("It is about hills.").await), ["child", "aligned", "cost"]);
    stage.ended("unforked", 2).await;
    let predicted: Vec<f64> =
        log.records().iter().filter_map(|line| line["predicted_forked"].as_f64()).collect();
    let [.., woods, hills] = predicted[..] else { panic!("{predicted:?}") };
    assert!(hills < 0.7 * woods, "{predicted:?}");
}

#[tokio::test]
async fn betas_that_are_a_part_of_the_key_stay_dear() {
    let stage = before(PromptLayer::Messages, |_| ()).await;
    stage.one_more_beta("It is about ships.").await;
    let second = stage.one_more_beta("It is about planes.").await;
    assert!(usage(&second).cache_read * 2 < usage(&second).prompt(), "{:?}", usage(&second));
    assert_eq!(plan(&stage.child_with_both("It is about roads.").await), ["child", "aligned", "cost"]);
}

#[tokio::test]
async fn a_fork_that_pays_all_the_same_shows_what_its_betas_cost() {
    for (betas, shown) in
        [(PromptLayer::Nothing, FORKED), (PromptLayer::Messages, ["child", "aligned", "cost"])]
    {
        let stage = before(betas, |_| ()).await;
        stage.forkpoint.reload(|config| config.fork.policy.max_cost_ratio = 100.0);
        assert_eq!(plan(&stage.child_with_both("It is about roads.").await), FORKED);
        stage.forkpoint.reload(|config| config.fork.policy.max_cost_ratio = 1.0);
        assert_eq!(plan(&stage.child_with_both("It is about towns.").await), shown, "{betas:?}");
    }
}
