//! Fork points as an operator may see them: figures, and no text of anybody's.

use super::forks::{Forks, Slot};
use super::point::ForkId;
use crate::engine::request::prefix::PrefixHash;
use crate::engine::words::{Moment, Spawning};

/// One fork point in figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    pub id: ForkId,
    pub prefix: PrefixHash,
    pub is_sealed: bool,
    /// The moment when it was sealed or, while pending, begun.
    pub since: Moment,
    /// The number of bytes kept of it, the parent's request included.
    pub bytes: usize,
    pub calls: Vec<CallSummary>,
}

/// One of its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallSummary {
    pub spawning: Spawning,
    pub directives: usize,
    /// True if a child of it was seen.
    pub has_child: bool,
    /// True if its result came back.
    pub has_returned: bool,
}

impl Forks {
    /// Every fork point, the newest first.
    pub fn summaries(&self) -> Vec<Summary> {
        let mut slots: Vec<_> = self.slots.values().collect();
        slots.sort_by_key(|slot| std::cmp::Reverse(slot.age));
        slots.into_iter().map(Summary::of).collect()
    }
}

impl Summary {
    fn of(slot: &Slot) -> Summary {
        let point = &slot.point;
        let call = |(number, call): (usize, &super::Call)| CallSummary {
            spawning: call.spawning,
            directives: call.directives.len(),
            has_child: slot.claims.contains_key(&number),
            has_returned: slot.returned.contains(&number),
        };
        Summary {
            id: point.id,
            prefix: point.prefix,
            is_sealed: point.is_sealed(),
            since: slot.since,
            bytes: point.memory_bytes(),
            calls: point.calls.iter().enumerate().map(call).collect(),
        }
    }
}
