//! Files of `tests/configs`: each invalid one with the whole report that a user gets, each valid one accepted.

use std::path::PathBuf;

use super::{assert_golden, check_config, repository};

#[test]
fn every_invalid_file_is_refused_with_its_report() {
    let folder = repository("tests/configs/invalid");
    let files = toml_files("tests/configs/invalid");
    assert!(files.len() >= 10, "only {} files", files.len());
    for file in files {
        let name = file.file_name().unwrap().to_str().unwrap();
        let run = check_config(&folder, &["--config", name], &[]);
        assert_eq!((run.code, run.stdout.as_str()), (Some(64), ""), "{name}: {}", run.stderr);
        assert!(!run.stderr.contains("hunter2"), "{name} leaks a secret: {}", run.stderr);
        let report =
            run.stderr.replace(concat!("forkpoint ", env!("CARGO_PKG_VERSION")), "forkpoint <version>");
        assert_golden(&file.with_extension("expected"), &report);
    }
}

#[test]
fn every_report_belongs_to_a_file() {
    let folder = repository("tests/configs/invalid");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        assert!(path.with_extension("toml").exists(), "{} has no file", path.display());
    }
}

#[test]
fn every_valid_file_is_accepted_and_its_output_means_the_same() {
    let folder = repository("tests/configs/valid");
    let files = toml_files("tests/configs/valid");
    assert!(files.len() >= 3, "only {} files", files.len());
    for file in files {
        let first = check_config(&folder, &["--config", file.to_str().unwrap()], &[]);
        assert_eq!((first.code, first.stderr.as_str()), (Some(0), ""), "{}", file.display());
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("again.toml"), &first.stdout).unwrap();
        let again = check_config(dir.path(), &["--config", "again.toml"], &[]);
        assert_eq!(without_comments(&again.stdout), without_comments(&first.stdout), "{}", again.stderr);
    }
}

fn without_comments(text: &str) -> Vec<&str> {
    text.lines().map(|line| line.split('#').next().unwrap_or_default()).collect()
}

fn toml_files(folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(repository(folder)).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    files
}
