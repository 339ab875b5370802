//! The cost of a request through forkpoint, beside nginx, the bare libraries, an earlier forkpoint, and itself.
//!
//! ```text
//! load generator ──▶ arm (direct | nginx | nginx-buf | minimal-hyper | forkpoint-* | before-* | a peer) ──▶ mock
//!   own process        own process, one core, CPU and memory read from /proc                       own process
//! ```
//!
//! The rule: absolute figures on a shared machine mean little, so all arms run interleaved and only
//! figures of the same round are divided by each other; and a run in which one request was lost, repeated
//! or altered is no run. `tests/deep bench` calls this; mock, generator and the bare-library arm are this
//! same program under hidden subcommands.

// A bench may fail loudly.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod options;
mod rounds;
mod scenario;
mod itself;
mod arms;
mod peers;
mod beside;
mod children;
mod figures;
mod stats;
mod limits;
mod report;
mod table;
mod soak;
mod signs;
mod hostile;
mod sim;
mod job;
mod load;
mod flood;
mod mock;
mod minimal;
mod bodies;
mod answers;
mod http1;
mod procfs;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser as _;

use options::{Command, Options};

type Fallible<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    // `cargo test --all-targets` runs benches too, without arguments; minutes of load are not meant then.
    if arguments.len() == 1 {
        println!("nothing to test here; `tests/deep bench` measures");
        return ExitCode::SUCCESS;
    }
    let options = Options::parse_from(arguments.into_iter().filter(|argument| argument != "--bench"));
    match run(options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            children::let_the_signal_win();
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns true if everything held.
fn run(options: Options) -> Fallible<bool> {
    match options.command {
        Some(Command::Mock) => mock::run().map(|()| true),
        Some(Command::Load) => load::run().map(|()| true),
        Some(Command::Minimal { listen, upstream }) => minimal::run(listen, upstream).map(|()| true),
        Some(Command::Soak(options)) => {
            children::stop_on_signals()?;
            soak::run(&options)
        }
        Some(Command::Sim(options)) => {
            children::stop_on_signals()?;
            sim::run(&options)
        }
        None => {
            children::stop_on_signals()?;
            let beside = beside::built(&options.figures)?;
            let figures = rounds::run(&options.figures, beside)?;
            report::print(&figures, &options.figures)
        }
    }
}

/// Writes one line to the process that started this one.
fn say(line: &str) -> std::io::Result<()> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{line}")?;
    output.flush()
}

/// The folder for configurations and logs of the arms, below the target folder and reused by the next run.
fn temporary_folder() -> std::io::Result<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("bench");
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}
