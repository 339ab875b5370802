//! What all ports have in common: how their connections are served, how long each may take, and who has to go when
//! there are too many.
//!
//! A connection without an open exchange has `limits.header_s` to begin one, in either version of HTTP: it may be
//! silent, send a preface or headers byte by byte, or answer pings; none of that is a request. When a port has too many
//! such connections, the one that has been without an exchange for longest makes room.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{
    AtomicU8, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use prometheus::IntGauge;
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::config::Limits;

use super::client_io::{Lookout, client_io};
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

/// How often a client that has closed its side is looked after, to see whether it has left.
const RESET_WITHIN: Duration = Duration::from_millis(50);
/// The most connections beyond the limit that were told to go and are not gone yet.
const LEAVING_MAX: usize = 64;

/// The connections of one port.
pub struct Door {
    connections: Mutex<HashMap<u64, Arc<Activity>>>,
    next: AtomicU64,
    gauge: IntGauge,
    /// The number of connections without an exchange.
    idle: Arc<AtomicUsize>,
    /// Told when a connection has ended.
    left: Notify,
}

/// What a connection is doing.
struct Activity {
    began: Instant,
    /// The number of idle connections of its port.
    idle: Arc<AtomicUsize>,
    open: AtomicUsize,
    /// When an exchange last ended, in milliseconds after `began`.
    ended_ms: AtomicU64,
    wish: AtomicU8,
    told: Notify,
    /// The [`Phase`] of its exchange, if that is of HTTP/1.
    phase: AtomicU8,
}

/// What the port wants of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wish {
    Stay,
    /// No more exchanges.
    Finish,
    /// Go at once.
    Leave,
}

/// How far an exchange of HTTP/1 is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// There is none.
    None,
    /// It waits for its answer, in HTTP/1.0.
    Waits,
    /// It waits for its answer, and its client knows interim ones.
    WaitsForMore,
    Answered,
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

    /// `None` if too many are on their way out, which takes them a moment.
    fn try_enter(self: &Arc<Self>, room: Room) -> Option<Visit> {
        let mut connections = self.lock();
        if self.idle.load(Relaxed) >= room.idle || connections.len() >= room.all {
            let (leaving, stay): (Vec<_>, Vec<_>) =
                connections.values().partition(|activity| activity.wish() == Wish::Leave);
            if leaving.len() >= LEAVING_MAX {
                return None;
            }
            if let Some(oldest) = stay.iter().min_by_key(|activity| (activity.is_busy(), activity.since())) {
                oldest.tell(Wish::Leave);
            }
        }
        let number = self.next.fetch_add(1, Relaxed);
        let activity = Arc::new(Activity::new(&self.idle));
        connections.insert(number, Arc::clone(&activity));
        self.gauge.inc();
        Some(Visit { door: Arc::clone(self), number, activity })
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
        let (io, lookout) = client_io(stream, limits.stall);
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
            if activity.wish() == Wish::Leave {
                let _ = timeout(LAST_WORD, connection).await;
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

impl Activity {
    fn new(idle: &Arc<AtomicUsize>) -> Activity {
        idle.fetch_add(1, Relaxed);
        Activity {
            began: Instant::now(),
            idle: Arc::clone(idle),
            open: AtomicUsize::new(0),
            ended_ms: AtomicU64::new(0),
            wish: AtomicU8::new(Wish::Stay as u8),
            told: Notify::new(),
            phase: AtomicU8::new(Phase::None as u8),
        }
    }

    fn is_busy(&self) -> bool {
        self.open.load(Acquire) > 0
    }

    /// Since when it has been without an exchange, if it has none.
    fn since(&self) -> Instant {
        self.began + Duration::from_millis(self.ended_ms.load(Relaxed))
    }

    /// Waits until it has been without an exchange for this long.
    async fn idle_for(&self, limit: Duration) {
        let mut due = self.since() + limit;
        loop {
            sleep_until(due).await;
            let is_idle = !self.is_busy();
            let idle_until = self.since() + limit;
            if is_idle && idle_until <= Instant::now() {
                return;
            }
            due = if is_idle { idle_until } else { Instant::now() + limit };
        }
    }

    /// Waits until the client of an exchange over HTTP/1 has left. Over HTTP/2 hyper hears of it.
    async fn gone(&self, lookout: &Lookout) {
        poll_fn(|cx| if self.is_in(Phase::None) { Poll::Pending } else { lookout.poll_closed(cx) }).await;
        if self.is_in(Phase::Answered) {
            return;
        }
        // A body that broke off has its answer by then.
        sleep(RESET_WITHIN).await;
        if self.is_in(Phase::WaitsForMore) && !lookout.probe() {
            return;
        }
        while !lookout.is_reset() {
            sleep(RESET_WITHIN).await;
        }
    }

    fn is_in(&self, phase: Phase) -> bool {
        self.phase.load(Relaxed) == phase as u8
    }

    fn wish(&self) -> Wish {
        match self.wish.load(Relaxed) {
            wish if wish == Wish::Stay as u8 => Wish::Stay,
            wish if wish == Wish::Finish as u8 => Wish::Finish,
            _ => Wish::Leave,
        }
    }

    fn tell(&self, wish: Wish) {
        self.wish.fetch_max(wish as u8, Relaxed);
        self.told.notify_one();
    }
}

impl Drop for Activity {
    fn drop(&mut self) {
        // An exchange keeps this alive, so that none is open now.
        self.idle.fetch_sub(1, Relaxed);
    }
}

/// An exchange, open until its answer has been handed on.
struct Open(Arc<Activity>);

impl Open {
    fn new(activity: &Arc<Activity>, version: Version) -> Open {
        let phase = match version {
            Version::HTTP_11 => Phase::WaitsForMore,
            Version::HTTP_2 => Phase::None,
            _ => Phase::Waits,
        };
        activity.phase.store(phase as u8, Relaxed);
        if activity.open.fetch_add(1, Relaxed) == 0 {
            activity.idle.fetch_sub(1, Relaxed);
        }
        Open(Arc::clone(activity))
    }

    /// The answer begins.
    fn answered(&self) {
        if !self.0.is_in(Phase::None) {
            self.0.phase.store(Phase::Answered as u8, Relaxed);
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // In this order: whoever sees none open also sees since when.
        let now = self.0.began.elapsed().as_millis() as u64;
        self.0.ended_ms.fetch_max(now, Relaxed);
        self.0.phase.store(Phase::None as u8, Relaxed);
        if self.0.open.fetch_sub(1, Release) == 1 {
            self.0.idle.fetch_add(1, Relaxed);
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
