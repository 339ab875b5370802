//! The listener: it limits connections, cuts off slow clients, and drains without losing a stream.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::config::Limits;

use super::error::Fault;
use super::live::Live;
use super::slow_reader::StreamTasks;
use super::stall::Stall;

/// The most headers of a request, more than any client sends. [`READ_BYTES_MAX`] bounds their bytes.
const HEADERS_MAX: usize = 100;
/// The most bytes of the headers of an HTTP/2 request.
const HEADER_BYTES_MAX: usize = 64 * 1024;
/// The most bytes that are read from an HTTP/1.1 connection at once, which also bounds its headers. A body is
/// copied out of this buffer as it comes, so it should fit into the processor's caches; a few more reads cost less.
const READ_BYTES_MAX: usize = 128 * 1024;
/// The most open streams of one HTTP/2 connection; a fan-out of hundreds opens more connections.
const STREAMS_MAX: u32 = 256;
/// The most streams that a client may reset before they are answered; it ends a rapid-reset attack.
const RESET_STREAMS_MAX: usize = 32;
const H2_PING_EVERY: Duration = Duration::from_secs(30);
/// The start of an HTTP/2 connection. While the received bytes may still become this, the version is unknown, and
/// hyper's own deadline for headers does not run yet.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The most connections beyond `limits.connections` that get an answer, so that their clients know the reason.
const DOORSTEP: usize = 256;
/// The pause after a failed accept, so that the loop does not spin when file descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `stop` is true, then lets running exchanges finish; the caller bounds that time. A connection keeps
/// the limits that it began with, and each of its requests gets the settings in force.
pub async fn serve(listener: TcpListener, proxy: impl Into<Live>, mut stop: watch::Receiver<bool>) {
    let live = proxy.into();
    let (places, doorstep) = (Arc::<Places>::default(), Arc::<Places>::default());
    let graceful = GracefulShutdown::new();
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
        let _ = stream.set_nodelay(true);
        let limits = live.now().config.limits.clone();
        let io = TokioIo::new(ClientIo::new(stream, &limits));
        let (live, watcher) = (live.clone(), graceful.watcher());
        // Beyond that, connections are closed without an answer.
        let Some(place) = Place::wanted(&places, limits.connections, &doorstep) else { continue };
        tokio::spawn(async move {
            let builder = builder(&limits);
            let service = service_fn(|request| {
                let proxy = live.now();
                let admitted = place.is_taken(proxy.config.limits.connections);
                async move {
                    if admitted { proxy.handle(request).await } else { Ok(proxy.refuse(Fault::Connections)) }
                }
            });
            let connection = builder.serve_connection(io, service);
            if let Err(error) = watcher.watch(connection).await {
                tracing::debug!(error, "connection ended");
            }
        });
    }
    drop(listener);
    graceful.shutdown().await;
}

/// The number of places that are taken. The limit may change, so it is passed with each call.
#[derive(Default)]
struct Places(AtomicUsize);

/// A place that is taken, given back when dropped.
struct Taken(Arc<Places>);

impl Places {
    fn take(self: &Arc<Self>, max: usize) -> Option<Taken> {
        let more = |taken: usize| (taken < max).then_some(taken + 1);
        self.0.fetch_update(Relaxed, Relaxed, more).ok()?;
        Some(Taken(self.clone()))
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Relaxed);
    }
}

/// The place of a connection among `limits.connections` or the [`DOORSTEP`], given back when dropped.
struct Place {
    places: Arc<Places>,
    taken: OnceLock<Taken>,
    _doorstep: Option<Taken>,
}

impl Place {
    fn wanted(places: &Arc<Places>, max: usize, doorstep: &Arc<Places>) -> Option<Place> {
        let mut place = Place { places: places.clone(), taken: OnceLock::new(), _doorstep: None };
        if !place.is_taken(max) {
            place._doorstep = Some(doorstep.take(DOORSTEP)?);
        }
        Some(place)
    }

    /// Returns true if the connection has a place, and tries to take one if not: a connection that came while there
    /// was none may get one for a later request.
    fn is_taken(&self, max: usize) -> bool {
        if self.taken.get().is_none()
            && let Some(taken) = self.places.take(max)
        {
            let _ = self.taken.set(taken);
        }
        self.taken.get().is_some()
    }
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

fn builder(limits: &Limits) -> Builder<StreamTasks> {
    let mut builder = Builder::new(StreamTasks { stall: limits.stall });
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header)
        .max_headers(HEADERS_MAX)
        .max_buf_size(READ_BYTES_MAX)
        .auto_date_header(false);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_pending_accept_reset_streams(RESET_STREAMS_MAX)
        .max_local_error_reset_streams(RESET_STREAMS_MAX)
        .max_header_list_size(HEADER_BYTES_MAX as u32)
        .keep_alive_interval(H2_PING_EVERY)
        .auto_date_header(false);
    builder
}

/// A client's connection with a limit on stalls, before its first request and while it takes an answer.
struct ClientIo {
    stream: TcpStream,
    /// The part of [`PREFACE`] that may still come; empty once the version is known.
    undecided: &'static [u8],
    preface: Stall,
    write: Stall,
}

impl ClientIo {
    fn new(stream: TcpStream, limits: &Limits) -> ClientIo {
        let (preface, write) = (Stall::new(limits.header), Stall::new(limits.stall));
        ClientIo { stream, undecided: PREFACE, preface, write }
    }

    fn written(&mut self, polled: Poll<io::Result<usize>>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match polled {
            Poll::Pending => self
                .write
                .poll_expired(cx)
                .map(|()| Err(io::Error::new(io::ErrorKind::TimedOut, "client stalled"))),
            ready => {
                self.write.progress();
                ready
            }
        }
    }
}

impl AsyncRead for ClientIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if !self.undecided.is_empty() {
            let came = &buffer.filled()[before..];
            self.undecided = match self.undecided.strip_prefix(came) {
                Some(rest) => rest,
                None => &[],
            };
            // The whole preface has one deadline, so that a client cannot send it byte by byte.
            if polled.is_pending() {
                let late = || io::Error::new(io::ErrorKind::TimedOut, "no request in time");
                return self.preface.poll_expired(cx).map(|()| Err(late()));
            }
        }
        polled
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.written(polled, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.written(polled, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
