//! What is decided for children, and for whole fan-outs.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use crate::engine::fanout::{ForkId, ForkPoint};
use crate::engine::fork::{Prefix, Trunk};
use crate::engine::types::Why;

/// Fan-outs whose refusal is remembered: far more than are live at once.
const STOOD_DOWN_MAX: usize = 1024;

/// No tail was written yet.
const NO_TAIL: usize = usize::MAX;

/// What is known of a child for its life.
#[derive(Debug)]
pub struct Bound {
    /// Held, so that it is not forgotten before its children are.
    pub fork: Arc<ForkPoint>,
    pub fate: Fate,
    turns: AtomicU64,
    tail: AtomicUsize,
}

/// What was decided for a child when it came.
#[derive(Debug)]
pub enum Fate {
    /// It stands on this.
    Forked(Arc<Prefix>),
    /// It keeps its own prompt, for this reason.
    Own(Why),
}

impl Bound {
    pub fn new(fork: Arc<ForkPoint>, fate: Fate) -> Bound {
        Bound { fork, fate, turns: AtomicU64::new(0), tail: AtomicUsize::new(NO_TAIL) }
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

    /// What this holds in memory, the fork point aside.
    pub fn memory_bytes(&self) -> usize {
        let prefix = match &self.fate {
            Fate::Forked(prefix) => prefix.memory_bytes(),
            Fate::Own(_) => 0,
        };
        size_of::<Bound>() + prefix
    }
}

/// What the children of one fan-out share.
#[derive(Debug, Default)]
pub struct Fanouts {
    /// As long as a child stands on it.
    trunks: HashMap<ForkId, Weak<Trunk>>,
    /// Where a forked child was refused and the same child as it came was not; the newest.
    stood_down: VecDeque<ForkId>,
}

impl Fanouts {
    /// The one trunk of this fork point.
    pub fn trunk<E>(
        &mut self,
        fork: ForkId,
        grow: impl FnOnce() -> Result<Trunk, E>,
    ) -> Result<Arc<Trunk>, E> {
        if let Some(trunk) = self.trunks.get(&fork).and_then(Weak::upgrade) {
            return Ok(trunk);
        }
        let trunk = Arc::new(grow()?);
        self.trunks.retain(|_, trunk| trunk.strong_count() > 0);
        self.trunks.insert(fork, Arc::downgrade(&trunk));
        Ok(trunk)
    }

    /// No further children of this fork point are forked.
    pub fn stand_down(&mut self, fork: ForkId) {
        if !self.is_stood_down(fork) {
            self.stood_down.push_back(fork);
        }
        if self.stood_down.len() > STOOD_DOWN_MAX {
            self.stood_down.pop_front();
        }
    }

    pub fn is_stood_down(&self, fork: ForkId) -> bool {
        self.stood_down.contains(&fork)
    }
}
