//! How far a replay is: a line that grows on a terminal, and a line now and then elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// How often progress is said where no terminal shows it.
const SAY_EVERY: Duration = Duration::from_secs(2);
/// How often it is shown where one does.
const SHOW_EVERY: Duration = Duration::from_millis(50);

pub struct Progress {
    every: Duration,
    visible: bool,
    said: Instant,
    done: usize,
    total: usize,
}

impl Progress {
    pub fn new() -> Progress {
        let visible = std::io::stderr().is_terminal();
        let every = if visible { SHOW_EVERY } else { SAY_EVERY };
        Progress { every, visible, said: Instant::now(), done: 0, total: 0 }
    }

    /// So many steps are to come.
    pub fn expect(&mut self, steps: usize) {
        self.total += steps;
    }

    /// A line of a recording was read.
    pub fn read(&mut self) {
        self.done += 1;
        if self.is_due(Instant::now()) {
            self.say(&format!("{} lines read", self.done));
        }
    }

    /// All lines were read: what counts from now on is what is played.
    pub fn play(&mut self) {
        self.done = 0;
    }

    pub fn step(&mut self, what: &str) {
        self.done += 1;
        if self.is_due(Instant::now()) {
            self.say(&format!("{}/{} requests, {what}", self.done, self.total));
        }
    }

    pub fn done(&self) {
        if self.visible {
            eprint!("\r\x1b[K");
        }
    }

    /// Returns true if it is time to say something again; then the time counts from now.
    fn is_due(&mut self, now: Instant) -> bool {
        let due = now.duration_since(self.said) >= self.every;
        if due {
            self.said = now;
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
        let mut progress = Progress { every: SAY_EVERY, visible: false, said: start, done: 0, total: 9 };
        let at = [0, 1_999, 2_000, 2_001, 3_999, 4_000, 60_000];
        let due = at.map(|ms| progress.is_due(start + Duration::from_millis(ms)));
        assert_eq!(due, [false, false, true, false, false, true, true]);
    }
}
