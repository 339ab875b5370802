//! The accounts of what is in memory: of all, and of each tenant.

use bytes::Bytes;

use super::SHORT;
use crate::bystanders::nobody_waits;
use crate::harness::http2::{Http2, request};
use crate::harness::samples::{EVENT_STREAM, EVENTS, PROMPT};
use crate::harness::{Binary, Bystander, Forkpoint, Peer, Upstream, call, sum, until, within};

const MIB: usize = 1 << 20;
/// The memory that may be taken beyond what a limit names.
const OTHERWISE: usize = 64 * MIB;

/// A Messages call of this many bytes.
fn large_call(bytes: usize) -> Vec<u8> {
    let text = "x".repeat(bytes);
    let body =
        format!(r#"{{"model":"claude-x","max_tokens":9,"messages":[{{"role":"user","content":"{text}"}}]}}"#);
    call(body.as_bytes())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bodies_of_open_streams_are_bounded_and_given_back() {
    nobody_waits("large bodies", || async {
        const STREAMS: usize = 60;
        let upstream = Upstream::bind().await;
        let settings = [("LIMITS__HELD_BYTES", "64 MiB"), ("STORE__RECENT_BYTES", "64 MiB")];
        let binary = Binary::serve(&upstream.url(), &settings).await;
        let bystander = Bystander::beside(&binary);
        let request = large_call(16 * MIB);
        let mut streams = Vec::new();
        for _ in 0..STREAMS {
            let mut client = binary.client().await;
            client.send(&request).await;
            let (mut server, received) = upstream.asked().await;
            assert_eq!(received.body.len(), request.len() - received_head(&request));
            server.send(EVENT_STREAM).await;
            server.send_chunk(EVENTS[0].as_bytes()).await;
            client.through(EVENTS[0].as_bytes()).await;
            streams.push((client, server));
        }
        let memory = binary.memory();
        // Bodies that nobody accepted yet, prompts of open answers, and remembered ones.
        assert!(memory < 3 * 64 * MIB + OTHERWISE, "{} MiB for {STREAMS} open streams", memory / MIB);
        for (client, server) in &mut streams {
            for event in &EVENTS[1..] {
                server.send_chunk(event.as_bytes()).await;
            }
            server.send(b"0\r\n\r\n").await;
            client.through(b"0\r\n\r\n").await;
        }
        drop(streams);
        // What is remembered of the conversations is bounded by store.recent_bytes.
        let small = || binary.memory() < 64 * MIB + OTHERWISE;
        until("the memory to be given back", small).await;
        let held = crate::harness::sum(&binary.admin("/metrics").await.1, "forkpoint_held", &[]);
        assert_eq!(held, 0.0);
        bystander.longest_wait().await
    })
    .await;
}

/// A body of small parts takes many times its bytes once it was read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_read_of_bodies_is_bounded_too() {
    nobody_waits("bodies of many blocks", || async {
        const STREAMS: usize = 40;
        const BLOCKS: usize = 100_000;
        let upstream = Upstream::bind().await;
        let settings = [("LIMITS__HELD_BYTES", "64 MiB"), ("STORE__RECENT_BYTES", "64 MiB")];
        let binary = Binary::serve(&upstream.url(), &settings).await;
        let bystander = Bystander::beside(&binary);
        let mut streams = Vec::new();
        for number in 0..STREAMS {
            let blocks = vec!["1"; BLOCKS].join(",");
            let body = format!(
                r#"{{"model":"claude-x","max_tokens":9,"messages":[{{"role":"user","content":"{number}"}},{{"role":"user","content":[{blocks}]}}]}}"#
            );
            let mut client = binary.client().await;
            client.send(&call(body.as_bytes())).await;
            let (mut server, received) = upstream.asked().await;
            assert_eq!(received.body.len(), body.len());
            server.send(EVENT_STREAM).await;
            server.send_chunk(EVENTS[0].as_bytes()).await;
            client.through(EVENTS[0].as_bytes()).await;
            streams.push((client, server));
        }
        let memory = binary.memory();
        // As for large bodies: not accepted yet, prompts of open answers, and remembered ones.
        assert!(memory < 3 * 64 * MIB + OTHERWISE, "{} MiB for {STREAMS} open streams", memory / MIB);
        let metrics = binary.admin("/metrics").await.1;
        let refused = sum(&metrics, "forkpoint_passthrough_total", &["held_bytes"])
            + sum(&metrics, "forkpoint_unfollowed_total", &["prompt"]);
        assert!(refused > 0.0, "{metrics}");
        bystander.longest_wait().await
    })
    .await;
}

fn received_head(request: &[u8]) -> usize {
    request.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4
}

#[tokio::test]
async fn open_streams_do_not_use_up_the_bytes_for_others() {
    let upstream = Upstream::bind().await;
    let limit = 64 * PROMPT.len();
    let forkpoint = Forkpoint::with(&upstream.url(), |config| config.limits.held_bytes = limit).await;
    let mut streams: Vec<(Peer, Peer)> = Vec::new();
    for _ in 0..100 {
        let mut client = forkpoint.client().await;
        client.send(&call(PROMPT)).await;
        let (mut server, _) = upstream.asked().await;
        server.send(EVENT_STREAM).await;
        let head = client.head().await;
        assert_eq!(head.get("x-forkpoint-plan").as_deref(), Some("aligned"), "{head:?}");
        streams.push((client, server));
    }
    assert_eq!(forkpoint.metric("forkpoint_held", &["unit=\"bytes\""]), 0.0);
    let (followed, limit) = (forkpoint.metric("forkpoint_held", &["unit=\"prompt_bytes\""]), limit as f64);
    assert!(followed > limit / 2.0 && followed < limit, "{followed} of {limit}");
    assert!(forkpoint.metric("forkpoint_unfollowed_total", &["prompt"]) > 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn observed_answers_have_a_common_bound() {
    nobody_waits("large answers", || async {
        const STREAMS: usize = 40;
        const CHUNKS: usize = 15 * 16;
        let upstream = Upstream::bind().await;
        let settings = [("LIMITS__HELD_BYTES", "64 MiB"), ("STORE__RECENT_BYTES", "64 MiB")];
        let binary = Binary::serve(&upstream.url(), &settings).await;
        let bystander = Bystander::beside(&binary);
        let text = "x".repeat(64 << 10);
        let delta = format!(
            "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{{\"type\":\"text_delta\",\"text\":\"{text}\"}}}}\n\n"
        );
        let mut streams = Vec::new();
        for _ in 0..STREAMS {
            let mut client = binary.client().await;
            client.send(&call(PROMPT)).await;
            let (mut server, _) = upstream.asked().await;
            server.send(EVENT_STREAM).await;
            for event in &EVENTS[..2] {
                server.send_chunk(event.as_bytes()).await;
            }
            let answering = async {
                for _ in 0..CHUNKS {
                    server.send_chunk(delta.as_bytes()).await;
                }
            };
            tokio::join!(answering, client.exactly(CHUNKS * delta.len()));
            streams.push((client, server));
        }
        let memory = binary.memory();
        // What was read of answers, and what is remembered.
        assert!(memory < 2 * 64 * MIB + OTHERWISE, "{} MiB for {STREAMS} answers of 15 MiB", memory / MIB);
        for (client, server) in &mut streams {
            for event in &EVENTS[3..] {
                server.send_chunk(event.as_bytes()).await;
            }
            server.send(b"0\r\n\r\n").await;
            client.through(b"0\r\n\r\n").await;
        }
        // What was forgotten is still billed.
        let metrics = async || binary.admin("/metrics").await.1;
        within("all bills", async {
            let billed = async || crate::harness::sum(&metrics().await, "forkpoint_tokens_total", &["output"]);
            while billed().await < (5 * STREAMS) as f64 {}
        })
        .await;
        assert!(crate::harness::sum(&metrics().await, "forkpoint_unfollowed_total", &["answer"]) > 0.0);
        bystander.longest_wait().await
    })
    .await;
}

#[tokio::test]
async fn an_upload_that_trickles_ends() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::with(&upstream.url(), |config| config.limits.stall = SHORT * 2).await;
    for target in ["/v1/messages", "/v1/files"] {
        let mut client = forkpoint.client().await;
        let head =
            format!("POST {target} HTTP/1.1\r\nhost: h\r\nx-api-key: k\r\ncontent-length: 1000000\r\n\r\n");
        client.send(head.as_bytes()).await;
        // Each byte comes in time, and all of them never would.
        let trickle = async {
            while client.try_send(b"x").await.is_ok() {
                tokio::time::sleep(SHORT / 10).await;
            }
        };
        within("the end of patience with a trickle", trickle).await;
    }
    until("no exchange", || forkpoint.metric("forkpoint_exchanges", &[]) == 0.0).await;
    assert_eq!(forkpoint.metric("forkpoint_refused_total", &["client_stalled"]), 2.0);
}

#[tokio::test]
async fn an_upload_over_http_2_that_trickles_ends() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::with(&upstream.url(), |config| config.limits.stall = SHORT * 2).await;
    let mut client = Http2::connect(&forkpoint).await;
    for target in ["/v1/messages", "/v1/files"] {
        let upload = request("POST", target).header("x-api-key", "k").header("content-length", "1000000");
        let (answer, mut sending) = client.start(upload.body(()).unwrap(), false).await;
        let trickle = async {
            while sending.send_data(Bytes::from_static(b"x"), false).is_ok() {
                tokio::time::sleep(SHORT / 10).await;
            }
            std::future::pending().await
        };
        let answer = async { answer.await.unwrap().status().as_u16() };
        let ended = async {
            tokio::select! {
                status = answer => status,
                () = trickle => unreachable!(),
            }
        };
        assert_eq!(within("the end of patience with a trickle", ended).await, 408, "{target}");
    }
    until("no exchange", || forkpoint.metric("forkpoint_exchanges", &[]) == 0.0).await;
}
