//! Decisions for children, and for whole fan-outs.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

use crate::engine::family::fanout::{Child, ForkId, ForkPoint};
use crate::engine::fork::{ChildPrefix, Forecast, ParentPrefix};
use crate::engine::words::{Arm, Moment, Refusal, Why};

/// Fan-outs whose refusal is remembered: far more than are live at once.
const STOOD_DOWN_MAX: usize = 1024;

/// The facts known of a child for its life.
#[derive(Clone, Debug)]
pub struct Bound {
    /// The fan-out that it comes from.
    pub fork: ForkId,
    /// True if it was put on a turn that it named, with nothing of its own but a question.
    pub is_snapshot: bool,
    pub fate: Fate,
    /// The tool that started it; empty if it has named its parent itself.
    pub tool: Arc<str>,
    /// Its predicted cost when it came.
    pub forecast: Option<Forecast>,
    turns: u64,
    /// The piece where its last turn wrote its tail.
    pub tail: Option<usize>,
    /// From its first request to its last answer.
    pub life: Lifetime,
    /// True if a turn of it was accepted without the prefix that it was put on: what was thought in it is bound to
    /// another.
    pub has_strayed: bool,
}

/// The decision for a child when it came.
#[derive(Clone, Debug)]
pub enum Fate {
    /// It stands on this, of a fork point that is held as long: what it stands on is that one's bytes.
    Forked(Arc<ChildPrefix>, Arc<ForkPoint>),
    /// It keeps its own prompt, for this reason.
    Own(Why),
}

impl Bound {
    pub fn new(child: &Child, is_snapshot: bool, fate: Fate, forecast: Option<Forecast>) -> Bound {
        let call = child.call.and_then(|call| child.fork.calls.get(call));
        Bound {
            fork: child.fork.id,
            is_snapshot,
            fate,
            tool: call.map_or_else(|| Arc::from(""), |call| Arc::clone(&call.name)),
            forecast,
            turns: 0,
            tail: None,
            life: Lifetime::default(),
            has_strayed: false,
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

    /// The fork point that it stands on.
    pub fn point(&self) -> Option<&Arc<ForkPoint>> {
        match &self.fate {
            Fate::Forked(_, point) => Some(point),
            Fate::Own(_) => None,
        }
    }

    /// Counts a turn that was accepted, and says which it is.
    pub fn next_turn(&mut self) -> u64 {
        self.turns += 1;
        self.turns
    }

    /// Returns the number of bytes this holds in memory, the fork point aside.
    pub fn memory_bytes(&self) -> usize {
        let prefix = match &self.fate {
            Fate::Forked(prefix, _) => prefix.memory_bytes(),
            Fate::Own(_) => 0,
        };
        size_of::<Bound>() + prefix
    }
}

/// How long a child lives.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lifetime {
    began: Option<Moment>,
    /// Of the time since.
    counted_ms: u64,
}

impl Lifetime {
    /// A turn that came at `started` has ended: how many milliseconds longer the child has lived by that.
    pub fn grows(&mut self, started: Moment, ended: Moment) -> u64 {
        let ms = ended.since(*self.began.get_or_insert(started));
        let before = self.counted_ms;
        self.counted_ms = before.max(ms);
        self.counted_ms - before
    }
}

/// The facts that the children of one fan-out share.
#[derive(Debug, Default)]
pub struct SharedFacts {
    /// As long as a child stands on it.
    parent_prefixes: HashMap<ForkId, Weak<ParentPrefix>>,
    /// Where a forked child was refused and the same child as it came was not; the newest.
    stood_down: VecDeque<ForkId>,
}

impl SharedFacts {
    /// Returns the one parent prefix of this fork point, if it was made already.
    pub fn known_prefix(&self, fork: &ForkPoint) -> Option<Arc<ParentPrefix>> {
        let known = self.parent_prefixes.get(&fork.id).and_then(Weak::upgrade);
        known.filter(|parent_prefix| parent_prefix.is_of(fork))
    }

    /// Keeps the parent prefix of this fork point, unless another was kept meanwhile: returns the one that was first.
    pub fn keep_prefix(&mut self, fork: &ForkPoint, parent_prefix: Arc<ParentPrefix>) -> Arc<ParentPrefix> {
        if let Some(first) = self.known_prefix(fork) {
            return first;
        }
        self.parent_prefixes.retain(|_, parent_prefix| parent_prefix.strong_count() > 0);
        self.parent_prefixes.insert(fork.id, Arc::downgrade(&parent_prefix));
        parent_prefix
    }

    /// No further children of this fork point are forked. Whether that is news.
    pub fn stand_down(&mut self, fork: ForkId) -> bool {
        if self.is_stood_down(fork) {
            return false;
        }
        self.stood_down.push_back(fork);
        if self.stood_down.len() > STOOD_DOWN_MAX {
            self.stood_down.pop_front();
        }
        true
    }

    pub fn is_stood_down(&self, fork: ForkId) -> bool {
        self.stood_down.contains(&fork)
    }
}
