//! `forkpoint demo` as a newcomer meets it.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

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
    for (role, plan, count) in [("plain", "aligned", 1), ("child", "forked", 2), ("parent", "aligned", 1)] {
        let labels = format!(r#"model="claude-sonnet-4-6",plan="{plan}",role="{role}",status="200""#);
        assert!(text.contains(&format!("forkpoint_requests_total{{{labels}}} {count}")), "{role}: {text}");
    }
}

/// A scenario as it was played, with a deadline that no busy machine misses.
fn played(args: &[&str]) -> Value {
    let output = demo(&["--json", "--max-hold-ms", "120000"]).args(args).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [scenario] = &report["scenarios"].as_array().unwrap()[..] else { panic!("one scenario: {report}") };
    scenario.clone()
}

#[track_caller]
fn figure(scenario: &Value, name: &str) -> f64 {
    scenario[name].as_f64().unwrap_or_else(|| panic!("{name} in {scenario:#}"))
}

/// Every child is forked, costs no more than as sent, and on every turn all but the first of a fan-out's writers
/// read at least 99 % of what they share.
#[track_caller]
fn assert_forked(scenario: &Value) {
    assert_eq!(scenario["declined"], json!([]), "{scenario:#}");
    assert!(figure(scenario, "forked_to_as_sent") <= 1.0, "{scenario:#}");
    let requests = scenario["columns"]["forked"]["requests"].as_array().unwrap();
    let children: Vec<&Value> = requests.iter().filter(|request| request["who"] != "parent").collect();
    let parent = requests[0]["prompt"].as_f64().unwrap();
    let misses = |request: &&&Value| {
        // The whole prompt counts as shared, the child's own directive too: stricter than it need be.
        let (read, prompt) = (request["cache_read"].as_f64().unwrap(), request["prompt"].as_f64().unwrap());
        assert!(prompt > parent && read >= 0.99 * parent, "the parent's context is read: {request:#}");
        read < 0.99 * prompt
    };
    let missed: Vec<_> = children.iter().filter(misses).collect();
    assert!(missed.len() <= 1 && missed.iter().all(|request| request["turn"] == 1), "{missed:#?}");
}

#[test]
fn five_children_read_a_parents_48_500_tokens_for_a_tenth_of_their_price() {
    let scenario = played(&["--scenario", "main"]);
    assert_eq!((&scenario["context_tokens"], &scenario["children"]), (&json!(48_500), &json!(5)));
    assert_forked(&scenario);
    let ratio = figure(&scenario, "forked_to_same_context_uncached");
    assert!(ratio <= 0.12, "{ratio}: {scenario:#}");
}

#[test]
fn forking_tool_heavy_children_costs_a_seventh_of_them_as_sent() {
    let scenario = played(&["--scenario", "tool-heavy"]);
    let prompts = scenario["columns"]["as_sent"]["requests"][1]["prompt"].as_u64().unwrap();
    assert!((40_000..42_000).contains(&prompts), "{prompts}");
    assert_forked(&scenario);
    let ratio = figure(&scenario, "forked_to_as_sent");
    assert!(ratio <= 0.15, "{ratio}: {scenario:#}");
}

#[test]
fn forking_12_000_token_children_under_46_000_costs_half_of_them_as_sent() {
    let scenario = played(&["--scenario", "medium"]);
    let prompts = scenario["columns"]["as_sent"]["requests"][1]["prompt"].as_u64().unwrap();
    assert!((11_500..12_500).contains(&prompts), "{prompts}");
    assert_forked(&scenario);
    let ratio = figure(&scenario, "forked_to_as_sent");
    assert!(ratio <= 0.5, "{ratio}: {scenario:#}");
}

#[test]
fn three_and_eight_children_of_100_000_tokens_are_forked() {
    for (name, children) in [("large-3", 3), ("large-8", 8)] {
        let scenario = played(&["--scenario", name]);
        assert_eq!((&scenario["context_tokens"], &scenario["children"]), (&json!(100_000), &json!(children)));
        assert_forked(&scenario);
        let ratio = figure(&scenario, "forked_to_same_context_uncached");
        assert!(ratio <= 0.12, "{ratio}: {scenario:#}");
    }
}

#[test]
fn a_small_child_under_a_large_parent_is_not_forked_and_the_reason_is_said() {
    let scenario = played(&["--scenario", "small"]);
    assert_eq!(scenario["declined"], json!(["cost"]));
    assert_eq!(scenario["forked_to_same_context_uncached"], Value::Null);
    let [aligned, forked] = ["aligned_to_as_sent", "forked_to_as_sent"].map(|name| figure(&scenario, name));
    assert!(forked <= aligned + 0.01 && forked < 1.0, "{scenario:#}");

    let output = demo(&["--children", "2", "--turns", "0", "--tools", "1000", "--context", "30000"]).output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    assert!(text.contains("declined to fork (cost)") && text.contains("fork.max_cost_ratio"), "{text}");
}

/// Around the size from which children are forked, and on either side of it, for as long as children are taken to
/// live.
#[test]
fn forking_never_costs_more_than_the_children_as_sent() {
    let mut fates = Vec::new();
    for client in ["careful", "naive"] {
        for tools in ["1500", "5000", "8000", "9500"] {
            let sizes = ["--children", "3", "--turns", "3", "--context", "20000", "--instructions", "500"];
            let scenario = played(&[&sizes[..], &["--client", client, "--tools", tools]].concat());
            assert_eq!(scenario["as_sent_overlapped"], true, "a machine too busy to tell: {scenario:#}");
            let ratio = figure(&scenario, "forked_to_as_sent");
            assert!(ratio <= 1.0, "{client} {tools}: {ratio}");
            fates.push(scenario["declined"] == json!([]));
        }
    }
    assert!(fates.contains(&true) && fates.contains(&false), "both sides: {fates:?}");
}

#[test]
fn tools_that_exceed_the_context_are_refused() {
    let output = demo(&["--context", "4000", "--tools", "5000"]).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(message.contains("--tools 5000") && message.contains("4000"), "{message}");
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
