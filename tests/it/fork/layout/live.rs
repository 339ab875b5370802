//! Forked children against the simulator.

use std::sync::Arc;

use forkpoint::engine::answer::turn::Turn as Answer;
use forkpoint::engine::cache::breakpoints::Profile;
use forkpoint::engine::cache::prices::{ModelFacts, Multiplier, Multipliers};
use forkpoint::engine::family::fanout::{
    Draft, Explicit, FanOuts, LATEST, Newcomer, Parent, Recognised, Rules,
};
use forkpoint::engine::fork::{
    Bills, ChildHabits, ChildPrefix, Forecast, OwnWarmth, ParentPrefix, PricedCache, PromptSizes, Turn,
    eligible, siblings,
};
use forkpoint::engine::request::prefix::Attribution;
use forkpoint::engine::words::{TenantId, Ttl};
use forkpoint::sim::{Latency, Sim, SimConfig};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::{Value, json};

use super::{Fate, Hints, House, LIMITS, NOW, aligned, check, read, who, written};

const BOUND: &str = "claude-opus-5-5";
const FREE: &str = "claude-sonnet-4-6";

struct Stage {
    sim: Sim,
    client: reqwest::Client,
    house: House,
}

/// The bill of a request.
#[derive(Clone, Copy, Debug)]
struct Bill {
    read: u64,
    written: u64,
    uncached: u64,
}

impl Stage {
    async fn start() -> Stage {
        let config = SimConfig { latency: Latency::none(), ..SimConfig::default() };
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        Stage { sim: Sim::start(config).await.unwrap(), client, house: House::new() }
    }

    async fn post(&self, body: Vec<u8>) -> (Value, Bill) {
        let request = self.client.post(format!("{}/v1/messages", self.sim.url()));
        let request = request.header("x-api-key", "sk-test").header("anthropic-version", "2023-06-01");
        let said = String::from_utf8_lossy(&body).into_owned();
        let response = request.header("content-type", "application/json").body(body).send().await.unwrap();
        let status = response.status();
        let answer: Value = response.json().await.unwrap();
        assert_eq!(status, 200, "{answer}\n{said}");
        let count = |name: &str| answer["usage"][name].as_u64().unwrap();
        let bill = Bill {
            read: count("cache_read_input_tokens"),
            written: count("cache_creation_input_tokens"),
            uncached: count("input_tokens"),
        };
        (answer, bill)
    }

    /// Returns true if a request as it came is legal.
    async fn takes(&self, body: &Value) -> bool {
        let request =
            self.client.post(format!("{}/v1/messages", self.sim.url())).header("x-api-key", "sk-test");
        let request = request.header("anthropic-version", "2023-06-01").json(body);
        request.send().await.unwrap().status() == 200
    }

    /// A parent that fans out, and the directives of its children.
    async fn fan_out(&mut self, body: &Value) -> (Vec<String>, Bill) {
        let body = body.to_string();
        let (answer, bill) = self.post(aligned(body.as_bytes())).await;
        let fork = self.house.answered(body.as_bytes(), Hints::default(), &answer).unwrap();
        let directive = |call: &forkpoint::engine::family::fanout::Call| call.directives[0].to_string();
        (fork.calls.iter().map(directive).collect(), bill)
    }

    /// The forecast cost of one turn of this child, before it is sent.
    fn forecast(&mut self, body: &Value, parents: Bill) -> Forecast {
        let request = read(body.to_string().as_bytes());
        let newcomer = Newcomer { request: &request, who: who(&request, Hints::default()), explicit: None };
        let Recognised::Child(child, _) = self.house.recognise(&newcomer) else { panic!("no child") };
        let parent_prefix = self.house.parent_prefix(&child);
        let (prefix, _) = ChildPrefix::of(&parent_prefix, &request, &child, &self.house.policy).unwrap();
        let composed = prefix.compose(&request, Turn::First, Profile::Anthropic);
        let sizes = PromptSizes::of(&parent_prefix, &child.fork, &composed, &request, None, None).unwrap();
        assert_eq!(sizes.entry.max(1), parents.read + parents.written, "all of it was billed");
        let [read, write_5m, write_1h] = [0.1, 1.25, 2.0].map(|factor| Some(Multiplier::new(factor)));
        let cache = PricedCache {
            price: None,
            multipliers: Multipliers { read, write_5m, write_1h },
            facts: ModelFacts::UNKNOWN,
            siblings: siblings(&child.fork, &self.house.policy),
            warm: true,
            cold_messages: false,
            own: OwnWarmth::default(),
            gate_tokens: 0,
            entry_ttl: parent_prefix.ttl(),
            ttl: Ttl::FiveMinutes,
        };
        let habits = ChildHabits { turns: Some(1.0), alike: Some(1.0), ..ChildHabits::default() };
        Forecast::of(&sizes, &habits, &cache, |_| Bills::default(), &self.house.policy).unwrap()
    }

    /// One turn of a child, forked; what was asked of it and what it cost.
    async fn turn(&mut self, body: &Value) -> (Value, Bill, Value) {
        let sent = body.to_string();
        let Fate::Forked(composed, binding) = self.house.handle(sent.as_bytes(), Hints::default()) else {
            panic!("not forked: {sent}");
        };
        let forwarded = composed.body.pieces.concat();
        let (answer, bill) = self.post(forwarded.clone()).await;
        self.house.child_answered(binding, sent.as_bytes(), &answer["content"]);
        (answer, bill, serde_json::from_slice(&forwarded).unwrap())
    }
}

fn tool(name: &str) -> Value {
    json!({"name": name, "description": format!("The {name} tool. {}", "Words. ".repeat(200)), "input_schema":
        {"type": "object", "properties": {"command": {"type": "string"}, "prompt": {"type": "string"}}}})
}

fn parent(model: &str, script: &str) -> Value {
    json!({
        "model": model, "max_tokens": 32000, "thinking": {"type": "adaptive"},
        "tools": [tool("Agent"), tool("Bash")],
        "system": [{"type": "text", "text": "You lead. ".repeat(800)}],
        "messages": [
            {"role": "user", "content": "Begin."},
            {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]},
            {"role": "user", "content": [{"type": "text", "text": format!("{} {script}", "Context. ".repeat(3000))}]},
        ],
    })
}

fn child(model: &str, directive: &str) -> Value {
    json!({
        "model": model, "max_tokens": 2000, "thinking": {"type": "adaptive"},
        "tools": [tool("Bash")],
        "system": format!("You work. {}", "Carefully. ".repeat(100)),
        "messages": [{"role": "user", "content": directive}],
    })
}

/// Appends an answer and, if it calls tools, their results.
fn extend(body: &mut Value, answer: &Value) {
    let results: Vec<_> = answer["content"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|block| block["type"] == "tool_use")
        .map(|call| json!({"type": "tool_result", "tool_use_id": call["id"], "content": "found"}))
        .collect();
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": answer["content"]}));
    messages.push(json!({"role": "user", "content": results}));
}

#[tokio::test]
async fn siblings_read_what_the_parent_and_the_first_of_them_wrote() {
    for model in [FREE, BOUND] {
        let mut stage = Stage::start().await;
        let (directives, bill) = stage
            .fan_out(&parent(model, "[[sim:fan_out n=12 tool=Agent field=prompt thinking=30 | text]]"))
            .await;
        assert_eq!(directives.len(), 12);
        let prompt = bill.read + bill.written + bill.uncached;
        let mut bills = Vec::new();
        for directive in &directives {
            bills.push(stage.turn(&child(model, directive)).await.1);
        }
        assert!(bills[0].read * 100 >= prompt * 99, "{model}: {:?} of {prompt}", bills[0]);
        let shared = bills[0].read + bills[0].written;
        for bill in &bills[1..] {
            assert!(bill.read > bills[0].read && bill.uncached == 0, "{model}: {bill:?}");
            assert!(bill.read * 100 >= (shared - bill.written) * 99, "{model}: {bill:?}");
        }
    }
}

#[tokio::test]
async fn a_child_keeps_its_prefix_for_all_its_turns() {
    for model in [FREE, BOUND] {
        let mut stage = Stage::start().await;
        let script = "[[sim:fan_out n=2 tool=Agent field=prompt thinking=30 | tools turns=4 calls=25 tool=Bash thinking=20]]";
        let (directives, _) = stage.fan_out(&parent(model, script)).await;
        let mut body = child(model, &directives[0]);
        let mut before = 0;
        for number in 0..5 {
            let (answer, bill, _) = stage.turn(&body).await;
            assert!(bill.read >= before, "{model} turn {number}: {bill:?}, {before} were there");
            assert_eq!(bill.uncached, 0, "{model} turn {number}");
            before = bill.read + bill.written;
            assert_eq!(answer["stop_reason"], if number < 4 { "tool_use" } else { "end_turn" });
            extend(&mut body, &answer);
        }
    }
}

#[tokio::test]
async fn a_child_that_compacts_stays_on_its_parents_prefix() {
    let mut stage = Stage::start().await;
    let script = "[[sim:fan_out n=2 tool=Agent field=prompt thinking=30 | tools turns=3 calls=1 tool=Bash]]";
    let (directives, _) = stage.fan_out(&parent(BOUND, script)).await;
    let mut body = child(BOUND, &directives[0]);
    let (answer, first, _) = stage.turn(&body).await;
    extend(&mut body, &answer);
    // The client sums up what it said, and keeps the last exchange without its thinking.
    body["messages"][0]["content"] = json!("What happened so far: I was told to look, and began to.");
    let kept = body["messages"][1]["content"].as_array_mut().unwrap();
    kept.retain(|block| block["type"] != "thinking");
    let (_, bill, forwarded) = stage.turn(&body).await;
    assert!(bill.read * 100 >= first.read * 99, "{bill:?} after {first:?}");
    let said = forwarded["messages"].to_string();
    assert!(said.contains("What happened so far") && said.contains("Carefully."));
}

#[tokio::test]
async fn what_is_predicted_is_what_is_billed() {
    let mut stage = Stage::start().await;
    let script = "[[sim:fan_out n=5 tool=Agent field=prompt | text]]";
    let (directives, bill) = stage.fan_out(&parent(FREE, script)).await;
    let bodies: Vec<_> = directives.iter().map(|directive| child(FREE, directive)).collect();
    let forecast = stage.forecast(&bodies[0], bill);
    let (mut forked, mut as_sent) = (0.0, 0.0);
    for body in &bodies {
        forked += units(stage.turn(body).await.1) / 5.0;
        as_sent += units(stage.post(body.to_string().into_bytes()).await.1) / 5.0;
    }
    let near = |predicted: f64, billed: f64| (predicted / billed - 1.0).abs() < 0.05;
    assert!(near(forecast.forked, forked), "{forecast:?}, and {forked} was billed");
    assert!(near(forecast.as_sent, as_sent), "{forecast:?}, and {as_sent} was billed");
}

fn units(bill: Bill) -> f64 {
    0.1 * bill.read as f64 + 1.25 * bill.written as f64 + bill.uncached as f64
}

#[tokio::test]
async fn late_children_read_what_their_parent_wrote() {
    for model in [FREE, BOUND] {
        let mut stage = Stage::start().await;
        let script = "[[sim:fan_out n=3 tool=Agent field=prompt thinking=30 | tools turns=2 calls=1 tool=Bash thinking=10]]";
        let lead = parent(model, script).to_string();
        let (answer, parents) = stage.post(aligned(lead.as_bytes())).await;
        let content = answer["content"].as_array().unwrap();
        let calls = content.iter().enumerate().filter(|(_, block)| block["type"] == "tool_use");
        let calls: Vec<_> =
            calls.map(|(place, call)| (place, call["input"]["prompt"].as_str().unwrap())).collect();
        assert_eq!(calls.len(), 3);
        for (number, (place, directive)) in calls.into_iter().enumerate() {
            stage.house.streams(lead.as_bytes(), &answer, place + 1);
            let mut body = child(model, directive);
            let mut before = parents.read + parents.written;
            for turn in 0..3 {
                let (answer, bill, forwarded) = stage.turn(&body).await;
                let said = forwarded["messages"][3]["content"].as_array().unwrap();
                assert_eq!(said.len(), place + 1, "the turn ends with its call");
                let results = forwarded["messages"][4]["content"].as_array().unwrap();
                let results = results.iter().filter(|block| block["type"] == "tool_result").count();
                assert_eq!(results, number + 1);
                assert!(
                    bill.read * 100 >= before * 99,
                    "{model} {number} {turn}: {bill:?}, {before} were there"
                );
                before = bill.read + bill.written;
                extend(&mut body, &answer);
            }
        }
    }
}

#[tokio::test]
async fn a_message_to_a_turn_reads_what_the_turn_was_made_of() {
    for (model, script) in
        [(FREE, "[[sim:text]]"), (BOUND, "[[sim:tools turns=1 calls=2 tool=Bash thinking=20]]")]
    {
        let stage = Stage::start().await;
        let lead = parent(model, script).to_string();
        let (answer, bill) = stage.post(aligned(lead.as_bytes())).await;
        let request = read(lead.as_bytes());
        let hints = Hints { session: Some("s"), agent: None };
        let mut kept = FanOuts::<()>::new(TenantId([1; 32]), Rules::default());
        let leader = who(&request, hints);
        let parent = Parent::new(request.into(), leader);
        let turn = Answer::from_json(answer.to_string().as_bytes(), LIMITS);
        let mut draft = Draft::begin(parent, false);
        let snapshot = draft.snapshot(&turn, &Rules::default()).unwrap();
        kept.record(&mut draft, snapshot, None, NOW).unwrap();
        for words in ["Sum up.", "What next?"] {
            let body =
                json!({"model": model, "max_tokens": 500, "messages": [{"role": "user", "content": words}]});
            let request = read(body.to_string().as_bytes());
            let explicit = Some(Explicit { message_id: LATEST, tool_use: None });
            let newcomer = Newcomer { request: &request, who: who(&request, hints), explicit };
            let child = kept.find_snapshot(&newcomer, NOW).unwrap();
            let policy = &stage.house.policy;
            assert_eq!(eligible(&request, &child, &newcomer.who, policy, &stage.house.rules), Ok(()));
            let written = written(&child.fork.parent.request);
            let parent_prefix = Arc::new(
                ParentPrefix::of(&child.fork, None, written, Attribution::Stripped, policy).unwrap(),
            );
            let (prefix, _) = ChildPrefix::of(&parent_prefix, &request, &child, policy).unwrap();
            let composed = prefix.compose(&request, Turn::First, Profile::Anthropic);
            check(&composed);
            let (_, own) = stage.post(composed.body.pieces.concat()).await;
            assert!(own.read * 100 >= (bill.read + bill.written) * 99, "{own:?} of {bill:?}");
        }
    }
}

#[tokio::test]
async fn sixty_four_siblings_are_accepted() {
    let mut stage = Stage::start().await;
    let script = "[[sim:fan_out n=64 tool=Agent field=prompt | text]]";
    let (directives, _) = stage.fan_out(&parent(FREE, script)).await;
    let mut last = None;
    for directive in &directives {
        last = Some(stage.turn(&child(FREE, directive)).await.1);
    }
    let last = last.unwrap();
    assert!(last.written * 50 < last.read, "{last:?}");
}

/// A history by the rules of the API, with markers wherever, that ends with a fan-out.
fn any_parent() -> impl Strategy<Value = Value> {
    let words = 1_usize..300;
    let exchange = (words.clone(), any::<bool>(), 0_usize..4, prop::array::uniform3(0_u8..9));
    let system = prop::option::of(prop::collection::vec(0_u8..9, 1..4));
    (prop::collection::vec(exchange, 0..6), words, any::<bool>(), system, any::<bool>(), 2_usize..13).prop_map(
        |(exchanges, words, as_string, system, top, children)| {
            let mut messages = Vec::new();
            let mut results: Vec<Value> = Vec::new();
            for (turn, (words, as_string, calls, marks)) in exchanges.into_iter().enumerate() {
                messages.push(user(std::mem::take(&mut results), words, as_string, "", marks[0]));
                let mut said = vec![marked(text("Yes."), marks[1])];
                for call in 0..calls {
                    let id = format!("toolu_{turn}_{call}");
                    said.push(json!({"type": "tool_use", "id": id, "name": "Bash", "input": {"command": "ls"}}));
                    let inner = marked(text("found"), marks[2]);
                    results.push(json!({"type": "tool_result", "tool_use_id": id, "content": [inner]}));
                }
                messages.push(json!({"role": "assistant", "content": said}));
            }
            let script = format!("[[sim:fan_out n={children} tool=Agent field=prompt | tools turns=2 calls=2 tool=Bash]]");
            messages.push(user(results, words, as_string, &script, 9));
            let mut body = json!({"model": FREE, "max_tokens": 32000, "tools": [tool("Agent"), tool("Bash")], "messages": messages});
            if let Some(marks) = system {
                body["system"] = marks.iter().map(|mark| marked(text("You lead."), *mark)).collect();
            }
            if top {
                body["cache_control"] = json!({"type": "ephemeral"});
            }
            body
        },
    )
}

fn text(words: &str) -> Value {
    json!({"type": "text", "text": words})
}

/// Few are marked.
fn marked(mut block: Value, mark: u8) -> Value {
    if mark == 0 {
        block["cache_control"] = json!({"type": "ephemeral"});
    }
    block
}

fn user(mut results: Vec<Value>, words: usize, as_string: bool, script: &str, mark: u8) -> Value {
    let said = format!("{}{script}", "word ".repeat(words));
    if as_string && results.is_empty() {
        return json!({"role": "user", "content": said});
    }
    results.push(marked(text(&said), mark));
    json!({"role": "user", "content": results})
}

#[tokio::test]
async fn whatever_parent_the_simulator_takes_it_takes_the_children_too() {
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[9; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let mut forked = 0;
    for _ in 0..60 {
        let body = any_parent().new_tree(&mut runner).unwrap().current();
        let mut stage = Stage::start().await;
        if !stage.takes(&body).await {
            continue;
        }
        let (directives, _) = stage.fan_out(&body).await;
        for directive in directives.iter().take(3) {
            let mut child = child(FREE, directive);
            child.as_object_mut().unwrap().remove("thinking");
            for _ in 0..3 {
                let (answer, _, _) = stage.turn(&child).await;
                extend(&mut child, &answer);
                forked += 1;
            }
        }
    }
    assert!(forked > 300, "only {forked}");
}
