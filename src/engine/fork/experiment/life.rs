//! One child from its first turn to its last, and what many of them teach.

use super::Answered;
use crate::engine::family::fanout::ForkId;
use crate::engine::fork::economics::ChildHabits;
use crate::engine::words::{Arm, CostUnit};

/// Children that must have ended before their habits count.
const LIVES_MIN: f64 = 4.0;
/// When so many have ended, the older ones count half.
const LIVES_MAX: f64 = 64.0;

#[derive(Clone, Copy, Debug)]
pub struct Life {
    pub arm: Arm,
    pub fork: ForkId,
    pub is_empty: bool,
    /// In which unit, and what it cost beside what was predicted. None if either is not known.
    pub cost: Option<Cost>,
    turns: u64,
    output: u64,
    first_prompt: u64,
    last_prompt: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct Cost {
    pub unit: CostUnit,
    pub measured: f64,
    pub predicted: f64,
}

impl Life {
    /// `foreseen`: what was predicted rests on what other children did.
    pub fn begin(turn: &Answered<'_>, foreseen: bool) -> Life {
        let cost = if foreseen { turn.cost } else { None };
        let cost = cost.and_then(|cost| {
            let predicted = cost.predicted.filter(|predicted| predicted.is_finite() && *predicted > 0.0)?;
            Some(Cost { unit: cost.unit, measured: 0.0, predicted })
        });
        Life {
            arm: turn.arm,
            fork: turn.fork,
            is_empty: false,
            cost,
            turns: 0,
            output: 0,
            first_prompt: turn.prompt_tokens,
            last_prompt: turn.prompt_tokens,
        }
    }

    pub fn add(&mut self, turn: &Answered<'_>) {
        self.turns += 1;
        self.output = self.output.saturating_add(turn.output_tokens);
        self.last_prompt = turn.prompt_tokens;
        self.is_empty |= turn.is_empty;
        let known = turn.cost.filter(|cost| cost.measured.is_finite());
        self.cost = self
            .cost
            .zip(known)
            .filter(|(life, turn)| life.unit == turn.unit)
            .map(|(life, turn)| Cost { measured: life.measured + turn.measured, ..life });
    }
}

/// Sums over the children of a tool; the older count less.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lives {
    lives: f64,
    turns: f64,
    output: f64,
    /// Tokens that prompts have grown by, and the turns that it took.
    grown: f64,
    later_turns: f64,
}

impl Lives {
    pub fn add(&mut self, life: &Life) {
        if self.lives >= LIVES_MAX {
            let Lives { lives, turns, output, grown, later_turns } = self;
            [lives, turns, output, grown, later_turns].into_iter().for_each(|sum| *sum /= 2.0);
        }
        self.lives += 1.0;
        self.turns += life.turns as f64;
        self.output += life.output as f64;
        // Who has compacted since has grown by what cannot be told.
        if life.last_prompt > life.first_prompt {
            self.grown += (life.last_prompt - life.first_prompt) as f64;
            self.later_turns += life.turns.saturating_sub(1) as f64;
        }
    }

    /// Returns true if so many have ended that their habits count.
    pub fn are_known(&self) -> bool {
        self.lives >= LIVES_MIN
    }

    /// With those that still live, where they tell anything: one that has had more turns than is expected has had
    /// these at least.
    pub fn and_living<'l>(self, living: impl Iterator<Item = &'l Life>, horizon_turns: usize) -> Lives {
        let expected = self.habits(horizon_turns).turns.unwrap_or(horizon_turns as f64);
        let mut all = self;
        living.filter(|life| life.turns as f64 > expected).for_each(|life| all.add(life));
        all
    }

    /// A few are no habit, unless they live longer than anybody is taken to: to be wrong about that is dear.
    pub fn habits(&self, horizon_turns: usize) -> ChildHabits {
        if !self.are_known() && self.turns <= horizon_turns as f64 * self.lives {
            return ChildHabits::default();
        }
        let mean = |sum: f64, count: f64| if count > 0.0 { (sum / count).round() as u64 } else { 0 };
        ChildHabits {
            turns: Some(self.turns / self.lives),
            growth: mean(self.grown, self.later_turns),
            output: mean(self.output, self.turns),
            ..ChildHabits::default()
        }
    }
}
