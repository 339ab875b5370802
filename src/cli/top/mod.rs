//! `forkpoint top`: the live page in a terminal, for `kubectl exec` and ssh.
//!
//! ```text
//! /events ─ stream.rs ─ model.rs ─┐
//! keys ────────────────────────────┼─ app.rs ─ view.rs ─ the terminal
//! signals, resizes, the clock ────┘
//! ```
//!
//! It reads what the page reads, and keeps as much. All that is drawn comes from the model, so that a test can draw it
//! without a terminal.

#[cfg(feature = "top")]
mod app;
#[cfg(feature = "top")]
mod fan_outs;
#[cfg(feature = "top")]
mod model;
#[cfg(feature = "top")]
mod session;
#[cfg(feature = "top")]
mod stream;
#[cfg(feature = "top")]
mod view;

use std::path::PathBuf;
use std::process::ExitCode;

use super::Failure;

#[cfg(feature = "top")]
const AFTER_HELP: &str = "\
Examples:
  forkpoint top
  forkpoint top --admin http://10.0.0.7:8788 --token-file token
  kubectl exec -it POD -c forkpoint -- /forkpoint top

Keys: ? lists them, q quits. Colours are off where NO_COLOR is set. Scripts
read the same as JSON from /events of the admin port.";

#[cfg(not(feature = "top"))]
const AFTER_HELP: &str = "\
This forkpoint was built without the feature `top`: the command only says so.
The live page at / of the admin port shows the same.";

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct TopArgs {
    /// Read this TOML file, for the admin port and its token
    ///
    /// Environment: FORKPOINT_CONFIG.
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
    /// The admin port to watch [default: server.admin_listen]
    #[arg(long, value_name = "URL")]
    admin: Option<String>,
    /// A file with the token of that port [default: admin.token_file]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

#[cfg(feature = "top")]
pub fn run(args: TopArgs) -> Result<ExitCode, Failure> {
    session::run(args)
}

#[cfg(not(feature = "top"))]
pub fn run(_: TopArgs) -> Result<ExitCode, Failure> {
    let failure = Failure::usage("this forkpoint was built without `top`");
    Err(failure.hint("open / of the admin port in a browser, or build with: cargo install --path ."))
}

#[cfg(test)]
mod tests;
