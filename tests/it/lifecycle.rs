//! From start to exit, as a process.

use tokio::net::{TcpListener, TcpStream};

use crate::harness::http2::{Http2, request};
use crate::harness::samples::{EVENT_STREAM, OK, PROMPT};
use crate::harness::{Binary, Forkpoint, Peer, Upstream, binary, call, get, within};

/// A binary with one stream that has begun and not ended.
async fn streaming(settings: &[(&str, &str)]) -> (Binary, Peer, Peer) {
    let upstream = Upstream::bind().await;
    let binary = Binary::serve(&upstream.url(), settings).await;
    let mut client = binary.client().await;
    client.send(&call(PROMPT)).await;
    let (mut server, _) = upstream.asked().await;
    server.send(EVENT_STREAM).await;
    server.send_chunk(b"data: {}\n\n").await;
    client.through(b"data: {}\n\n").await;
    (binary, client, server)
}

#[tokio::test]
async fn the_start_says_what_is_running() {
    let upstream = Upstream::bind().await;
    let binary = Binary::serve(&upstream.url(), &[]).await;
    let said = binary.said().join("\n");
    for part in [env!("CARGO_PKG_VERSION"), &upstream.url(), "fork", "memory"] {
        assert!(said.contains(part), "{part} is missing in\n{said}");
    }
}

#[tokio::test]
async fn a_running_stream_survives_the_drain() {
    let (mut binary, mut client, mut server) = streaming(&[]).await;
    let mut idle = binary.client().await;
    binary.signal("TERM").await;
    binary.line("draining").await;
    assert_eq!(binary.admin("/readyz").await, (503, "draining\n".into()));
    assert_eq!(binary.admin("/healthz").await.0, 200);
    within("the door to close", async {
        while TcpStream::connect(binary.proxy).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    idle.gone().await;
    server.send_chunk(b"data: [1]\n\n").await;
    client.through(b"data: [1]\n\n").await;
    server.send(b"0\r\n\r\n").await;
    client.through(b"0\r\n\r\n").await;
    assert_eq!(binary.exit().await.code(), Some(0));
    binary.line("drained").await;
}

#[tokio::test]
async fn the_door_stays_open_for_the_configured_delay() {
    let upstream = Upstream::bind().await;
    let mut binary = Binary::serve(&upstream.url(), &[("DRAIN__DELAY_MS", "60000")]).await;
    binary.signal("TERM").await;
    binary.line("draining").await;
    let mut client = binary.client().await;
    client.send(&get("/late")).await;
    let (mut server, _) = upstream.asked().await;
    server.send(OK).await;
    assert_eq!(client.reply().await.status(), 200);
    binary.signal("INT").await;
    assert_eq!(binary.exit().await.code(), Some(0));
}

#[tokio::test]
async fn a_second_signal_ends_at_once() {
    let (mut binary, mut client, mut server) = streaming(&[("LOG__FORMAT", "json")]).await;
    binary.signal("TERM").await;
    binary.line("draining").await;
    binary.signal("TERM").await;
    assert_eq!(binary.exit().await.code(), Some(0));
    assert!(!client.rest().await.0.ends_with(b"0\r\n\r\n"), "a cut stream does not look finished");
    server.gone().await;
    assert_eq!(binary.records(1).await.len(), 1, "the cut stream is recorded");
}

#[tokio::test]
async fn the_deadline_of_the_drain_cuts_what_is_left() {
    let (mut binary, mut client, _server) = streaming(&[("DRAIN__DEADLINE_S", "1")]).await;
    binary.signal("TERM").await;
    binary.line("drain.deadline_s is over").await;
    assert_eq!(binary.exit().await.code(), Some(0));
    assert!(!client.rest().await.0.ends_with(b"0\r\n\r\n"));
}

#[tokio::test]
async fn a_drain_within_the_process_ends_with_its_last_exchange() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut client = forkpoint.client().await;
    client.send(&get("/last")).await;
    let (mut server, _) = upstream.asked().await;
    let finish = async {
        server.send(OK).await;
        let reply = client.reply().await;
        client.gone().await;
        reply
    };
    let ((), reply) = tokio::join!(forkpoint.drained(), finish);
    assert_eq!(reply.status(), 200);
}

#[tokio::test]
async fn a_running_http_2_stream_survives_the_drain() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut client = Http2::connect(&forkpoint).await;
    let (answer, _sending) = client.start(request("GET", "/last").body(()).unwrap(), true).await;
    let (mut server, _) = upstream.asked().await;
    server.send(EVENT_STREAM).await;
    let mut body = within("an answer", answer).await.unwrap().into_body();
    let finish = async {
        for _ in 0..3 {
            server.send_chunk(b"data: {}\n\n").await;
            assert_eq!(within("an event", body.data()).await.unwrap().unwrap(), &b"data: {}\n\n"[..]);
        }
        server.send(b"0\r\n\r\n").await;
        // The frame that ends a stream may be an empty one.
        while let Some(end) = within("the end", body.data()).await {
            assert!(end.unwrap().is_empty());
        }
    };
    tokio::join!(forkpoint.drained(), finish);
}

#[tokio::test]
async fn a_bad_configuration_is_exit_64_and_says_everything_that_is_wrong() {
    let output = binary::command()
        .args(["serve", "--listen", "nonsense", "--upstream", "http://user:hunter2@host"])
        .env("FORKPOINT_LIMITS__BODY_BITES", "1")
        .output();
    let output = within("the process to end", output).await.unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(64), "{said}");
    for part in ["nonsense", "--upstream", "BODY_BITES"] {
        assert!(said.contains(part), "{part} is missing in\n{said}");
    }
    assert!(!said.contains("hunter2"), "{said}");
    assert!(output.stdout.is_empty());
}

#[tokio::test]
async fn a_port_in_use_is_exit_1_with_a_hint() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output =
        binary::command().args(["serve", "--listen", &address, "--admin-listen", "127.0.0.1:0"]).output();
    let output = within("the process to end", output).await.unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&address) && said.contains("hint: "), "{said}");
}

#[tokio::test]
async fn proxies_of_the_environment_are_not_used() {
    let (mut upstream, decoy) = (Upstream::answering(OK).await, Upstream::bind().await);
    let decoy = decoy.url();
    let proxies = ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
    let settings: Vec<_> = proxies.iter().map(|name| (*name, decoy.as_str())).collect();
    let binary = Binary::serve(&upstream.url(), &settings).await;
    assert_eq!(binary.client().await.ask(&get("/direct")).await.status(), 200);
    assert_eq!(upstream.next().await.head.line(), "GET /direct HTTP/1.1");
}
