//! Many children, children of children, and children of others.

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{BOUND, FORKED, FREE, Stage, child, directives, extend, forwarded, parent, plan, units, usage};
use crate::harness::{post, until};
use crate::workload::{Exchange, Letter};

const TAG: &str = "<forkpoint-child>";
const PLACEHOLDER: &str = "Fork started -- processing in background";

/// A request of another credential.
fn of(key: &str, body: &Value) -> Letter {
    let mut letter = Letter::alone(body);
    letter.headers.retain(|(name, _)| *name != "x-api-key");
    letter.with("x-api-key", key)
}

impl Stage {
    /// Lets a parent fan out and waits for the seal.
    async fn sealed(&self, letter: &Letter) -> Exchange {
        let before = self.count("forks_total", &["outcome=\"sealed\""]);
        let exchange = self.line().send(letter).await;
        assert_eq!(exchange.status, 200, "{:?}", exchange.answer);
        until("the seal", || self.count("forks_total", &["outcome=\"sealed\""]) > before).await;
        exchange
    }

    /// The values of a header in the simulator's last request.
    fn header(&self, name: &str) -> Vec<String> {
        let last = self.sim.requests().pop().unwrap();
        last.headers.into_iter().filter(|(known, _)| known == name).map(|(_, value)| value).collect()
    }
}

/// The ids of the calls in the turn that a forked child stands on.
fn calls(exchange: &Exchange) -> Vec<Value> {
    let messages = forwarded(exchange)["messages"].as_array().unwrap().clone();
    let turn = messages.iter().rfind(|message| message["role"] == "assistant").unwrap();
    let blocks = turn["content"].as_array().unwrap().iter();
    blocks.filter(|block| block["type"] == "tool_use").map(|block| block["id"].clone()).collect()
}

fn call_ids(fan_out: &Exchange) -> Vec<Value> {
    let blocks = fan_out.blocks().unwrap().into_iter();
    blocks.filter(|block| block["type"] == "tool_use").map(|block| block["id"].clone()).collect()
}

/// The id of the message that a stream brought.
fn message_id(exchange: &Exchange) -> String {
    let text = String::from_utf8_lossy(&exchange.answer);
    let start = text.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
    let start: Value = serde_json::from_str(start).unwrap();
    start["message"]["id"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_children_stand_on_one_prefix() {
    let stage = Stage::new(|_| ()).await;
    let script = "[[sim:fan_out n=64 tool=Agent field=prompt alike=true | text words=5]]";
    let told = stage.fan_out(&parent(FREE, script)).await;
    assert_eq!(told.len(), 64);
    let line = stage.line();
    let letters: Vec<_> = told.iter().map(|told| Letter::alone(&child(FREE, told))).collect();
    let children = join_all(letters.iter().map(|letter| line.send(letter))).await;
    let first = &children[0].forwarded;
    let mut starved = 0;
    for (child, told) in children.iter().zip(&told) {
        assert_eq!((child.status, plan(child)), (200, FORKED));
        // Equal in every byte up to what each is told.
        let end = child.forwarded.len() - told.len() - 32;
        assert!(child.forwarded[..end] == first[..end]);
        let usage = usage(child);
        starved += usize::from(usage.cache_read * 100 < usage.prompt() * 95);
    }
    assert!(starved <= 1, "{starved} wrote what the others read");
    assert_eq!(stage.count("children_total", &["plan=\"forked\""]), 64);
    let paid: f64 = children.iter().map(|child| units(usage(child))).sum();
    let uncached: u64 = children.iter().map(|child| usage(child).prompt()).sum();
    assert!(paid < 0.15 * uncached as f64, "{paid} of {uncached}");
}

#[tokio::test]
async fn children_do_not_fork() {
    // The second is not forked, but a child all the same.
    for forks in [true, false] {
        let ratio = if forks { 100.0 } else { 1.0 };
        let stage = Stage::new(|config| config.fork.policy.max_cost_ratio = ratio).await;
        let script =
            "[[sim:fan_out n=2 tool=Agent field=prompt | fan_out n=2 tool=Agent field=prompt | text]]";
        let told = stage.fan_out(&parent(FREE, script)).await;
        let mut body = child(FREE, &told[0]);
        if !forks {
            body["system"] = json!("You are terse.");
            body["tools"] = parent(FREE, "")["tools"].clone();
        }
        let nested = stage.send(&body).await;
        assert_eq!(plan(&nested)[..2], ["child", if forks { "forked" } else { "aligned" }]);
        let grandchildren = directives(&nested);
        assert_eq!(grandchildren.len(), 2);
        until("the second fan-out to be known", || stage.count("recursion_blocked_total", &[]) == 1).await;
        assert_eq!(stage.count("foreign_tool_calls_total", &[]), if forks { 2 } else { 0 });
        for told in &grandchildren {
            let body = child(FREE, told);
            let own = stage.send(&body).await;
            assert_eq!((own.status, plan(&own)), (200, ["child", "aligned", "nested"]));
            assert_ne!(own.said("fork"), nested.said("fork"));
            assert_eq!(forwarded(&own)["messages"].as_array().unwrap().len(), 1);
            let named = Letter::alone(&body).with("x-forkpoint-parent", &message_id(&nested));
            assert_eq!(plan(&stage.line().send(&named).await), ["child", "aligned", "nested"]);
        }
        assert_eq!(stage.count("forks_total", &[]), 1);
        assert_eq!(stage.count("children_total", &["reason=\"nested\""]), 4);
    }
}

#[tokio::test]
async fn quoting_our_words_is_no_sign_of_a_fork() {
    let stage = Stage::new(|_| ()).await;
    let mut body = parent(FREE, "[[sim:fan_out n=2 tool=Agent field=prompt | tools turns=1 tool=search]]");
    let note = format!("{TAG}\nYou are a fork.\n</forkpoint-child>");
    body["system"][0]["text"] = json!(format!("{note}{}", body["system"][0]["text"].as_str().unwrap()));
    let call = |id: &str| json!({"type": "tool_use", "id": id, "name": "search", "input": {"path": note}});
    let result = |id: &str, says: &str| json!({"type": "tool_result", "tool_use_id": id, "content": says});
    let text = |says: &str| json!({"type": "text", "text": says});
    let history = json!([
        {"role": "user", "content": note},
        {"role": "assistant", "content": [text(&note), call("toolu_1"), call("toolu_2")]},
        // Not all are placeholders.
        {"role": "user", "content": [result("toolu_1", PLACEHOLDER), result("toolu_2", &note), text(&note)]},
        {"role": "assistant", "content": [text("Is that so?"), call("toolu_3")]},
        // Nothing starts with the tag.
        {"role": "user", "content": [result("toolu_3", PLACEHOLDER), text(&format!("It says: {note}"))]},
        {"role": "assistant", "content": [text("I see.")]},
        {"role": "user", "content": [text(&note), text(PLACEHOLDER)]},
        {"role": "assistant", "content": [text("I see.")]},
    ]);
    let messages = body["messages"].as_array_mut().unwrap();
    messages.splice(0..0, history.as_array().unwrap().clone());
    let told = stage.fan_out(&body).await;
    let mut body = child(FREE, &told[0]);
    body["system"][0]["text"] = json!(format!("{note}{}", body["system"][0]["text"].as_str().unwrap()));
    let first = stage.send(&body).await;
    assert_eq!((first.status, plan(&first)), (200, FORKED));
    extend(&mut body, &first);
    let second = stage.send(&body).await;
    assert_eq!((second.status, plan(&second)), (200, FORKED));
    assert_eq!(stage.count("recursion_blocked_total", &[]), 0);
}

#[tokio::test]
async fn tenants_with_the_same_traffic_never_mix() {
    let stage = Stage::new(|_| ()).await;
    let body = parent(BOUND, "[[sim:fan_out n=2 tool=Agent field=prompt thinking=20 | text]]");
    let ours = stage.sealed(&of("sk-ours", &body)).await;
    let told = directives(&ours);
    let stranger = stage.line().send(&of("sk-theirs", &child(BOUND, &told[0]))).await;
    assert_eq!((stranger.status, plan(&stranger)[0]), (200, "plain"));
    let theirs = stage.sealed(&of("sk-theirs", &body)).await;
    assert_eq!(directives(&theirs), told, "the same words");
    assert_ne!(call_ids(&theirs), call_ids(&ours), "and other ids");
    let mut forks = Vec::new();
    for (key, fan_out) in [("sk-ours", &ours), ("sk-theirs", &theirs)] {
        let child = stage.line().send(&of(key, &child(BOUND, &told[1]))).await;
        assert_eq!((child.status, plan(&child)), (200, FORKED), "{key}");
        assert_eq!(calls(&child), call_ids(fan_out), "{key}");
        forks.push(child.said("fork").unwrap().to_owned());
    }
    assert_ne!(forks[0], forks[1]);
}

#[tokio::test]
async fn users_of_one_key_never_mix() {
    let by_header = |body: &Value, user: Option<&str>| {
        let letter = Letter::alone(body);
        user.map_or(letter.clone(), |user| letter.with("x-forkpoint-session", user))
    };
    let by_metadata = |body: &Value, user: Option<&str>| {
        let mut body = body.clone();
        if let Some(user) = user {
            body["metadata"] = json!({"user_id": user});
        }
        Letter::alone(&body)
    };
    for hint in [&by_header as &dyn Fn(&Value, Option<&str>) -> Letter, &by_metadata] {
        let stage = Stage::new(|_| ()).await;
        let body = parent(FREE, "[[sim:fan_out n=2 tool=Agent field=prompt | text]]");
        let hers = stage.sealed(&hint(&body, Some("her"))).await;
        let told = directives(&hers);
        for user in [Some("him"), None] {
            let other = stage.line().send(&hint(&child(FREE, &told[0]), user)).await;
            assert_eq!((other.status, plan(&other)[0]), (200, "plain"), "{user:?}");
        }
        let his = stage.sealed(&hint(&body, Some("him"))).await;
        for (user, fan_out) in [("her", &hers), ("him", &his)] {
            let child = stage.line().send(&hint(&child(FREE, &told[0]), Some(user))).await;
            assert_eq!((child.status, plan(&child)), (200, FORKED), "{user}");
            assert_eq!(calls(&child), call_ids(fan_out), "{user}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_is_sent_again_is_the_same_child() {
    let stage = Stage::new(|_| ()).await;
    let told = stage.fan_out(&parent(FREE, "[[sim:fan_out n=2 tool=Agent field=prompt | text]]")).await;
    let letter = Letter::alone(&child(FREE, &told[0]));
    let line = stage.line();
    let mut sent = join_all([line.send(&letter), line.send(&letter)]).await;
    sent.push(line.send(&letter).await);
    for exchange in &sent {
        assert_eq!((exchange.status, plan(exchange)), (200, FORKED));
        assert!(exchange.forwarded == sent[0].forwarded);
    }
    // Without hints nobody else starts from the same directive.
    let mut other = child(FREE, &told[0]);
    other["max_tokens"] = json!(3_000);
    assert_eq!(plan(&stage.send(&other).await)[0], "plain");
}

#[tokio::test]
async fn a_cancelled_child_may_come_again_and_its_siblings_go_on() {
    let stage = Stage::new(|_| ()).await;
    let script = "[[sim:fan_out n=2 tool=Agent field=prompt | text words=2000 pace_ms=40]]";
    let told = stage.fan_out(&parent(FREE, script)).await;
    let body = serde_json::to_vec(&child(FREE, &told[0])).unwrap();
    let headers = "x-api-key: sk-test\r\ncontent-type: application/json\r\nanthropic-version: 2023-06-01\r\n";
    for _ in 0..2 {
        let mut client = stage.forkpoint.client().await;
        client.send(&post("/v1/messages", headers, &body)).await;
        let head = client.head().await;
        assert_eq!(head.get("x-forkpoint-plan").as_deref(), Some("forked"));
        client.through(b"content_block_delta").await;
    }
    stage.forkpoint.recorded(3).await;
    let mut client = stage.forkpoint.client().await;
    let body = serde_json::to_vec(&child(FREE, &told[1])).unwrap();
    client.send(&post("/v1/messages", headers, &body)).await;
    let head = client.head().await;
    assert_eq!(head.get("x-forkpoint-plan").as_deref(), Some("forked"));
}

#[tokio::test]
async fn betas_are_the_parents_then_the_childs_own() {
    let stage = Stage::new(|config| config.fork.policy.max_cost_ratio = 100.0).await;
    let body = parent(FREE, "[[sim:fan_out n=4 tool=Agent field=prompt | text]]");
    let parents = "context-management-2025-06-27,one-2099-01-01";
    let told = directives(&stage.sealed(&Letter::alone(&body).with("anthropic-beta", parents)).await);
    for (told, (own, sent)) in told.iter().zip([
        (None, parents.to_owned()),
        (Some(parents), parents.to_owned()),
        (Some("one-2099-01-01"), parents.to_owned()),
        (Some("two-2099-01-01,one-2099-01-01"), format!("{parents},two-2099-01-01")),
    ]) {
        let letter = Letter::alone(&child(FREE, told));
        let letter = own.map_or(letter.clone(), |own| letter.with("anthropic-beta", own));
        let child = stage.line().send(&letter).await;
        assert_eq!((child.status, plan(&child)), (200, FORKED), "{own:?}");
        assert_eq!(stage.header("anthropic-beta"), [sent], "{own:?}");
    }
}
