//! Forking: a child is put on its parent's prefix.
//!
//! A child that its client starts from nothing shares nothing with its siblings. Forked, it continues the parent's
//! conversation: the parent's bytes, the turn that called it, a placeholder for every call, and then its own words.
//! All siblings read what the first of them has written, and the parent before them.
//!
//! ```text
//! eligible ─ Trunk::of ─ Prefix::of ─ Prefix::compose ─ Forecast::of ─ decide       the first turn
//!            once a fork  once a child  └──────────── each later turn, same bytes up to the directive
//! ```
//!
//! The rules: every "no" is a [`Refusal`](super::words::Refusal); the parent's bytes are sliced and never written
//! again; nothing that the child says or asks for is lost.

mod policy;
mod refusal;
mod said;
mod fields;
mod eligible;
mod strip;
mod trunk;
mod words;
mod blocks;
mod opening;
mod layout;
mod marks;
mod economics;
pub mod answers;
pub mod arms;
#[cfg(test)]
mod tests;

pub use economics::{Forecast, Habits, Market, Sizes, decide, fits, siblings, weighed};
pub use eligible::{Facts, eligible, is_snapshot};
pub use layout::{Composed, OwnExtent, Prefix, Turn, betas};
pub use policy::{Late, Policy, Report, SnapshotScope, ToolsPolicy};
pub use trunk::{Extent, Trunk};

use super::breakpoints::Breakpoint;
use crate::engine::words::{Carrier, Origin, Ttl};

fn added(piece: usize, ttl: Ttl) -> Breakpoint {
    Breakpoint { piece, ttl, origin: Origin::Added, carrier: Carrier::Block }
}

/// A text as a JSON string.
fn quoted(text: &str) -> Vec<u8> {
    serde_json::Value::from(text).to_string().into_bytes()
}
