//! Bytes move when they come, and wait nowhere.

use crate::harness::samples::{EVENT_STREAM, EVENTS, OK, PROMPT};
use crate::harness::{Binary, Forkpoint, Upstream, call, get};

const MIB: usize = 1024 * 1024;

#[tokio::test]
async fn an_event_reaches_the_client_before_the_next_is_written() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut client = forkpoint.client().await;
    client.send(&call(PROMPT)).await;
    let (mut server, _) = upstream.asked().await;
    server.send(EVENT_STREAM).await;
    assert_eq!(client.head().await.status(), 200);
    for event in EVENTS {
        server.send_chunk(event.as_bytes()).await;
        // Nothing else is on its way, so this can only be the event just written.
        let came = client.through(b"\n\n\r\n").await;
        assert!(String::from_utf8(came).unwrap().contains(event));
    }
    server.send(b"0\r\n\r\n").await;
    client.through(b"0\r\n\r\n").await;
    forkpoint.recorded(1).await;
    assert_eq!(forkpoint.metric("forkpoint_tokens_total", &["output"]), 5.0);
}

#[tokio::test]
async fn an_event_cut_anywhere_into_chunks_is_relayed_and_counted() {
    let stream: String = EVENTS.concat();
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut client = forkpoint.client().await;
    let mut server = None;
    for (round, size) in [1, 2, 3, 7, 64].into_iter().enumerate() {
        client.send(&call(PROMPT)).await;
        let mut peer = match server.take() {
            Some(peer) => peer,
            None => upstream.accept().await,
        };
        peer.request().await;
        let mut answer = EVENT_STREAM.to_vec();
        for piece in stream.as_bytes().chunks(size) {
            answer.extend(format!("{:x}\r\n", piece.len()).bytes().chain(piece.iter().copied()));
            answer.extend(b"\r\n");
        }
        peer.send(&[&answer[..], b"0\r\n\r\n"].concat()).await;
        assert_eq!(client.reply().await.body, stream.as_bytes());
        forkpoint.recorded(round as u32 + 1).await;
        assert_eq!(forkpoint.metric("forkpoint_tokens_total", &["output"]), 5.0 * (round as f64 + 1.0));
        server = Some(peer);
    }
}

#[tokio::test]
async fn what_came_before_a_break_arrives_before_it() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    for _ in 0..20 {
        let mut client = forkpoint.client().await;
        client.send(&call(PROMPT)).await;
        let (mut server, _) = upstream.asked().await;
        let chunk = |event: &str| format!("{:x}\r\n{event}\r\n", event.len());
        let chunks: String = EVENTS[..4].iter().map(|event| chunk(event)).collect();
        server.send(&[EVENT_STREAM, chunks.as_bytes()].concat()).await;
        drop(server);
        let (came, _) = client.rest().await;
        let came = String::from_utf8(came).unwrap();
        assert!(came.ends_with(&chunk(EVENTS[3])), "{came}");
    }
}

#[tokio::test]
async fn an_upload_streams_while_its_answer_streams() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut client = forkpoint.client().await;
    client.send(b"POST /v1/files HTTP/1.1\r\nhost: here\r\ntransfer-encoding: chunked\r\n\r\n").await;
    let mut server = upstream.accept().await;
    server.head().await;
    server.send(EVENT_STREAM).await;
    client.head().await;
    for round in 0..5 {
        let (up, down) = (format!("up{round}"), format!("down{round}"));
        client.send_chunk(up.as_bytes()).await;
        server.through(up.as_bytes()).await;
        server.send_chunk(down.as_bytes()).await;
        client.through(down.as_bytes()).await;
    }
    client.send(b"0\r\n\r\n").await;
    server.through(b"0\r\n\r\n").await;
    server.send(b"0\r\n\r\n").await;
    client.through(b"0\r\n\r\n").await;
    forkpoint.recorded(1).await;
}

#[tokio::test]
async fn an_answer_that_comes_before_the_upload_ends_is_relayed() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut client = forkpoint.client().await;
    client.send(b"POST /v1/files HTTP/1.1\r\nhost: here\r\ncontent-length: 1000000\r\n\r\nstart").await;
    let mut server = upstream.accept().await;
    server.through(b"start").await;
    server.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\nconnection: close\r\n\r\nbig").await;
    drop(server);
    let reply = client.reply().await;
    assert_eq!((reply.status(), &reply.body[..]), (413, &b"big"[..]));
    forkpoint.recorded(1).await;
    forkpoint.still_works(&upstream).await;
}

#[tokio::test]
async fn an_early_answer_survives_the_rest_of_the_upload() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut client = forkpoint.client().await;
    let head = format!("POST /v1/files HTTP/1.1\r\nhost: here\r\ncontent-length: {}\r\n\r\n", 64 * MIB);
    client.send(head.as_bytes()).await;
    let mut server = upstream.accept().await;
    server.head().await;
    client.fill_up(32 * MIB).await;
    server.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\nconnection: close\r\n\r\nbig").await;
    forkpoint.recorded(1).await;
    drop(server);
    // As most clients do: it goes on sending before it reads.
    let _ = client.try_send(&vec![b'x'; 8 * MIB]).await;
    let reply = client.reply().await;
    assert_eq!((reply.status(), &reply.body[..]), (413, &b"big"[..]));
}

#[tokio::test]
async fn a_client_that_does_not_read_stops_the_upstream() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut client = forkpoint.client().await;
    client.send(&get("/v1/files/x/content")).await;
    let (mut server, _) = upstream.asked().await;
    server.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", 512 * MIB).as_bytes()).await;
    // What the sockets of the system hold, and a small multiple of a buffer of ours.
    let taken = server.fill_up(512 * MIB).await;
    assert!(taken < 64 * MIB, "{taken} bytes were taken from the upstream");
    drop(client);
    server.gone().await;
}

#[tokio::test]
async fn an_upstream_that_does_not_read_stops_the_client() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let mut client = forkpoint.client().await;
    let head = format!("POST /v1/files HTTP/1.1\r\nhost: here\r\ncontent-length: {}\r\n\r\n", 512 * MIB);
    client.send(head.as_bytes()).await;
    let mut server = upstream.accept().await;
    server.head().await;
    let taken = client.fill_up(512 * MIB).await;
    assert!(taken < 64 * MIB, "{taken} bytes were taken from the client");
}

#[tokio::test]
async fn neither_an_upload_nor_a_download_sits_in_memory() {
    const SIZE: usize = 64 * MIB;
    let upstream = Upstream::bind().await;
    let binary = Binary::serve(&upstream.url(), &[]).await;
    // The first request pays for what every process needs once.
    let mut client = binary.client().await;
    client.send(&get("/")).await;
    let (mut server, _) = upstream.asked().await;
    server.send(OK).await;
    client.reply().await;
    let before = binary.peak_memory();

    let block = vec![b'x'; MIB];
    // Larger than limits.body_bytes on the second path, so that it spills there.
    for target in ["/v1/files", "/v1/messages"] {
        let head = format!("POST {target} HTTP/1.1\r\nhost: here\r\ncontent-length: {SIZE}\r\n\r\n");
        let sending = async {
            client.send(head.as_bytes()).await;
            for _ in 0..SIZE / MIB {
                client.send(&block).await;
            }
        };
        let receiving = async {
            server.head().await;
            for _ in 0..SIZE / MIB {
                server.exactly(MIB).await;
            }
            server.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {SIZE}\r\n\r\n").as_bytes()).await;
        };
        tokio::join!(sending, receiving);
        let sending = async {
            for _ in 0..SIZE / MIB {
                server.send(&block).await;
            }
        };
        let receiving = async {
            assert_eq!(client.head().await.status(), 200);
            for _ in 0..SIZE / MIB {
                client.exactly(MIB).await;
            }
        };
        tokio::join!(sending, receiving);
    }
    // Buffers and what the allocator keeps of them, whatever the size of a body.
    let grown = binary.peak_memory().saturating_sub(before);
    assert!(grown < SIZE * 3 / 4, "peak memory grew by {grown} bytes");
}
