//! Bodies that are not what they should be: the upstream decides, byte for byte.

use crate::harness::samples::{OK, PROMPT};
use crate::harness::{Forkpoint, Upstream, call, post};

#[tokio::test]
async fn what_is_not_understood_is_forwarded_byte_for_byte_with_the_reason() {
    let nested = [vec![b'['; 100_000], vec![b']'; 100_000]].concat();
    let nested_member = [&b"{\"messages\":"[..], &nested, b"}"].concat();
    let mut upstream = Upstream::answering(OK).await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut client = forkpoint.client().await;
    let bodies: [(&[u8], &str); 14] = [
        (b"", "not_json"),
        (b"hello", "not_json"),
        (b"null", "not_json"),
        (b"[]", "not_json"),
        (&PROMPT[..PROMPT.len() - 1], "not_json"),
        (b"{\"model\":\"a", "not_json"),
        (b"{\"model\":\"a\"} trailing", "not_json"),
        (b"\xff\xfe{\x00}\x00", "not_json"),
        (&nested, "not_json"),
        (&nested_member, "not_json"),
        (b"{\"model\":\"a\",\"model\":\"b\",\"model\":7}", "one_shot"),
        (b"{\"model\":\"caf\xe9\"}", "one_shot"),
        (b" \r\n{ }\t", "one_shot"),
        (b"{\"model\":\"\\ud800\",\"metadata\":{\"user_id\":1e999}}", "one_shot"),
    ];
    for (body, reason) in bodies {
        let shown = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
        let reply = client.ask(&call(body)).await;
        assert_eq!((reply.status(), reply.reason().as_deref()), (200, Some(reason)), "{shown}");
        assert!(upstream.next().await.body == body, "{shown}");
    }
    forkpoint.recorded(bodies.len() as u32).await;
}

#[tokio::test]
async fn compressed_signed_and_anonymous_requests_are_left_alone_with_the_reason() {
    let mut upstream = Upstream::answering(OK).await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut client = forkpoint.client().await;
    for (headers, reason) in [
        ("x-api-key: k\r\ncontent-encoding: gzip\r\n", "content_encoding"),
        ("x-api-key: k\r\ncontent-encoding: rot13\r\n", "content_encoding"),
        ("x-api-key: k\r\nx-amz-content-sha256: 00\r\n", "signed"),
        ("authorization: AWS4-HMAC-SHA256 x\r\n", "signed"),
        ("", "no_credential"),
        ("authorization: Bearer t\r\nanthropic-beta: a,oauth-2025-04-20\r\n", "oauth"),
        ("authorization: Bearer sk-ant-oat01-x\r\n", "oauth"),
        ("authorization: Bearer t\r\nx-forkpoint-mode: observe\r\n", "observe"),
        ("authorization: Bearer t\r\nx-forkpoint-mode: fork\r\n", "one_shot"),
    ] {
        let reply = client.ask(&post("/v1/messages?beta=true", headers, PROMPT)).await;
        assert_eq!((reply.status(), reply.reason().as_deref()), (200, Some(reason)), "{headers}");
        assert_eq!(upstream.next().await.body, PROMPT);
    }
}

#[tokio::test]
async fn an_answer_that_is_not_what_it_says_is_relayed_all_the_same() {
    let bodies: [&[u8]; 5] =
        [b"", b"{", b"\xff\x00", b"data: {\"type\":\n\n", b"{\"usage\":{\"output_tokens\":-1}}"];
    for kind in ["application/json", "text/event-stream", "text/html"] {
        for coding in ["identity", "gzip", "br", "zstd", "rot13", "gzip, br"] {
            for body in bodies {
                let headers = format!("content-type: {kind}\r\ncontent-encoding: {coding}\r\n");
                let upstream = Upstream::answering(&crate::harness::samples::answer(&headers, body)).await;
                let forkpoint = Forkpoint::before(&upstream.url()).await;
                let reply = forkpoint.client().await.ask(&call(PROMPT)).await;
                assert_eq!((reply.status(), &reply.body[..]), (200, body), "{kind} {coding}");
                forkpoint.recorded(1).await;
            }
        }
    }
}

#[tokio::test]
async fn a_body_shorter_than_its_declared_length_never_becomes_a_request() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut client = forkpoint.client().await;
    client.send(b"POST /v1/messages HTTP/1.1\r\nhost: h\r\ncontent-length: 99\r\n\r\n{\"model\":1}").await;
    client.finish().await;
    client.reply().await.is_refusal(400, "client_body");
    client.gone().await;
    forkpoint.recorded(1).await;
    forkpoint.still_works(&upstream).await;
}

#[tokio::test]
async fn what_follows_a_body_of_its_declared_length_is_the_next_request() {
    let mut upstream = Upstream::answering(OK).await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut client = forkpoint.client().await;
    // The length lies: it is too short for the body, so the rest has to stand as a request of its own.
    client
        .send(b"POST /v1/messages HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\n{}{\"more\":1}\r\n\r\n")
        .await;
    assert_eq!(client.reply().await.status(), 200);
    assert_eq!(upstream.next().await.body, b"{}");
    let reply = client.reply().await;
    assert_eq!(reply.status(), 400);
    client.gone().await;
    forkpoint.recorded(1).await;
}
