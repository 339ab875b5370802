//! Thinking that the model does not know again, since it stood behind another prefix.

use forkpoint::config::{Bodies, Config, Mode};
use forkpoint::engine::words::BodyDigest;
use forkpoint::sim::SimConfig;
use serde_json::{Value, json};

use super::refused::refuse_forks;
use super::{BOUND, FORKED, FREE, Stage, child, extend, forwarded, narrow, parent, plan, usage};
use crate::recording::lines;
use crate::workload::{Exchange, Letter, prose};

const SCRIPT: &str =
    "[[sim:fan_out n=2 tool=Agent field=prompt thinking=20 | tools turns=4 tool=search thinking=20]]";
const LOST: &str = "bound to a different conversation";

/// Returns true if the answer contains these words.
fn says(exchange: &Exchange, words: &str) -> bool {
    String::from_utf8_lossy(&exchange.answer).contains(words)
}

impl Stage {
    /// A child after its first turn.
    async fn started(&self, model: &str) -> Value {
        let told = self.fan_out(&parent(model, SCRIPT)).await;
        let mut body = child(model, &told[0]);
        let first = self.send(&body).await;
        assert_eq!(plan(&first), FORKED);
        extend(&mut body, &first);
        body
    }

    async fn lowered(&self, body: &Value, mode: &'static str) -> Exchange {
        self.line().send(&Letter::alone(body).with("x-forkpoint-mode", mode)).await
    }

    fn rescued(&self) -> u64 {
        self.count("fallbacks_total", &["reason=\"lost_prefix\""])
    }
}

#[tokio::test]
async fn a_child_whose_prefix_was_lost_goes_on_without_its_old_thinking() {
    let mut stage = Stage::new(|_| ()).await;
    let mut body = stage.started(BOUND).await;
    stage.restart().await;
    for turn in 2..=3 {
        let exchange = stage.send(&body).await;
        assert_eq!(exchange.status, 200, "turn {turn}: {:?}", exchange.answer);
        assert_eq!(plan(&exchange), ["plain", "passthrough", "lost_prefix"], "turn {turn}");
        let sent = forwarded(&exchange);
        assert_eq!(sent["thinking"]["block_binding"]["prefix_mismatch_behavior"], "drop_block");
        assert_eq!(stage.rescued(), turn - 1);
        extend(&mut body, &exchange);
    }
}

#[tokio::test]
async fn a_client_that_breaks_its_own_prefix_is_told_so() {
    for mode in [Mode::Fork, Mode::Align] {
        let stage = Stage::new(|config| config.server.mode = mode).await;
        let mut body = child(BOUND, "Look around. [[sim:tools turns=3 tool=search thinking=20]]");
        for _ in 0..2 {
            let exchange = stage.send(&body).await;
            assert_eq!(exchange.status, 200, "{:?}", exchange.answer);
            extend(&mut body, &exchange);
        }
        body["system"][0]["text"] = json!(prose("You are somebody else now.", 30_000));
        for _ in 0..2 {
            let refused = stage.send(&body).await;
            assert_eq!((refused.status, says(&refused, LOST)), (400, true), "{mode:?}");
        }
        assert_eq!(stage.rescued(), 0, "{mode:?}");
    }
}

#[tokio::test]
async fn nothing_is_left_out_of_a_request_in_mode_align() {
    let mut stage = Stage::new(|_| ()).await;
    let body = stage.started(BOUND).await;
    for mode in [Mode::Align, Mode::Observe] {
        // It has not seen the start of this conversation.
        stage.forkpoint = Stage::forkpoint(&stage.sim, |config| config.server.mode = mode).await;
        let refused = stage.send(&body).await;
        assert_eq!((refused.status, says(&refused, LOST)), (400, true), "{mode:?}");
        assert_eq!(stage.rescued(), 0, "{mode:?}");
    }
}

#[tokio::test]
async fn a_child_keeps_its_prefix_when_the_mode_is_lowered_while_it_lives() {
    for model in [FREE, BOUND] {
        let stage = Stage::new(|_| ()).await;
        let mut body = stage.started(model).await;
        let told = stage.fan_out(&parent(model, &format!("Once more. {SCRIPT}"))).await;
        for (mode, plain) in [(Mode::Align, "aligned"), (Mode::Observe, "passthrough")] {
            stage.forkpoint.reload(|config| config.server.mode = mode);
            let exchange = stage.send(&body).await;
            assert_eq!((exchange.status, plan(&exchange)), (200, FORKED), "{model} {mode:?}");
            let used = usage(&exchange);
            assert!(used.cache_read * 10 > used.prompt() * 9, "{model} {mode:?}: {used:?}");
            extend(&mut body, &exchange);
            let newcomer = stage.send(&child(model, &told[usize::from(mode == Mode::Observe)])).await;
            assert_eq!(plan(&newcomer)[..2], ["child", plain], "{model} {mode:?}");
            assert!(newcomer.is_untouched() || mode == Mode::Align);
        }
    }
}

#[tokio::test]
async fn a_child_whose_client_asks_for_less_goes_on_without_its_old_thinking() {
    let stage = Stage::new(|_| ()).await;
    let mut body = stage.started(BOUND).await;
    let lowered = stage.lowered(&body, "align").await;
    assert_eq!((lowered.status, plan(&lowered)), (200, ["child", "passthrough", "lost_prefix"]));
    assert_eq!(forwarded(&lowered)["thinking"]["block_binding"]["prefix_mismatch_behavior"], "drop_block");
    extend(&mut body, &lowered);
    // What it thought meanwhile stands behind no prefix, and what it thought before stands behind one.
    let back = stage.send(&body).await;
    assert_eq!((back.status, plan(&back)), (200, ["child", "passthrough", "lost_prefix"]));
    assert_eq!(stage.rescued(), 2);
    // One that asks for nothing at all gets the API's own answer to the bytes that it sent.
    let observed = stage.lowered(&body, "observe").await;
    assert_eq!((observed.status, says(&observed, LOST), observed.is_untouched()), (400, true, true));
    assert_eq!(stage.rescued(), 2);
    // Where thinking is bound to nothing, nothing is lost.
    let stage = Stage::new(|_| ()).await;
    let body = stage.started(FREE).await;
    let lowered = stage.lowered(&body, "align").await;
    assert_eq!((lowered.status, plan(&lowered)[1]), (200, "aligned"));
    assert_eq!(forwarded(&lowered)["messages"].as_array().unwrap().len(), 3);
    assert_eq!(plan(&stage.send(&body).await), FORKED);
}

#[tokio::test]
async fn a_request_that_says_itself_what_becomes_of_its_thinking_goes_out_as_it_came() {
    let mut stage = Stage::new(|_| ()).await;
    let mut body = stage.started(BOUND).await;
    body["thinking"]["block_binding"] = json!({"prefix_mismatch_behavior": "error"});
    stage.restart().await;
    let letter = Letter::alone(&body).with("anthropic-beta", "thinking-binding-controls-2026-08-01");
    let refused = stage.line().send(&letter).await;
    assert_eq!((refused.status, says(&refused, LOST)), (400, true));
    assert!(refused.is_untouched());
    assert_eq!(stage.rescued(), 0);
    assert_eq!(stage.count("fallbacks_total", &["reason=\"refused\""]), 1);
}

#[tokio::test]
async fn a_child_that_outgrows_the_window_is_told_so_or_goes_on_as_it_came() {
    for (model, status) in [(FREE, 200), (BOUND, 400)] {
        let stage = Stage::before(narrow(120_000), |_| ()).await;
        let mut body = stage.started(model).await;
        let last = body["messages"].as_array_mut().unwrap().last_mut().unwrap();
        last["content"]
            .as_array_mut()
            .unwrap()
            .push(json!({"type": "text", "text": prose("Also this.", 60_000)}));
        let exchange = stage.send(&body).await;
        assert_eq!(exchange.status, status, "{model}: {}", String::from_utf8_lossy(&exchange.answer));
        assert_eq!(plan(&exchange), ["child", "passthrough", "refused"], "{model}");
        assert_eq!(stage.count("fallbacks_total", &["reason=\"window\""]), 1, "{model}");
        assert!(!says(&exchange, LOST), "{model}: nothing that its client could mend");
        if status == 400 {
            assert!(says(&exchange, "exceed context limit") || says(&exchange, "prompt is too long"));
        }
    }
}

#[tokio::test]
async fn a_child_that_outgrows_what_the_upstream_takes_is_told_so_or_goes_on_as_it_came() {
    for (model, status) in [(FREE, 200), (BOUND, 413)] {
        let mut sim = SimConfig::default();
        sim.limits.body_bytes = 400_000;
        let stage = Stage::before(sim, |_| ()).await;
        let told = stage.fan_out(&parent(model, SCRIPT)).await;
        let mut body = child(model, &told[0]);
        let first = stage.send(&body).await;
        assert_eq!(plan(&first), FORKED);
        extend(&mut body, &first);
        let small = body.clone();
        let last = body["messages"].as_array_mut().unwrap().last_mut().unwrap();
        last["content"].as_array_mut().unwrap().push(json!({"type": "text", "text": prose("Also.", 30_000)}));
        for time in 1..=2 {
            let exchange = stage.send(&body).await;
            assert_eq!(exchange.status, status, "{model}: {}", String::from_utf8_lossy(&exchange.answer));
            assert_eq!(plan(&exchange), ["child", "passthrough", "refused"], "{model}");
            assert_eq!(stage.count("fallbacks_total", &["reason=\"too_large\""]), time, "{model}");
            assert!(!says(&exchange, LOST), "{model}: nothing that its client could mend");
        }
        // It keeps its prefix, and so do those that come after it.
        assert_eq!(
            (stage.send(&small).await.status, plan(&stage.send(&small).await)),
            (200, FORKED),
            "{model}"
        );
        assert_eq!(plan(&stage.send(&child(model, &told[1])).await), FORKED, "{model}");
        assert_eq!(stage.count("standdowns_total", &[]), 0, "{model}");
    }
}

#[tokio::test]
async fn a_later_turn_that_is_refused_for_what_was_made_of_it_leaves_newcomers_alone() {
    let stage = Stage::new(|_| ()).await;
    let told = stage.fan_out(&parent(FREE, SCRIPT)).await;
    let mut body = child(FREE, &told[0]);
    let first = stage.send(&body).await;
    extend(&mut body, &first);
    refuse_forks(&stage, 400);
    let second = stage.send(&body).await;
    assert_eq!((second.status, plan(&second)), (200, ["child", "passthrough", "refused"]));
    stage.sim.faults().clear();
    assert_eq!(plan(&stage.send(&child(FREE, &told[1])).await), ["child", "aligned", "stood_down"]);
    assert_eq!(plan(&stage.send(&body).await), FORKED, "who stands on a prefix keeps it");
    assert_eq!(stage.count("standdowns_total", &["reason=\"refused\""]), 1);
}

#[tokio::test]
async fn what_is_recorded_as_sent_is_what_was_sent_last() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("r.jsonl");
    let mut stage = Stage::new(|_| ()).await;
    let body = stage.started(BOUND).await;
    let records = |config: &mut Config| {
        config.record.file = Some(file.clone());
        config.record.bodies = Bodies::Full;
    };
    stage.forkpoint = Stage::forkpoint(&stage.sim, records).await;
    let rescued = stage.send(&body).await;
    stage.forkpoint.recorded(1).await;
    stage.forkpoint.proxy.recording().unwrap().flush();
    let line = lines(&file).pop().unwrap();
    assert_eq!(line.reason, "lost_prefix");
    assert_eq!(line.forwarded.unwrap().as_bytes(), &rescued.forwarded[..]);
    assert_eq!(line.sent, Some(BodyDigest::of(&rescued.forwarded).to_string()));
    let refused = line.refused.expect("the body that was refused");
    assert!(refused.contains("cache_control") && !refused.contains("drop_block"));
}
