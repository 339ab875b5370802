//! A clock that tests can push: cache lifetimes are minutes and hours, and nobody waits for them.
//!
//! It runs with real time until it is advanced, set or frozen. Only lifetimes use it; latency is always real.
//!
//! ```text
//! clock.freeze(); clock.advance(Duration::from_secs(299));   // a 5m entry is still there
//! clock.advance(Duration::from_secs(2));                     // and now it is gone
//! ```

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Milliseconds of simulated time since the simulator started.
pub type VirtualMs = u64;

#[derive(Debug)]
pub struct VirtualClock {
    hand: Mutex<Hand>,
}

#[derive(Debug)]
enum Hand {
    /// `at_ms` was the time at `since`; it goes on from there.
    Running {
        at_ms: VirtualMs,
        since: Instant,
    },
    Frozen {
        at_ms: VirtualMs,
    },
}

impl Hand {
    fn now_ms(&self) -> VirtualMs {
        match self {
            Hand::Running { at_ms, since } => at_ms.saturating_add(millis(since.elapsed())),
            Hand::Frozen { at_ms } => *at_ms,
        }
    }
}

impl VirtualClock {
    pub fn running() -> Self {
        VirtualClock { hand: Mutex::new(Hand::Running { at_ms: 0, since: Instant::now() }) }
    }

    pub fn now_ms(&self) -> VirtualMs {
        self.hand().now_ms()
    }

    pub fn advance(&self, by: Duration) {
        let mut hand = self.hand();
        match &mut *hand {
            Hand::Running { at_ms, .. } | Hand::Frozen { at_ms } => *at_ms = at_ms.saturating_add(millis(by)),
        }
    }

    pub fn set_ms(&self, to_ms: VirtualMs) {
        let mut hand = self.hand();
        match &mut *hand {
            Hand::Running { at_ms, since } => (*at_ms, *since) = (to_ms, Instant::now()),
            Hand::Frozen { at_ms } => *at_ms = to_ms,
        }
    }

    pub fn freeze(&self) {
        let mut hand = self.hand();
        *hand = Hand::Frozen { at_ms: hand.now_ms() };
    }

    pub fn resume(&self) {
        let mut hand = self.hand();
        *hand = Hand::Running { at_ms: hand.now_ms(), since: Instant::now() };
    }

    pub fn is_frozen(&self) -> bool {
        matches!(*self.hand(), Hand::Frozen { .. })
    }

    fn hand(&self) -> MutexGuard<'_, Hand> {
        self.hand.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frozen_clock_moves_only_when_pushed() {
        let clock = VirtualClock::running();
        clock.freeze();
        let before = clock.now_ms();
        clock.advance(Duration::from_secs(300));
        assert_eq!(clock.now_ms(), before + 300_000);
        clock.set_ms(7);
        assert_eq!(clock.now_ms(), 7);
        clock.resume();
        assert!(!clock.is_frozen());
        assert!(clock.now_ms() >= 7);
    }

    #[test]
    fn no_advance_overflows_the_clock() {
        let clock = VirtualClock::running();
        clock.freeze();
        clock.advance(Duration::MAX);
        clock.advance(Duration::MAX);
        assert_eq!(clock.now_ms(), u64::MAX);
    }
}
