//! Refused continues: those that a client is asked for its whole conversation for, and those that are its own fault.

use forkpoint::config::Mode;
use serde_json::{Value, json};

use super::super::narrow;
use super::{
    BETA, BOUND, Client, FORKED, FREE, MISMATCH, OTHER_BETA, Repeats, Stage, child, error_of, fan_out,
    fan_out_to, forwarded, parent, plan, unnamed, worker,
};
use crate::workload::{Letter, Line, prose};

/// Thinks, calls a tool, and so on.
const THINKING: &str = "tools turns=6 calls=1 tool=search thinking=20";

#[tokio::test]
async fn a_child_whose_thread_is_refused_goes_on_after_one_replay_whatever_it_thought() {
    for (model, reason) in [(FREE, "refused"), (BOUND, "lost_prefix")] {
        for repeats in [Repeats::Nothing, Repeats::All] {
            let name = format!("{model} {repeats:?}");
            let stage = Stage::new(|_| ()).await;
            let (_, told) = fan_out_to(&stage, model, repeats, THINKING).await;
            let mut client = Client::new(child(model, &told[0]), repeats).with_betas(OTHER_BETA);
            for _ in 0..2 {
                assert_eq!(plan(&client.turn(&stage).await), FORKED, "{name}");
            }
            let replay = client.turn_refused(&stage.line(), MISMATCH).await;
            assert_eq!((client.replays, plan(&replay)), (1, ["child", "passthrough", reason]), "{name}");
            assert_eq!(
                forwarded(&replay)["system"],
                client.body["system"],
                "{name}: its own words from now on"
            );
            for _ in 0..2 {
                let next = client.turn(&stage).await;
                assert_eq!(plan(&next), ["child", "passthrough", reason], "{name}");
            }
            assert_eq!(client.replays, 1, "{name}");
            assert_eq!(stage.count("fallbacks_total", &["reason=\"thread\""]), 1, "{name}");
            // Its siblings have not been refused.
            let mut sibling = Client::new(child(model, &told[1]), repeats).with_betas(OTHER_BETA);
            assert_eq!(plan(&sibling.turn(&stage).await), FORKED, "{name}");
            assert_eq!(plan(&sibling.turn(&stage).await), FORKED, "{name}");
        }
    }
}

#[tokio::test]
async fn a_bound_child_of_a_proxy_that_forgot_it_goes_on_after_one_replay() {
    for (repeats, replays) in [(Repeats::Nothing, 0), (Repeats::All, 1)] {
        let mut stage = Stage::new(|_| ()).await;
        let (_, told) = fan_out_to(&stage, BOUND, repeats, THINKING).await;
        let mut client = Client::new(child(BOUND, &told[0]), repeats).with_betas(OTHER_BETA);
        for _ in 0..2 {
            assert_eq!(plan(&client.turn(&stage).await), FORKED, "{repeats:?}");
        }
        stage.restart().await;
        for turn in 3..=5 {
            let exchange = client.turn(&stage).await;
            assert_eq!(client.replays, replays, "{repeats:?} turn {turn}");
            // Whole requests and those after them say what is to be done with thinking of another prefix.
            let dropped =
                forwarded(&exchange)["thinking"]["block_binding"]["prefix_mismatch_behavior"].clone();
            assert_eq!(dropped == json!("drop_block"), replays == 1, "{repeats:?} turn {turn}");
        }
        assert_eq!(
            stage.count("fallbacks_total", &["reason=\"lost_prefix\""]),
            replays as u64,
            "{repeats:?}"
        );
    }
}

/// Messages that the API refuses, whoever sends them: results of no call, nothing, and more than the window takes.
fn wrong_messages() -> [Value; 3] {
    let said = |block: Value| json!([{"role": "user", "content": [block]}]);
    [
        said(json!({"type": "tool_result", "tool_use_id": "toolu_nobody", "content": "found"})),
        said(json!({"type": "text", "text": ""})),
        said(json!({"type": "text", "text": prose("Here is more.", 60_000)})),
    ]
}

fn with_messages(mut body: Value, messages: &Value) -> Value {
    body["messages"] = messages.clone();
    body
}

/// The answers to continues that are wrong themselves: status, and the error.
async fn wrong_continues(client: &mut Client, line: &Line<'_>) -> Vec<(u16, Value)> {
    client.turn_through(line).await;
    client.says("Go on.");
    let mut refused = Vec::new();
    for messages in wrong_messages() {
        let before = line.sim.requests().len();
        let exchange = line.send(&client.letter(&with_messages(client.next(), &messages))).await;
        assert_eq!(line.sim.requests().len(), before + 1, "it is sent once");
        refused.push((exchange.status, error_of(&exchange)));
    }
    // The answer is still held, and is gone on from.
    client.turn_through(line).await;
    assert_eq!(client.replays, 0);
    refused
}

#[tokio::test]
async fn what_is_wrong_in_a_continue_itself_is_refused_as_it_is_directly() {
    const WINDOW: u64 = 100_000;
    let stage = Stage::before(narrow(WINDOW), |_| ()).await;
    for repeats in [Repeats::Nothing, Repeats::All] {
        let new = || Client::new(parent(FREE, "[[sim:text words=9]]"), repeats);
        let direct = wrong_continues(&mut new(), &Line::direct(&stage.sim)).await;
        assert!(direct.iter().all(|(status, _)| *status == 400), "{direct:?}");
        for mode in Mode::ALL {
            let stage = Stage::before(narrow(WINDOW), |config| config.server.mode = mode).await;
            let through = wrong_continues(&mut new(), &stage.line()).await;
            assert_eq!(unnamed(&through), unnamed(&direct), "{mode:?} {repeats:?}");
            assert_eq!(stage.count("fallbacks_total", &[]), 0, "{mode:?} {repeats:?}");
            // One that opens alike is none the worse for it.
            let expected = if mode == Mode::Observe { "passthrough" } else { "aligned" };
            assert_eq!(plan(&new().turn(&stage).await)[1], expected, "{mode:?} {repeats:?}");
        }
    }
}

#[tokio::test]
async fn what_is_wrong_in_a_continue_of_a_forked_child_is_its_own_fault_too() {
    let stage = Stage::new(|_| ()).await;
    let (_, told) = fan_out(&stage, FREE, Repeats::All).await;
    let mut client = Client::new(child(FREE, &told[0]), Repeats::All);
    assert_eq!(plan(&client.turn(&stage).await), FORKED);
    for messages in &wrong_messages()[..2] {
        let exchange = client.post(&stage, &with_messages(client.next(), messages)).await;
        assert_eq!(exchange.status, 400, "{messages}");
    }
    assert_eq!(plan(&client.turn(&stage).await), FORKED);
    assert_eq!(client.replays, 0);
}

#[tokio::test]
async fn a_forked_child_that_outgrows_the_window_on_its_prefix_goes_on_without_it() {
    // It fits alone: instructions and news, but not beside its parent's history.
    let stage = Stage::before(narrow(105_000), |config| config.fork.policy.max_context_share = 1.0).await;
    let (_, told) = fan_out_to(&stage, FREE, Repeats::Nothing, "text words=9").await;
    let mut client = Client::new(child(FREE, &told[0]), Repeats::Nothing);
    assert_eq!(plan(&client.turn(&stage).await), FORKED);
    client.says(&prose("Here is more.", 45_000));
    let replay = client.turn(&stage).await;
    assert_eq!((client.replays, plan(&replay)), (1, ["child", "passthrough", "refused"]));
    client.says("Go on.");
    client.turn(&stage).await;
    assert_eq!(client.replays, 1);
}

#[tokio::test]
async fn a_mismatch_says_nothing_about_conversations_that_open_alike() {
    let stage = Stage::new(|_| ()).await;
    let mut client = Client::new(worker(FREE), Repeats::Nothing);
    client.turn(&stage).await;
    let replay = client.turn_refused(&stage.line(), MISMATCH).await;
    assert_eq!((client.replays, plan(&replay)), (1, ["plain", "passthrough", "refused"]));
    let mut other = Client::new(worker(FREE), Repeats::Nothing);
    assert_eq!(plan(&other.turn(&stage).await)[1], "aligned");
    // Once in the life of a conversation.
    let next = client.letter(&client.next()).with("x-sim-refusal", MISMATCH);
    assert_eq!(stage.line().send(&next).await.status, 400);
}

#[tokio::test]
async fn a_whole_request_beside_a_held_conversation_leaves_it_known() {
    for thread in [Value::Null, json!({"type": "create"})] {
        let stage = Stage::new(|_| ()).await;
        let mut client = Client::new(worker(FREE), Repeats::Nothing);
        client.turn(&stage).await;
        // A question to what was said so far: `thread.fork()`, a native fork, a suggestion.
        let mut aside = client.body.clone();
        aside["thread"] = thread.clone();
        let results = aside["messages"].as_array_mut().unwrap().last_mut().unwrap();
        let asked = json!({"type": "text", "text": "What have you found so far? [[sim:text words=9]]"});
        results["content"].as_array_mut().unwrap().push(asked);
        let exchange = stage.line().send(&Letter::alone(&aside).with("anthropic-beta", BETA)).await;
        assert_eq!((exchange.status, plan(&exchange)[1]), (200, "aligned"), "{thread}");
        for _ in 0..2 {
            assert_eq!(plan(&client.turn(&stage).await)[1], "aligned", "{thread}");
        }
        assert_eq!(client.replays, 0, "{thread}");
    }
}
