//! The simulator against the rules it claims to follow.

// Helpers of tests may fail as loudly as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod harness;
mod cache;
mod command;
mod compaction;
mod diagnostics;
mod equality;
mod faults;
mod hostile;
mod incoming;
mod markers;
mod options;
mod refusals;
mod script;
mod threads;
mod thinking;
mod versions;
mod visibility;
mod wire;
