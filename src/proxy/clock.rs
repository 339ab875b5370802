//! The clock of moments: all that is remembered, expires or waits goes by it. The engine gets its moments as arguments.
//!
//! What is only measured, and what bounds a single operation, reads the system's clock instead: the durations of a record,
//! stalls of a connection, the breaker and the queue of a store, flushes of a report, and the commands. Time that is
//! skipped here does not pass for these. The memory, the configuration and the admin port read no clock at all; a test
//! checks that.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

use crate::engine::records::Times;
use crate::engine::words::Moment;

/// Longer than any wait.
const NEVER: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// The first moment of a clock. What was read from a store was long before that, and is a moment too: no record lives
/// longer than a month.
pub(super) const START: Moment = Moment(40 * 24 * 60 * 60 * 1_000);

/// Returns a duration in milliseconds, the unit of the engine.
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A clock that counts milliseconds, from [`START`] on. Tests and `replay` stop it and skip time: an hour of
/// traffic is played in a second, and everything that is remembered or waits sees the hour pass.
#[derive(Debug)]
pub struct Clock {
    start: Instant,
    skipped_ms: AtomicU64,
    /// The time that it ran before it was stopped.
    stopped: OnceLock<Duration>,
    /// Notified whenever time is skipped.
    skips: Notify,
}

impl Clock {
    pub fn new() -> Clock {
        Clock {
            start: Instant::now(),
            skipped_ms: AtomicU64::new(0),
            stopped: OnceLock::new(),
            skips: Notify::new(),
        }
    }

    pub fn now(&self) -> Moment {
        START.after(millis(self.elapsed()))
    }

    /// Returns this moment, also by the calendar.
    pub fn times(&self) -> Times {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Times { now: self.now(), unix_ms: millis(unix).saturating_add(self.skipped_ms()) }
    }

    /// Returns the time since the start, including skipped time.
    pub fn elapsed(&self) -> Duration {
        let ran = self.stopped.get().copied().unwrap_or_else(|| self.start.elapsed());
        ran + Duration::from_millis(self.skipped_ms())
    }

    /// Stops the clock: from now on only [`Clock::skip`] lets time pass.
    pub fn stop(&self) {
        let _ = self.stopped.set(self.start.elapsed());
    }

    /// Returns the milliseconds that were skipped.
    pub fn skipped_ms(&self) -> u64 {
        self.skipped_ms.load(Relaxed)
    }

    /// Skips time, and wakes every task that waits for a moment.
    pub fn skip(&self, ms: u64) {
        self.skipped_ms.fetch_add(ms, Relaxed);
        self.skips.notify_waiters();
    }

    /// Waits until this moment has come.
    pub async fn sleep_until(&self, moment: Moment) {
        loop {
            let skipped = self.skipped();
            if self.now() >= moment {
                return;
            }
            tokio::select! {
                () = skipped => {}
                () = tokio::time::sleep_until(self.instant_of(moment)) => {}
            }
        }
    }

    /// Returns a future that completes at the next skip after this call.
    fn skipped(&self) -> Notified<'_> {
        self.skips.notified()
    }

    /// Returns the instant of that moment, unless time is skipped before.
    fn instant_of(&self, moment: Moment) -> Instant {
        if self.stopped.get().is_some() {
            return Instant::now() + NEVER;
        }
        self.start + Duration::from_millis(moment.since(START).saturating_sub(self.skipped_ms()))
    }
}

impl Default for Clock {
    fn default() -> Clock {
        Clock::new()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_moment_comes_by_waiting_or_by_being_skipped_to() {
        let clock = Arc::new(Clock::new());
        let began = Instant::now();
        clock.sleep_until(START.after(700)).await;
        assert_eq!((clock.now(), began.elapsed().as_millis()), (START.after(700), 700));
        let waits = tokio::spawn({
            let clock = Arc::clone(&clock);
            async move { clock.sleep_until(START.after(5_000)).await }
        });
        tokio::task::yield_now().await;
        clock.skip(4_299);
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        clock.skip(1);
        waits.await.unwrap();
        assert_eq!((clock.now(), clock.skipped_ms()), (START.after(5_000), 4_300));
    }

    #[tokio::test(start_paused = true)]
    async fn time_that_is_stopped_passes_only_by_being_skipped() {
        let clock = Clock::new();
        clock.stop();
        tokio::time::advance(Duration::from_secs(3_600)).await;
        assert_eq!(clock.now(), START);
        clock.skip(10);
        clock.sleep_until(START.after(10)).await;
        assert_eq!(clock.now(), START.after(10));
    }
}
