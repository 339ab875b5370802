//! How often an aligned request allocates, stage by stage: `main.rs` beside it with an allocator that counts,
//! and that is too slow to measure time with.

// A bench may fail loudly.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../bodies.rs"]
mod bodies;
mod cases;
mod stages;

use std::alloc::System;
use std::process::ExitCode;

use cases::Column;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Calls to the allocator and bytes asked for since the start.
fn allocated() -> (usize, usize) {
    let stats = ALLOCATOR.stats();
    (stats.allocations + stats.reallocations, stats.bytes_allocated)
}

fn main() -> ExitCode {
    cases::main(&[
        Column { head: "allocations", figure: |cost| cost.allocations, share: 0.5 },
        Column { head: "bytes", figure: |cost| cost.bytes, share: 0.5 },
    ])
}
