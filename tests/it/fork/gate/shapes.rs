//! Children of every shape are gated on the prefix that they share with each other, whatever their parent has.

use forkpoint::sim::RequestRecord;
use serde_json::{Value, json};

use crate::harness::until;
use crate::workload::{Exchange, Letter, prose, tool};

use crate::fork::fan_out::{Stage, child, directives, is_whole, parent, together, usage, writers};

/// The children of one fan-out, each as `shape` makes it of its directive, sent together.
async fn siblings(stage: &Stage, instruction: &str, shape: impl Fn(&str) -> Value) -> Vec<Exchange> {
    let line = stage.line();
    let before = crate::fork::fan_out::forks(&stage.forkpoint, "sealed");
    let fan_out = line.send(&Letter::alone(&parent(instruction))).await;
    until("the fan-out to be sealed", || crate::fork::fan_out::forks(&stage.forkpoint, "sealed") > before)
        .await;
    let letters = directives(&fan_out).iter().map(|told| Letter::alone(&shape(told))).collect();
    let children = together(&line, letters).await;
    for exchange in &children {
        assert!(is_whole(exchange), "{} {:?}", exchange.status, exchange.answer);
        assert_eq!(exchange.said("role"), Some("child"));
    }
    children
}

const FAN_OUT: &str = "[[sim:fan_out n=6 words=20 | text words=10 first_ms=300]]";

#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_markers_gets_them_and_the_gate() {
    let stage = Stage::new(|_| ()).await;
    let unmarked = |told: &str| {
        let mut body = child(told);
        body["system"][0].as_object_mut().unwrap().shift_remove("cache_control");
        body
    };
    assert_eq!(writers(&siblings(&stage, FAN_OUT, unmarked).await), 1);
    assert!(stage.holds("released") > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn children_with_tools_that_their_parent_lacks_share_their_own_prefix() {
    let stage = Stage::new(|_| ()).await;
    let disjoint = |told: &str| {
        let mut body = child(told);
        body["tools"] = json!([tool("look_up"), tool("note_down")]);
        body
    };
    assert_eq!(writers(&siblings(&stage, FAN_OUT, disjoint).await), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_system_prompt_of_one_string_can_be_shared_up_to_the_tools_before_it() {
    let stage = Stage::new(|_| ()).await;
    let string = |told: &str| {
        let mut body = child(told);
        body["system"] = json!(prose("You are a worker.", 2_000));
        body["tools"] = (0..12).map(|n| tool(&format!("tool_{n}"))).collect();
        body
    };
    let children = siblings(&stage, FAN_OUT, string).await;
    assert_eq!(writers(&children), 1);
    let first: RequestRecord = stage.sim.requests().pop().unwrap();
    let body: Value = serde_json::from_slice(&first.body).unwrap();
    assert!(body["system"].is_string(), "a string stays one");
}

#[tokio::test(flavor = "multi_thread")]
async fn children_that_do_not_stream_wait_for_the_whole_answer_of_the_first() {
    let stage = Stage::new(|config| config.gate.json_hold = crate::harness::PATIENCE).await;
    let whole = |told: &str| {
        let mut body = child(told);
        body["stream"] = json!(false);
        body
    };
    let children = siblings(&stage, FAN_OUT, whole).await;
    assert_eq!(writers(&children), 1);
    assert!(stage.holds("released") > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_that_is_warm_or_small_makes_nobody_wait() {
    let stage = Stage::new(|_| ()).await;
    let first = siblings(&stage, FAN_OUT, child).await;
    let before = (stage.holds("led"), stage.holds("released"));
    let again = siblings(&stage, "[[sim:fan_out n=7 words=20 | text words=10]]", child).await;
    assert_eq!((writers(&first), writers(&again)), (1, 0), "the second fan-out finds it warm");
    assert_eq!((stage.holds("led"), stage.holds("released")), before);
    let small = |told: &str| {
        let mut body = child(told);
        body["system"] = json!([{"type": "text", "text": "Be brief."}]);
        body["tools"] = json!([crate::fork::fan_out::agent_tool()]);
        body
    };
    siblings(&stage, "[[sim:fan_out n=8 words=20 | text words=10]]", small).await;
    assert_eq!((stage.holds("led"), stage.holds("released")), before);
}

/// Work that is done in one turn: nothing says that such conversations go on, and still they come in herds.
#[tokio::test(flavor = "multi_thread")]
async fn children_of_one_turn_share_their_prefix_however_many_came_before() {
    let stage = Stage::new(|_| ()).await;
    let unmarked = |told: &str| {
        let mut body = child(told);
        body["system"][0].as_object_mut().unwrap().shift_remove("cache_control");
        body
    };
    siblings(&stage, "[[sim:fan_out n=24 words=20 | text words=10]]", unmarked).await;
    stage.sim.clock().advance(std::time::Duration::from_secs(900));
    stage.forkpoint.proxy.clock().skip(900_000);
    let children = siblings(&stage, FAN_OUT, unmarked).await;
    let read: Vec<u64> = children.iter().map(|exchange| usage(exchange).cache_read).collect();
    assert_eq!(writers(&children), 1, "{read:?}");
}
