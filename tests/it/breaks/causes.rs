//! Each of the thirteen causes, alone: one break, in the log and the metrics, with the tokens that were lost.

use std::time::Duration;

use forkpoint::config::Config;
use forkpoint::engine::respell::canonical::Order;
use forkpoint::engine::words::BreakCause;
use serde_json::{Value, json};

use super::{ALIGN, OBSERVE, Stage, cached, marked, read, text, turn, user};
use crate::harness::until;
use crate::workload::{Exchange, Letter, prose};

const UNALIGNED: fn(&mut Config) = |config| {
    ALIGN(config);
    config.canonical.order = Order::Off;
};

/// A conversation of three turns that changes with the second: what the second lost, and where.
struct Scene {
    stage: Stage,
    exchanges: Vec<Exchange>,
    records: Vec<Value>,
}

impl Scene {
    async fn new(configure: fn(&mut Config)) -> Scene {
        Scene { stage: Stage::with(configure).await, exchanges: vec![], records: vec![] }
    }

    async fn play(configure: fn(&mut Config), letters: [Letter; 3]) -> Scene {
        let mut scene = Scene::new(configure).await;
        for letter in letters {
            scene.say(&letter).await;
        }
        scene
    }

    async fn say(&mut self, letter: &Letter) {
        let (exchange, record) = self.stage.send(letter).await;
        self.exchanges.push(exchange);
        self.records.push(record);
    }

    /// The tokens that the first request had cached and the second did not read.
    fn lost(&self) -> u64 {
        cached(&self.exchanges[0]) - read(&self.exchanges[1])
    }

    fn second_broke(&self, cause: BreakCause, layer: &str, path: &str) {
        self.broke(1, cause, layer, path, self.lost());
    }

    /// Just one request broke, so and there.
    fn broke(&self, index: usize, cause: BreakCause, layer: &str, path: &str, tokens: u64) {
        let cause = cause.as_str();
        for (other, record) in self.records.iter().enumerate().filter(|(other, _)| *other != index) {
            assert_eq!(record.get("break_cause"), None, "request {}: {record}", other + 1);
        }
        let record = &self.records[index];
        assert!(tokens > 0, "nothing was lost: {record}");
        let said = ["break_cause", "break_layer", "break_at"].map(|field| record[field].as_str());
        assert_eq!(said, [Some(cause), Some(layer), Some(path)], "{record}");
        assert_eq!(record["break_tokens"], tokens, "{record}");
        let labels = [&*format!("cause=\"{cause}\""), &*format!("layer=\"{layer}\"")];
        assert_eq!(self.stage.breaks(&[]), 1.0, "{cause}");
        assert_eq!(self.stage.breaks(&labels), 1.0, "{cause}");
        let counted = self.stage.forkpoint.metric("forkpoint_cache_break_tokens_total", &labels);
        assert_eq!(counted, tokens as f64, "{cause}");
    }
}

/// Three turns, of which the second and the third were changed.
fn changed(change: impl Fn(&mut Value)) -> [Letter; 3] {
    [1, 2, 3].map(|number| {
        let mut body = turn(number);
        if number > 1 {
            change(&mut body);
        }
        Letter::alone(&body)
    })
}

/// In both modes a change of meaning is what it is.
async fn breaks(change: impl Fn(&mut Value), cause: BreakCause, layer: &str, path: &str) {
    for configure in [ALIGN, OBSERVE] {
        Scene::play(configure, changed(&change)).await.second_broke(cause, layer, path);
    }
}

#[tokio::test]
async fn a_tool_that_changed() {
    let change = |body: &mut Value| body["tools"][1]["description"] = json!("Runs.");
    breaks(change, BreakCause::Tools, "tools", "tools[1]").await;
    let added = |body: &mut Value| {
        let mut more = body["tools"][1].clone();
        more["name"] = json!("more");
        body["tools"].as_array_mut().unwrap().push(more);
    };
    breaks(added, BreakCause::Tools, "tools", "tools[2]").await;
}

#[tokio::test]
async fn a_system_prompt_that_changed() {
    let change = |body: &mut Value| body["system"][0]["text"] = json!(prose("You guess.", 1_200));
    breaks(change, BreakCause::System, "system", "system[0]").await;
}

#[tokio::test]
async fn another_model() {
    let change = |body: &mut Value| body["model"] = json!("claude-sonnet-4-6");
    breaks(change, BreakCause::Model, "model", "model").await;
}

#[tokio::test]
async fn thinking_that_was_switched_on() {
    let change = |body: &mut Value| body["thinking"] = json!({"type": "adaptive"});
    breaks(change, BreakCause::Thinking, "messages", "thinking").await;
    let change = |body: &mut Value| body["output_config"] = json!({"effort": "low"});
    breaks(change, BreakCause::Thinking, "messages", "output_config").await;
}

#[tokio::test]
async fn another_tool_choice() {
    let change = |body: &mut Value| body["tool_choice"] = json!({"type": "any"});
    breaks(change, BreakCause::ToolChoice, "messages", "tool_choice").await;
}

#[tokio::test]
async fn other_betas() {
    for configure in [ALIGN, OBSERVE] {
        let letters = [1, 2, 3].map(|number| match number {
            1 => Letter::alone(&turn(1)),
            _ => Letter::alone(&turn(number)).with("anthropic-beta", "context-management-2025-06-27"),
        });
        let scene = Scene::play(configure, letters).await;
        scene.second_broke(BreakCause::Betas, "messages", "anthropic-beta");
    }
}

#[tokio::test]
async fn a_history_that_changed() {
    // The second turn is the first of three, as a conversation is known by its opening and the first answer.
    for (message, session) in [(2, None), (0, Some("session"))] {
        for configure in [ALIGN, OBSERVE] {
            let mut scene = Scene::new(configure).await;
            for number in [2, 3, 4] {
                let mut body = turn(number);
                if number > 2 {
                    body["messages"][message]["content"] = json!([text(prose("Another question.", 100))]);
                }
                let letter = Letter::alone(&body);
                scene
                    .say(&session.map_or(letter.clone(), |id| letter.with("x-claude-code-session-id", id)))
                    .await;
            }
            let path = format!("messages[{message}].content[0]");
            scene.second_broke(BreakCause::Messages, "messages", &path);
        }
    }
}

#[tokio::test]
async fn a_picture_that_came() {
    let picture = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}});
    let change = |body: &mut Value| {
        let first = body["messages"][2]["content"].as_array_mut().unwrap();
        first.insert(0, picture.clone());
    };
    breaks(change, BreakCause::Messages, "messages", "messages[2].content[0]").await;
}

#[tokio::test]
async fn another_spelling() {
    let change = |body: &mut Value| {
        let schema = body["tools"][0]["input_schema"].as_object_mut().unwrap();
        let kind = schema.shift_remove("type").unwrap();
        schema.insert("type".to_owned(), kind);
    };
    for configure in [OBSERVE, UNALIGNED] {
        let scene = Scene::play(configure, changed(change)).await;
        scene.second_broke(BreakCause::Spelling, "tools", "tools[0]");
    }
    let aligned = Scene::play(ALIGN, changed(change)).await;
    aligned.stage.is_calm(3, "one spelling").await;
}

#[tokio::test]
async fn a_pause_longer_than_the_entry_lives() {
    for configure in [ALIGN, OBSERVE] {
        let mut scene = Scene::new(configure).await;
        scene.say(&Letter::alone(&turn(1))).await;
        scene.stage.pass(Duration::from_secs(301));
        scene.say(&Letter::alone(&turn(2))).await;
        scene.stage.pass(Duration::from_secs(299));
        scene.say(&Letter::alone(&turn(3))).await;
        assert_eq!(scene.lost(), cached(&scene.exchanges[0]), "all of it was gone");
        scene.second_broke(BreakCause::TtlExpired, "messages", "messages[0].content[0]");
    }
}

#[tokio::test]
async fn a_prompt_that_is_too_short_to_be_cached() {
    let short = |number: usize| {
        let mut body = turn(number);
        body["system"] = json!("You help.");
        body["tools"] = json!([]);
        body
    };
    for configure in [ALIGN, OBSERVE] {
        let mut scene = Scene::new(configure).await;
        for number in [1, 2] {
            scene.say(&Letter::alone(&short(number))).await;
        }
        let marked = scene.stage.sim.requests()[0].breakpoints[0].tokens;
        scene.broke(1, BreakCause::BelowMinimum, "messages", "messages[0].content[0]", marked);
    }
}

#[tokio::test]
async fn more_blocks_than_a_breakpoint_looks_back() {
    let wide = |number: usize| {
        let mut body = turn(number);
        if number == 2 {
            let blocks = body["messages"][2]["content"].as_array_mut().unwrap();
            blocks.splice(0..0, (0..25).map(|n| text(format!("Part {n}."))));
        }
        body
    };
    let mut scene = Scene::new(OBSERVE).await;
    for number in [1, 2] {
        scene.say(&Letter::alone(&wide(number))).await;
    }
    scene.second_broke(BreakCause::Lookback, "messages", "messages[0].content[0]");
    let stage = Stage::with(ALIGN).await;
    for number in [1, 2] {
        stage.ask(&wide(number)).await;
    }
    stage.is_calm(2, "a bridge").await;
}

#[tokio::test]
async fn a_prefix_that_another_request_is_still_writing() {
    let sibling = |words: &str| {
        let mut body = turn(1);
        body["messages"] = json!([user(json!([marked(text(prose("Shared.", 1_000))), text(words)]))]);
        body["system"][0].as_object_mut().unwrap().shift_remove("cache_control");
        Letter::alone(&body)
    };
    let stage = Stage::with(OBSERVE).await;
    // Nothing is kept of a tenant before its first answer.
    stage.ask(&json!({"model": "claude-opus-4-8", "max_tokens": 9, "messages": [user(json!("hi"))]})).await;
    let line = stage.line();
    let (leader, follower) = (sibling("[[sim:text first_ms=2000]]"), sibling("and you"));
    let follow = async {
        let consulted = || stage.sim.requests().get(1).is_some_and(|record| !record.breakpoints.is_empty());
        until("the leader is on its way", consulted).await;
        line.send(&follower).await
    };
    let (leader, follower) = tokio::join!(line.send(&leader), follow);
    assert_eq!((read(&leader), read(&follower)), (0, 0));
    until("all lines in the log", || stage.log.records().len() == 3).await;
    let lost = cached(&follower);
    assert_eq!(lost, cached(&leader), "both wrote it");
    let (exchanges, mut records) = (vec![], stage.log.records());
    // The follower, which did not wait, ended first.
    records.remove(0);
    let scene = Scene { stage, exchanges, records };
    scene.broke(0, BreakCause::NotYetVisible, "messages", "messages[0].content[0]", lost);
}

#[tokio::test]
async fn a_cache_that_forgot() {
    for configure in [ALIGN, OBSERVE] {
        let mut scene = Scene::new(configure).await;
        scene.say(&Letter::alone(&turn(1))).await;
        scene.stage.forget().await;
        for number in [2, 3] {
            scene.say(&Letter::alone(&turn(number))).await;
        }
        assert_eq!(scene.lost(), cached(&scene.exchanges[0]), "all of it was gone");
        scene.second_broke(BreakCause::Unknown, "messages", "messages[0].content[0]");
    }
}

#[tokio::test]
async fn a_break_costs_what_writing_costs_more_than_reading() {
    // Dollars per million tokens: written for five minutes or an hour, less read.
    for (model, ttl, extra) in [
        ("claude-opus-5-5", "5m", Some(5.0 - 0.2)),
        ("claude-opus-5-5", "1h", Some(8.0 - 0.2)),
        ("claude-mythos-5-2", "5m", None),
    ] {
        let letters = [1, 2, 3].map(|number| {
            let mut body = turn(number);
            body["model"] = json!(model);
            body["system"][0]["cache_control"]["ttl"] = json!(ttl);
            let last = body["messages"].as_array_mut().unwrap().last_mut().unwrap();
            last["content"][0]["cache_control"]["ttl"] = json!(ttl);
            if number > 1 {
                body["system"][0]["text"] = json!(prose("You guess.", 1_200));
            }
            Letter::alone(&body)
        });
        let scene = Scene::play(OBSERVE, letters).await;
        scene.second_broke(BreakCause::System, "system", "system[0]");
        let said = scene.records[1].get("break_cost_usd").map(|cost| cost.as_f64().unwrap());
        let expected = extra.map(|extra| extra * scene.lost() as f64 / 1e6);
        let close = match (said, expected) {
            (Some(said), Some(expected)) => (said - expected).abs() < 1e-9,
            (said, expected) => said.is_none() && expected.is_none(),
        };
        assert!(close, "{model} {ttl}: {said:?}, not {expected:?}");
    }
}
