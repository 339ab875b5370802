//! Every end-to-end promise, one module each, in one binary.

mod config;
mod sim;
