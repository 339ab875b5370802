//! Requests made to be misread, in HTTP/2, where a client writes frames.

use crate::harness::http2::{Http2, request};
use crate::harness::{Forkpoint, Peer, Upstream, within};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A header field as HPACK writes it without any compression.
fn field(name: &[u8], value: &[u8]) -> Vec<u8> {
    assert!(name.len() < 127 && value.len() < 127);
    [&[0x10, name.len() as u8], name, &[value.len() as u8], value].concat()
}

fn fields(pairs: &[(&[u8], &[u8])]) -> Vec<u8> {
    pairs.iter().flat_map(|(name, value)| field(name, value)).collect()
}

async fn connection(forkpoint: &Forkpoint) -> Peer {
    let mut client = forkpoint.client().await;
    client.send(&[PREFACE, &frame(SETTINGS, 0, 0, b"")].concat()).await;
    client
}

/// Waits for the frame that ends the stream or the connection: RST_STREAM, GOAWAY, or an answer of status 400.
async fn refusal(client: &mut Peer) {
    loop {
        let head = client.exactly(9).await;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let payload = client.exactly(length).await;
        match head[3] {
            3 | 7 => return,
            HEADERS => {
                // The static table has 400 at index 12.
                assert_eq!(payload[0], 0x80 | 12, "answered with something other than 400");
                return;
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn header_fields_that_would_be_others_in_http_1_never_reach_the_upstream() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let get: [(&[u8], &[u8]); 3] = [(b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"here")];
    let path: (&[u8], &[u8]) = (b":path", b"/");
    let with = |more: &[(&[u8], &[u8])]| fields(&[&get[..], more].concat());
    for (name, block) in [
        ("a line break in a value", with(&[path, (b"x", b"a\r\nx-evil: 1")])),
        ("a NUL in a value", with(&[path, (b"x", b"a\0b")])),
        ("a line break in a name", with(&[path, (b"x\r\nx-evil", b"1")])),
        ("a colon in a name", with(&[path, (b"x: 1", b"1")])),
        ("an upper-case name", with(&[path, (b"X-Upper", b"1")])),
        ("a transfer encoding", with(&[path, (b"transfer-encoding", b"chunked")])),
        ("a connection header", with(&[path, (b"connection", b"close")])),
        ("a length without a body", with(&[path, (b"content-length", b"5")])),
        ("a path with a line break", with(&[(b":path", b"/a HTTP/1.1\r\nx-evil: 1\r\n\r\n")])),
        ("a path with a space", with(&[(b":path", b"/a b")])),
        ("a path that is a host", with(&[(b":path", b"evil.example/x")])),
        ("an asterisk", with(&[(b":path", b"*")])),
        ("no path", with(&[])),
        ("two paths", with(&[path, path])),
        ("a made-up pseudo header", with(&[path, (b":evil", b"1")])),
        ("a pseudo header behind a plain one", with(&[(b"x", b"1"), path])),
        ("a method with a space", fields(&[(b":method", b"GET /x"), get[1], get[2], path])),
    ] {
        let mut client = connection(&forkpoint).await;
        client.send(&frame(HEADERS, END_STREAM | END_HEADERS, 1, &block)).await;
        within(name, refusal(&mut client)).await;
    }
    let mut client = forkpoint.client().await;
    client.send(&crate::harness::get("/healthy")).await;
    let (_, request) = upstream.asked().await;
    assert_eq!(request.head.line(), "GET /healthy HTTP/1.1", "nothing came before");
}

#[tokio::test]
async fn streams_reset_as_fast_as_they_are_opened_end_the_connection() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut client = connection(&forkpoint).await;
    let block = fields(&[
        (b":method", b"GET"),
        (b":scheme", b"http"),
        (b":authority", b"here"),
        (b":path", b"/reset"),
    ]);
    let mut attack = Vec::new();
    for stream in (1..20_000).step_by(2) {
        attack.extend(frame(HEADERS, END_STREAM | END_HEADERS, stream, &block));
        attack.extend(frame(3, 0, stream, &8u32.to_be_bytes()));
    }
    let _ = client.try_send(&attack).await;
    client.gone().await;
    // Not many of ten thousand were even looked at.
    let begun = forkpoint.metric("forkpoint_requests_total", &[]);
    assert!(begun < 1000.0, "{begun} requests began");
    forkpoint.still_works(&upstream).await;
}

#[tokio::test]
async fn headers_that_never_end_end_the_connection() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut client = connection(&forkpoint).await;
    let filler: Vec<u8> = (0..100).flat_map(|_| field(b"x", &[b'x'; 120])).collect();
    client.send(&frame(HEADERS, END_STREAM, 1, &filler)).await;
    within("the end of the flood", async {
        while client.try_send(&frame(CONTINUATION, 0, 1, &filler)).await.is_ok() {}
    })
    .await;
    client.gone().await;
    forkpoint.still_works(&upstream).await;
}

#[tokio::test]
async fn a_header_list_over_the_limit_is_refused_and_the_connection_goes_on() {
    let mut upstream = Upstream::answering(crate::harness::samples::OK).await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut client = Http2::connect(&forkpoint).await;
    let large = request("GET", "/large").header("x", "x".repeat(100_000)).body(()).unwrap();
    let (answer, _) = client.start(large, true).await;
    match within("an answer", answer).await {
        Ok(answer) => assert_eq!(answer.status().as_u16(), 431),
        Err(error) => assert!(error.is_reset(), "{error}"),
    }
    let (head, _) = client.ask(request("GET", "/small").body(()).unwrap(), b"").await;
    assert_eq!(head.status.as_u16(), 200);
    assert_eq!(upstream.next().await.head.line(), "GET /small HTTP/1.1");
}

#[tokio::test]
async fn a_tunnel_is_refused_in_http_2_too() {
    let forkpoint = Forkpoint::before("http://127.0.0.1:1").await;
    let mut client = Http2::connect(&forkpoint).await;
    let tunnel = http::Request::builder().method("CONNECT").uri("evil.example:443").body(()).unwrap();
    let (answer, _sending) = client.start(tunnel, false).await;
    let answer = within("an answer", answer).await.unwrap();
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["x-forkpoint-reason"]),
        (501, &"connect".parse().unwrap())
    );
}

#[tokio::test]
async fn a_stream_that_its_client_resets_cancels_only_its_own_call() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut client = Http2::connect(&forkpoint).await;
    let (_kept_answer, _kept) = client.start(request("GET", "/kept").body(()).unwrap(), true).await;
    let (mut kept, _) = upstream.asked().await;
    let (answer, mut sending) = client.start(request("GET", "/left").body(()).unwrap(), true).await;
    let (mut left, _) = upstream.asked().await;
    drop(answer);
    sending.send_reset(h2::Reason::CANCEL);
    left.gone().await;
    forkpoint.recorded(1).await;
    kept.send(crate::harness::samples::OK).await;
    assert_eq!(within("the other answer", _kept_answer).await.unwrap().status().as_u16(), 200);
}
