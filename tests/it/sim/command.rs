//! `forkpoint sim` as a user runs it.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

fn forkpoint(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forkpoint"));
    command.arg("sim").args(arguments).kill_on_drop(true);
    command
}

#[tokio::test]
async fn it_says_where_it_listens_serves_and_stops_at_sigterm() {
    let mut child = forkpoint(&["--listen", "127.0.0.1:0"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = lines.next_line().await.unwrap().unwrap();
    let url = line.strip_prefix("listening on ").unwrap();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    assert_eq!(client.get(format!("{url}/health")).send().await.unwrap().status(), 200);
    let pid = child.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().await.unwrap().success());
    assert_eq!(child.wait().await.unwrap().code(), Some(0));
}

#[tokio::test]
async fn help_shows_the_grammar_the_faults_and_an_example() {
    let output = forkpoint(&["--help"]).output().await.unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    for needle in [
        "[[sim:",
        "fan_out",
        "/sim/faults",
        "x-sim-cut-at",
        "curl ",
        "--rule",
        "/sim/threads",
        "thread_not_found",
    ] {
        assert!(help.contains(needle), "{needle} is missing in:\n{help}");
    }
}

#[tokio::test]
async fn every_rule_is_listed_with_its_value() {
    let output = forkpoint(&["--list-rules", "--rule", "merging=separate"]).output().await.unwrap();
    let rules = String::from_utf8(output.stdout).unwrap();
    assert!(rules.contains("lookback_positions=20\n") && rules.contains("merging=separate\n"), "{rules}");
}

#[tokio::test]
async fn a_wrong_rule_is_a_usage_error_with_a_hint() {
    for rule in ["nonsense=1", "merging=maybe", "merging"] {
        let output = forkpoint(&["--rule", rule]).output().await.unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{message}");
        assert!(message.starts_with("error: "), "{message}");
    }
}

#[tokio::test]
async fn an_address_in_use_is_named_with_what_to_do() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap().to_string();
    let output = forkpoint(&["--listen", &addr]).output().await.unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains(&addr) && message.contains("--listen"), "{message}");
    assert_eq!(output.status.code(), Some(1));
}
