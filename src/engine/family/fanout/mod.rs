//! Fan-outs and the children they start, recognised from what passes by.
//!
//! An assistant turn that calls two or more tools with a *directive* each (a long string somewhere in the
//! call's input) is a fan-out turn. It leaves a [`ForkPoint`] behind: pending while it streams, then sealed.
//! A new conversation that opens with one of those directives is a child. Names of tools and fields do not
//! count; what counts is the text, who sends it, and when.
//!
//! ```text
//! answer of a parent   Draft::begin ─ push(block) ─┬─ FanOuts::pending ─ … ─ Draft::end ─ FanOuts::seal ─┬─ ForkPoint
//!                                                  └─ at each content_block_stop                       └─ FanOutDropped
//! request              recognise(Newcomer) ─ FanOuts::recognise ─ Plain(why) | Parent | Child | ClientFork | Ambiguous
//! later turn of a child   find_child ─ FanOuts::find ─ what was decided for it
//! ```
//!
//! In doubt a request is plain: a child not seen costs money, a false one reads another's conversation.

mod rules;
mod glob;
mod directive;
mod point;
mod leaves;
mod shape;
mod forks;
mod sought;
mod recognise;
mod snapshots;
mod marks;
mod bindings;
mod holdings;
mod fan_outs;
mod saved;
mod summary;
#[cfg(test)]
mod tests;

pub use bindings::{Bindable, Binding, Bindings, ChildName};
pub use directive::{Call, Directive};
pub use fan_outs::FanOuts;
pub use forks::Forks;
pub use marks::{ChildMarks, StartMeaning, Toolset, UnreadMark, find_child};
pub use point::{Draft, EndedDraft, FinishedTurn, ForkId, ForkPoint, Parent, fans_out};
pub use recognise::{Child, Explicit, Newcomer, Recognised};
pub use rules::{Rules, Who};
pub use saved::{SavedClaims, SavedMarks, SavedPoint, UnsavedChild, UnsavedFanOuts};
pub use shape::{CHILD_TAG, PLACEHOLDER, is_forked_by_shape, new_results, summary_name};
pub use snapshots::{LATEST, Snapshots};
pub use sought::{Sought, UnreadPart, recognise};
pub use summary::{CallSummary, Summary};
