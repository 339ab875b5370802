use super::*;
use crate::engine::fork::answers::{foreign_calls, is_empty, tool_errors};

fn turn(blocks: Value) -> Answer {
    let body = json!({"id": "m", "stop_reason": "end_turn", "content": blocks});
    Answer::from_json(body.to_string().as_bytes(), LIMITS)
}

#[test]
fn an_answer_is_empty_if_nobody_hears_anything() {
    let thinking = json!({"type": "thinking", "thinking": "so much", "signature": "c2ln"});
    for silent in [
        json!([]),
        json!([thinking]),
        json!([thinking, text("")]),
        json!([text(" \n")]),
        json!([{"type": "redacted_thinking", "data": "x"}]),
    ] {
        assert!(is_empty(&turn(silent.clone())), "{silent}");
    }
    for says in [
        json!([thinking, text("No.")]),
        json!([call("t", "Read", json!({}))]),
        json!([{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}]),
        json!([{"type": "of a later version"}]),
    ] {
        assert!(!is_empty(&turn(says.clone())), "{says}");
    }
}

#[test]
fn what_broke_off_or_pauses_is_not_empty() {
    let whole = turn(json!([]));
    for wholeness in [Wholeness::Unfinished, Wholeness::Unfaithful, Wholeness::TooLarge] {
        assert!(!is_empty(&Answer { wholeness, ..whole.clone() }));
    }
    assert!(!is_empty(&Answer { stop_reason: Some("pause_turn".into()), ..whole }));
}

#[test]
fn a_call_is_foreign_if_the_child_did_not_bring_the_tool() {
    let foreign = |child: &Value, block: Value| {
        let answer = turn(json!([block]));
        foreign_calls(&read(&child.to_string()), &answer.blocks) == 1
    };
    let child = child_body("a");
    assert!(!foreign(&child, call("t", "Read", json!({}))));
    assert!(foreign(&child, call("t", "Agent", json!({}))));
    assert!(foreign(&child, call("t", "read", json!({}))));
    assert!(!foreign(&child, text("Agent")));
    assert!(!foreign(&child, json!({"type": "server_tool_use", "id": "s", "name": "Agent", "input": {}})));
    let of_set =
        json!({"type": "tool_use", "id": "t", "name": "click", "toolset_name": "browser", "input": {}});
    assert!(!foreign(&child, of_set));
    let mut bare = child;
    bare.as_object_mut().unwrap().remove("tools");
    assert!(!foreign(&bare, call("t", "Agent", json!({}))));
}

#[test]
fn only_new_results_that_failed_are_counted() {
    let result = |id: &str, failed: Value| json!({"type": "tool_result", "tool_use_id": id, "content": "\"is_error\":true", "is_error": failed});
    let calls = |ids: &[&str]| json!({"role": "assistant", "content": ids.iter().map(|id| call(id, "Read", json!({}))).collect::<Vec<_>>()});
    let mut child = child_body("a");
    assert_eq!(tool_errors(&read(&child.to_string())), 0);
    let messages = child["messages"].as_array_mut().unwrap();
    messages.push(calls(&["1", "2"]));
    messages.push(json!({"role": "user", "content": [result("1", json!(true)), result("2", json!(true))]}));
    messages.push(calls(&["3", "4", "5"]));
    let last =
        [result("3", json!(true)), result("4", json!(false)), result("5", json!(null)), text("is_error")];
    messages.push(json!({"role": "user", "content": last}));
    assert_eq!(tool_errors(&read(&child.to_string())), 1);
}
