//! Every end-to-end promise, one module each, in one binary.

// Tests may fail loudly, their helpers too; the lint only knows about the former.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod harness;
#[path = "../workload/mod.rs"]
mod workload;
mod config;
mod demo;
mod explain;
mod help;
mod house;
mod sim;
mod transparency;
mod clouds;
mod protocols;
mod streaming;
mod disconnects;
mod limits;
mod own_errors;
mod bad_input;
mod abuse;
mod abuse_http2;
mod mangled;
mod breakpoints;
mod align;
mod breaks;
mod fanout;
mod fork;
mod fork_layout;
mod tls;
mod admin;
mod admin_api;
mod lifecycle;
mod reload;
mod privacy;
mod recording;
mod replay;
mod traces;
mod manual;
mod run;
