//! Somebody else, who asks for little while something hostile goes on.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use super::{Binary, Peer, samples};

/// The pause before each question.
const PAUSE: Duration = Duration::from_millis(5);

/// Asks over and over, each time on a connection of its own, and notes how long it had to wait.
pub struct Bystander {
    is_over: Arc<AtomicBool>,
    asks: JoinHandle<Duration>,
}

impl Bystander {
    /// A probe of the admin port, and a client of the proxy that is answered without the upstream.
    pub fn beside(binary: &Binary) -> Bystander {
        let tunnel = b"CONNECT here:443 HTTP/1.1\r\nhost: here:443\r\n\r\n";
        Bystander::asking(vec![
            (binary.admin, samples::HEALTH.to_vec(), 200),
            (binary.proxy, tunnel.to_vec(), 501),
        ])
    }

    /// Sends these requests to these ports, and expects these statuses.
    pub fn asking(requests: Vec<(SocketAddr, Vec<u8>, u16)>) -> Bystander {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let asks = tokio::spawn(async move {
            let mut longest = Duration::ZERO;
            while !over.load(SeqCst) {
                for (address, request, status) in &requests {
                    let began = Instant::now();
                    let reply = Peer::connect(*address).await.ask(request).await;
                    assert_eq!(reply.status(), *status);
                    longest = longest.max(began.elapsed());
                }
                tokio::time::sleep(PAUSE).await;
            }
            longest
        });
        Bystander { is_over, asks }
    }

    /// Ends, and returns the longest that it had to wait.
    pub async fn longest_wait(self) -> Duration {
        self.is_over.store(true, SeqCst);
        self.asks.await.unwrap()
    }
}
