//! Not yet.

use super::Failure;

#[derive(Debug, clap::Args)]
pub struct Args {}

pub fn run(_args: Args) -> Result<(), Failure> {
    Err(Failure::usage("not built yet"))
}
