//! What tenants without an accepted request may take of what is there for all.

use bytes::Bytes;
use h2::SendStream;

use crate::fork::children::{FORKED, FREE, Stage, child, extend, parent, plan, usage};
use crate::harness::http2::{Http2, request};
use crate::harness::samples::{PROMPT, message};
use crate::harness::{Forkpoint, Upstream, post, until};

fn keyed(key: &str, body: &[u8]) -> Vec<u8> {
    post("/v1/messages", &format!("x-api-key: {key}\r\n"), body)
}

/// Starts as many uploads as four connections can carry, of one byte each, with these keys.
pub async fn flood(
    forkpoint: &Forkpoint,
    key: impl Fn(usize) -> Option<String>,
) -> Vec<(Http2, Vec<SendStream<Bytes>>)> {
    const CONNECTIONS: usize = 4;
    const STREAMS: usize = 256;
    let seen = || {
        let refused = forkpoint.metric("forkpoint_refused_total", &["connections"]);
        forkpoint.metric("forkpoint_exchanges", &[]) + refused
    };
    let before = seen();
    let mut attackers = Vec::new();
    for connection in 0..CONNECTIONS {
        let mut attacker = Http2::connect(forkpoint).await;
        let mut uploads = Vec::new();
        for stream in 0..STREAMS {
            let mut upload = request("POST", "/v1/messages").header("content-length", "1000");
            if let Some(key) = key(connection * STREAMS + stream) {
                upload = upload.header("x-api-key", key);
            }
            let (_, mut sending) = attacker.start(upload.body(()).unwrap(), false).await;
            // It may have been refused already.
            let _ = sending.send_data(Bytes::from_static(b"{"), false);
            uploads.push(sending);
        }
        attackers.push((attacker, uploads));
    }
    let all = (CONNECTIONS * STREAMS) as f64;
    until("all uploads", || seen() - before >= all).await;
    attackers
}

pub fn invented(number: usize) -> Option<String> {
    Some(format!("invented-{number}"))
}

#[tokio::test]
async fn whoever_comes_after_a_flood_becomes_known() {
    let keys: [fn(usize) -> Option<String>; 3] = [invented, |_| None, |_| Some("one".to_owned())];
    for key in keys {
        let upstream = Upstream::answering(&message()).await;
        let forkpoint = Forkpoint::before(&upstream.url()).await;
        let attackers = flood(&forkpoint, key).await;
        for number in 0..3 {
            let reply = forkpoint.client().await.ask(&keyed("new", PROMPT)).await;
            let plan = reply.head.get("x-forkpoint-plan");
            assert_eq!((reply.status(), plan.as_deref()), (200, Some("aligned")), "request {number}");
        }
        assert_eq!(forkpoint.proxy.store().tenants(), 1);
        drop(attackers);
    }
}

#[tokio::test]
async fn an_upload_that_makes_room_is_refused() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::with(&upstream.url(), |config| config.limits.connections = 4).await;
    let mut slow = Http2::connect(&forkpoint).await;
    let upload = request("POST", "/v1/messages").header("x-api-key", "slow").body(()).unwrap();
    let (answer, mut sending) = slow.start(upload, false).await;
    sending.send_data(Bytes::from_static(b"{"), false).unwrap();
    until("the upload", || forkpoint.metric("forkpoint_held", &["bytes"]) == 1.0).await;
    let mut client = forkpoint.client().await;
    client.send(&keyed("other", PROMPT)).await;
    let (mut server, _) = upstream.asked().await;
    let refused = crate::harness::within("a refusal", answer).await.unwrap();
    assert_eq!(refused.status().as_u16(), 503);
    server.send(&message()).await;
    assert_eq!(client.reply().await.status(), 200);
    forkpoint.recorded(2).await;
}

#[tokio::test]
async fn an_upload_that_makes_room_in_memory_streams_through() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::with(&upstream.url(), |config| config.limits.held_requests = 4).await;
    let mut slow = forkpoint.client().await;
    let (head, rest) = (keyed("slow", PROMPT), 10);
    slow.send(&head[..head.len() - rest]).await;
    until("the upload", || forkpoint.metric("forkpoint_held", &["requests"]) == 1.0).await;
    let mut client = forkpoint.client().await;
    client.send(&keyed("other", PROMPT)).await;
    // Both have begun at the upstream, and one of them goes on.
    let servers = [upstream.accept().await, upstream.accept().await];
    slow.send(&head[head.len() - rest..]).await;
    for mut server in servers {
        assert_eq!(server.request().await.body, PROMPT);
        server.send(&message()).await;
    }
    for (client, reason) in [(&mut client, "one_shot"), (&mut slow, "held_requests")] {
        assert_eq!(client.reply().await.reason().as_deref(), Some(reason));
    }
}

#[tokio::test]
async fn uploads_of_strangers_leave_room_for_a_known_tenant() {
    let mut upstream = Upstream::answering(&message()).await;
    let forkpoint = Forkpoint::with(&upstream.url(), |config| config.limits.held_requests = 64).await;
    assert_eq!(forkpoint.client().await.ask(&keyed("known", PROMPT)).await.status(), 200);
    upstream.next().await;
    let mut uploads = Vec::new();
    let mut attacker = Http2::connect(&forkpoint).await;
    for number in 0..200 {
        let mut upload = request("POST", "/v1/messages").header("content-length", "1000");
        if number % 2 == 0 {
            upload = upload.header("x-api-key", format!("invented-{number}"));
        }
        let (answer, mut sending) = attacker.start(upload.body(()).unwrap(), false).await;
        sending.send_data(Bytes::from_static(b"{"), false).unwrap();
        uploads.push((answer, sending));
    }
    let exchanges = || forkpoint.metric("forkpoint_exchanges", &[]);
    until("all uploads", || exchanges() == 200.0).await;
    assert_eq!(forkpoint.metric("forkpoint_held", &["requests"]), 16.0, "a quarter");
    for _ in 0..3 {
        let reply = forkpoint.client().await.ask(&keyed("known", PROMPT)).await;
        assert_eq!(reply.head.get("x-forkpoint-plan").as_deref(), Some("aligned"));
    }
}

#[tokio::test]
async fn uploads_of_nobody_take_no_prefix_from_a_forked_child() {
    let stage = Stage::new(|_| ()).await;
    let instruction = "[[sim:fan_out n=3 tool=Agent field=prompt | tools turns=2 calls=1 tool=search]]";
    let told = stage.fan_out(&parent(FREE, instruction)).await;
    let mut first = child(FREE, &told[0]);
    let exchange = stage.send(&first).await;
    assert_eq!(plan(&exchange), FORKED);
    extend(&mut first, &exchange);
    let attackers = flood(&stage.forkpoint, |_| None).await;
    // The next turn of a child that began before, and the first of one that did not.
    for body in [&first, &child(FREE, &told[1])] {
        let exchange = stage.send(body).await;
        assert_eq!((exchange.status, plan(&exchange)), (200, FORKED));
        assert!(usage(&exchange).cache_read > 10_000, "{:?}", usage(&exchange));
    }
    assert_eq!(stage.forkpoint.metric("forkpoint_held", &["requests"]), 0.0, "of nobody nothing is held");
    drop(attackers);
}
