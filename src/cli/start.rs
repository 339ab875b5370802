//! Starting a proxy in this process: the proxy and its metrics, its port, and the task that serves it.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::error::Elapsed;

use crate::config::Config;
use crate::engine::cache::prices::Prices;
use crate::metrics::Metrics;
use crate::proxy::forward::SetupError;
use crate::proxy::live::Live;
use crate::proxy::{Proxy, server};
use crate::report::StartError;

use super::Failure;

/// Creates a proxy and its metrics.
pub fn proxy(config: Config, prices: Prices) -> Result<(Proxy, Arc<Metrics>), Failure> {
    let metrics = Metrics::new().map_err(|error| Failure::new(format!("metrics: {error}")))?;
    let metrics = Arc::new(metrics);
    let proxy = Proxy::new(config, prices, Arc::clone(&metrics)).map_err(|error| {
        Failure::new(error.to_string()).hint(match error {
            SetupError::Report(StartError::TraceHeaders { .. }) => {
                "write one header per line, as name: value, readable by this user"
            }
            SetupError::Report(StartError::Recording(_)) => {
                "name a file that this user may write, in a folder that exists"
            }
            _ => "install ca-certificates, or set SSL_CERT_FILE to a bundle",
        })
    })?;
    Ok((proxy, metrics))
}

/// Listens on a free port of the loopback interface, and returns its address.
pub async fn free_port() -> Result<(TcpListener, SocketAddr), Failure> {
    let failed = |error| Failure::new(format!("cannot listen on 127.0.0.1: {error}"));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

/// A proxy that serves a listener in a task of its own. Dropping this stops it without waiting.
pub struct ServerTask {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl ServerTask {
    pub fn spawn(listener: TcpListener, proxy: impl Into<Live>) -> ServerTask {
        let live: Live = proxy.into();
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(server::serve(listener, live, stopped));
        ServerTask { stop, task }
    }

    /// Serves a free port of the loopback interface, and returns its address.
    pub async fn on_free_port(proxy: impl Into<Live>) -> Result<(ServerTask, SocketAddr), Failure> {
        let (listener, address) = free_port().await?;
        Ok((ServerTask::spawn(listener, proxy), address))
    }

    /// Accepts nothing more. Returns once the port is free, while running exchanges go on.
    pub async fn stop_accepting(&self) {
        let _ = self.stop.send(true);
        self.stop.closed().await;
    }

    /// Accepts nothing more, and waits until running exchanges are finished or the time is over.
    pub async fn stop(self, within: Duration) -> Result<(), Elapsed> {
        let stopped = async {
            self.stop_accepting().await;
            self.task.await
        };
        tokio::time::timeout(within, stopped).await.map(|_| ())
    }
}
