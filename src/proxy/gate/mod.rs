//! Waiting at the gate: [`Gatekeeper`](crate::engine::gate::Gatekeeper) decides, here its decisions are
//! awaited.
//!
//! Whoever is in the gate holds something that says so when dropped. A request whose client leaves while it
//! waits drops the future of [`Gate::enter`]; one that comes to nothing drops its [`Pass`]. Either way the
//! next one hears of it, so nobody has to remember to tell.
//!
//! ```
//! use std::sync::Arc;
//!
//! use forkpoint::engine::gate::{Arrival, Settings, Write};
//! use forkpoint::engine::words::GateOutcome;
//! use forkpoint::proxy::clock::Clock;
//! use forkpoint::proxy::gate::Gate;
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! let clock = Arc::new(Clock::new());
//! let gate = Gate::new(Settings::default(), Arc::clone(&clock));
//! let writes = vec![Write { entry: "the parent's prefix", tokens: 40_000 }];
//! let deadline = clock.now().after(5_000);
//! let mut pass = gate.enter(Arrival { writes, streams: true, deadline, group: "tenant and model" }).await;
//! assert_eq!(pass.let_go.outcome, GateOutcome::Led);
//! // The request goes upstream, and its answer's first content arrives:
//! pass.begun();
//! # });
//! ```

mod handoff;

use std::future::poll_fn;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::gate::{Arrival, Lesson, LetGo, Settings, Ticket, Verdict};
use crate::engine::words::Moment;
use crate::proxy::clock::Clock;

use handoff::Handoff;

/// The lock of the hand-off. A test builds that file a second time, with a lock that tries other orders.
mod sync {
    pub use std::sync::Mutex;
}

pub struct Gate<K, G> {
    shared: Arc<Shared<K, G>>,
}

struct Shared<K, G> {
    handoff: Handoff<K, G>,
    clock: Arc<Clock>,
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
    pub fn new(settings: Settings, clock: Arc<Clock>) -> Gate<K, G> {
        Gate { shared: Arc::new(Shared { handoff: Handoff::new(settings), clock }) }
    }

    /// The request has its place in the order of arrival from this call on, not from when it is first awaited.
    pub fn enter(&self, arrival: Arrival<K, G>) -> impl Future<Output = Pass<K, G>> + use<K, G> {
        let since = self.shared.clock.elapsed();
        let (ticket, mut verdict) = self.shared.handoff.arrive(arrival, self.shared.clock.now());
        let place = Place { shared: self.shared.clone(), ticket };
        async move {
            loop {
                let wait = match verdict {
                    Verdict::Go(let_go) => {
                        break Pass {
                            ticket,
                            let_go,
                            held: place.shared.clock.elapsed() - since,
                            place: Some(place),
                        };
                    }
                    Verdict::Wait(wait) => wait,
                };
                let handoff = &place.shared.handoff;
                let clock = &place.shared.clock;
                verdict = tokio::select! {
                    biased;
                    verdict = poll_fn(|cx| handoff.poll(ticket, wait, clock.now(), cx)) => verdict,
                    () = clock.sleep_until(wait.until) => handoff.look(ticket, clock.now()),
                };
            }
        }
    }

    /// Learns from a request with this lesson: `was_enough` is true if it read what its leader wrote.
    pub fn learned(&self, lesson: Lesson<G>, was_enough: bool) {
        self.shared.handoff.learned(lesson, was_enough);
    }

    /// How many wait, those aside whose time has come and who have not looked yet.
    pub fn waiting(&self) -> usize {
        self.shared.handoff.waiting(self.shared.clock.now())
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

impl<K: Clone + Eq + Hash, G: Clone + Eq + Hash> Pass<K, G> {
    /// The first `content_block_start` has come or, for an answer that is not streamed, the answer. What is
    /// warm now should be known before this is called, so that no follower goes and believes it cold.
    pub fn begun(&mut self) {
        if let Some(place) = self.place.take() {
            place.shared.handoff.begun(place.ticket, place.shared.clock.now());
        }
    }

    /// It was refused or broke off, and the next one leads. Dropping says the same.
    pub fn failed(self) {}
}

impl<K: Clone + Eq + Hash, G: Clone + Eq + Hash> Drop for Place<K, G> {
    fn drop(&mut self) {
        self.shared.handoff.gone(self.ticket, self.shared.clock.now());
    }
}

#[cfg(test)]
mod tests;
