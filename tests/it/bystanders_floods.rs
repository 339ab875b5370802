//! Nobody waits for the floods of others: forkpoint as a process, a probe, and somebody who asks for little beside them.

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::bystanders::nobody_waits;
use crate::fork::talk::{events, streamed};
use crate::harness::http2::{Http2, request};
use crate::harness::samples::{PROMPT, message};
use crate::harness::upstream::Answering;
use crate::harness::{Binary, Bystander, Peer, Upstream, post, sum, within};

/// An upstream that answers everything but what is to hang.
async fn upstream() -> Answering {
    let answer = |hangs: bool| if hangs { Vec::new() } else { message() };
    Upstream::answering_with(move |request| answer(request.head.line().contains("/hangs"))).await
}

/// Somebody who is known, beside a probe and a client that is answered at once.
async fn beside(binary: &Binary) -> [Bystander; 2] {
    let ask = post("/v1/messages", "x-api-key: bystander\r\nconnection: close\r\n", PROMPT);
    assert_eq!(binary.client().await.ask(&ask).await.status(), 200);
    [Bystander::beside(binary), Bystander::asking(vec![(binary.proxy, ask, 200)])]
}

async fn longest_wait(bystanders: [Bystander; 2]) -> std::time::Duration {
    let [one, other] = bystanders;
    one.longest_wait().await.max(other.longest_wait().await)
}

/// Waits until so many exchanges are under way or were refused.
async fn seen(binary: &Binary, count: usize) {
    within("all of the flood", async {
        let metrics = async || binary.admin("/metrics").await.1;
        loop {
            let text = metrics().await;
            let refused = sum(&text, "forkpoint_refused_total", &["connections"]);
            if sum(&text, "forkpoint_exchanges", &[]) + refused >= count as f64 {
                return;
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_uploads_of_one_byte() {
    let upstream = upstream().await;
    nobody_waits("uploads of one byte", || async {
        let binary = Binary::serve(&upstream.url(), &[]).await;
        let bystanders = beside(&binary).await;
        let (mut attackers, mut uploads) = (Vec::new(), Vec::new());
        for number in 0..8 {
            let mut attacker = Http2::at(binary.proxy).await;
            for stream in 0..128 {
                let mut upload = request("POST", "/v1/messages").header("content-length", "1000");
                if number % 2 == 0 {
                    upload = upload.header("x-api-key", format!("invented-{number}-{stream}"));
                }
                let (answer, mut sending) = attacker.start(upload.body(()).unwrap(), false).await;
                // It may have been refused already.
                let _ = sending.send_data(Bytes::from_static(b"{"), false);
                uploads.push((answer, sending));
            }
            attackers.push(attacker);
        }
        seen(&binary, uploads.len()).await;
        longest_wait(bystanders).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_streams_that_hang() {
    let upstream = upstream().await;
    nobody_waits("streams that hang", || async {
        let binary = Binary::serve_with_files(&upstream.url(), 1_024).await;
        let bystanders = beside(&binary).await;
        let (mut attackers, mut streams) = (Vec::new(), Vec::new());
        for _ in 0..4 {
            let mut attacker = Http2::at(binary.proxy).await;
            for _ in 0..256 {
                streams.push(attacker.start(request("GET", "/hangs").body(()).unwrap(), true).await);
            }
            attackers.push(attacker);
        }
        seen(&binary, streams.len()).await;
        longest_wait(bystanders).await
    })
    .await;
}

/// The beginning of a connection of HTTP/2 whose streams are reset as soon as they are opened.
fn resets() -> Vec<u8> {
    const STREAMS: u32 = 500;
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    let fields = b"\x82\x86\x84\x41\x04here";
    for number in 0..STREAMS {
        let stream = (2 * number + 1).to_be_bytes();
        bytes.extend([&[0, 0, fields.len() as u8, 1, 5][..], &stream, fields].concat());
        bytes.extend([&[0, 0, 4, 3, 0][..], &stream, &[0, 0, 0, 8]].concat());
    }
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_streams_that_are_reset_and_for_bytes_that_make_no_sense() {
    let (upstream, resets) = (upstream().await, resets());
    let garbage: Vec<u8> = (0..20_000_u32).map(|at| (at * 31 % 251) as u8).collect();
    nobody_waits("resets", || async {
        let binary = Binary::serve(&upstream.url(), &[]).await;
        let bystanders = beside(&binary).await;
        for _ in 0..100 {
            for bytes in [&resets, &garbage] {
                let mut attacker = Peer::connect(binary.proxy).await;
                // It may be cut off at any byte.
                let _ = attacker.try_send(bytes).await;
            }
        }
        longest_wait(bystanders).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_room_that_is_made_among_many_tenants() {
    const TENANTS: usize = 1_000;
    let upstream = upstream().await;
    let text = "as was said before ".repeat(600);
    nobody_waits("many tenants", || async {
        let binary = Binary::serve(&upstream.url(), &[("STORE__RECENT_BYTES", "4 MiB")]).await;
        let bystanders = beside(&binary).await;
        let mut client = binary.client().await;
        for number in 0..TENANTS {
            let body = format!(
                r#"{{"model":"claude-x","max_tokens":9,"messages":[{{"role":"user","content":"{number} {text}"}}]}}"#
            );
            let call = post("/v1/messages", &format!("x-api-key: tenant-{number}\r\n"), body.as_bytes());
            assert_eq!(client.ask(&call).await.status(), 200);
        }
        longest_wait(bystanders).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_a_huge_call_of_a_tool_on_one_core() {
    const MEMBERS: usize = 400_000;
    let mut input: Map<String, Value> =
        (0..MEMBERS).map(|number| (format!("member {number}"), json!("as was said"))).collect();
    input.insert(
        "prompt".to_owned(),
        json!("Look around, and say in one line what there is to be seen in here."),
    );
    let call = json!({"type": "tool_use", "id": "toolu_1", "name": "Agent", "input": {}});
    let delta = |piece: &[u8]| {
        let delta = json!({"type": "input_json_delta", "partial_json": std::str::from_utf8(piece).unwrap()});
        let event = json!({"type": "content_block_delta", "index": 0, "delta": delta});
        format!("event: content_block_delta\ndata: {event}\n\n")
    };
    let mut events = events("msg_1", 9, &[call]);
    let input = Value::Object(input).to_string();
    events.splice(2..3, input.as_bytes().chunks(16 << 10).map(delta));
    let (huge, small) = (streamed(&events), message());
    let answer = move |is_huge: bool| if is_huge { huge.clone() } else { small.clone() };
    let upstream = Upstream::answering_with(move |request| {
        answer(request.head.get("x-api-key").as_deref() == Some("hostile"))
    })
    .await;
    nobody_waits("a huge call", || async {
        let binary = Binary::serve_on_one_core(&upstream.url(), &[]).await;
        let bystanders = beside(&binary).await;
        let call = post("/v1/messages", "x-api-key: hostile\r\n", PROMPT);
        for _ in 0..3 {
            assert_eq!(binary.client().await.ask(&call).await.status(), 200);
        }
        longest_wait(bystanders).await
    })
    .await;
}
