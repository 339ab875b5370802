//! The configuration as a user meets it: the real binary, a clean environment, whole outputs.

// Helpers of tests may fail as loudly as tests.
#![allow(clippy::unwrap_used)]

mod check_config;
mod goldens;
mod manual;

use std::path::{Path, PathBuf};
use std::process::Command;

/// The outcome of one run of the binary.
struct Run {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Run {
    fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap()
    }
}

/// `forkpoint check-config` in a folder, with nothing in its environment but what is given.
fn check_config(folder: &Path, args: &[&str], env: &[(&str, &str)]) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forkpoint"));
    command.env_clear().envs(env.iter().copied()).current_dir(folder).arg("check-config").args(args);
    let output = command.output().unwrap();
    Run {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A path of the repository.
fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Compares with a file of the repository, or rewrites it when `UPDATE` is set.
fn assert_golden(path: &Path, actual: &str) {
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, actual).unwrap();
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        expected == actual,
        "{} differs; run again with UPDATE=1 and look at the change.\n--- expected\n{expected}\n--- actual\n{actual}",
        path.display()
    );
}
