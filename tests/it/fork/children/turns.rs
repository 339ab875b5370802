//! Children from their first turn to their last.

use forkpoint::config::Config;
use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{
    BOUND, FORKED, FREE, Stage, child, extend, forwarded, parent, plan, units, usage, without_markers,
};
use crate::workload::Letter;

#[tokio::test(flavor = "multi_thread")]
async fn siblings_are_put_on_their_parents_prefix_and_read_it() {
    for model in [FREE, BOUND] {
        let stage = Stage::new(|_| ()).await;
        let told = stage
            .fan_out(&parent(model, "[[sim:fan_out n=5 tool=Agent field=prompt | text words=20]]"))
            .await;
        let line = stage.line();
        let letters: Vec<_> = told.iter().map(|told| Letter::alone(&child(model, told))).collect();
        let children = join_all(letters.iter().map(|letter| line.send(letter))).await;
        for (child, told) in children.iter().zip(&told) {
            assert_eq!((child.status, plan(child)), (200, FORKED), "{model}");
            let body = forwarded(child);
            assert_eq!(body["system"], parent(model, "")["system"]);
            let last = body["messages"].as_array().unwrap().last().unwrap();
            assert_eq!(last["content"].as_array().unwrap().last().unwrap()["text"], json!(told));
            assert!(last.to_string().contains("You are a worker"), "its own words are kept");
        }
        let mut read: Vec<_> = children.iter().map(|child| usage(child).cache_read).collect();
        read.sort_unstable();
        let prompt = |child| {
            let usage = usage(child);
            usage.cache_read + usage.cache_write() + usage.uncached
        };
        // The first reads the parent's entry, the others also what the first has written.
        let whole: u64 = children.iter().map(prompt).min().unwrap();
        assert!(read[0] * 10 >= whole * 5, "{model}: {read:?} of {whole}");
        assert!(read[1] * 100 >= whole * 95, "{model}: {read:?} of {whole}");
        assert_eq!(stage.count("children_total", &["plan=\"forked\"", "reason=\"none\""]), 5);
    }
}

/// These children are much smaller than their parent: aligned they share their tools and cost less than forked.
#[tokio::test]
async fn context_costs_no_more_beside_aligning_than_the_premium_allows() {
    const DEARER: [&str; 3] = ["child", "aligned", "cost"];
    assert_eq!(Config::default().fork.policy.context_premium, 0.25);
    for (premium, expected) in [(0.0, DEARER), (0.25, DEARER), (100.0, FORKED)] {
        let stage = Stage::new(|config| config.fork.policy.context_premium = premium).await;
        let script = "[[sim:fan_out n=5 tool=Agent field=prompt | text words=20]]";
        let told = stage.fan_out(&parent(FREE, script)).await;
        let exchange = stage.send(&child(FREE, &told[0])).await;
        assert_eq!((exchange.status, plan(&exchange)), (200, expected), "{premium}");
    }
}

#[tokio::test]
async fn a_child_keeps_its_prefix_for_life() {
    for model in [FREE, BOUND] {
        let stage = Stage::new(|_| ()).await;
        let script = "[[sim:fan_out n=2 tool=Agent field=prompt thinking=30 | tools turns=4 calls=2 tool=search thinking=20]]";
        let told = stage.fan_out(&parent(model, script)).await;
        let mut body = child(model, &told[0]);
        let mut before = 0;
        let mut prefix = None;
        for turn in 1..=5 {
            let exchange = stage.send(&body).await;
            assert_eq!((exchange.status, plan(&exchange)), (200, FORKED), "{model} turn {turn}");
            let usage = usage(&exchange);
            assert!(usage.cache_read >= before, "{model} turn {turn}: {usage:?}, {before} were there");
            assert_eq!(usage.uncached, 0, "{model} turn {turn}");
            before = usage.cache_read + usage.cache_write();
            let said = exchange.said("prefix").unwrap().to_owned();
            assert_eq!(*prefix.get_or_insert(said.clone()), said);
            extend(&mut body, &exchange);
        }
    }
}

#[tokio::test]
async fn a_child_that_sums_up_what_it_said_stays_on_its_prefix() {
    for model in [FREE, BOUND] {
        let stage = Stage::new(|_| ()).await;
        let script =
            "[[sim:fan_out n=2 tool=Agent field=prompt | tools turns=4 calls=1 tool=search thinking=20]]";
        let told = stage.fan_out(&parent(model, script)).await;
        let mut body = child(model, &told[0]);
        let first = stage.send_as("agent-1", &body).await;
        assert_eq!((first.status, plan(&first)), (200, FORKED), "{model}");
        extend(&mut body, &first);
        let summary =
            json!({"role": "user", "content": "What happened so far: I was told to look, and did."});
        // One call is left behind the summary, by which any client is known; or nothing but the summary, and the
        // client names its agents.
        let mut last = body["messages"].as_array().unwrap()[1..].to_vec();
        last[0]["content"].as_array_mut().unwrap().retain(|block| block["type"] == "tool_use");
        for kept in [last, Vec::new()] {
            let messages: Vec<_> = std::iter::once(summary.clone()).chain(kept).collect();
            body["messages"] = json!(messages);
            let exchange = stage.send_as("agent-1", &body).await;
            assert_eq!((exchange.status, plan(&exchange)), (200, FORKED), "{model}: {:?}", exchange.answer);
            let [shared, started] = [&exchange, &first].map(|exchange| shared_messages(&forwarded(exchange)));
            assert_eq!(shared, started, "{model}");
            assert!(forwarded(&exchange).to_string().contains("What happened so far"));
        }
        let stranger = stage.send_as("agent-2", &body).await;
        assert_eq!(plan(&stranger)[0], "plain", "{model}");
    }
}

/// The parent's messages and its turn, and of the child's own message what stands before its words.
fn shared_messages(body: &Value) -> Value {
    let mut messages = body["messages"].as_array().unwrap()[..5].to_vec();
    messages[4]["content"].as_array_mut().unwrap().truncate(3);
    without_markers(Value::Array(messages))
}

#[tokio::test]
async fn forking_is_never_dearer_than_sending() {
    // A small child under a large parent: nothing of its own to save.
    let stage = Stage::new(|config| config.fork.policy.max_cost_ratio = 1.0).await;
    let told = stage.fan_out(&parent(FREE, "[[sim:fan_out n=2 tool=Agent field=prompt | text]]")).await;
    let mut small = child(FREE, &told[0]);
    small["system"] = json!("You are terse.");
    let exchange = stage.send(&small).await;
    assert_eq!(plan(&exchange), ["child", "aligned", "cost"]);
    assert_eq!(forwarded(&exchange)["system"], small["system"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn five_tool_heavy_children_cost_a_fraction_of_what_they_cost_as_sent() {
    let mut costs = [0.0, 0.0];
    for (cost, mode) in costs.iter_mut().zip(["observe", "fork"]) {
        let stage = Stage::new(|_| ()).await;
        let body = parent(FREE, "[[sim:fan_out n=5 tool=Agent field=prompt | text words=20]]");
        let told = stage.fan_out(&body).await;
        let line = stage.line();
        let letter = |told: &String| {
            let mut child = child(FREE, told);
            child["system"] = json!(crate::workload::prose("You work.", 160_000));
            Letter::alone(&child).with("x-forkpoint-mode", mode)
        };
        let letters: Vec<_> = told.iter().map(letter).collect();
        let children = join_all(letters.iter().map(|letter| line.send(letter))).await;
        *cost = children.iter().map(|child| units(usage(child))).sum();
    }
    assert!(costs[1] < 0.5 * costs[0], "{costs:?}");
}
