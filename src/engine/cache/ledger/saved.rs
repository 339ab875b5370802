//! A ledger's warm entries, as they are kept beyond this process.
//!
//! Entries are saved in parts, by their key, so that a request changes few of them. Those that are being written are
//! left out: their writers end with the process.

use serde::{Deserialize, Serialize};

use super::state::EntryState;
use super::{CacheLedger, EntryTokens, TokenSource};
use crate::engine::cache::entry::EntryKey;
use crate::engine::records::Times;
use crate::engine::words::{Moment, Ttl};

/// The parts of a ledger.
pub const PARTS: u32 = 64;

/// A warm entry: its lifetime, from when it can be read and until when, in milliseconds of the calendar, and its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedEntry(Ttl, u64, u64, u64, TokenSource);

/// Some of the parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts(u64);

impl Parts {
    pub const ALL: Parts = Parts(u64::MAX);

    pub fn add(&mut self, key: &EntryKey) {
        self.0 |= 1 << key.part();
    }

    pub fn and(self, other: Parts) -> Parts {
        Parts(self.0 | other.0)
    }

    pub fn has(self, part: u32) -> bool {
        self.0 & (1 << part) != 0
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl CacheLedger {
    /// Takes which parts have changed.
    pub fn take_changed(&mut self) -> Parts {
        std::mem::take(&mut self.changed)
    }

    pub fn changed(&self) -> Parts {
        self.changed
    }

    /// The warm entries of these parts.
    pub fn save(&self, parts: Parts, times: Times) -> impl Iterator<Item = (EntryKey, SavedEntry)> {
        let of_parts = self.entries.iter().filter(move |(key, _)| parts.has(key.part()));
        of_parts.filter_map(move |(key, entry)| match *entry {
            EntryState::Warm { ttl, from, until, tokens: EntryTokens { count, source } }
                if times.now < until =>
            {
                Some((*key, SavedEntry(ttl, times.unix(from), times.unix(until), count, source)))
            }
            _ => None,
        })
    }

    /// Takes over an entry. One that somebody here is writing stays so: its bill will tell. Of two promises the longer
    /// counts, and a billed count before an estimate.
    pub fn restore(&mut self, key: EntryKey, saved: SavedEntry, times: Times) {
        let SavedEntry(mut ttl, from, until, count, source) = saved;
        let (now, mut tokens) = (times.now, EntryTokens { count, source });
        let (mut from, mut until) = (times.moment(from), times.moment(until).min(now.after(ttl.ms())));
        match self.entries.get(&key) {
            Some(EntryState::Writing(_)) => return,
            Some(EntryState::Warm { ttl: known, from: first, until: end, tokens: counted }) if now < *end => {
                ttl = if *known == Ttl::OneHour { *known } else { ttl };
                (from, until) = (from.min(*first), until.max(*end));
                if counted.source == TokenSource::Billed {
                    tokens = *counted;
                }
            }
            _ => {}
        }
        if now < until {
            self.make_room(now);
            self.entries.insert(key, EntryState::Warm { ttl, from, until, tokens });
        }
    }

    /// An entry that still lived was dropped elsewhere for want of room.
    pub fn restore_forgotten(&mut self, at: Option<Moment>) {
        self.forgot_at = self.forgot_at.max(at);
    }
}
