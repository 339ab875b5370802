//! Everything one simulator remembers, shared by all its requests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use axum::extract::State;

use super::cache::Cache;
use super::clock::VirtualClock;
use super::config::SimConfig;
use super::diagnostics::Fingerprints;
use super::faults::Faults;
use super::journal::Journal;
use super::recital::Recitals;
use super::rules::signature::Signer;
use super::threads::Threads;

/// Prompts whose repetitions are counted. Beyond that a repetition has its arrival number alone.
const MOST_COUNTED_PROMPTS: usize = 100_000;

/// The world of a simulator, as its pages take it.
pub type SharedWorld = State<Arc<World>>;

#[derive(Debug)]
pub struct World {
    pub config: SimConfig,
    pub signer: Signer,
    pub clock: VirtualClock,
    pub faults: Faults,
    pub recitals: Recitals,
    started: Instant,
    cache: Mutex<Cache>,
    journal: Mutex<Journal>,
    fingerprints: Mutex<Fingerprints>,
    threads: Mutex<Threads>,
    answered: Mutex<HashMap<[u8; 32], u64>>,
}

impl World {
    pub fn new(config: SimConfig) -> Self {
        let limits = config.limits;
        World {
            signer: Signer::new(config.seed),
            clock: VirtualClock::running(),
            faults: Faults::new(limits.fault_rules),
            recitals: Recitals::new(limits.recitals),
            started: Instant::now(),
            cache: Mutex::new(Cache::new(limits.cache_entries)),
            journal: Mutex::new(Journal::new(limits.journal_requests, limits.journal_bytes)),
            fingerprints: Mutex::new(Fingerprints::new(limits.fingerprints)),
            threads: Mutex::new(Threads::new(limits.threads, limits.thread_bytes, config.seed)),
            answered: Mutex::new(HashMap::new()),
            config,
        }
    }

    /// Real time since the start, for the journal.
    pub fn elapsed_us(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    pub fn cache(&self) -> MutexGuard<'_, Cache> {
        lock(&self.cache)
    }

    pub fn journal(&self) -> MutexGuard<'_, Journal> {
        lock(&self.journal)
    }

    pub fn fingerprints(&self) -> MutexGuard<'_, Fingerprints> {
        lock(&self.fingerprints)
    }

    pub fn threads(&self) -> MutexGuard<'_, Threads> {
        lock(&self.threads)
    }

    /// How often a prompt was answered before this time.
    pub fn repetition(&self, digest: [u8; 32], arrival: u64) -> u64 {
        let mut answered = lock(&self.answered);
        if answered.len() >= MOST_COUNTED_PROMPTS && !answered.contains_key(&digest) {
            return arrival.saturating_add(u64::MAX / 2);
        }
        let count = answered.entry(digest).or_default();
        *count += 1;
        *count - 1
    }
}

/// A panic elsewhere leaves the data usable: every change to it is a single step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
