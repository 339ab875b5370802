//! Children, and the decisions for fan-outs, as they are kept beyond this process.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{BoundChild, DecidedFanOut, Fate, SharedPrefixes};
use crate::engine::family::fanout::ForkId;
use crate::engine::fork::Forecast;
use crate::engine::words::Moment;

/// A child beside its fate.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SavedChild {
    fork: ForkId,
    is_snapshot: bool,
    call: Option<usize>,
    tool: String,
    siblings: u64,
    forecast: Option<Forecast>,
    came_at: Moment,
}

/// The part of a child that changes with its turns.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct SavedTurns {
    turns: u64,
    tail: Option<usize>,
    looked_at: usize,
    counted_ms: u64,
    has_strayed: bool,
    context_usd: f64,
    counted_usd: f64,
}

/// The facts that hold for all children of a fan-out.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct SavedDecision {
    decided: Option<(Forecast, Moment)>,
    is_stood_down: bool,
}

impl BoundChild {
    pub fn save(&self) -> (SavedChild, SavedTurns) {
        let child = SavedChild {
            fork: self.fork,
            is_snapshot: self.is_snapshot,
            call: self.call,
            tool: self.tool.to_string(),
            siblings: self.siblings,
            forecast: self.forecast,
            came_at: self.came_at,
        };
        let turns = SavedTurns {
            turns: self.turns,
            tail: self.tail,
            looked_at: self.looked_at,
            counted_ms: self.counted_ms,
            has_strayed: self.has_strayed,
            context_usd: self.context_usd,
            counted_usd: self.counted_usd,
        };
        (child, turns)
    }

    /// Takes over what another process knows of its turns, if that is more. `is_later`: it was saved after whatever is
    /// known here of the same turn, which may have ended since.
    pub fn restore_turns(&mut self, saved: &SavedTurns, is_later: bool) -> bool {
        let is_more = saved.turns > self.turns || (is_later && saved.turns == self.turns);
        if is_more {
            self.turns = saved.turns;
            self.tail = saved.tail;
            self.looked_at = saved.looked_at;
            self.counted_ms = saved.counted_ms;
            self.has_strayed |= saved.has_strayed;
            self.context_usd = saved.context_usd;
            self.counted_usd = saved.counted_usd;
        }
        is_more
    }

    pub fn turns(&self) -> u64 {
        self.turns
    }
}

impl SavedChild {
    pub fn fork(&self) -> ForkId {
        self.fork
    }

    pub fn restore(self, fate: Fate) -> BoundChild {
        BoundChild {
            fork: self.fork,
            is_snapshot: self.is_snapshot,
            fate,
            call: self.call,
            tool: Arc::from(self.tool),
            siblings: self.siblings,
            forecast: self.forecast,
            turns: 0,
            tail: None,
            looked_at: 0,
            came_at: self.came_at,
            counted_ms: 0,
            has_strayed: false,
            context_usd: 0.0,
            counted_usd: 0.0,
        }
    }
}

impl SharedPrefixes {
    /// The decision for all children of a fork point.
    pub fn save(&self, fork: ForkId) -> SavedDecision {
        let decided = self.decisions.iter().rev().find(|decision| decision.fork == fork);
        SavedDecision {
            decided: decided.map(|decision| (decision.forecast, decision.until)),
            is_stood_down: self.is_stood_down(fork),
        }
    }

    /// Takes over what another process has decided. What was decided here counts.
    pub fn restore(&mut self, fork: ForkId, saved: SavedDecision) {
        if saved.is_stood_down {
            self.stand_down(fork);
        }
        let is_known = self.decisions.iter().any(|decision| decision.fork == fork);
        if let (Some((forecast, until)), false) = (saved.decided, is_known) {
            self.remember(DecidedFanOut { fork, forecast, until });
        }
    }
}
