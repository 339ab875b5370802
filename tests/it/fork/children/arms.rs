//! Children that are left alone to be compared with, and forking that does not keep its promises.

use forkpoint::config::Mode;
use forkpoint::engine::words::Refusal;
use serde_json::{Value, json};

use super::{FORKED, FREE, Stage, child, forwarded, parent, plan};
use crate::harness::{Log, until};

impl Stage {
    fn arm(&self, metric: &str, arm: &str) -> u64 {
        self.count(&format!("arm_{metric}_total"), &[&format!("arm=\"{arm}\"")])
    }

    pub(super) async fn ended(&self, arm: &str, turns: u64) {
        until("the turns to be recorded", || self.arm("turns", arm) == turns).await;
    }
}

#[tokio::test]
async fn the_holdout_is_whole_fan_outs() {
    let stage = Stage::new(|config| config.fork.policy.share = 0.5).await;
    let (mut forked, mut held_out) = (0, 0);
    for number in 0..10 {
        let script = format!("Part {number}. [[sim:fan_out n=2 tool=Agent field=prompt | text words=8]]");
        let mut plans = Vec::new();
        for told in stage.fan_out(&parent(FREE, &script)).await {
            let body = child(FREE, &told);
            let exchange = stage.send(&body).await;
            assert_eq!(exchange.status, 200);
            plans.push(plan(&exchange).map(String::from));
            if plans[0] != FORKED {
                assert_eq!(forwarded(&exchange)["messages"][0]["role"], body["messages"][0]["role"]);
            }
        }
        assert_eq!(plans[0], plans[1], "siblings are treated alike");
        if plans[0] == FORKED {
            forked += 2
        } else {
            assert_eq!(plans[0], ["child", "aligned", "holdout"]);
            held_out += 2;
        }
    }
    assert!(forked > 0 && held_out > 0, "{forked} and {held_out}");
    stage.ended("forked", forked).await;
    stage.ended("holdout", held_out).await;
    assert_eq!([stage.arm("children", "forked"), stage.arm("children", "holdout")], [forked, held_out]);
    assert_eq!(stage.arm("children", "unforked"), 0);
    assert_eq!(stage.count("children_total", &["reason=\"holdout\""]), held_out);
    for arm in ["forked", "holdout"] {
        assert!(stage.arm("output_tokens", arm) >= 8, "{arm}");
        assert_eq!(stage.arm("empty_answers", arm), 0, "{arm}");
    }
}

#[tokio::test]
async fn a_share_of_nothing_forks_nobody() {
    let log = Log::start();
    let stage = Stage::new(|config| config.fork.policy.share = 0.0).await;
    let told = stage.fan_out(&parent(FREE, "[[sim:fan_out n=2 tool=Agent field=prompt | text]]")).await;
    for told in &told {
        assert_eq!(plan(&stage.send(&child(FREE, told)).await), ["child", "aligned", "holdout"]);
    }
    // What they would have cost is known all the same.
    stage.ended("holdout", 2).await;
    until("the lines", || log.count() == 3).await;
    for line in &log.records()[1..] {
        assert!(is_positive(line, &["predicted_forked", "predicted_as_sent", "forked_usd"]), "{line}");
        assert_eq!(line.get("would_fork"), None);
    }
}

fn is_positive(line: &Value, fields: &[&str]) -> bool {
    fields.iter().all(|field| line[field].as_f64().is_some_and(|figure| figure > 0.0))
}

#[tokio::test]
async fn lower_modes_say_what_forking_would_have_done() {
    for mode in [Mode::Observe, Mode::Align] {
        let log = Log::start();
        let stage = Stage::new(|config| config.server.mode = mode).await;
        let told = stage.fan_out(&parent(FREE, "[[sim:fan_out n=2 tool=Agent field=prompt | text]]")).await;
        stage.send(&child(FREE, &told[0])).await;
        let mut other = child(FREE, &told[1]);
        other["tools"] = json!([crate::workload::tool("elsewhere")]);
        stage.send(&other).await;
        until("the lines", || log.count() == 3).await;
        let lines = log.records();
        assert_eq!(lines[0].get("would_fork"), None, "a parent is no child");
        assert_eq!(lines[1]["would_fork"], "none", "{mode:?}");
        assert!(is_positive(&lines[1], &["predicted_forked", "forked_usd"]), "{}", lines[1]);
        assert_eq!(lines[2]["would_fork"], "tools_differ", "{mode:?}");
        // Sums of them, for a receipt.
        let mut declined = stage.forkpoint.proxy.store().declined();
        declined.sort_by_key(|(_, why, _)| why.is_some());
        let [(tool, None, forked), (_, Some(Refusal::ToolsDiffer), refused)] = &declined[..] else {
            panic!("{declined:?}")
        };
        assert_eq!((&**tool, forked.children, refused.children), ("Agent", 1, 1));
        let predicted = |field: &str| lines[1][field].as_f64().unwrap();
        assert_eq!(forked.forked_usd, predicted("predicted_forked"));
        assert_eq!(forked.as_sent_usd, predicted("predicted_as_sent"));
    }
}

/// A child that marks its system prompt and its newest message itself, so that as sent only its first turn is dear.
fn careful(told: &str) -> Value {
    let mut body = child(FREE, told);
    body["system"][0]["cache_control"] = json!({"type": "ephemeral"});
    body["cache_control"] = json!({"type": "ephemeral"});
    body
}

#[tokio::test]
async fn forking_stands_down_where_it_was_dearer_than_sending_and_is_tried_again() {
    let log = Log::start();
    let stage = Stage::new(|_| ()).await;
    let script = "[[sim:fan_out n=2 tool=Agent field=prompt | tools turns=4 tool=search]]";
    let mut lives: Vec<_> =
        stage.fan_out(&parent(FREE, script)).await.iter().map(|told| careful(told)).collect();
    for turn in 0..5 {
        for body in &mut lives {
            let exchange = stage.send(body).await;
            assert_eq!(plan(&exchange), FORKED, "{turn}");
            super::extend(body, &exchange);
        }
        // They are forked at any price, and judged by what they would have cost as sent.
        stage.forkpoint.reload(|config| config.fork.policy.max_cost_ratio = 1.0);
    }
    stage.ended("forked", 10).await;
    assert_eq!(stage.count("standdowns_total", &["reason=\"dearer\""]), 1);
    // What their parent's context has cost, and what was saved by tool, are in the lines too.
    let children =
        || log.records().into_iter().filter(|line| line["role"] == "child").collect::<Vec<Value>>();
    until("the lines", || children().len() == 10).await;
    let all = |field: &str| children().iter().filter_map(|line| line[field].as_f64()).sum::<f64>();
    assert!(children().iter().all(|line| line["tool"] == "Agent"));
    assert!(all("context_usd") > 0.0);
    assert!((all("context_usd") - stage.usd("context_usd_total")).abs() < 1e-9);
    for (baseline, field) in [("billed", "cost_usd"), ("sent", "as_sent_usd"), ("aligned", "aligned_usd")] {
        let labels = [format!("baseline=\"{baseline}\""), "tool=\"Agent\"".to_owned()];
        let counted =
            stage.forkpoint.metric("forkpoint_tool_cost_usd_total", &labels.each_ref().map(String::as_str));
        let compared = children();
        let compared =
            compared.iter().filter(|line| is_positive(line, &["cost_usd", "as_sent_usd", "aligned_usd"]));
        let logged: f64 = compared.filter_map(|line| line[field].as_f64()).sum();
        assert!(counted > 0.0 && (counted - logged).abs() < 1e-9, "{baseline}: {counted} and {logged}");
    }
    stage.forkpoint.reload(|config| config.fork.policy.max_cost_ratio = 100.0);
    let next = async |number: usize| {
        let script = format!("Part {number}. {script}");
        let told = stage.fan_out(&parent(FREE, &script)).await;
        plan(&stage.send(&careful(&told[0])).await).map(str::to_owned)
    };
    assert_eq!(next(1).await, ["child", "aligned", "stood_down"]);
    stage.forkpoint.proxy.clock().skip(60 * 60 * 1_000);
    assert_eq!(next(2).await, FORKED, "it is tried again");
    assert_eq!(next(3).await, ["child", "aligned", "stood_down"], "with one fan-out");
    let said = log.text().lines().find(|line| line.contains("forking stands down")).map(str::to_owned);
    let said: Value = serde_json::from_str(&said.expect("a warning")).unwrap();
    assert_eq!([&said["level"], &said["tool"], &said["reason"]], ["WARN", "Agent", "dearer"]);
    assert_eq!(said["tenant"], log.records()[0]["tenant"]);
}

#[tokio::test]
async fn forking_stands_down_where_forked_children_say_nothing() {
    let stage = Stage::new(|_| ()).await;
    let script = |number: usize, tool: &str, says: &str| {
        let mut body =
            parent(FREE, &format!("Part {number}. [[sim:fan_out n=3 tool={tool} field=prompt | {says}]]"));
        body["tools"].as_array_mut().unwrap().push(crate::workload::tool("spawn_worker"));
        body
    };
    let mut lived = Vec::new();
    // Eight children of three fan-outs are proof enough.
    for (number, children) in [3, 3, 2].into_iter().enumerate() {
        let told = stage.fan_out(&script(number, "Agent", "tools turns=1 tool=search")).await;
        for told in &told[..children] {
            let mut body = child(FREE, told);
            let first = stage.send(&body).await;
            assert_eq!(plan(&first), FORKED, "{number}");
            super::extend(&mut body, &first);
            // What it found leaves it speechless.
            body["messages"][2]["content"].as_array_mut().unwrap().push(json!(
                {"type": "text", "text": "[[sim:empty]]"}
            ));
            assert_eq!(plan(&stage.send(&body).await), FORKED, "{number}");
            lived.push(body);
        }
    }
    stage.ended("forked", 16).await;
    assert_eq!(stage.arm("empty_answers", "forked"), 8);
    assert_eq!(stage.count("standdowns_total", &["reason=\"empty_answers\""]), 1);
    let told = stage.fan_out(&script(3, "Agent", "text")).await;
    assert_eq!(plan(&stage.send(&child(FREE, &told[0])).await), ["child", "aligned", "stood_down"]);
    // Another tool is another matter, and whoever is bound keeps its prefix.
    let told = stage.fan_out(&script(4, "spawn_worker", "text")).await;
    assert_eq!(plan(&stage.send(&child(FREE, &told[0])).await), FORKED);
    let mut body = lived.remove(0);
    body["messages"].as_array_mut().unwrap().extend([
        json!({"role": "assistant", "content": [{"type": "text", "text": "."}]}),
        json!({"role": "user", "content": "Go on."}),
    ]);
    assert_eq!(plan(&stage.send(&body).await), FORKED);
}

#[tokio::test]
async fn a_child_that_outlives_the_horizon_is_a_warning_before_it_ends() {
    let log = Log::start();
    let stage = Stage::new(|_| ()).await;
    let script = "[[sim:fan_out n=5 tool=Agent field=prompt | tools turns=20 tool=search]]";
    let told = stage.fan_out(&parent(FREE, &format!("One. {script}"))).await;
    let mut body = careful(&told[0]);
    let (mut turns, mut newcomers) = (0, 1);
    for (fan_out, until, expected) in [("Two.", 3, 4), ("Three.", 10, 10)] {
        while turns < until {
            let exchange = stage.send(&body).await;
            assert_eq!((exchange.status, plan(&exchange)), (200, FORKED), "a child keeps its prefix");
            super::extend(&mut body, &exchange);
            turns += 1;
        }
        stage.ended("forked", turns).await;
        // The bound is that of the requests as sent from here on; whoever is forked stays so.
        stage.forkpoint.reload(|config| config.fork.policy.max_cost_ratio = 1.0);
        let told = stage.fan_out(&parent(FREE, &format!("{fan_out} {script}"))).await;
        let newcomer = stage.send(&careful(&told[0])).await;
        assert_eq!(plan(&newcomer), ["child", "aligned", "cost"], "after {turns} turns");
        stage.ended("unforked", newcomers).await;
        newcomers += 1;
        let lines = log.records();
        let line = lines.iter().rfind(|line| line["reason"] == "cost").expect("the newcomer's line");
        assert_eq!(line["predicted_turns"], expected, "after {turns} turns");
    }
}
