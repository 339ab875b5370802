//! Many conversations at once: what broke the cache of each is said also after their bodies had to go.

use forkpoint::config::Config;
use serde_json::{Value, json};

use super::{ALIGN, Stage, marked, text, turn};
use crate::workload::prose;

const CONVERSATIONS: usize = 24;
const TURNS: usize = 4;

/// A turn of one of many conversations, with a system prompt of its own on each turn.
fn body(conversation: usize, number: usize) -> Value {
    let mut body = turn(number);
    body["system"] =
        json!([marked(text(prose(&format!("You are number {conversation}, on {number}."), 6_000)))]);
    body["messages"][0]["content"][0]["text"] = json!(prose(&format!("I am {conversation}."), 100));
    body
}

/// Room for the bodies of so many conversations.
fn room_for(conversations: usize) -> impl FnOnce(&mut Config) {
    move |config| {
        ALIGN(config);
        config.store.tenant_share = 1.0;
        config.store.recent_bytes = conversations * body(0, TURNS).to_string().len();
    }
}

/// Every turn of every conversation, in rotation. Returns the lines of those that continue one.
async fn later_turns(stage: &Stage) -> Vec<Value> {
    let mut lines = Vec::new();
    for number in 1..=TURNS {
        for conversation in 0..CONVERSATIONS {
            let (_, line) = stage.ask(&body(conversation, number)).await;
            lines.extend((number > 1).then_some(line));
        }
    }
    lines
}

/// The part of a team's 300 conversations that is played, in the same part of the default memory.
const PART: usize = 5;
const TEAM: usize = 300 / PART;
/// The content blocks of a conversation of this team.
const BLOCKS: usize = 100;

/// A turn of one of the conversations of a team: 121 KB, of which the system prompt is another one on each turn.
fn large_body(conversation: usize, number: usize) -> Value {
    let mut body = turn(number);
    let said = |place: usize| text(format!("{conversation}.{place} {}", "as was said before ".repeat(51)));
    let role = |place: usize| if place.is_multiple_of(2) { "user" } else { "assistant" };
    let mut messages: Vec<Value> = (0..BLOCKS + 2 * number - 1)
        .map(|place| json!({"role": role(place), "content": [said(place)]}))
        .collect();
    let last = &mut messages.last_mut().unwrap()["content"][0];
    *last = marked(last.clone());
    body["messages"] = json!(messages);
    let rules = format!("You are {conversation}, on turn {number}. {}", "Be brief. ".repeat(1_600));
    body["system"] = json!([marked(text(rules))]);
    body
}

#[tokio::test]
async fn every_break_of_a_team_has_its_cause_with_the_default_memory() {
    let stage = Stage::with(|config| {
        ALIGN(config);
        config.store.recent_bytes /= PART;
    })
    .await;
    let size = large_body(1, 1).to_string().len();
    assert!((118_000..124_000).contains(&size), "{size}");
    let mut named = 0;
    for number in 1..=TURNS {
        for conversation in 0..TEAM {
            let (_, line) = stage.ask(&large_body(conversation, number)).await;
            named += usize::from(number > 1 && line["break_cause"] == "system");
        }
    }
    assert_eq!(named, (TURNS - 1) * TEAM);
}

fn misses(stage: &Stage, reason: &str) -> usize {
    stage.forkpoint.metric("forkpoint_recall_misses_total", &[&format!("reason=\"{reason}\"")]) as usize
}

#[tokio::test]
async fn a_break_has_its_cause_after_the_body_had_to_go() {
    let stage = Stage::with(room_for(CONVERSATIONS / 2)).await;
    let lines = later_turns(&stage).await;
    assert_eq!(lines.len(), (TURNS - 1) * CONVERSATIONS);
    for line in &lines {
        assert_eq!(line["break_cause"], "system", "{line}");
        assert_eq!(
            (&line["break_layer"], &line["break_at"]),
            (&json!("system"), &json!("system[0]")),
            "{line}"
        );
        assert_eq!((&line["recall"], &line["drift"]), (&json!("faded"), &json!("drifted")), "{line}");
        assert_eq!(line.get("volatile"), None, "the words are gone: {line}");
    }
    assert_eq!((misses(&stage, "new"), misses(&stage, "faded")), (CONVERSATIONS, lines.len()));
    assert_eq!(stage.breaks(&["cause=\"system\""]), lines.len() as f64);
}

#[tokio::test]
async fn where_even_the_outline_had_to_go_it_is_said() {
    let stage = Stage::with(room_for(1)).await;
    let lines = later_turns(&stage).await;
    let forgotten = lines.iter().filter(|line| line["recall"] == "forgotten").count();
    assert!(forgotten > 0, "{:?}", lines.last());
    assert_eq!((misses(&stage, "forgotten"), misses(&stage, "new")), (forgotten, CONVERSATIONS));
    let notes = stage.log.text().lines().filter(|line| line.contains("store.recent_bytes")).count();
    assert_eq!(notes, 1, "it is said once");
}

/// Two that open with the same words and have yet to be answered could each be the one that goes on.
#[tokio::test]
async fn of_two_that_open_alike_nobody_is_told_what_the_other_lost() {
    let stage = Stage::with(room_for(1)).await;
    let alike = |conversation: usize, number: usize| {
        let mut body = body(conversation, number);
        body["messages"][0]["content"][0]["text"] = json!(prose("Good morning.", 100));
        body
    };
    for conversation in [1, 2] {
        stage.ask(&alike(conversation, 1)).await;
    }
    let (_, line) = stage.ask(&alike(1, 2)).await;
    assert_eq!((line.get("recall"), line.get("drift")), (None, None), "{line}");
    // A request that was only sent again is no other.
    for _ in 0..2 {
        stage.ask(&body(3, 1)).await;
    }
    let (_, line) = stage.ask(&body(3, 2)).await;
    assert_eq!((&line["recall"], &line["break_cause"]), (&json!("faded"), &json!("system")), "{line}");
}
