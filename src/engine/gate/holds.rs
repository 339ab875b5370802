//! How long to wait behind leaders that do not stream.
//!
//! Such a leader's entry can be read long before its answer comes, and nothing says when. So followers go
//! after a guess, and the usage of those that went so tells whether it was long enough: a miss doubles it, up
//! to `gate.max_hold_ms`, and three misses in a row end the waiting for that model, for one tenant.
//!
//! All followers of one leader miss together, so a miss teaches only if its leader arrived after the last one
//! that did.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::GateSettings;
use crate::engine::words::Ticket;

/// Then the entry is evidently not there before the answer.
const MISSES_MAX: u32 = 3;

/// To be handed back with what the request's usage said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lesson {
    pub model: String,
    pub leader: Ticket,
}

/// Knows only the models that missed; for all others the configured hold is right until shown otherwise.
#[derive(Clone, Debug)]
pub(super) struct Holds {
    first_ms: u64,
    max_ms: u64,
    models_max: usize,
    models: HashMap<String, LearnedHold>,
}

#[derive(Clone, Debug)]
struct LearnedHold {
    hold_ms: u64,
    /// In a row.
    misses: u32,
    /// The first ticket given out after the last miss: leaders before it were waited for with a shorter hold.
    missed_before: Ticket,
}

/// Holds that were learned: of each model the milliseconds, and the misses in a row.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SavedHolds(Vec<(String, u64, u32)>);

impl Holds {
    pub fn save(&self) -> SavedHolds {
        let learned = self.models.iter();
        SavedHolds(learned.map(|(model, learned)| (model.clone(), learned.hold_ms, learned.misses)).collect())
    }

    pub fn restore(&mut self, saved: SavedHolds) {
        for (model, hold_ms, misses) in saved.0 {
            if self.models.len() < self.models_max && !self.models.contains_key(&model) {
                // The leaders of that process are gone.
                let learned =
                    LearnedHold { hold_ms: hold_ms.min(self.max_ms), misses, missed_before: Ticket(0) };
                self.models.insert(model, learned);
            }
        }
    }

    pub fn new(settings: &GateSettings) -> Holds {
        let mut holds = Holds { first_ms: 0, max_ms: 0, models_max: 0, models: HashMap::new() };
        holds.configure(settings);
        holds
    }

    pub fn configure(&mut self, settings: &GateSettings) {
        self.first_ms = settings.json_hold_ms.min(settings.max_hold_ms);
        self.max_ms = settings.max_hold_ms;
        self.models_max = settings.limits.models;
    }

    /// Nothing if waiting is given up.
    pub fn hold_ms(&self, model: &str) -> Option<u64> {
        match self.models.get(model) {
            Some(learned) => (learned.misses < MISSES_MAX).then_some(learned.hold_ms),
            None => Some(self.first_ms),
        }
    }

    /// `next` is the first ticket that has not been given out yet.
    pub fn learn(&mut self, lesson: Lesson, was_enough: bool, next: Ticket) {
        match (self.models.get_mut(&lesson.model), was_enough) {
            (Some(learned), true) => learned.misses = 0,
            (Some(learned), false) if lesson.leader >= learned.missed_before => {
                learned.miss(self.max_ms, next);
            }
            (None, false) => {
                let mut learned = LearnedHold { hold_ms: self.first_ms, misses: 0, missed_before: next };
                learned.miss(self.max_ms, next);
                self.make_room();
                self.models.insert(lesson.model, learned);
            }
            (Some(_), false) | (None, true) => {}
        }
    }

    /// Forgets the model whose last miss is the longest ago; if it still misses, it will be learned again.
    fn make_room(&mut self) {
        if self.models.len() < self.models_max {
            return;
        }
        let oldest = self.models.iter().min_by_key(|(_, learned)| learned.missed_before);
        if let Some(model) = oldest.map(|(model, _)| model.clone()) {
            self.models.remove(&model);
        }
    }
}

impl LearnedHold {
    fn miss(&mut self, max_ms: u64, next: Ticket) {
        self.misses = self.misses.saturating_add(1);
        self.hold_ms = self.hold_ms.saturating_mul(2).min(max_ms);
        self.missed_before = next;
    }
}

#[cfg(test)]
mod tests {
    use super::super::GateLimits;
    use super::*;

    /// Holds, and the number of tickets given out.
    struct School(Holds, u64);

    impl School {
        fn new(json_hold_ms: u64, max_hold_ms: u64) -> School {
            let limits = GateLimits { models: 2, ..GateLimits::default() };
            School(
                Holds::new(&GateSettings { json_hold_ms, max_hold_ms, limits, ..GateSettings::default() }),
                0,
            )
        }

        fn new_leader(&mut self) -> Ticket {
            self.1 += 1;
            Ticket(self.1 - 1)
        }

        fn teach(&mut self, model: &str, leader: Ticket, was_enough: bool) -> Option<u64> {
            self.0.learn(Lesson { model: model.to_owned(), leader }, was_enough, Ticket(self.1));
            self.0.hold_ms(model)
        }
    }

    #[test]
    fn a_miss_doubles_the_hold_and_the_third_in_a_row_ends_it() {
        let mut school = School::new(1_000, 5_000);
        let mut taught = Vec::new();
        for was_enough in [false, true, false, false, true, false, false, false] {
            let leader = school.new_leader();
            taught.push(school.teach("a", leader, was_enough));
        }
        let ms = [2_000, 2_000, 4_000, 5_000, 5_000, 5_000, 5_000].map(Some);
        assert_eq!(taught[..7], ms);
        assert_eq!(taught[7], None);
        assert_eq!(school.0.hold_ms("b"), Some(1_000), "another model is another matter");
    }

    #[test]
    fn those_that_miss_together_teach_once() {
        let mut school = School::new(1_000, 8_000);
        let (leader, other) = (school.new_leader(), school.new_leader());
        let taught = [leader, leader, other, leader].map(|leader| school.teach("a", leader, false));
        assert_eq!(taught, [Some(2_000); 4]);
        let next = school.new_leader();
        assert_eq!(school.teach("a", next, false), Some(4_000));
    }

    #[test]
    fn the_configured_hold_is_never_longer_than_the_longest() {
        let mut school = School::new(9_000, 5_000);
        assert_eq!(school.0.hold_ms("a"), Some(5_000));
        let leader = school.new_leader();
        assert_eq!(school.teach("a", leader, true), Some(5_000));
        assert!(school.0.models.is_empty(), "nothing was learned");
    }

    #[test]
    fn the_number_of_models_that_are_known_is_bounded() {
        let mut school = School::new(1_000, 5_000);
        for model in ["a", "b", "a", "c"] {
            let leader = school.new_leader();
            school.teach(model, leader, false);
        }
        assert_eq!(["a", "b", "c"].map(|model| school.0.hold_ms(model)), [4_000, 1_000, 2_000].map(Some));
        assert_eq!(school.0.models.len(), 2);
    }
}
