//! `observe`: fan-outs are recognised and reported, what gating would have saved is said, and no byte changes.

use crate::harness::until;
use crate::workload::{Exchange, Letter};

use crate::fork::fan_out::{Stage, child, directives, parent, together, usage, writers};

const FAN_OUT: &str = "[[sim:fan_out n=8 alike=true words=20 | text words=10 first_ms=500]]";

fn observed(letter: Letter) -> Letter {
    letter.with("x-forkpoint-mode", "observe")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_gating_would_have_saved_agrees_with_the_bill() {
    let stage = Stage::new(|_| ()).await;
    let line = stage.line();
    let fan_out = line.send(&observed(Letter::alone(&parent(FAN_OUT)))).await;
    until("the seal", || crate::fork::fan_out::forks(&stage.forkpoint, "sealed") == 1).await;
    let letters = directives(&fan_out).iter().map(|told| observed(Letter::alone(&child(told)))).collect();
    let children = together(&line, letters).await;
    for exchange in &children {
        assert_eq!((exchange.said("role"), exchange.said("plan")), (Some("child"), Some("passthrough")));
        assert_eq!((exchange.said("reason"), exchange.said("held-ms")), (Some("observe"), Some("0")));
        assert!(exchange.said("fork").is_some() && exchange.is_untouched());
    }
    stage.forkpoint.recorded(9).await;
    let metric = |name: &str, label: &str| stage.forkpoint.metric(name, &[label]);
    assert_eq!(metric("forkpoint_children_total", "reason=\"observe\""), 8.0);
    assert_eq!(metric("forkpoint_requests_total", "role=\"child\""), 8.0);
    assert_eq!(metric("forkpoint_gate_holds_total", ""), 0.0);
    // All but one wrote what they could have read: the prefix up to the marker behind the system prompt.
    let doubles = writers(&children) - 1;
    assert!(doubles > 0);
    let missed = metric("forkpoint_gate_tokens_total", "kind=\"missed\"");
    let billed = usage(&children[0]).cache_write() as f64 * doubles as f64;
    assert!((missed / billed - 1.0).abs() < 0.1, "missed {missed}, billed twice {billed}");
    assert_eq!(metric("forkpoint_gate_tokens_total", "kind=\"saved\""), 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_after_the_other_nothing_is_missed() {
    let stage = Stage::new(|_| ()).await;
    let line = stage.line();
    let fan_out = line.send(&observed(Letter::alone(&parent("[[sim:fan_out n=4 | text words=10]]")))).await;
    until("the seal", || crate::fork::fan_out::forks(&stage.forkpoint, "sealed") == 1).await;
    let mut children: Vec<Exchange> = Vec::new();
    for told in directives(&fan_out) {
        children.push(line.send(&observed(Letter::alone(&child(&told)))).await);
    }
    assert_eq!(writers(&children), 1);
    stage.forkpoint.recorded(5).await;
    assert_eq!(stage.forkpoint.metric("forkpoint_gate_tokens_total", &["missed"]), 0.0);
}
