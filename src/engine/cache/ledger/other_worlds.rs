//! The ledger of a world in which a request is played all at once, when its answer begins in the real one.

use super::state::EntryState;
use super::{CacheLedger, EntryTokens, EntryWrite};
use crate::engine::cache::entry::EntryKey;
use crate::engine::words::{Moment, Ttl};

/// The reach of a prompt at a moment, by the numbers of its keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// The deepest entry that can be read.
    pub now: Option<usize>,
    /// The deepest one beyond it that can be read later, and from when on.
    pub soon: Option<(usize, Moment)>,
}

impl CacheLedger {
    /// Returns how far a prompt reaches whose keys are these, the deepest first.
    pub fn reach(&self, keys: impl Iterator<Item = EntryKey>, at: Moment) -> Reach {
        let mut reach = Reach::default();
        for (number, key) in keys.enumerate() {
            match self.entries.get(&key) {
                Some(EntryState::Warm { from, until, .. }) if at < *until => {
                    if *from <= at {
                        reach.now = Some(number);
                        break;
                    }
                    reach.soon.get_or_insert((number, *from));
                }
                _ => {}
            }
        }
        reach
    }

    /// Enters an entry that a request which went out at this moment has written, to be read from a later one on.
    pub fn enter(&mut self, write: &EntryWrite, at: Moment, from: Moment, tokens: u64) {
        let (mut ttl, mut from, mut until) = (write.ttl, from, at);
        if let Some(EntryState::Warm { ttl: known_ttl, from: known_from, until: known_until, .. }) =
            self.entries.get(&write.key)
            && at < *known_until
        {
            ttl = if *known_ttl == Ttl::OneHour { *known_ttl } else { ttl };
            (from, until) = (from.min(*known_from), *known_until);
        }
        let tokens = EntryTokens::estimated(tokens as f64);
        self.make_room(at);
        let until = until.max(at.after(ttl.ms()));
        self.changed.add(&write.key);
        self.entries.insert(write.key, EntryState::Warm { ttl, from, until, tokens });
    }

    /// A request that went out at this moment has read beyond this entry.
    pub fn renew(&mut self, key: &EntryKey, at: Moment) {
        self.refresh(key, at, None);
    }

    /// An entry can be read at this moment, at the latest.
    pub fn readable_by(&mut self, key: &EntryKey, at: Moment) {
        if let Some(EntryState::Warm { from, .. }) = self.entries.get_mut(key) {
            self.changed.add(key);
            *from = (*from).min(at);
        }
    }

    /// The upstream has lost an entry before its time.
    pub fn lost(&mut self, key: &EntryKey) {
        self.changed.add(key);
        self.entries.remove(key);
    }

    /// Returns when an entry that still lived was last dropped for want of room.
    pub fn forgot_at(&self) -> Option<Moment> {
        self.forgot_at
    }
}
