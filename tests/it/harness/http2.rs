//! An HTTP/2 client with prior knowledge.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Ping, PingPong};
use http::Request;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::{Forkpoint, within};

pub struct Http2 {
    send: SendRequest<Bytes>,
    pings: PingPong,
    connection: JoinHandle<Result<(), h2::Error>>,
}

impl Http2 {
    pub async fn connect(forkpoint: &Forkpoint) -> Http2 {
        Http2::at(forkpoint.address).await
    }

    pub async fn at(address: SocketAddr) -> Http2 {
        let stream = TcpStream::connect(address).await.unwrap();
        let handshake = within("an HTTP/2 handshake", h2::client::handshake(stream)).await;
        let (send, mut connection) = handshake.unwrap();
        let pings = connection.ping_pong().expect("nobody else pings");
        // It ends by itself, with the last handle or with the connection.
        Http2 { send, pings, connection: tokio::spawn(connection) }
    }

    /// Waits until the other side has closed the connection.
    pub async fn gone(&mut self) {
        let _ = within("the end of the connection", &mut self.connection).await.unwrap();
    }

    /// Sends pings at this pace until the other side has closed the connection.
    pub async fn ping_until_gone(&mut self, pace: Duration) {
        within("the end of the connection", async {
            while self.pings.ping(Ping::opaque()).await.is_ok() {
                tokio::time::sleep(pace).await;
            }
        })
        .await;
        self.gone().await;
    }

    /// Starts a request; without a body the stream ends at once.
    pub async fn start(
        &mut self,
        request: Request<()>,
        end: bool,
    ) -> (h2::client::ResponseFuture, h2::SendStream<Bytes>) {
        let mut ready = within("room for a stream", self.send.clone().ready()).await.unwrap();
        ready.send_request(request, end).unwrap()
    }

    /// A whole exchange.
    pub async fn ask(&mut self, request: Request<()>, body: &[u8]) -> (http::response::Parts, Vec<u8>) {
        let (answer, mut sending) = self.start(request, body.is_empty()).await;
        if !body.is_empty() {
            sending.send_data(Bytes::copy_from_slice(body), true).unwrap();
        }
        let (head, mut incoming) = within("an answer", answer).await.unwrap().into_parts();
        let mut received = Vec::new();
        while let Some(data) = within("more of the answer", incoming.data()).await {
            let data = data.unwrap();
            incoming.flow_control().release_capacity(data.len()).unwrap();
            received.extend_from_slice(&data);
        }
        (head, received)
    }
}

/// A request to forkpoint, as an HTTP/2 client writes it.
pub fn request(method: &str, path: &str) -> http::request::Builder {
    Request::builder().method(method).uri(format!("http://here{path}"))
}
