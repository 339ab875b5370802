//! The three worlds of a tenant, as they are kept beyond this process.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Worlds;
use super::pace::Paces;
use crate::engine::cache::entry::EntryKey;
use crate::engine::cache::ledger::{PARTS, Parts, SavedEntry};
use crate::engine::records::Times;
use crate::engine::words::{Moment, Ttl};

/// One part of what is known of entries.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SavedPart {
    /// Each in the worlds `billed`, `sent` and `aligned`.
    entries: BTreeMap<EntryKey, [Option<SavedEntry>; 3]>,
    /// Prefixes whose tokens are known from a bill.
    counts: Vec<(EntryKey, u64)>,
}

/// The knowledge about a tenant's worlds beside their entries.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SavedWorlds {
    saved_at: Moment,
    /// True if nothing came after it.
    is_closed: bool,
    incomplete_until: Moment,
    forgot_at: [Option<Moment>; 3],
    paces: Paces,
}

impl SavedWorlds {
    pub fn saved_at(&self) -> Moment {
        self.saved_at
    }

    /// Returns true if nothing came after it.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }
}

impl Worlds {
    /// Returns true if anything has changed.
    pub fn has_unsaved(&self) -> bool {
        !self.changed().is_empty()
    }

    fn changed(&self) -> Parts {
        let ledgers = [&self.billed, &self.sent, &self.aligned];
        ledgers.into_iter().fold(self.counts.changed(), |parts, ledger| parts.and(ledger.changed()))
    }

    /// Takes the parts that have changed, by their number. `all`: every part.
    pub fn take_unsaved(&mut self, all: bool, times: Times) -> Vec<(u32, SavedPart)> {
        let changed = if all { Parts::ALL } else { self.changed() };
        let mut parts: BTreeMap<u32, SavedPart> =
            (0..PARTS).filter(|part| changed.has(*part)).map(|part| (part, SavedPart::default())).collect();
        for (world, ledger) in [&mut self.billed, &mut self.sent, &mut self.aligned].into_iter().enumerate() {
            ledger.take_changed();
            for (key, entry) in ledger.save(changed, times) {
                if let Some(part) = parts.get_mut(&key.part()) {
                    part.entries.entry(key).or_default()[world] = Some(entry);
                }
            }
        }
        self.counts.take_changed();
        for (key, count) in self.counts.iter().filter(|(key, _)| changed.has(key.part())) {
            parts.entry(key.part()).or_default().counts.push((key, count));
        }
        parts.into_iter().collect()
    }

    /// Returns the knowledge beside the entries. `is_closed`: nothing comes after it.
    pub fn save(&self, is_closed: bool, now: Moment) -> SavedWorlds {
        SavedWorlds {
            saved_at: now,
            is_closed,
            incomplete_until: self.incomplete_until,
            forgot_at: [&self.billed, &self.sent, &self.aligned].map(|ledger| ledger.forgot_at()),
            paces: self.paces.clone(),
        }
    }

    /// Takes over a part.
    pub fn restore_part(&mut self, part: SavedPart, times: Times) {
        for (key, entries) in part.entries {
            for (ledger, entry) in
                [&mut self.billed, &mut self.sent, &mut self.aligned].into_iter().zip(entries)
            {
                entry.into_iter().for_each(|entry| ledger.restore(key, entry, times));
            }
        }
        for (key, count) in part.counts {
            self.counts.restore(key, count);
        }
    }

    /// Takes over what is known beside the entries.
    pub fn restore(&mut self, saved: SavedWorlds, now: Moment) {
        // Nothing that is written lives longer than an hour.
        let latest = now.after(Ttl::OneHour.ms());
        self.incomplete_until = self.incomplete_until.max(saved.incomplete_until.min(latest));
        let ledgers = [&mut self.billed, &mut self.sent, &mut self.aligned];
        for (ledger, at) in ledgers.into_iter().zip(saved.forgot_at) {
            ledger.restore_forgotten(at.map(|at| at.min(now)));
        }
        self.paces.restore(saved.paces);
    }

    /// Entries were forgotten, all or some of them: for the life of an entry, nothing is compared with what
    /// depends on it.
    pub fn lose_track(&mut self, now: Moment) {
        self.incomplete_until = self.incomplete_until.max(now.after(Ttl::FiveMinutes.ms()));
    }
}
