//! The children of one arm, and whether they prove anything.

use std::collections::VecDeque;

use super::life::Life;
use crate::engine::family::fanout::ForkId;
use crate::engine::words::{CostUnit, StandDown};

/// Fewer children prove nothing.
const CHILDREN_MIN: f64 = 8.0;
/// Nor do those of fewer fan-outs: siblings share what befell them.
const FAN_OUTS_MIN: f64 = 3.0;
/// When so many children have ended, the older ones count half.
const CHILDREN_MAX: f64 = 128.0;
/// Fan-outs that stay known, so that none counts twice while others run beside it.
const FAN_OUTS_KNOWN: usize = 16;
/// The most that forked children may cost, in multiples of what was predicted.
const COST_MAX: f64 = 1.1;
/// The share of children with empty answers that is no matter, if there are no others to compare with.
const EMPTY_SHARE_MAX: f64 = 0.1;
/// How far beyond chance a difference must be, in standard deviations: one time in a thousand, as each child that
/// ends is another chance to be wrong.
const DEVIATIONS: f64 = 3.0;

#[derive(Debug, Default)]
pub struct Sample {
    children: f64,
    empty: f64,
    fan_outs: f64,
    known: VecDeque<ForkId>,
    dollars: Excess,
    tokens: Excess,
}

/// The standard that forked children are compared with.
#[derive(Clone, Copy, Debug)]
pub enum Baseline<'a> {
    Children(&'a Sample),
    /// There are none yet.
    Absolute,
}

impl Sample {
    pub fn add(&mut self, life: &Life) {
        if self.children >= CHILDREN_MAX {
            let counts = [&mut self.children, &mut self.empty, &mut self.fan_outs];
            let sums = [&mut self.dollars, &mut self.tokens].map(Excess::sums);
            counts.into_iter().chain(sums.into_iter().flatten()).for_each(|sum| *sum /= 2.0);
        }
        self.children += 1.0;
        self.empty += f64::from(u8::from(life.is_empty));
        if !self.known.contains(&life.fork) {
            self.fan_outs += 1.0;
            if self.known.len() >= FAN_OUTS_KNOWN {
                self.known.pop_front();
            }
            self.known.push_back(life.fork);
        }
        if let Some(cost) = life.cost {
            let excess = match cost.unit {
                CostUnit::Dollars => &mut self.dollars,
                CostUnit::Tokens => &mut self.tokens,
            };
            excess.add(cost.measured - COST_MAX * cost.predicted);
        }
    }

    /// Returns true if others may be compared with these.
    pub fn is_enough(&self) -> bool {
        self.children >= CHILDREN_MIN && self.fan_outs >= FAN_OUTS_MIN
    }

    /// Why these children should not have been forked.
    pub fn fails(&self, baseline: Baseline<'_>) -> Option<StandDown> {
        if !self.is_enough() {
            return None;
        }
        let others = match baseline {
            Baseline::Children(others) => others.empty_share(),
            Baseline::Absolute => {
                Share { least: EMPTY_SHARE_MAX, is: EMPTY_SHARE_MAX, most: EMPTY_SHARE_MAX }
            }
        };
        if self.dollars.is_certain() || self.tokens.is_certain() {
            Some(StandDown::Cost)
        } else if self.empty_share().exceeds(others) {
            Some(StandDown::EmptyAnswers)
        } else {
            None
        }
    }

    /// The share of children with empty answers, within Wilson's interval.
    fn empty_share(&self) -> Share {
        let (count, squared) = (self.children.max(1.0), DEVIATIONS * DEVIATIONS);
        let is = self.empty / count;
        let whole = 1.0 + squared / count;
        let middle = (is + squared / (2.0 * count)) / whole;
        let spread = (is * (1.0 - is) / count + squared / (4.0 * count * count)).sqrt() / whole;
        Share { least: middle - DEVIATIONS * spread, is, most: middle + DEVIATIONS * spread }
    }
}

/// A share as it was seen, and between what it can be by chance.
#[derive(Clone, Copy, Debug)]
struct Share {
    least: f64,
    is: f64,
    most: f64,
}

impl Share {
    /// Returns true if it is larger, and by more than chance (Newcombe's interval of the difference).
    fn exceeds(self, other: Share) -> bool {
        self.is - other.is > (self.is - self.least).hypot(other.most - other.is)
    }
}

/// The cost of children beyond what they may cost.
#[derive(Debug, Default)]
struct Excess {
    children: f64,
    sum: f64,
    squares: f64,
}

impl Excess {
    fn add(&mut self, excess: f64) {
        self.children += 1.0;
        self.sum += excess;
        self.squares += excess * excess;
    }

    fn sums(&mut self) -> [&mut f64; 3] {
        [&mut self.children, &mut self.sum, &mut self.squares]
    }

    /// Returns true if they cost more, and by more than it varies from child to child.
    fn is_certain(&self) -> bool {
        if self.children < CHILDREN_MIN {
            return false;
        }
        let spread = (self.squares - self.sum * self.sum / self.children).max(0.0) / (self.children - 1.0);
        self.sum > 0.0 && self.sum > DEVIATIONS * (spread * self.children).sqrt()
    }
}
