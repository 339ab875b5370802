//! Answers that no saving is counted for.

use serde_json::json;

use crate::harness::{Forkpoint, Upstream, call};

const UNCOMPARED: &str = "forkpoint_uncompared_total";
const COUNTERFACTUAL: &str = "forkpoint_counterfactual_usd_total";
const MODEL: &str = "claude-opus-4-8";
/// A question that is answered without usage.
const FREE: &str = "Answer for free.";

#[tokio::test]
async fn an_answer_without_usage_is_counted_and_costs_nothing() {
    let upstream = Upstream::answering_with(|request| {
        let mut message = json!({"id": "msg_1", "type": "message", "role": "assistant", "model": MODEL,
            "content": [{"type": "text", "text": "Hello."}], "stop_reason": "end_turn",
            "usage": {"input_tokens": 900, "output_tokens": 3}});
        if memchr::memmem::find(&request.body, FREE.as_bytes()).is_some() {
            message.as_object_mut().unwrap().shift_remove("usage");
        }
        let (body, kind) = (message.to_string(), "content-type: application/json");
        format!("HTTP/1.1 200 OK\r\n{kind}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
    })
    .await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let ask = |words: &str| {
        let messages = json!([{"role": "user", "content": words}]);
        call(json!({"model": MODEL, "max_tokens": 9, "messages": messages}).to_string().as_bytes())
    };
    let mut client = forkpoint.client().await;
    assert_eq!(client.ask(&ask(FREE)).await.status(), 200);
    forkpoint.recorded(1).await;
    assert_eq!(forkpoint.metric(UNCOMPARED, &["no_usage"]), 1.0);
    assert_eq!(forkpoint.metric(COUNTERFACTUAL, &[]), 0.0);
    assert_eq!(client.ask(&ask("Hello?")).await.status(), 200);
    forkpoint.recorded(2).await;
    assert_eq!(forkpoint.metric(UNCOMPARED, &[]), 1.0);
    assert!(forkpoint.metric(COUNTERFACTUAL, &["sent"]) > 0.0);
}
