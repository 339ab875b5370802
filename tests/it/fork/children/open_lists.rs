//! What parents and children may send that nobody here has heard of, or that has no effect any more.

use forkpoint::engine::respell::canonical::Order;
use forkpoint::sim::InjectedFault;
use forkpoint::sim::faults::{FaultCondition, Rule};
use serde_json::{Value, json};

use super::{
    BOUND, Exchange, FORKED, FREE, Stage, child, directives, forwarded, parent, plan, usage, without_markers,
};
use crate::fork::talk::{self, Talk, event, events, streamed};
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

#[tokio::test]
async fn controls_of_bound_thinking_go_both_ways_and_are_compared() {
    const BETA: &str = "thinking-binding-controls-2026-08-01";
    let with = |mut body: Value, behavior: &str| {
        body["thinking"]["block_binding"] = json!({"prefix_mismatch_behavior": behavior});
        Letter::alone(&body).with("anthropic-beta", BETA)
    };
    for behavior in ["error", "drop_block"] {
        let stage = Stage::new(|_| ()).await;
        let told = stage.fan_out_of(with(parent(BOUND, FAN_OUT), behavior)).await;
        let exchange = stage.ask(with(child(BOUND, &told[0]), behavior)).await;
        assert_eq!(plan(&exchange), FORKED, "{behavior}");
        let sent = forwarded(&exchange);
        assert_eq!(sent["thinking"]["block_binding"]["prefix_mismatch_behavior"], behavior);
        // A child that asks for another behaviour, or for none, reads another prompt than its parent.
        let exchange = stage.ask(Letter::alone(&child(BOUND, &told[1]))).await;
        assert_eq!(plan(&exchange), ["child", "aligned", "thinking"], "{behavior}");
        assert_eq!(forwarded(&exchange)["thinking"], json!({"type": "adaptive"}));
    }
    // What the API says that it did to the thinking of the client is the client's to know.
    let done = json!([{"type": "thinking_dropped", "path": "messages.1.content.0", "reason": "prefix_mismatch"},
        {"type": "thinking_mismatch_allowed", "reason": "model_binding_mismatch"}]);
    let mut answer = events("msg_done", 3_000, &[talk::text("Yes.")]);
    answer[0] =
        answer[0].replace(r#""content":[]"#, &format!(r#""content":[],"input_transformations":{done}"#));
    answer.insert(1, event(json!({"type": "message_delta", "delta": {"input_transformations": done}})));
    let talk = Talk::new().await;
    let told = talk.answered(&talk::parent("Go on."), streamed(&answer)).await;
    assert!(answer[0].contains("thinking_mismatch_allowed"));
    assert_eq!(String::from_utf8(told.reply.body).unwrap(), answer.concat());
}

/// What the API's documentation asks of proxies.
#[tokio::test]
async fn what_proxies_must_leave_alone_is_where_and_as_it_was() {
    const BETAS: &str = "nobody-knows-it-2099-01-01,interleaved-thinking-2025-05-14";
    let roles = |body: &Value| -> Vec<String> {
        let messages = body["messages"].as_array().unwrap().iter();
        messages.map(|message| message["role"].as_str().unwrap().to_owned()).collect()
    };
    let letter = |body: &Value| Letter::alone(body).with("anthropic-beta", BETAS);
    let stage = Stage::new(|_| ()).await;
    // Words of the system in the middle, and tools that are switched off rather than left out.
    let system = json!({"role": "system", "content": [{"type": "text", "text": "From here on, be brief."}]});
    let mut lead = parent(BOUND, "[[sim:text words=5]]");
    lead["messages"].as_array_mut().unwrap().insert(1, system.clone());
    lead["tool_choice"] = json!({"type": "none"});
    let exchange = stage.ask(letter(&lead)).await;
    assert_eq!(plan(&exchange)[1], "aligned");
    assert_eq!(without_markers(forwarded(&exchange)), without_markers(lead.clone()));
    assert_eq!(stage.last_header("anthropic-beta").as_deref(), Some(BETAS));
    // A forked child has what its parent has, in the same place.
    let mut lead = parent(BOUND, FAN_OUT);
    lead["messages"].as_array_mut().unwrap().insert(1, system);
    let told = stage.fan_out_of(letter(&lead)).await;
    let exchange = stage.ask(letter(&child(BOUND, &told[0]))).await;
    assert_eq!(plan(&exchange), FORKED);
    let sent = forwarded(&exchange);
    assert_eq!(roles(&sent), ["user", "system", "assistant", "user", "assistant", "user"]);
    assert_eq!(sent["messages"][1]["content"][0]["text"], "From here on, be brief.");
    assert_eq!(sent["tools"].as_array().unwrap().len(), lead["tools"].as_array().unwrap().len());
    assert_eq!(stage.last_header("anthropic-beta").as_deref(), Some(BETAS));
}

/// A request that is sent twice is said to be, in the answer, in the metrics and in the log.
#[tokio::test]
async fn a_second_attempt_is_never_hidden() {
    let stage = Stage::new(|_| ()).await;
    let fault = InjectedFault::Status { status: 400, retry_after_s: None };
    stage.sim.faults().order(Rule { fault, count: 1, matching: FaultCondition::default() }).unwrap();
    let exchange = stage.ask(Letter::alone(&parent(FREE, "[[sim:text words=5]]"))).await;
    assert_eq!(plan(&exchange), ["plain", "passthrough", "refused"]);
    assert_eq!((stage.sim.requests().len(), stage.count("fallbacks_total", &[])), (2, 1));
}
