//! What has changed of a tenant since its records were taken last.
//!
//! Nothing is noted before a writer is named: a tenant that no store stands behind has nothing to save.

use super::TenantState;
use crate::engine::records::Writer;
use crate::engine::respell::canonical::FirstSpellings;

/// Bytes of spellings that wait to be taken. Beyond it, all that the tenant knows is written anew.
const SPELLING_BYTES_MAX: usize = 4 << 20;

/// How soon what has changed should be saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// It changes with every request, and little is lost with the last of it: bills, habits, cache entries.
    Later,
    /// A conversation depends on it: fork points, children, spellings, threads.
    Soon,
}

/// The changes of one tenant that are not saved yet.
#[derive(Debug, Default)]
pub struct Unsaved {
    /// None if nothing of the tenant outlives this process.
    writer: Option<Writer>,
    /// True if everything is to be written anew.
    all: bool,
    spellings: Vec<FirstSpellings>,
    spelling_bytes: usize,
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

    /// Takes whether everything is to be written anew.
    pub(in crate::engine) fn take_all(&mut self) -> bool {
        std::mem::take(&mut self.all)
    }

    fn forget_spellings(&mut self) {
        self.spellings.clear();
        self.spelling_bytes = 0;
    }

    fn urgency(&self) -> Option<Urgency> {
        (self.all || !self.spellings.is_empty()).then_some(Urgency::Soon)
    }
}

impl TenantState {
    /// From now on changes are noted, to be written under this name.
    pub fn save_as(&mut self, writer: Writer) {
        self.unsaved.writer = Some(writer);
    }

    /// Everything that is known is to be written anew: what was taken before has not been written.
    pub fn save_all_anew(&mut self) {
        self.unsaved.all = self.unsaved.writer.is_some();
    }

    /// How soon to take what has changed; none if nothing has.
    pub fn has_unsaved(&self) -> Option<Urgency> {
        self.unsaved.urgency()
    }
}
