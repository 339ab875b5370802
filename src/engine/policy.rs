//! The settings that requests are planned by, in the engine's words.

use std::sync::Arc;

use super::align;
use super::cache::prices::Prices;
use super::family::fanout;
use super::fork::{ForkPolicy, ForkRules};

/// The settings of an operator, as far as they decide what is done to a request.
#[derive(Clone, Debug)]
pub struct Policy {
    pub align: align::Rules,
    /// The rules of who is a child.
    pub fan_out: fanout::Rules,
    /// Which children are forked, and how.
    pub fork: ForkPolicy,
    pub prices: Arc<Prices>,
    /// The size of the largest body that is sent.
    pub body_bytes: usize,
    /// The longest wait of a child for the end of its parent's answer.
    pub await_parent_ms: u64,
    /// True if only children wait at the gate.
    pub holds_children_only: bool,
    /// The longest wait of a request, all its waits together.
    pub max_hold_ms: u64,
    /// True if texts that change from turn to turn are to be named.
    pub reports_volatile: bool,
}

impl Policy {
    pub fn fork_rules(&self) -> ForkRules<'_> {
        ForkRules {
            policy: &self.fork,
            fan_out: &self.fan_out,
            attribution: self.align.attribution,
            profile: self.align.profile,
            prices: &self.prices,
            body_bytes: self.body_bytes,
            composes_refused: false,
        }
    }
}
