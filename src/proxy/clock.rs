//! The proxy's one clock. The engine has none: it is given the moments that this one shows.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

use crate::engine::words::Moment;

/// Later than anybody waits.
const NEVER: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// A duration in milliseconds, as the engine counts time.
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Milliseconds since the start of the process. Tests and `replay` stop it and set it forward: an hour of traffic can
/// be played in a second, for what is remembered and for whoever waits.
#[derive(Debug)]
pub struct Clock {
    start: Instant,
    skipped_ms: AtomicU64,
    /// How long it ran before it was stopped.
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
        Moment(millis(self.elapsed()))
    }

    /// The time since the start, with what was skipped.
    pub fn elapsed(&self) -> Duration {
        let ran = self.stopped.get().copied().unwrap_or_else(|| self.start.elapsed());
        ran + Duration::from_millis(self.skipped_ms())
    }

    /// Stops the clock: from now on time passes only by being skipped.
    pub fn stop(&self) {
        let _ = self.stopped.set(self.start.elapsed());
    }

    /// How far it is ahead of real time.
    pub fn skipped_ms(&self) -> u64 {
        self.skipped_ms.load(Relaxed)
    }

    /// Lets time pass at once, and wakes everybody who waits for a moment.
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

    /// The next time that time is skipped, from this call on.
    fn skipped(&self) -> Notified<'_> {
        self.skips.notified()
    }

    /// When it will be that moment, unless time is skipped.
    fn instant_of(&self, moment: Moment) -> Instant {
        if self.stopped.get().is_some() {
            return Instant::now() + NEVER;
        }
        self.start + Duration::from_millis(moment.0.saturating_sub(self.skipped_ms()))
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
        clock.sleep_until(Moment(700)).await;
        assert_eq!((clock.now(), began.elapsed().as_millis()), (Moment(700), 700));
        let waits = tokio::spawn({
            let clock = Arc::clone(&clock);
            async move { clock.sleep_until(Moment(5_000)).await }
        });
        tokio::task::yield_now().await;
        clock.skip(4_299);
        tokio::task::yield_now().await;
        assert!(!waits.is_finished());
        clock.skip(1);
        waits.await.unwrap();
        assert_eq!((clock.now(), clock.skipped_ms()), (Moment(5_000), 4_300));
    }

    #[tokio::test(start_paused = true)]
    async fn time_that_is_stopped_passes_only_by_being_skipped() {
        let clock = Clock::new();
        clock.stop();
        tokio::time::advance(Duration::from_secs(3_600)).await;
        assert_eq!(clock.now(), Moment(0));
        clock.skip(10);
        clock.sleep_until(Moment(10)).await;
        assert_eq!(clock.now(), Moment(10));
    }
}
