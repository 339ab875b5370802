//! What the ledger says of itself.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use serde_json::{Value, json};

use crate::harness::{Forkpoint, Upstream, call};
use crate::workload::prose;

const MODEL: &str = "claude-opus-4-8";
const ERROR: &str = "forkpoint_ledger_error_ratio";

fn marked(words: &str) -> Value {
    json!([{"type": "text", "text": words, "cache_control": {"type": "ephemeral"}}])
}

#[tokio::test]
async fn a_read_that_was_foreseen_is_an_error_where_the_upstream_caches_nothing() {
    const TOKENS: u64 = 5_000;
    let has_written = AtomicBool::new(false);
    let upstream = Upstream::answering_with(move |_| {
        let (uncached, written) = if has_written.swap(true, Relaxed) { (TOKENS, 0) } else { (0, TOKENS) };
        let usage = json!({"input_tokens": uncached, "cache_creation_input_tokens": written,
            "cache_read_input_tokens": 0, "output_tokens": 3});
        let message = json!({"id": "msg_1", "type": "message", "role": "assistant", "model": MODEL,
            "content": [{"type": "text", "text": "Hello."}], "stop_reason": "end_turn", "usage": usage});
        let (body, kind) = (message.to_string(), "content-type: application/json");
        format!("HTTP/1.1 200 OK\r\n{kind}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
    })
    .await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut client = forkpoint.client().await;
    let words = prose("What is in there?", TOKENS as usize);
    let body =
        json!({"model": MODEL, "max_tokens": 9, "messages": [{"role": "user", "content": marked(&words)}]});
    let error = |forkpoint: &Forkpoint| forkpoint.metric(ERROR, &[]);
    client.ask(&call(body.to_string().as_bytes())).await;
    forkpoint.recorded(1).await;
    assert_eq!(error(&forkpoint), 0.0, "nothing was foreseen, and nothing read");
    client.ask(&call(body.to_string().as_bytes())).await;
    forkpoint.recorded(2).await;
    // Foreseen at a tenth of a token's price, billed at the whole of it, after a bill of a write that was foreseen.
    let expected = 0.9 / (1.25 + 1.0);
    assert!((error(&forkpoint) - expected).abs() < 0.02, "{}", error(&forkpoint));
}
