//! `fork.*` as far as it decides who is forked, and how.

use std::sync::Arc;

use crate::engine::family::fanout::ForkId;
use crate::engine::words::{IdDigest, first, shown_enums};

#[derive(Clone, Debug, PartialEq)]
pub struct ForkPolicy {
    pub tools_policy: ToolsPolicy,
    /// Top-level fields that a child takes from its parent, whatever it sent itself.
    pub inherit: Vec<String>,
    /// Members of a call's input that name the kind of agent.
    pub specialist_fields: Vec<String>,
    /// The kinds that are no specialists.
    pub general_types: Vec<String>,
    /// Sessions whose children are left alone: their ids, or the eight digits that logs show of them.
    pub exclude_sessions: Vec<String>,
    /// The part of the model's window that a forked prompt may fill.
    pub max_context_share: f64,
    /// The most that a forked child may cost, in multiples of the child as sent.
    pub max_cost_ratio: f64,
    /// The turns that a child is taken to have until its tool has taught better.
    pub horizon_turns: usize,
    /// The premium of a forked child over the aligned one, as a part of its cost.
    pub context_premium: f64,
    /// The part of fan-outs that is forked; the rest shows what that saves.
    pub share: f64,
    pub report: Report,
    pub hoist_system: bool,
    pub late: Late,
    pub snapshots: SnapshotScope,
    /// The words for a child instead of the built-in ones.
    pub template: Option<Arc<str>>,
}

impl Default for ForkPolicy {
    fn default() -> ForkPolicy {
        let list = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        ForkPolicy {
            tools_policy: ToolsPolicy::Equal,
            inherit: Vec::new(),
            specialist_fields: list(&["subagent_type", "agent_type"]),
            general_types: list(&["", "fork", "general-purpose"]),
            exclude_sessions: Vec::new(),
            max_context_share: 0.5,
            max_cost_ratio: 1.0,
            horizon_turns: 4,
            context_premium: 0.25,
            share: 1.0,
            report: Report::Auto,
            hoist_system: true,
            late: Late::Partial,
            snapshots: SnapshotScope::FanOut,
            template: None,
        }
    }
}

impl ForkPolicy {
    /// Returns true if the children of this fan-out are left alone, to be compared with. All of them or none, and the
    /// same on every replica.
    pub fn holds_out(&self, fork: ForkId) -> bool {
        let digest = blake3::derive_key("forkpoint holdout v1", fork.to_string().as_bytes());
        let number = u32::from_be_bytes(first(&digest));
        f64::from(number) >= self.share * (f64::from(u32::MAX) + 1.0)
    }

    pub(super) fn excludes(&self, session: IdDigest) -> bool {
        let digest = |id: &String| IdDigest(first(blake3::hash(id.as_bytes()).as_bytes()));
        self.exclude_sessions.iter().any(|id| digest(id) == session || *id == session.to_string())
    }
}

shown_enums! {
    /// `fork.tools_policy`: the assurance that a child with fewer tools than its parent needs.
    pub enum ToolsPolicy {
        /// A client that is known to enforce its own set.
        Equal = "equal",
        /// Nothing: every client is trusted with that.
        Subset = "subset",
    }

    /// `fork.report`: which children are asked to report.
    pub enum Report {
        /// Those that nobody else asks.
        Auto = "auto",
        Always = "always",
        Never = "never",
    }

    /// `fork.late`: a child that cannot wait for the seal any longer.
    pub enum Late {
        /// Continues the turn up to its own call.
        Partial = "partial",
        Passthrough = "passthrough",
    }

    /// `fork.snapshots`: the turns that a request may name to be put on.
    pub enum SnapshotScope {
        /// Fan-out turns.
        FanOut = "fan-out",
        /// And the newest turn of every conversation.
        Latest = "latest",
    }
}
