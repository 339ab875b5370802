//! The tables of a run: CPU, latency, streams, throughput, memory, and the verdicts.

use serde_json::json;

use crate::arms::{ALIGN, DIRECT, FORK, REFERENCE, is_before};
use crate::figures::{Figures, Metric};
use crate::limits::{self, JUDGED, Judged, Verdict};
use crate::options::FigureOptions;
use crate::procfs::Memory;
use crate::stats::Spread;
use crate::table::Table;
use crate::{Fallible, arms, itself};

/// An arm that used less of what it could get of its core was not the bottleneck, so that its requests per
/// second are a floor.
const CORE_SHARE_BUSY: f64 = 0.9;

/// Above this share of waiting for the core, the machine was not ours.
const WAITED_SHARE_MAX: f64 = 0.05;

/// Prints the report. Returns true if the run is valid and kept to every limit.
pub fn print(figures: &Figures, options: &FigureOptions) -> Fallible<bool> {
    let judged = limits::judge(figures, options.store_mb);
    let mut tables = vec![cpu(figures), conversations(figures), latency(figures), streams(figures)];
    tables.extend([forks(figures), throughput(figures), memory(figures)]);
    tables.extend(itself::tables(figures));
    tables.push(beside_before(figures, &judged));
    tables.extend(JUDGED.map(|arm| verdicts(&judged, arm)));

    let render = if options.markdown { Table::markdown } else { Table::aligned };
    for note in notes(figures) {
        println!("{}{}", if options.markdown { "- " } else { "" }, note);
    }
    for table in tables.iter().filter(|table| !table.rows.is_empty()) {
        println!("\n{}", render(table).trim_end());
    }
    if let Some(file) = &options.json {
        let whole = json!({"figures": figures, "limits": judged});
        std::fs::write(file, serde_json::to_string_pretty(&whole)? + "\n")?;
    }
    Ok(conclude(figures, &judged))
}

fn notes(figures: &Figures) -> Vec<String> {
    let Figures { machine, pinning, load_average, nginx, pace_us, seconds, rounds, .. } = figures;
    let mut notes = vec![
        format!("{machine}; load average {} before, {} after", load_average[0], load_average[1]),
        format!("{pinning}; loopback, HTTP/1.1 keep-alive, no TLS, {nginx}"),
        format!(
            "{rounds} rounds in {seconds} s, arms interleaved, order rotated; ratios are medians of the ratios \
             of each round (min–max)"
        ),
        format!(
            "bodies are unique, each the next turn of a conversation that grows around the stated size, its \
             client's markers included; the mock pauses {pace_us} µs between events"
        ),
    ];
    let waited: Vec<f64> = figures.samples.iter().filter_map(|sample| sample.waited_share).collect();
    if let Some(waited) = Spread::of(&waited).filter(|spread| spread.median > WAITED_SHARE_MAX) {
        notes.push(format!(
            "BUSY MACHINE: the arms waited for their core {:.0} % of the time (median); ratios of CPU hold, \
             latency and req/s less so",
            waited.median * 100.0
        ));
    }
    if figures.quick {
        notes.push("QUICK RUN: fewer rounds and sizes; for a look, not for tests/README.md".into());
    }
    if let Some(commit) = &figures.beside {
        notes.push(format!("the arms before-* run the binary of {commit}, built by the same compiler"));
    }
    for arm in &figures.arms {
        if let Ok(arm) = arms::named(arm) {
            notes.push(format!("{}: {}", arm.name, arm.what));
        }
    }
    notes
}

fn cpu(figures: &Figures) -> Table {
    let columns = [
        ("24 KB", "json-24k"),
        ("200 KB", "json-200k"),
        ("1 MB", "json-1m"),
        ("200 KB, 8 connections", "load-200k"),
    ];
    per_arm(figures, "CPU µs per request (× nginx)", &columns, |arm, scenario| {
        with_ratio(figures, arm, scenario, Metric::Cpu, 0)
    })
}

/// Clients that set no markers.
fn conversations(figures: &Figures) -> Table {
    let columns = [
        ("growing", "growing-200k"),
        ("drifting", "drifting-200k"),
        ("16 interleaved", "interleaved-200k"),
        ("never seen", "fresh-200k"),
    ];
    let title = "CPU µs per request (× nginx) at 200 KB, by what is known of a conversation";
    per_arm(figures, title, &columns, |arm, scenario| with_ratio(figures, arm, scenario, Metric::Cpu, 0))
}

/// The cost of forking beside aligning: plain traffic, and children beside requests that have their forked size.
fn forks(figures: &Figures) -> Table {
    let mut table =
        Table::new("Mode fork beside align, CPU µs per request", &["request", ALIGN, FORK, "fork × align"]);
    for (what, scenario) in [("plain, 200 KB", "json-200k"), ("a child forked to 200 KB", "forked-200k")] {
        let Some(fork) = figures.spread(FORK, scenario, Metric::Cpu) else { continue };
        let align = figures.spread(ALIGN, "json-200k", Metric::Cpu);
        let ratio = figures.ratio_of((FORK, scenario), (ALIGN, "json-200k"), Metric::Cpu);
        table.rows.push(vec![
            what.to_owned(),
            align.map_or("–".into(), |align| format!("{:.0}", align.median)),
            format!("{:.0}", fork.median),
            range(ratio),
        ]);
    }
    table
}

fn latency(figures: &Figures) -> Table {
    let columns = [("24 KB", "json-24k"), ("200 KB", "json-200k"), ("1 MB", "json-1m")];
    let title = "Added latency, µs: p50 (× nginx) / p99; the first row is the whole time without a proxy";
    let mut table = per_arm(figures, title, &columns, |arm, scenario| {
        let p99 = figures.spread(arm, scenario, Metric::AddedP99);
        let p99 = p99.map_or("–".into(), |spread| format!("{:.0}", spread.median));
        format!("{} / {p99}", with_ratio(figures, arm, scenario, Metric::AddedP50, 0))
    });
    let base = |scenario: &str| {
        let median = |metric| figures.spread(DIRECT, scenario, metric).map_or(0.0, |spread| spread.median);
        format!("{:.0} / {:.0}", median(Metric::P50), median(Metric::P99))
    };
    prepend_direct(figures, &mut table, &columns, base);
    table
}

fn streams(figures: &Figures) -> Table {
    let columns = [("24 KB", "sse-24k"), ("200 KB", "sse-200k"), ("1 MB", "sse-1m")];
    let title = "SSE, 200 events: CPU µs per event (× nginx) / added first byte µs (× nginx)";
    let mut table = per_arm(figures, title, &columns, |arm, scenario| {
        let event = with_ratio(figures, arm, scenario, Metric::CpuPerEvent, 1);
        format!("{event} / {}", with_ratio(figures, arm, scenario, Metric::AddedFirstByte, 0))
    });
    let base = |scenario: &str| {
        let first = figures.spread(DIRECT, scenario, Metric::FirstByte).map_or(0.0, |spread| spread.median);
        format!("– / {first:.0}")
    };
    prepend_direct(figures, &mut table, &columns, base);
    table
}

fn throughput(figures: &Figures) -> Table {
    let mut table = Table::new(
        "Requests per second, 200 KB, 8 connections, one core",
        &["arm", "req/s", "× nginx", "req per CPU second", "× nginx", "of its core", ""],
    );
    if !figures.has("load-200k") {
        return table;
    }
    for arm in reported(figures) {
        let rate = figures.spread(arm, "load-200k", Metric::PerSecond);
        let ratio = figures.ratio(arm, REFERENCE, "load-200k", Metric::PerSecond);
        let cpu = figures.spread(arm, "load-200k", Metric::Cpu);
        let cpu_ratio = figures.ratio(REFERENCE, arm, "load-200k", Metric::Cpu);
        let median = |metric| figures.spread(arm, "load-200k", metric).map(|spread| spread.median);
        let (used, waited) = (median(Metric::CoreShare), median(Metric::WaitedShare));
        table.rows.push(vec![
            arm.to_owned(),
            rate.map_or("–".into(), |rate| format!("{:.0}", rate.median)),
            range(ratio),
            cpu.map_or("–".into(), |cpu| format!("{:.0}", 1e6 / cpu.median)),
            range(cpu_ratio),
            used.map_or("–".into(), |used| format!("{:.0} %", used * 100.0)),
            limited_by(used, waited).to_owned(),
        ]);
    }
    table
}

/// The reason why an arm could not use its whole core, if it did not.
fn limited_by(used: Option<f64>, waited: Option<f64>) -> &'static str {
    let (Some(used), Some(waited)) = (used, waited) else { return "" };
    if waited > WAITED_SHARE_MAX {
        "others used its core"
    } else if used < CORE_SHARE_BUSY {
        "a floor: the generator is the limit"
    } else {
        ""
    }
}

fn memory(figures: &Figures) -> Table {
    let idle = format!("{} idle streams", figures.idle_streams);
    let mut table = Table::new(
        "Resident memory of the process tree, MB",
        &["arm", "at start", &idle, "after the load", "peak", "held by its store"],
    );
    for entry in &figures.memory {
        let mb = |kb: u64| format!("{:.1}", kb as f64 / 1024.0);
        let Memory { peak_kb, now_kb } = entry.after_load;
        table.rows.push(vec![
            entry.arm.to_owned(),
            mb(entry.at_start.now_kb),
            mb(entry.idle_streams.now_kb),
            mb(now_kb),
            mb(peak_kb),
            entry.store_bytes.map_or("–".into(), |bytes| mb(bytes as u64 / 1024)),
        ]);
    }
    table
}

/// The new binary beside the earlier one.
fn beside_before(figures: &Figures, judged: &[Judged]) -> Table {
    let commit = figures.beside.as_deref().unwrap_or_default();
    let mut table = Table::new(
        format!("CPU µs per request beside the binary of {commit}"),
        &["arm", "request", "before", "now", "now ÷ before", "at most", ""],
    );
    let median = |figure: Option<f64>| figure.map_or("–".into(), |figure| format!("{figure:.0}"));
    for row in judged.iter().filter(|row| row.is_beside_before()) {
        let [now, before] = row.medians;
        table.rows.push(vec![
            row.arm.to_owned(),
            row.row.to_owned(),
            median(before),
            median(now),
            row.measured.clone(),
            row.limit.clone(),
            row.verdict.as_str().to_owned(),
        ]);
    }
    table
}

/// The other limits of an arm.
fn verdicts(judged: &[Judged], arm: &str) -> Table {
    let mut table = Table::new(format!("Limits: {arm}"), &["figure", "measured", "at most", ""]);
    for row in judged.iter().filter(|row| row.arm == arm && !row.is_beside_before()) {
        table.rows.push(vec![
            row.row.to_owned(),
            row.measured.clone(),
            row.limit.clone(),
            row.verdict.as_str().to_owned(),
        ]);
    }
    table
}

/// Problems go to standard error: they are about the run, not part of its figures.
fn conclude(figures: &Figures, judged: &[Judged]) -> bool {
    for problem in &figures.problems {
        eprintln!("INVALID: {problem}");
    }
    for (arm, reason) in &figures.missing {
        eprintln!("MISSING: {arm}: {reason}");
    }
    let mut failed = Vec::new();
    for row in judged.iter().filter(|row| row.verdict == Verdict::Fail) {
        let beside = if row.is_beside_before() { ", beside the earlier binary" } else { "" };
        failed.push(format!("{}: {}{beside}", row.arm, row.row));
    }
    if !failed.is_empty() {
        eprintln!("FAILED: {}", failed.join("; "));
    }
    figures.problems.is_empty() && figures.missing.is_empty() && failed.is_empty()
}

fn per_arm(
    figures: &Figures,
    title: &str,
    columns: &[(&str, &str)],
    cell: impl Fn(&str, &str) -> String,
) -> Table {
    let measured: Vec<_> = columns.iter().filter(|(_, scenario)| figures.has(scenario)).collect();
    let mut head = vec!["arm"];
    head.extend(measured.iter().map(|(label, _)| *label));
    let mut table = Table::new(title, &head);
    if measured.is_empty() {
        return table;
    }
    for arm in reported(figures).filter(|arm| *arm != DIRECT) {
        let mut row = vec![arm.to_owned()];
        row.extend(measured.iter().map(|(_, scenario)| cell(arm, scenario)));
        table.rows.push(row);
    }
    table
}

/// The arms of the tables for the README. The earlier binary has a table of its own.
fn reported(figures: &Figures) -> impl Iterator<Item = &'static str> {
    figures.arms.iter().copied().filter(|arm| !is_before(arm))
}

fn prepend_direct(
    figures: &Figures,
    table: &mut Table,
    columns: &[(&str, &str)],
    cell: impl Fn(&str) -> String,
) {
    if table.rows.is_empty() || !figures.arms.contains(&DIRECT) {
        return;
    }
    let mut row = vec![DIRECT.to_owned()];
    row.extend(columns.iter().filter(|(_, id)| figures.has(id)).map(|(_, id)| cell(id)));
    table.rows.insert(0, row);
}

fn with_ratio(figures: &Figures, arm: &str, scenario: &str, metric: Metric, digits: usize) -> String {
    let Some(value) = figures.spread(arm, scenario, metric) else { return "–".into() };
    let ratio = figures.ratio(arm, REFERENCE, scenario, metric);
    let ratio = if arm == REFERENCE { "1".into() } else { range(ratio) };
    format!("{:.digits$} ({ratio})", value.median)
}

pub fn range(ratio: Option<Spread>) -> String {
    ratio.map_or("–".into(), |ratio| format!("{:.2}, {:.2}–{:.2}", ratio.median, ratio.min, ratio.max))
}
