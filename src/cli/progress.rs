//! How far a command is: a line that grows on a terminal, and a line now and then elsewhere, on standard error.

use std::cell::Cell;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// How often progress is said where no terminal shows it.
const SAY_EVERY: Duration = Duration::from_secs(2);
/// How often it is shown where one does.
const SHOW_EVERY: Duration = Duration::from_millis(50);

/// Cells, because plays that run side by side in one task share it.
pub struct Progress {
    every: Duration,
    visible: bool,
    said: Cell<Instant>,
    done: Cell<usize>,
    total: Cell<usize>,
}

impl Progress {
    pub fn new() -> Progress {
        let visible = std::io::stderr().is_terminal();
        let every = if visible { SHOW_EVERY } else { SAY_EVERY };
        let (done, total) = Default::default();
        Progress { every, visible, said: Cell::new(Instant::now()), done, total }
    }

    /// Progress that says nothing.
    pub fn silent() -> Progress {
        Progress { every: Duration::MAX, visible: false, ..Progress::new() }
    }

    /// Adds steps that are to come.
    pub fn expect(&self, steps: usize) {
        self.total.set(self.total.get() + steps);
    }

    /// A line of a recording was read.
    pub fn read(&self) {
        self.done.set(self.done.get() + 1);
        if self.is_due(Instant::now()) {
            self.say(&format!("{} lines read", self.done.get()));
        }
    }

    /// All lines were read: what counts from now on is what is played.
    pub fn play(&self) {
        self.done.set(0);
    }

    /// A request was played.
    pub fn step(&self, what: &str) {
        self.done.set(self.done.get() + 1);
        if self.is_due(Instant::now()) {
            self.say(&format!("{}/{} requests, {what}", self.done.get(), self.total.get()));
        }
    }

    /// The number of steps so far.
    pub fn played(&self) -> usize {
        self.done.get()
    }

    /// Clears the line, so that output can follow.
    pub fn done(&self) {
        if self.visible {
            eprint!("\r\x1b[K");
        }
    }

    /// Returns true if it is time to say something again; then the time counts from now.
    fn is_due(&self, now: Instant) -> bool {
        let due = now.duration_since(self.said.get()) >= self.every;
        if due {
            self.said.set(now);
        }
        due
    }

    fn say(&self, text: &str) {
        if self.visible { eprint!("\r\x1b[K  {text}") } else { eprintln!("{text}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn something_is_said_every_two_seconds_and_not_more_often() {
        let start = Instant::now();
        let progress =
            Progress { every: SAY_EVERY, visible: false, said: Cell::new(start), ..Progress::new() };
        let at = [0, 1_999, 2_000, 2_001, 3_999, 4_000, 60_000];
        let due = at.map(|ms| progress.is_due(start + Duration::from_millis(ms)));
        assert_eq!(due, [false, false, true, false, false, true, true]);
    }
}
