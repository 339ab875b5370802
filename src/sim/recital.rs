//! Answers that were given before, to be given again, at the times that whoever asks for them decides.
//!
//! A request names its answer in the header `x-sim-answer`. The cache, the rules and the bill are as ever; only what
//! is said, and when it begins and ends, comes from here.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::watch;

use super::models::BilledUsage;

/// The header that names an answer.
pub const HEADER: &str = "x-sim-answer";

/// How far an answer may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cue {
    Wait,
    /// Its first content.
    Begin,
    End,
}

/// An answer that is given instead of the script's.
#[derive(Debug)]
pub struct Recital {
    pub message_id: Option<String>,
    /// The blocks of its content.
    pub content: Vec<Value>,
    pub stop_reason: Option<String>,
    pub output_tokens: u64,
    cue: watch::Sender<Cue>,
    begun: Arc<AtomicBool>,
    billed: Mutex<Option<BilledUsage>>,
}

impl Recital {
    pub fn new(
        message_id: Option<String>,
        content: Vec<Value>,
        stop_reason: Option<String>,
        output_tokens: u64,
    ) -> Recital {
        let cue = watch::Sender::new(Cue::Wait);
        let (begun, billed) = Default::default();
        Recital { message_id, content, stop_reason, output_tokens, cue, begun, billed }
    }

    /// Lets it go on.
    pub fn give(&self, cue: Cue) {
        self.cue.send_replace(cue);
    }

    /// Returns true once its cache entries can be read. Of an answer that is not streamed nobody else can see that.
    pub fn has_begun(&self) -> bool {
        self.begun.load(Relaxed)
    }

    /// Its bill, as soon as the cache was asked.
    pub fn billed(&self) -> Option<BilledUsage> {
        *lock(&self.billed)
    }

    pub(super) fn bill(&self, usage: BilledUsage) {
        *lock(&self.billed) = Some(usage);
    }

    pub(super) fn cues(&self) -> Cues {
        Cues { cue: self.cue.subscribe(), begun: Arc::clone(&self.begun) }
    }
}

/// The waiting end.
#[derive(Debug, Clone)]
pub struct Cues {
    cue: watch::Receiver<Cue>,
    begun: Arc<AtomicBool>,
}

impl Cues {
    /// A recital that is forgotten is never held up.
    pub async fn wait_for(&mut self, cue: Cue) {
        let _ = self.cue.wait_for(|given| *given >= cue).await;
    }

    pub fn began(&self) {
        self.begun.store(true, Relaxed);
    }
}

/// The answers that may be asked for, by name.
#[derive(Debug)]
pub struct Recitals {
    most: usize,
    known: Mutex<HashMap<String, Arc<Recital>>>,
}

impl Recitals {
    pub(super) fn new(most: usize) -> Self {
        Recitals { most, known: Mutex::default() }
    }

    /// Says whether there was room.
    pub fn put(&self, name: String, recital: Arc<Recital>) -> bool {
        let mut known = lock(&self.known);
        let has_room = known.len() < self.most;
        if has_room {
            known.insert(name, recital);
        }
        has_room
    }

    pub fn forget(&self, name: &str) {
        lock(&self.known).remove(name);
    }

    pub(super) fn ask(&self, name: &str) -> Option<Arc<Recital>> {
        lock(&self.known).get(name).cloned()
    }
}

/// A panic elsewhere leaves the data usable: every change to it is a single step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
