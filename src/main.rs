//! The doorway: parse the command line, run, print an error with its hint, exit with its code.

use std::process::ExitCode;

// The system allocator of a static musl build is slow; this one is fast everywhere.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    forkpoint::cli::main()
}
