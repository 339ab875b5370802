//! The children of one arm, and how many of them answer with nothing: chance alone stops no fork.

use std::collections::VecDeque;

use super::life::Life;
use crate::engine::family::fanout::ForkId;

/// Fewer children prove nothing.
const CHILDREN_MIN: f64 = 8.0;
/// Nor do those of fewer fan-outs: siblings share what befell them.
const FAN_OUTS_MIN: f64 = 3.0;
/// Beyond this many ended children, older ones count half.
const CHILDREN_MAX: f64 = 128.0;
/// Fan-outs that stay known, so that none counts twice while others run beside it.
const FAN_OUTS_KNOWN: usize = 16;
/// The share of children with empty answers that is no matter, if there are no others to compare with.
const EMPTY_SHARE_MAX: f64 = 0.1;
/// The standard deviations by which a difference must be beyond chance: one time in a thousand, as each child that
/// ends is another chance to be wrong.
const DEVIATIONS: f64 = 3.0;

#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Sample {
    children: f64,
    empty: f64,
    fan_outs: f64,
    known: VecDeque<ForkId>,
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
            counts.into_iter().for_each(|sum| *sum /= 2.0);
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
    }

    /// Returns true if others may be compared with these.
    pub fn is_enough(&self) -> bool {
        self.children >= CHILDREN_MIN && self.fan_outs >= FAN_OUTS_MIN
    }

    /// Returns true if these children answer with nothing more often than others.
    pub fn fails(&self, baseline: Baseline<'_>) -> bool {
        let others = match baseline {
            Baseline::Children(others) => others.empty_share(),
            Baseline::Absolute => {
                Share { least: EMPTY_SHARE_MAX, is: EMPTY_SHARE_MAX, most: EMPTY_SHARE_MAX }
            }
        };
        self.is_enough() && self.empty_share().exceeds(others)
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

/// An observed share with its confidence interval.
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
