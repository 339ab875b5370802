//! The children of a tenant: what was decided for each of them, and for whole fan-outs.

mod saved;

pub use saved::{SavedChild, SavedDecision, SavedTurns};

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use super::relation::FirstSeen;
use crate::engine::cache::worlds::Lead;
use crate::engine::family::fanout::{Child, ForkId, ForkPoint};
use crate::engine::fork::{ChildPrefix, Forecast, ParentPrefix};
use crate::engine::words::{Arm, Moment, Refusal, Why};

/// Fan-outs whose refusal or decision is remembered: far more than are live at once.
const FAN_OUTS_MAX: usize = 1024;

/// A child, for its life.
#[derive(Clone, Debug)]
pub struct BoundChild {
    /// The fan-out that it comes from.
    pub fork: ForkId,
    /// True if it was put on a turn that it named, with nothing of its own but a question.
    pub is_snapshot: bool,
    pub fate: Fate,
    /// The call that started it, counted in its fan-out.
    pub call: Option<usize>,
    /// The tool that started it; empty if it has named its parent itself.
    pub tool: Arc<str>,
    /// The calls of its fan-out that start a child by the same tool.
    pub siblings: u64,
    /// Its predicted cost when it came.
    pub forecast: Option<Forecast>,
    turns: u64,
    /// The piece where its last turn wrote its tail.
    pub tail: Option<usize>,
    /// The number of messages of the turn whose results were looked at last.
    pub looked_at: usize,
    /// The moment of its first request, and the part of the time since that is counted.
    came_at: Moment,
    counted_ms: u64,
    /// A turn of it was accepted without the prefix that it has.
    pub has_strayed: bool,
    /// Dollars that it was billed more than it would have cost aligned, and the most that was counted of them.
    context_usd: f64,
    counted_usd: f64,
}

/// The decision for a child when it came.
#[derive(Clone, Debug)]
pub enum Fate {
    /// It has this prefix, of a fork point that is held as long: the prefix is that one's bytes.
    Forked(Arc<ChildPrefix>, Arc<ForkPoint>),
    /// It keeps its own prompt, for this reason.
    Own(Why),
}

impl BoundChild {
    pub fn new(first: &FirstSeen, fate: Fate, forecast: Option<Forecast>, came_at: Moment) -> BoundChild {
        let child = &first.child;
        let call = child.call.and_then(|call| child.fork.calls.get(call));
        BoundChild {
            fork: child.fork.id,
            is_snapshot: first.is_snapshot,
            fate,
            call: child.call,
            siblings: child.siblings(),
            tool: call.map_or_else(|| Arc::from(""), |call| Arc::clone(&call.name)),
            forecast,
            turns: 0,
            tail: None,
            looked_at: 0,
            came_at,
            counted_ms: 0,
            has_strayed: false,
            context_usd: 0.0,
            counted_usd: 0.0,
        }
    }

    pub fn arm(&self) -> Arm {
        match self.fate {
            Fate::Forked(..) => Arm::Forked,
            Fate::Own(Why::Refused(Refusal::Holdout)) => Arm::Holdout,
            Fate::Own(_) => Arm::Unforked,
        }
    }

    pub fn is_forked(&self) -> bool {
        matches!(self.fate, Fate::Forked(..))
    }

    /// Counts a turn that was accepted, and returns its number.
    pub fn next_turn(&mut self) -> u64 {
        self.turns += 1;
        self.turns
    }

    /// A turn has ended: returns how much longer the child has lived by that, in milliseconds.
    pub fn grows(&mut self, now: Moment) -> u64 {
        let lived = now.since(self.came_at);
        let more = lived.saturating_sub(self.counted_ms);
        self.counted_ms = self.counted_ms.max(lived);
        more
    }

    /// A forked child was billed so much more than it would have cost aligned. Returns how much more its context has cost
    /// by that than was counted before: a turn that cost less gives back what was counted only to later turns.
    pub fn context_cost(&mut self, more_usd: f64) -> f64 {
        self.context_usd += more_usd;
        let more = (self.context_usd - self.counted_usd).max(0.0);
        self.counted_usd += more;
        more
    }

    /// The fork point whose prefix it has.
    pub fn point(&self) -> Option<&Arc<ForkPoint>> {
        match &self.fate {
            Fate::Forked(_, point) => Some(point),
            Fate::Own(_) => None,
        }
    }

    /// Returns the number of bytes this holds in memory, the fork point aside.
    pub fn memory_bytes(&self) -> usize {
        let prefix = match &self.fate {
            Fate::Forked(prefix, _) => prefix.memory_bytes(),
            Fate::Own(_) => 0,
        };
        size_of::<BoundChild>() + prefix
    }
}

/// The facts that the children of one fan-out share.
#[derive(Debug, Default)]
pub struct SharedPrefixes {
    /// As long as a child has it.
    prefixes: HashMap<ForkId, Weak<ParentPrefix>>,
    /// The fan-outs in which a forked child was refused and the same child as it came was not; the newest.
    stood_down: VecDeque<ForkId>,
    /// The decision for each fan-out's children, the newest last: the same for all of them.
    decisions: VecDeque<DecidedFanOut>,
    /// How much sooner the child that was answered last would have been in the other worlds; the newest last.
    leads: VecDeque<(ForkId, Lead)>,
}

/// The decision for a fan-out.
#[derive(Clone, Copy, Debug)]
struct DecidedFanOut {
    fork: ForkId,
    forecast: Forecast,
    /// Children that come later are decided anew.
    until: Moment,
}

/// Returns true if what is decided for a child holds for its siblings.
fn is_one_of_many(child: &Child) -> bool {
    child.call.is_some() && child.fork.is_sealed()
}

impl SharedPrefixes {
    /// Returns the prefix of a fork point, if a child has it.
    pub fn get(&self, fork: &ForkPoint) -> Option<Arc<ParentPrefix>> {
        let known = self.prefixes.get(&fork.id).and_then(Weak::upgrade);
        known.filter(|prefix| prefix.is_of(fork))
    }

    /// Keeps a prefix that was made for a fork point, unless another was kept first; returns the one that counts.
    pub fn keep(&mut self, fork: &ForkPoint, made: ParentPrefix) -> Arc<ParentPrefix> {
        if let Some(first) = self.get(fork) {
            return first;
        }
        let made = Arc::new(made);
        self.prefixes.retain(|_, prefix| prefix.strong_count() > 0);
        self.prefixes.insert(fork.id, Arc::downgrade(&made));
        made
    }

    /// Returns what was decided for the children of a fan-out. One that names its parent itself, or comes before the seal,
    /// is decided by itself.
    pub fn decided(&self, child: &Child, now: Moment) -> Option<Forecast> {
        if !is_one_of_many(child) {
            return None;
        }
        let decision = self.decisions.iter().rev().find(|decision| decision.fork == child.fork.id)?;
        (now < decision.until).then_some(decision.forecast)
    }

    /// Keeps a decision for the children of a fan-out. Returns true if it is their first.
    pub fn decide(&mut self, child: &Child, forecast: Forecast, now: Moment) -> bool {
        if !is_one_of_many(child) || self.decided(child, now).is_some() {
            return false;
        }
        let fork = &child.fork;
        let known = self.decisions.len();
        self.decisions.retain(|decision| decision.fork != fork.id);
        let is_first = self.decisions.len() == known;
        let until = now.after(forecast.ttl.ms());
        self.remember(DecidedFanOut { fork: fork.id, forecast, until });
        is_first
    }

    fn remember(&mut self, decision: DecidedFanOut) {
        if self.decisions.len() >= FAN_OUTS_MAX {
            self.decisions.pop_front();
        }
        self.decisions.push_back(decision);
    }

    /// Keeps a prefix that was restored for a fork point, unless another is kept.
    pub fn keep_restored(&mut self, fork: &ForkPoint, restored: &Arc<ParentPrefix>) {
        if fork.is_sealed() && self.get(fork).is_none() {
            self.prefixes.retain(|_, prefix| prefix.strong_count() > 0);
            self.prefixes.insert(fork.id, Arc::downgrade(restored));
        }
    }

    /// A child of this fan-out is answered: its parent goes on once all of them are.
    pub fn led(&mut self, fork: ForkId, lead: Lead) {
        if let Some(known) = self.leads.iter_mut().rev().find(|(known, _)| *known == fork) {
            known.1 = lead;
            return;
        }
        if lead != Lead::default() {
            self.leads.push_back((fork, lead));
        }
        if self.leads.len() > FAN_OUTS_MAX {
            self.leads.pop_front();
        }
    }

    /// How much sooner the children of this fan-out would have been answered in the other worlds.
    pub fn lead(&self, fork: ForkId) -> Lead {
        let known = self.leads.iter().rev().find(|(known, _)| *known == fork);
        known.map(|(_, lead)| *lead).unwrap_or_default()
    }

    /// No further children of this fork point are forked. Returns true if that is news.
    pub fn stand_down(&mut self, fork: ForkId) -> bool {
        if self.is_stood_down(fork) {
            return false;
        }
        self.stood_down.push_back(fork);
        if self.stood_down.len() > FAN_OUTS_MAX {
            self.stood_down.pop_front();
        }
        true
    }

    pub fn is_stood_down(&self, fork: ForkId) -> bool {
        self.stood_down.contains(&fork)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::words::TenantId;

    #[test]
    fn a_child_lives_from_its_first_request_to_its_last_answer() {
        let mut child = BoundChild {
            fork: ForkId::of(TenantId([0; 32]), "m"),
            is_snapshot: false,
            siblings: 1,
            fate: Fate::Own(Why::Mode),
            call: None,
            tool: Arc::from("Agent"),
            forecast: None,
            turns: 0,
            tail: None,
            looked_at: 0,
            came_at: Moment(0),
            counted_ms: 0,
            has_strayed: false,
            context_usd: 0.0,
            counted_usd: 0.0,
        };
        // What its client does between two turns counts; turns that overlap count once.
        assert_eq!([100, 500, 480, 650].map(|ended| child.grows(Moment(ended))), [100, 400, 0, 150]);
    }
}
