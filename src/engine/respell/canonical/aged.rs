//! Maps whose entries go when they were not used for longest. Reading them changes nothing: a request notes which old
//! entries it used, and their ages are renewed once it was accepted.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

use super::table::Limits;

/// The memory of an entry beside its bytes: key, slot, counters.
pub const ENTRY_BYTES: usize = 160;

/// The age from which on entries stay. An eighth more than necessary goes, so that this is not done again for
/// every entry that comes.
pub fn oldest_to_keep(mut ages: Vec<(u64, usize)>, limits: Limits) -> u64 {
    let mut room =
        Limits { bytes: limits.bytes - limits.bytes / 8, entries: limits.entries - limits.entries / 8 };
    let mut oldest = u64::MAX;
    // The newer half stays if there is room for it, and then the place to look is the older one: no need to put all of
    // them into order.
    let mut rest = &mut ages[..];
    while !rest.is_empty() {
        let middle = rest.len() / 2;
        rest.select_nth_unstable_by(middle, |a, b| b.cmp(a));
        let (newer, older) = rest.split_at_mut(middle + 1);
        let bytes = newer.iter().map(|(_, cost)| cost).sum::<usize>();
        if bytes <= room.bytes && newer.len() <= room.entries {
            room = Limits { bytes: room.bytes - bytes, entries: room.entries - newer.len() };
            oldest = newer[middle].0;
            rest = older;
        } else {
            rest = &mut newer[..middle];
        }
    }
    oldest
}

/// Measures time by use: each entry that is inserted or renewed moves it on by what that entry costs. No two are of
/// the same age.
#[derive(Clone, Debug)]
pub struct UseClock {
    pub limits: Limits,
    now: u64,
}

impl UseClock {
    pub fn new(limits: Limits) -> UseClock {
        UseClock { limits, now: 0 }
    }

    /// A small entry counts as its share of the limit on entries, so that half of either limit is half of the time.
    fn tick(&mut self, cost: usize) -> u64 {
        let share = self.limits.bytes / self.limits.entries.max(1);
        self.now += cost.max(share) as u64;
        self.now
    }

    /// Returns true if an entry that was last used at this time must be renewed to stay: half of what there is room for
    /// was inserted or renewed since. A newer one stays at least until another three eighths were, so that most
    /// requests of a client that repeats itself have nothing to renew, and need no exclusive access.
    fn is_old(&self, used: u64) -> bool {
        self.now - used > self.limits.bytes as u64 / 2
    }
}

/// A map that knows when each entry was last used, and what all of them cost.
#[derive(Clone, Debug)]
pub struct Aged<K, V> {
    pub slots: HashMap<K, AgedSlot<V>>,
    pub cost: usize,
}

#[derive(Clone, Debug)]
pub struct AgedSlot<V> {
    pub value: V,
    pub cost: usize,
    used: u64,
}

impl<K, V> Default for Aged<K, V> {
    fn default() -> Self {
        Aged { slots: HashMap::new(), cost: 0 }
    }
}

impl<K: Eq + Hash, V> Aged<K, V> {
    /// Returns a value. `note_old` is called if its entry is old: it is to be renewed, now that it is used.
    pub fn get<Q: Eq + Hash + ?Sized>(&self, key: &Q, clock: &UseClock, note_old: impl FnOnce()) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let slot = self.slots.get(key)?;
        if clock.is_old(slot.used) {
            note_old();
        }
        Some(&slot.value)
    }

    /// Renews an entry, if it is old. Returns false if there is none.
    pub fn renew<Q: Eq + Hash + ?Sized>(&mut self, key: &Q, clock: &mut UseClock) -> bool
    where
        K: Borrow<Q>,
    {
        let Some(slot) = self.slots.get_mut(key) else { return false };
        if clock.is_old(slot.used) {
            slot.used = clock.tick(slot.cost);
        }
        true
    }

    pub fn insert(&mut self, key: K, value: V, bytes: usize, clock: &mut UseClock) {
        let cost = bytes + ENTRY_BYTES;
        let slot = AgedSlot { value, cost, used: clock.tick(cost) };
        let replaced = self.slots.insert(key, slot).map_or(0, |slot| slot.cost);
        self.cost = self.cost + cost - replaced;
    }

    /// Adds to what an entry costs, which is used now, and returns its value.
    pub fn grow<Q: Eq + Hash + ?Sized>(
        &mut self,
        key: &Q,
        bytes: usize,
        clock: &mut UseClock,
    ) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let slot = self.slots.get_mut(key)?;
        slot.cost += bytes;
        self.cost += bytes;
        slot.used = clock.tick(slot.cost);
        Some(&mut slot.value)
    }

    pub fn ages(&self) -> impl Iterator<Item = (u64, usize)> {
        self.slots.values().map(|slot| (slot.used, slot.cost))
    }

    pub fn forget_before(&mut self, oldest: u64) {
        self.slots.retain(|_, slot| slot.used >= oldest);
        self.slots.shrink_to_fit();
        self.cost = self.slots.values().map(|slot| slot.cost).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same by putting all of them into order.
    fn by_order(mut ages: Vec<(u64, usize)>, limits: Limits) -> u64 {
        ages.sort_unstable_by(|a, b| b.cmp(a));
        let (mut bytes, mut oldest) = (0, u64::MAX);
        for (age, cost) in ages.into_iter().take(limits.entries - limits.entries / 8) {
            bytes += cost;
            if bytes > limits.bytes - limits.bytes / 8 {
                break;
            }
            oldest = age;
        }
        oldest
    }

    proptest! {
        #[test]
        fn the_same_entries_stay_as_if_all_were_put_into_order(
            ages in prop::collection::btree_map(0_u64..5_000, 0_usize..50, 0..300),
            bytes in 0_usize..8_000,
            entries in 0_usize..350,
        ) {
            let (ages, limits): (Vec<_>, _) = (ages.into_iter().collect(), Limits { bytes, entries });
            let kept = |oldest| ages.iter().filter(|(age, _)| *age >= oldest).collect::<Vec<_>>();
            prop_assert_eq!(kept(oldest_to_keep(ages.clone(), limits)), kept(by_order(ages.clone(), limits)));
        }
    }
}
