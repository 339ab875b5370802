//! The binary of an earlier commit, which the new one is compared with in the same run.
//!
//! ```text
//! target/beside/COMMIT/                           the files of the commit
//! target/beside/COMMIT/target/release/forkpoint   its binary
//! ```
//!
//! Cargo builds it as it builds the new one, and rebuilds it only when the compiler changed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Fallible;
use crate::children::{Child, with_parent};
use crate::limits::BEFORE;
use crate::options::FigureOptions;

/// An earlier binary and its commit.
#[derive(Debug)]
pub struct Beside {
    pub commit: String,
    pub binary: PathBuf,
}

/// Builds the binary that the options name, if an arm needs it. Returns `None` if no commit was named and the
/// repository does not have the usual one, as a shallow clone does not.
pub fn built(options: &FigureOptions) -> Fallible<Option<Beside>> {
    if !options.wants_before() {
        return Ok(None);
    }
    let name = options.beside.as_deref().unwrap_or(BEFORE);
    let Some(commit) = resolved(name)? else {
        if options.beside.is_some() {
            return Err(format!("no commit {name:?} in this repository").into());
        }
        eprintln!("commit {name} is not in this repository: nothing is compared with it");
        return Ok(None);
    };
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().ok_or("no target folder")?;
    let folder = target.join("beside").join(&commit);
    if !folder.exists() {
        check_out(&commit, &folder)?;
    }
    eprintln!("building the binary of {name} (the first time takes minutes)");
    let mut cargo = with_parent("cargo");
    cargo.args(["build", "--quiet", "--release", "--locked", "--bin", "forkpoint"]);
    cargo.arg("--target-dir").arg(folder.join("target")).current_dir(&folder);
    Child::start("cargo build", cargo)?.finish()?;
    let binary = folder.join("target/release/forkpoint");
    Ok(Some(Beside { commit: commit.chars().take(SHOWN_DIGITS).collect(), binary }))
}

/// Digits of a commit that a reader needs to find it.
const SHOWN_DIGITS: usize = 7;

/// The full name of a commit, if the repository has it.
fn resolved(name: &str) -> Fallible<Option<String>> {
    let mut git = git();
    git.args(["rev-parse", "--quiet", "--verify", "--end-of-options", &format!("{name}^{{commit}}")]);
    let output = git.stderr(Stdio::null()).output()?;
    if !output.status.success() {
        return Ok(None);
    }
    Ok(Some(String::from_utf8(output.stdout)?.trim().to_owned()))
}

/// Writes the files of a commit into a folder, which exists only once it is complete.
fn check_out(commit: &str, folder: &Path) -> Fallible<()> {
    let unfinished = folder.with_extension("unfinished");
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished)?;
    }
    fs::create_dir_all(&unfinished)?;
    let mut archive = git().args(["archive", commit]).stdout(Stdio::piped()).spawn()?;
    let files = archive.stdout.take().ok_or("git archive without output")?;
    let unpacked = Command::new("tar").arg("-x").current_dir(&unfinished).stdin(files).status()?;
    if !archive.wait()?.success() || !unpacked.success() {
        return Err(format!("the files of {commit} cannot be written to {}", unfinished.display()).into());
    }
    Ok(fs::rename(&unfinished, folder)?)
}

fn git() -> Command {
    let mut git = Command::new("git");
    git.current_dir(env!("CARGO_MANIFEST_DIR"));
    git
}
