//! The layout of a forked child is known by its structure, and by nothing that can be quoted.

use super::*;

fn forked(messages: &[Value]) -> bool {
    is_forked_by_shape(&read(&request(&["x"], messages)))
}

fn placeholder(id: &str) -> Value {
    result(id, json!([text(PLACEHOLDER)]))
}

#[test]
fn placeholders_and_then_the_tag_are_a_forked_child() {
    let tag = text(&format!("{CHILD_TAG}\nYou are the fork."));
    let layout = user(json!([placeholder("a"), placeholder("b"), tag, text("directive")]));
    assert!(forked(std::slice::from_ref(&layout)));
    assert!(forked(&[
        user(json!("go")),
        assistant(&[text("x")]),
        layout,
        assistant(&[text("y")]),
        user(json!("z"))
    ]));
    assert!(forked(&[user(json!([result("a", json!(PLACEHOLDER)), tag]))]));
    let mut marked = placeholder("a");
    marked["cache_control"] = json!({"type": "ephemeral"});
    assert!(forked(&[user(json!([marked, tag]))]));
}

#[test]
fn quoting_the_tag_or_the_placeholder_does_not_count() {
    let tag = text(&format!("{CHILD_TAG}\nYou are the fork."));
    let quoted = text(&format!("What does {CHILD_TAG} mean?"));
    for content in [
        json!([tag]),
        json!([placeholder("a"), quoted]),
        json!([placeholder("a"), text("first"), tag]),
        json!([placeholder("a")]),
        json!([result("a", json!([text("done")])), tag]),
        json!([result("a", json!([text(PLACEHOLDER), text("more")])), tag]),
        json!([text(PLACEHOLDER), tag]),
        json!(format!("{PLACEHOLDER}{CHILD_TAG}")),
    ] {
        assert!(!forked(&[user(content.clone())]), "{content}");
    }
    assert!(!forked(&[json!({"role": "assistant", "content": [placeholder("a"), tag]})]));
}

#[test]
fn each_result_is_brought_once_and_not_more_of_them_than_anybody_has() {
    let results = |ids: Vec<String>| {
        let brought: Vec<Value> = ids.iter().map(|id| result(id, json!("done"))).collect();
        let body = request(&["x"], &[user(json!("go")), assistant(&[text("x")]), user(json!(brought))]);
        new_results(&read(&body)).map(|id| id.into_owned()).collect::<Vec<_>>()
    };
    let repeated = (0..3_000).map(|number| format!("call_{}", number % 3)).collect();
    assert_eq!(results(repeated), ["call_0", "call_1", "call_2"]);
    assert_eq!(results((0..3_000).map(|number| format!("call_{number}")).collect()).len(), 1_024);
}
