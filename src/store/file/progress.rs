//! The clock, and a line in the log from time to time while something takes long.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What takes longer than this says how far it is.
const SILENCE_MAX: Duration = Duration::from_secs(2);

/// Unix time in milliseconds.
pub(super) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Reports how far something is.
pub(super) struct Progress {
    what: &'static str,
    done: u64,
    reported: Instant,
}

impl Progress {
    pub fn new(what: &'static str) -> Progress {
        Progress { what, done: 0, reported: Instant::now() }
    }

    /// One more is done.
    pub fn step(&mut self) {
        self.done += 1;
        if self.reported.elapsed() >= SILENCE_MAX {
            self.reported = Instant::now();
            tracing::info!(done = self.done, "opening the store: {}", self.what);
        }
    }
}
