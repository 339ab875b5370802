//! The listening side: connections within limits, slow clients cut off, a drain that loses no stream.

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

/// More request headers than any client sends. Their bytes are bounded by [`READ_BYTES_MAX`].
const HEADERS_MAX: usize = 100;
/// HTTP/2 headers together.
const HEADER_BYTES_MAX: usize = 64 * 1024;
/// So much is read from a connection at once over HTTP/1.1, where it also bounds the headers. A body is copied out of that
/// buffer as it comes, so the buffer had better stay in the processor's caches; a few more reads cost less.
const READ_BYTES_MAX: usize = 128 * 1024;
/// Streams one HTTP/2 connection may have open; a fan-out of hundreds opens more connections.
const STREAMS_MAX: u32 = 256;
/// Streams that a client may reset before we have answered them; a rapid-reset attack ends here.
const RESET_STREAMS_MAX: usize = 32;
const H2_PING_EVERY: Duration = Duration::from_secs(30);
/// How an HTTP/2 connection begins. While the bytes could still become this, no version is known and hyper's
/// own deadline for headers does not run yet.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Connections beyond `limits.connections` that are answered, so that their clients know why.
const DOORSTEP: usize = 256;
/// A pause after a failed accept (file descriptors run out), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until `stop` turns true, then lets running exchanges finish. The caller bounds that wait.
/// A connection keeps the limits that it began with, and each request on it brings its own settings.
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
        // A flood is not worth an answer.
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

/// How many places are taken. How many there are may change, so it is said by whoever wants one.
#[derive(Default)]
struct Places(AtomicUsize);

/// One of them, given back when dropped.
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

/// One connection's place among `limits.connections`, or on the doorstep; given back with it.
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

    /// Asked again for each request: a connection that came too early is not refused for life.
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

/// A client's connection that may not stall: neither before its first request, nor while an answer waits
/// to be taken.
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
            // Bytes that trickle in are no progress: the whole preface has one deadline.
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
