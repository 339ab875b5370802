//! Everything has a limit, and each limit has its answer.

mod accounts;
mod doors;
pub mod strangers;
mod wire;

use std::time::Duration;

use crate::harness::http2::{Http2, request};
use crate::harness::samples::{self, EVENT_STREAM, EVENTS, MESSAGE, OK, PROMPT, message};
use crate::harness::{Binary, End, Forkpoint, Upstream, call, get, post, within};

/// Short, because a test has to wait for it; nothing depends on its length.
const SHORT: Duration = Duration::from_millis(150);

#[tokio::test]
async fn a_body_over_the_limit_streams_through_unread() {
    let mut upstream = Upstream::answering(OK).await;
    let forkpoint = Forkpoint::with(&upstream.url(), |config| config.limits.body_bytes = 8).await;
    let mut client = forkpoint.client().await;
    let chunked = "POST /v1/messages HTTP/1.1\r\nhost: h\r\nx-api-key: key\r\ntransfer-encoding: chunked\r\n\r\n\
        6\r\n{\"a\":1\r\n6\r\n,\"b\":2\r\n1\r\n}\r\n0\r\n\r\n";
    for (request, reason) in [
        (call(b"{\"a\":123}"), "body_too_large"),
        (chunked.as_bytes().to_vec(), "body_too_large"),
        (call(b"{\"a\":12}"), "one_shot"),
    ] {
        let reply = client.ask(&request).await;
        assert_eq!((reply.status(), reply.reason().as_deref()), (200, Some(reason)));
    }
    assert_eq!(upstream.next().await.body, b"{\"a\":123}");
    let request = upstream.next().await;
    assert_eq!(request.body, b"{\"a\":1,\"b\":2}");
    assert_eq!(request.head.get("transfer-encoding").as_deref(), Some("chunked"));
}

#[tokio::test]
async fn an_answer_over_the_limit_is_relayed_but_no_longer_read() {
    let upstream = Upstream::answering(&message()).await;
    let forkpoint = Forkpoint::with(&upstream.url(), |config| config.limits.observe_bytes = 100).await;
    let reply = forkpoint.client().await.ask(&call(PROMPT)).await;
    assert_eq!(reply.body, MESSAGE.as_bytes());
    forkpoint.recorded(1).await;
    assert_eq!(forkpoint.metric("forkpoint_tokens_total", &[]), 0.0);

    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::with(&upstream.url(), |config| config.limits.observe_bytes = 1000).await;
    let mut client = forkpoint.client().await;
    client.send(&call(PROMPT)).await;
    let (mut server, _) = upstream.asked().await;
    server.send(EVENT_STREAM).await;
    let large = "x".repeat(2000);
    for piece in [EVENTS[0], "event: ping\ndata: ", &large, "end\n\n", EVENTS[4]] {
        server.send_chunk(piece.as_bytes()).await;
        client.through(piece.as_bytes()).await;
    }
    server.send(b"0\r\n\r\n").await;
    client.through(b"0\r\n\r\n").await;
    forkpoint.recorded(1).await;
    // Only what stood before the large event was read.
    assert_eq!(forkpoint.metric("forkpoint_tokens_total", &["output"]), 1.0);
}

#[tokio::test]
async fn an_exchange_over_the_limit_is_told_so_until_there_is_room() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::with(&upstream.url(), |config| config.limits.connections = 1).await;
    let mut first = forkpoint.client().await;
    first.send(&get("/first")).await;
    let (mut server, _) = upstream.asked().await;
    let mut over = forkpoint.client().await;
    let reply = over.ask(&get("/over")).await;
    reply.is_refusal(503, "connections");
    assert_eq!(reply.error().0, "overloaded_error");
    over.gone().await;
    let mut multiplexed = Http2::connect(&forkpoint).await;
    let over = || request("GET", "/h2").body(()).unwrap();
    assert_eq!(multiplexed.ask(over(), b"").await.0.status.as_u16(), 503);
    server.send(OK).await;
    assert_eq!(first.reply().await.status(), 200);
    forkpoint.recorded(3).await;
    // The same connection is served once the place is free, though the first one is still open.
    let (answer, _sending) = multiplexed.start(over(), true).await;
    assert_eq!(server.head().await.line(), "GET /h2 HTTP/1.1");
    server.send(OK).await;
    assert_eq!(within("an answer", answer).await.unwrap().status().as_u16(), 200);
}

#[tokio::test]
async fn of_a_flood_of_connections_the_oldest_silent_ones_go() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::with(&upstream.url(), |config| config.limits.connections = 1).await;
    let mut admitted = forkpoint.client().await;
    admitted.send(&get("/admitted")).await;
    let (mut server, _) = upstream.asked().await;
    let mut flood = Vec::new();
    for _ in 0..300 {
        flood.push(forkpoint.client().await);
    }
    assert_eq!(flood[0].gone().await, End::Closed);
    flood[299].ask(&get("/over")).await.is_refusal(503, "connections");
    server.send(OK).await;
    assert_eq!(admitted.reply().await.status(), 200);
}

#[tokio::test]
async fn more_collected_requests_than_allowed_stream_through() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::with(&upstream.url(), |config| config.limits.held_requests = 1).await;
    let held = || forkpoint.metric("forkpoint_held", &["requests"]);
    let mut first = forkpoint.client().await;
    first.send(&call(PROMPT)).await;
    let (mut server, _) = upstream.asked().await;
    assert_eq!(held(), 1.0);
    let mut second = forkpoint.client().await;
    second.send(&call(PROMPT)).await;
    let (mut other, request) = upstream.asked().await;
    assert_eq!(request.body, PROMPT);
    for (server, client, reason) in
        [(&mut server, &mut first, "one_shot"), (&mut other, &mut second, "held_requests")]
    {
        server.send(OK).await;
        assert_eq!(client.reply().await.reason().as_deref(), Some(reason));
    }
    assert_eq!(held(), 0.0);
    assert_eq!(forkpoint.metric("forkpoint_passthrough_total", &["held_requests"]), 1.0);
}

#[tokio::test]
async fn more_collected_bytes_than_allowed_stream_through() {
    let upstream = Upstream::bind().await;
    let limit = PROMPT.len() + 10;
    let forkpoint = Forkpoint::with(&upstream.url(), |config| config.limits.held_bytes = limit).await;
    let mut first = forkpoint.client().await;
    first.send(&call(PROMPT)).await;
    let (_server, _) = upstream.asked().await;
    let mut second = forkpoint.client().await;
    second.send(&call(PROMPT)).await;
    let (mut other, request) = upstream.asked().await;
    assert_eq!(request.body, PROMPT);
    other.send(OK).await;
    assert_eq!(second.reply().await.reason().as_deref(), Some("held_bytes"));
    drop(first);
    forkpoint.recorded(2).await;
    assert_eq!(forkpoint.metric("forkpoint_held", &[]), 0.0);
}

#[tokio::test]
async fn what_was_read_of_a_body_that_grew_too_large_still_counts_as_held() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::with(&upstream.url(), |config| config.limits.body_bytes = 5).await;
    let mut client = forkpoint.client().await;
    client
        .send(
            b"POST /v1/messages HTTP/1.1\r\nhost: h\r\nx-api-key: key\r\ntransfer-encoding: chunked\r\n\r\n",
        )
        .await;
    client.send_chunk(b"abcd").await;
    let held = || forkpoint.metric("forkpoint_held", &["bytes"]);
    crate::harness::until("the first chunk to be held", || held() == 4.0).await;
    client.send_chunk(b"efgh").await;
    let mut server = upstream.accept().await;
    server.through(b"efgh").await;
    assert_eq!(held(), 4.0);
    client.send(b"0\r\n\r\n").await;
    server.through(b"0\r\n\r\n").await;
    server.send(OK).await;
    assert_eq!(client.reply().await.reason().as_deref(), Some("body_too_large"));
    assert_eq!(held(), 0.0);
}

#[tokio::test]
async fn more_tool_calls_than_allowed_are_relayed_and_not_remembered() {
    let tool = |index: u8| {
        format!(
            "data: {{\"type\":\"content_block_start\",\"index\":{index},\"content_block\":{{\"type\":\"tool_use\",\"id\":\"t{index}\",\"name\":\"n\",\"input\":{{}}}}}}\n\n\
             data: {{\"type\":\"content_block_stop\",\"index\":{index}}}\n\n"
        )
    };
    let stream = [EVENTS[0], &tool(0), &tool(1), EVENTS[4], EVENTS[5]].concat();
    let answer = samples::answer("content-type: text/event-stream\r\n", stream.as_bytes());
    let upstream = Upstream::answering(&answer).await;
    for (limit, turn) in [("1", "too_large"), ("2", "whole")] {
        let settings = [("LOG__FORMAT", "json"), ("LIMITS__TOOL_USES", limit)];
        let binary = Binary::serve(&upstream.url(), &settings).await;
        assert_eq!(binary.client().await.ask(&call(PROMPT)).await.body, stream.as_bytes());
        let record = &binary.records(1).await[0];
        assert_eq!((record["turn"].as_str(), record["output"].as_u64()), (Some(turn), Some(5)), "{record}");
    }
}

#[tokio::test]
async fn a_client_that_is_slow_with_its_headers_is_cut_off() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::with(&upstream.url(), |config| config.limits.header = SHORT).await;
    for start in ["", "P", "PRI * HTTP/2.0\r\n", "GET / HT", "GET / HTTP/1.1\r\nhost: here\r\nx: "] {
        let mut client = forkpoint.client().await;
        client.send(start.as_bytes()).await;
        client.gone().await;
    }
    // Bytes that trickle in do not help.
    let mut client = forkpoint.client().await;
    client.send(b"GET / HTTP/1.1\r\nx: ").await;
    within("the end of patience with a trickle", async {
        while client.try_send(b"x").await.is_ok() {
            tokio::time::sleep(SHORT / 10).await;
        }
    })
    .await;
    forkpoint.still_works(&upstream).await;
}

#[tokio::test]
async fn the_time_for_headers_does_not_bound_the_answer() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::with(&upstream.url(), |config| config.limits.header = SHORT * 2).await;
    // As short as a request can be: shorter than the preface by which HTTP/2 is told.
    for request in ["GET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.1\r\nhost: here\r\n\r\n"] {
        let mut client = forkpoint.client().await;
        client.send(request.as_bytes()).await;
        let (mut server, _) = upstream.asked().await;
        tokio::time::sleep(SHORT * 4).await;
        server.send(OK).await;
        assert_eq!(client.reply().await.body, b"ok", "{request:?}");
    }
}

#[tokio::test]
async fn a_client_that_stalls_within_its_body_is_told_so() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::with(&upstream.url(), |config| config.limits.stall = SHORT).await;
    for (round, target) in ["/v1/messages", "/v1/files"].into_iter().enumerate() {
        let mut client = forkpoint.client().await;
        let head = format!("POST {target} HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\n\r\nhalf");
        client.send(head.as_bytes()).await;
        let reply = client.reply().await;
        reply.is_refusal(408, "client_stalled");
        assert_eq!(reply.error().0, "timeout_error");
        // What follows could not be told from the rest of the body.
        client.gone().await;
        forkpoint.recorded(round as u32 + 1).await;
    }
    forkpoint.still_works(&upstream).await;
}

#[tokio::test]
async fn an_http_2_client_that_stalls_within_its_body_is_told_so() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::with(&upstream.url(), |config| config.limits.stall = SHORT).await;
    let mut client = Http2::connect(&forkpoint).await;
    let (answer, _sending) = client.start(request("POST", "/v1/messages").body(()).unwrap(), false).await;
    let answer = within("an answer", answer).await.unwrap();
    assert_eq!(answer.status().as_u16(), 408);
    assert!(!answer.headers().contains_key("connection"), "which HTTP/2 forbids");
}

#[tokio::test]
async fn a_client_that_takes_nothing_of_its_answer_is_cut_off() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::with(&upstream.url(), |config| config.limits.stall = SHORT).await;
    let mut client = forkpoint.client().await;
    client.send(&get("/large")).await;
    let (mut server, _) = upstream.asked().await;
    server.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n").await;
    // The client's connection is open and unread: the end can only come from the limit.
    server.fill_up(usize::MAX).await;
    server.gone().await;
    forkpoint.recorded(1).await;
    forkpoint.still_works(&upstream).await;
}

#[tokio::test]
async fn an_http_2_client_that_grants_no_room_is_cut_off() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::with(&upstream.url(), |config| config.limits.stall = SHORT).await;
    let mut client = Http2::connect(&forkpoint).await;
    let (answer, _sending) = client.start(request("GET", "/large").body(()).unwrap(), true).await;
    let (mut server, _) = upstream.asked().await;
    server.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n").await;
    let mut unread = within("an answer", answer).await.unwrap().into_body();
    // The connection answers pings, but the stream's window is never opened again.
    server.fill_up(usize::MAX).await;
    server.gone().await;
    forkpoint.recorded(1).await;
    within("the stream's end", async { while let Some(Ok(_)) = unread.data().await {} }).await;
    forkpoint.still_works(&upstream).await;
}

#[tokio::test]
async fn an_upstream_that_does_not_accept_in_time_is_a_502() {
    // A queue for one connection that nobody takes from: further ones are not even refused.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut queued = Vec::new();
    while let Ok(Ok(stream)) = tokio::time::timeout(SHORT, tokio::net::TcpStream::connect(address)).await {
        queued.push(stream);
    }
    let url = format!("http://{address}");
    let forkpoint = Forkpoint::with(&url, |config| config.upstream.connect = SHORT).await;
    let reply = forkpoint.client().await.ask(&get("/")).await;
    reply.is_refusal(502, "upstream_connect_timeout");
    assert!(reply.error().1.contains(&url));
}

#[tokio::test]
async fn an_upstream_that_stays_silent_is_given_up() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::with(&upstream.url(), |config| config.upstream.idle = SHORT).await;
    let mut client = forkpoint.client().await;
    client.send(&call(PROMPT)).await;
    let (mut server, _) = upstream.asked().await;
    let reply = client.reply().await;
    reply.is_refusal(504, "upstream_silent");
    assert!(reply.error().1.contains(&upstream.url()));
    server.gone().await;

    let mut client = forkpoint.client().await;
    client.send(&post("/v1/messages", "", PROMPT)).await;
    let (mut server, _) = upstream.asked().await;
    server.send(EVENT_STREAM).await;
    server.send_chunk(b"data: {}\n\n").await;
    client.head().await;
    assert!(!client.rest().await.0.ends_with(b"0\r\n\r\n"));
    server.gone().await;
    forkpoint.recorded(2).await;
}

#[tokio::test]
async fn a_long_upload_is_not_taken_for_silence() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::with(&upstream.url(), |config| config.upstream.idle = SHORT * 4).await;
    let mut client = forkpoint.client().await;
    client.send(b"POST /v1/files HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n").await;
    let mut server = upstream.accept().await;
    server.head().await;
    for _ in 0..30 {
        client.send_chunk(b"x").await;
        server.through(b"x\r\n").await;
        tokio::time::sleep(SHORT / 3).await;
    }
    client.send(b"0\r\n\r\n").await;
    server.through(b"0\r\n\r\n").await;
    server.send(OK).await;
    assert_eq!(client.reply().await.body, b"ok");
}
