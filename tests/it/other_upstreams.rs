//! Upstreams of other shapes: behind a path, and the paths of Bedrock and Vertex.

use crate::harness::samples::{EVENTS, MESSAGE, answer, message};
use crate::harness::{Forkpoint, Upstream, call, post};

const BODY: &[u8] =
    br#"{ "anthropic_version":"x", "messages":[{"role":"user","content":"hi"}] , "max_tokens":9}"#;

#[tokio::test]
async fn a_base_url_may_have_a_path() {
    for path in ["/gateway/eu", "/gateway/eu/"] {
        let mut upstream = Upstream::answering(&message()).await;
        let forkpoint = Forkpoint::before(&format!("{}{path}", upstream.url())).await;
        let reply = forkpoint.client().await.ask(&call(crate::harness::samples::PROMPT)).await;
        assert_eq!(reply.status(), 200);
        assert_eq!(upstream.next().await.head.line(), "POST /gateway/eu/v1/messages HTTP/1.1");
        forkpoint.recorded(1).await;
        assert_eq!(forkpoint.metric("forkpoint_tokens_total", &["output"]), 5.0);
    }
}

#[tokio::test]
async fn a_messages_call_under_any_prefix_is_planned_as_one() {
    for path in ["/messages", "/anthropic/v1/messages", "/team/a/v1/messages"] {
        let mut upstream = Upstream::answering(&message()).await;
        let forkpoint = Forkpoint::before(&upstream.url()).await;
        let request = post(path, "x-api-key: key\r\n", crate::harness::samples::PROMPT);
        let reply = forkpoint.client().await.ask(&request).await;
        assert_eq!(
            (reply.status(), reply.head.get("x-forkpoint-plan").as_deref()),
            (200, Some("aligned")),
            "{path}"
        );
        assert_eq!(upstream.next().await.head.line(), format!("POST {path} HTTP/1.1"));
        forkpoint.recorded(1).await;
        assert_eq!(forkpoint.metric("forkpoint_tokens_total", &["output"]), 5.0);
    }
}

const VERTEX: &str = "/v1/projects/p/locations/l/publishers/anthropic/models/claude-x@20250101";

#[tokio::test]
async fn signed_calls_of_bedrock_and_vertex_are_forwarded_untouched_and_their_bills_read() {
    let events: String = EVENTS.concat();
    let stream = answer("content-type: text/event-stream\r\n", events.as_bytes());
    for (target, endpoint, model, answered) in [
        (
            "/model/anthropic.claude-x-v1%3A0/invoke".to_owned(),
            "bedrock",
            "anthropic.claude-x-v1:0",
            message(),
        ),
        (format!("{VERTEX}:rawPredict"), "vertex", "claude-x@20250101", message()),
        (format!("{VERTEX}:streamRawPredict"), "vertex", "claude-x@20250101", stream),
    ] {
        let mut upstream = Upstream::answering(&answered).await;
        let forkpoint = Forkpoint::before(&upstream.url()).await;
        let headers = "authorization: AWS4-HMAC-SHA256 Credential=x\r\nx-amz-content-sha256: 00\r\n";
        let reply = forkpoint.client().await.ask(&post(&target, headers, BODY)).await;
        let reason = if endpoint == "vertex" { "signed" } else { "endpoint" };
        assert_eq!((reply.status(), reply.reason().as_deref()), (200, Some(reason)));
        assert!(reply.body == MESSAGE.as_bytes() || reply.body == events.as_bytes());
        let request = upstream.next().await;
        assert_eq!(request.head.line(), format!("POST {target} HTTP/1.1"));
        assert_eq!(request.body, BODY, "a signed body is not touched");
        assert_eq!(request.head.get("x-amz-content-sha256").as_deref(), Some("00"));
        forkpoint.recorded(1).await;
        let model = format!("model=\"{model}\"");
        for (kind, count) in [("uncached", 1.0), ("cache_read", 2.0), ("output", 5.0)] {
            assert_eq!(forkpoint.metric("forkpoint_tokens_total", &[&model, kind]), count, "{target}");
        }
        let counted = forkpoint.metric("forkpoint_endpoint_requests_total", &[&format!("\"{endpoint}\"")]);
        assert_eq!(counted, 1.0);
    }
}

#[tokio::test]
async fn a_binary_stream_of_bedrock_passes_and_is_counted() {
    let frames: Vec<u8> = (0..=255).cycle().take(10_000).collect();
    let answered = answer("content-type: application/vnd.amazon.eventstream\r\n", &frames);
    let upstream = Upstream::answering(&answered).await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let target = "/model/anthropic.claude-x/invoke-with-response-stream";
    let reply =
        forkpoint.client().await.ask(&post(target, "authorization: AWS4-HMAC-SHA256 x\r\n", BODY)).await;
    assert_eq!((reply.status(), reply.body), (200, frames));
    forkpoint.recorded(1).await;
    assert_eq!(forkpoint.metric("forkpoint_endpoint_requests_total", &["bedrock"]), 1.0);
    assert_eq!(forkpoint.metric("forkpoint_requests_total", &["model=\"anthropic.claude-x\""]), 1.0);
}

#[tokio::test]
async fn the_account_in_a_resource_name_is_no_label() {
    let upstream = Upstream::answering(&message()).await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let target = "/model/arn%3Aaws%3Abedrock%3Aus-east-1%3A123456789012%3Ainference-profile%2Fx/invoke";
    assert_eq!(forkpoint.client().await.ask(&post(target, "", BODY)).await.status(), 200);
    forkpoint.recorded(1).await;
    assert!(!forkpoint.metrics.render().unwrap().contains("123456789012"));
    assert_eq!(forkpoint.metric("forkpoint_tokens_total", &["model=\"none\"", "output"]), 5.0);
}

/// The warnings, beside the lines of failed requests, of a forkpoint before `upstream` whose client calls `path` so often.
async fn warnings(prefix: &str, path: &str, answers: &[&[u8]]) -> Vec<String> {
    let log = crate::harness::Log::start();
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&format!("{}{prefix}", upstream.url())).await;
    let mut client = forkpoint.client().await;
    let mut server = None;
    for answer in answers {
        client.send(&post(path, "x-api-key: key\r\n", crate::harness::samples::PROMPT)).await;
        let mut peer = match server.take() {
            Some(peer) => peer,
            None => upstream.accept().await,
        };
        peer.request().await;
        peer.send(answer).await;
        client.reply().await;
        server = Some(peer);
    }
    forkpoint.recorded(answers.len() as u32).await;
    let lines = log.text();
    let warned = lines.lines().filter(|line| line.contains("\"WARN\""));
    warned.filter(|line| !line.contains("forkpoint::request")).map(str::to_owned).collect()
}

#[tokio::test]
async fn a_base_url_that_cannot_work_is_said_once() {
    let lost: &[u8] = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
    let said = r#"{"type":"error","error":{"type":"not_found_error","message":"model: claude-none"}}"#;
    let head = "HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length";
    let of_api = format!("{head}: {}\r\n\r\n{said}", said.len());
    let of_api = of_api.as_bytes();
    let said = r#"{"type":"error","error":{"type":"t","details":{"error_code":"thread_not_found"}}}"#;
    let of_thread = format!("{head}: {}\r\n\r\n{said}", said.len());
    let of_thread = of_thread.as_bytes();
    let found = message();
    for (prefix, path, answers, says) in [
        ("", "/v1/v1/messages", &[lost, lost, lost, lost][..], Some("client's base URL")),
        ("/v1", "/v1/messages", &[lost, lost], Some("out of upstream.url")),
        ("", "/messages", &[lost, lost, lost, lost], Some("every Messages call got a 404")),
        ("", "/v1/messages", &[lost, lost], None),
        ("", "/v1/messages", &[&found, lost, lost, lost, lost], None),
        ("", "/v1/v1/messages", &[&found], None),
        // A model that does not exist says nothing about the URL, but where the path is not the API's.
        ("", "/v1/messages", &[of_api, of_api, of_api, of_api], None),
        ("", "/messages", &[of_api, of_api, of_api], Some("every Messages call got a 404")),
        // Who has lost a conversation was found, whatever the path.
        ("", "/messages", &[of_thread, of_thread, of_thread], None),
        ("/v1", "/v1/messages", &[of_thread], None),
        ("", "/v1/v1/messages", &[of_api, of_api], Some("client's base URL")),
        // That one was found says nothing about a path that is wrong.
        ("", "/v1/v1/messages", &[&found, lost, lost], Some("client's base URL")),
    ] {
        let said = warnings(prefix, path, answers).await;
        assert_eq!(said.len(), usize::from(says.is_some()), "{prefix}{path}: {said:?}");
        assert!(said.iter().all(|line| line.contains(says.unwrap())), "{said:?}");
    }
}
