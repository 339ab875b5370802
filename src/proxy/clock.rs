//! The proxy's clock, as the engine counts time.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::afterwards::Leisure;
use crate::engine::types::Moment;

/// A time as the engine counts it.
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Milliseconds since the start of the process.
#[derive(Debug)]
pub struct Clock {
    start: Instant,
    skipped_ms: AtomicU64,
    /// What it showed when it was stopped.
    stopped_ms: OnceLock<u64>,
    /// What is done when there is time for it.
    leisure: Arc<Leisure>,
}

impl Clock {
    pub fn new() -> Clock {
        Clock {
            start: Instant::now(),
            skipped_ms: AtomicU64::new(0),
            stopped_ms: OnceLock::new(),
            leisure: Arc::default(),
        }
    }

    pub fn now(&self) -> Moment {
        let ran = self.stopped_ms.get().copied().unwrap_or_else(|| millis(self.start.elapsed()));
        Moment(ran).after(self.skipped_ms.load(Relaxed))
    }

    /// From now on time passes only by being skipped.
    pub fn stop(&self) {
        let _ = self.stopped_ms.set(millis(self.start.elapsed()));
    }

    /// How far it is ahead of real time.
    pub fn skipped_ms(&self) -> u64 {
        self.skipped_ms.load(Relaxed)
    }

    pub fn leisure(&self) -> &Arc<Leisure> {
        &self.leisure
    }

    /// Lets time pass at once: an hour of traffic can be played in a second. Whatever was put off happened before.
    pub fn skip(&self, ms: u64) {
        self.leisure.catch_up();
        self.skipped_ms.fetch_add(ms, Relaxed);
    }
}

impl Default for Clock {
    fn default() -> Clock {
        Clock::new()
    }
}
