//! Connections that tenants share: upstream connections, and those of a gateway that speaks for many of them. No byte and
//! no header of one is ever seen by another.

use crate::harness::http2::{self, Http2};
use crate::harness::peer::Reply;
use crate::harness::samples::{EVENT_STREAM, EVENTS, OK, answer};
use crate::harness::{Forkpoint, Peer, Upstream, get, post, until};

const TENANTS: usize = 8;

/// The sign of a tenant: its key, and a part of whatever it says.
fn sign(tenant: usize) -> String {
    format!("sign-of-{tenant}-")
}

/// A Messages call that has the tenant's sign in its key, in headers of its own and in its body.
fn signed(tenant: usize) -> Vec<u8> {
    let sign = sign(tenant);
    let headers =
        format!("x-api-key: {sign}\r\ncookie: {sign}\r\nx-of-{tenant}: {sign}\r\nanthropic-beta: {sign}\r\n");
    post("/v1/messages", &headers, prompt(&sign).as_bytes())
}

fn prompt(sign: &str) -> String {
    format!(
        r#"{{"model":"claude-x","max_tokens":9,"system":"{sign}","messages":[{{"role":"user","content":"{sign}"}}]}}"#
    )
}

/// An answer that has the sign in its headers and in its body.
fn answer_with(sign: &str) -> Vec<u8> {
    let body = format!(r#"{{"id":"msg_{sign}","type":"message","content":[]}}"#);
    answer(
        &format!("content-type: application/json\r\nset-cookie: {sign}\r\nrequest-id: {sign}\r\n"),
        body.as_bytes(),
    )
}

/// The tenants whose signs are in these bytes.
fn tenants_in(bytes: &[u8]) -> Vec<usize> {
    let text = String::from_utf8_lossy(bytes);
    (0..TENANTS).filter(|tenant| text.contains(&sign(*tenant))).collect()
}

fn everything(message: &Reply) -> Vec<u8> {
    [&message.head.raw[..], &message.body, message.trailers.concat().as_bytes()].concat()
}

/// What the upstream was asked, answered with the sign of its key.
fn echo(asked: &Reply) -> Vec<u8> {
    answer_with(&asked.head.get("x-api-key").unwrap())
}

#[tokio::test]
async fn an_upstream_connection_serves_one_tenant_after_the_other_and_keeps_nothing_of_them() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut server: Option<Peer> = None;
    for turn in 0..3 * TENANTS {
        let tenant = turn % TENANTS;
        let mut client = forkpoint.client().await;
        client.send(&signed(tenant)).await;
        let server = match &mut server {
            Some(server) => server,
            none => none.insert(upstream.accept().await),
        };
        let asked = server.request().await;
        assert_eq!(tenants_in(&everything(&asked)), [tenant], "{:?}", asked.head);
        let names = asked.head.names();
        let own = format!("x-of-{tenant}");
        assert_eq!(names, ["anthropic-beta", "content-length", "cookie", "host", "x-api-key", &own]);
        server.send(&echo(&asked)).await;
        let reply = client.reply().await;
        assert_eq!((reply.status(), tenants_in(&everything(&reply))), (200, vec![tenant]));
    }
}

#[tokio::test]
async fn a_connection_on_which_many_tenants_speak_gives_each_its_own() {
    let upstream = Upstream::answering_with(echo).await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut gateway = forkpoint.client().await;
    for turn in 0..3 * TENANTS {
        let tenant = turn * 5 % TENANTS;
        let reply = gateway.ask(&signed(tenant)).await;
        assert_eq!((reply.status(), tenants_in(&everything(&reply))), (200, vec![tenant]));
    }
    // Written all at once, answered one after the other.
    let all: Vec<u8> = (0..TENANTS).flat_map(signed).collect();
    gateway.send(&all).await;
    for tenant in 0..TENANTS {
        let reply = gateway.reply().await;
        assert_eq!((reply.status(), tenants_in(&everything(&reply))), (200, vec![tenant]));
    }
}

#[tokio::test]
async fn streams_of_many_tenants_on_one_connection_get_their_own_answers() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut gateway = Http2::connect(&forkpoint).await;
    let mut open = Vec::new();
    for tenant in 0..TENANTS {
        let sign = sign(tenant);
        let request = http2::request("POST", "/v1/messages").header("x-api-key", &sign).body(()).unwrap();
        let (answer, mut sending) = gateway.start(request, false).await;
        sending.send_data(prompt(&sign).into(), true).unwrap();
        open.push((answer, sending));
    }
    let mut servers = Vec::new();
    for _ in 0..TENANTS {
        let (mut server, asked) = upstream.asked().await;
        let [tenant] = tenants_in(&everything(&asked))[..] else { panic!("{asked:?}") };
        server.send(EVENT_STREAM).await;
        servers.push((tenant, server));
    }
    // A piece of each in turn, so that all of them are under way together.
    for event in EVENTS {
        for (tenant, server) in &mut servers {
            server
                .send_chunk(event.replace("msg_1", &sign(*tenant)).replace("hi", &sign(*tenant)).as_bytes())
                .await;
        }
    }
    for (_, server) in &mut servers {
        server.send(b"0\r\n\r\n").await;
    }
    for (tenant, (answer, _sending)) in open.into_iter().enumerate() {
        let mut incoming = answer.await.unwrap().into_body();
        let mut came = Vec::new();
        while let Some(data) = incoming.data().await {
            let data = data.unwrap();
            incoming.flow_control().release_capacity(data.len()).unwrap();
            came.extend_from_slice(&data);
        }
        assert_eq!(tenants_in(&came), [tenant]);
        assert!(came.ends_with(EVENTS[5].as_bytes()), "a whole answer");
    }
}

/// How an exchange of the first tenant leaves its upstream connection.
#[derive(Clone, Copy, Debug)]
enum Leaves {
    /// With a part of its answer still to come.
    WithinTheAnswer,
    /// With a part of its body still to be sent.
    WithinTheUpload,
    /// Answered before its body was sent, and with a body that never ends.
    AnsweredEarly,
    /// With an answer that nobody asked for behind its own.
    WithASecondAnswer,
    /// With more bytes behind its answer than were announced.
    WithMoreThanAnnounced,
    /// With an answer of a length that nobody knows.
    WithoutALength,
}

/// Plays that exchange on a new connection of the upstream, which is returned.
async fn leave(how: Leaves, forkpoint: &Forkpoint, upstream: &Upstream) -> Peer {
    let mut client = forkpoint.client().await;
    let upload =
        post("/v1/files", &format!("x-api-key: {}\r\n", sign(0)), &sign(0).repeat(1_000).into_bytes());
    let whole = !matches!(how, Leaves::WithinTheUpload | Leaves::AnsweredEarly);
    let request = if whole { signed(0) } else { upload[..upload.len() / 2].to_vec() };
    client.send(&request).await;
    let mut server = upstream.accept().await;
    match how {
        Leaves::WithinTheAnswer => {
            server.request().await;
            server.send(EVENT_STREAM).await;
            server.send_chunk(EVENTS[0].as_bytes()).await;
            client.through(EVENTS[0].as_bytes()).await;
        }
        Leaves::WithinTheUpload => drop(server.head().await),
        Leaves::AnsweredEarly => {
            server.head().await;
            server.send(&answer_with(&sign(0))).await;
            assert_eq!(client.reply().await.status(), 200);
        }
        Leaves::WithASecondAnswer => {
            server.request().await;
            server.send(&answer_with(&sign(0)).repeat(2)).await;
            assert_eq!(client.reply().await.status(), 200);
        }
        Leaves::WithMoreThanAnnounced => {
            server.request().await;
            server.send(&[OK, sign(0).as_bytes()].concat()).await;
            assert_eq!(client.reply().await.body, b"ok");
        }
        Leaves::WithoutALength => {
            server.request().await;
            server.send(b"HTTP/1.1 200 OK\r\n\r\n").await;
            server.send(sign(0).as_bytes()).await;
            client.through(sign(0).as_bytes()).await;
        }
    }
    drop(client);
    server
}

#[tokio::test]
async fn an_upstream_connection_with_a_rest_of_one_tenant_serves_no_other() {
    for how in [
        Leaves::WithinTheAnswer,
        Leaves::WithinTheUpload,
        Leaves::AnsweredEarly,
        Leaves::WithASecondAnswer,
        Leaves::WithMoreThanAnnounced,
        Leaves::WithoutALength,
    ] {
        let upstream = Upstream::bind().await;
        let forkpoint = Forkpoint::before(&upstream.url()).await;
        let mut left = leave(how, &forkpoint, &upstream).await;
        until("the end of the first exchange", || forkpoint.metric("forkpoint_exchanges", &[]) == 0.0).await;
        let mut client = forkpoint.client().await;
        client.send(&signed(1)).await;
        let (mut server, asked) = upstream.asked().await;
        assert_eq!(tenants_in(&everything(&asked)), [1], "{how:?}");
        server.send(&echo(&asked)).await;
        let reply = client.reply().await;
        assert_eq!((reply.status(), tenants_in(&everything(&reply))), (200, vec![1]), "{how:?}");
        // What is sent on the old one reaches nobody, and nothing of the second tenant is there.
        let _ = left.try_send(&answer_with(&sign(0))).await;
        let (rest, _) = left.rest().await;
        assert!(!tenants_in(&rest).contains(&1), "{how:?}");
    }
}

#[tokio::test]
async fn an_idle_upstream_connection_on_which_something_came_serves_nobody() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut client = forkpoint.client().await;
    client.send(&get("/first")).await;
    let (mut idle, _) = upstream.asked().await;
    idle.send(OK).await;
    assert_eq!(client.reply().await.status(), 200);
    idle.send(&answer_with(&sign(0))).await;
    idle.gone().await;
    let mut other = forkpoint.client().await;
    other.send(&signed(1)).await;
    let (mut server, asked) = upstream.asked().await;
    server.send(&echo(&asked)).await;
    assert_eq!(tenants_in(&everything(&other.reply().await)), [1]);
}
