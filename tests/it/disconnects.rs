//! Whoever leaves, the other side hears of it, and one record is written.

use crate::harness::http2::{Http2, request};
use crate::harness::samples::{EVENT_STREAM, EVENTS, PROMPT};
use crate::harness::{Binary, End, Forkpoint, Upstream, call, get, within};

#[tokio::test]
async fn a_client_that_leaves_before_the_answer_cancels_the_call_at_once() {
    for target in ["/v1/messages", "/v1/files"] {
        let upstream = Upstream::bind().await;
        let forkpoint = Forkpoint::before(&upstream.url()).await;
        let mut client = forkpoint.client().await;
        client.send(&crate::harness::post(target, "x-api-key: k\r\n", PROMPT)).await;
        let (mut server, _) = upstream.asked().await;
        drop(client);
        server.gone().await;
        forkpoint.recorded(1).await;
        assert_eq!(forkpoint.metric("forkpoint_requests_total", &["status=\"none\""]), 1.0);
        forkpoint.still_works(&upstream).await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_within_the_answer_cancels_the_call_though_the_upstream_is_silent() {
    for hard in [false, true] {
        let upstream = Upstream::bind().await;
        let forkpoint = Forkpoint::before(&upstream.url()).await;
        let mut client = forkpoint.client().await;
        client.send(&call(PROMPT)).await;
        let (mut server, _) = upstream.asked().await;
        server.send(EVENT_STREAM).await;
        server.send_chunk(EVENTS[0].as_bytes()).await;
        client.through(b"\n\n").await;
        if hard {
            client.reset()
        } else {
            drop(client)
        }
        server.gone().await;
        forkpoint.recorded(1).await;
        // What was billed until then is counted.
        assert_eq!(forkpoint.metric("forkpoint_tokens_total", &["uncached"]), 1.0);
    }
}

#[tokio::test]
async fn a_client_that_leaves_within_its_upload_takes_the_call_with_it() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut client = forkpoint.client().await;
    client.send(b"POST /v1/files HTTP/1.1\r\nhost: here\r\ncontent-length: 100\r\n\r\nonly this").await;
    let mut server = upstream.accept().await;
    server.through(b"only this").await;
    drop(client);
    assert_eq!(server.rest().await.0, b"", "no byte was made up");
    forkpoint.recorded(1).await;
}

#[tokio::test]
async fn a_stream_cut_by_the_upstream_never_ends_cleanly() {
    let mut stream = EVENT_STREAM.to_vec();
    for event in EVENTS {
        stream.extend(format!("{:x}\r\n{event}\r\n", event.len()).bytes());
    }
    stream.extend(b"0\r\n\r\n");
    let head = EVENT_STREAM.len();
    // Every kind of place: within a chunk's size, its data, its end, and within the last chunk.
    let mut cuts: Vec<usize> = (head + 1..stream.len()).step_by(37).collect();
    cuts.extend(stream.len() - 5..stream.len());
    cuts.extend(head..head + 6);
    cut_at(&stream, &cuts).await;
}

#[tokio::test]
async fn a_stream_cut_by_the_upstream_is_an_error_in_http_2_too() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut client = Http2::connect(&forkpoint).await;
    let (answer, _sending) = client.start(request("GET", "/cut").body(()).unwrap(), true).await;
    let (mut server, _) = upstream.asked().await;
    server.send(EVENT_STREAM).await;
    server.send_chunk(EVENTS[0].as_bytes()).await;
    let mut body = within("an answer", answer).await.unwrap().into_body();
    assert_eq!(within("an event", body.data()).await.unwrap().unwrap(), EVENTS[0].as_bytes());
    drop(server);
    assert!(within("the end", body.data()).await.is_some_and(|end| end.is_err()));
    forkpoint.recorded(1).await;
}

#[tokio::test]
async fn a_sized_answer_cut_by_the_upstream_never_ends_cleanly() {
    let answer = crate::harness::samples::message();
    let head = answer.len() - crate::harness::samples::MESSAGE.len();
    let cuts: Vec<usize> = (head..answer.len()).step_by(41).chain([answer.len() - 1]).collect();
    cut_at(&answer, &cuts).await;
}

/// Cuts this answer at each of these bytes, once gently and once hard.
async fn cut_at(answer: &[u8], cuts: &[usize]) {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    for (round, cut) in cuts.iter().enumerate() {
        let mut client = forkpoint.client().await;
        client.send(&call(PROMPT)).await;
        let (mut server, _) = upstream.asked().await;
        server.send(&answer[..*cut]).await;
        let head = client.head().await;
        match round % 2 {
            0 => drop(server),
            _ => server.reset(),
        }
        let (body, _) = client.rest().await;
        match head.get("content-length") {
            Some(length) => assert!(body.len() < length.parse().unwrap(), "cut at {cut}"),
            None => assert!(!body.ends_with(b"0\r\n\r\n"), "cut at {cut}"),
        }
        forkpoint.recorded(round as u32 + 1).await;
    }
    assert_eq!(forkpoint.metric("forkpoint_refused_total", &[]), 0.0);
}

#[tokio::test]
async fn an_upstream_that_breaks_before_its_answer_is_a_502() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let answers: [&[u8]; 7] = [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-le",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
        b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nabcd",
        b"HTTP/1.1 200 OK\r\nx: \0\r\n\r\n",
    ];
    for (round, answer) in answers.into_iter().enumerate() {
        let mut client = forkpoint.client().await;
        client.send(&call(PROMPT)).await;
        let (mut server, _) = upstream.asked().await;
        server.send(answer).await;
        drop(server);
        let reply = client.reply().await;
        reply.is_refusal(502, "upstream_broke");
        assert!(reply.error().1.contains(&upstream.url()), "{reply:?}");
        forkpoint.recorded(round as u32 + 1).await;
    }
    forkpoint.still_works(&upstream).await;
}

#[tokio::test]
async fn an_answer_with_two_lengths_is_relayed_with_the_one_that_was_read() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut client = forkpoint.client().await;
    client.send(&get("/")).await;
    let (mut server, _) = upstream.asked().await;
    server
        .send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
        .await;
    let reply = client.reply().await;
    assert_eq!((&reply.body[..], reply.head.get("content-length")), (&b"hello"[..], None));
}

#[tokio::test]
async fn each_ending_has_exactly_one_line_in_the_log() {
    let upstream = Upstream::bind().await;
    let binary = Binary::serve(&upstream.url(), &[("LOG__FORMAT", "json")]).await;
    let begin = async || {
        let mut client = binary.client().await;
        client.send(&call(PROMPT)).await;
        let (mut server, _) = upstream.asked().await;
        server.send(EVENT_STREAM).await;
        server.send_chunk(EVENTS[0].as_bytes()).await;
        client.through(b"\n\n").await;
        (client, server)
    };

    let (mut client, mut server) = begin().await;
    server.send(b"0\r\n\r\n").await;
    client.through(b"0\r\n\r\n").await;
    drop(server);
    assert_eq!(binary.records(1).await[0]["ending"], "complete");

    let (client, mut server) = begin().await;
    drop(client);
    server.gone().await;
    assert_eq!(binary.records(2).await[1]["ending"], "client_left");

    let (mut client, server) = begin().await;
    server.reset();
    assert_ne!(client.rest().await, (b"0\r\n\r\n".to_vec(), End::Closed));
    assert_eq!(binary.records(3).await[2]["ending"], "upstream_broke");

    let reply = binary
        .client()
        .await
        .ask(b"GET / HTTP/1.1\r\nhost: h\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n")
        .await;
    reply.is_refusal(501, "upgrade");
    assert_eq!(binary.records(4).await[3]["ending"], "refused");
    assert_eq!(binary.records(4).await.len(), 4);
}
