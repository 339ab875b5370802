//! The doors: deadlines on every port and in both versions of HTTP, and files that do not run out.

use std::net::SocketAddr;

use super::SHORT;
use crate::bystanders::nobody_waits;
use crate::harness::http2::{Http2, request};
use crate::harness::samples::{HEALTH, OK, PROMPT, message};
use crate::harness::{Binary, Bystander, Forkpoint, Peer, Upstream, call, get, sum, until, within};

/// More connections than any port for operators takes at once.
const CROWD: usize = 256;

/// The deadlines of a process are whole seconds.
const BRIEF: [(&str, &str); 2] = [("LIMITS__HEADER_S", "1"), ("LIMITS__STALL_S", "1")];

async fn crowd(address: SocketAddr, count: usize) -> Vec<Peer> {
    let mut crowd = Vec::new();
    for _ in 0..count {
        crowd.push(Peer::connect(address).await);
    }
    crowd
}

/// An address that was free a moment ago.
async fn free_address() -> SocketAddr {
    tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

#[tokio::test]
async fn silent_connections_do_not_keep_a_probe_from_its_answer() {
    let metrics = free_address().await;
    let binary =
        Binary::serve("http://127.0.0.1:1", &[("SERVER__METRICS_LISTEN", &metrics.to_string())]).await;
    for door in [binary.admin, metrics] {
        let silent = crowd(door, CROWD).await;
        assert_eq!(Peer::connect(door).await.ask(HEALTH).await.status(), 200);
        let mut begun = crowd(door, CROWD).await;
        for client in &mut begun {
            // The oldest of them may be gone already.
            let _ = client.try_send(b"GET /metrics HTTP/1.1\r\nhost: local").await;
        }
        assert_eq!(Peer::connect(door).await.ask(HEALTH).await.status(), 200);
        drop((silent, begun));
    }
}

#[tokio::test]
async fn every_port_has_the_same_deadlines() {
    let metrics = free_address().await.to_string();
    let settings = [&BRIEF[..], &[("SERVER__METRICS_LISTEN", &metrics)]].concat();
    let binary = Binary::serve("http://127.0.0.1:1", &settings).await;
    for door in [binary.proxy, binary.admin, metrics.parse().unwrap()] {
        for start in ["", "PRI * HTTP/2.0\r\n", "GET / HT", "GET / HTTP/1.1\r\nhost: here\r\nx: "] {
            let mut client = Peer::connect(door).await;
            client.send(start.as_bytes()).await;
            client.gone().await;
        }
        // A connection that is kept alive is not kept for ever.
        let mut client = Peer::connect(door).await;
        client.ask(HEALTH).await;
        client.gone().await;
        let mut client = Http2::at(door).await;
        client.ask(request("GET", "/healthz").body(()).unwrap(), b"").await;
        client.gone().await;
    }
}

#[tokio::test]
async fn an_http_2_connection_without_a_stream_is_closed_though_it_answers_and_sends_pings() {
    let upstream = Upstream::answering(OK).await;
    let forkpoint = Forkpoint::with(&upstream.url(), |config| config.limits.header = SHORT).await;
    let mut client = Http2::connect(&forkpoint).await;
    client.ping_until_gone(SHORT / 4).await;
    // The same after an exchange.
    let mut client = Http2::connect(&forkpoint).await;
    client.ask(request("GET", "/").body(()).unwrap(), b"").await;
    client.ping_until_gone(SHORT / 4).await;
    until("no connection", || forkpoint.metric("forkpoint_connections", &["proxy"]) == 0.0).await;
}

#[tokio::test]
async fn an_http_2_connection_that_says_nothing_more_after_its_preface_is_closed() {
    let upstream = Upstream::bind().await;
    let deadlines = |config: &mut forkpoint::config::Config| {
        (config.limits.header, config.limits.stall) = (SHORT, SHORT);
    };
    let forkpoint = Forkpoint::with(&upstream.url(), deadlines).await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let unfinished = b"\0\0\x02\x01\0\0\0\0\x01\x82\x86";
    for start in [&preface[..], &[&preface[..], unfinished].concat()] {
        let mut client = forkpoint.client().await;
        client.send(start).await;
        client.gone().await;
    }
}

#[tokio::test]
async fn an_open_stream_keeps_its_http_2_connection() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::with(&upstream.url(), |config| config.limits.header = SHORT).await;
    let mut client = Http2::connect(&forkpoint).await;
    let (answer, _sending) = client.start(request("GET", "/slow").body(()).unwrap(), true).await;
    let (mut server, _) = upstream.asked().await;
    // Real time, because the answer is that nothing happens.
    tokio::time::sleep(SHORT * 4).await;
    server.send(OK).await;
    assert_eq!(within("an answer", answer).await.unwrap().status().as_u16(), 200);
}

#[tokio::test]
async fn idle_connections_make_room_for_others() {
    let upstream = Upstream::answering(OK).await;
    let forkpoint = Forkpoint::with(&upstream.url(), |config| config.limits.connections = 8).await;
    let mut idle = Vec::new();
    for _ in 0..CROWD {
        idle.push(Http2::connect(&forkpoint).await);
    }
    assert_eq!(forkpoint.client().await.ask(&get("/")).await.status(), 200);
    within("the end of the first", idle[0].gone()).await;
    let open = forkpoint.metric("forkpoint_connections", &["proxy"]);
    assert!(open < CROWD as f64, "{open} connections are open");
}

#[tokio::test]
async fn more_streams_than_there_are_files_leave_room_for_health_and_for_known_tenants() {
    let upstream =
        Upstream::answering_with(
            |request| {
                if request.head.line().contains("/hangs") { Vec::new() } else { message() }
            },
        )
        .await;
    let binary = Binary::serve_with_files(&upstream.url(), 1024).await;
    binary.line("fewer exchanges than limits.connections").await;
    assert_eq!(binary.client().await.ask(&call(PROMPT)).await.status(), 200);
    let (mut attackers, mut streams) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let mut client = Http2::at(binary.proxy).await;
        for _ in 0..256 {
            streams.push(client.start(request("GET", "/hangs").body(()).unwrap(), true).await);
        }
        attackers.push(client);
    }
    let shown = async |name: &str| sum(&binary.admin("/metrics").await.1, name, &[]);
    within("an answer to most, and the rest at the upstream", async {
        while shown("forkpoint_refused_total").await + shown("forkpoint_exchanges").await < 1024.0 {}
    })
    .await;
    let exchanges = shown("forkpoint_exchanges").await;
    assert!((1.0..256.0).contains(&exchanges), "{exchanges}");
    assert_eq!(binary.admin("/healthz").await, (200, "ok\n".into()));
    binary.client().await.ask(&get("/one/more")).await.is_refusal(503, "connections");
    assert_eq!(binary.client().await.ask(&call(PROMPT)).await.status(), 200, "a tenant that is known");
}

/// An HTTP/2 client that grants no room for the bodies of answers, and asks for a tunnel, which it is refused.
fn asks_for_a_tunnel_and_grants_no_room() -> Vec<u8> {
    let settings = b"\0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0\0";
    let fields = b"\x02\x07CONNECT\x01\x08here:443";
    let headers = [&[0, 0, fields.len() as u8, 1, 5, 0, 0, 0, 1], &fields[..]].concat();
    [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], settings, &headers].concat()
}

#[tokio::test]
async fn refusals_that_nobody_takes_keep_no_connection() {
    let upstream = Upstream::answering(&message()).await;
    let binary = Binary::serve_with_files(&upstream.url(), 256).await;
    assert_eq!(binary.client().await.ask(&call(PROMPT)).await.status(), 200);
    let (asks, mut attackers) = (asks_for_a_tunnel_and_grants_no_room(), Vec::new());
    for _ in 0..400 {
        let mut client = Peer::connect(binary.proxy).await;
        // It may have had to go already.
        let _ = client.try_send(&asks).await;
        attackers.push(client);
    }
    assert_eq!(binary.admin("/healthz").await.0, 200);
    assert_eq!(binary.client().await.ask(&call(PROMPT)).await.status(), 200);
    let open = sum(&binary.admin("/metrics").await.1, "forkpoint_connections", &["proxy"]);
    assert!(open < 200.0, "{open} connections are open");
}

/// A crowd that speaks HTTP/2 and does not go when it is told to.
async fn deaf_crowd(address: SocketAddr, count: usize) -> Vec<Peer> {
    let start = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let mut crowd = Vec::new();
    for _ in 0..count {
        let mut client = Peer::connect(address).await;
        // It may have had to go already.
        let _ = client.try_send(start).await;
        crowd.push(client);
    }
    crowd
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_a_crowd_that_does_not_go() {
    let binary = Binary::serve("http://127.0.0.1:1", &[]).await;
    nobody_waits("a crowd", || async {
        let bystander = Bystander::beside(&binary);
        let crowd = deaf_crowd(binary.admin, 1_500).await;
        let longest = bystander.longest_wait().await;
        drop(crowd);
        longest
    })
    .await;
}

/// Connects this many clients that send 114 KB of headers without an end.
async fn unfinished_crowd(binary: &Binary, sockets: usize) -> Vec<Peer> {
    let line = format!("x-{}: {}\r\n", "n".repeat(20), "v".repeat(1_200));
    let unfinished = format!("GET / HTTP/1.1\r\nhost: here\r\n{}", line.repeat(95)).into_bytes();
    let mut crowd = Vec::new();
    for _ in 0..sockets {
        let mut client = binary.client().await;
        // It may have had to go already.
        let _ = client.try_send(&unfinished).await;
        crowd.push(client);
    }
    crowd
}

#[tokio::test]
async fn headers_that_do_not_end_take_little_memory() {
    const SOCKETS: usize = 1_200;
    const MIB: usize = 1 << 20;
    let upstream = Upstream::answering(OK).await;
    let binary = Binary::serve(&upstream.url(), &[]).await;
    let before = binary.memory();
    let crowd = unfinished_crowd(&binary, SOCKETS).await;
    let taken = binary.memory().saturating_sub(before);
    assert!(taken < 100 * MIB, "{} MiB for {SOCKETS} connections", taken / MIB);
    assert_eq!(binary.client().await.ask(&get("/one/more")).await.status(), 200);
    drop(crowd);
}

/// Reading headers is work for a core, and a build for tests takes many times as long: the crowd is smaller.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_headers_that_do_not_end() {
    let upstream = Upstream::answering(OK).await;
    let binary = Binary::serve(&upstream.url(), &[]).await;
    nobody_waits("unfinished headers", || async {
        let bystander = Bystander::beside(&binary);
        let crowd = unfinished_crowd(&binary, 150).await;
        let longest = bystander.longest_wait().await;
        drop(crowd);
        longest
    })
    .await;
}

#[tokio::test]
async fn little_of_an_upload_over_http_2_comes_ahead() {
    let upstream = Upstream::answering(OK).await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut client = Http2::connect(&forkpoint).await;
    client.ask(request("GET", "/").body(()).unwrap(), b"").await;
    let (_answer, mut sending) = client.start(request("POST", "/v1/files").body(()).unwrap(), false).await;
    sending.reserve_capacity(4 << 20);
    let room = std::future::poll_fn(|cx| sending.poll_capacity(cx));
    let room = within("room", room).await.unwrap().unwrap();
    assert!(room <= 256 << 10, "{room}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_that_do_not_read_are_cut_off_and_keep_nobody_from_an_answer() {
    nobody_waits("slow operators", || async {
        let settings = [&BRIEF[..], &[("ADMIN__SUBSCRIBERS", "1")]].concat();
        let upstream = Upstream::answering(&message()).await;
        let binary = Binary::serve(&upstream.url(), &settings).await;
        let bystander = Bystander::beside(&binary);
        let mut slow = Vec::new();
        for page in ["/metrics", "/events", "/api/forks", "/api/prefixes"] {
            let mut client = Peer::connect(binary.admin).await;
            // More of them than any buffer holds; not one is read.
            let ask = format!("GET {page} HTTP/1.1\r\nhost: localhost\r\n\r\n").repeat(2_000);
            let _ = tokio::time::timeout(SHORT * 4, client.try_send(ask.as_bytes())).await;
            slow.push(client);
        }
        assert_eq!(binary.admin("/healthz").await.0, 200);
        assert_eq!(binary.client().await.ask(&call(PROMPT)).await.status(), 200);
        // What waits to be read is bounded: the process serves on until the connections are cut.
        within("the end of the one that reads no metrics", async {
            while sum(&binary.admin("/metrics").await.1, "forkpoint_connections", &["admin"]) > 2.0 {
                tokio::time::sleep(SHORT).await;
            }
        })
        .await;
        drop(slow);
        bystander.longest_wait().await
    })
    .await;
}
