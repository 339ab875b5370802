//! Stops asking a store that fails, and tries now and then whether it works again.
//!
//! ```text
//! closed ── failures in a row ──▶ open ── its pause is over ──▶ one trial ── it fails ──▶ open, for twice as long
//!    ▲                                                              │
//!    └──────────────────────────── it succeeds ◀────────────────────┘
//! ```

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::engine::words::StoreError;

/// One failure may be chance, and two a pause of the store.
const FAILURES_MAX: u32 = 3;
/// The first pause: a restart of a server takes longer.
const PAUSE_MIN: Duration = Duration::from_millis(500);
/// The longest pause: a store that is back is used within this time.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// A trial that was given up without an outcome holds up the next one for this long.
const TRIAL_MAX: Duration = Duration::from_secs(15);

/// Whether a store is asked. Time comes in as an argument.
#[derive(Debug)]
pub struct Breaker(Mutex<State>);

#[derive(Clone, Copy, Debug)]
enum State {
    Closed { failures: u32 },
    Open { error: StoreError, until: Instant, pause: Duration },
    Trial { error: StoreError, until: Instant, pause: Duration },
}

impl Breaker {
    /// A breaker that is closed or, if the store is known to fail, open.
    pub fn new(error: Option<StoreError>, now: Instant) -> Breaker {
        Breaker(Mutex::new(match error {
            None => State::Closed { failures: 0 },
            Some(error) => State::Open { error, until: now + PAUSE_MIN, pause: PAUSE_MIN },
        }))
    }

    /// Lets a call through, or says why not. Once a pause is over, the first call is the trial.
    pub fn enter(&self, now: Instant) -> Result<(), StoreError> {
        let mut state = self.lock();
        match *state {
            State::Closed { .. } => Ok(()),
            State::Open { error, until, pause } | State::Trial { error, until, pause } => {
                if now < until {
                    return Err(error);
                }
                *state = State::Trial { error, until: now + TRIAL_MAX, pause };
                Ok(())
            }
        }
    }

    /// A call succeeded. Returns the error that the store had, if it is used again from now on.
    pub fn succeeded(&self) -> Option<StoreError> {
        let mut state = self.lock();
        let error = state.error();
        *state = State::Closed { failures: 0 };
        error
    }

    /// A call failed. Returns true if the store is not asked any more from now on.
    pub fn failed(&self, error: StoreError, now: Instant) -> bool {
        let mut state = self.lock();
        let (next, has_opened) = match *state {
            State::Closed { failures } if failures + 1 < FAILURES_MAX => {
                (State::Closed { failures: failures + 1 }, false)
            }
            State::Closed { .. } => (State::Open { error, until: now + PAUSE_MIN, pause: PAUSE_MIN }, true),
            State::Trial { pause, .. } => {
                let pause = (2 * pause).min(PAUSE_MAX);
                (State::Open { error, until: now + pause, pause }, false)
            }
            // A call that began before it opened.
            State::Open { until, pause, .. } => (State::Open { error, until, pause }, false),
        };
        *state = next;
        has_opened
    }

    /// A call failed in a way that says nothing about others. If it was the trial, the next call is another.
    pub fn undecided(&self, now: Instant) {
        let mut state = self.lock();
        if let State::Trial { error, pause, .. } = *state {
            *state = State::Open { error, until: now, pause };
        }
    }

    /// Returns the error of a store that is not asked.
    pub fn error(&self) -> Option<StoreError> {
        self.lock().error()
    }

    /// The time until the next trial; none if calls are let through now.
    pub fn pause(&self, now: Instant) -> Option<Duration> {
        match *self.lock() {
            State::Open { until, .. } | State::Trial { until, .. } if now < until => Some(until - now),
            _ => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn error(self) -> Option<StoreError> {
        match self {
            State::Closed { .. } => None,
            State::Open { error, .. } | State::Trial { error, .. } => Some(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOWN: StoreError = StoreError::Down;

    fn open_at(now: Instant) -> Breaker {
        let breaker = Breaker::new(None, now);
        let opened: Vec<bool> = (0..FAILURES_MAX).map(|_| breaker.failed(DOWN, now)).collect();
        assert_eq!(opened, [false, false, true]);
        breaker
    }

    #[test]
    fn failures_in_a_row_open_it_and_a_success_between_them_does_not() {
        let now = Instant::now();
        let breaker = Breaker::new(None, now);
        for _ in 0..10 {
            breaker.failed(DOWN, now);
            breaker.failed(DOWN, now);
            assert_eq!((breaker.enter(now), breaker.succeeded(), breaker.error()), (Ok(()), None, None));
        }
        let breaker = open_at(now);
        assert_eq!((breaker.enter(now), breaker.error()), (Err(DOWN), Some(DOWN)));
    }

    #[test]
    fn one_trial_at_a_time_with_growing_pauses_that_have_an_end() {
        let mut now = Instant::now();
        let breaker = open_at(now);
        let mut pauses = Vec::new();
        for _ in 0..9 {
            let pause = breaker.pause(now).unwrap();
            pauses.push(pause.as_millis() as u64);
            now += pause;
            assert_eq!(breaker.enter(now), Ok(()), "the trial");
            assert_eq!(breaker.enter(now), Err(DOWN), "nobody else");
            assert!(!breaker.failed(StoreError::Slow, now), "it is said once");
            assert_eq!(breaker.error(), Some(StoreError::Slow));
            breaker.failed(DOWN, now);
        }
        assert_eq!(pauses, [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000]);
        now += PAUSE_MAX;
        assert_eq!((breaker.enter(now), breaker.succeeded(), breaker.error()), (Ok(()), Some(DOWN), None));
        assert_eq!(breaker.pause(now), None);
    }

    #[test]
    fn a_trial_that_says_nothing_is_followed_by_another_at_once() {
        let mut now = Instant::now();
        let breaker = open_at(now);
        now += PAUSE_MIN;
        assert_eq!(breaker.enter(now), Ok(()));
        breaker.undecided(now);
        assert_eq!((breaker.error(), breaker.pause(now)), (Some(DOWN), None));
        assert_eq!((breaker.enter(now), breaker.enter(now)), (Ok(()), Err(DOWN)));
        breaker.failed(DOWN, now);
        assert_eq!(breaker.pause(now), Some(2 * PAUSE_MIN));
        // Where nothing is wrong, it changes nothing.
        let closed = Breaker::new(None, now);
        closed.failed(DOWN, now);
        closed.undecided(now);
        closed.failed(DOWN, now);
        assert!(closed.failed(DOWN, now));
    }

    #[test]
    fn a_trial_that_nobody_ends_does_not_hold_up_the_next_for_ever() {
        let now = Instant::now();
        let breaker = Breaker::new(Some(StoreError::Locked), now);
        assert_eq!(breaker.enter(now), Err(StoreError::Locked));
        assert_eq!(breaker.enter(now + PAUSE_MIN), Ok(()));
        assert!(breaker.enter(now + PAUSE_MIN + TRIAL_MAX / 2).is_err());
        assert_eq!(breaker.enter(now + PAUSE_MIN + TRIAL_MAX), Ok(()));
    }
}
