//! What has changed of a tenant since its records were taken last.
//!
//! Nothing is noted before a writer is named: a tenant without a store has nothing to save.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use super::TenantState;
use crate::engine::family::arrival::Predecessor;
use crate::engine::records::Writer;
use crate::engine::respell::canonical::FirstSpellings;
use crate::engine::words::Moment;

/// Bytes of spellings that wait to be taken. Beyond it, all that the tenant knows is written anew.
const SPELLING_BYTES_MAX: usize = 4 << 20;

/// Threads that wait to be taken; the oldest are forgotten, and their clients asked for the whole after a restart.
const THREADS_MAX: usize = 256;

/// The urgency of saving what has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// It changes with every request, and little is lost with the last of it: bills, habits, cache entries.
    Later,
    /// A conversation depends on it: fork points, children, spellings, threads.
    Soon,
}

/// A conversation that the server holds, by the id of its last answer; none if it has gone on.
pub type UnsavedThread = (Arc<str>, Option<Predecessor>);

/// The changes of one tenant that are not saved yet.
#[derive(Debug, Default)]
pub struct Unsaved {
    /// None if nothing of the tenant outlives this process.
    writer: Option<Writer>,
    /// True if everything is to be written anew.
    all: bool,
    spellings: Vec<FirstSpellings>,
    spelling_bytes: usize,
    /// When the spellings of tools and prompts are to be written again; none if none were written.
    renewal: Option<Moment>,
    /// True if requests have taught anything.
    learned: bool,
    /// Answers that the server holds, and those that a conversation has gone on from; the newest.
    threads: VecDeque<Arc<str>>,
}

impl Unsaved {
    pub fn writer(&self) -> Option<Writer> {
        self.writer
    }

    /// A request has brought these spellings first.
    pub(super) fn spelt(&mut self, first: Option<FirstSpellings>) {
        let (Some(first), Some(_)) = (first, self.writer) else { return };
        self.spelling_bytes += first.memory_bytes();
        self.spellings.push(first);
        if self.spelling_bytes > SPELLING_BYTES_MAX {
            self.all = true;
        }
        if self.all {
            self.forget_spellings();
        }
    }

    /// Takes the spellings; none if all of them are to be written.
    pub(in crate::engine) fn take_spellings(&mut self) -> Vec<FirstSpellings> {
        let spellings = std::mem::take(&mut self.spellings);
        self.forget_spellings();
        spellings
    }

    /// What is stored of spellings is to be written again then at the latest.
    pub(in crate::engine) fn renew_spellings(&mut self, at: Moment) {
        self.renewal = Some(self.renewal.map_or(at, |before| before.min(at)));
    }

    /// Takes whether spellings are to be written again now. `are_taken`: some are written now, for the first time or
    /// again, and next at `next`.
    pub(in crate::engine) fn take_renewal(&mut self, are_taken: bool, now: Moment, next: Moment) -> bool {
        let is_due = self.renewal.is_some_and(|at| at <= now);
        if is_due {
            self.renewal = Some(next);
        } else if are_taken {
            self.renew_spellings(next);
        }
        is_due
    }

    /// The server holds this answer, or a conversation has gone on from it.
    pub(super) fn held(&mut self, message_id: &str) {
        if self.writer.is_none() || self.threads.iter().any(|known| **known == *message_id) {
            return;
        }
        if self.threads.len() >= THREADS_MAX {
            self.threads.pop_front();
        }
        self.threads.push_back(Arc::from(message_id));
    }

    /// A request has taught something.
    pub(super) fn learned(&mut self) {
        self.learned = self.writer.is_some();
    }

    /// Takes whether requests have taught anything.
    pub(in crate::engine) fn take_learned(&mut self) -> bool {
        std::mem::take(&mut self.learned)
    }

    fn forget_spellings(&mut self) {
        self.spellings.clear();
        self.spelling_bytes = 0;
    }

    fn urgency(&self) -> Option<Urgency> {
        if self.all || !self.spellings.is_empty() || !self.threads.is_empty() {
            return Some(Urgency::Soon);
        }
        self.learned.then_some(Urgency::Later)
    }
}

impl TenantState {
    /// From now on changes are noted, to be written under this name, which no other process has ever had.
    pub fn save_as(&mut self, writer: Writer) {
        self.unsaved.writer = Some(writer);
        self.fan_outs.save_as(writer);
    }

    /// Everything that is known is to be written anew: what was taken before has not been written.
    pub fn save_all_anew(&mut self) {
        self.unsaved.all = self.unsaved.writer.is_some();
    }

    /// Returns the urgency of saving what has changed; none if nothing has.
    pub fn has_unsaved(&self) -> Option<Urgency> {
        self.unsaved.writer?;
        if self.fan_outs.has_unsaved() {
            return Some(Urgency::Soon);
        }
        let later =
            self.worlds.has_unsaved() || self.fan_outs.has_changed_habits() || self.experiment.has_unsaved();
        self.unsaved.urgency().max(later.then_some(Urgency::Later))
    }

    /// Takes the threads that have changed. `all`: every thread.
    pub(in crate::engine) fn take_threads(&mut self, all: bool) -> Vec<UnsavedThread> {
        let mut changed: BTreeSet<Arc<str>> = std::mem::take(&mut self.unsaved.threads).into_iter().collect();
        if all {
            changed.extend(self.recent.held_ids().cloned());
        }
        let last = |id: &str| self.recent.predecessor(self.recent.held(id)?);
        changed.into_iter().map(|id| (Arc::clone(&id), last(&id))).collect()
    }

    /// Takes whether everything is to be written anew.
    pub(in crate::engine) fn take_all(&mut self) -> bool {
        self.fan_outs.take_overflow() | std::mem::take(&mut self.unsaved.all)
    }
}
