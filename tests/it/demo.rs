//! `forkpoint demo` as a newcomer meets it.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use forkpoint::config::{ValueOrigin, load_prices};
use serde_json::{Value, json};

/// The width of a terminal that nobody has widened.
const WIDTH: usize = 80;
const SCENARIOS: [&str; 9] =
    ["session", "single", "series", "reread", "large-3", "large-8", "tool-heavy", "medium", "small"];

fn demo(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forkpoint"));
    command.arg("demo").args(args).env_clear();
    command
}

/// What it prints, in lines that fit a terminal.
#[track_caller]
fn shown(args: &[&str]) -> String {
    let output = demo(args).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    for line in text.lines() {
        assert!(line.chars().count() <= WIDTH, "{args:?}: {line:?} is wider than {WIDTH}");
        assert!(!line.contains('\x1b'), "no colour where nobody looks: {line:?}");
    }
    text
}

/// The model that is played unless another is asked for.
fn current_model() -> String {
    let prices = load_prices(None, &ValueOrigin::Default).unwrap();
    prices.current().unwrap().id.clone()
}

/// The cells of the table's rows, by their first cell.
fn rows(text: &str) -> Vec<Vec<String>> {
    let is_row = |line: &&str| {
        ["parent ", "child ", "children ", "all "].iter().any(|who| line.starts_with(who))
            && line.contains('$')
    };
    let cells = |line: &str| line.replace("child ", "child-").split_whitespace().map(String::from).collect();
    let (_, requests) = text.split_once("Every request").unwrap_or_else(|| panic!("the requests: {text}"));
    requests.lines().filter(is_row).map(cells).collect()
}

fn number(cell: &str) -> u64 {
    cell.replace(',', "").parse().unwrap()
}

#[test]
fn it_bills_every_request_of_a_fan_out() {
    let sizes =
        ["--scenario", "single", "--children", "3", "--turns", "1", "--context", "6000", "--requests"];
    let text = shown(&sizes);
    let rows = rows(&text);
    // Parent, three children with two requests each, parent, and the two sums.
    assert_eq!(rows.len(), 1 + 3 * 2 + 1 + 2, "{text}");
    let billed: u64 = rows.iter().filter(|row| row.len() == 8).map(|row| number(&row[2])).sum();
    let all = rows.last().unwrap();
    assert_eq!(all[0], "all");
    assert_eq!(number(&all[1]), billed, "{text}");
}

#[test]
fn without_flags_a_session_is_shown_in_full_and_every_scenario_in_a_line() {
    let text = shown(&[]);
    assert!(text.starts_with("With forkpoint the 15 sub-agents of 'session' cost $"), "the verdict: {text}");
    let (verdict, rest) = text.split_once("\n\n").unwrap();
    assert!(
        verdict.contains("\u{a0}%\u{a0}less")
            && verdict.replace('\n', " ").contains("Over all 9 scenarios: "),
        "{verdict}"
    );
    let (chart, rest) =
        rest.split_once(&format!("\nModel {}, ", current_model())).expect("the model behind the bars");
    for name in SCENARIOS {
        let bars = chart.lines().find(|line| line.starts_with(&format!("{name} "))).expect(name);
        assert!(bars.contains("████████   1.00"), "as sent is one: {bars}");
    }
    assert!(rest.contains("\nsession: a parent"), "then the table: {rest}");
    assert!(text.contains("of input)") && text.contains("cache write"), "the prices: {text}");
    assert!(text.contains("session: a parent of 48,500 tokens fans out 3 times, 10 minutes apart"), "{text}");
    for number in 1..=3 {
        assert!(text.contains(&format!("\n  fan-out {number} ")), "what was decided: {text}");
    }
    assert!(text.contains("Foreseen per child over "), "{text}");
    let (_, overview) = text.split_once("\nscenario ").unwrap();
    let listed: Vec<&str> = overview.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(SCENARIOS.iter().all(|name| listed.contains(name)), "{overview}");
    let help = String::from_utf8(demo(&["--help"]).output().unwrap().stdout).unwrap();
    assert!(SCENARIOS.iter().all(|name| help.contains(&format!("- {name}:"))), "{help}");
}

#[test]
fn another_model_is_billed_at_its_own_prices_and_an_unknown_one_is_refused() {
    let sizes = ["--scenario", "single", "--children", "2", "--turns", "0", "--context", "6000"];
    let text = shown(&[&sizes[..], &["--model", "claude-haiku-5-5"]].concat());
    assert!(text.contains("Model claude-haiku-5-5, ") && text.contains("(0.1 of input)"), "{text}");
    assert!(text.contains("prompts above 100,000 tokens"), "{text}");
    let output = demo(&["--model", "claude-nobody-1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("--model claude-nobody-1") && message.contains(&current_model()), "{message}");
}

#[test]
fn a_naive_client_pays_less_aligned_and_a_careful_one_no_more() {
    for (client, cheaper) in [("naive", true), ("careful", false)] {
        let sizes = ["--scenario", "single", "--children", "2", "--context", "6000", "--client", client];
        let scenario = played(&sizes);
        let all = |column: &str, figure: &str| scenario["columns"][column]["all"][figure].as_f64().unwrap();
        assert_eq!(all("as_sent", "cache_read") == 0.0, cheaper, "{scenario:#}");
        assert!(all("aligned", "cache_read") > 0.0, "{scenario:#}");
        let (sent, aligned) = (all("as_sent", "usd"), all("aligned", "usd"));
        assert!(if cheaper { aligned < sent } else { aligned <= sent }, "{scenario:#}");
    }
}

#[test]
fn it_stays_up_when_asked_with_traffic_on_the_live_page_and_says_what_to_look_at() {
    let mut child = demo(&["--scenario", "single", "--children", "2", "--turns", "0", "--stay"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let shown: Vec<String> = lines.by_ref().take_while(|line| !line.contains("/sim/cache")).collect();
    let text = shown.join("\n");
    assert!(text.contains("The live page, with traffic until Ctrl-C:\n  http://127.0.0.1:"), "{text}");
    for look in ["  1. The money line", "  2. A fan-out as it runs", "  3. Cache breaks"] {
        assert!(text.contains(look), "{text}");
    }
    let metrics = shown.iter().find(|line| line.contains("/metrics")).unwrap();
    let metrics = metrics.split_whitespace().next().unwrap().to_owned();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let get =
        |url: &str| runtime.block_on(async { client.get(url).send().await.unwrap().text().await.unwrap() });
    assert!(get(&metrics.replace("/metrics", "/")).contains("<title>forkpoint"), "the live page");
    // Fan-outs follow each other, and an agent loses its cache.
    let since = Instant::now();
    let counted = |text: &str, metric: &str| -> u64 {
        let counts = text.lines().filter(|line| line.starts_with(metric));
        counts.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
    };
    loop {
        let text = get(&metrics);
        let fan_outs = counted(&text, "forkpoint_forks_total{outcome=\"sealed\"}");
        let breaks = counted(&text, "forkpoint_cache_breaks_total{cause=\"system\"");
        if fan_outs >= 3 && breaks >= 1 {
            break;
        }
        assert!(since.elapsed() < Duration::from_secs(120), "{fan_outs} fan-outs, {breaks} breaks: {text}");
        std::thread::sleep(Duration::from_millis(50));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn it_is_chosen_by_the_users_configuration_and_what_does_not_count_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.toml");
    std::fs::write(
        &path,
        "[server]\nmode = \"observe\"\nlisten = \"127.0.0.1:9\"\n\n[gate]\nmin_tokens = 2000\n",
    )
    .unwrap();
    let sizes = ["--scenario", "single", "--children", "2", "--turns", "0", "--context", "6000"];
    let text = shown(&[&sizes[..], &["--config", path.to_str().unwrap()]].concat());
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("Played with server.mode, gate.min_tokens of "), "{text}");
    assert!(words.contains("Not played: server.listen of "), "{text}");
    assert!(words.contains("What your configuration chose and why"), "{text}");
    assert!(words.contains(": as much."), "observing changes nothing: {text}");
    let output = demo(&sizes).args(["--config", "missing.toml"]).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(64) && message.contains("missing.toml"), "{message}");
}

/// A scenario as it was played, with a deadline that no busy machine misses.
#[track_caller]
fn played(args: &[&str]) -> Value {
    let output = demo(&["--json", "--max-hold-ms", "120000"]).args(args).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [scenario] = &report["scenarios"].as_array().unwrap()[..] else { panic!("one scenario: {report}") };
    assert_eq!(scenario["as_sent_overlapped"], true, "a machine too busy to tell: {scenario:#}");
    scenario.clone()
}

#[track_caller]
fn figure(scenario: &Value, name: &str) -> f64 {
    scenario[name].as_f64().unwrap_or_else(|| panic!("{name} in {scenario:#}"))
}

/// The requests of the children in a column.
fn children<'a>(scenario: &'a Value, column: &str) -> Vec<&'a Value> {
    let requests = scenario["columns"][column]["requests"].as_array().unwrap();
    requests.iter().filter(|request| request["who"] != "parent").collect()
}

/// The part of a fan-out's forked children that did not read nearly all that they share: the first may write.
#[track_caller]
fn assert_shared(scenario: &Value) {
    let requests = scenario["columns"]["forked"]["requests"].as_array().unwrap();
    let parent = requests[0]["prompt"].as_f64().unwrap();
    let misses = |request: &&&Value| {
        assert_eq!(request["plan"], "forked", "{request:#}");
        // The whole prompt counts as shared, the child's own directive too: stricter than it need be.
        let (read, prompt) = (request["cache_read"].as_f64().unwrap(), request["prompt"].as_f64().unwrap());
        assert!(prompt > parent && read >= 0.99 * parent, "the parent's context is read: {request:#}");
        read < 0.99 * prompt
    };
    let children = children(scenario, "forked");
    let missed: Vec<_> = children.iter().filter(misses).collect();
    assert!(missed.len() <= 1 && missed.iter().all(|request| request["turn"] == 1), "{missed:#?}");
}

/// What the default configuration chose is never dearer than as sent, and at most its premium above aligning.
#[track_caller]
fn assert_promise(scenario: &Value) {
    let chosen = figure(scenario, "as_chosen_to_as_sent");
    assert!(chosen <= 1.02, "{chosen} of as sent: {scenario:#}");
    let aligned = figure(scenario, "aligned_to_as_sent");
    assert!(chosen <= 1.3 * aligned, "{chosen} beside {aligned}: {scenario:#}");
    for decision in scenario["decisions"].as_array().unwrap() {
        let (forked, all) = (&decision["forked"], &decision["children"]);
        assert!(*forked == json!(0) || forked == all, "siblings are decided alike: {decision:#}");
        assert_eq!(decision["reasons"] == json!([]), forked == all, "{decision:#}");
    }
}

/// How many of each fan-out's children the default configuration forked.
fn forked_by_fan_out(scenario: &Value) -> Vec<u64> {
    let decisions = scenario["decisions"].as_array().unwrap();
    decisions.iter().map(|decision| decision["forked"].as_u64().unwrap()).collect()
}

#[test]
fn a_session_is_aligned_while_nothing_is_learned_and_forked_once_that_pays() {
    let scenario = played(&["--scenario", "session"]);
    assert_eq!((&scenario["fan_outs"], &scenario["pause_s"]), (&json!(3), &json!(600)));
    assert_promise(&scenario);
    assert_eq!(forked_by_fan_out(&scenario), [0, 5, 5], "{:#}", scenario["decisions"]);
    for decision in scenario["decisions"].as_array().unwrap() {
        let predicted = ["forked", "as_sent", "aligned"].map(|plan| decision["predicted"][plan].as_f64());
        assert!(predicted.iter().all(|figure| figure.is_some_and(|usd| usd > 0.0)), "{decision:#}");
        let limits: Vec<&String> = decision["predicted"]["limits"].as_object().unwrap().keys().collect();
        assert_eq!(limits, ["sent", "aligned", "twice", "unknown"]);
    }
    // What forkpoint says of its own children is what they were billed, directly and aligned.
    let of_column = |name: &str| scenario["columns"][name]["children"]["usd"].as_f64().unwrap();
    for (own, column, within) in [
        ("billed_usd", "as_chosen", 1e-9),
        ("as_sent_usd", "as_sent", 0.05),
        ("aligned_usd", "aligned", 0.05),
    ] {
        let (own, billed) = (scenario["own_sums"][own].as_f64().unwrap(), of_column(column));
        assert!((own - billed).abs() <= within * of_column("as_sent"), "{column}: {own} beside {billed}");
    }
}

#[test]
fn five_children_read_a_parents_48_500_tokens_for_a_tenth_of_their_price() {
    let scenario = played(&["--scenario", "single"]);
    assert_eq!((&scenario["context_tokens"], &scenario["children"]), (&json!(48_500), &json!(5)));
    // System prompts of their own: as sent nothing is shared.
    let sent = children(&scenario, "as_sent");
    assert!(sent.iter().all(|request| request["turn"] != 1 || request["cache_read"] == 0), "{sent:#?}");
    assert!(children(&scenario, "forked").iter().all(|request| request["plan"] == "forked"), "{scenario:#}");
    assert_promise(&scenario);
    let ratio = figure(&scenario, "forked_to_same_context_uncached");
    assert!(ratio <= 0.12, "{ratio}: {scenario:#}");
}

#[test]
fn in_a_series_always_forking_costs_more_than_as_sent_and_the_default_does_not() {
    let scenario = played(&["--scenario", "series"]);
    assert_eq!(scenario["fan_outs"], 5);
    assert!(figure(&scenario, "forked_to_as_sent") > 1.0, "what one fan-out alone hides: {scenario:#}");
    assert_promise(&scenario);
}

#[test]
fn what_is_not_read_again_is_saved_in_dollars_and_in_seconds() {
    let scenario = played(&["--scenario", "reread"]);
    assert_promise(&scenario);
    let of_column = |column: &str, figure: &str| scenario["columns"][column][figure].as_f64().unwrap();
    let children_of = |column: &str| children(&scenario, column).len() as u64;
    // One turn of reading each, in each of three fan-outs.
    assert_eq!(children_of("as_sent"), children_of("forked") + 3 * 5, "{scenario:#}");
    assert!(
        of_column("forked", "children_seconds") < of_column("as_sent", "children_seconds"),
        "{scenario:#}"
    );
    assert!(figure(&scenario, "forked_to_as_sent") < figure(&scenario, "aligned_to_as_sent"), "{scenario:#}");
    assert_eq!(forked_by_fan_out(&scenario).last(), Some(&5), "{:#}", scenario["decisions"]);
    let text = shown(&["--scenario", "reread", "--children", "2", "--turns", "1"]);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("Modelled: a child that is not forked first reads three files"), "{text}");
}

#[test]
fn forking_tool_heavy_children_costs_a_seventh_of_them_as_sent() {
    let scenario = played(&["--scenario", "tool-heavy"]);
    let prompts = scenario["columns"]["as_sent"]["requests"][1]["prompt"].as_u64().unwrap();
    assert!((40_000..42_000).contains(&prompts), "{prompts}");
    assert_shared(&scenario);
    assert_promise(&scenario);
    let ratio = figure(&scenario, "forked_to_as_sent");
    assert!(ratio <= 0.15, "{ratio}: {scenario:#}");
}

#[test]
fn forking_12_000_token_children_under_46_000_costs_half_of_them_as_sent() {
    let scenario = played(&["--scenario", "medium"]);
    let prompts = scenario["columns"]["as_sent"]["requests"][1]["prompt"].as_u64().unwrap();
    assert!((11_500..12_500).contains(&prompts), "{prompts}");
    assert_shared(&scenario);
    assert_promise(&scenario);
    let ratio = figure(&scenario, "forked_to_as_sent");
    assert!(ratio <= 0.5, "{ratio}: {scenario:#}");
}

#[test]
fn three_and_eight_children_of_100_000_tokens_share_them() {
    for (name, children) in [("large-3", 3), ("large-8", 8)] {
        let scenario = played(&["--scenario", name]);
        assert_eq!((&scenario["context_tokens"], &scenario["children"]), (&json!(100_000), &json!(children)));
        assert_shared(&scenario);
        assert_promise(&scenario);
        let ratio = figure(&scenario, "forked_to_same_context_uncached");
        assert!(ratio <= 0.12, "{ratio}: {scenario:#}");
    }
}

#[test]
fn a_small_child_under_a_large_parent_is_not_forked_and_the_reason_is_said() {
    let scenario = played(&["--scenario", "small"]);
    assert_eq!(scenario["decisions"][0]["reasons"], json!(["cost"]));
    assert!(figure(&scenario, "forked_to_as_sent") > 1.0, "forked it would be a loss: {scenario:#}");
    assert_promise(&scenario);
    let sizes = ["--children", "2", "--turns", "0", "--tools", "1000", "--context", "30000"];
    let text = shown(&[&["--scenario", "small"], &sizes[..]].concat());
    assert!(text.contains("aligned: cost") && text.contains("fork.max_cost_ratio"), "{text}");
}

/// Around the size from which children are forked, and on either side of it.
#[test]
fn what_is_chosen_never_costs_more_than_the_children_as_sent() {
    let mut fates = Vec::new();
    for (client, tools) in [("careful", "1500"), ("careful", "9500"), ("naive", "5000"), ("naive", "9500")] {
        let sizes = ["--scenario", "session", "--children", "3", "--turns", "1", "--context", "20000"];
        let scenario =
            played(&[&sizes[..], &["--instructions", "500", "--client", client, "--tools", tools]].concat());
        assert_promise(&scenario);
        fates.push(forked_by_fan_out(&scenario).last() == Some(&3));
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
    assert!(text.contains("The gate saved ") && text.contains(&current_model()), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");

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
    let sizes =
        ["--scenario", "single", "--children", "64", "--turns", "0", "--context", "2000", "--requests"];
    let text = shown(&sizes);
    assert_eq!(rows(&text).iter().filter(|row| row[0].starts_with("child-")).count(), 64, "{text}");
}
