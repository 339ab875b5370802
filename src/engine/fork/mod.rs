//! Forking: a child is put on its parent's prefix.
//!
//! A child that its client starts from nothing shares nothing with its siblings. Forked, it continues the parent's
//! conversation: the parent's bytes, the turn that called it, a placeholder for every call, and then its own words.
//! All siblings read what the first of them has written, and the parent before them.
//!
//! ```text
//! prepare_child   eligible ─ ParentPrefix::of ─ ChildPrefix::of ─ ChildPrefix::compose   decide  Forecast::of
//!                            once a fork point  once a child      │
//! compose_later                                                   └─ each later turn, same bytes up to the directive
//! ```
//!
//! The rules: every "no" is a [`Refusal`](super::words::Refusal); the parent's bytes are sliced and never written
//! again; nothing that the child says or asks for is lost.

mod policy;
mod refusal;
mod said;
mod fields;
mod eligible;
mod places;
mod parent_prefix;
mod words;
mod blocks;
mod opening;
mod layout;
mod marks;
mod sizes;
mod life;
mod economics;
mod plan;
pub mod answers;
pub mod experiment;
#[cfg(test)]
mod tests;

pub use crate::engine::cache::breakpoints::Breakpoint;
use crate::engine::words::{Carrier, Origin, Ttl};
pub use economics::{Bills, ChildHabits, Forecast, Limits, OwnWarmth, PricedCache, weighed};
pub use eligible::{eligible, is_snapshot, may_be_forked_once_sealed};
pub use layout::{ChildPrefix, Composed, OwnExtent, SavedChildPrefix, Turn, betas};
pub use parent_prefix::{ParentPrefix, PrefixExtent, Sources};
pub use plan::{
    BoundPrefix, ChildDecision, ChildOutlook, ChildRequest, ChildSources, ComposedChild, FirstTurn,
    ForkRules, NewChild, PreparedChild, compose_later, model_of, prepare_child,
};
pub use policy::{ForkPolicy, Late, Report, SnapshotScope, ToolsPolicy};
pub use sizes::{OwnMarks, PromptSizes, fits, siblings};

fn added(piece: usize, ttl: Ttl) -> Breakpoint {
    Breakpoint { piece, ttl, origin: Origin::Added, carrier: Carrier::Block }
}

/// A text as a JSON string.
fn quoted(text: &str) -> Vec<u8> {
    serde_json::Value::from(text).to_string().into_bytes()
}
