//! Conversations that are replaced by a signed summary: parents, forked children, and what it costs.

use serde_json::{Value, json};

use super::{Exchange, FORKED, FREE, Stage, child, directives, extend, forwarded, parent, plan, usage};
use crate::harness::{Log, until};
use crate::workload::Letter;

const BETA: &str = "compact-2026-09-04";
const FAN_OUT: &str = "[[sim:fan_out n=2 tool=Agent field=prompt | tools turns=1 tool=read_file]]";
/// The members of a log line that are tokens.
const TOKENS: [&str; 5] = ["uncached", "cache_read", "cache_write_5m", "cache_write_1h", "output"];

impl Stage {
    async fn with_summaries(&self, body: &Value) -> Exchange {
        let exchange = self.line().send(&Letter::alone(body).with("anthropic-beta", BETA)).await;
        assert_eq!(exchange.status, 200, "{:?}", exchange.answer);
        exchange
    }

    /// The summary of a conversation.
    async fn summary(&self, body: &Value) -> (Exchange, Value) {
        let mut body = body.clone();
        body["compaction"] = json!({"type": "summarize"});
        let exchange = self.with_summaries(&body).await;
        let summary = exchange.blocks().unwrap().remove(0);
        assert_eq!(summary["type"], "compaction");
        (exchange, summary)
    }
}

/// The same conversation from its summary on.
fn going_on_from(summary: &Value, mut body: Value, next: &str) -> Value {
    body["messages"] =
        json!([{"role": "assistant", "content": [summary]}, {"role": "user", "content": next}]);
    body
}

#[tokio::test]
async fn a_summary_is_billed_by_its_run_in_log_metrics_and_worlds() {
    for stream in [true, false] {
        let (log, stage) = (Log::start(), Stage::new(|_| ()).await);
        let mut body = parent(FREE, "");
        body["stream"] = json!(stream);
        let first = stage.with_summaries(&body).await;
        extend(&mut body, &first);
        body["messages"].as_array_mut().unwrap().pop();
        body["messages"].as_array_mut().unwrap().push(json!({"role": "user", "content": "Sum it up."}));
        let (asked, _) = stage.summary(&body).await;
        let billed = usage(&asked);
        assert!(billed.cache_read > 0 && billed.output > 0, "{billed:?}");
        until("both lines", || log.count() == 2).await;
        let lines = log.records();
        let line = &lines[1];
        let logged = TOKENS.map(|kind| line[kind].as_u64().unwrap());
        let expected =
            [billed.uncached, billed.cache_read, billed.cache_write_5m, billed.cache_write_1h, billed.output];
        assert_eq!(logged, expected, "{line}");
        assert_eq!((&line["stop_reason"], line.get("break_cause")), (&json!("compaction"), None), "{line}");
        let counted = stage.count("tokens_total", &["kind=\"output\""]);
        assert_eq!(counted, usage(&first).output + billed.output);
        let records = stage.sim.requests();
        let cost = records.last().unwrap().cost_usd.unwrap();
        assert!((line["cost_usd"].as_f64().unwrap() - cost).abs() < 1e-9, "{line} {cost}");
        // It read what the turn before it wrote: without markers it would have read nothing.
        let [billed, sent] = ["cost_usd", "as_sent_usd"].map(|name| line[name].as_f64().unwrap());
        assert!(sent > billed, "{line}");
    }
}

#[tokio::test]
async fn a_summary_stays_first_and_byte_for_byte_through_every_mode() {
    for mode in ["observe", "align", "fork"] {
        let stage = Stage::new(|_| ()).await;
        let (_, summary) = stage.summary(&parent(FREE, "")).await;
        let next = going_on_from(&summary, parent(FREE, ""), "Go on.");
        let letter = Letter::alone(&next).with("anthropic-beta", BETA).with("x-forkpoint-mode", mode);
        let exchange = stage.line().send(&letter).await;
        assert_eq!(exchange.status, 200, "{mode}: {:?}", exchange.answer);
        let sent = String::from_utf8(exchange.forwarded.to_vec()).unwrap();
        let block = summary.to_string();
        // A marker may follow its last member; the rest is as it came.
        assert!(sent.contains(&block[..block.len() - 1]), "{mode}: {sent}");
        assert_eq!(forwarded(&exchange)["messages"][0]["content"][0]["type"], "compaction");
    }
}

#[tokio::test]
async fn children_of_a_compacted_parent_carry_its_summary_and_its_beta() {
    let stage = Stage::new(|_| ()).await;
    let (_, summary) = stage.summary(&parent(FREE, "")).await;
    let lead = going_on_from(&summary, parent(FREE, ""), &format!("Survey it. {FAN_OUT}"));
    let told = directives(&stage.with_summaries(&lead).await);
    until("the seal", || stage.count("forks_total", &["outcome=\"sealed\""]) > 0).await;
    // Its own request asks for no beta: the upstream would refuse the block.
    let forked = stage.send(&child(FREE, &told[0])).await;
    assert_eq!((forked.status, plan(&forked)), (200, FORKED), "{:?}", forked.answer);
    let sent = forwarded(&forked);
    assert_eq!(sent["messages"][0]["content"][0]["signature"], summary["signature"]);
    let records = stage.sim.requests();
    let betas = records.last().unwrap().headers.iter().find(|(name, _)| name == "anthropic-beta");
    assert_eq!(betas.map(|(_, value)| value.as_str()), Some(BETA));
}

#[tokio::test]
async fn a_forked_child_is_summed_up_on_its_prefix_and_goes_on_without_it_as_the_child_that_it_is() {
    for stream in [true, false] {
        let stage = Stage::new(|_| ()).await;
        let told = stage.fan_out(&parent(FREE, FAN_OUT)).await;
        let mut body = child(FREE, &told[0]);
        body["stream"] = json!(stream);
        body["tools"] = parent(FREE, "")["tools"].clone();
        let first = stage.send(&body).await;
        assert_eq!(plan(&first), FORKED);
        extend(&mut body, &first);
        let (asked, summary) = stage.summary(&body).await;
        assert_eq!(plan(&asked), FORKED, "its thinking and its entries are behind that prefix");
        assert!(usage(&asked).cache_read > 0, "{:?}", usage(&asked));
        let nested = "[[sim:fan_out n=2 tool=Agent field=prompt | text words=5]]";
        let mut body = going_on_from(&summary, body, &format!("Go on. {nested}"));
        let own = stage.with_summaries(&body).await;
        assert_eq!(plan(&own), ["child", "aligned", "compaction"]);
        assert_eq!(forwarded(&own)["messages"][0]["content"][0]["signature"], summary["signature"]);
        until("its fan-out", || stage.count("recursion_blocked_total", &[]) > 0).await;
        let grandchild = stage.send(&child(FREE, &directives(&own)[0])).await;
        assert_eq!(plan(&grandchild), ["child", "aligned", "nested"]);
        // And so on each later turn.
        extend(&mut body, &own);
        assert_eq!(plan(&stage.with_summaries(&body).await), ["child", "aligned", "compaction"]);
        let counted = Letter {
            target: "/v1/messages/count_tokens",
            ..Letter::alone(&json!({
                "model": FREE, "tools": body["tools"], "system": body["system"], "messages": body["messages"],
            }))
        };
        let counted = stage.line().send(&counted.with("anthropic-beta", BETA)).await;
        assert_eq!((counted.status, counted.is_untouched()), (200, true), "{:?}", counted.answer);
    }
}

#[tokio::test]
async fn a_child_that_begins_with_a_summary_or_asks_for_one_is_not_forked() {
    let stage = Stage::new(|_| ()).await;
    let (_, summary) = stage.summary(&parent(FREE, "")).await;
    let told = stage.fan_out(&parent(FREE, FAN_OUT)).await;
    let mut asks = child(FREE, &told[0]);
    asks["compaction"] = json!({"type": "summarize"});
    assert_eq!(plan(&stage.with_summaries(&asks).await), ["child", "aligned", "compaction"]);
    let mut begins = child(FREE, "");
    begins["messages"][0]["content"] = json!([summary, {"type": "text", "text": told[1]}]);
    let begins = stage.with_summaries(&begins).await;
    assert_ne!(begins.said("plan"), Some("forked"));
}
