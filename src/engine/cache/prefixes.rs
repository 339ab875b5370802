//! The tools and system prompts that a tenant's conversations began with lately: which of them could have read
//! what another wrote.

use serde::{Deserialize, Serialize};

use crate::engine::request::prefix::PrefixHash;
use crate::engine::words::{DigestMap, Moment, Ttl};

/// Prefix hashes that are remembered twice over: when this many are new, the older half is forgotten.
const PREFIXES_MAX: usize = 2048;
/// Entries that are added live so long.
const LIFE_MS: u64 = Ttl::FiveMinutes.ms();

/// Prefixes that came lately, in two generations: those seen last are in the younger one.
#[derive(Debug, Default)]
pub struct Prefixes {
    young: DigestMap<PrefixHash, Sightings>,
    old: DigestMap<PrefixHash, Sightings>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Sightings {
    last: Moment,
    /// Conversations that began with it, each while an entry of the one before could be read.
    streak: u32,
    /// When it could be read first: a conversation that comes at once with the first reads nothing.
    #[serde(default)]
    readable: Moment,
}

/// Prefixes that may still be there to be read.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SavedPrefixes(Vec<(PrefixHash, Sightings)>);

impl Sightings {
    fn is_live(&self, now: Moment) -> bool {
        now.since(self.last) < LIFE_MS
    }

    /// Counts one more. Returns how many conversations in a row began with the prefix.
    fn again(&mut self, starts: bool, sent: Moment, readable: Moment) -> u32 {
        let (lately, since) = if self.is_live(sent) { (self.streak, self.readable) } else { (0, readable) };
        let counts = starts && (lately == 0 || sent >= since);
        *self = Sightings {
            last: sent,
            streak: lately.saturating_add(u32::from(counts)),
            readable: since.min(readable),
        };
        self.streak
    }
}

impl Prefixes {
    /// Returns true if a prefix came so lately that an entry of it would still live.
    pub fn is_live(&self, prefix: &PrefixHash, now: Moment) -> bool {
        self.get(prefix).is_some_and(|seen| seen.is_live(now))
    }

    fn get(&self, prefix: &PrefixHash) -> Option<&Sightings> {
        self.young.get(prefix).or_else(|| self.old.get(prefix))
    }

    /// Remembers a prefix, and when an entry of it could be read. Returns true if it was seen before, and how many
    /// conversations in a row began with it.
    pub fn see(&mut self, prefix: PrefixHash, starts: bool, sent: Moment, readable: Moment) -> (bool, u32) {
        if let Some(seen) = self.young.get_mut(&prefix) {
            return (true, seen.again(starts, sent, readable));
        }
        if self.young.len() >= PREFIXES_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        let before = self.old.remove(&prefix);
        let mut seen = before.unwrap_or(Sightings { last: sent, streak: 0, readable });
        let streak = seen.again(starts, sent, readable);
        self.young.insert(prefix, seen);
        (before.is_some(), streak)
    }

    /// Those that came so lately that an entry of them would still live.
    pub fn save(&self, now: Moment) -> SavedPrefixes {
        let live = self.old.iter().chain(&self.young).filter(|(_, seen)| seen.is_live(now));
        SavedPrefixes(live.map(|(prefix, seen)| (*prefix, *seen)).collect())
    }

    /// Takes over what another process has seen later.
    pub fn restore(&mut self, saved: SavedPrefixes) {
        for (prefix, seen) in saved.0 {
            if self.get(&prefix).is_none_or(|known| known.last < seen.last) {
                self.old.remove(&prefix);
                if self.young.len() >= PREFIXES_MAX {
                    self.old = std::mem::take(&mut self.young);
                }
                self.young.insert(prefix, seen);
            }
        }
    }

    /// The number of prefixes that are remembered.
    pub fn count(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sees a prefix whose entry can be read at once.
    fn see(prefixes: &mut Prefixes, starts: bool, at: u64) -> (bool, u32) {
        prefixes.see(PrefixHash::numbered(1), starts, Moment(at), Moment(at))
    }

    #[test]
    fn sightings_in_a_row_end_with_the_life_of_an_entry() {
        let mut prefixes = Prefixes::default();
        assert_eq!(see(&mut prefixes, true, 0), (false, 1));
        assert_eq!(see(&mut prefixes, true, LIFE_MS - 1), (true, 2));
        assert_eq!(see(&mut prefixes, false, LIFE_MS), (true, 2), "a later turn keeps it alive");
        let prefix = PrefixHash::numbered(1);
        assert!(prefixes.is_live(&prefix, Moment(2 * LIFE_MS - 1)));
        assert!(!prefixes.is_live(&prefix, Moment(2 * LIFE_MS)));
        assert_eq!(see(&mut prefixes, true, 2 * LIFE_MS), (true, 1));
    }

    #[test]
    fn a_conversation_that_comes_at_once_with_the_first_does_not_follow_it() {
        let mut prefixes = Prefixes::default();
        let mut see = |sent: u64, readable: u64| {
            prefixes.see(PrefixHash::numbered(1), true, Moment(sent), Moment(readable)).1
        };
        assert_eq!([see(0, 1_000), see(5, 1_005), see(999, 2_000)], [1, 1, 1]);
        assert_eq!([see(1_000, 3_000), see(1_001, 3_000)], [2, 3], "both read what the first one wrote");
        let again = LIFE_MS + 1_001;
        assert_eq!([see(again, again + 1_000), see(again + 10, again + 1_000)], [1, 1]);
    }

    #[test]
    fn prefixes_are_bounded() {
        let mut prefixes = Prefixes::default();
        see(&mut prefixes, true, 0);
        for number in 0..5 * PREFIXES_MAX {
            prefixes.see(PrefixHash::numbered(2 + number as u64), true, Moment(0), Moment(0));
            assert!(see(&mut prefixes, true, 0).0, "{number}");
        }
        assert!(prefixes.count() <= 2 * PREFIXES_MAX);
    }
}
