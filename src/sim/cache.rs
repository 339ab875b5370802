//! The prompt cache: which prefixes are remembered, who finds them, and what that costs.
//!
//! The rules, each of them a setting in [`SimRules`]:
//! - An entry is written only at a breakpoint, and only if the prefix has the model's minimum of tokens.
//! - A breakpoint finds an entry at its own position or up to 19 before it; the highest hit wins.
//! - A lifetime counts from the start of the request that wrote or read the entry.
//! - **An entry can be read only once its writer's response has begun**: [`Cache::consult`] hands the writes back,
//!   and whoever sends the answer calls [`Cache::publish`] with them at that moment, or never.
//!
//! Example: an entry at block 15 and a breakpoint at block 35 miss by one, since 35…16 are checked.

use std::collections::HashMap;

use serde::Serialize;

use super::clock::VirtualMs;
use super::models::BilledUsage;
use super::settings::{BelowHit, PromptLayer, Refresh, SimRules};

/// The hash of a prefix, workspace and parameters included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PrefixKey([u8; 16]);

impl PrefixKey {
    pub fn of(chain: &[u8; 32]) -> PrefixKey {
        let mut key = [0; 16];
        key.copy_from_slice(&chain[..16]);
        PrefixKey(key)
    }

    pub fn hex(&self) -> String {
        self.0[..8].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// How long an entry lives without being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum EntryTtl {
    #[serde(rename = "5m")]
    FiveMinutes,
    #[serde(rename = "1h")]
    OneHour,
}

impl EntryTtl {
    pub fn as_str(self) -> &'static str {
        match self {
            EntryTtl::FiveMinutes => "5m",
            EntryTtl::OneHour => "1h",
        }
    }

    fn millis(self, rules: &SimRules) -> u64 {
        let seconds = match self {
            EntryTtl::FiveMinutes => rules.five_minutes_s,
            EntryTtl::OneHour => rules.one_hour_s,
        };
        seconds.saturating_mul(1_000)
    }
}

/// One block of a prompt, as the cache sees it.
#[derive(Debug, Clone, Copy)]
pub struct Position {
    pub key: PrefixKey,
    /// Tokens of the prompt up to and including this block.
    pub tokens: u64,
    pub layer: PromptLayer,
    /// The breakpoint on this block.
    pub marker: Option<EntryTtl>,
}

/// A remembered prefix, for `/sim/cache`.
#[derive(Debug, Clone, Serialize)]
pub struct CacheEntry {
    pub ttl: EntryTtl,
    pub tokens: u64,
    /// Index of the block it ends with.
    pub position: usize,
    pub layer: PromptLayer,
    pub written_ms: VirtualMs,
    pub expires_ms: VirtualMs,
    pub reads: u64,
}

/// The result of asking the cache about one request.
#[derive(Debug, Default)]
pub struct Consultation {
    /// The position whose entry was read.
    pub hit: Option<usize>,
    pub breakpoints: Vec<BreakpointRecord>,
    /// Prompt tokens by kind; `output` is zero.
    pub usage: BilledUsage,
    /// To be published when the response begins.
    pub writes: Vec<PendingWrite>,
}

#[derive(Debug, Clone, Serialize)]
pub struct BreakpointRecord {
    pub position: usize,
    /// Tokens of the prompt up to and including it.
    pub tokens: u64,
    pub ttl: EntryTtl,
    pub outcome: BreakpointOutcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BreakpointOutcome {
    /// An entry is written here.
    Written,
    /// At or below the hit.
    Read,
    /// The prefix has too few tokens for this model.
    BelowMinimum,
}

/// An entry that exists once the response begins.
#[derive(Debug, Clone)]
pub struct PendingWrite {
    key: PrefixKey,
    entry: CacheEntry,
}

/// All live entries of all workspaces; the workspace is part of the key.
#[derive(Debug)]
pub struct Cache {
    entries: HashMap<PrefixKey, CacheEntry>,
    most_entries: usize,
}

impl Cache {
    pub fn new(most_entries: usize) -> Self {
        Cache { entries: HashMap::new(), most_entries: most_entries.max(1) }
    }

    /// Looks the prompt up at the start of a request, refreshes what it reads, and says what it will write.
    pub fn consult(
        &mut self,
        positions: &[Position],
        minimum_tokens: u64,
        now_ms: VirtualMs,
        rules: &SimRules,
    ) -> Consultation {
        let hit = self.highest_hit(positions, now_ms, rules);
        if let Some(hit) = hit {
            self.refresh(&positions[..=hit], now_ms, rules);
        }
        let mut consultation = Consultation { hit, ..Consultation::default() };
        for (index, position) in positions.iter().enumerate() {
            let Some(ttl) = position.marker else { continue };
            let is_below_hit = hit.is_some_and(|hit| index <= hit);
            let outcome = if position.tokens < minimum_tokens {
                BreakpointOutcome::BelowMinimum
            } else if is_below_hit {
                BreakpointOutcome::Read
            } else {
                BreakpointOutcome::Written
            };
            let is_free_write = is_below_hit
                && rules.below_hit == BelowHit::Write
                && outcome == BreakpointOutcome::Read
                && !self.is_live(&position.key, now_ms);
            if outcome == BreakpointOutcome::Written || is_free_write {
                let entry = CacheEntry {
                    ttl,
                    tokens: position.tokens,
                    position: index,
                    layer: position.layer,
                    written_ms: now_ms,
                    expires_ms: now_ms.saturating_add(ttl.millis(rules)),
                    reads: 0,
                };
                consultation.writes.push(PendingWrite { key: position.key, entry });
            }
            consultation.breakpoints.push(BreakpointRecord {
                position: index,
                tokens: position.tokens,
                ttl,
                outcome,
            });
        }
        consultation.usage = bill(positions, hit, &consultation.breakpoints);
        consultation
    }

    /// Makes entries readable: their writer's response has begun.
    pub fn publish(&mut self, writes: Vec<PendingWrite>, now_ms: VirtualMs) {
        for PendingWrite { key, entry } in writes {
            self.make_room(now_ms);
            match self.entries.get_mut(&key) {
                // Siblings that missed together write the same prefix; the longer promise holds.
                Some(known) if known.expires_ms > now_ms => {
                    known.ttl = known.ttl.max(entry.ttl);
                    known.expires_ms = known.expires_ms.max(entry.expires_ms);
                }
                _ => {
                    self.entries.insert(key, entry);
                }
            }
        }
    }

    /// The live entries, longest prefix first.
    pub fn entries(&self, now_ms: VirtualMs) -> Vec<(PrefixKey, CacheEntry)> {
        let live = self.entries.iter().filter(|(_, entry)| entry.expires_ms > now_ms);
        let mut live: Vec<_> = live.map(|(key, entry)| (*key, entry.clone())).collect();
        live.sort_by_key(|(key, entry)| (std::cmp::Reverse(entry.tokens), *key));
        live
    }

    pub fn clear(&mut self) {
        self.entries.clear();
    }

    fn highest_hit(&self, positions: &[Position], now_ms: VirtualMs, rules: &SimRules) -> Option<usize> {
        let marked = (0..positions.len()).rev().filter(|index| positions[*index].marker.is_some());
        marked.into_iter().find_map(|breakpoint| {
            let window = (0..=breakpoint).rev().take(rules.lookback_positions);
            window.into_iter().find(|index| self.is_live(&positions[*index].key, now_ms))
        })
    }

    fn is_live(&self, key: &PrefixKey, now_ms: VirtualMs) -> bool {
        self.entries.get(key).is_some_and(|entry| entry.expires_ms > now_ms)
    }

    fn refresh(&mut self, prefix: &[Position], now_ms: VirtualMs, rules: &SimRules) {
        let Some((hit, shorter)) = prefix.split_last() else { return };
        if let Some(entry) = self.entries.get_mut(&hit.key) {
            entry.reads += 1;
            entry.expires_ms = entry.expires_ms.max(now_ms.saturating_add(entry.ttl.millis(rules)));
        }
        if rules.refresh == Refresh::HitOnly {
            return;
        }
        for position in shorter {
            if let Some(entry) = self.entries.get_mut(&position.key).filter(|entry| entry.expires_ms > now_ms)
            {
                entry.expires_ms = entry.expires_ms.max(now_ms.saturating_add(entry.ttl.millis(rules)));
            }
        }
    }

    /// Drops the dead, and if that is not enough the quarter that would die first; amortised, one scan per quarter.
    fn make_room(&mut self, now_ms: VirtualMs) {
        if self.entries.len() < self.most_entries {
            return;
        }
        self.entries.retain(|_, entry| entry.expires_ms > now_ms);
        if self.entries.len() < self.most_entries {
            return;
        }
        let mut ages: Vec<_> = self.entries.iter().map(|(key, entry)| (entry.expires_ms, *key)).collect();
        ages.sort_unstable();
        for (_, key) in &ages[..ages.len().div_ceil(4)] {
            self.entries.remove(key);
        }
    }
}

/// Bills a prompt: A is the hit, B the highest 1h breakpoint after it, C the last breakpoint. Read A, write B−A for
/// an hour and C−B for five minutes; the rest is uncached.
fn bill(positions: &[Position], hit: Option<usize>, breakpoints: &[BreakpointRecord]) -> BilledUsage {
    let total = positions.last().map_or(0, |position| position.tokens);
    let a = hit.map_or(0, |hit| positions[hit].tokens);
    let written = || breakpoints.iter().filter(|point| point.outcome == BreakpointOutcome::Written);
    let c = written().map(|point| point.tokens).max().unwrap_or(a).max(a);
    let hour = written().filter(|point| point.ttl == EntryTtl::OneHour);
    let b = hour.map(|point| point.tokens).max().unwrap_or(a).max(a);
    BilledUsage {
        uncached: total - c,
        cache_read: a,
        cache_write_5m: c - b,
        cache_write_1h: b - a,
        output: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Positions of 1,000 tokens each; `markers` are (index, lifetime).
    fn prompt(name: u8, count: u8, markers: &[(usize, EntryTtl)]) -> Vec<Position> {
        let position = |index: u8| {
            let ttl = markers.iter().find(|(at, _)| *at == usize::from(index)).map(|(_, ttl)| *ttl);
            let tokens = 1_000 * (u64::from(index) + 1);
            Position {
                key: PrefixKey::of(&[name + index; 32]),
                tokens,
                layer: PromptLayer::Messages,
                marker: ttl,
            }
        };
        (0..count).map(position).collect()
    }

    fn consult(cache: &mut Cache, positions: &[Position], now_ms: VirtualMs) -> Consultation {
        cache.consult(positions, 1_024, now_ms, &SimRules::default())
    }

    #[test]
    fn what_is_not_published_cannot_be_read() {
        let mut cache = Cache::new(10);
        let positions = prompt(0, 3, &[(2, EntryTtl::FiveMinutes)]);
        let first = consult(&mut cache, &positions, 0);
        assert_eq!(consult(&mut cache, &positions, 1).hit, None);
        cache.publish(first.writes, 2);
        assert_eq!(consult(&mut cache, &positions, 3).hit, Some(2));
    }

    #[test]
    fn a_lifetime_counts_from_the_start_of_the_request_and_not_from_its_publication() {
        let mut cache = Cache::new(10);
        let positions = prompt(0, 3, &[(2, EntryTtl::FiveMinutes)]);
        let slow = consult(&mut cache, &positions, 0);
        cache.publish(slow.writes, 200_000);
        assert_eq!(cache.entries(299_999).len(), 1);
        assert_eq!(consult(&mut cache, &positions, 300_000).hit, None);
    }

    #[test]
    fn of_two_siblings_that_write_one_prefix_the_longer_promise_stands() {
        let mut cache = Cache::new(10);
        let hour = consult(&mut cache, &prompt(0, 3, &[(2, EntryTtl::OneHour)]), 0);
        let minutes = consult(&mut cache, &prompt(0, 3, &[(2, EntryTtl::FiveMinutes)]), 5);
        cache.publish(hour.writes, 10);
        cache.publish(minutes.writes, 11);
        let entries = cache.entries(12);
        assert_eq!(
            (entries.len(), entries[0].1.ttl, entries[0].1.expires_ms),
            (1, EntryTtl::OneHour, 3_600_000)
        );
    }

    #[test]
    fn a_full_cache_drops_the_dead_first_and_then_those_closest_to_their_end() {
        let mut cache = Cache::new(4);
        for name in [10, 20, 30, 40, 50] {
            let written =
                consult(&mut cache, &prompt(name, 2, &[(1, EntryTtl::FiveMinutes)]), u64::from(name));
            cache.publish(written.writes, u64::from(name));
        }
        let left: Vec<_> = cache.entries(60).iter().map(|(_, entry)| entry.written_ms).collect();
        assert_eq!(left.len(), 4);
        assert!(!left.contains(&10), "{left:?}");
    }

    #[test]
    fn a_marker_below_the_minimum_moves_its_tokens_to_uncached() {
        let mut cache = Cache::new(4);
        let seen = consult(&mut cache, &prompt(0, 2, &[(0, EntryTtl::FiveMinutes)]), 0);
        assert_eq!(seen.usage, BilledUsage { uncached: 2_000, ..BilledUsage::default() });
        assert_eq!(seen.breakpoints[0].outcome, BreakpointOutcome::BelowMinimum);
    }
}
