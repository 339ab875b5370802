//! How long to wait behind leaders that do not stream.
//!
//! Such a leader's entry can be read long before its answer comes, and nothing says when. So followers go
//! after a guess, and the usage of those that went so tells whether it was long enough: a miss doubles it, up
//! to `gate.max_hold_ms`, and three misses in a row end the waiting for that tenant and model.
//!
//! All followers of one leader miss together, so a miss teaches only if its leader arrived after the last one
//! that did.

use std::collections::HashMap;
use std::hash::Hash;

use super::{Settings, Ticket};

/// Then the entry is evidently not there before the answer.
const MISSES_MAX: u32 = 3;

/// To be handed back with what the request's usage said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lesson<G> {
    pub group: G,
    pub leader: Ticket,
}

/// Knows only the groups that missed; for all others the configured hold is right until shown otherwise.
#[derive(Clone, Debug)]
pub(super) struct Holds<G> {
    first_ms: u64,
    max_ms: u64,
    groups_max: usize,
    groups: HashMap<G, Learned>,
}

#[derive(Clone, Debug)]
struct Learned {
    hold_ms: u64,
    /// In a row.
    misses: u32,
    /// The first ticket issued after the last miss: leaders before it were waited for with a shorter hold.
    missed_before: Ticket,
}

impl<G: Clone + Eq + Hash> Holds<G> {
    pub fn new(settings: &Settings) -> Holds<G> {
        let mut holds = Holds { first_ms: 0, max_ms: 0, groups_max: 0, groups: HashMap::new() };
        holds.configure(settings);
        holds
    }

    pub fn configure(&mut self, settings: &Settings) {
        self.first_ms = settings.json_hold_ms.min(settings.max_hold_ms);
        self.max_ms = settings.max_hold_ms;
        self.groups_max = settings.limits.groups;
    }

    /// Nothing if waiting is given up.
    pub fn hold_ms(&self, group: &G) -> Option<u64> {
        match self.groups.get(group) {
            Some(learned) => (learned.misses < MISSES_MAX).then_some(learned.hold_ms),
            None => Some(self.first_ms),
        }
    }

    /// `next` is the first ticket that has not been issued yet.
    pub fn learn(&mut self, lesson: Lesson<G>, was_enough: bool, next: Ticket) {
        match (self.groups.get_mut(&lesson.group), was_enough) {
            (Some(learned), true) => learned.misses = 0,
            (Some(learned), false) if lesson.leader >= learned.missed_before => {
                learned.miss(self.max_ms, next);
            }
            (None, false) => {
                let mut learned = Learned { hold_ms: self.first_ms, misses: 0, missed_before: next };
                learned.miss(self.max_ms, next);
                self.make_room();
                self.groups.insert(lesson.group, learned);
            }
            (Some(_), false) | (None, true) => {}
        }
    }

    /// Forgets the group whose last miss is the longest ago; if it still misses, it will be learned again.
    fn make_room(&mut self) {
        if self.groups.len() < self.groups_max {
            return;
        }
        let oldest = self.groups.iter().min_by_key(|(_, learned)| learned.missed_before);
        if let Some(group) = oldest.map(|(group, _)| group.clone()) {
            self.groups.remove(&group);
        }
    }
}

impl Learned {
    fn miss(&mut self, max_ms: u64, next: Ticket) {
        self.misses = self.misses.saturating_add(1);
        self.hold_ms = self.hold_ms.saturating_mul(2).min(max_ms);
        self.missed_before = next;
    }
}

#[cfg(test)]
mod tests {
    use super::super::Limits;
    use super::*;

    /// Holds, and the tickets issued so far.
    struct School(Holds<u8>, u64);

    impl School {
        fn new(json_hold_ms: u64, max_hold_ms: u64) -> School {
            let limits = Limits { groups: 2, ..Limits::default() };
            School(Holds::new(&Settings { json_hold_ms, max_hold_ms, limits, ..Settings::default() }), 0)
        }

        fn new_leader(&mut self) -> Ticket {
            self.1 += 1;
            Ticket(self.1 - 1)
        }

        fn teach(&mut self, group: u8, leader: Ticket, was_enough: bool) -> Option<u64> {
            self.0.learn(Lesson { group, leader }, was_enough, Ticket(self.1));
            self.0.hold_ms(&group)
        }
    }

    #[test]
    fn a_miss_doubles_the_hold_and_the_third_in_a_row_ends_it() {
        let mut school = School::new(1_000, 5_000);
        let mut taught = Vec::new();
        for was_enough in [false, true, false, false, true, false, false, false] {
            let leader = school.new_leader();
            taught.push(school.teach(0, leader, was_enough));
        }
        let ms = [2_000, 2_000, 4_000, 5_000, 5_000, 5_000, 5_000].map(Some);
        assert_eq!(taught[..7], ms);
        assert_eq!(taught[7], None);
        assert_eq!(school.0.hold_ms(&1), Some(1_000), "another group is another matter");
    }

    #[test]
    fn those_that_miss_together_teach_once() {
        let mut school = School::new(1_000, 8_000);
        let (leader, other) = (school.new_leader(), school.new_leader());
        let taught = [leader, leader, other, leader].map(|leader| school.teach(0, leader, false));
        assert_eq!(taught, [Some(2_000); 4]);
        let next = school.new_leader();
        assert_eq!(school.teach(0, next, false), Some(4_000));
    }

    #[test]
    fn the_configured_hold_is_never_longer_than_the_longest() {
        let mut school = School::new(9_000, 5_000);
        assert_eq!(school.0.hold_ms(&0), Some(5_000));
        let leader = school.new_leader();
        assert_eq!(school.teach(0, leader, true), Some(5_000));
        assert!(school.0.groups.is_empty(), "nothing was learned");
    }

    #[test]
    fn only_so_many_groups_are_known() {
        let mut school = School::new(1_000, 5_000);
        for group in [0, 1, 0, 2] {
            let leader = school.new_leader();
            school.teach(group, leader, false);
        }
        assert_eq!([0, 1, 2].map(|group| school.0.hold_ms(&group)), [4_000, 1_000, 2_000].map(Some));
        assert_eq!(school.0.groups.len(), 2);
    }
}
