//! Every form that a request target may have, and what becomes of it: in HTTP/1.1 and HTTP/2, before an upstream with and
//! without a path of its own.

use crate::harness::http2::{self, Http2};
use crate::harness::samples::{OK, PROMPT};
use crate::harness::upstream::Answering;
use crate::harness::{Forkpoint, Upstream, post};

/// The outcome of a request line.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    /// The upstream is asked for this.
    Goes(&'static str),
    /// It has this status and reason, and is answered in the API's shape.
    Refused(u16, &'static str),
    /// It has this status, and no answer of ours: it is no HTTP.
    Unread(u16),
}

use Outcome::{Goes, Refused, Unread};

/// As written; what becomes of it; what becomes of it where the upstream's URL ends in `/base`.
const WRITTEN: &[(&str, Outcome, Outcome)] = &[
    // Origin form, as it came.
    ("GET /v1/models?limit=1", Goes("/v1/models?limit=1"), Goes("/base/v1/models?limit=1")),
    ("GET /", Goes("/"), Goes("/base/")),
    ("GET /?", Goes("/?"), Goes("/base/?")),
    ("GET /x?y=/../../z", Goes("/x?y=/../../z"), Goes("/base/x?y=/../../z")),
    // Slashes are not joined.
    ("GET //x", Goes("//x"), Goes("/base//x")),
    ("GET //evil.example/x", Goes("//evil.example/x"), Goes("/base//evil.example/x")),
    ("GET /a//b//", Goes("/a//b//"), Goes("/base/a//b//")),
    // Dots are not resolved, and lead nowhere above the upstream's own path.
    ("GET /a/./b/../c", Goes("/a/./b/../c"), Goes("/base/a/./b/../c")),
    ("GET /..", Goes("/.."), Refused(400, "target")),
    ("GET /a/../../b", Goes("/a/../../b"), Refused(400, "target")),
    ("GET /...", Goes("/..."), Goes("/base/...")),
    // Escapes are neither written nor read.
    ("GET /a%2Fb%2fc", Goes("/a%2Fb%2fc"), Goes("/base/a%2Fb%2fc")),
    ("GET /%2e%2E/b", Goes("/%2e%2E/b"), Refused(400, "target")),
    ("GET /a/%2e%2e/b", Goes("/a/%2e%2e/b"), Goes("/base/a/%2e%2e/b")),
    ("GET /..%2fb", Goes("/..%2fb"), Refused(400, "target")),
    ("GET /%252e%252e/b", Goes("/%252e%252e/b"), Goes("/base/%252e%252e/b")),
    ("GET /%6Dodels/%zz/%", Goes("/%6Dodels/%zz/%"), Goes("/base/%6Dodels/%zz/%")),
    // Not ASCII: UTF-8 goes as it came, anything else is no target.
    ("GET /gr\u{fc}n?\u{f6}", Goes("/gr\u{fc}n?\u{f6}"), Goes("/base/gr\u{fc}n?\u{f6}")),
    // Absolute form: the path counts, the host does not.
    ("GET http://evil.example/x?y=1", Goes("/x?y=1"), Goes("/base/x?y=1")),
    ("GET HTTPS://evil.example:444/x", Goes("/x"), Goes("/base/x")),
    ("GET http://user:word@evil.example/x", Goes("/x"), Goes("/base/x")),
    ("GET http://evil.example", Goes("/"), Goes("/base/")),
    ("GET http://evil.example?y", Goes("/?y"), Goes("/base/?y")),
    ("GET http://evil.example/../b", Goes("/../b"), Refused(400, "target")),
    ("GET http:///x", Unread(400), Unread(400)),
    // Authority form is for tunnels.
    ("GET evil.example", Refused(400, "target"), Refused(400, "target")),
    ("GET evil.example:443", Refused(400, "target"), Refused(400, "target")),
    ("CONNECT evil.example:443", Refused(501, "connect"), Refused(501, "connect")),
    // The asterisk is for a question about the server.
    ("OPTIONS *", Goes("*"), Goes("*")),
    ("GET *", Refused(400, "target"), Refused(400, "target")),
    // No target.
    ("GET ", Unread(400), Unread(400)),
    ("GET x/y", Unread(400), Unread(400)),
    ("GET ?x", Unread(400), Unread(400)),
    ("GET /a b", Unread(400), Unread(400)),
    ("GET /a\tb", Unread(400), Unread(400)),
];

/// The longest target that is read, in bytes.
const LONGEST: usize = 65_534;

/// forkpoint before an upstream whose URL ends in this path.
async fn before(base: &str) -> (Answering, Forkpoint) {
    let upstream = Upstream::answering(OK).await;
    let forkpoint = Forkpoint::before(&format!("{}{base}", upstream.url())).await;
    (upstream, forkpoint)
}

/// The outcome of these bytes as a request line, behind which nothing else may go wrong.
async fn outcome(forkpoint: &Forkpoint, upstream: &mut Answering, line: &[u8]) -> (u16, Vec<u8>) {
    let mut client = forkpoint.client().await;
    client.send(&[line, b" HTTP/1.1\r\nhost: evil.example\r\n\r\n"].concat()).await;
    let reply = client.reply().await;
    let asked = upstream.so_far();
    assert_eq!(asked.len(), usize::from(reply.status() == 200), "{}", String::from_utf8_lossy(line));
    let target = asked.first().map(|asked| {
        assert_eq!(asked.head.get("host").map(|host| format!("http://{host}")), Some(upstream.url()));
        let line = asked.head.raw.split(|byte| *byte == b'\r').next().unwrap();
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        words[1].to_vec()
    });
    (reply.status(), target.unwrap_or_else(|| reply.reason().unwrap_or_default().into_bytes()))
}

#[tokio::test]
async fn each_form_of_target_has_its_outcome() {
    for (base, column) in [("", 0), ("/base", 1)] {
        let (mut upstream, forkpoint) = before(base).await;
        for (line, without, behind) in WRITTEN {
            let expected = match [without, behind][column] {
                Goes(target) => (200, target.as_bytes().to_vec()),
                Refused(status, reason) => (*status, reason.as_bytes().to_vec()),
                Unread(status) => (*status, Vec::new()),
            };
            let found = outcome(&forkpoint, &mut upstream, line.as_bytes()).await;
            assert_eq!(found, expected, "{line:?} {base:?}: {}", String::from_utf8_lossy(&found.1));
        }
    }
}

#[tokio::test]
async fn bytes_that_are_no_utf_8_are_no_target() {
    let (mut upstream, forkpoint) = before("").await;
    for line in [&b"GET /\xff"[..], b"GET /x?\xc3", b"GET /\xed\xa0\x80"] {
        assert_eq!(outcome(&forkpoint, &mut upstream, line).await, (400, Vec::new()), "{line:?}");
    }
}

#[tokio::test]
async fn a_target_may_be_long_and_has_an_end() {
    for base in ["", "/base"] {
        let (mut upstream, forkpoint) = before(base).await;
        let long = |bytes: usize| format!("GET /{}", "x".repeat(bytes - 1)).into_bytes();
        let (status, target) = outcome(&forkpoint, &mut upstream, &long(60_000)).await;
        assert_eq!((status, target.len()), (200, base.len() + 60_000));
        let (status, _) = outcome(&forkpoint, &mut upstream, &long(LONGEST + 1)).await;
        assert_eq!(status, 414);
        // With the upstream's own path it may become longer than anybody reads.
        let expected = if base.is_empty() { 200 } else { 400 };
        for end in ["x", "?", "?x=y"] {
            let line = [&long(LONGEST - end.len())[..], end.as_bytes()].concat();
            let (status, said) = outcome(&forkpoint, &mut upstream, &line).await;
            assert_eq!(status, expected, "{end:?} {}", String::from_utf8_lossy(&said[..said.len().min(99)]));
        }
    }
}

#[tokio::test]
async fn targets_in_http_2_have_the_same_outcome() {
    for (base, column) in [("", 0), ("/base", 1)] {
        let (mut upstream, forkpoint) = before(base).await;
        let mut client = Http2::connect(&forkpoint).await;
        let paths = WRITTEN.iter().filter_map(|(line, without, behind)| {
            let path = line.strip_prefix("GET /")?;
            let request = http2::request("GET", &format!("/{path}")).body(()).ok()?;
            Some((line, request, [*without, *behind][column]))
        });
        let mut count = 0;
        for (line, request, expected) in paths {
            count += 1;
            let (head, _) = client.ask(request, b"").await;
            let reason = head.headers.get("x-forkpoint-reason");
            let reason = reason.map_or("", |reason| reason.to_str().unwrap());
            match expected {
                Goes(target) => {
                    assert_eq!(head.status.as_u16(), 200, "{line}");
                    assert_eq!(upstream.next().await.head.line(), format!("GET {target} HTTP/1.1"));
                }
                Refused(status, said) => assert_eq!((head.status.as_u16(), reason), (status, said), "{line}"),
                Unread(_) => panic!("{line}: no HTTP in one version only"),
            }
            assert!(upstream.so_far().is_empty(), "{line}");
        }
        assert!(count > 15, "{count}");
    }
}

/// Whoever could spell the path of a Messages call in another way would get one that is not read; so what is not read is
/// not changed either.
#[tokio::test]
async fn a_messages_call_is_known_by_its_path_as_written() {
    let (mut upstream, forkpoint) = before("").await;
    for (target, is_call) in [
        ("/v1/messages", true),
        ("/v1/messages?beta=true", true),
        ("//v1/messages", true),
        ("/a/../v1/messages", true),
        ("http://evil.example/v1/messages", true),
        ("/v1/messages/", false),
        ("/v1/%6Dessages", false),
        ("/v1%2Fmessages", false),
        ("/v1/messages;a=b", false),
        ("/V1/Messages", false),
        ("/v1/xmessages", false),
    ] {
        let reply = forkpoint.client().await.ask(&post(target, "x-api-key: key\r\n", PROMPT)).await;
        let reason = reply.reason().unwrap();
        assert_eq!((reply.status(), reason != "endpoint"), (200, is_call), "{target}: {reason}");
        assert_eq!(upstream.next().await.body, PROMPT, "{target}");
    }
}
