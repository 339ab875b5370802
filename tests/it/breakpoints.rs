//! Planned requests against the simulator: it refuses nothing that it accepts directly, and what is planned is read.

use bytes::Bytes;
use forkpoint::engine::cache::breakpoints::{Profile, Situation, StaticEnds, plan};
use forkpoint::engine::request::anatomy::Anatomy;
use forkpoint::engine::request::edit::apply;
use forkpoint::engine::words::Carrier;
use forkpoint::sim::settings::NestedMarkers;
use forkpoint::sim::{Latency, Sim, SimConfig};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::{Value, json};

const REQUESTS: usize = 600;

struct Bench {
    sim: Sim,
    client: reqwest::Client,
}

impl Bench {
    async fn start(nested: NestedMarkers) -> Bench {
        let mut config = SimConfig { latency: Latency::none(), ..SimConfig::default() };
        config.rules.nested_markers = nested;
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        Bench { sim: Sim::start(config).await.unwrap(), client }
    }

    async fn send(&self, body: &[u8]) -> (u16, Value) {
        let request = self.client.post(format!("{}/v1/messages", self.sim.url()));
        let request = request.header("x-api-key", "sk-test").header("anthropic-version", "2023-06-01");
        let answer =
            request.header("content-type", "application/json").body(body.to_vec()).send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }
}

/// The planned body, where its last breakpoint stands, and how many were added.
fn planned(body: &Bytes, situation: &Situation) -> (Vec<u8>, Option<usize>, usize) {
    let plan = plan(body, &Anatomy::read(body).unwrap(), situation);
    let last = plan.breakpoints.last().map(|point| point.piece);
    (apply(body, &plan.edits).pieces.concat(), last, plan.edits.len())
}

fn marked(mut block: Value, mark: u8) -> Value {
    match mark {
        0 => block["cache_control"] = json!({"type": "ephemeral"}),
        1 => block["cache_control"] = json!({"type": "ephemeral", "ttl": "1h"}),
        2 => block["cache_control"] = Value::Null,
        _ => {}
    }
    block
}

/// One exchange: what the user says, what the assistant answers, and how many tools it calls.
#[derive(Debug, Clone)]
struct Exchange {
    words: usize,
    as_string: bool,
    calls: usize,
    marks: [u8; 4],
}

fn any_exchange() -> impl Strategy<Value = Exchange> {
    // Marks above 2 are none: most blocks have none.
    let marks = prop::array::uniform4(0_u8..14);
    (1_usize..400, any::<bool>(), 0_usize..4, marks).prop_map(|(words, as_string, calls, marks)| Exchange {
        words,
        as_string,
        calls,
        marks,
    })
}

/// A conversation that follows the API's rules about turns, with markers wherever.
fn any_body() -> impl Strategy<Value = Value> {
    let exchanges = prop::collection::vec(any_exchange(), 0..6);
    let ending = any_exchange();
    let head = (0_usize..4, prop::option::of(0_usize..3), any::<bool>(), prop::array::uniform4(0_u8..10));
    let top = prop_oneof![6 => Just(9_u8), 1 => Just(0), 1 => Just(1), 1 => Just(2)];
    (exchanges, ending, head, top).prop_map(|(exchanges, ending, (tools, system, deferred, marks), top)| {
        let mut messages = Vec::new();
        for (index, exchange) in exchanges.iter().enumerate() {
            push_exchange(&mut messages, index, exchange);
        }
        messages.push(json!({"role": "user", "content": user_content(&ending)}));
        let mut body = json!({"model": "claude-sonnet-4-5", "max_tokens": 16, "messages": messages});
        let tools: Vec<_> = (0..tools)
            .map(|index| {
                if deferred && index == 1 {
                    json!({"name": "deferred", "input_schema": {"type": "object"}, "defer_loading": true})
                } else {
                    let tool = json!({"name": format!("t{index}"), "input_schema": {"type": "object"}});
                    marked(tool, marks[index])
                }
            })
            .collect();
        body["tools"] = json!(tools);
        body["system"] = match system {
            None => json!("You help."),
            Some(blocks) => {
                let texts = ["x-anthropic-billing-header: v;", "You help.", "You are brief."];
                let blocks = texts[..=blocks].iter().zip(&marks[1..]);
                blocks.map(|(text, mark)| marked(json!({"type": "text", "text": text}), *mark)).collect()
            }
        };
        marked(body, top)
    })
}

fn user_content(exchange: &Exchange) -> Value {
    let text = "word ".repeat(exchange.words);
    if exchange.as_string {
        json!(text)
    } else {
        json!([
            {"type": "text", "text": "<reminder>"},
            marked(json!({"type": "text", "text": text}), exchange.marks[0]),
        ])
    }
}

fn push_exchange(messages: &mut Vec<Value>, index: usize, exchange: &Exchange) {
    messages.push(json!({"role": "user", "content": user_content(exchange)}));
    let id = |call: usize| format!("toolu_{index}_{call}");
    let mut answer = vec![marked(json!({"type": "text", "text": "I look."}), exchange.marks[1])];
    answer.extend((0..exchange.calls).map(|call| {
        json!({"type": "tool_use", "id": id(call), "name": "t0", "input": {"cache_control": {"x": 1}}})
    }));
    messages.push(json!({"role": "assistant", "content": answer}));
    if exchange.calls == 0 {
        return;
    }
    let results: Vec<_> = (0..exchange.calls)
        .map(|call| {
            let nested =
                marked(json!({"type": "text", "text": "found \"cache_control\""}), exchange.marks[2]);
            let content = if call == 0 { json!([nested]) } else { json!("nothing") };
            let result = json!({"type": "tool_result", "tool_use_id": id(call), "content": content});
            marked(result, if call == 1 { exchange.marks[3] } else { 9 })
        })
        .collect();
    messages.push(json!({"role": "user", "content": results}));
    messages.push(json!({"role": "assistant", "content": "Done."}));
}

async fn refuses_nothing(nested: NestedMarkers) {
    let bench = Bench::start(nested).await;
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let (mut accepted, mut changed, mut refused) = (0, 0, 0);
    for round in 0..REQUESTS {
        let body = any_body().new_tree(&mut runner).unwrap().current();
        let body = Bytes::from(if round % 2 == 0 {
            serde_json::to_vec(&body).unwrap()
        } else {
            serde_json::to_vec_pretty(&body).unwrap()
        });
        if bench.send(&body).await.0 != 200 {
            refused += 1;
            continue;
        }
        accepted += 1;
        let profile = if round % 3 == 0 { Profile::BlocksOnly } else { Profile::Anthropic };
        let situation = Situation {
            last_written: Some(round % 24),
            read_by_others: StaticEnds::BOTH,
            ..Situation::new(profile)
        };
        let (forwarded, _, edits) = planned(&body, &situation);
        changed += usize::from(edits > 0);
        let (status, answer) = bench.send(&forwarded).await;
        assert_eq!(status, 200, "{answer}\n{}", String::from_utf8_lossy(&forwarded));
    }
    assert!(accepted > REQUESTS / 4 && refused > 0, "{accepted} accepted, {refused} refused: a weak test");
    assert!(changed > accepted / 2, "only {changed} of {accepted} were changed");
}

#[tokio::test]
async fn the_simulator_refuses_nothing_planned_that_it_accepts_directly() {
    refuses_nothing(NestedMarkers::Ignored).await;
}

#[tokio::test]
async fn nor_where_markers_inside_results_count_for_the_result() {
    refuses_nothing(NestedMarkers::MarkOuter).await;
}

/// A client without markers whose turns grow by `blocks` each: the share of the prompt read in its last turn.
async fn last_share(blocks: usize, content: impl Fn(String) -> Value) -> f64 {
    let bench = Bench::start(NestedMarkers::Ignored).await;
    let mut messages = Vec::new();
    let (mut last_written, mut share) = (None, 0.0);
    for turn in 0..6 {
        for block in 0..blocks {
            let role = if block % 2 == 0 { "user" } else { "assistant" };
            messages.push(json!({"role": role, "content": content(format!("{turn} {block} ").repeat(40))}));
        }
        let tools =
            json!([{"name": "t", "description": "d".repeat(8_000), "input_schema": {"type": "object"}}]);
        let body =
            json!({"model": "claude-sonnet-4-5", "max_tokens": 16, "tools": tools, "messages": messages});
        let body = Bytes::from(serde_json::to_vec(&body).unwrap());
        let situation = Situation { last_written, ..Situation::new(Profile::Anthropic) };
        let (forwarded, last, _) = planned(&body, &situation);
        let (status, answer) = bench.send(&forwarded).await;
        assert_eq!(status, 200, "{answer}");
        let tokens = |name: &str| answer["usage"][name].as_f64().unwrap();
        let (read, written) = (tokens("cache_read_input_tokens"), tokens("cache_creation_input_tokens"));
        share = read / (read + written + tokens("input_tokens"));
        last_written = last;
        messages.push(json!({"role": "assistant", "content": content("answer".to_owned())}));
    }
    share
}

#[tokio::test]
async fn a_client_without_markers_reads_its_history_however_fast_it_grows() {
    let as_block = |text: String| json!([{"type": "text", "text": text}]);
    // Six turns of 31 blocks: five of six are history, and only a bridge finds them.
    assert!(last_share(31, as_block).await > 0.8);
    assert!(last_share(1, as_block).await > 0.9);
    assert!(last_share(1, |text| json!(text)).await > 0.9, "automatic caching follows a string");
}

#[test]
fn a_string_tail_is_marked_at_the_top_level() {
    let body = Bytes::from_static(
        br#"{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"},{"role":"user","content":"q"}]}"#,
    );
    let plan = plan(&body, &Anatomy::read(&body).unwrap(), &Situation::new(Profile::Anthropic));
    assert_eq!(plan.breakpoints.iter().map(|point| point.carrier).collect::<Vec<_>>(), [Carrier::TopLevel]);
}
