//! What all ports have in common: how their connections are served, how long each may take, and who has to go when
//! there are too many.
//!
//! A connection without an open exchange has `limits.header_s` to begin one, in either version of HTTP: it may be
//! silent, send a preface or headers byte by byte, or answer pings; none of that is a request. When a port has too many
//! such connections, or too many bytes of such headers, the one that has been without an exchange for longest makes room.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use prometheus::IntGauge;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::config::Limits;

use super::activity::{Activity, IdleSums, Open, Wish};
use super::client_io::{Came, client_io};
use super::forward::BoxError;
use super::slow_reader::StreamTasks;

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
/// The time for a last word to a client that has to make room.
const LAST_WORD: Duration = Duration::from_millis(100);

/// The most bytes of an answer that a client may leave for later without being busy: more than any that we give ourselves.
const SMALL_ANSWER_BYTES: u64 = 4096;
/// The most bytes of a body that come ahead on one HTTP/2 connection, and on one stream of it. They are in no account, and
/// are taken as they come.
const H2_CONNECTION_WINDOW: u32 = 512 * 1024;
const H2_STREAM_WINDOW: u32 = 256 * 1024;
/// The most bytes of an answer that wait for their client on one HTTP/2 stream. They are in no account.
const H2_SEND_BYTES_MAX: usize = 64 * 1024;

/// The most connections beyond the limit that have time for a last word, and the most that were cut and are not gone yet.
const LEAVING_MAX: usize = 64;
/// The most bytes of headers that are not there to the end, on all connections of one port.
const IDLE_BYTES_MAX: usize = 32 * 1024 * 1024;

/// The connections of one port.
pub struct Door {
    connections: Mutex<HashMap<u64, Arc<Activity>>>,
    next: AtomicU64,
    gauge: IntGauge,
    idle: Arc<IdleSums>,
    /// Told when a connection has ended.
    left: Notify,
}

/// The most connections of a port.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    pub idle: usize,
    /// Idle ones included.
    pub all: usize,
}

/// A place at a [`Door`], given back when dropped.
pub struct Visit {
    door: Arc<Door>,
    number: u64,
    activity: Arc<Activity>,
}

impl Door {
    pub fn new(gauge: IntGauge) -> Arc<Door> {
        let (connections, next, idle, left) = Default::default();
        Arc::new(Door { connections, next, gauge, idle, left })
    }

    /// Lets a connection in. If that is one too many, the one that has been idle for longest has to go, or the oldest
    /// if none is idle.
    pub async fn enter(self: &Arc<Self>, room: Room) -> Visit {
        loop {
            let left = self.left.notified();
            if let Some(visit) = self.try_enter(room) {
                return visit;
            }
            left.await;
        }
    }

    /// `None` if too many were cut and are not gone yet, which takes them a moment.
    fn try_enter(self: &Arc<Self>, room: Room) -> Option<Visit> {
        let mut connections = self.lock();
        if self.idle.connections.load(Relaxed) >= room.idle || connections.len() >= room.all {
            let (leaving, stay): (Vec<_>, Vec<_>) =
                connections.iter().partition(|(_, activity)| activity.wish() >= Wish::Leave);
            if leaving.len() >= LEAVING_MAX {
                // A client that does not go when it is told to keeps nobody from coming in.
                let has_time = leaving.iter().filter(|(_, activity)| activity.wish() == Wish::Leave);
                if let Some((_, oldest)) = has_time.min_by_key(|(number, _)| **number) {
                    oldest.tell(Wish::Cut);
                }
            }
            if leaving.len() >= 2 * LEAVING_MAX {
                return None;
            }
            let stay = stay.into_iter().map(|(_, activity)| activity);
            if let Some(oldest) = stay.min_by_key(|activity| (activity.is_busy(), activity.since())) {
                oldest.tell(Wish::Leave);
            }
        }
        let number = self.next.fetch_add(1, Relaxed);
        let activity = Arc::new(Activity::new(&self.idle));
        connections.insert(number, Arc::clone(&activity));
        self.gauge.inc();
        Some(Visit { door: Arc::clone(self), number, activity })
    }

    /// Of the idle connections on which bytes came, the one that has been idle for longest has to go.
    fn shed(&self) {
        let connections = self.lock();
        let may_go = |activity: &&Arc<Activity>| {
            activity.has_bytes() && !activity.is_busy() && activity.wish() < Wish::Leave
        };
        if let Some(oldest) = connections.values().filter(may_go).min_by_key(|activity| activity.since()) {
            oldest.forget_bytes();
            oldest.tell(Wish::Leave);
        }
    }

    /// Lets running exchanges finish, and waits until every connection has ended.
    pub async fn close(&self) {
        self.lock().values().for_each(|activity| activity.tell(Wish::Finish));
        loop {
            let left = self.left.notified();
            if self.lock().is_empty() {
                return;
            }
            left.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<Activity>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.door.lock().remove(&self.number);
        self.door.gauge.dec();
        self.door.left.notify_waiters();
    }
}

impl Visit {
    /// Counts the bytes that come. When there are too many on idle connections, one of those has to go.
    fn counting(&self) -> Came {
        let (door, activity) = (Arc::clone(&self.door), Arc::clone(&self.activity));
        Box::new(move |bytes| {
            if activity.came(bytes) > IDLE_BYTES_MAX {
                door.shed();
            }
        })
    }

    /// Serves a connection to its end.
    pub async fn serve<B, F>(
        self,
        stream: TcpStream,
        limits: &Limits,
        answer: impl Fn(Request<Incoming>) -> F,
    ) where
        F: Future<Output = Response<B>> + Send + 'static,
        B: Answer + Unpin + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let _ = stream.set_nodelay(true);
        let activity = &self.activity;
        let service = service_fn(|request| {
            let open = Open::new(activity, request.version());
            // Not an async block, which would hold the future twice: as it was captured, and as it is awaited.
            answer(request).map(move |response| {
                open.answered();
                Ok::<_, Infallible>(response.map(|body| Counted::new(body, open)))
            })
        });
        let builder = builder(limits);
        let (io, lookout) = client_io(stream, limits.stall, self.counting());
        let mut connection = pin!(builder.serve_connection(TokioIo::new(io), service));
        let mut gone = pin!(activity.gone(&lookout));
        loop {
            tokio::select! {
                biased;
                ended = connection.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(error, "connection ended");
                    }
                    return;
                }
                () = gone.as_mut() => return,
                () = activity.told.notified() => {}
                () = activity.idle_for(limits.header) => break,
            }
            connection.as_mut().graceful_shutdown();
            if activity.wish() >= Wish::Leave {
                tokio::select! {
                    _ = timeout(LAST_WORD, connection) => {}
                    () = activity.until(Wish::Cut) => {}
                }
                return;
            }
        }
        connection.as_mut().graceful_shutdown();
        // What was answered last may not have been taken yet, and a request may have been on its way.
        let cut = async {
            while {
                sleep(limits.stall).await;
                activity.is_busy()
            } {}
        };
        tokio::select! {
            _ = connection => {}
            () = cut => {}
        }
    }
}

/// The body of an answer.
pub trait Answer: Body<Data = Bytes> {
    /// Returns true if all of it is in memory. An exchange ends with such an answer, if that is small, whether its client
    /// takes it or not: otherwise a client that grants no room would keep its connection, which has no place, for nothing.
    fn is_at_hand(&self) -> bool;
}

/// The body of an answer, which keeps its exchange open.
struct Counted<B> {
    body: B,
    _open: Option<Open>,
}

impl<B: Answer> Counted<B> {
    fn new(body: B, open: Open) -> Counted<B> {
        let bytes = body.size_hint().exact().filter(|bytes| *bytes <= SMALL_ANSWER_BYTES);
        let has_ended = bytes.is_some() && body.is_at_hand();
        Counted { body, _open: (!has_ended).then_some(open) }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Counted<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn builder(limits: &Limits) -> Builder<StreamTasks> {
    let mut builder = Builder::new(StreamTasks { stall: limits.stall });
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header)
        .half_close(true)
        .max_headers(HEADERS_MAX)
        .max_buf_size(READ_BYTES_MAX)
        .auto_date_header(false);
    builder
        .http2()
        .timer(TokioTimer::new())
        .initial_connection_window_size(H2_CONNECTION_WINDOW)
        .initial_stream_window_size(H2_STREAM_WINDOW)
        .max_send_buf_size(H2_SEND_BYTES_MAX)
        .max_concurrent_streams(STREAMS_MAX)
        .max_pending_accept_reset_streams(RESET_STREAMS_MAX)
        .max_local_error_reset_streams(RESET_STREAMS_MAX)
        .max_header_list_size(HEADER_BYTES_MAX as u32)
        .keep_alive_interval(H2_PING_EVERY)
        .auto_date_header(false);
    builder
}
