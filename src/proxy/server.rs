//! The listener of the proxy, which drains without losing a stream.

use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;

use super::door::{Door, Room};
use super::files;
use super::live::Live;

/// The pause after a failed accept, so that the loop does not spin when file descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `stop` is true, then lets running exchanges finish; the caller bounds that time. `stop` is dropped as
/// soon as nothing more is accepted. A connection keeps the limits that it began with, and each of its requests gets the
/// settings in force.
pub async fn serve(listener: TcpListener, proxy: impl Into<Live>, mut stop: watch::Receiver<bool>) {
    let live = proxy.into();
    let door = Door::new(live.now().metrics.connections.with_label_values(&["proxy"]));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stopped(&mut stop) => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let proxy = live.now();
        let limits = proxy.config.limits.clone();
        let exchanges = proxy.exchanges_max();
        let room = Room { idle: files::idle_connections(exchanges), all: files::connections(exchanges) };
        let visit = door.enter(room).await;
        let live = live.clone();
        tokio::spawn(async move {
            visit.serve(stream, &limits, |request| live.now().handle(request)).await;
        });
    }
    drop(listener);
    drop(stop);
    door.close().await;
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}
