//! Clients that `align` cannot help: it must notice, and not let them pay for entries that nobody reads.

use forkpoint::sim::SimRules;
use forkpoint::sim::settings::KeyOrder;
use serde_json::{Value, json};

use crate::workload::{Behaviour, Bill, Client, Letter, Line, Shape, play, prose, resend, tool};

use super::{Stage, as_sent, simulator};

const TURNS: usize = 30;

/// So many prompts may be written in vain, a quarter of their price each, before that is noticed.
const WRITES_IN_VAIN: f64 = 2.0;

fn assert_noticed(what: &str, direct: &Bill, aligned: &Bill, prompt: f64) {
    let premium = aligned.units - direct.units;
    assert_eq!((direct.refused, aligned.refused), (0, 0), "{what}");
    assert!(premium <= 0.25 * prompt * WRITES_IN_VAIN, "{what}: {premium:.0} more than {:.0}", direct.units);
}

/// A conversation with tools and no markers; `speak` makes the first message and the system prompt of a turn.
async fn conversation(what: &str, speak: impl Fn(usize) -> (String, String)) {
    let mut later: Vec<Value> = Vec::new();
    let letters: Vec<Letter> = (0..TURNS)
        .map(|turn| {
            let (system, first) = speak(turn);
            let mut messages = vec![json!({"role": "user", "content": [{"type": "text", "text": first}]})];
            messages.extend(later.iter().cloned());
            let answer = prose(&format!("Answer {turn}."), 50);
            let question = prose(&format!("Question {turn}."), 50);
            later.push(json!({"role": "assistant", "content": [{"type": "text", "text": answer}]}));
            later.push(json!({"role": "user", "content": [{"type": "text", "text": question}]}));
            Letter::alone(&json!({"model": "claude-sonnet-4-6", "max_tokens": 64,
                "tools": [tool("search"), tool("read")], "system": [{"type": "text", "text": system}],
                "messages": messages}))
        })
        .collect();
    let (stage, sim) = (Stage::aligned().await, simulator(|_| ()).await);
    let aligned = resend(letters.clone(), &stage.line()).await;
    let direct = resend(letters, &Line::direct(&sim)).await;
    let largest = direct.last().unwrap().usage.unwrap().prompt() as f64;
    assert_noticed(what, &Bill::of(&direct), &Bill::of(&aligned), largest);
}

#[tokio::test]
async fn a_clock_in_the_system_prompt() {
    let clock = |turn| (format!("{} It is 10:{turn:02}.", prose("You help.", 2_000)), prose("Begin.", 100));
    conversation("a clock in the prompt", clock).await;
}

#[tokio::test]
async fn a_clock_in_the_first_message() {
    let clock = |turn| (prose("You help.", 2_000), format!("It is 10:{turn:02}. {}", prose("Begin.", 1_000)));
    conversation("a clock in the first message", clock).await;
}

async fn scrambled(what: &str, shape: Shape, key_order: KeyOrder) {
    let rules = |rules: &mut SimRules| rules.key_order = key_order;
    let (stage, sim) = (Stage::aligned_under(rules).await, simulator(rules).await);
    let mut client = Client::new(shape, Behaviour::Scrambling, 3);
    let aligned = play(&mut client, &stage.line(), TURNS).await;
    let direct = resend(as_sent(&aligned), &Line::direct(&sim)).await;
    let largest = direct.last().unwrap().usage.unwrap().prompt() as f64;
    assert_noticed(what, &Bill::of(&direct), &Bill::of(&aligned), largest);
}

#[tokio::test]
async fn blocks_with_keys_in_another_order_where_order_counts() {
    scrambled("scrambled blocks", Shape::Tools, KeyOrder::Everywhere).await;
}

#[tokio::test]
async fn long_turns_whose_escapes_change() {
    scrambled("changed escapes", Shape::LongTurns, KeyOrder::InsideValues).await;
}

#[tokio::test]
async fn calls_with_tools_that_never_go_on() {
    const CALLS: usize = 240;
    let letter = |number: usize| {
        let system = prose(&format!("Case {number}: you sort."), 1_500);
        let content = prose(&format!("Sort {number}."), 300);
        Letter::alone(&json!({"model": "claude-sonnet-4-6", "max_tokens": 64, "tools": [tool("sort")],
            "system": system, "messages": [{"role": "user", "content": content}]}))
    };
    let letters: Vec<Letter> = (0..CALLS).map(letter).collect();
    let (stage, sim) = (Stage::aligned().await, simulator(|_| ()).await);
    let aligned = Bill::of(&resend(letters.clone(), &stage.line()).await);
    let direct = Bill::of(&resend(letters, &Line::direct(&sim)).await);
    // It takes some calls to learn that none goes on.
    assert!(aligned.units <= 1.05 * direct.units, "{:.0} for {:.0}", aligned.units, direct.units);
}
