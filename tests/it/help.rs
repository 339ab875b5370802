//! Help that helps, for every command, and in the shell.

use std::process::Command;

use forkpoint::config::{ConfigKey, KeyKind};

fn forkpoint(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_forkpoint")).env_clear().args(args).output().unwrap();
    assert!(output.status.success(), "{args:?} {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The commands that the help lists.
fn commands() -> Vec<String> {
    let help = forkpoint(&["-h"]);
    let listed = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    let first_words = listed.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    first_words.filter(|word| !word.is_empty() && *word != "help").map(String::from).collect()
}

#[test]
fn every_command_has_an_example_that_names_it() {
    let commands = commands();
    assert!(commands.len() >= 8, "{commands:?}");
    for command in &commands {
        for flag in ["-h", "--help"] {
            let help = forkpoint(&[command, flag]);
            let example = help.split("Example").nth(1).unwrap_or_default();
            assert!(example.contains(command.as_str()), "{command} {flag} has no example:\n{help}");
        }
    }
    assert!(forkpoint(&["--help"]).contains("Examples:\n  forkpoint demo"));
}

#[test]
fn without_a_command_there_is_help_and_no_proxy() {
    let help = forkpoint(&[]);
    assert_eq!(help, forkpoint(&["-h"]));
    assert!(help.contains("Commands:\n  serve "), "{help}");
    let output = Command::new(env!("CARGO_BIN_EXE_forkpoint")).env_clear().args(["--mode", "fork"]).output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(64), "{said}");
    assert!(output.stdout.is_empty() && said.contains("--mode"), "{said}");
}

#[test]
fn flags_name_the_words_that_they_take() {
    for (command, flag, path) in [
        (&["serve"][..], "--mode", "server.mode"),
        (&["run"], "--mode", "server.mode"),
        (&["check-config"], "--mode", "server.mode"),
        (&["serve"], "--store", "store.kind"),
    ] {
        let help = forkpoint(&[command, &["-h"]].concat());
        let line =
            help.lines().find(|line| line.contains(flag)).unwrap_or_else(|| panic!("{flag} in {help}"));
        let KeyKind::Choice(choice) = &ConfigKey::find(path).unwrap().kind else {
            panic!("{path} is no choice")
        };
        for word in choice.words {
            assert!(line.contains(word), "{word} is missing in {line}");
        }
    }
    // Any of them is taken, and what is none of them is judged with all the rest.
    for mode in ["observe", "align", "fork"] {
        assert!(forkpoint(&["check-config", "--mode", mode]).contains(mode));
    }
}

#[test]
fn completions_know_every_command_and_are_scripts() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = forkpoint(&["completions", shell]);
        for command in commands() {
            assert!(script.contains(&command), "{shell} does not know {command}");
        }
    }
    let script = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(script.path(), forkpoint(&["completions", "bash"])).unwrap();
    let ask = "source \"$1\"; COMP_WORDS=(forkpoint run --mo); COMP_CWORD=2; _forkpoint forkpoint --mo run; echo ${COMPREPLY[*]}";
    let answer = Command::new("bash").args(["-c", ask, "bash"]).arg(script.path()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&answer.stdout).trim(), "--mode");
    let ask = "source \"$1\"; COMP_WORDS=(forkpoint run --mode ''); COMP_CWORD=3; _forkpoint forkpoint '' --mode; echo ${COMPREPLY[*]}";
    let answer = Command::new("bash").args(["-c", ask, "bash"]).arg(script.path()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&answer.stdout).trim(), "observe align fork");
}
