//! The corners of HTTP: versions, bodiless answers, interim answers, trailers, tunnels.

use crate::harness::http2::{Http2, request};
use crate::harness::samples::{EVENT_STREAM, MESSAGE, OK, PROMPT, message};
use crate::harness::{Forkpoint, Peer, Upstream, call, get};

#[tokio::test]
async fn an_http_1_0_client_gets_an_answer_it_understands() {
    let mut upstream = Upstream::answering(OK).await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut client = forkpoint.client().await;
    client.send(b"GET /old HTTP/1.0\r\n\r\n").await;
    let reply = client.reply().await;
    assert_eq!((reply.head.line().as_str(), &reply.body[..]), ("HTTP/1.0 200 OK", &b"ok"[..]));
    client.gone().await;
    assert_eq!(upstream.next().await.head.line(), "GET /old HTTP/1.1");
}

#[tokio::test]
async fn a_stream_reaches_an_http_1_0_client_without_chunks() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut client = forkpoint.client().await;
    client.send(b"GET / HTTP/1.0\r\n\r\n").await;
    let (mut server, _) = upstream.asked().await;
    server.send(EVENT_STREAM).await;
    server.send_chunk(b"one").await;
    server.send(b"0\r\n\r\n").await;
    let head = client.head().await;
    assert_eq!(head.get("transfer-encoding"), None);
    assert_eq!(client.rest().await.0, b"one");
}

#[tokio::test]
async fn an_http_1_0_answer_is_relayed_in_our_own_version() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut client = forkpoint.client().await;
    client.send(&get("/")).await;
    let (mut server, _) = upstream.asked().await;
    server.send(b"HTTP/1.0 200 OK\r\n\r\nto the end").await;
    drop(server);
    let reply = client.reply().await;
    assert_eq!((reply.head.line().as_str(), &reply.body[..]), ("HTTP/1.1 200 OK", &b"to the end"[..]));
    // The client's connection did not end with the upstream's.
    client.send(&get("/again")).await;
    assert_eq!(upstream.asked().await.1.head.line(), "GET /again HTTP/1.1");
}

#[tokio::test]
async fn answers_without_a_body_keep_their_headers_and_the_connection() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut client = forkpoint.client().await;
    let mut server: Option<Peer> = None;
    for (method, answer, length) in [
        ("HEAD", "200 OK\r\ncontent-length: 1234", Some("1234")),
        ("HEAD", "404 Not Found\r\ntransfer-encoding: chunked", None),
        ("GET", "204 No Content\r\nx-a: b", None),
        ("GET", "304 Not Modified\r\netag: \"x\"", None),
        ("GET", "200 OK\r\ncontent-length: 0", Some("0")),
    ] {
        client.send(format!("{method} /x HTTP/1.1\r\nhost: here\r\n\r\n").as_bytes()).await;
        let mut peer = match server.take() {
            Some(peer) => peer,
            None => upstream.accept().await,
        };
        assert_eq!(peer.head().await.line(), format!("{method} /x HTTP/1.1"));
        peer.send(format!("HTTP/1.1 {answer}\r\n\r\n").as_bytes()).await;
        let head = client.head().await;
        assert_eq!(format!("HTTP/1.1 {}", answer.split("\r\n").next().unwrap()), head.line());
        assert_eq!(head.get("content-length").as_deref(), length, "{method} {answer}");
        server = Some(peer);
    }
    forkpoint.recorded(5).await;
}

#[tokio::test]
async fn a_client_that_waits_for_permission_gets_it() {
    let mut upstream = Upstream::answering(&message()).await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    for target in ["/v1/messages", "/v1/files"] {
        let mut client = forkpoint.client().await;
        let head = format!(
            "POST {target} HTTP/1.1\r\nhost: here\r\nexpect: 100-continue\r\ncontent-length: {}\r\n\r\n",
            PROMPT.len()
        );
        client.send(head.as_bytes()).await;
        assert_eq!(client.head().await.line(), "HTTP/1.1 100 Continue");
        client.send(PROMPT).await;
        assert_eq!(client.reply().await.body, MESSAGE.as_bytes());
        assert_eq!(upstream.next().await.body, PROMPT);
    }
}

#[tokio::test]
async fn interim_answers_of_the_upstream_do_not_pass_for_the_final_one() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut client = forkpoint.client().await;
    client.send(&call(PROMPT)).await;
    let (mut server, _) = upstream.asked().await;
    server.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n").await;
    server.send(&message()).await;
    assert_eq!(client.reply().await.body, MESSAGE.as_bytes());
    forkpoint.recorded(1).await;
}

#[tokio::test]
async fn a_change_of_protocol_that_nobody_asked_for_is_a_broken_upstream() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut client = forkpoint.client().await;
    client.send(&get("/")).await;
    let (mut server, _) = upstream.asked().await;
    server.send(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n").await;
    client.reply().await.is_refusal(502, "upstream_broke");
    forkpoint.recorded(1).await;
}

#[tokio::test]
async fn trailers_pass_in_both_directions() {
    for target in ["/v1/messages", "/v1/files"] {
        let upstream = Upstream::bind().await;
        let forkpoint = Forkpoint::before(&upstream.url()).await;
        let mut client = forkpoint.client().await;
        let request = format!(
            "POST {target} HTTP/1.1\r\nhost: here\r\nte: trailers\r\ntrailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n\
             2\r\n{{}}\r\n0\r\nx-sum: 1\r\n\r\n"
        );
        client.send(request.as_bytes()).await;
        let (mut server, request) = upstream.asked().await;
        assert_eq!((&request.body[..], &request.trailers[..]), (&b"{}"[..], &["x-sum: 1".to_owned()][..]));
        server
            .send(b"HTTP/1.1 200 OK\r\ntrailer: x-end\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\nx-end: 2\r\n\r\n")
            .await;
        let reply = client.reply().await;
        assert_eq!((&reply.body[..], &reply.trailers[..]), (&b"a"[..], &["x-end: 2".to_owned()][..]));
        forkpoint.recorded(1).await;
    }
}

#[tokio::test]
async fn tunnels_and_upgrades_are_refused_with_a_reason() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut client = forkpoint.client().await;
    let reply = client.ask(b"CONNECT evil.example:443 HTTP/1.1\r\nhost: evil.example\r\n\r\n").await;
    reply.is_refusal(501, "connect");
    let mut client = forkpoint.client().await;
    let reply = client
        .ask(b"GET /ws HTTP/1.1\r\nhost: here\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
        .await;
    reply.is_refusal(501, "upgrade");
    forkpoint.recorded(2).await;
    forkpoint.still_works(&upstream).await;
}

#[tokio::test]
async fn an_http_2_client_is_served_without_any_negotiation() {
    let mut upstream = Upstream::answering(&message()).await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut client = Http2::connect(&forkpoint).await;
    let call = request("POST", "/v1/messages?beta=true").header("x-api-key", "k").header("x-many", "1");
    let (head, body) = client.ask(call.header("x-many", "2").body(()).unwrap(), PROMPT).await;
    assert_eq!((head.status.as_u16(), body), (200, MESSAGE.as_bytes().to_vec()));
    assert_eq!(head.headers["x-forkpoint-reason"], "one_shot");
    let asked = upstream.next().await;
    assert_eq!(asked.head.line(), "POST /v1/messages?beta=true HTTP/1.1");
    assert_eq!(asked.head.all("x-many"), ["1", "2"]);
    assert_eq!(asked.body, PROMPT);
    let (head, _) = client.ask(request("GET", "/v1/models").body(()).unwrap(), b"").await;
    assert_eq!(head.status.as_u16(), 200);
    assert_eq!(upstream.next().await.head.names(), ["host"]);
    forkpoint.recorded(2).await;
}

#[tokio::test]
async fn our_own_errors_are_legal_in_http_2() {
    let forkpoint = Forkpoint::before("http://127.0.0.1:1").await;
    let mut client = Http2::connect(&forkpoint).await;
    let (head, body) = client.ask(request("GET", "/").body(()).unwrap(), b"").await;
    assert_eq!(head.status.as_u16(), 502);
    assert!(!head.headers.contains_key("connection"));
    assert!(String::from_utf8(body).unwrap().contains("http://127.0.0.1:1"));
}
