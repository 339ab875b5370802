//! Conversations and fan-outs: what a request follows, whose child it is, and what was decided for it.

pub mod thread;
pub mod conversation;
pub mod arrival;
pub mod recent;
mod choices;
pub mod outlines;
pub mod claims;
pub mod fanout;
pub mod reread;
mod shared_memory;
