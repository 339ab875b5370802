//! An HTTP/2 client with prior knowledge.

use std::net::SocketAddr;

use bytes::Bytes;
use h2::client::SendRequest;
use http::Request;
use tokio::net::TcpStream;

use super::{Forkpoint, within};

pub struct Http2 {
    send: SendRequest<Bytes>,
}

impl Http2 {
    pub async fn connect(forkpoint: &Forkpoint) -> Http2 {
        Http2::at(forkpoint.address).await
    }

    pub async fn at(address: SocketAddr) -> Http2 {
        let stream = TcpStream::connect(address).await.unwrap();
        let (send, connection) = within("an HTTP/2 handshake", h2::client::handshake(stream)).await.unwrap();
        // It ends by itself, with the last handle or with the connection.
        tokio::spawn(connection);
        Http2 { send }
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
