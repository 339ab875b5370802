//! Children with betas that their parent does not have: what that costs is learned from bills.

use std::time::Duration;

use forkpoint::config::{Config, Mode};
use forkpoint::sim::SimConfig;
use forkpoint::sim::settings::PromptLayer;
use serde_json::{Value, json};

use super::{Exchange, FORKED, FREE, Stage, child, extend, parent, plan, usage};
use crate::harness::{Log, until};
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

/// A stage whose children are forked at any price, or never, and what they were predicted to cost forked.
struct Priced {
    stage: Stage,
    log: Log,
    children: usize,
}

impl Priced {
    async fn before(betas: PromptLayer) -> Priced {
        let log = Log::start();
        Priced { stage: before(betas, |_| ()).await, log, children: 0 }
    }

    /// The next child, and its predicted cost.
    async fn child(&mut self, is_forked: bool, subject: &str) -> (Exchange, f64) {
        let told = self.stage.fan_out_with_one(subject).await;
        self.small_child(is_forked, &told[0]).await
    }

    async fn small_child(&mut self, is_forked: bool, told: &str) -> (Exchange, f64) {
        let ratio = if is_forked { 100.0 } else { 0.0 };
        self.stage.forkpoint.reload(|config| config.fork.policy.max_cost_ratio = ratio);
        let exchange = self.stage.small_child(told).await;
        self.children += 1;
        let predicted = || -> Vec<f64> {
            self.log.records().iter().filter_map(|line| line["predicted_forked"].as_f64()).collect()
        };
        until("the child's line", || predicted().len() == self.children).await;
        let predicted = predicted().pop().unwrap();
        (exchange, predicted)
    }
}

/// What is priced with the parent's messages cold costs so much more than with them warm.
const COLD: f64 = 1.4;

#[tokio::test]
async fn betas_that_a_conversation_has_shown_to_cost_nothing_are_priced_so() {
    for mode in [Mode::Fork, Mode::Align] {
        let mut priced = Priced::before(PromptLayer::Nothing).await;
        priced.stage.forkpoint.reload(|config| config.server.mode = mode);
        let (before, cold) = priced.child(false, "It is about trains.").await;
        if mode == Mode::Fork {
            assert_eq!(plan(&before), ["child", "aligned", "cost"], "nothing is known yet");
        }
        priced.stage.one_more_beta("It is about ships.").await;
        let second = priced.stage.one_more_beta("It is about planes.").await;
        assert!(usage(&second).cache_read * 10 > usage(&second).prompt() * 9, "{:?}", usage(&second));
        priced.stage.forkpoint.reload(|config| config.server.mode = Mode::Fork);
        let (after, warm) = priced.child(true, "It is about roads.").await;
        assert_eq!(plan(&after), FORKED, "{mode:?}");
        assert!(cold > COLD * warm, "{cold} {warm}");
        assert!(usage(&after).cache_read * 10 > usage(&after).prompt() * 7, "{:?}", usage(&after));
    }
}

#[tokio::test]
async fn a_bill_that_shows_the_contrary_makes_betas_dear_again() {
    let mut priced = Priced::before(PromptLayer::Nothing).await;
    priced.stage.one_more_beta("It is about ships.").await;
    priced.stage.one_more_beta("It is about planes.").await;
    let told = priced.stage.fan_out_with_one("It is about roads.").await;
    // The upstream loses its entries before it should.
    priced.stage.sim.clock().advance(Duration::from_secs(600));
    let (lost, warm) = priced.small_child(true, &told[0]).await;
    assert_eq!(plan(&lost), FORKED);
    assert_eq!(usage(&lost).cache_read, 0);
    let (_, cold) = priced.child(false, "It is about woods.").await;
    assert!(cold > COLD * warm, "{cold} {warm}");
    priced.stage.one_more_beta("It is about towns.").await;
    let (_, warm) = priced.child(false, "It is about hills.").await;
    assert!(cold > COLD * warm, "{cold} {warm}");
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
    for (betas, is_harmless) in [(PromptLayer::Nothing, true), (PromptLayer::Messages, false)] {
        let mut priced = Priced::before(betas).await;
        let (first, unknown) = priced.child(true, "It is about roads.").await;
        assert_eq!(plan(&first), FORKED);
        let (_, known) = priced.child(false, "It is about towns.").await;
        assert_eq!(unknown > COLD * known, is_harmless, "{betas:?}: {unknown} {known}");
    }
}
