//! Series of conversations that align once made dearer than they are sent directly. What may be lost is stated: a
//! tenant's first conversations with a tool set, a quarter of one write each.

use serde_json::{Value, json};

use crate::workload::{Bill, Letter, Line, prose, resend, tool};

use super::{Stage, simulator};

/// The conversations with a tool set that may be marked before any of them is known to go on.
const BETS: f64 = 8.0;
/// Beyond the bets.
const RATIO_MAX: f64 = 1.02;
const MODEL: &str = "claude-sonnet-4-6";

/// The same letters on both lines, twenty seconds apart.
struct Series {
    direct: Bill,
    aligned: Bill,
}

impl Series {
    async fn of(letters: Vec<Letter>) -> Series {
        let (stage, sim) = (Stage::aligned().await, simulator(|_| ()).await);
        let direct = resend(letters.clone(), &Line::direct(&sim)).await;
        let aligned = resend(letters, &stage.line()).await;
        Series { direct: Bill::of(&direct), aligned: Bill::of(&aligned) }
    }

    /// Checks that nothing but bets on prompts of so many tokens was lost.
    #[track_caller]
    fn check(&self, bets: f64) {
        let Series { direct, aligned } = self;
        let ratio = aligned.units / direct.units;
        println!("{:.0} / {:.0} = {ratio:.3}", aligned.units, direct.units);
        assert_eq!((direct.refused, aligned.refused), (0, 0));
        assert!(aligned.units <= RATIO_MAX * direct.units + bets, "{ratio:.3}: {aligned:?} {direct:?}");
    }

    /// A quarter of one write for each of the first conversations.
    fn bets(&self) -> f64 {
        0.25 * BETS * self.direct.units / self.direct.requests as f64
    }
}

fn tools() -> Value {
    ["read", "write", "search", "list"].map(tool).into()
}

/// The first request of a conversation.
fn first(number: usize, tools: Value, system: Value, tokens: usize) -> Value {
    let question = json!([{"type": "text", "text": prose(&format!("Question {number}."), tokens)}]);
    json!({"model": MODEL, "max_tokens": 64, "tools": tools, "system": system,
        "messages": [{"role": "user", "content": question}]})
}

fn persona(number: usize, tokens: usize) -> Value {
    json!([{"type": "text", "text": prose(&format!("You are agent {number}."), tokens)}])
}

fn hour() -> Value {
    json!({"type": "ephemeral", "ttl": "1h"})
}

#[tokio::test]
async fn an_added_tail_does_not_take_the_clients_hour() {
    let mut system = json!([{"type": "text", "text": prose("You sort things.", 1_500)}]);
    system[0]["cache_control"] = hour();
    let letters = (0..BETS as usize).map(|n| Letter::alone(&first(n, tools(), system.clone(), 8_000)));
    let series = Series::of(letters.collect()).await;
    series.check(series.bets());
}

#[tokio::test]
async fn a_marker_on_the_last_tool_stays_at_the_end_of_the_tools() {
    let tools: Vec<Value> = (0..12).map(|n| tool(&format!("tool_{n}"))).collect();
    let mark = json!({"type": "ephemeral"});
    let mut letters = vec![Letter::alone(&first(0, json!(tools), persona(0, 100), 100))];
    let mut others = tools;
    others.reverse();
    others.last_mut().unwrap()["cache_control"] = mark.clone();
    for number in 1..10 {
        let mut body = first(number, json!(others), persona(number, 100), 100);
        let said = |words: &str| json!([{"type": "text", "text": words, "cache_control": mark}]);
        body["messages"] = json!([
            {"role": "user", "content": said(&prose(&format!("Question {number}."), 60))},
            {"role": "assistant", "content": said("Sorted.")},
            {"role": "user", "content": said("And now?")},
        ]);
        letters.push(Letter::alone(&body));
    }
    let series = Series::of(letters).await;
    series.check(series.direct.units / series.direct.requests as f64);
}
