//! Series of conversations that align once made dearer than they are sent directly. What may be lost is stated: a
//! tenant's first conversations with a tool set, a quarter of one write each.

use std::time::Duration;

use serde_json::{Value, json};

use crate::workload::{Bill, Letter, Line, prose, resend_every, tool};

use super::{Stage, simulator};

/// The conversations with a tool set that may be marked before any of them is known to go on.
const BETS: f64 = 8.0;
/// Beyond the bets.
const RATIO_MAX: f64 = 1.02;
const MODEL: &str = "claude-sonnet-4-6";

/// The same letters on both lines.
struct Series {
    direct: Bill,
    aligned: Bill,
}

impl Series {
    async fn of(letters: Vec<Letter>) -> Series {
        Series::every(Duration::from_secs(20), letters).await
    }

    async fn every(pause: Duration, letters: Vec<Letter>) -> Series {
        let (stage, sim) = (Stage::aligned().await, simulator(|_| ()).await);
        let direct = resend_every(pause, letters.clone(), &Line::direct(&sim)).await;
        let aligned = resend_every(pause, letters, &stage.line()).await;
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
    let letters = (0..60).map(|n| Letter::alone(&first(n, tools(), system.clone(), 8_000)));
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

/// More than a hundred begin while an entry lives, so that most are still open when the next comes.
const OFTEN: Duration = Duration::from_millis(2_500);
/// An entry is gone when the next comes.
const SELDOM: Duration = Duration::from_secs(400);

#[tokio::test]
async fn one_shots_with_tools_are_bets_for_eight_of_them_at_any_rate() {
    for (pause, count) in [(OFTEN, 300), (Duration::from_secs(20), 100), (SELDOM, 60)] {
        let letters = (0..count).map(|n| Letter::alone(&first(n, tools(), persona(n, 1_500), 500)));
        let series = Series::every(pause, letters.collect()).await;
        series.check(series.bets());
    }
}

#[tokio::test]
async fn one_shots_with_tools_read_the_prompt_that_they_share() {
    let letters = (0..100).map(|n| Letter::alone(&first(n, tools(), persona(0, 3_000), 100)));
    let series = Series::every(OFTEN, letters.collect()).await;
    series.check(0.0);
    assert!(series.aligned.units < 0.3 * series.direct.units, "{:?} {:?}", series.aligned, series.direct);
}

/// Each system prompt comes twice and no more: the second would write what nobody reads.
#[tokio::test]
async fn prompts_that_come_twice_are_not_written_for_ever() {
    let letters = (0..100).map(|n| Letter::alone(&first(n, json!([]), persona(n / 2, 3_000), 100)));
    let series = Series::every(OFTEN, letters.collect()).await;
    series.check(series.bets());
}

/// Tools that nobody brings twice are new with every conversation, and still no bet for ever.
#[tokio::test]
async fn one_shots_with_tools_of_their_own_are_bets_for_eight_of_them() {
    let own = |n: usize| json!([tool(&format!("tool_{n}")), tool("read")]);
    let letters = (0..80).map(|n| Letter::alone(&first(n, own(n), persona(0, 3_000), 100)));
    let series = Series::every(OFTEN, letters.collect()).await;
    series.check(series.bets());
}
