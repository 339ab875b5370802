//! When forkpoint itself answers: the API's shape, a reason, and no secret.

use forkpoint::proxy::panic_injection::Step;

use crate::harness::samples::{MESSAGE, PROMPT, message};
use crate::harness::{Forkpoint, Upstream, call, get};

#[tokio::test]
async fn an_unreachable_upstream_is_a_502_that_names_it() {
    let forkpoint = Forkpoint::before("http://127.0.0.1:1/base").await;
    let mut client = forkpoint.client().await;
    let reply = client.ask(&call(PROMPT)).await;
    reply.is_refusal(502, "upstream_unreachable");
    let (kind, message) = reply.error();
    assert_eq!(kind, "api_error");
    assert!(message.contains("http://127.0.0.1:1") && message.contains("refused"), "{message}");
    assert!(!message.contains("/base"), "{message}");
    assert_eq!(reply.head.get("x-forkpoint-plan").as_deref(), Some("aligned"));
    // An error of ours costs no connection.
    client.ask(&get("/v1/models")).await.is_refusal(502, "upstream_unreachable");
    forkpoint.recorded(2).await;
    assert_eq!(forkpoint.metric("forkpoint_refused_total", &["upstream_unreachable"]), 2.0);
}

#[tokio::test]
async fn credentials_in_the_upstreams_address_are_never_shown() {
    let forkpoint = Forkpoint::before("http://user:hunter2@127.0.0.1:1").await;
    let reply = forkpoint.client().await.ask(&get("/")).await;
    reply.is_refusal(502, "upstream_unreachable");
    let (_, message) = reply.error();
    assert!(message.contains("http://127.0.0.1:1") && !message.contains("hunter2"), "{message}");
}

#[tokio::test]
async fn the_reason_is_there_even_when_our_headers_are_off() {
    let forkpoint =
        Forkpoint::with("http://127.0.0.1:1", |config| config.server.response_headers = false).await;
    let reply = forkpoint.client().await.ask(&get("/")).await;
    reply.is_refusal(502, "upstream_unreachable");
    assert_eq!(reply.head.get("x-forkpoint-plan"), None);
}

#[tokio::test]
async fn an_error_about_a_head_request_has_no_body() {
    let forkpoint = Forkpoint::before("http://127.0.0.1:1").await;
    let mut client = forkpoint.client().await;
    client.send(b"HEAD / HTTP/1.1\r\nhost: h\r\n\r\n").await;
    assert_eq!(client.head().await.status(), 502);
    client.ask(&get("/")).await.is_refusal(502, "upstream_unreachable");
}

#[tokio::test]
async fn a_bug_of_ours_costs_nobody_an_answer() {
    for step in [Step::Read, Step::Align] {
        let mut upstream = Upstream::answering(&message()).await;
        let forkpoint = Forkpoint::before(&upstream.url()).await;
        forkpoint.proxy.panics().inject(step);
        let reply = forkpoint.client().await.ask(&call(PROMPT)).await;
        assert_eq!((reply.status(), reply.reason().as_deref()), (200, Some("internal")), "{step:?}");
        assert_eq!(upstream.next().await.body, PROMPT, "as it came");
        forkpoint.recorded(1).await;
        let counted = forkpoint.metric("forkpoint_passthrough_total", &["reason=\"internal\""]);
        assert_eq!(counted, 1.0, "{step:?}");
    }
}

#[tokio::test]
async fn a_bug_of_ours_after_the_answer_is_counted_and_costs_nobody_a_connection() {
    let times = 2;
    for step in [Step::Observe, Step::Settle] {
        let upstream = Upstream::answering(&message()).await;
        let forkpoint = Forkpoint::before(&upstream.url()).await;
        forkpoint.proxy.panics().inject(step);
        let mut client = forkpoint.client().await;
        for _ in 0..times {
            let reply = client.ask(&call(PROMPT)).await;
            assert_eq!((reply.status(), &*reply.body), (200, MESSAGE.as_bytes()), "{step:?}");
        }
        forkpoint.recorded(times).await;
        let label = format!("step=\"{}\"", step.as_str());
        assert!(forkpoint.metric("forkpoint_panics_total", &[&label]) >= f64::from(times), "{step:?}");
    }
}
