//! Messages to a turn that they name: put on what was said up to it.

use forkpoint::config::Mode;
use forkpoint::engine::cache::prices::Prices;
use forkpoint::engine::fork::SnapshotScope;
use serde_json::{Value, json};

use super::{BOUND, Exchange, FORKED, FREE, Stage, child, extend, forwarded, parent, plan, usage};
use crate::harness::post;
use crate::harness::prices;
use crate::workload::{Letter, prose, tool};

const FAN_OUT: &str = "[[sim:fan_out n=2 tool=Agent field=prompt | text]]";

/// Nothing of its own but what it asks.
fn question() -> Value {
    json!({"messages": [{"role": "user", "content": "Sum up what was said. [[sim:text words=9]]"}]})
}

fn naming(body: &Value, parent: &str) -> Letter {
    Letter::alone(body).with("x-forkpoint-parent", parent)
}

fn of_session(letter: Letter, session: &str) -> Letter {
    letter.with("x-forkpoint-session", session)
}

impl Stage {
    async fn post(&self, letter: &Letter) -> Exchange {
        self.line().send(letter).await
    }

    /// A parent of this session that has fanned out; the id of its turn.
    async fn fanned_out(&self, body: &Value, session: &str) -> String {
        let exchange = self.post(&of_session(Letter::alone(body), session)).await;
        super::until("the fan-out to be sealed", || self.count("forks_total", &["outcome=\"sealed\""]) > 0)
            .await;
        message_id(&exchange)
    }
}

fn message_id(exchange: &Exchange) -> String {
    let answer = std::str::from_utf8(&exchange.answer).unwrap();
    let from = answer.find("\"msg_").unwrap_or_else(|| panic!("no id: {answer}")) + 1;
    answer[from..].split('"').next().unwrap().to_owned()
}

#[tokio::test]
async fn a_question_to_a_fan_out_turn_is_put_on_it_and_takes_what_it_leaves_out() {
    for model in [FREE, BOUND] {
        let stage = Stage::new(|_| ()).await;
        let lead = parent(model, FAN_OUT);
        let turn = stage.fanned_out(&lead, "one").await;
        let exchange = stage.post(&of_session(naming(&question(), &turn), "one")).await;
        assert_eq!((exchange.status, plan(&exchange)), (200, FORKED), "{model}: {:?}", exchange.answer);
        let body = forwarded(&exchange);
        for field in ["model", "max_tokens", "thinking"] {
            assert_eq!(body[field], lead[field], "{model}: {field}");
        }
        assert_eq!(body.get("stream"), None, "how it is answered is its own");
        assert_eq!(body["tools"].as_array().unwrap().len(), 3);
        assert!(body["system"][0]["text"] == lead["system"][0]["text"]);
        let content = body["messages"].as_array().unwrap().last().unwrap()["content"].as_array().unwrap();
        assert_eq!(content.last().unwrap()["text"], question()["messages"][0]["content"]);
        let used = usage(&exchange);
        assert!(used.cache_read * 10 > used.cache_write() * 9, "{model}: {used:?}");
    }
}

#[tokio::test]
async fn what_a_question_brings_must_be_its_parents() {
    let stage = Stage::new(|_| ()).await;
    let lead = parent(FREE, FAN_OUT);
    let turn = stage.fanned_out(&lead, "one").await;
    let mut whole = question();
    for field in ["model", "max_tokens", "thinking", "tools", "system"] {
        whole[field] = lead[field].clone();
    }
    let exchange = stage.post(&of_session(naming(&whole, &turn), "one")).await;
    assert_eq!(plan(&exchange), FORKED);
    for (field, other, reason) in [
        ("model", json!(BOUND), "model"),
        ("thinking", json!({"type": "disabled"}), "thinking"),
        ("tool_choice", json!({"type": "none"}), "tool_choice"),
        ("tools", json!([crate::workload::tool("write_file")]), "tools_differ"),
    ] {
        let mut body = whole.clone();
        body[field] = other;
        let exchange = stage.post(&of_session(naming(&body, &turn), "one")).await;
        assert_eq!(plan(&exchange), ["child", "aligned", reason], "{field}");
        assert_eq!(forwarded(&exchange)["messages"].as_array().unwrap().len(), 1);
    }
}

#[tokio::test]
async fn nobody_is_put_on_a_turn_of_another_session() {
    let stage = Stage::new(|_| ()).await;
    let lead = parent(FREE, FAN_OUT);
    let turn = stage.fanned_out(&lead, "one").await;
    let mut whole = question();
    whole["model"] = json!(FREE);
    whole["max_tokens"] = json!(100);
    let named = naming(&whole, &turn);
    for letter in
        [of_session(named.clone(), "two"), named, of_session(naming(&whole, "msg_unheard_of"), "one")]
    {
        let exchange = stage.post(&letter).await;
        assert_eq!((exchange.status, plan(&exchange)[0]), (200, "plain"));
        assert_eq!(forwarded(&exchange)["messages"].as_array().unwrap().len(), 1);
    }
}

#[tokio::test]
async fn the_newest_turn_of_a_session_is_named_without_its_id() {
    for scope in [SnapshotScope::Latest, SnapshotScope::FanOut] {
        let stage = Stage::new(|config| config.fork.policy.snapshots = scope).await;
        let mut lead = parent(FREE, "[[sim:text words=20]]");
        // A tenant is known from its first answer on.
        for _ in 0..2 {
            let exchange = stage.post(&of_session(Letter::alone(&lead), "one")).await;
            let blocks = exchange.blocks().unwrap();
            let messages = lead["messages"].as_array_mut().unwrap();
            messages.push(json!({"role": "assistant", "content": blocks}));
            messages.push(json!({"role": "user", "content": "And then? [[sim:text words=20]]"}));
        }
        let mut asked = question();
        asked["model"] = json!(FREE);
        asked["max_tokens"] = json!(100);
        let exchange = stage.post(&of_session(naming(&asked, "latest"), "one")).await;
        if scope == SnapshotScope::FanOut {
            assert_eq!((exchange.status, plan(&exchange)[0]), (200, "plain"));
            continue;
        }
        assert_eq!((exchange.status, plan(&exchange)), (200, FORKED), "{:?}", exchange.answer);
        let body = forwarded(&exchange);
        assert_eq!(body["max_tokens"], 100);
        // All that was said, the last answer, and the question.
        let said = lead["messages"].as_array().unwrap().len() - 1;
        assert_eq!(body["messages"].as_array().unwrap().len(), said + 1);
        for letter in [naming(&asked, "latest"), of_session(naming(&asked, "latest"), "two")] {
            assert_eq!(plan(&stage.post(&letter).await)[0], "plain");
        }
    }
}

#[tokio::test]
async fn what_a_question_with_instructions_costs_is_told_by_its_parents_model() {
    let stage = Stage::new(|config| config.fork.policy.max_cost_ratio = 5.0).await;
    let turn = stage.fanned_out(&parent(FREE, FAN_OUT), "one").await;
    let asked = |words: usize| {
        let mut body = question();
        body["system"] = json!(prose("You sum up, and nothing else.", words));
        of_session(naming(&body, &turn), "one")
    };
    // A few words of its own are cheaper without a parent.
    assert_eq!(plan(&stage.post(&asked(100)).await), ["child", "aligned", "cost"]);
    // Its own words are written whatever it stands on, and by itself it would be refused: it has no model.
    let exchange = stage.post(&asked(30_000)).await;
    assert_eq!((exchange.status, plan(&exchange)), (200, FORKED), "{:?}", exchange.answer);
    assert_eq!(forwarded(&exchange)["model"], FREE);
    stage.forkpoint.recorded(3).await;
    let billed =
        |kind: &str| stage.count("tokens_total", &[&format!("model=\"{FREE}\""), kind, "role=\"child\""]);
    assert!(billed("kind=\"cache_read\"") > 40_000, "counted as what it was billed as");
}

#[tokio::test]
async fn the_answer_that_a_question_leaves_room_for_is_its_parents() {
    for (window, expected) in [(120_000, FORKED), (70_000, ["child", "aligned", "window"])] {
        let stage = Stage::new(|config| config.fork.policy.max_context_share = 1.0).await;
        let known = prices();
        let narrow = known.models().cloned().map(|mut model| {
            model.facts.window_tokens = Some(window);
            model
        });
        stage.forkpoint.reprice(Prices::new(narrow.collect()));
        // It asks for 32,000 tokens behind a prompt of some 50,000.
        let turn = stage.fanned_out(&parent(FREE, FAN_OUT), "one").await;
        let exchange = stage.post(&of_session(naming(&question(), &turn), "one")).await;
        assert_eq!(plan(&exchange), expected, "{window}");
        let mut brief = question();
        brief["max_tokens"] = json!(1_000);
        let exchange = stage.post(&of_session(naming(&brief, &turn), "one")).await;
        assert_eq!(plan(&exchange), FORKED, "{window}: it asks for less");
    }
}

#[tokio::test]
async fn a_parent_that_is_not_known_is_said_and_may_be_insisted_upon() {
    let stage = Stage::new(|_| ()).await;
    stage.fanned_out(&parent(FREE, FAN_OUT), "one").await;
    let body = child(FREE, "Look around.");
    let lost = of_session(naming(&body, "msg_of_nobody"), "one");
    let exchange = stage.post(&lost).await;
    assert_eq!((exchange.status, plan(&exchange)), (200, ["plain", "passthrough", "unknown_parent"]));
    assert_eq!(forwarded(&exchange), body);
    assert_eq!(stage.count("passthrough_total", &["reason=\"unknown_parent\""]), 1);
    let sent = stage.sim.requests().len();
    let headers =
        "x-api-key: key\r\nx-forkpoint-parent: msg_of_nobody\r\nx-forkpoint-parent-required: true\r\n";
    let request = post("/v1/messages", headers, body.to_string().as_bytes());
    let refused = stage.forkpoint.client().await.ask(&request).await;
    assert_eq!((refused.status(), refused.reason().as_deref()), (409, Some("unknown_parent")));
    assert_eq!(refused.head.get("x-should-retry").as_deref(), Some("false"));
    assert_eq!(stage.sim.requests().len(), sent, "it is not sent");
    let error: Value = serde_json::from_slice(&refused.body).unwrap();
    assert_eq!(error["error"]["type"], "conflict_error", "{error}");
}

#[tokio::test]
async fn a_question_may_name_a_turn_of_a_child_that_works() {
    const TEAM: &str =
        "[[sim:fan_out n=2 tool=Agent field=prompt | tools turns=3 calls=1 tool=search thinking=20]]";
    for model in [FREE, BOUND] {
        for mode in [Mode::Fork, Mode::Align] {
            let stage = Stage::new(|config| config.fork.policy.snapshots = SnapshotScope::Latest).await;
            let lead = stage.post(&of_session(Letter::alone(&parent(model, TEAM)), "one")).await;
            super::until("the fan-out to be sealed", || {
                stage.count("forks_total", &["outcome=\"sealed\""]) > 0
            })
            .await;
            let mut body = child(model, &super::directives(&lead)[0]);
            let mut turn = String::new();
            let mut worked = json!(null);
            for number in 1..=2 {
                let letter = of_session(Letter::alone(&body), "one").with("x-forkpoint-mode", mode.as_str());
                let exchange = stage.post(&letter).await;
                assert_eq!((exchange.status, plan(&exchange)[0]), (200, "child"), "{model} {number}");
                assert_eq!(plan(&exchange)[1] == "forked", mode == Mode::Fork);
                (turn, worked) = (message_id(&exchange), forwarded(&exchange));
                extend(&mut body, &exchange);
                stage.forkpoint.recorded(number + 1).await;
            }
            let asked = of_session(naming(&question(), &turn), "one");
            let exchange = stage.post(&asked).await;
            assert_eq!((exchange.status, plan(&exchange)), (200, FORKED), "{model}: {:?}", exchange.answer);
            let sent = forwarded(&exchange);
            // All that the child was sent, its answer, and the question.
            let [said, asked] = [&worked, &sent].map(|body| body["messages"].as_array().unwrap().len());
            assert_eq!(asked, said + 2, "{model}");
            for field in ["model", "max_tokens", "thinking"] {
                assert_eq!(sent[field], worked[field], "{model}: {field}");
            }
            let used = usage(&exchange);
            assert!(used.cache_read > 10 * used.cache_write(), "{model}: {used:?}");
            // An agent of its own is not put on a child's prompt.
            let mut agent = child(model, "Look around.");
            agent["system"] = json!(prose("You are another.", 100));
            let agent = stage.post(&of_session(naming(&agent, &turn), "one")).await;
            assert_eq!((agent.status, plan(&agent)), (200, ["child", "aligned", "nested"]), "{model}");
            // The child goes on as if nothing had been asked.
            let next = of_session(Letter::alone(&body), "one").with("x-forkpoint-mode", mode.as_str());
            let next = stage.post(&next).await;
            assert_eq!((next.status, plan(&next)[1] == "forked"), (200, mode == Mode::Fork), "{model}");
        }
    }
}

#[tokio::test]
async fn a_fan_out_of_a_child_may_be_asked_about() {
    const TEAM: &str =
        "[[sim:fan_out n=2 tool=Agent field=prompt | fan_out n=2 tool=Agent field=prompt | text]]";
    let stage = Stage::new(|_| ()).await;
    let lead = stage.post(&of_session(Letter::alone(&parent(FREE, TEAM)), "one")).await;
    super::until("the fan-out to be sealed", || stage.count("forks_total", &["outcome=\"sealed\""]) > 0)
        .await;
    let mut body = child(FREE, &super::directives(&lead)[0]);
    body["tools"] = json!([tool("Agent"), tool("read_file"), tool("search")]);
    let nested = stage.post(&of_session(Letter::alone(&body), "one")).await;
    assert_eq!((nested.status, plan(&nested)), (200, FORKED));
    assert!(nested.blocks().unwrap().iter().filter(|block| block["type"] == "tool_use").count() > 1);
    stage.forkpoint.recorded(2).await;
    let exchange = stage.post(&of_session(naming(&question(), &message_id(&nested)), "one")).await;
    assert_eq!((exchange.status, plan(&exchange)), (200, FORKED), "{:?}", exchange.answer);
    let [said, asked] = [&nested, &exchange].map(|of| forwarded(of)["messages"].as_array().unwrap().len());
    assert_eq!(asked, said + 2);
}
