//! An upstream behind TLS, by whichever version of HTTP it chooses.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;

use bytes::Bytes;
use futures_util::stream;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use tokio::sync::mpsc;

use crate::harness::samples::{EVENTS, PROMPT};
use crate::harness::tls::Authority;
use crate::harness::{Binary, call, within};

async fn echoing(authority: &Authority) -> SocketAddr {
    authority
        .listen(async |stream| {
            let builder = Builder::new(TokioExecutor::new());
            let _ = builder.serve_connection(TokioIo::new(stream), service_fn(echo)).await;
        })
        .await
}

async fn echo(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let target = head.uri.path_and_query().unwrap();
    let answer = Response::builder()
        .header("x-asked", format!("{:?} {} {target}", head.version, head.method))
        .header("x-names", head.headers.keys().map(|name| name.as_str()).collect::<Vec<_>>().join(" "));
    Ok(answer.body(Full::new(body)).unwrap())
}

#[tokio::test]
async fn http_1_and_http_2_are_spoken_as_the_upstream_chooses() {
    for (alpn, version, host) in [(&b"http/1.1"[..], "HTTP/1.1", " host"), (b"h2", "HTTP/2.0", "")] {
        let authority = Authority::new(alpn);
        let url = format!("https://{}/base", echoing(&authority).await);
        let binary = Binary::serve(&url, &[("SSL_CERT_FILE", &authority.root())]).await;
        let mut client = binary.client().await;
        for _ in 0..3 {
            let reply = client.ask(&call(PROMPT)).await;
            assert_eq!((reply.status(), &reply.body[..]), (200, PROMPT));
            let asked = reply.head.get("x-asked").unwrap();
            assert_eq!(asked, format!("{version} POST /base/v1/messages"));
            let names = reply.head.get("x-names").unwrap();
            let mut names: Vec<_> = names.split(' ').collect();
            names.sort_unstable();
            assert_eq!(names.join(" "), format!("content-length content-type{host} x-api-key"));
        }
    }
}

#[tokio::test]
async fn a_certificate_that_nobody_vouches_for_is_an_unreachable_upstream() {
    let (ours, theirs) = (Authority::new(b"http/1.1"), Authority::new(b"http/1.1"));
    let url = format!("https://{}", echoing(&theirs).await);
    let binary = Binary::serve(&url, &[("SSL_CERT_FILE", &ours.root())]).await;
    let reply = binary.client().await.ask(&call(PROMPT)).await;
    reply.is_refusal(502, "upstream_unreachable");
    assert!(reply.error().1.contains(&url), "{:?}", reply.error());
}

/// The other end of an answer's body: frames to send, closed when the answer is not wanted any more.
type Answering = mpsc::Sender<Result<Frame<Bytes>, io::Error>>;

/// An upstream whose answers are streams in the hands of the test, at most `streams` on one connection.
async fn streaming(authority: &Authority, streams: u32) -> (SocketAddr, mpsc::UnboundedReceiver<Answering>) {
    let (asking, asked) = mpsc::unbounded_channel();
    let address = authority
        .listen(move |stream| {
            let asking = asking.clone();
            async move {
                let mut builder = Builder::new(TokioExecutor::new());
                builder.http2().max_concurrent_streams(streams);
                let service = service_fn(|_: Request<Incoming>| {
                    let (answering, frames) = mpsc::channel(1);
                    asking.send(answering).unwrap();
                    let body =
                        stream::unfold(frames, async |mut frames| Some((frames.recv().await?, frames)));
                    let answer = Response::builder().header("content-type", "text/event-stream");
                    let answer = answer.body(StreamBody::new(Box::pin(body))).unwrap();
                    async move { Ok::<_, Infallible>(answer) }
                });
                let _ = builder.serve_connection(TokioIo::new(stream), service).await;
            }
        })
        .await;
    (address, asked)
}

#[tokio::test]
async fn a_client_that_leaves_and_an_upstream_that_breaks_are_noticed_over_tls() {
    for alpn in [&b"http/1.1"[..], b"h2"] {
        let authority = Authority::new(alpn);
        let (address, mut asked) = streaming(&authority, 100).await;
        let settings = [("SSL_CERT_FILE", &authority.root()[..]), ("LOG__FORMAT", "json")];
        let binary = Binary::serve(&format!("https://{address}"), &settings).await;

        let mut client = binary.client().await;
        client.send(&call(PROMPT)).await;
        let answering = within("a request", asked.recv()).await.unwrap();
        answering.send(Ok(Frame::data(EVENTS[0].into()))).await.unwrap();
        client.through(b"\n\n").await;
        drop(client);
        within("the end of an unwanted answer", answering.closed()).await;
        assert_eq!(binary.records(1).await[0]["ending"], "client_left");

        let mut client = binary.client().await;
        client.send(&call(PROMPT)).await;
        let answering = within("a request", asked.recv()).await.unwrap();
        answering.send(Ok(Frame::data(EVENTS[0].into()))).await.unwrap();
        client.through(b"\n\n").await;
        answering.send(Err(io::Error::other("cut"))).await.unwrap();
        assert!(!client.rest().await.0.ends_with(b"0\r\n\r\n"));
        assert_eq!(binary.records(2).await[1]["ending"], "upstream_broke");
    }
}

#[tokio::test]
async fn more_streams_than_one_connection_carries_do_not_wait_for_each_other() {
    const STREAMS: usize = 250;
    let authority = Authority::new(b"h2");
    let (address, mut asked) = streaming(&authority, 100).await;
    let settings = [("SSL_CERT_FILE", &authority.root()[..])];
    let binary = Binary::serve(&format!("https://{address}"), &settings).await;
    let (mut clients, mut running) = (Vec::new(), Vec::new());
    for _ in 0..STREAMS {
        let mut client = binary.client().await;
        client.send(&call(PROMPT)).await;
        clients.push(client);
        // None of the earlier ones has ended.
        running.push(within("a request behind many running streams", asked.recv()).await.unwrap());
    }
    drop(running);
    for client in &mut clients {
        assert_eq!(client.reply().await.status(), 200);
    }
}
