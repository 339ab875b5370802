//! Fan-outs whose children cost more aligned than sent directly once, or whose saving was shown wrong.

use forkpoint::sim::{BilledUsage, Sim, SimConfig};
use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::harness::{Forkpoint, PATIENCE};
use crate::workload::{Exchange, Letter, Line, prose, tool};

use super::mode;

const MODEL: &str = "claude-sonnet-4-6";
/// A model that reads a string and one text block as the same prompt.
const STRING_IS_BLOCK: &str = "claude-opus-4-8";
/// Conversations with a tool set that may be marked in vain, at a quarter of their prompt.
const BETS: f64 = 8.0;
const RATIO_MAX: f64 = 1.02;
/// A figure that is shown may be off by this share of the direct bill.
const SHOWN_MAX: f64 = 0.05;

/// A line on which fan-outs are played, and the bills of all that was sent.
struct Team<'s> {
    line: Line<'s>,
    model: &'static str,
    bills: Vec<BilledUsage>,
}

impl<'s> Team<'s> {
    fn new(line: Line<'s>, model: &'static str) -> Team<'s> {
        Team { line, model, bills: Vec::new() }
    }

    async fn send(&mut self, bodies: &[Value]) -> Vec<Exchange> {
        let letters: Vec<Letter> = bodies.iter().map(Letter::alone).collect();
        let exchanges = join_all(letters.iter().map(|letter| self.line.send(letter))).await;
        self.bills.extend(exchanges.iter().map(usage));
        exchanges
    }

    /// A parent calls so many children, and they are started at once. Returns their requests and answers.
    async fn fan_out(
        &mut self,
        number: usize,
        children: usize,
        child: impl Fn(usize, &str) -> Value,
    ) -> Vec<(Value, Exchange)> {
        let script = format!("[[sim:fan_out n={children} tool=Agent field=prompt | text words=20]]");
        let parent = json!({"model": self.model, "max_tokens": 32_000, "stream": true, "tools": tools(),
            "system": [{"type": "text", "text": prose("You lead a team of agents.", 3_000)}],
            "messages": [{"role": "user", "content": format!("Survey part {number}. {script}")}]});
        let blocks = self.send(&[parent]).await[0].blocks().unwrap();
        let calls = blocks.iter().filter(|block| block["type"] == "tool_use");
        let told = calls.map(|call| call["input"]["prompt"].as_str().unwrap().to_owned());
        let bodies: Vec<Value> =
            told.enumerate().map(|(index, told)| child(number * children + index, &told)).collect();
        let answers = self.send(&bodies).await;
        bodies.into_iter().zip(answers).collect()
    }

    fn units(&self) -> f64 {
        self.bills.iter().map(units).sum()
    }
}

fn usage(exchange: &Exchange) -> BilledUsage {
    exchange.usage.unwrap_or_else(|| panic!("not billed: {}", String::from_utf8_lossy(&exchange.answer)))
}

/// Prompt tokens weighed by price.
fn units(usage: &BilledUsage) -> f64 {
    usage.uncached as f64
        + 1.25 * usage.cache_write_5m as f64
        + 2.0 * usage.cache_write_1h as f64
        + 0.1 * usage.cache_read as f64
}

fn tools() -> Value {
    ["Agent", "read", "write", "search", "list", "move", "copy", "print"].map(tool).into()
}

/// A child as an agent framework starts it.
fn child(model: &str, system: Value, directive: &str) -> Value {
    json!({"model": model, "max_tokens": 4_000, "stream": true, "tools": tools(), "system": system,
        "messages": [{"role": "user", "content": [{"type": "text", "text": directive}]}]})
}

fn persona(number: usize) -> Value {
    json!([{"type": "text", "text": prose(&format!("You are agent {number}."), 3_000)}])
}

/// The simulator, whose answers begin after a while, and forkpoint before it.
struct Stage {
    sim: Sim,
    forkpoint: Forkpoint,
}

impl Stage {
    async fn aligned() -> Stage {
        let sim = simulator().await;
        let forkpoint = Forkpoint::with(&sim.url(), |config| {
            config.server.mode = mode("align");
            config.gate.max_hold = PATIENCE;
        })
        .await;
        Stage { sim, forkpoint }
    }

    fn team(&self, model: &'static str) -> Team<'_> {
        let url = format!("http://{}", self.forkpoint.address);
        Team::new(Line::through(url, self.forkpoint.proxy.clone(), &self.sim), model)
    }
}

async fn simulator() -> Sim {
    Sim::start(SimConfig::default()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn siblings_with_personas_of_their_own_share_the_tools() {
    const FAN_OUTS: usize = 8;
    const CHILDREN: usize = 6;
    let (stage, sim) = (Stage::aligned().await, simulator().await);
    let mut bills = Vec::new();
    for mut team in [Team::new(Line::direct(&sim), MODEL), stage.team(MODEL)] {
        let mut children = Vec::new();
        for number in 0..FAN_OUTS {
            let born = team.fan_out(number, CHILDREN, |index, told| child(MODEL, persona(index), told)).await;
            children.extend(born.into_iter().map(|(_, exchange)| units(&usage(&exchange))));
        }
        bills.push(children.iter().sum::<f64>());
    }
    let (direct, aligned) = (bills[0], bills[1]);
    println!("own personas: {aligned:.0} / {direct:.0} = {:.3}", aligned / direct);
    let bets = 0.25 * BETS * direct / (FAN_OUTS * CHILDREN) as f64;
    assert!(aligned <= RATIO_MAX * direct + bets, "{aligned} {direct} {bets}");
    assert!(aligned < direct, "{aligned} {direct}: the tools are read");
}

/// The bills of two turns of five children whose system prompt is this, behind that of their parent.
async fn five_children(mut team: Team<'_>, system: &Value) -> Vec<BilledUsage> {
    let model = team.model;
    let children = team.fan_out(0, 5, |_, told| child(model, system.clone(), told)).await;
    let later: Vec<Value> = children.into_iter().map(|(body, exchange)| continued(body, &exchange)).collect();
    team.send(&later).await;
    team.bills
}

fn continued(mut body: Value, exchange: &Exchange) -> Value {
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(json!({"role": "assistant", "content": exchange.blocks().unwrap()}));
    messages.push(json!({"role": "user", "content": [{"type": "text", "text": "Go on."}]}));
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn a_system_prompt_as_a_string_costs_what_it_costs_as_a_block() {
    let text = prose("You are a worker and report once.", 12_000);
    for model in [STRING_IS_BLOCK, MODEL] {
        let (as_string, as_block) = (json!(text), json!([{"type": "text", "text": text}]));
        let sum = |bills: &[BilledUsage]| bills.iter().map(units).sum::<f64>();
        let sim = simulator().await;
        let direct = sum(&five_children(Team::new(Line::direct(&sim), model), &as_string).await);
        let bills = five_children(Stage::aligned().await.team(model), &as_string).await;
        let block = sum(&five_children(Stage::aligned().await.team(model), &as_block).await);
        let string = sum(&bills);
        println!("string system {model}: {:.3} of a block, {:.3} of direct", string / block, string / direct);
        // Where a string stays one, the end of the tools is marked all the same: siblings read these.
        let readers = bills[1..=5].iter().filter(|usage| usage.cache_read > 0).count();
        assert!(readers >= 4, "{readers} of five children read anything");
        assert!(string < direct, "{string} {direct}");
        if model == STRING_IS_BLOCK {
            assert!(string <= RATIO_MAX * block, "{string} {block}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_said_to_be_saved_of_one_fan_out_is_what_was_saved() {
    const CHILDREN: usize = 4;
    let (stage, sim) = (Stage::aligned().await, simulator().await);
    let mut bills = Vec::new();
    for mut team in [Team::new(Line::direct(&sim), MODEL), stage.team(MODEL)] {
        let system = json!([{"type": "text", "text": prose("You are a worker and report once.", 9_000)}]);
        let children = team.fan_out(0, CHILDREN, |_, told| child(MODEL, system.clone(), told)).await;
        let later: Vec<Value> = children.into_iter().map(|(body, answer)| continued(body, &answer)).collect();
        team.send(&later).await;
        assert_eq!(team.bills.len(), 9);
        bills.push(team.units());
    }
    stage.forkpoint.recorded(9).await;
    // The dollars of what weighs one token of input; answers cost the same.
    let kinds = ["uncached", "cache_read", "cache_write_5m"].map(|kind| format!("kind=\"{kind}\""));
    let billed = |kind: &String| stage.forkpoint.metric("forkpoint_cost_usd_total", &[kind]);
    let unit = kinds.iter().map(billed).sum::<f64>() / bills[1];
    let (direct, aligned) = (bills[0] * unit, bills[1] * unit);
    let shown = stage.forkpoint.metric("forkpoint_saved_usd", &[]);
    println!(
        "nine requests: {:.3}, saved {:.4} of {direct:.4}, shown {shown:.4}",
        aligned / direct,
        direct - aligned
    );
    assert!((shown - (direct - aligned)).abs() <= SHOWN_MAX * direct, "{shown} {direct} {aligned}");
    assert!(aligned < direct);
}
