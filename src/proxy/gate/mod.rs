//! Waiting at the gate: [`Gatekeeper`](crate::engine::gate::Gatekeeper) decides, here its decisions are
//! awaited.
//!
//! Whoever is in the gate holds something that says so when dropped. A request whose client leaves while it
//! waits drops the future of [`Gate::enter`]; one that comes to nothing drops its [`Pass`]. Either way the
//! next one hears of it, so nobody has to remember to tell.
//!
//! ```
//! use forkpoint::engine::gate::{Arrival, Outcome, Settings, Write};
//! use forkpoint::proxy::gate::Gate;
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! let gate = Gate::new(Settings::default(), tokio::time::Instant::now());
//! let writes = vec![Write { entry: "the parent's prefix", tokens: 40_000 }];
//! let deadline = gate.now().after(5_000);
//! let mut pass = gate.enter(Arrival { writes, streams: true, deadline, group: "tenant and model" }).await;
//! assert_eq!(pass.let_go.outcome, Outcome::Led);
//! // The request goes upstream, and its answer's first content arrives:
//! pass.begun();
//! # });
//! ```

mod handoff;

use std::future::poll_fn;
use std::hash::Hash;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::{Instant, timeout_at};

use crate::engine::gate::{Arrival, Lesson, LetGo, Settings, Ticket, Verdict};
use crate::engine::types::Moment;

use crate::proxy::clock::millis;

use handoff::Handoff;

/// Later than anybody waits.
const NEVER: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// The lock of the hand-off. A test builds that file a second time, with a lock that tries other orders.
mod sync {
    pub use std::sync::Mutex;
}

pub struct Gate<K, G> {
    shared: Arc<Shared<K, G>>,
}

struct Shared<K, G> {
    handoff: Handoff<K, G>,
    /// Moments count from here.
    start: Instant,
    skipped_ms: AtomicU64,
    /// How long time ran, if it was stopped.
    stopped: OnceLock<Duration>,
    /// Told when time was skipped.
    skips: Notify,
}

/// The right to go upstream. Dropped before its answer [`began`](Pass::begun), the next one leads.
pub struct Pass<K: Clone + Eq + Hash, G: Clone + Eq + Hash> {
    pub ticket: Ticket,
    pub let_go: LetGo<G>,
    pub held: Duration,
    place: Option<Place<K, G>>,
}

/// A request in the gate, which it leaves when this is dropped.
struct Place<K: Clone + Eq + Hash, G: Clone + Eq + Hash> {
    shared: Arc<Shared<K, G>>,
    ticket: Ticket,
}

impl<K: Clone + Eq + Hash, G: Clone + Eq + Hash> Gate<K, G> {
    /// Deadlines are counted from `start`, in milliseconds.
    pub fn new(settings: Settings, start: Instant) -> Gate<K, G> {
        Gate {
            shared: Arc::new(Shared {
                handoff: Handoff::new(settings),
                start,
                skipped_ms: AtomicU64::new(0),
                stopped: OnceLock::new(),
                skips: Notify::new(),
            }),
        }
    }

    pub fn now(&self) -> Moment {
        self.shared.now()
    }

    /// The request has its place in the order of arrival from this call on, not from when it is first awaited.
    pub fn enter(&self, arrival: Arrival<K, G>) -> impl Future<Output = Pass<K, G>> + use<K, G> {
        let since = self.shared.elapsed();
        let (ticket, mut verdict) = self.shared.handoff.arrive(arrival, self.now());
        let place = Place { shared: self.shared.clone(), ticket };
        async move {
            loop {
                let wait = match verdict {
                    Verdict::Go(let_go) => {
                        break Pass {
                            ticket,
                            let_go,
                            held: place.shared.elapsed() - since,
                            place: Some(place),
                        };
                    }
                    Verdict::Wait(wait) => wait,
                };
                let handoff = &place.shared.handoff;
                let until = place.shared.instant_of(wait.until);
                let news = poll_fn(|cx| handoff.poll(ticket, wait, place.shared.now(), cx));
                verdict = match timeout_at(until, news).await {
                    Ok(verdict) => verdict,
                    Err(_) => handoff.look(ticket, place.shared.now()),
                };
            }
        }
    }

    /// Whether a request with this lesson read what its leader wrote.
    pub fn learned(&self, lesson: Lesson<G>, was_enough: bool) {
        self.shared.handoff.learned(lesson, was_enough);
    }

    /// Lets time pass at once; whoever waited until then is let go.
    pub fn skip(&self, ms: u64) {
        self.shared.skipped_ms.fetch_add(ms, Relaxed);
        self.shared.handoff.ring();
        self.shared.skips.notify_waiters();
    }

    /// From now on time passes only by being skipped.
    pub fn stop(&self) {
        let _ = self.shared.stopped.set(self.shared.start.elapsed());
    }

    /// When it will be that moment, unless time is skipped.
    pub fn instant_of(&self, moment: Moment) -> Instant {
        self.shared.instant_of(moment)
    }

    /// The next time that time is skipped, from this call on.
    pub fn skipped(&self) -> Notified<'_> {
        self.shared.skips.notified()
    }

    /// How many wait, those aside whose time has come and who have not looked yet.
    pub fn waiting(&self) -> usize {
        self.shared.handoff.waiting(self.now())
    }

    /// Until when the first of them waits.
    pub fn next_due(&self) -> Option<Moment> {
        self.shared.handoff.next_due()
    }

    /// Other settings from now on. Who waits already keeps its deadline.
    pub fn configure(&self, settings: Settings) {
        self.shared.handoff.configure(settings);
    }

    /// How many wait, or have gone and not begun.
    pub fn requests(&self) -> usize {
        self.shared.handoff.requests()
    }
}

impl<K, G> Shared<K, G> {
    fn elapsed(&self) -> Duration {
        let ran = self.stopped.get().copied().unwrap_or_else(|| self.start.elapsed());
        ran + Duration::from_millis(self.skipped_ms.load(Relaxed))
    }

    fn instant_of(&self, moment: Moment) -> Instant {
        match self.stopped.get() {
            Some(_) => Instant::now() + NEVER,
            None => {
                let real_ms = moment.0.saturating_sub(self.skipped_ms.load(Relaxed));
                self.start + Duration::from_millis(real_ms)
            }
        }
    }

    fn now(&self) -> Moment {
        Moment(millis(self.elapsed()))
    }
}

impl<K: Clone + Eq + Hash, G: Clone + Eq + Hash> Pass<K, G> {
    /// The first `content_block_start` has come or, for an answer that is not streamed, the answer. What is
    /// warm now should be known before this is called, so that no follower goes and believes it cold.
    pub fn begun(&mut self) {
        if let Some(place) = self.place.take() {
            place.shared.handoff.begun(place.ticket, place.shared.now());
        }
    }

    /// It was refused or broke off, and the next one leads. Dropping says the same.
    pub fn failed(self) {}
}

impl<K: Clone + Eq + Hash, G: Clone + Eq + Hash> Drop for Place<K, G> {
    fn drop(&mut self) {
        self.shared.handoff.gone(self.ticket, self.shared.now());
    }
}

#[cfg(test)]
mod tests;
