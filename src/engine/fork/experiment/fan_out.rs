//! One fan-out from its first child to its last, and what many of them teach.

use std::collections::BTreeSet;

use super::life::Life;
use super::{Answered, QUIET_MS};
use crate::engine::family::fanout::Binding;
use crate::engine::request::prefix::PrefixHash;
use crate::engine::words::{Arm, CostUnit, Moment};

/// Beyond this many siblings or starts, older ones count half.
const COUNTED_MAX: f64 = 64.0;

/// Children of one fan-out that are distinguished: several may start from one call.
const CHILDREN_MAX: usize = 1_024;

/// A fan-out whose children have not all ended.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct RunningFanOut {
    /// The children that it may have, and those that have come and ended.
    expected: u64,
    /// Bindings are names in one process.
    #[serde(skip)]
    came: BTreeSet<Binding>,
    ended: u64,
    /// The moment when one of them was last heard of.
    pub heard: Moment,
    first: Option<ArrivedSibling>,
    /// The bills of its forked children; none before the first of them has ended.
    pub forked: Option<ForkedBills>,
}

/// The first turn of a child.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
struct ArrivedSibling {
    came_at: Moment,
    begun_at: Moment,
    prompt: PrefixHash,
}

/// The bill of the forked children of a fan-out, and what they would have cost as sent.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ForkedBills {
    pub unit: CostUnit,
    pub billed: f64,
    pub sent: f64,
}

impl RunningFanOut {
    pub fn new(expected: u64) -> RunningFanOut {
        RunningFanOut {
            expected,
            came: BTreeSet::new(),
            ended: 0,
            heard: Moment(0),
            first: None,
            forked: None,
        }
    }

    /// A child has had its first turn.
    pub fn arrive(&mut self, turn: &Answered<'_>, siblings: &mut Siblings) {
        // One that is sent again is the same child.
        if self.came.len() >= CHILDREN_MAX || !self.came.insert(turn.child) {
            return;
        }
        let arrived = ArrivedSibling { came_at: turn.came_at, begun_at: turn.begun_at, prompt: turn.prompt };
        let Some(first) = self.first else {
            self.first = Some(arrived);
            return;
        };
        let (first, later) =
            if arrived.came_at < first.came_at { (arrived, first) } else { (first, arrived) };
        siblings.add(later.came_at < first.begun_at, later.prompt == first.prompt);
        self.first = Some(first);
    }

    /// A child has ended.
    pub fn end(&mut self, life: &Life) {
        self.ended += 1;
        let bills = if life.arm == Arm::Forked { life.bills } else { None };
        let Some(bills) = bills else { return };
        match &mut self.forked {
            Some(sums) if sums.unit == bills.unit => {
                sums.billed += bills.billed;
                sums.sent += bills.sent;
            }
            Some(_) => {}
            none => *none = Some(bills),
        }
    }

    /// Returns true if no further child is expected.
    pub fn has_ended(&self, now: Moment) -> bool {
        let are_all_here = self.ended >= self.expected.max(self.came.len() as u64);
        are_all_here || now.since(self.heard) > QUIET_MS
    }
}

/// The arrivals of siblings; older ones count less.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Siblings {
    count: f64,
    together: f64,
    alike: f64,
}

impl Siblings {
    fn add(&mut self, is_together: bool, is_alike: bool) {
        if self.count >= COUNTED_MAX {
            [&mut self.count, &mut self.together, &mut self.alike].into_iter().for_each(|sum| *sum /= 2.0);
        }
        self.count += 1.0;
        self.together += f64::from(u8::from(is_together));
        self.alike += f64::from(u8::from(is_alike));
    }

    /// The share that came before the first one was answered, if any came.
    pub fn together(&self) -> Option<f64> {
        (self.count > 0.0).then(|| self.together / self.count)
    }

    /// The share with the first one's tools and system prompt, if any came.
    pub fn alike(&self) -> Option<f64> {
        (self.count > 0.0).then(|| self.alike / self.count)
    }
}

/// Fan-outs after a tool's first, and those of them that would have found their prompt warm; the older count less.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Starts {
    warm: f64,
    all: f64,
}

impl Starts {
    pub fn add(&mut self, is_warm: bool) {
        if self.all >= COUNTED_MAX {
            (self.warm, self.all) = (self.warm / 2.0, self.all / 2.0);
        }
        self.all += 1.0;
        self.warm += f64::from(u8::from(is_warm));
    }

    /// Those that were warm, and all.
    pub fn counts(self) -> [f64; 2] {
        [self.warm, self.all]
    }
}
