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
