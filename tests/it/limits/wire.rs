//! Requests and answers that are unusual and allowed.

use super::SHORT;
use crate::harness::http2::{Http2, request};
use crate::harness::samples::OK;
use crate::harness::{Forkpoint, Upstream, call, get, until, within};

#[tokio::test]
async fn the_path_of_the_upstream_is_not_left() {
    let mut upstream = Upstream::answering(OK).await;
    let forkpoint = Forkpoint::before(&format!("{}/team-a", upstream.url())).await;
    for target in [
        "/../team-b/v1/messages",
        "/v1/../../team-b/v1/messages",
        "/%2e%2E/team-b",
        "/.%2e/team-b",
        "/..%2fteam-b",
        "/..\\team-b",
        "/..%5Cteam-b",
        "/x%2f..%2f../team-b",
        "//../team-b",
        "/./../team-b",
        "/..;a=b/team-b",
        "/..",
    ] {
        forkpoint.client().await.ask(&get(target)).await.is_refusal(400, "target");
    }
    let mut client = Http2::connect(&forkpoint).await;
    let (head, _) = client.ask(request("GET", "/../team-b").body(()).unwrap(), b"").await;
    assert_eq!(head.status.as_u16(), 400);
    assert!(upstream.so_far().is_empty());
    for target in ["/v1/../v1/messages", "/a..b/c", "/...", "/v1/x?y=/../../z", "/%252e%252e/x", "/.."] {
        let deep = format!("/v1{target}");
        assert_eq!(forkpoint.client().await.ask(&get(&deep)).await.status(), 200, "{deep}");
        assert_eq!(upstream.next().await.head.line(), format!("GET /team-a{deep} HTTP/1.1"));
    }
}

#[tokio::test]
async fn dots_pass_where_the_upstream_has_no_path_to_leave() {
    let mut upstream = Upstream::answering(OK).await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    assert_eq!(forkpoint.client().await.ask(&get("/../x")).await.status(), 200);
    assert_eq!(upstream.next().await.head.line(), "GET /../x HTTP/1.1");
}

#[tokio::test]
async fn a_chunked_body_passes_with_every_method() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    for method in ["GET", "HEAD", "DELETE", "POST", "OPTIONS"] {
        let mut client = forkpoint.client().await;
        let head = format!("{method} /x HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n");
        client.send(head.as_bytes()).await;
        client.send_chunk(b"abc").await;
        client.send(b"0\r\n\r\n").await;
        let (mut server, request) = upstream.asked().await;
        assert_eq!((request.head.line(), &request.body[..]), (format!("{method} /x HTTP/1.1"), &b"abc"[..]));
        server.send(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n").await;
        assert_eq!(client.head().await.status(), 204);
    }
    // Without a body none is made up.
    let mut client = forkpoint.client().await;
    client.send(&get("/bodiless")).await;
    let (mut server, request) = upstream.asked().await;
    assert_eq!(request.head.get("transfer-encoding"), None);
    server.send(OK).await;
    assert_eq!(client.reply().await.status(), 200);
}

#[tokio::test]
async fn a_client_that_closes_its_side_gets_its_answer() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let old = b"GET /old HTTP/1.0\r\n\r\n".to_vec();
    for (request, interim) in [(call(b"{}"), 1), (get("/x"), 1), (old, 0)] {
        let mut client = forkpoint.client().await;
        client.send(&request).await;
        client.finish().await;
        let (mut server, _) = upstream.asked().await;
        // Longer than it takes to see that a client has left.
        tokio::time::sleep(SHORT).await;
        server.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
        server.send_chunk(b"one").await;
        tokio::time::sleep(SHORT).await;
        server.send_chunk(b"two").await;
        server.send(b"0\r\n\r\n").await;
        let (answer, _) = client.rest().await;
        let answer = String::from_utf8(answer).unwrap();
        assert_eq!(answer.matches("HTTP/1.1 100 Continue\r\n\r\n").count(), interim, "{answer}");
        assert!(
            answer.contains(" 200 OK\r\n") && answer.contains("one") && answer.contains("two"),
            "{answer}"
        );
    }
    forkpoint.recorded(3).await;
    assert_eq!(forkpoint.metric("forkpoint_requests_total", &["status=\"200\""]), 3.0);
}

#[tokio::test]
async fn a_client_that_closes_its_side_within_its_body_is_one_that_has_left() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let sized = "content-length: 100\r\n\r\n{\"half\":";
    let chunked = "transfer-encoding: chunked\r\n\r\n8\r\n{\"half\":\r\n";
    for (round, body) in [sized, chunked].into_iter().enumerate() {
        // One body is collected, the other streams through.
        for (asked, target) in ["/v1/messages", "/v1/files"].into_iter().enumerate() {
            let mut client = forkpoint.client().await;
            let head = format!("POST {target} HTTP/1.1\r\nhost: h\r\nx-api-key: k\r\n{body}");
            client.send(head.as_bytes()).await;
            if target == "/v1/files" {
                let mut server = upstream.accept().await;
                server.through(b"{\"half\":").await;
                client.finish().await;
                assert!(!server.rest().await.0.ends_with(b"0\r\n\r\n"), "no end is made up");
            } else {
                client.finish().await;
            }
            let (answer, _) = client.rest().await;
            assert!(!answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
            forkpoint.recorded((2 * round + asked + 1) as u32).await;
        }
    }
    forkpoint.still_works(&upstream).await;
}

/// Nothing tells it from one that has left, and the call of one that has left is not to go on.
#[tokio::test]
async fn a_client_that_closes_its_side_within_its_answer_is_one_that_has_left() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    for request in [call(b"{}"), get("/x")] {
        let mut client = forkpoint.client().await;
        client.send(&request).await;
        let (mut server, _) = upstream.asked().await;
        server.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
        server.send_chunk(b"one").await;
        client.through(b"one").await;
        client.finish().await;
        server.gone().await;
        assert!(!client.rest().await.0.ends_with(b"0\r\n\r\n"), "no end is made up");
    }
    forkpoint.recorded(2).await;
    forkpoint.still_works(&upstream).await;
}

#[tokio::test]
async fn an_answer_with_many_headers_passes() {
    let many: String = (0..250).map(|number| format!("x-many-{number}: {number}\r\n")).collect();
    let answer = format!("HTTP/1.1 200 OK\r\n{many}content-length: 2\r\n\r\nok");
    let upstream = Upstream::answering(answer.as_bytes()).await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let reply = forkpoint.client().await.ask(&get("/")).await;
    assert_eq!((reply.status(), reply.head.get("x-many-249").as_deref()), (200, Some("249")));
    let (head, _) = Http2::connect(&forkpoint).await.ask(request("GET", "/").body(()).unwrap(), b"").await;
    assert_eq!(head.headers["x-many-249"], "249");
}

#[tokio::test]
async fn an_offer_to_upgrade_that_the_connection_does_not_make_is_no_offer() {
    let mut upstream = Upstream::answering(OK).await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let plain = b"GET /x HTTP/1.1\r\nhost: h\r\nupgrade: websocket\r\n\r\n";
    assert_eq!(forkpoint.client().await.ask(plain).await.status(), 200);
    assert_eq!(upstream.next().await.head.get("upgrade"), None, "it holds for one hop");
    let real = b"GET /x HTTP/1.1\r\nhost: h\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    forkpoint.client().await.ask(real).await.is_refusal(501, "upgrade");
}

#[tokio::test]
async fn an_http_2_client_that_reads_slowly_without_pause_is_not_cut_off() {
    const ANSWER: usize = 1 << 20;
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::with(&upstream.url(), |config| config.limits.stall = SHORT * 8).await;
    let mut client = Http2::connect(&forkpoint).await;
    let (answer, _sending) = client.start(request("GET", "/large").body(()).unwrap(), true).await;
    let (mut server, _) = upstream.asked().await;
    let sending = tokio::spawn(async move {
        server.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {ANSWER}\r\n\r\n").as_bytes()).await;
        server.send(&vec![b'x'; ANSWER]).await;
        server
    });
    let mut incoming = within("an answer", answer).await.unwrap().into_body();
    let mut read = 0;
    while let Some(data) = within("more of the answer", incoming.data()).await {
        let mut left = data.expect("an answer that goes on").len();
        read += left;
        while left > 0 {
            // At this pace the whole takes many times as long as a client may stall.
            tokio::time::sleep(SHORT / 4).await;
            let part = left.min(8 << 10);
            incoming.flow_control().release_capacity(part).unwrap();
            left -= part;
        }
    }
    assert_eq!(read, ANSWER);
    sending.await.unwrap();
    until("its record", || forkpoint.metric("forkpoint_requests_total", &["200"]) == 1.0).await;
}
