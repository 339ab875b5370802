//! Traffic that never comes back, or hardly: aligned it must not cost more than sent directly.

use serde_json::{Value, json};

use crate::workload::{Behaviour, Bill, Client, Letter, Line, Row, Shape, prose, resend, tool};

use super::{Stage, simulator};

/// Sends the same letters on both lines.
async fn bills(letters: Vec<Letter>) -> (Bill, Bill) {
    let (stage, sim) = (Stage::aligned().await, simulator(|_| ()).await);
    let aligned = resend(letters.clone(), &stage.line()).await;
    let direct = resend(letters, &Line::direct(&sim)).await;
    (Bill::of(&direct), Bill::of(&aligned))
}

async fn never_dearer(what: &str, letters: Vec<Letter>) -> (Bill, Bill) {
    let (direct, aligned) = bills(letters).await;
    assert_eq!((direct.refused, aligned.refused), (0, 0), "{what}");
    assert!(aligned.units <= direct.units, "{what}: {:.0} > {:.0}", aligned.units, direct.units);
    (direct, aligned)
}

fn one_shot(number: usize, system: Value, content: Value) -> Letter {
    let mut body = json!({"model": "claude-sonnet-4-6", "max_tokens": 64, "system": system,
        "messages": [{"role": "user", "content": content}]});
    body["metadata"] = json!({"user_id": format!("user-{}", number % 3)});
    Letter::alone(&body)
}

fn question(number: usize, tokens: usize) -> String {
    prose(&format!("Sort this, number {number}."), tokens)
}

#[tokio::test]
async fn single_requests_of_their_own() {
    let letters = (0..30).map(|number| {
        let system = json!(prose(&format!("You sort things, kind {number}."), 1_500));
        one_shot(number, system, json!(question(number, 600)))
    });
    let (direct, aligned) = never_dearer("one-shots", letters.collect()).await;
    assert_eq!(direct.units, aligned.units, "nothing of them is ever read");
}

#[tokio::test]
async fn single_requests_with_a_common_prompt_in_blocks() {
    let system = json!([{"type": "text", "text": prose("You sort things.", 3_000)}]);
    let blocks = |number| json!([{"type": "text", "text": question(number, 400)}]);
    let letters = (0..30).map(|number| one_shot(number, system.clone(), blocks(number)));
    let (direct, aligned) = never_dearer("common prompt, blocks", letters.collect()).await;
    assert!(aligned.units < 0.5 * direct.units, "the common prompt is read: {aligned:?} {direct:?}");
}

#[tokio::test]
async fn single_requests_with_a_common_prompt_as_a_string() {
    let system = json!(prose("You sort things.", 3_000));
    let letters = (0..30).map(|number| one_shot(number, system.clone(), json!(question(number, 400))));
    never_dearer("common prompt, string", letters.collect()).await;
    let blocks = |number| json!([{"type": "text", "text": question(number, 400)}]);
    let letters = (0..30).map(|number| one_shot(number, system.clone(), blocks(number)));
    never_dearer("common prompt, string before blocks", letters.collect()).await;
}

#[tokio::test]
async fn two_single_requests_with_a_common_prompt() {
    for count in [2, 3] {
        let system = json!([{"type": "text", "text": prose("You sort things.", 3_000)}]);
        let letters = (0..count).map(|number| one_shot(number, system.clone(), json!(question(number, 100))));
        let (direct, aligned) = bills(letters.collect()).await;
        // One write on suspicion is the price of ever reading; it is a quarter of one prompt.
        let suspicion = 0.25 * direct.units / f64::from(u16::try_from(count).unwrap());
        assert!(aligned.units <= direct.units + suspicion, "{count}: {aligned:?} {direct:?}");
    }
}

#[tokio::test]
async fn the_same_request_again_and_again() {
    let letter = one_shot(1, json!(prose("You sort things.", 1_500)), json!(question(1, 600)));
    never_dearer("retries", vec![letter; 10]).await;
}

#[tokio::test]
async fn short_conversations_with_tools() {
    for shape in Shape::ALL.into_iter().filter(|shape| *shape != Shape::Chat) {
        for behaviour in Behaviour::ALL {
            for turns in [2, 3] {
                short_conversation(shape, behaviour, turns).await;
            }
        }
    }
}

#[tokio::test]
async fn short_chats() {
    for behaviour in Behaviour::ALL {
        for turns in [1, 3] {
            short_conversation(Shape::Chat, behaviour, turns).await;
        }
    }
}

/// Nothing says at the second turn that there will be no third, so its prompt is written, once, in vain.
#[tokio::test]
async fn a_chat_that_ends_with_its_second_turn_costs_one_write_at_most() {
    let (direct, aligned) = conversation(Shape::Chat, Behaviour::Naive, 2).await;
    let last = direct.units - direct.readable as f64;
    assert!(aligned.units <= direct.units + 0.25 * last, "{aligned:?} {direct:?}");
}

async fn short_conversation(shape: Shape, behaviour: Behaviour, turns: usize) {
    let (direct, aligned) = conversation(shape, behaviour, turns).await;
    assert_eq!(aligned.refused, 0, "{shape:?} {behaviour:?}");
    if direct.refused == 0 {
        assert!(aligned.units <= direct.units, "{shape:?} {behaviour:?} {turns}: {aligned:?} {direct:?}");
    }
}

/// The bills of a conversation, direct and aligned.
async fn conversation(shape: Shape, behaviour: Behaviour, turns: usize) -> (Bill, Bill) {
    let (stage, sim) = (Stage::aligned().await, simulator(|_| ()).await);
    let client = Client::new(shape, behaviour, 3);
    let row = Row::of(String::new(), client, turns, &stage.line(), &Line::direct(&sim)).await;
    (row.direct, row.aligned)
}

#[tokio::test]
async fn prompts_below_the_minimum() {
    // 4,096 tokens on this model, never reached.
    let mut messages = Vec::new();
    let letters: Vec<Letter> = (0..12)
        .map(|number| {
            messages.push(json!({"role": "user", "content": question(number, 60)}));
            let body = json!({"model": "claude-haiku-4-5", "max_tokens": 64, "tools": [tool("search")],
                "messages": messages});
            messages.push(json!({"role": "assistant", "content": "Sorted."}));
            Letter::alone(&body)
        })
        .collect();
    let (direct, aligned) = never_dearer("below the minimum", letters).await;
    assert_eq!((direct.readable, aligned.read), (0, 0), "a weak test: the minimum was reached");
    assert_eq!(direct.units, aligned.units);
}

#[tokio::test]
async fn a_conversation_that_grows_past_the_minimum() {
    let mut messages = Vec::new();
    let letters: Vec<Letter> = (0..20)
        .map(|number| {
            messages
                .push(json!({"role": "user", "content": [{"type": "text", "text": question(number, 300)}]}));
            let body = json!({"model": "claude-haiku-4-5", "max_tokens": 64, "tools": [tool("search")],
                "messages": messages});
            messages.push(json!({"role": "assistant", "content": [{"type": "text", "text": "Sorted."}]}));
            Letter::alone(&body)
        })
        .collect();
    let (_, aligned) = never_dearer("past the minimum", letters).await;
    assert!(aligned.share() > 0.8, "{aligned:?}");
}
