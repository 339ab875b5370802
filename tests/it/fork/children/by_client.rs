//! Forks that a client has made itself: their layout is kept, breakpoints and the gate are added.

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{BOUND, FREE, Stage, forwarded, parent, plan, usage, without_markers};
use crate::harness::until;
use crate::workload::{Letter, prose};

/// The parent's history and its turn, a result for each call, and what one child is told.
fn forked(parent: &Value, turn: &[Value], told: &str) -> Value {
    // Together more than is worth waiting for.
    let started = prose("Started.", 3_000);
    let calls = turn.iter().filter(|block| block["type"] == "tool_use");
    let results =
        calls.map(|call| json!({"type": "tool_result", "tool_use_id": call["id"], "content": started}));
    let content: Vec<_> = results.chain([json!({"type": "text", "text": told})]).collect();
    let mut body = parent.clone();
    body["messages"]
        .as_array_mut()
        .unwrap()
        .extend([json!({"role": "assistant", "content": turn}), json!({"role": "user", "content": content})]);
    body
}

/// Returns true if this block of the last message is marked.
fn is_marked(body: &Value, block: usize) -> bool {
    let last = body["messages"].as_array().unwrap().last().unwrap();
    last["content"][block].get("cache_control").is_some()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clients_own_forks_are_marked_where_they_part_and_read_what_they_share() {
    for model in [FREE, BOUND] {
        let stage = Stage::new(|_| ()).await;
        let lead = parent(model, "[[sim:fan_out n=4 tool=Agent field=prompt thinking=30 | text words=20]]");
        let fan_out = stage.send(&lead).await;
        until("the fan-out to be sealed", || stage.count("forks_total", &["outcome=\"sealed\""]) == 1).await;
        let turn = fan_out.blocks().unwrap();
        let bodies: Vec<_> =
            super::directives(&fan_out).iter().map(|told| forked(&lead, &turn, told)).collect();
        let letters: Vec<_> = bodies.iter().map(Letter::alone).collect();
        let line = stage.line();
        let children = join_all(letters.iter().map(|letter| line.send(letter))).await;
        for (child, sent) in children.iter().zip(&bodies) {
            assert_eq!((child.status, plan(child)), (200, ["child", "aligned", "client_fork"]), "{model}");
            let body = forwarded(child);
            assert_eq!(without_markers(body.clone()), *sent, "{model}: its layout is kept");
            assert!(is_marked(&body, 4), "{model}: its own tail");
        }
        // The last result is what all of them have. Who comes after the first has written it finds it from its tail.
        let marked = children.iter().filter(|child| is_marked(&forwarded(child), 3));
        assert!(marked.count() >= 1, "{model}");
        let whole = |child| {
            let usage = usage(child);
            usage.cache_read + usage.cache_write() + usage.uncached
        };
        let mut read: Vec<_> = children.iter().map(|child| usage(child).cache_read).collect();
        read.sort_unstable();
        let least: u64 = children.iter().map(whole).min().unwrap();
        // The first reads its parent's entry, the others also what the first has written up to where they part.
        let parents = usage(&fan_out);
        assert_eq!(read[0], parents.cache_read + parents.cache_write(), "{model}");
        assert!(read[1] * 100 >= least * 99, "{model}: {read:?} of {least}");
        assert!(read[1] > read[0] && read[1] == read[3], "{model}: one writes, the others read: {read:?}");
    }
}
