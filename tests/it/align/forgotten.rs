//! Conversations whose last body had to go.

use serde_json::json;

use crate::harness::Forkpoint;
use crate::workload::{Behaviour, Client, Letter, Shape, play};

use super::{Stage, mode, simulator};

const TURNS: usize = 6;
const RECENT_BYTES: usize = 512 << 10;

/// A client that spells everything anew on every turn, on a model that refuses thinking behind another spelling.
#[tokio::test]
async fn bound_thinking_keeps_its_spelling_when_others_needed_the_room() {
    let sim = simulator(|_| ()).await;
    let small = |config: &mut forkpoint::config::Config| {
        config.server.mode = mode("align");
        (config.store.recent_bytes, config.store.tenant_share) = (RECENT_BYTES, 1.0);
    };
    let stage = Stage { forkpoint: Forkpoint::with(&sim.url(), small).await, sim };
    let line = stage.line();
    let mut client = Client::new(Shape::Media, Behaviour::Shuffling, 7);
    let recalled = |outcome: &str| {
        let labels = ["op=\"recall\"", &format!("outcome=\"{outcome}\"")];
        stage.forkpoint.metric("forkpoint_store_ops_total", &labels) as usize
    };
    for turn in 0..TURNS {
        let exchange = play(&mut client, &line, 1).await.remove(0);
        assert_eq!((exchange.status, exchange.said("plan")), (200, Some("aligned")), "turn {turn}");
        assert_eq!(recalled("hit"), 0, "turn {turn}: its last body is gone");
        // As large as all that may be kept.
        let words = "x".repeat(RECENT_BYTES - (32 << 10));
        let other = json!({"model": "claude-sonnet-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": words}]});
        assert_eq!(line.send(&Letter::alone(&other)).await.status, 200);
        stage.forkpoint.recorded(2 * (turn as u32 + 1)).await;
    }
    assert_eq!(stage.forkpoint.metric("forkpoint_fallbacks_total", &[]), 0.0);
    assert!(stage.forkpoint.metric("forkpoint_store_bytes", &[]) < 2.0 * RECENT_BYTES as f64);
}
