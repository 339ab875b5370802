//! Habits learned from other conversations decide about one that begins, and about no other.

use serde_json::{Value, json};

use crate::workload::{Letter, prose, tool};

use super::Stage;

/// The conversations with a tool set that are marked before any of them has gone on.
const BETS: usize = 8;

fn question(number: usize) -> Value {
    // In another order each time, as clients send them that keep their tools in a map.
    let mut tools = vec![tool("read"), tool("write"), tool("search")];
    tools.rotate_left(number % 3);
    json!({
        "model": "claude-sonnet-4-6",
        "max_tokens": 64,
        "tools": tools,
        "system": prose("You sort things.", 2_000),
        "messages": [{"role": "user", "content": [{"type": "text", "text": format!("Question {number}.")}]}],
    })
}

#[tokio::test]
async fn one_that_was_answered_is_marked_where_others_seldom_continue() {
    let stage = Stage::aligned().await;
    let line = stage.line();
    for number in 0..BETS {
        let first = line.send(&Letter::alone(&question(number))).await;
        assert_eq!((first.status, first.said("reason")), (200, Some("align")));
    }
    let first = line.send(&Letter::alone(&question(20))).await;
    assert_eq!(first.said("reason"), Some("seldom_continues"), "the order of tools does not count");
    let mut known = question(20);
    let mut unknown = question(21);
    for body in [&mut known, &mut unknown] {
        body["messages"].as_array_mut().unwrap().extend([
            json!({"role": "assistant", "content": [{"type": "text", "text": "Sorted."}]}),
            json!({"role": "user", "content": [{"type": "text", "text": "And now?"}]}),
        ]);
        let later = line.send(&Letter::alone(body)).await;
        assert_eq!((later.status, later.said("reason")), (200, Some("align")));
        assert!(String::from_utf8_lossy(&later.forwarded).contains("cache_control"));
    }
}
