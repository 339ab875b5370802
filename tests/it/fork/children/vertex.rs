//! Calls of Vertex: the model is in the path, and everything else as in a Messages call.

use forkpoint::config::Mode;
use forkpoint::engine::cache::prices::Prices;
use futures_util::future::join_all;
use serde_json::{Value, json};

use super::refused::refuse_forks;
use super::{BOUND, FORKED, FREE, Stage, child, extend, forwarded, parent, plan, usage};
use crate::harness::prices;
use crate::workload::Letter;

const FAN_OUT: &str = "[[sim:fan_out n=3 tool=Agent field=prompt | tools turns=2 calls=1 tool=search]]";

/// The path of a model of the simulator.
fn target(model: &str, streams: bool) -> &'static str {
    macro_rules! path {
        ($call:literal) => {
            concat!("/v1/projects/p/locations/global/publishers/anthropic/models/", $call)
        };
    }
    match (model, streams) {
        (FREE, false) => path!("claude-sonnet-4-6:rawPredict"),
        (FREE, true) => path!("claude-sonnet-4-6:streamRawPredict"),
        (BOUND, false) => path!("claude-opus-5-5:rawPredict"),
        (BOUND, true) => path!("claude-opus-5-5:streamRawPredict"),
        _ => path!("count-tokens:rawPredict"),
    }
}

/// A Messages body as a client of Vertex sends it.
fn letter(body: &Value) -> Letter {
    let mut body = body.clone();
    let members = body.as_object_mut().unwrap();
    let model = members.shift_remove("model").unwrap();
    let streams = members.get("stream").is_some_and(|stream| stream == true);
    members.insert("anthropic_version".into(), json!("vertex-2023-10-16"));
    let headers = [("authorization", "Bearer ya29.token"), ("content-type", "application/json")];
    let headers = headers.map(|(name, value)| (name, value.to_owned())).to_vec();
    let target = target(model.as_str().unwrap(), streams);
    Letter { target, headers, body: serde_json::to_vec(&body).unwrap() }
}

async fn fanned_out(stage: &Stage, model: &str) -> Vec<String> {
    let exchange = stage.line().send(&letter(&parent(model, FAN_OUT))).await;
    assert_eq!((exchange.status, exchange.said("plan")), (200, Some("aligned")), "{:?}", exchange.answer);
    super::until("the fan-out to be sealed", || stage.count("forks_total", &["outcome=\"sealed\""]) > 0)
        .await;
    super::directives(&exchange)
}

#[tokio::test(flavor = "multi_thread")]
async fn children_are_gated_and_forked_for_their_life() {
    for model in [FREE, BOUND] {
        for streams in [true, false] {
            let stage = Stage::new(|_| ()).await;
            let told = fanned_out(&stage, model).await;
            let mut bodies: Vec<Value> = told.iter().map(|told| child(model, told)).collect();
            bodies.iter_mut().for_each(|body| body["stream"] = json!(streams));
            for turn in 1..=3 {
                let letters: Vec<Letter> = bodies.iter().map(letter).collect();
                let line = stage.line();
                let exchanges = join_all(letters.iter().map(|letter| line.send(letter))).await;
                let mut warm = 0;
                for (exchange, body) in exchanges.iter().zip(&mut bodies) {
                    assert_eq!((exchange.status, plan(exchange)), (200, FORKED), "{model} turn {turn}");
                    let sent = forwarded(exchange);
                    assert_eq!((sent.get("model"), sent.get("cache_control")), (None, None));
                    assert_eq!(sent["anthropic_version"], "vertex-2023-10-16");
                    let usage = usage(exchange);
                    warm += u32::from(usage.cache_read * 10 > usage.cache_write() * 9 * 5);
                    extend(body, exchange);
                }
                assert!(warm >= 2, "{model} turn {turn}: siblings read what the first has written");
            }
            assert_eq!(stage.count("children_total", &["plan=\"forked\"", "reason=\"none\""]), 3);
            // The model of the path prices it.
            let model = format!("model=\"{model}\"");
            assert!(stage.forkpoint.metric("forkpoint_cost_usd_total", &[&model, "role=\"child\""]) > 0.0);
            assert_eq!(stage.count("endpoint_requests_total", &["\"vertex\""]), 10);
        }
    }
}

#[tokio::test]
async fn a_count_of_a_forked_child_is_of_what_will_be_sent() {
    for model in [FREE, BOUND] {
        let stage = Stage::new(|_| ()).await;
        let told = fanned_out(&stage, model).await;
        let mut body = child(model, &told[0]);
        let first = stage.line().send(&letter(&body)).await;
        assert_eq!(plan(&first), FORKED, "{model}");
        extend(&mut body, &first);
        let mut count = body.clone();
        count["anthropic_version"] = json!("vertex-2023-10-16");
        for member in ["max_tokens", "stream"] {
            count.as_object_mut().unwrap().remove(member);
        }
        let mut counted = letter(&body);
        (counted.target, counted.body) = (target("count-tokens", false), count.to_string().into_bytes());
        let counted = stage.line().send(&counted).await;
        let said: Value = serde_json::from_slice(&counted.answer).unwrap();
        assert_eq!((counted.status, plan(&counted)), (200, FORKED), "{model}: {said}");
        assert_eq!(forwarded(&counted)["model"], model);
        let sent = stage.line().send(&letter(&body)).await;
        assert_eq!(plan(&sent), FORKED, "{model}");
        assert_eq!(said["input_tokens"].as_u64(), Some(usage(&sent).prompt()), "{model}");
    }
}

#[tokio::test]
async fn models_of_the_path_are_told_apart() {
    let stage = Stage::new(|_| ()).await;
    let told = fanned_out(&stage, FREE).await;
    let other = stage.line().send(&letter(&child(BOUND, &told[0]))).await;
    assert_eq!((other.status, plan(&other)), (200, ["child", "aligned", "model"]));
    // The same prompt for two models shares nothing.
    let [one, two] = [FREE, BOUND].map(|model| letter(&parent(model, "[[sim:text words=5]]")));
    let (one, two) = (stage.line().send(&one).await, stage.line().send(&two).await);
    assert_ne!(one.said("prefix"), two.said("prefix"));
    // A Messages call has another form: neither is put on the other's prompt.
    let messages = stage.send(&child(FREE, &told[1])).await;
    assert_eq!((messages.status, plan(&messages)[0]), (200, "plain"), "another credential");
    let plain = Letter::alone(&child(FREE, &told[1])).with("authorization", "Bearer ya29.token");
    let plain = Letter {
        headers: plain.headers.into_iter().filter(|(name, _)| *name != "x-api-key").collect(),
        ..plain
    };
    let messages = stage.line().send(&plain).await;
    assert_eq!((messages.status, plan(&messages)), (200, ["child", "aligned", "unknown_field"]));
}

#[tokio::test]
async fn the_minimum_of_the_models_row_decides_what_is_marked() {
    let body = json!({
        "model": FREE, "max_tokens": 100, "stream": false,
        "tools": [crate::workload::tool("search")],
        "messages": [{"role": "user", "content": [
            {"type": "text", "text": crate::workload::prose("A question. [[sim:text words=5]]", 6_000)}]}],
    });
    for (minimum, reason) in [(512, "not_a_child"), (50_000, "below_minimum")] {
        let stage = Stage::new(|_| ()).await;
        let known = prices();
        let rows = known.models().cloned().map(|mut model| {
            model.facts.minimum_tokens = Some(minimum);
            model
        });
        stage.forkpoint.reprice(Prices::new(rows.collect()));
        let exchange = stage.line().send(&letter(&body)).await;
        assert_eq!((exchange.status, exchange.said("reason")), (200, Some(reason)));
    }
}

#[tokio::test]
async fn nothing_is_changed_in_observe_and_a_refused_rewrite_falls_back() {
    let stage = Stage::new(|config| config.server.mode = Mode::Observe).await;
    let told = super::directives(&stage.line().send(&letter(&parent(FREE, FAN_OUT))).await);
    let exchange = stage.line().send(&letter(&child(FREE, &told[0]))).await;
    assert_eq!((exchange.status, plan(&exchange)), (200, ["child", "passthrough", "observe"]));
    assert!(exchange.is_untouched());
    let stage = Stage::new(|_| ()).await;
    let told = fanned_out(&stage, BOUND).await;
    refuse_forks(&stage, 400);
    let exchange = stage.line().send(&letter(&child(BOUND, &told[0]))).await;
    assert_eq!((exchange.status, plan(&exchange)), (200, ["child", "passthrough", "refused"]));
    assert!(exchange.is_untouched());
}

#[tokio::test]
async fn counts_and_what_vertex_would_refuse_pass() {
    let stage = Stage::new(|_| ()).await;
    let mut count = parent(FREE, "");
    count["anthropic_version"] = json!("vertex-2023-10-16");
    for member in ["max_tokens", "stream"] {
        count.as_object_mut().unwrap().remove(member);
    }
    let mut counted = letter(&parent(FREE, ""));
    (counted.target, counted.body) = (target("count-tokens", false), count.to_string().into_bytes());
    let exchange = stage.line().send(&counted).await;
    assert_eq!((exchange.status, exchange.said("reason")), (200, Some("endpoint")));
    assert!(exchange.is_untouched());
    // With a model in the body too it is refused however it goes out.
    let mut twice = letter(&parent(FREE, ""));
    twice.body = [br#"{"model":"x","#, &twice.body[1..]].concat();
    let exchange = stage.line().send(&twice).await;
    assert_eq!(exchange.status, 400);
    assert!(exchange.is_untouched());
}
