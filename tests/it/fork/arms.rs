//! Children that are left alone to be compared with, and forking that does not keep its promises.

use serde_json::json;

use super::{FORKED, FREE, Stage, child, forwarded, parent, plan};
use crate::harness::until;

impl Stage {
    fn arm(&self, metric: &str, arm: &str) -> u64 {
        self.count(&format!("arm_{metric}_total"), &[&format!("arm=\"{arm}\"")])
    }

    async fn ended(&self, arm: &str, turns: u64) {
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
        match plans[0] == FORKED {
            true => forked += 2,
            false => {
                assert_eq!(plans[0], ["child", "aligned", "holdout"]);
                held_out += 2;
            }
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
    let stage = Stage::new(|config| config.fork.policy.share = 0.0).await;
    let told = stage.fan_out(&parent(FREE, "[[sim:fan_out n=2 tool=Agent field=prompt | text]]")).await;
    for told in &told {
        assert_eq!(plan(&stage.send(&child(FREE, told)).await), ["child", "aligned", "holdout"]);
    }
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
