//! Every end-to-end promise, one module each, in one binary.

// Helpers of tests may fail as loudly as tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod config;
mod demo;
mod house;
mod sim;
