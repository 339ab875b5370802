//! Records what became of a tenant's children, forked and not: does forking keep its promises?
//!
//! Each finished turn of a child is recorded under the tool that started it and under its arm. When a child has
//! ended, its life is held against what was predicted and against the children that were left alone. If it cost
//! more, or answered with nothing more often, forking stands down for that tool; after a while it is tried again.
//!
//! ```text
//! ForkExperiment::record(turn) ─ totals ─ the child's life ─┬─ habits: turns, growth, output
//!                                                 └─ sample of its arm ─ StandDown?
//! ```
//!
//! The rule: chance stops nobody. A few children, or those of one fan-out, are no proof, and what differs must
//! differ by more than it varies.

mod life;
mod rereads;
mod sample;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::economics::ChildHabits;
use crate::engine::family::fanout::{Binding, ForkId};
use crate::engine::words::{Arm, CostUnit, Moment, StandDown, StopReason};
use life::{Life, Lives};
pub use rereads::{Rereads, RereadsPerChild};
use sample::{Baseline, Sample};

/// Tools of one tenant that are told apart; it has a few.
const TOOLS_MAX: usize = 64;
/// Children of one tenant that are followed at once.
const OPEN_MAX: usize = 4_096;
/// A child that is silent for so long has ended: some end with a call that nobody answers.
const QUIET_MS: u64 = 15 * 60 * 1_000;
/// How long forking stands down before it is tried again.
const STAND_DOWN_MS: u64 = 60 * 60 * 1_000;

impl StopReason {
    /// Returns true if the child has nothing more to do.
    fn ends(self) -> bool {
        !matches!(self, StopReason::ToolUse | StopReason::PauseTurn)
    }
}

/// A finished turn of a child.
#[derive(Clone, Copy, Debug)]
pub struct Answered<'a> {
    pub child: Binding,
    pub fork: ForkId,
    /// The tool that started it; empty if it has named its parent itself.
    pub tool: &'a str,
    pub arm: Arm,
    /// True if it is the child's first.
    pub first: bool,
    pub stop: StopReason,
    pub is_empty: bool,
    /// Results that the turn was given and that report a failure.
    pub tool_errors: u64,
    /// All tokens of the prompt, read, written or not cached.
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    pub wall_ms: u64,
    pub cost: Option<Measured>,
}

/// The cost of a turn, and the cost that was expected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    pub unit: CostUnit,
    /// This turn.
    pub measured: f64,
    /// The whole child, as its forecast had it for this arm; none without one. Read on the first turn.
    pub predicted: Option<f64>,
}

/// Everything that was recorded of one arm.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    pub children: u64,
    pub turns: u64,
    pub output_tokens: u64,
    pub empty_answers: u64,
    pub tool_errors: u64,
    pub wall_ms: u64,
    /// In the order of [`StopReason::ALL`].
    pub stops: [u64; StopReason::ALL.len()],
    /// Measured and predicted, in dollars.
    pub dollars: [f64; 2],
    /// Measured and predicted, in tokens, where no price is known.
    pub tokens: [f64; 2],
}

impl Totals {
    fn add(&mut self, turn: &Answered<'_>) {
        let counts = [
            (&mut self.children, u64::from(turn.first)),
            (&mut self.turns, 1),
            (&mut self.output_tokens, turn.output_tokens),
            (&mut self.empty_answers, u64::from(turn.is_empty)),
            (&mut self.tool_errors, turn.tool_errors),
            (&mut self.wall_ms, turn.wall_ms),
        ];
        counts.into_iter().for_each(|(count, more)| *count = count.saturating_add(more));
        let stops = StopReason::ALL.into_iter().zip(&mut self.stops);
        stops.filter(|(stop, _)| *stop == turn.stop).for_each(|(_, count)| *count = count.saturating_add(1));
        if let Some(cost) = turn.cost {
            let [measured, predicted] = match cost.unit {
                CostUnit::Dollars => &mut self.dollars,
                CostUnit::Tokens => &mut self.tokens,
            };
            *measured += cost.measured;
            if turn.first {
                *predicted += cost.predicted.unwrap_or(0.0);
            }
        }
    }
}

/// The ledger of one tenant.
#[derive(Debug, Default)]
pub struct ForkExperiment {
    tools: HashMap<Arc<str>, Tool>,
    open: BTreeMap<Binding, Open>,
    /// By when each open child was last heard of.
    heard: BTreeSet<(Moment, Binding)>,
}

/// A child that has not ended.
#[derive(Debug)]
struct Open {
    tool: Arc<str>,
    heard: Moment,
    life: Life,
}

#[derive(Debug, Default)]
struct Tool {
    used: Moment,
    /// In the order of [`Arm::ALL`], as are the samples.
    totals: [Totals; Arm::ALL.len()],
    samples: [Sample; Arm::ALL.len()],
    lives: Lives,
    rereads: [Rereads; Arm::ALL.len()],
    stood_down: Option<(StandDown, Moment)>,
}

impl ForkExperiment {
    /// Takes in a finished turn. Answers the tools that forking stands down for from now on: of this child or, if
    /// others have fallen silent, of theirs.
    pub fn record(&mut self, turn: &Answered<'_>, now: Moment) -> Vec<(Arc<str>, StandDown)> {
        let mut stood_down = self.close_silent(now);
        let name = self.tool(turn.tool, now);
        let Some(tool) = self.tools.get_mut(&name) else { return stood_down };
        tool.totals[turn.arm as usize].add(turn);
        // A forecast from before anything was known of the tool says nothing about forking.
        let foreseen = tool.lives.are_known();
        let before = self.forget(turn.child);
        let open = if turn.first {
            Some(Open { tool: name, heard: now, life: Life::begin(turn, foreseen) })
        } else {
            before
        };
        let Some(mut open) = open else { return stood_down };
        open.life.add(turn);
        open.heard = now;
        if turn.stop.ends() {
            stood_down.extend(self.close(open, now));
        } else {
            self.keep(turn.child, open);
        }
        stood_down
    }

    /// Why children of this tool are not forked for now.
    pub fn verdict(&self, tool: &str, now: Moment) -> Option<StandDown> {
        self.tools.get(tool)?.verdict(now)
    }

    /// Returns the habits of this tool's children, as far as they were learned; those that still live teach how long.
    pub fn habits(&self, tool: &str, horizon_turns: usize) -> ChildHabits {
        let Some(known) = self.tools.get(tool) else { return ChildHabits::default() };
        let living = self.open.values().filter(|open| *open.tool == *tool).map(|open| &open.life);
        let habits = known.lives.and_living(living, horizon_turns).habits(horizon_turns);
        let [_, holdout, unforked] = &known.rereads;
        let RereadsPerChild { tokens, turns } = Rereads::per_child([holdout, unforked]);
        ChildHabits { rereads_tokens: tokens, rereads_turns: turns, ..habits }
    }

    /// Takes in what a finished turn of a child of this tool, which was recorded, has read again.
    pub fn reread(&mut self, tool: &str, arm: Arm, is_first: bool, tokens: u64, is_reread: bool) {
        if let Some(tool) = self.tools.get_mut(tool) {
            tool.rereads[arm as usize].add(is_first, tokens, is_reread);
        }
    }

    /// Returns what the children of each tool and arm have read again.
    pub fn rereads(&self) -> impl Iterator<Item = (&str, Arm, &Rereads)> {
        self.tools.iter().flat_map(|(name, tool)| {
            let arms = Arm::ALL.into_iter().zip(&tool.rereads);
            arms.map(move |(arm, rereads)| (&**name, arm, rereads))
        })
    }

    /// Returns the totals of each tool and arm.
    pub fn totals(&self) -> impl Iterator<Item = (&str, Arm, &Totals)> {
        self.tools.iter().flat_map(|(name, tool)| {
            let arms = Arm::ALL.into_iter().zip(&tool.totals);
            arms.map(move |(arm, totals)| (&**name, arm, totals))
        })
    }

    /// The tool of this name, with room made for it.
    fn tool(&mut self, name: &str, now: Moment) -> Arc<str> {
        let name =
            self.tools.get_key_value(name).map_or_else(|| Arc::from(name), |(name, _)| Arc::clone(name));
        if !self.tools.contains_key(&name) && self.tools.len() >= TOOLS_MAX {
            let oldest =
                self.tools.iter().min_by_key(|(_, tool)| tool.used).map(|(name, _)| Arc::clone(name));
            oldest.map(|oldest| self.tools.remove(&oldest));
        }
        self.tools.entry(Arc::clone(&name)).or_default().used = now;
        name
    }

    fn keep(&mut self, child: Binding, open: Open) {
        self.heard.insert((open.heard, child));
        self.open.insert(child, open);
    }

    fn forget(&mut self, child: Binding) -> Option<Open> {
        let open = self.open.remove(&child)?;
        self.heard.remove(&(open.heard, child));
        Some(open)
    }

    fn close(&mut self, open: Open, now: Moment) -> Option<(Arc<str>, StandDown)> {
        let stood_down = self.tools.get_mut(&open.tool)?.lived(&open.life, now)?;
        Some((open.tool, stood_down))
    }

    fn close_silent(&mut self, now: Moment) -> Vec<(Arc<str>, StandDown)> {
        let mut stood_down = Vec::new();
        while let Some((heard, child)) = self.heard.first().copied() {
            if now.since(heard) <= QUIET_MS && self.open.len() < OPEN_MAX {
                break;
            }
            let Some(open) = self.forget(child) else { break };
            stood_down.extend(self.close(open, now));
        }
        stood_down
    }
}

impl Tool {
    fn verdict(&self, now: Moment) -> Option<StandDown> {
        self.stood_down.filter(|(_, until)| now < *until).map(|(why, _)| why)
    }

    /// A child has ended. Answers if that is why forking stands down.
    fn lived(&mut self, life: &Life, now: Moment) -> Option<StandDown> {
        self.lives.add(life);
        // Whoever was forked before forking stood down says nothing about how it goes afterwards.
        if life.arm == Arm::Forked && self.verdict(now).is_some() {
            return None;
        }
        self.samples[life.arm as usize].add(life);
        let [forked, holdout, unforked] = &self.samples;
        let baseline = [holdout, unforked].into_iter().find(|sample| sample.is_enough());
        let why = forked.fails(baseline.map_or(Baseline::Absolute, Baseline::Children))?;
        self.stood_down = Some((why, now.after(STAND_DOWN_MS)));
        self.samples[Arm::Forked as usize] = Sample::default();
        Some(why)
    }
}
