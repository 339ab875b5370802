//! Nobody notices: what came goes out, in both directions.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use crate::harness::samples::{self, MESSAGE, OK, PROMPT};
use crate::harness::{Forkpoint, Upstream, call, get, post};

#[tokio::test]
async fn every_method_path_and_query_arrives_as_it_was_sent() {
    let mut upstream = Upstream::answering(OK).await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut client = forkpoint.client().await;
    for line in [
        "GET /",
        "GET /?",
        "GET /v1/messages?",
        "POST /v1/messages?beta=true",
        "GET /v1/models?limit=1000&after_id=%2e%2E",
        "DELETE /v1/files/file_%C3%BC%2F..%2f",
        "GET //double//slashes",
        "GET //evil.example/x",
        "GET /a/./b/../c/%2e%2e/",
        "GET /~user/;p=1,2/@:$&'()*+!=-._",
        "GET /q?a=b?c/d&&=&%20+{}|",
        "PATCH /x",
        "PURGE /made-up/method",
        "OPTIONS *",
        "OPTIONS /v1/messages",
    ] {
        let reply = client.ask(format!("{line} HTTP/1.1\r\nhost: here\r\n\r\n").as_bytes()).await;
        assert_eq!(reply.status(), 200, "{line}");
        assert_eq!(upstream.next().await.head.line(), format!("{line} HTTP/1.1"));
    }
}

#[tokio::test]
async fn the_path_of_the_base_url_comes_first() {
    for (base, target, sent) in [
        ("/anthropic", "/v1/messages?beta=true", "/anthropic/v1/messages?beta=true"),
        ("/anthropic/", "//x", "/anthropic//x"),
        ("/a/b", "/", "/a/b/"),
        ("/a", "/?", "/a/?"),
        ("/a", "/x/../y", "/a/x/../y"),
    ] {
        let mut upstream = Upstream::answering(OK).await;
        let forkpoint = Forkpoint::before(&format!("{}{base}", upstream.url())).await;
        forkpoint.client().await.ask(&get(target)).await;
        assert_eq!(upstream.next().await.head.line(), format!("GET {sent} HTTP/1.1"));
    }
}

#[tokio::test]
async fn a_question_about_the_whole_server_has_no_path_to_prefix() {
    let mut upstream = Upstream::answering(OK).await;
    let forkpoint = Forkpoint::before(&format!("{}/base", upstream.url())).await;
    forkpoint.client().await.ask(b"OPTIONS * HTTP/1.1\r\nhost: here\r\n\r\n").await;
    assert_eq!(upstream.next().await.head.line(), "OPTIONS * HTTP/1.1");
}

#[tokio::test]
async fn headers_arrive_with_duplicates_in_order_and_none_is_invented() {
    let mut upstream = Upstream::answering(OK).await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let request = b"GET /v1/models HTTP/1.1\r\nHost: here:1\r\nX-Api-Key: k\r\nanthropic-beta: a,b\r\n\
        x-many: 1\r\nanthropic-beta: c\r\nx-many: 2\r\nx-empty:\r\nx-latin: caf\xe9\r\nx-many: 1\r\n\r\n";
    forkpoint.client().await.ask(request).await;
    let head = upstream.next().await.head;
    let names = ["anthropic-beta", "anthropic-beta", "host", "x-api-key", "x-empty", "x-latin"];
    assert_eq!(head.names(), [&names[..], &["x-many"; 3]].concat());
    assert_eq!(head.all("anthropic-beta"), ["a,b", "c"]);
    assert_eq!(head.all("x-many"), ["1", "2", "1"]);
    assert_eq!(head.get("x-empty").unwrap(), "");
    assert!(head.raw.windows(4).any(|bytes| bytes == b"caf\xe9"));
    assert_eq!(format!("http://{}", head.get("host").unwrap()), upstream.url());
}

#[tokio::test]
async fn what_belongs_to_one_hop_or_to_us_is_dropped() {
    let mut upstream = Upstream::answering(OK).await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let request = b"GET / HTTP/1.1\r\nhost: here\r\nconnection: keep-alive, X-Hop\r\nx-hop: 1\r\nkeep-alive: timeout=5\r\n\
        proxy-authorization: Basic xyz\r\nproxy-connection: keep-alive\r\nte: gzip, trailers\r\nX-Forkpoint-Mode: observe\r\n\
        x-forkpoint-session: s\r\nx-kept: 1\r\n\r\n";
    forkpoint.client().await.ask(request).await;
    let head = upstream.next().await.head;
    assert_eq!(head.names(), ["connection", "host", "te", "x-kept"]);
    assert_eq!((head.get("te").unwrap(), head.get("connection").unwrap()), ("trailers".into(), "te".into()));
    forkpoint.client().await.ask(b"GET / HTTP/1.1\r\nhost: here\r\nte: gzip\r\n\r\n").await;
    assert_eq!(upstream.next().await.head.names(), ["host"]);
}

#[tokio::test]
async fn bodies_keep_their_framing_unless_they_were_collected() {
    let mut upstream = Upstream::answering(OK).await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut client = forkpoint.client().await;
    let chunked = |target: &str| {
        format!(
            "POST {target} HTTP/1.1\r\nhost: here\r\nx-api-key: key\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"
        )
    };

    client.ask(&post("/v1/files", "", b"abcde")).await;
    let request = upstream.next().await;
    assert_eq!(
        (request.head.get("content-length").as_deref(), &request.body[..]),
        (Some("5"), &b"abcde"[..])
    );
    assert_eq!(request.head.get("transfer-encoding"), None);

    client.ask(chunked("/v1/files").as_bytes()).await;
    let request = upstream.next().await;
    assert_eq!(request.head.get("transfer-encoding").as_deref(), Some("chunked"));
    assert_eq!((request.head.get("content-length"), &request.body[..]), (None, &b"abcde"[..]));

    client.ask(chunked("/v1/messages").as_bytes()).await;
    let request = upstream.next().await;
    assert_eq!(
        (request.head.get("content-length").as_deref(), &request.body[..]),
        (Some("5"), &b"abcde"[..])
    );
    assert_eq!(request.head.get("transfer-encoding"), None);

    client.ask(&post("/v1/files", "", b"")).await;
    let request = upstream.next().await;
    assert_eq!(request.head.all("content-length"), ["0"]);

    client.ask(&get("/v1/files")).await;
    assert_eq!(upstream.next().await.head.names(), ["host"]);
}

#[tokio::test]
async fn an_answer_comes_back_as_it_was_given() {
    let answer = b"HTTP/1.1 299 Very Odd\r\nx-unknown: 1\r\nset-cookie: a\r\nx-latin: caf\xe9\r\nset-cookie: b\r\n\
        request-id: req_1\r\nconnection: keep-alive, x-hop\r\nx-hop: 1\r\nkeep-alive: timeout=9\r\ncontent-length: 4\r\n\r\n\0\xff\r\n";
    let upstream = Upstream::answering(answer).await;
    let forkpoint = Forkpoint::with(&upstream.url(), |config| config.server.response_headers = false).await;
    let reply = forkpoint.client().await.ask(&get("/v1/models")).await;
    assert_eq!(reply.head.line(), "HTTP/1.1 299 Very Odd");
    let names = ["content-length", "request-id", "set-cookie", "set-cookie", "x-latin", "x-unknown"];
    assert_eq!(reply.head.names(), names);
    assert_eq!(reply.head.all("set-cookie"), ["a", "b"]);
    assert!(reply.head.raw.windows(4).any(|bytes| bytes == b"caf\xe9"));
    assert_eq!(reply.body, b"\0\xff\r\n");
}

#[tokio::test]
async fn our_headers_say_what_was_done_and_cannot_be_forged_by_the_upstream() {
    let forged = "x-forkpoint-reason: lie\r\nx-forkpoint-fork: lie\r\n";
    let upstream = Upstream::answering(&samples::answer(forged, b"{}")).await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let reply = forkpoint.client().await.ask(&call(PROMPT)).await;
    let ours = ["x-forkpoint-role", "x-forkpoint-plan", "x-forkpoint-reason", "x-forkpoint-fork"];
    let said = ours.map(|name| reply.head.all(name).join(","));
    assert_eq!(said, ["plain", "aligned", "one_shot", ""]);

    let silent = Forkpoint::with(&upstream.url(), |config| config.server.response_headers = false).await;
    let reply = silent.client().await.ask(&call(PROMPT)).await;
    assert!(ours.iter().all(|name| reply.head.get(name).is_none()), "{reply:?}");
}

#[tokio::test]
async fn redirects_and_errors_are_relayed_and_never_followed() {
    for status in
        ["301 Moved", "307 Temporary Redirect", "429 Too Many Requests", "500 Oops", "529 Overloaded"]
    {
        let answer = format!(
            "HTTP/1.1 {status}\r\nlocation: http://127.0.0.1:1/elsewhere\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n"
        );
        let mut upstream = Upstream::answering(answer.as_bytes()).await;
        let forkpoint = Forkpoint::before(&upstream.url()).await;
        let reply = forkpoint.client().await.ask(&call(PROMPT)).await;
        assert_eq!(reply.head.line(), format!("HTTP/1.1 {status}"));
        assert_eq!(reply.head.get("location").unwrap(), "http://127.0.0.1:1/elsewhere");
        upstream.next().await;
        forkpoint.recorded(1).await;
    }
}

#[tokio::test]
async fn compressed_answers_stay_compressed_and_their_usage_is_counted() {
    for coding in ["gzip", "deflate", "br", "zstd"] {
        let body = compress(coding, MESSAGE.as_bytes());
        let headers = format!("content-type: application/json\r\ncontent-encoding: {coding}\r\n");
        let upstream = Upstream::answering(&samples::answer(&headers, &body)).await;
        let forkpoint = Forkpoint::before(&upstream.url()).await;
        let reply = forkpoint.client().await.ask(&call(PROMPT)).await;
        assert_eq!(reply.body, body, "{coding}");
        assert_eq!(reply.head.get("content-encoding").as_deref(), Some(coding));
        forkpoint.recorded(1).await;
        for (kind, count) in [
            ("uncached", 1.0),
            ("cache_read", 2.0),
            ("cache_write_5m", 3.0),
            ("cache_write_1h", 4.0),
            ("output", 5.0),
        ] {
            let label = format!("kind=\"{kind}\"");
            let labels = [label.as_str(), "model=\"claude-x\""];
            assert_eq!(forkpoint.metric("forkpoint_tokens_total", &labels), count, "{coding} {kind}");
        }
    }
}

fn compress(coding: &str, bytes: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    match coding {
        "gzip" => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        }
        "deflate" => {
            let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        }
        "br" => {
            let mut out = Vec::new();
            brotli::BrotliCompress(&mut &bytes[..], &mut out, &Default::default()).unwrap();
            out
        }
        _ => zstd::encode_all(bytes, 3).unwrap(),
    }
}

#[tokio::test]
async fn any_bytes_as_a_body_arrive_unchanged() {
    let mut upstream = Upstream::answering(OK).await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut client = forkpoint.client().await;
    let bodies = proptest::collection::vec(proptest::num::u8::ANY, 0..20_000);
    let mut runner = TestRunner::deterministic();
    for round in 0..48 {
        let body = bodies.new_tree(&mut runner).unwrap().current();
        let target = ["/v1/messages", "/v1/files"][round % 2];
        assert_eq!(client.ask(&post(target, "", &body)).await.status(), 200);
        assert!(upstream.next().await.body == body, "round {round}: {} bytes differ", body.len());
    }
    forkpoint.recorded(48).await;
}
