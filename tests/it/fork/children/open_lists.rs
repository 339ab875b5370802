//! What parents and children may send that nobody here has heard of, or that has no effect any more.

use forkpoint::engine::respell::canonical::Order;
use serde_json::{Value, json};

use super::{Exchange, FORKED, FREE, Stage, child, directives, forwarded, parent, plan, usage};
use crate::harness::until;
use crate::workload::Letter;

const FAN_OUT: &str = "[[sim:fan_out n=2 tool=Agent field=prompt | text words=5]]";
const NEW: &str = "2026-10-21";

fn versioned(body: &Value, version: &str) -> Letter {
    let mut letter = Letter::alone(body);
    letter.headers.retain(|(name, _)| *name != "anthropic-version");
    letter.with("anthropic-version", version)
}

impl Stage {
    async fn ask(&self, letter: Letter) -> Exchange {
        let exchange = self.line().send(&letter).await;
        assert_eq!(exchange.status, 200, "{:?}", exchange.answer);
        exchange
    }

    async fn fan_out_of(&self, letter: Letter) -> Vec<String> {
        let told = directives(&self.ask(letter).await);
        until("the seal", || self.count("forks_total", &["outcome=\"sealed\""]) > 0).await;
        told
    }

    fn last_header(&self, name: &str) -> Option<String> {
        let records = self.sim.requests();
        let headers = &records.last().unwrap().headers;
        headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.clone())
    }
}

#[tokio::test]
async fn parent_and_child_must_ask_for_one_version_of_the_api() {
    for (parents, own, expected) in [
        (NEW, NEW, FORKED),
        (NEW, "2023-06-01", ["child", "aligned", "version"]),
        ("2023-06-01", NEW, ["child", "aligned", "version"]),
    ] {
        let stage = Stage::new(|_| ()).await;
        let told = stage.fan_out_of(versioned(&parent(FREE, FAN_OUT), parents)).await;
        assert_eq!(stage.last_header("anthropic-version").as_deref(), Some(parents));
        let exchange = stage.ask(versioned(&child(FREE, &told[0]), own)).await;
        assert_eq!(plan(&exchange), expected);
        assert_eq!(stage.last_header("anthropic-version").as_deref(), Some(own), "as it came");
    }
}

#[tokio::test]
async fn cited_text_of_the_assistant_stays_in_its_message() {
    let stage = Stage::new(|_| ()).await;
    let mut lead = parent(FREE, FAN_OUT);
    let cited = json!([{"type": "text", "text": "I have read it.", "citations": [
        {"type": "char_location", "cited_text": "it", "document_index": 0, "start_char_index": 0, "end_char_index": 2}]}]);
    lead["messages"][1]["content"] = cited.clone();
    let told = stage.fan_out_of(versioned(&lead, NEW)).await;
    let exchange = stage.ask(versioned(&child(FREE, &told[0]), NEW)).await;
    assert_eq!(plan(&exchange), FORKED);
    assert_eq!(forwarded(&exchange)["messages"][1], json!({"role": "assistant", "content": cited}));
}

#[tokio::test]
async fn betas_without_effect_cost_nothing_and_stay_in_the_header() {
    let stage = Stage::new(|_| ()).await;
    let parents = "pdfs-2024-09-25,interleaved-thinking-2025-05-14";
    let own = "token-counting-2024-11-01,interleaved-thinking-2025-05-14";
    let told = stage.fan_out_of(Letter::alone(&parent(FREE, FAN_OUT)).with("anthropic-beta", parents)).await;
    assert_eq!(stage.last_header("anthropic-beta").as_deref(), Some(parents));
    let exchange = stage.ask(Letter::alone(&child(FREE, &told[0])).with("anthropic-beta", own)).await;
    assert_eq!(plan(&exchange), FORKED);
    assert_eq!(stage.last_header("anthropic-beta").as_deref(), Some(own), "nothing was missing");
    assert!(usage(&exchange).cache_read * 2 > usage(&exchange).prompt(), "{:?}", usage(&exchange));
}

#[tokio::test]
async fn sets_of_tools_without_a_name_are_forked_and_sorted_like_others() {
    for order in [Order::FirstSeen, Order::Sorted] {
        let stage = Stage::new(|config| config.canonical.order = order).await;
        let sets =
            ["browser_toolset_20260801", "computer_toolset_20260801"].map(|kind| json!({"type": kind}));
        let mut lead = parent(FREE, FAN_OUT);
        lead["tools"].as_array_mut().unwrap().splice(0..0, sets.clone());
        let told = stage.fan_out_of(Letter::alone(&lead)).await;
        let mut worker = child(FREE, &told[0]);
        worker["tools"].as_array_mut().unwrap().extend(sets.into_iter().rev());
        let exchange = stage.ask(Letter::alone(&worker)).await;
        assert_eq!(plan(&exchange), FORKED, "{order:?}");
        let tools = forwarded(&exchange)["tools"].as_array().unwrap().len();
        assert_eq!(tools, lead["tools"].as_array().unwrap().len(), "{order:?}: none lost, none twice");
    }
}

#[tokio::test]
async fn fields_and_blocks_that_nobody_knows_pass() {
    let stage = Stage::new(|_| ()).await;
    let mut lead = parent(FREE, FAN_OUT);
    let listing = json!({"type": "mcp_tool_listing", "server_name": "m", "tools": [{"name": "x"}]});
    lead["messages"][0]["content"] =
        json!([{"type": "text", "text": lead["messages"][0]["content"]}, listing]);
    let told = stage.fan_out_of(Letter::alone(&lead)).await;
    let mut worker = child(FREE, &told[0]);
    for body in [&mut lead, &mut worker] {
        body["tags"] = json!({"team": "red"});
        body["safeguards"] = json!([{"type": "dangerous_tool_use"}]);
    }
    let exchange = stage.ask(Letter::alone(&worker)).await;
    assert_eq!(plan(&exchange), ["child", "aligned", "unknown_field"], "its parent sent none");
    assert_eq!(forwarded(&exchange)["tags"], worker["tags"]);
    let told = stage.fan_out(&lead).await;
    let mut worker = child(FREE, &told[1]);
    worker["tags"] = lead["tags"].clone();
    worker["safeguards"] = lead["safeguards"].clone();
    let exchange = stage.ask(Letter::alone(&worker)).await;
    assert_eq!(plan(&exchange), FORKED);
    let sent = forwarded(&exchange);
    assert_eq!((&sent["tags"], &sent["safeguards"]), (&lead["tags"], &lead["safeguards"]));
    assert_eq!(sent["messages"][0]["content"][1], listing);
}
