//! The commands. Each lives in its own file; this one only names them and turns failures into exit codes.

pub mod check_config;
pub mod completions;
pub mod demo;
pub mod explain;
pub mod healthcheck;
pub mod replay;
pub mod run;
pub mod serve;
pub mod sim;
pub mod top;
mod start;
pub mod records;
mod progress;
mod style;
mod own_sums;
mod logging;
mod recorded;
mod reload;
#[cfg(test)]
mod golden;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Exit code for a configuration or command line that cannot be used (`EX_USAGE`).
pub const EXIT_USAGE: u8 = 64;

const EXAMPLES: &str = "\
Examples:
  forkpoint demo                 see it work: no key, no network
  forkpoint run -- claude        one command through a proxy of its own, and a receipt
  forkpoint serve                a proxy for everybody, on 127.0.0.1:8787
  forkpoint top                  what it does, live in this terminal
  forkpoint COMMAND --help       more, with examples";

/// A reverse proxy that lets parallel sub-agents share one prompt-cache prefix.
#[derive(Debug, Parser)]
#[command(name = "forkpoint", version, about, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the proxy
    Serve(serve::ServeArgs),
    /// Run one command through a proxy of its own, and print a receipt
    Run(run::RunArgs),
    /// Watch a running forkpoint in this terminal: money, fan-outs, cache breaks
    Top(top::TopArgs),
    /// See the product work on the embedded simulator: no key, no network
    Demo(demo::DemoArgs),
    /// Run the Messages API simulator alone
    Sim(sim::SimArgs),
    /// Show what the prompt cache sees of a request, or where two requests part
    Explain(explain::Args),
    /// Play a recording again: what it would have cost as sent, aligned and forked
    Replay(replay::ReplayArgs),
    /// Print the effective configuration and where each value came from
    CheckConfig(check_config::CheckConfigArgs),
    /// Ask a running forkpoint whether it is ready; for container health checks
    Healthcheck(healthcheck::HealthcheckArgs),
    /// Print a script that completes commands and flags in a shell
    Completions(completions::CompletionsArgs),
}

/// Why a command failed: what to print, what to try next, and the exit code.
#[derive(Debug)]
pub struct Failure {
    pub message: String,
    pub hint: Option<String>,
    pub code: u8,
}

impl Failure {
    pub fn new(message: impl Into<String>) -> Self {
        Failure { message: message.into(), hint: None, code: 1 }
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Failure { code: EXIT_USAGE, ..Failure::new(message) }
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// A runtime with one worker per core. Also where there is only one: a worker hands its tasks over before it works on a
/// large body, which the runtime of a single thread cannot.
pub fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.enable_all().build().map_err(|error| Failure::new(format!("cannot start the runtime: {error}")))
}

/// The innermost cause: the one that says what to mend.
pub fn cause(error: &dyn std::error::Error) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { EXIT_USAGE } else { 0 });
        }
    };
    let outcome = match cli.command {
        // A proxy starts only where one is asked for: a name typed to see what it does takes no port.
        None => Cli::command().print_help().map_err(|error| Failure::new(format!("cannot print: {error}"))),
        Some(Command::Serve(args)) => serve::run(args),
        Some(Command::Run(args)) => return exit(run::run(args)),
        Some(Command::Top(args)) => return exit(top::run(args)),
        Some(Command::Demo(args)) => demo::run(args),
        Some(Command::Sim(args)) => sim::run(args),
        Some(Command::Explain(args)) => explain::run(args),
        Some(Command::Replay(args)) => replay::run(args),
        Some(Command::CheckConfig(args)) => check_config::run(args),
        Some(Command::Healthcheck(args)) => healthcheck::run(args),
        Some(Command::Completions(args)) => completions::run(args, Cli::command()),
    };
    exit(outcome.map(|()| ExitCode::SUCCESS))
}

fn exit(outcome: Result<ExitCode, Failure>) -> ExitCode {
    match outcome {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("error: {}", failure.message);
            if let Some(hint) = failure.hint {
                eprintln!("\nhint: {hint}");
            }
            ExitCode::from(failure.code)
        }
    }
}
