//! Decisions for children, and for whole fan-outs.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use crate::engine::family::fanout::{Child, ForkId, ForkPoint};
use crate::engine::fork::{ChildPrefix, Forecast, ParentPrefix};
use crate::engine::words::{Arm, Refusal, Why};

/// Fan-outs whose refusal is remembered: far more than are live at once.
const STOOD_DOWN_MAX: usize = 1024;

/// No tail was written yet.
const NO_TAIL: usize = usize::MAX;

/// The facts known of a child for its life.
#[derive(Debug)]
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
    turns: AtomicU64,
    tail: AtomicUsize,
    /// From its first request to its last answer.
    pub life: Lifetime,
    /// A turn of it was accepted without the prefix that it stands on.
    strayed: AtomicBool,
    /// Its last answer left nothing to do: it may never come again.
    rests: AtomicBool,
}

/// The decision for a child when it came.
#[derive(Debug)]
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
            turns: AtomicU64::new(0),
            tail: AtomicUsize::new(NO_TAIL),
            life: Lifetime::default(),
            strayed: AtomicBool::new(false),
            rests: AtomicBool::new(false),
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

    /// A turn went without its prefix: what was thought in it is bound to another.
    pub fn stray(&self) {
        self.strayed.store(true, Relaxed);
    }

    pub fn has_strayed(&self) -> bool {
        self.strayed.load(Relaxed)
    }

    /// The fork point that it stands on.
    pub fn point(&self) -> Option<&Arc<ForkPoint>> {
        match &self.fate {
            Fate::Forked(_, point) => Some(point),
            Fate::Own(_) => None,
        }
    }

    /// A turn of it begins, or has ended with these words.
    pub fn rest(&self, stop_reason: Option<&str>) {
        self.rests.store(matches!(stop_reason, Some("end_turn" | "stop_sequence" | "refusal")), Relaxed);
    }

    /// Returns true if it holds a prefix and has no call to answer. Under pressure such a prefix may go; that of a
    /// child which works never does.
    pub fn may_go(&self) -> bool {
        self.is_forked() && self.rests.load(Relaxed)
    }

    /// Counts a turn that was accepted, and says which it is.
    pub fn next_turn(&self) -> u64 {
        self.turns.fetch_add(1, Relaxed) + 1
    }

    /// The piece where its last turn wrote its tail.
    pub fn tail(&self) -> Option<usize> {
        Some(self.tail.load(Relaxed)).filter(|tail| *tail != NO_TAIL)
    }

    pub fn wrote(&self, tail: usize) {
        self.tail.store(tail, Relaxed);
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
#[derive(Debug, Default)]
pub struct Lifetime {
    began: OnceLock<Instant>,
    /// Of the time since.
    counted_ms: AtomicU64,
}

impl Lifetime {
    /// A turn that came at `started` has ended: how much longer the child has lived by that.
    pub fn grows(&self, started: Instant, ended: Instant) -> Duration {
        let began = *self.began.get_or_init(|| started);
        let ms = ended.saturating_duration_since(began).as_millis() as u64;
        Duration::from_millis(ms.saturating_sub(self.counted_ms.fetch_max(ms, Relaxed)))
    }
}

/// The facts that the children of one fan-out share.
#[derive(Debug, Default)]
pub struct Fanouts {
    /// As long as a child stands on it.
    parent_prefixes: HashMap<ForkId, Weak<ParentPrefix>>,
    /// Where a forked child was refused and the same child as it came was not; the newest.
    stood_down: VecDeque<ForkId>,
}

impl Fanouts {
    /// The one parent prefix of this fork point.
    pub fn parent_prefix<E>(
        &mut self,
        fork: &ForkPoint,
        grow: impl FnOnce() -> Result<ParentPrefix, E>,
    ) -> Result<Arc<ParentPrefix>, E> {
        let known = self.parent_prefixes.get(&fork.id).and_then(Weak::upgrade);
        if let Some(parent_prefix) = known.filter(|parent_prefix| parent_prefix.is_of(fork)) {
            return Ok(parent_prefix);
        }
        let parent_prefix = Arc::new(grow()?);
        self.parent_prefixes.retain(|_, parent_prefix| parent_prefix.strong_count() > 0);
        self.parent_prefixes.insert(fork.id, Arc::downgrade(&parent_prefix));
        Ok(parent_prefix)
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
