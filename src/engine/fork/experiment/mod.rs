//! Records what became of a tenant's children, forked and not: what they teach, and whether forking pays.
//!
//! Each finished turn of a child is recorded under the tool that started it. From children that have ended, habits are
//! learned: how long such children live, how they come, what they read again; of each kind apart, since one tool starts
//! several. When all children of a fan-out have
//! ended, the bills of those that were forked are compared with what they would have cost as sent. If they were dearer,
//! or answered with nothing more often than others, forking stands down for that tool. After a while, which doubles each
//! time, it is tried again with one fan-out.
//!
//! ```text
//! record(turn) ─┬─ bills so far
//!               ├─ Life ── Lives: turns, growth, pauses
//!               └─ RunningFanOut ─┬─ Siblings: together, alike
//!                                 └─ SafetyNet ─ StandDown?
//! ```

mod fan_out;
mod kinds;
mod life;
mod net;
mod rereads;
mod sample;
mod saved;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::economics::{Bills, ChildHabits, Forecast};
use crate::engine::family::fanout::{Binding, ForkId};
use crate::engine::request::prefix::PrefixHash;
use crate::engine::words::{Arm, CostUnit, Moment, Refusal, StandDown, StopReason};
use fan_out::{RunningFanOut, Starts};
pub use kinds::ChildKind;
use kinds::Kinds;
use life::Life;
use net::SafetyNet;
pub use rereads::{Rereads, RereadsPerChild};
use sample::{Baseline, Sample};
pub use saved::{SavedLife, SavedTool};

/// Tools of one tenant that are distinguished; it has a few.
const TOOLS_MAX: usize = 64;
/// Children of one tenant that are followed at once.
const OPEN_MAX: usize = 4_096;
/// Fan-outs of one tool that are followed at once; the oldest is judged as it is.
const RUNNING_MAX: usize = 64;
/// A child that is silent for this long has ended: some end with a call that is never answered.
const QUIET_MS: u64 = 15 * 60 * 1_000;

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
    /// True if the answer broke off: its client asks again, or is not heard of any more.
    pub is_cut: bool,
    pub is_empty: bool,
    /// All tokens of the prompt, read, written or not cached.
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    /// Tokens of results that its parent had read; none if it was given no such result.
    pub reread_tokens: Option<u64>,
    /// Its tools in its own words, and these with its system prompt.
    pub tools: PrefixHash,
    pub prompt: PrefixHash,
    /// True if nothing that the turn before wrote of its messages could be read, since a parameter differs: an image came.
    pub loses_messages: bool,
    /// The children that its fan-out may have.
    pub siblings: u64,
    pub came_at: Moment,
    pub begun_at: Moment,
    pub cost: Option<Measured>,
}

/// The bill of a turn, and what it would have cost otherwise, as far as that is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    pub unit: CostUnit,
    pub billed: f64,
    pub sent: Option<f64>,
    pub aligned: Option<f64>,
}

/// The ledger of one tenant.
#[derive(Debug, Default)]
pub struct ForkExperiment {
    tools: HashMap<Arc<str>, ToolExperience>,
    open: BTreeMap<Binding, OpenLife>,
    /// By when each open child was last heard of.
    heard: BTreeSet<(Moment, Binding)>,
}

/// A child that has not ended.
#[derive(Debug)]
struct OpenLife {
    tool: Arc<str>,
    heard: Moment,
    life: Life,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct ToolExperience {
    used: Moment,
    /// In the order of [`Arm::ALL`], as are the rereads.
    samples: [Sample; Arm::ALL.len()],
    rereads: [Rereads; Arm::ALL.len()],
    #[serde(default)]
    kinds: Kinds,
    running: BTreeMap<ForkId, RunningFanOut>,
    #[serde(with = "saved::pairs")]
    declined: HashMap<Option<Refusal>, Declined>,
    net: SafetyNet,
    /// Turns of its children, those included that another process has seen.
    turns_seen: u64,
    /// True if it was not saved since.
    #[serde(skip)]
    is_changed: bool,
}

/// Children that were not forked, for one reason, or only because the mode does not fork.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Declined {
    pub children: u64,
    /// Dollars that they were predicted to cost forked, aligned and as sent, as far as that is known.
    pub forked_usd: f64,
    pub aligned_usd: f64,
    pub as_sent_usd: f64,
}

impl ForkExperiment {
    /// A fan-out was decided, at its first child. `is_warm`: aligned, that one would have found its tools and system prompt
    /// in the cache.
    pub fn started(&mut self, kind: ChildKind<'_>, is_warm: bool, now: Moment) {
        let name = self.tool(kind.tool, now);
        let Some(tool) = self.tools.get_mut(&name) else { return };
        match &mut tool.kinds.of(kind.tools).starts {
            // The first one finds nothing, and says nothing about those to come.
            starts @ None => *starts = Some(Starts::default()),
            Some(starts) => starts.add(is_warm),
        }
    }

    /// A child of this tool and fan-out is forked.
    pub fn forked(&mut self, tool: &str, fork: ForkId, now: Moment) {
        if let Some(tool) = self.tools.get_mut(tool) {
            tool.is_changed = true;
            tool.net.forked(fork, now);
        }
    }

    /// A child of this tool goes out without a fork, for this reason, or only because the mode does not fork.
    pub fn declined(&mut self, tool: &str, why: Option<Refusal>, forecast: Option<&Forecast>, now: Moment) {
        let name = self.tool(tool, now);
        let Some(tool) = self.tools.get_mut(&name) else { return };
        let declined = tool.declined.entry(why).or_default();
        declined.children += 1;
        if let Some(forecast) = forecast.filter(|forecast| forecast.unit == CostUnit::Dollars) {
            declined.forked_usd += forecast.forked;
            declined.aligned_usd += forecast.aligned;
            declined.as_sent_usd += forecast.as_sent;
        }
    }

    /// Returns the children of each tool that were not forked, by reason.
    pub fn all_declined(&self) -> impl Iterator<Item = (&str, Option<Refusal>, Declined)> {
        self.tools
            .iter()
            .flat_map(|(name, tool)| tool.declined.iter().map(|(why, declined)| (&**name, *why, *declined)))
    }

    /// Takes in a finished turn. Returns the tools that forking stands down for from now on: of this child or, if others
    /// have fallen silent, of theirs. `max_cost_ratio`: what a forked child may cost, in multiples of the child as sent.
    pub fn record(
        &mut self,
        turn: &Answered<'_>,
        max_cost_ratio: f64,
        now: Moment,
    ) -> Vec<(Arc<str>, StandDown)> {
        let mut stood_down = self.close_silent(max_cost_ratio, now);
        let name = self.tool(turn.tool, now);
        let Some(tool) = self.tools.get_mut(&name) else { return stood_down };
        tool.add(turn, now);
        let before = self.forget(turn.child);
        let open = if turn.first {
            Some(OpenLife { tool: name, heard: now, life: Life::begin(turn) })
        } else {
            before
        };
        let Some(mut open) = open else { return stood_down };
        open.life.add(turn);
        open.heard = now;
        if turn.stop.ends() && !turn.is_cut {
            stood_down.extend(self.close(open, max_cost_ratio, now));
        } else {
            self.keep(turn.child, open);
        }
        stood_down
    }

    /// Returns why children of this tool and fan-out are not forked for now.
    pub fn verdict(&self, tool: &str, fork: ForkId, now: Moment) -> Option<StandDown> {
        self.tools.get(tool)?.net.verdict(fork, now)
    }

    /// Returns the habits of children of this kind, as far as they were learned; those that still live teach how long.
    pub fn habits(&self, kind: ChildKind<'_>, horizon_turns: usize) -> ChildHabits {
        let Some(tool) = self.tools.get(kind.tool) else { return ChildHabits::default() };
        let [_, holdout, unforked] = &tool.rereads;
        let RereadsPerChild { tokens, turns } = Rereads::per_child([holdout, unforked]);
        let rereads = ChildHabits { reread_tokens: tokens, reread_turns: turns, ..ChildHabits::default() };
        let Some(known) = tool.kinds.get(&kind.tools) else { return rereads };
        let is_kin = |open: &&OpenLife| *open.tool == *kind.tool && open.life.tools == Some(kind.tools);
        let living = self.open.values().filter(is_kin).map(|open| &open.life);
        ChildHabits {
            reread_tokens: tokens,
            reread_turns: turns,
            together: known.siblings.together(),
            alike: known.siblings.alike(),
            starts: known.starts.map(Starts::counts),
            ..known.lives.and_living(living, horizon_turns).habits(horizon_turns)
        }
    }

    /// Returns what was billed to the children of this kind so far, and what they would have cost.
    pub fn bills(&self, kind: ChildKind<'_>, unit: CostUnit) -> Bills {
        let known = self.tools.get(kind.tool).and_then(|tool| tool.kinds.get(&kind.tools));
        known.map(|known| known.bills[unit as usize]).unwrap_or_default()
    }

    /// Returns what the children of each tool and arm have read again.
    pub fn rereads(&self) -> impl Iterator<Item = (&str, Arm, &Rereads)> {
        self.tools.iter().flat_map(|(name, tool)| {
            let arms = Arm::ALL.into_iter().zip(&tool.rereads);
            arms.map(move |(arm, rereads)| (&**name, arm, rereads))
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
        let tool = self.tools.entry(Arc::clone(&name)).or_default();
        (tool.used, tool.is_changed) = (now, true);
        name
    }

    fn keep(&mut self, child: Binding, open: OpenLife) {
        self.heard.insert((open.heard, child));
        self.open.insert(child, open);
    }

    fn forget(&mut self, child: Binding) -> Option<OpenLife> {
        let open = self.open.remove(&child)?;
        self.heard.remove(&(open.heard, child));
        Some(open)
    }

    fn close(&mut self, open: OpenLife, max_cost_ratio: f64, now: Moment) -> Option<(Arc<str>, StandDown)> {
        let tool = self.tools.get_mut(&open.tool)?;
        tool.is_changed = true;
        let stood_down = tool.lived(&open.life, max_cost_ratio, now)?;
        Some((open.tool, stood_down))
    }

    /// Closes the children, and the fan-outs, that nothing is heard of any more.
    fn close_silent(&mut self, max_cost_ratio: f64, now: Moment) -> Vec<(Arc<str>, StandDown)> {
        let mut stood_down = Vec::new();
        while let Some((heard, child)) = self.heard.first().copied() {
            if now.since(heard) <= QUIET_MS && self.open.len() < OPEN_MAX {
                break;
            }
            let Some(open) = self.forget(child) else { break };
            stood_down.extend(self.close(open, max_cost_ratio, now));
        }
        for (name, tool) in &mut self.tools {
            let why = tool.judge(max_cost_ratio, now);
            tool.is_changed |= why.is_some();
            stood_down.extend(why.map(|why| (Arc::clone(name), why)));
        }
        stood_down
    }
}

impl ToolExperience {
    /// Takes in a turn of one of its children.
    fn add(&mut self, turn: &Answered<'_>, now: Moment) {
        let arm = turn.arm as usize;
        self.turns_seen = self.turns_seen.saturating_add(1);
        self.rereads[arm].add(turn.first, turn.reread_tokens);
        let kind = self.kinds.of(turn.tools);
        if let Some(Measured { unit, billed, sent: Some(sent), aligned: Some(aligned) }) = turn.cost {
            let bills = &mut kind.bills[unit as usize];
            bills.billed += billed;
            bills.sent += sent;
            bills.aligned += aligned;
        }
        let running = self.running.entry(turn.fork).or_insert_with(|| RunningFanOut::new(turn.siblings));
        running.heard = now;
        if turn.first {
            running.arrive(turn, &mut kind.siblings);
        }
    }

    /// A child has ended. Returns why forking stands down, if that shows it.
    fn lived(&mut self, life: &Life, max_cost_ratio: f64, now: Moment) -> Option<StandDown> {
        if let Some(tools) = life.tools {
            self.kinds.of(tools).lives.add(life);
        }
        if let Some(running) = self.running.get_mut(&life.fork) {
            running.end(life);
        }
        // A child that was forked before forking stood down says nothing about later ones.
        let is_closed = self.net.is_closed_to(life.fork, now);
        if life.arm != Arm::Forked || !is_closed {
            self.samples[life.arm as usize].add(life);
        }
        let [forked, holdout, unforked] = &self.samples;
        let baseline = [holdout, unforked].into_iter().find(|sample| sample.is_enough());
        // A tool that already stands down is not judged again.
        if !is_closed && forked.fails(baseline.map_or(Baseline::Absolute, Baseline::Children)) {
            self.samples[Arm::Forked as usize] = Sample::default();
            self.net.stand_down(StandDown::EmptyAnswers, now);
            return Some(StandDown::EmptyAnswers);
        }
        self.judge(max_cost_ratio, now)
    }

    /// Judges the fan-outs that have come to their end.
    fn judge(&mut self, max_cost_ratio: f64, now: Moment) -> Option<StandDown> {
        let mut stood_down = None;
        let is_crowded = self.running.len() > RUNNING_MAX;
        let oldest = self.running.iter().min_by_key(|(_, running)| running.heard).map(|(fork, _)| *fork);
        let net = &mut self.net;
        self.running.retain(|fork, running| {
            let has_ended = running.has_ended(now) || (is_crowded && Some(*fork) == oldest);
            if has_ended && let Some(bills) = running.forked {
                stood_down = net.judge(*fork, bills, max_cost_ratio, now).or(stood_down);
            }
            !has_ended
        });
        stood_down
    }
}
