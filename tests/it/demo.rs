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

/// A row of the comparison of gated and ungated: children, prefix, both costs.
fn gate_rows(text: &str) -> Vec<[f64; 4]> {
    let cells = |line: &str| -> Option<[f64; 4]> {
        let cells: Option<Vec<f64>> =
            line.split_whitespace().take(4).map(|cell| cell.replace(',', "").parse().ok()).collect();
        cells?.try_into().ok()
    };
    text.lines().filter_map(cells).collect()
}

#[test]
fn the_gate_is_never_dearer_and_its_plot_holds_what_was_measured() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a & b.svg");
    // A deadline that no busy machine misses.
    let sizes = ["--gate", "--children-max", "5", "--prefix-max", "10000", "--max-hold-ms", "60000", "--svg"];
    let output = demo(&sizes).arg(&path).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    let rows = gate_rows(&text);
    let sizes: Vec<(f64, f64)> = rows.iter().map(|row| (row[0], row[1])).collect();
    assert_eq!(sizes, [(2.0, 2_000.0), (5.0, 2_000.0), (2.0, 10_000.0), (5.0, 10_000.0)], "{text}");
    assert!(rows.iter().all(|[_, _, ungated, gated]| gated <= ungated), "{text}");
    let [ungated, gated] = [2, 3].map(|at| rows.iter().map(|row| row[at]).sum::<f64>());
    assert!(gated < ungated, "{text}");
    assert!(text.contains("The gate saved "), "{text}");

    let drawn = std::fs::read_to_string(&path).unwrap();
    let document = roxmltree::Document::parse(&drawn).unwrap();
    let lines: Vec<_> = document.descendants().filter(|node| node.has_tag_name("polyline")).collect();
    // Cost and time, two prefixes, with the gate and without; a point for each number of children.
    assert_eq!(lines.len(), 2 * 2 * 2);
    assert!(lines.iter().all(|line| line.attribute("points").unwrap().split(' ').count() == 2));
    let names: Vec<_> =
        lines.iter().map(|line| line.first_element_child().unwrap().text().unwrap()).collect();
    assert_eq!(names[..4], ["2k, gated", "2k, ungated", "10k, gated", "10k, ungated"]);
}

#[test]
fn a_plot_that_cannot_be_written_is_said_at_once_with_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("missing/gate.svg");
    let output = demo(&["--gate", "--svg"]).arg(&path).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains(path.to_str().unwrap()) && message.contains("hint: --svg"), "{message}");
}

#[test]
fn sizes_of_the_grid_need_the_gate_and_those_of_one_fan_out_exclude_it() {
    for args in [["--children-max", "5"], ["--gate", "--stay"]] {
        let output = demo(&args).output().unwrap();
        assert_eq!(output.status.code(), Some(64), "{args:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("--gate"), "{args:?}");
    }
}

#[test]
fn the_largest_fan_out_spawns_every_child() {
    let output =
        demo(&["--children", "64", "--turns", "0", "--context", "2000", "--requests"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert_eq!(rows(&text).iter().filter(|row| row[0].starts_with("child-")).count(), 64, "{text}");
}
