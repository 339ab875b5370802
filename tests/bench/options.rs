//! The command line of the bench program.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::arms::{ARMS, FORK_FILE, is_before};
use crate::limits::BEFORE;
use crate::scenario::{IDLE_STREAMS, PACE_US};

/// The cost of a request through forkpoint, beside its peers and beside an earlier forkpoint
#[derive(Debug, Parser)]
#[command(name = "bench", bin_name = "tests/deep bench", args_conflicts_with_subcommands = true)]
pub struct Options {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub figures: FigureOptions,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Hold a mixed load for minutes and fail on leaks or altered answers
    Soak(SoakOptions),
    /// Requests per second that the simulator answers on one core; fails below 2,000
    Sim(SimOptions),
    #[command(hide = true)]
    Mock,
    #[command(hide = true)]
    Load,
    #[command(hide = true)]
    Minimal { listen: SocketAddr, upstream: SocketAddr },
}

#[derive(Debug, Args)]
pub struct FigureOptions {
    /// Fewer rounds and sizes, at most 2 minutes; for a look, not for tests/README.md
    #[arg(long)]
    pub quick: bool,
    /// Rounds of all arms [default: 7, with --quick 3]
    #[arg(long)]
    rounds: Option<usize>,
    /// No further round is begun that would end later [default: 590, with --quick 115]
    #[arg(long, value_name = "SECONDS")]
    budget: Option<u64>,
    /// Arms to run, separated by commas [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    arms: Vec<String>,
    /// Scenarios to run, separated by commas [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub scenarios: Vec<String>,
    /// The forkpoint binary to measure [default: the one cargo just built]
    #[arg(long, default_value = env!("CARGO_BIN_EXE_forkpoint"), hide_default_value = true, value_name = "PATH")]
    pub forkpoint: PathBuf,
    #[arg(long, value_name = "COMMIT", help = format!(
        "The commit whose binary the arms before-* run, built once below target/beside, or \"none\" \
         [default: {BEFORE}, where the repository has it]"
    ))]
    pub beside: Option<String>,
    /// Pause of the mock between two events, microseconds
    #[arg(long, default_value_t = PACE_US, value_name = "US")]
    pub sse_pace_us: u64,
    /// Open silent streams while memory is read
    #[arg(long, default_value_t = IDLE_STREAMS, value_name = "COUNT")]
    pub idle_streams: usize,
    /// On top of which peak memory is judged [default: what the store says it holds after the load]
    #[arg(long, value_name = "MB")]
    pub store_mb: Option<f64>,
    /// Write every sample and verdict to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Print tables for tests/README.md instead of aligned ones
    #[arg(long)]
    pub markdown: bool,
}

impl FigureOptions {
    pub fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 3 } else { 7 })
    }

    pub fn budget_s(&self) -> u64 {
        self.budget.unwrap_or(if self.quick { 115 } else { 590 })
    }

    /// The arms to run. Those of the earlier binary are left out without one, unless they are named.
    pub fn arms(&self, has_before: bool) -> Vec<String> {
        if !self.arms.is_empty() {
            return self.arms.clone();
        }
        let chosen = ARMS.iter().filter(|arm| has_before || !is_before(arm.name));
        chosen.map(|arm| arm.name.to_owned()).collect()
    }

    /// Returns true if an arm that runs the earlier binary is to run.
    pub fn wants_before(&self) -> bool {
        self.beside.as_deref() != Some("none") && self.arms(true).iter().any(|arm| is_before(arm))
    }
}

#[derive(Debug, Args)]
pub struct SoakOptions {
    /// How long the load is held [default: 10]
    #[arg(long, value_name = "N")]
    pub minutes: Option<f64>,
    /// End earlier, once so many requests were answered; together with --minutes not before both are reached
    #[arg(long, value_name = "N")]
    pub requests: Option<u64>,
    /// Pause of each client between two requests, milliseconds; large ones pause longer, and tenants with signs send fifty between two pauses
    #[arg(long, default_value_t = 10, value_name = "MS")]
    pub pause_ms: u64,
    /// The arm that carries it
    #[arg(long, default_value = FORK_FILE)]
    pub arm: String,
    /// The forkpoint binary to test [default: the one cargo just built]
    #[arg(long, default_value = env!("CARGO_BIN_EXE_forkpoint"), hide_default_value = true, value_name = "PATH")]
    pub forkpoint: PathBuf,
}

#[derive(Debug, Args)]
pub struct SimOptions {
    /// How long each kind of answer is asked for
    #[arg(long, default_value_t = 10.0)]
    pub seconds: f64,
    /// The forkpoint binary to measure [default: the one cargo just built]
    #[arg(long, default_value = env!("CARGO_BIN_EXE_forkpoint"), hide_default_value = true, value_name = "PATH")]
    pub forkpoint: PathBuf,
}
