//! `forkpoint completions SHELL`: a script that teaches a shell our commands and flags.

use std::io::{self, Write};

use clap_complete::Shell;

use super::Failure;

const EXAMPLE: &str = "\
Examples:
  forkpoint completions bash > ~/.local/share/bash-completion/completions/forkpoint
  forkpoint completions zsh > \"${fpath[1]}/_forkpoint\"
  forkpoint completions fish > ~/.config/fish/completions/forkpoint.fish";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLE)]
pub struct CompletionsArgs {
    /// Whom to teach
    #[arg(value_enum)]
    shell: Shell,
}

pub fn run(args: CompletionsArgs, mut command: clap::Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "forkpoint", &mut script);
    io::stdout()
        .write_all(&script)
        .map_err(|error| Failure::new(format!("cannot write to standard output: {error}")))
}
