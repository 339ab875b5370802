//! `forkpoint demo` as a newcomer meets it.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

fn demo(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forkpoint"));
    command.arg("demo").args(args).env_clear();
    command
}

/// The cells of the table's rows, by their first cell.
fn rows(text: &str) -> Vec<Vec<String>> {
    let is_row = |line: &&str| {
        ["parent ", "child ", "children ", "all "].iter().any(|who| line.starts_with(who))
            && line.contains('$')
    };
    let cells = |line: &str| line.replace("child ", "child-").split_whitespace().map(String::from).collect();
    text.lines().filter(is_row).map(cells).collect()
}

fn number(cell: &str) -> u64 {
    cell.replace(',', "").parse().unwrap()
}

#[test]
fn it_bills_every_request_of_a_fan_out() {
    let output =
        demo(&["--children", "3", "--turns", "1", "--context", "6000", "--requests"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    let rows = rows(&text);
    // Parent, three children with two requests each, parent, and the two sums.
    assert_eq!(rows.len(), 1 + 3 * 2 + 1 + 2, "{text}");
    let billed: u64 = rows.iter().filter(|row| row.len() == 8).map(|row| number(&row[2])).sum();
    let all = rows.last().unwrap();
    assert_eq!(all[0], "all");
    assert_eq!(number(&all[1]), billed, "{text}");
}

/// The cells of a row of the comparison.
fn compared<'a>(text: &'a str, row: &str) -> Vec<&'a str> {
    let line = text.lines().find(|line| line.starts_with(row)).unwrap_or_else(|| panic!("{row} in {text}"));
    line[row.len()..].split_whitespace().collect()
}

#[test]
fn a_naive_client_pays_less_aligned_and_a_careful_one_no_more() {
    for (client, cheaper) in [("naive", true), ("careful", false)] {
        let sizes = ["--children", "2", "--turns", "2", "--context", "6000", "--client", client];
        let output = demo(&sizes).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        let reads = compared(&text, "all: cache read");
        assert_eq!(number(reads[0]) == 0, cheaper, "as sent: {text}");
        assert!(number(reads[1]) > 0, "{text}");
        let costs = compared(&text, "all: cost");
        let [sent, aligned] = [0, 1].map(|at| costs[at].trim_start_matches('$').parse::<f64>().unwrap());
        assert!(if cheaper { aligned < sent } else { aligned <= sent }, "{text}");
    }
}

#[test]
fn it_stays_up_when_asked_and_says_where_to_look() {
    let mut child =
        demo(&["--children", "2", "--turns", "0", "--stay"]).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let metrics = lines.into_iter().find(|line| line.contains("/metrics")).unwrap();
    let url = metrics.split_whitespace().next().unwrap().to_owned();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let text = runtime.block_on(async {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        client.get(url).send().await.unwrap().text().await.unwrap()
    });
    child.kill().unwrap();
    child.wait().unwrap();
    // The parent asks, two children answer at once, the parent reads their reports.
    for (role, count) in [("plain", 1), ("child", 2), ("parent", 1)] {
        let labels = format!(r#"model="claude-sonnet-4-6",plan="aligned",role="{role}",status="200""#);
        assert!(text.contains(&format!("forkpoint_requests_total{{{labels}}} {count}")), "{role}: {text}");
    }
}

#[test]
fn a_bad_size_is_refused_with_its_range() {
    let output = demo(&["--children", "1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&output.stderr).contains("2..=64"));
}
