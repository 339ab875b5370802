//! What is known of one tenant ⇄ records that outlive this process.
//!
//! ```text
//! take_unsaved   what has changed is taken from the state under its lock ─ written into records without it ─ changes
//! restore        changes ─ read without the lock ─ merged into the state under it
//! ```
//!
//! | record | name | what it holds |
//! |---|---|---|
//! | spelling | a digest of it | the spellings that one request has brought first |
//!
//! The rules: what this process knows of its own children counts, whatever a record says. A record that is damaged, of
//! another tenant, or of a later version says nothing. Knowledge that is lost never becomes a saving.

mod spellings;
#[cfg(test)]
mod tests;

use crate::engine::records::{Change, Times};
use crate::engine::tenant::{TenantAccess, Urgency};
use crate::engine::words::RecordKind;

/// The way in which what has changed is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Only what conversations depend on.
    Soon,
    /// Everything.
    All,
    /// Everything, and nothing comes after it: the process ends.
    Last,
}

/// Where changes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Everything that a store knows of a tenant which this process sees first. `is_shared`: other processes write too.
    Everything { is_shared: bool },
    /// What was written since.
    Since,
}

/// What became of the changes that a store has told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Records that were taken over.
    pub records: usize,
    /// Records that cannot be read, or belong to nothing that is known.
    pub unreadable: usize,
}

/// Takes what has changed of a tenant, as changes to be written in this order. If they cannot be written, the tenant's
/// [`save_all_anew`](crate::engine::tenant::TenantState::save_all_anew) makes good for it.
pub fn take_unsaved<T: TenantAccess>(tenant: &T, pace: Pace, times: Times) -> Vec<Change> {
    let _ = pace;
    let mut changes = Vec::new();
    let taken = tenant.look(|state| {
        state.unsaved.writer()?;
        let all = state.unsaved.take_all();
        Some((state.id, all, state.unsaved.take_spellings()))
    });
    let Some((id, all, first)) = taken else { return changes };
    let first = if all { tenant.spellings(|table| table.all_spellings()) } else { first };
    changes.extend(first.iter().filter_map(|first| spellings::change(id, first, times)));
    changes
}

/// Merges what a store has told of a tenant into what is known of it.
pub fn restore<T: TenantAccess>(tenant: &T, changes: &[Change], origin: Origin, times: Times) -> Restored {
    let _ = origin;
    let id = tenant.look(|state| state.id);
    let mut restored = Restored::default();
    for change in changes {
        let Change::Put(key, record) = change else { continue };
        let is_known = match key.kind {
            RecordKind::Spelling => spellings::restore(tenant, id, record, times),
            _ => None,
        };
        match is_known {
            Some(()) => restored.records += 1,
            None => restored.unreadable += 1,
        }
    }
    restored
}

/// Returns true if what is known of a tenant is to be saved at this pace.
pub fn is_due(urgency: Option<Urgency>, pace: Pace) -> bool {
    match pace {
        Pace::Soon => urgency == Some(Urgency::Soon),
        Pace::All | Pace::Last => urgency.is_some(),
    }
}
