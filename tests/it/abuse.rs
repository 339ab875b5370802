//! Requests made to be misread. Each has its answer, and nobody else is disturbed.

use crate::harness::samples::{self, OK, PROMPT};
use crate::harness::{Binary, Forkpoint, Upstream, call};

/// Sends these bytes, expects this status and then the end of the connection, and nothing at the upstream.
async fn refused(status: u16, requests: &[&[u8]]) {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    for request in requests {
        let shown = String::from_utf8_lossy(&request[..request.len().min(120)]).into_owned();
        let mut client = forkpoint.client().await;
        // The answer may come, and the connection go, before everything is written.
        let _ = client.try_send(request).await;
        let head = client.try_head().await.unwrap_or_else(|| panic!("no answer to {shown:?}"));
        assert_eq!(head.status(), status, "{shown:?}");
        client.gone().await;
    }
    // The upstream's first connection is that of a healthy request: none of the others got so far.
    let mut client = forkpoint.client().await;
    client.send(&crate::harness::get("/healthy")).await;
    let (mut server, request) = upstream.asked().await;
    assert_eq!(request.head.line(), "GET /healthy HTTP/1.1");
    server.send(OK).await;
    assert_eq!(client.reply().await.status(), 200);
}

#[tokio::test]
async fn bodies_with_an_ambiguous_length_are_refused() {
    refused(
        400,
        &[
            b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!",
            b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 5, 6\r\n\r\nhello!",
            b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: +5\r\n\r\nhello",
            b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 0x5\r\n\r\nhello",
            b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: -1\r\n\r\n",
            b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 99999999999999999999\r\n\r\n",
            b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length:\r\n\r\n",
            b"POST / HTTP/1.1\r\nhost: h\r\ncontent-length : 5\r\n\r\nhello",
            b"POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
            b"POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n",
            b"POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
            b"POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            b"POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            b"POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding : chunked\r\n\r\n0\r\n\r\n",
            b"POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
            b"POST / HTTP/1.0\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        ],
    )
    .await;
}

#[tokio::test]
async fn headers_that_could_be_read_as_others_are_refused() {
    refused(
        400,
        &[
            b"GET / HTTP/1.1\r\nhost: h\r\nx-folded: a\r\n b: c\r\n\r\n",
            b"GET / HTTP/1.1\r\nhost: h\r\n x-first: folded\r\n\r\n",
            b"GET / HTTP/1.1\r\nhost: h\r\nx-cr: a\rx-evil: 1\r\n\r\n",
            b"GET / HTTP/1.1\r\nhost: h\r\nx-nul: a\0b\r\n\r\n",
            b"GET / HTTP/1.1\r\nhost: h\r\nx y: 1\r\n\r\n",
            b"GET / HTTP/1.1\r\nhost: h\r\n: nameless\r\n\r\n",
            b"GET / HTTP/1.1\r\nhost: h\r\nno-colon\r\n\r\n",
            b"GET / HTTP/1.1\r\nhost: h\r\nx\xff: 1\r\n\r\n",
        ],
    )
    .await;
}

#[tokio::test]
async fn targets_that_are_no_path_are_refused() {
    refused(
        400,
        &[
            b"GET /a b HTTP/1.1\r\nhost: h\r\n\r\n",
            b"GET /a\rb HTTP/1.1\r\nhost: h\r\n\r\n",
            b"GET /a\0b HTTP/1.1\r\nhost: h\r\n\r\n",
            b"GET  HTTP/1.1\r\nhost: h\r\n\r\n",
            b"GET http:///x HTTP/1.1\r\nhost: h\r\n\r\n",
            b"G\0T / HTTP/1.1\r\nhost: h\r\n\r\n",
            b"GET / HTTP/9.9\r\nhost: h\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 a TLS client\r\n\r\n",
        ],
    )
    .await;
}

#[tokio::test]
async fn a_target_that_is_no_path_but_reads_like_one_is_refused_with_its_reason() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    for line in ["GET *", "GET evil.example", "GET evil.example:80", "POST *"] {
        let reply =
            forkpoint.client().await.ask(format!("{line} HTTP/1.1\r\nhost: h\r\n\r\n").as_bytes()).await;
        reply.is_refusal(400, "target");
    }
    forkpoint.still_works(&upstream).await;
}

#[tokio::test]
async fn a_target_with_a_host_of_its_own_never_leads_there() {
    let elsewhere = Upstream::bind().await;
    let mut upstream = Upstream::answering(OK).await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let other = elsewhere.url();
    let host = other.strip_prefix("http://").unwrap();
    for (target, path) in [
        (format!("{other}/x?y=1"), "/x?y=1"),
        (other.clone(), "/"),
        (format!("{other}?q"), "/?q"),
        (format!("http://user:pass@{host}/x"), "/x"),
        (format!("https://{host}/x"), "/x"),
        (format!("//{host}/x"), &format!("//{host}/x")),
        (format!("/@{host}/x"), &format!("/@{host}/x")),
        (format!("/\\{host}/x"), &format!("/\\{host}/x")),
    ] {
        let request = format!("GET {target} HTTP/1.1\r\nhost: {host}\r\n\r\n");
        let reply = forkpoint.client().await.ask(request.as_bytes()).await;
        assert_eq!(reply.status(), 200, "{target}");
        let head = upstream.next().await.head;
        assert_eq!(head.line(), format!("GET {path} HTTP/1.1"));
        assert_eq!(head.all("host"), [upstream.url().strip_prefix("http://").unwrap()]);
    }
}

#[tokio::test]
async fn too_many_or_too_large_headers_are_refused() {
    let many: String = (0..200).map(|n| format!("x-{n}: 1\r\n")).collect();
    let many = format!("GET / HTTP/1.1\r\n{many}\r\n");
    let large = |bytes: usize| format!("GET / HTTP/1.1\r\nhost: h\r\nx: {}\r\n\r\n", "x".repeat(bytes));
    refused(431, &[many.as_bytes(), large(150 << 10).as_bytes(), large(2 << 20).as_bytes()]).await;
    let upstream = Upstream::answering(OK).await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    assert_eq!(forkpoint.client().await.ask(large(100 << 10).as_bytes()).await.status(), 200);
    let long = format!("GET /{} HTTP/1.1\r\nhost: h\r\n\r\n", "x".repeat(70_000));
    refused(414, &[long.as_bytes()]).await;
}

#[tokio::test]
async fn bad_chunks_are_refused_and_never_completed() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut recorded = 0;
    for target in ["/v1/messages", "/v1/files"] {
        for chunks in [
            "zz\r\nhello\r\n0\r\n\r\n",
            "5\r\nhello!\r\n0\r\n\r\n",
            "-5\r\nhello\r\n0\r\n\r\n",
            "fffffffffffffffff\r\nhello",
            "5 hello\r\n0\r\n\r\n",
            "5\rhello\r\n0\r\n\r\n",
            "0\r\nbad trailer\0\r\n\r\n",
        ] {
            let head =
                format!("POST {target} HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n{chunks}");
            let mut client = forkpoint.client().await;
            client.send(head.as_bytes()).await;
            let reply = client.reply().await;
            reply.is_refusal(400, "client_body");
            client.gone().await;
            recorded += 1;
            forkpoint.recorded(recorded).await;
        }
    }
    // Whatever of the streamed ones reached the upstream was broken off.
    for _ in 0..7 {
        let (came, _) = upstream.accept().await.rest().await;
        assert!(!came.ends_with(b"0\r\n\r\n"), "{}", String::from_utf8_lossy(&came));
    }
    forkpoint.still_works(&upstream).await;
}

#[tokio::test]
async fn endless_chunk_extensions_and_trailers_are_refused() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let extension = format!("5;{}\r\nhello\r\n0\r\n\r\n", "x".repeat(1 << 20));
    let trailers = format!("0\r\nx: {}\r\n\r\n", "x".repeat(1 << 20));
    for chunks in [extension, trailers] {
        let mut client = forkpoint.client().await;
        let head = "POST /v1/messages HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n";
        let _ = client.try_send(format!("{head}{chunks}").as_bytes()).await;
        // With so much unread the system may break the connection before the answer is seen.
        if let Some(head) = client.try_head().await {
            assert_eq!(head.status(), 400);
        }
        client.gone().await;
    }
    forkpoint.recorded(2).await;
    assert_eq!(forkpoint.metric("forkpoint_refused_total", &["client_body"]), 2.0);
    forkpoint.still_works(&upstream).await;
}

#[tokio::test]
async fn a_length_beside_chunks_is_not_believed_and_the_connection_not_used_again() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut recorded = 0;
    for lengths in [
        "content-length: 4\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 4\r\n",
    ] {
        let mut client = forkpoint.client().await;
        let smuggled = "GET /smuggled HTTP/1.1\r\nhost: h\r\n\r\n";
        let request =
            format!("POST /v1/files HTTP/1.1\r\nhost: h\r\n{lengths}\r\n2\r\nab\r\n0\r\n\r\n{smuggled}");
        client.send(request.as_bytes()).await;
        let (mut server, request) = upstream.asked().await;
        assert_eq!((&request.body[..], request.head.get("content-length")), (&b"ab"[..], None));
        server.send(OK).await;
        assert_eq!(client.reply().await.status(), 200);
        client.gone().await;
        recorded += 1;
        forkpoint.recorded(recorded).await;
    }
}

#[tokio::test]
async fn a_request_inside_a_body_stays_a_body() {
    let mut upstream = Upstream::answering(OK).await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut client = forkpoint.client().await;
    let smuggled = b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: h\r\n\r\n";
    // Three at once on one connection: answered in order, each forwarded by itself.
    let requests =
        [call(smuggled), crate::harness::get("/two"), samples::post("/three", "", smuggled)].concat();
    client.send(&requests).await;
    for _ in 0..3 {
        assert_eq!(client.reply().await.status(), 200);
    }
    assert_eq!(upstream.next().await.body, smuggled);
    assert_eq!(upstream.next().await.head.line(), "GET /two HTTP/1.1");
    assert_eq!(upstream.next().await.body, smuggled);
    forkpoint.recorded(3).await;
}

#[tokio::test]
async fn the_body_of_a_refused_request_is_never_taken_for_the_next_one() {
    let forkpoint = Forkpoint::before("http://127.0.0.1:1").await;
    let smuggled = b"GET /smuggled HTTP/1.1\r\nhost: h\r\n\r\n".repeat(2000);
    for (round, (target, headers)) in [
        ("/x", "upgrade: websocket\r\nconnection: upgrade\r\n"),
        ("*", ""),
        ("/v1/messages", ""),
        ("/v1/files", ""),
    ]
    .into_iter()
    .enumerate()
    {
        let mut client = forkpoint.client().await;
        let request = samples::post(target, headers, &smuggled);
        let (head, body) = request.split_at(request.len() - smuggled.len());
        client.send(head).await;
        // The rest may meet a connection that is closed already.
        let _ = client.try_send(body).await;
        let reply = client.reply().await;
        assert!([400, 501, 502].contains(&reply.status()), "{target}: {}", reply.status());
        client.finish().await;
        assert_eq!(client.rest().await.0, b"", "{target}: a second answer");
        forkpoint.recorded(round as u32 + 1).await;
    }
}

#[tokio::test]
async fn a_decompression_bomb_is_relayed_and_not_unpacked() {
    use std::io::Write as _;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(&vec![0; 4 << 20]).unwrap();
    // Half a gigabyte: a compressed stream may have any number of parts.
    let bomb = encoder.finish().unwrap().repeat(128);
    for kind in ["application/json", "text/event-stream"] {
        let headers = format!("content-type: {kind}\r\ncontent-encoding: gzip\r\n");
        let upstream = Upstream::answering(&samples::answer(&headers, &bomb)).await;
        let binary = Binary::serve(&upstream.url(), &[("LOG__FORMAT", "json")]).await;
        let reply = binary.client().await.ask(&call(PROMPT)).await;
        assert!(reply.body == bomb);
        assert_eq!(binary.records(1).await[0]["ending"], "complete");
        assert!(binary.peak_memory() < 128 << 20, "{} bytes", binary.peak_memory());
    }
}
