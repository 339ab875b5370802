//! An upstream of our own: the test itself is its script.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::peer::{Peer, Reply};
use super::within;

pub struct Upstream {
    address: SocketAddr,
    listener: TcpListener,
}

/// An upstream that gives the same answer to everybody, and tells what it was asked.
pub struct Answering {
    address: SocketAddr,
    asked: mpsc::UnboundedReceiver<Reply>,
}

impl Upstream {
    pub async fn bind() -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Upstream { address: listener.local_addr().unwrap(), listener }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The next connection.
    pub async fn accept(&self) -> Peer {
        Peer::new(within("a connection to the upstream", self.listener.accept()).await.unwrap().0)
    }

    /// The next connection and the whole request on it.
    pub async fn asked(&self) -> (Peer, Reply) {
        let mut peer = self.accept().await;
        let request = peer.request().await;
        (peer, request)
    }

    /// Answers every request on every connection with these bytes.
    pub async fn answering(answer: &[u8]) -> Answering {
        let answer = answer.to_vec();
        Upstream::answering_with(move |_| answer.clone()).await
    }

    /// Answers every request on every connection with what this makes of it.
    pub async fn answering_with(answer: impl Fn(&Reply) -> Vec<u8> + Send + Sync + 'static) -> Answering {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (asking, asked) = mpsc::unbounded_channel();
        let answer = Arc::new(answer);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (asking, answer) = (asking.clone(), answer.clone());
                tokio::spawn(async move {
                    let mut peer = Peer::new(stream);
                    while let Some(head) = peer.try_head().await {
                        let (body, trailers) = peer.body(&head).await;
                        let request = Reply { head, body, trailers };
                        let answer = answer(&request);
                        let _ = asking.send(request);
                        if peer.try_send(&answer).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        Answering { address, asked }
    }
}

impl Answering {
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Everything that was asked until now.
    pub fn so_far(&mut self) -> Vec<Reply> {
        std::iter::from_fn(|| self.asked.try_recv().ok()).collect()
    }

    /// Waits for the next request.
    pub async fn next(&mut self) -> Reply {
        within("a request at the upstream", self.asked.recv()).await.unwrap()
    }
}
