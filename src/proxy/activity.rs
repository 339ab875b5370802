//! What a connection is doing: whether an exchange is open on it, since when none is, and what its port wants of it.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU8, AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};
use std::task::Poll;
use std::time::Duration;

use http::Version;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use super::client_io::Lookout;

/// How often a client that has closed its side is looked after, to see whether it has left.
const RESET_WITHIN: Duration = Duration::from_millis(50);

/// The connections of one port that have no exchange, and the bytes on them. They are in no account.
#[derive(Default)]
pub struct IdleSums {
    pub connections: AtomicUsize,
    /// The bytes that came on them since their last exchange: of requests whose headers are not there to the end.
    pub bytes: AtomicUsize,
}

/// What a connection is doing.
pub struct Activity {
    began: Instant,
    idle: Arc<IdleSums>,
    open: AtomicUsize,
    /// The bytes that came since its last exchange.
    bytes: AtomicUsize,
    /// When an exchange last ended, in milliseconds after `began`.
    ended_ms: AtomicU64,
    wish: AtomicU8,
    pub told: Notify,
    /// The [`Phase`] of its exchange, if that is of HTTP/1.
    phase: AtomicU8,
}

/// What the port wants of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wish {
    Stay,
    /// No more exchanges.
    Finish,
    /// Go at once, with a last word.
    Leave,
    /// The time for that is over.
    Cut,
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

impl Activity {
    pub fn new(idle: &Arc<IdleSums>) -> Activity {
        idle.connections.fetch_add(1, Relaxed);
        Activity {
            began: Instant::now(),
            idle: Arc::clone(idle),
            open: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            ended_ms: AtomicU64::new(0),
            wish: AtomicU8::new(Wish::Stay as u8),
            told: Notify::new(),
            phase: AtomicU8::new(Phase::None as u8),
        }
    }

    pub fn is_busy(&self) -> bool {
        self.open.load(Acquire) > 0
    }

    /// Since when it has been without an exchange, if it has none.
    pub fn since(&self) -> Instant {
        self.began + Duration::from_millis(self.ended_ms.load(Relaxed))
    }

    /// Waits until it has been without an exchange for this long.
    pub async fn idle_for(&self, limit: Duration) {
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
    pub async fn gone(&self, lookout: &Lookout) {
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

    /// More bytes have come. Returns the bytes of all idle connections of the port if this one is idle, 0 if not.
    pub fn came(&self, bytes: usize) -> usize {
        if self.is_busy() {
            return 0;
        }
        // In this order: nobody takes from the sum what is not in it yet.
        let all = self.idle.bytes.fetch_add(bytes, Relaxed) + bytes;
        self.bytes.fetch_add(bytes, Relaxed);
        all
    }

    /// Returns true if bytes came since its last exchange.
    pub fn has_bytes(&self) -> bool {
        self.bytes.load(Relaxed) > 0
    }

    /// The bytes that came are those of an exchange now, or go with the connection.
    pub fn forget_bytes(&self) {
        self.idle.bytes.fetch_sub(self.bytes.swap(0, Relaxed), Relaxed);
    }

    /// Waits until its port wants this of it, or more.
    pub async fn until(&self, wish: Wish) {
        while self.wish() < wish {
            self.told.notified().await;
        }
    }

    fn is_in(&self, phase: Phase) -> bool {
        self.phase.load(Relaxed) == phase as u8
    }

    pub fn wish(&self) -> Wish {
        match self.wish.load(Relaxed) {
            wish if wish == Wish::Stay as u8 => Wish::Stay,
            wish if wish == Wish::Finish as u8 => Wish::Finish,
            wish if wish == Wish::Leave as u8 => Wish::Leave,
            _ => Wish::Cut,
        }
    }

    pub fn tell(&self, wish: Wish) {
        self.wish.fetch_max(wish as u8, Relaxed);
        self.told.notify_one();
    }
}

impl Drop for Activity {
    fn drop(&mut self) {
        // An exchange keeps this alive, so that none is open now.
        self.forget_bytes();
        self.idle.connections.fetch_sub(1, Relaxed);
    }
}

/// An exchange, open until its answer has been handed on.
pub struct Open(Arc<Activity>);

impl Open {
    pub fn new(activity: &Arc<Activity>, version: Version) -> Open {
        let phase = match version {
            Version::HTTP_11 => Phase::WaitsForMore,
            Version::HTTP_2 => Phase::None,
            _ => Phase::Waits,
        };
        activity.phase.store(phase as u8, Relaxed);
        if activity.open.fetch_add(1, Relaxed) == 0 {
            activity.forget_bytes();
            activity.idle.connections.fetch_sub(1, Relaxed);
        }
        Open(Arc::clone(activity))
    }

    /// The answer begins.
    pub fn answered(&self) {
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
            self.0.idle.connections.fetch_add(1, Relaxed);
        }
    }
}
