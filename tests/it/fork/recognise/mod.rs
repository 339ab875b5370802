//! Fan-outs and their children are recognised for sure or not at all.

mod roles;
mod later_turns;
pub mod wire;
mod strangers;
mod bad_answers;
