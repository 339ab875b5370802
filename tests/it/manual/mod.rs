//! What the README says of metrics and log lines is what the code does, and what it shows can be run.

mod forks;
mod log;
mod metrics;
mod recorded;
mod snippets;
mod written;

use std::path::PathBuf;

fn readme() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("README.md")
}
