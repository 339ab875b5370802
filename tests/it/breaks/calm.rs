//! No false alarms: a client that does nothing wrong hears of no break.

use serde_json::{Value, json};

use super::{ALIGN, OBSERVE, Stage, read, text, turn, user};
use crate::harness::until;
use crate::workload::{Behaviour, Client, Letter, Shape, play, prose};

const TURNS: usize = 30;

#[tokio::test]
async fn thirty_turns_of_every_client() {
    for shape in Shape::ALL {
        for (configure, mode) in [(ALIGN, "align"), (OBSERVE, "observe")] {
            for behaviour in [Behaviour::Naive, Behaviour::WellBehaved] {
                let stage = Stage::with(configure).await;
                let exchanges = play(&mut Client::new(shape, behaviour, 3), &stage.line(), TURNS).await;
                assert_eq!(exchanges.len(), TURNS, "{shape:?} {behaviour:?}");
                stage.is_calm(TURNS, &format!("{shape:?} {behaviour:?} in {mode}")).await;
            }
        }
    }
}

#[tokio::test]
async fn a_client_that_spells_anew_is_repaired() {
    for shape in [Shape::Tools, Shape::Framework, Shape::LongTurns] {
        let stage = Stage::with(ALIGN).await;
        let exchanges = play(&mut Client::new(shape, Behaviour::Shuffling, 3), &stage.line(), TURNS).await;
        assert_eq!(exchanges.len(), TURNS, "{shape:?}");
        stage.is_calm(TURNS, &format!("{shape:?} shuffling")).await;
    }
}

/// Sends each body, and fails if one breaks or if so little is read that nothing could.
async fn calm(what: &str, bodies: &[Value]) {
    for (configure, mode) in [(ALIGN, "align"), (OBSERVE, "observe")] {
        for stream in [false, true] {
            let stage = Stage::with(configure).await;
            let (line, mut hits) = (stage.line(), 0);
            for body in bodies {
                let mut body = body.clone();
                body["stream"] = json!(stream);
                let (exchange, _) = stage.send_on(&line, &Letter::alone(&body)).await;
                hits += usize::from(read(&exchange) > 0);
                stage.pass(std::time::Duration::from_secs(20));
            }
            stage.is_calm(bodies.len(), &format!("{what} in {mode}, stream {stream}")).await;
            assert!(hits + 3 >= bodies.len(), "{what}: only {hits} of {} read anything", bodies.len());
        }
    }
}

#[tokio::test]
async fn markers_for_an_hour() {
    let hour = |number: usize| {
        let mut body = turn(number);
        body["system"][0]["cache_control"]["ttl"] = json!("1h");
        let last = body["messages"].as_array_mut().unwrap().last_mut().unwrap();
        last["content"][0]["cache_control"]["ttl"] = json!("1h");
        body
    };
    let stage = Stage::with(OBSERVE).await;
    let line = stage.line();
    for number in 1..=TURNS {
        stage.send_on(&line, &Letter::alone(&hour(number))).await;
        stage.pass(std::time::Duration::from_secs(20 * 60));
    }
    stage.is_calm(TURNS, "an hour").await;
    let mixed = |number: usize| {
        let mut body = turn(number);
        body["system"][0]["cache_control"]["ttl"] = json!("1h");
        body
    };
    calm("an hour and five minutes", &(1..=TURNS).map(mixed).collect::<Vec<_>>()).await;
}

#[tokio::test]
async fn the_same_body_again() {
    let bodies: Vec<_> = (1..=TURNS).flat_map(|number| [turn(number), turn(number)]).collect();
    calm("retries", &bodies).await;
}

#[tokio::test]
async fn a_client_that_leaves_and_tries_again() {
    for (configure, mode) in [(ALIGN, "align"), (OBSERVE, "observe")] {
        // It leaves before the answer begins, or within it.
        for pace in ["first_ms=60000", "pace_ms=60000"] {
            let stage = Stage::with(configure).await;
            stage.ask(&turn(1)).await;
            let mut body = turn(2);
            body["stream"] = json!(true);
            body["messages"][2]["content"][0]["text"] = json!(format!("[[sim:text {pace}]]"));
            let line = stage.line();
            let gives_up = async {
                let asked = || stage.sim.requests().get(1).is_some_and(|record| record.usage.is_some());
                until("the request is on its way", asked).await;
            };
            let letter = Letter::alone(&body);
            tokio::select! {
                _ = line.send(&letter) => panic!("it should take a minute"),
                () = gives_up => {}
            }
            until("the client is gone", || stage.log.count() == 2).await;
            body["messages"][2]["content"][0]["text"] = json!(format!("[[sim:text {pace}]] [[sim:text]]"));
            stage.ask(&body).await;
            stage.is_calm(3, &format!("{pace} in {mode}")).await;
        }
    }
}

#[tokio::test]
async fn an_earlier_turn_again() {
    let mut bodies: Vec<_> = (1..=10).map(turn).collect();
    bodies.extend([4, 5, 6, 2, 3, 10, 11].map(turn));
    calm("rewinds", &bodies).await;
}

/// A conversation that says something else from a turn on.
fn branch(number: usize, from: usize, name: &str) -> Value {
    let mut body = turn(number);
    let messages = body["messages"].as_array_mut().unwrap();
    for message in messages.iter_mut().skip(2 * from).step_by(2) {
        let said = message["content"][0]["text"].as_str().unwrap();
        message["content"][0]["text"] = json!(format!("{name}: {said}"));
    }
    body
}

#[tokio::test]
async fn branches_of_one_conversation() {
    let mut bodies: Vec<_> = (1..=6).map(turn).collect();
    for number in 4..=12 {
        bodies.push(branch(number, 3, "one"));
        bodies.push(branch(number, 3, "two"));
        bodies.push(turn(number + 3));
    }
    calm("branches", &bodies).await;
}

#[tokio::test]
async fn two_conversations_with_one_opening() {
    let answered = |number: usize, name: &str| {
        let mut body = branch(number, 1, name);
        if number > 1 {
            body["messages"][1]["content"] = json!([text(format!("The answer to {name}."))]);
        }
        body
    };
    let bodies: Vec<_> =
        (1..=TURNS / 2).flat_map(|number| [answered(number, "left"), answered(number, "right")]).collect();
    calm("interleaved", &bodies).await;
}

#[tokio::test]
async fn one_question_put_to_several_agents() {
    let agent = |number: usize, name: &str, size: usize| {
        let mut body = branch(number, 1, name);
        body["system"][0]["text"] = json!(prose(&format!("You are {name}."), size));
        body
    };
    let agents = [("small", 1_200), ("large", 3_000), ("middling", 2_000)];
    let bodies: Vec<_> =
        (1..=8).flat_map(|number| agents.map(|(name, size)| agent(number, name, size))).collect();
    calm("several agents", &bodies).await;
}

#[tokio::test]
async fn a_short_prompt_without_markers_of_its_own() {
    for configure in [ALIGN, OBSERVE] {
        let stage = Stage::with(configure).await;
        let (line, mut messages) = (stage.line(), vec![user(json!("hi"))]);
        for _ in 0..TURNS {
            let body = json!({"model": "claude-opus-4-8", "max_tokens": 9, "messages": messages,
                "tools": [{"name": "t", "input_schema": {"type": "object"}}]});
            stage.send_on(&line, &Letter::alone(&body)).await;
            messages.push(json!({"role": "assistant", "content": [text("yes")]}));
            messages.push(user(json!([text("go on")])));
        }
        stage.is_calm(TURNS, "short").await;
    }
}
