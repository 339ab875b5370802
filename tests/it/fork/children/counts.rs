//! `count_tokens` of a forked child counts what its next request brings.

use serde_json::{Value, json};

use super::refused::refuse_forks;
use super::{BOUND, FORKED, FREE, Stage, child, extend, parent, plan, usage};
use crate::workload::{Exchange, Letter, Line};

const SCRIPT: &str = "[[sim:fan_out n=2 tool=Agent field=prompt | tools turns=4 calls=1 tool=search]]";

/// The same request as a count of its tokens: without what shapes the answer only.
fn count_of(body: &Value) -> Letter {
    let mut body = body.clone();
    for own in ["max_tokens", "stream"] {
        body.as_object_mut().unwrap().remove(own);
    }
    Letter { target: "/v1/messages/count_tokens", ..Letter::alone(&body) }
}

fn tokens(exchange: &Exchange) -> u64 {
    assert_eq!(exchange.status, 200, "{}", String::from_utf8_lossy(&exchange.answer));
    serde_json::from_slice::<Value>(&exchange.answer).unwrap()["input_tokens"].as_u64().unwrap()
}

/// A forked child after its first turn.
async fn forked(stage: &Stage, model: &str) -> Value {
    let told = stage.fan_out(&parent(model, SCRIPT)).await;
    let mut body = child(model, &told[0]);
    let first = stage.send(&body).await;
    assert_eq!(plan(&first), FORKED);
    extend(&mut body, &first);
    body
}

#[tokio::test]
async fn a_count_of_a_forked_child_is_that_of_its_next_request() {
    for model in [FREE, BOUND] {
        let stage = Stage::new(|_| ()).await;
        let mut body = forked(&stage, model).await;
        for turn in 2..4 {
            let counted = stage.line().send(&count_of(&body)).await;
            assert_eq!(plan(&counted), FORKED, "{model} turn {turn}");
            assert!(counted.said("fork").is_some());
            let billed_before = stage.count("tokens_total", &[]);
            let sent = stage.send(&body).await;
            assert_eq!(plan(&sent), FORKED);
            assert!(stage.count("tokens_total", &[]) > billed_before);
            assert_eq!(tokens(&counted), usage(&sent).prompt(), "{model} turn {turn}");
            let forwarded: Value = serde_json::from_slice(&counted.forwarded).unwrap();
            assert!(forwarded.get("max_tokens").is_none() && forwarded.get("stream").is_none());
            extend(&mut body, &sent);
        }
    }
}

#[tokio::test]
async fn a_count_is_not_billed_bound_or_learned() {
    let stage = Stage::new(|_| ()).await;
    let body = forked(&stage, FREE).await;
    stage.forkpoint.recorded(2).await;
    let figures = || {
        ["tokens_total", "cost_usd_total", "children_total", "child_turns_count", "saved_usd"]
            .map(|metric| stage.forkpoint.metric(&format!("forkpoint_{metric}"), &[]))
    };
    let before = figures();
    for _ in 0..3 {
        assert_eq!(plan(&stage.line().send(&count_of(&body)).await), FORKED);
    }
    assert_eq!(figures(), before);
    let sent = stage.send(&body).await;
    assert_eq!(
        (plan(&sent), usage(&sent).uncached),
        (FORKED, 0),
        "its next turn reads what it would have read"
    );
}

#[tokio::test]
async fn what_a_count_leaves_out_is_the_parents() {
    let stage = Stage::new(|_| ()).await;
    let body = forked(&stage, FREE).await;
    let mut bare = body.clone();
    bare.as_object_mut().unwrap().remove("thinking");
    let counted = stage.line().send(&count_of(&bare)).await;
    assert_eq!(plan(&counted), FORKED);
    let forwarded: Value = serde_json::from_slice(&counted.forwarded).unwrap();
    assert_eq!(forwarded["thinking"], body["thinking"]);
    assert_eq!(tokens(&counted), usage(&stage.send(&body).await).prompt());
}

#[tokio::test]
async fn other_counts_go_out_as_they_came() {
    let stage = Stage::new(|_| ()).await;
    let body = forked(&stage, FREE).await;
    let mut strange = body.clone();
    strange["messages"] = json!([{"role": "user", "content": "How much is this?"}]);
    let lowered = count_of(&body).with("x-forkpoint-mode", "align");
    let other_key = Letter { headers: vec![("x-api-key", "sk-other".to_owned())], ..count_of(&body) };
    let version = ("anthropic-version", "2023-06-01".to_owned());
    let mut other_key = other_key;
    other_key.headers.extend([version, ("content-type", "application/json".to_owned())]);
    for letter in [count_of(&strange), lowered, other_key] {
        let counted = stage.line().send(&letter).await;
        assert!(counted.status == 200 && counted.is_untouched());
        assert_eq!(plan(&counted), ["plain", "passthrough", "endpoint"]);
    }
}

#[tokio::test]
async fn a_refused_count_goes_out_once_more_as_it_came() {
    let stage = Stage::new(|_| ()).await;
    let body = forked(&stage, FREE).await;
    refuse_forks(&stage, 400);
    let counted = stage.line().send(&count_of(&body)).await;
    assert!(counted.is_untouched());
    assert_eq!(plan(&counted), ["child", "passthrough", "refused"]);
    assert_eq!(stage.count("fallbacks_total", &["reason=\"refused\""]), 1);
    assert_eq!(stage.count("standdowns_total", &[]), 0, "nothing is learned of it");
    let direct = Line::direct(&stage.sim).send(&count_of(&body)).await;
    assert_eq!(tokens(&counted), tokens(&direct));
    stage.sim.faults().clear();
    assert_eq!(plan(&stage.send(&body).await), FORKED);
}
