//! What the product promises to cost, and whether this run shows it.
//!
//! Each target is a paired median against the reference arm. Latency is judged by what the proxy *adds*
//! to the same request without a proxy, since the request's own time would hide a slow proxy.

use serde::Serialize;

use crate::arms::REFERENCE;
use crate::figures::{Figures, Metric};

/// Memory beyond what the store may hold by its own setting.
const PEAK_MB_MAX: f64 = 64.0;

struct Target {
    row: &'static str,
    scenario: &'static str,
    metric: Metric,
    aim: f64,
    worst: f64,
}

const TARGETS: &[Target] = &[
    Target { row: "observe, CPU, 24 KB", scenario: "json-24k", metric: Metric::Cpu, aim: 1.4, worst: 1.6 },
    Target { row: "observe, CPU, 200 KB", scenario: "json-200k", metric: Metric::Cpu, aim: 0.8, worst: 1.0 },
    Target { row: "observe, CPU, 1 MB", scenario: "json-1m", metric: Metric::Cpu, aim: 0.8, worst: 1.0 },
    Target {
        row: "a conversation never seen, CPU, 200 KB",
        scenario: "fresh-200k",
        metric: Metric::Cpu,
        aim: 3.0,
        worst: 4.0,
    },
    Target { row: "added p50, 24 KB", scenario: "json-24k", metric: Metric::AddedP50, aim: 1.3, worst: 1.5 },
    Target {
        row: "added p50, 200 KB",
        scenario: "json-200k",
        metric: Metric::AddedP50,
        aim: 0.9,
        worst: 1.0,
    },
    Target { row: "added p50, 1 MB", scenario: "json-1m", metric: Metric::AddedP50, aim: 0.9, worst: 1.0 },
    Target {
        row: "SSE, CPU per event",
        scenario: "sse-24k",
        metric: Metric::CpuPerEvent,
        aim: 1.2,
        worst: 1.5,
    },
    Target {
        row: "SSE, added first byte",
        scenario: "sse-24k",
        metric: Metric::AddedFirstByte,
        aim: 1.2,
        worst: 1.5,
    },
    Target {
        row: "requests per second on one core, 200 KB",
        scenario: "load-200k",
        metric: Metric::PerSecond,
        aim: 1.5,
        worst: 1.0,
    },
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Verdict {
    Pass,
    WorstAcceptable,
    Fail,
    NotMeasured,
}

impl Verdict {
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Pass => "pass",
            Verdict::WorstAcceptable => "worst acceptable",
            Verdict::Fail => "FAIL",
            Verdict::NotMeasured => "not measured",
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Judged {
    pub row: &'static str,
    pub measured: String,
    pub aim: String,
    pub worst: String,
    pub verdict: Verdict,
}

pub fn judge(figures: &Figures, arm: &str, store_mb: f64) -> Vec<Judged> {
    let mut rows: Vec<Judged> = TARGETS.iter().map(|target| judge_one(figures, arm, target)).collect();
    rows.push(judge_memory(figures, arm, store_mb));
    rows
}

fn judge_one(figures: &Figures, arm: &str, target: &Target) -> Judged {
    let higher_is_better = target.metric == Metric::PerSecond;
    let ratio = figures.ratio(arm, REFERENCE, target.scenario, target.metric);
    let within = |value: f64, limit: f64| if higher_is_better { value >= limit } else { value <= limit };
    let verdict = match ratio {
        None => Verdict::NotMeasured,
        Some(ratio) if within(ratio.median, target.aim) => Verdict::Pass,
        Some(ratio) if within(ratio.median, target.worst) => Verdict::WorstAcceptable,
        Some(_) => Verdict::Fail,
    };
    let sign = if higher_is_better { "≥" } else { "≤" };
    Judged {
        row: target.row,
        measured: ratio.map_or("–".into(), |ratio| {
            format!("× {:.2} ({:.2}–{:.2})", ratio.median, ratio.min, ratio.max)
        }),
        aim: format!("{sign} {:.1}", target.aim),
        worst: format!("{sign} {:.1}", target.worst),
        verdict,
    }
}

fn judge_memory(figures: &Figures, arm: &str, store_mb: f64) -> Judged {
    let peak = figures.memory.iter().find(|entry| entry.arm == arm).map(|entry| {
        let peak_kb = entry.after_load.peak_kb.max(entry.idle_streams.peak_kb);
        peak_kb as f64 / 1024.0
    });
    Judged {
        row: "peak memory beyond the store's limit",
        measured: peak.map_or("–".into(), |peak| format!("{peak:.0} MB, limit {store_mb:.0} MB")),
        aim: format!("≤ {PEAK_MB_MAX:.0} MB"),
        worst: format!("≤ {PEAK_MB_MAX:.0} MB"),
        verdict: match peak {
            None => Verdict::NotMeasured,
            Some(peak) if peak <= PEAK_MB_MAX + store_mb => Verdict::Pass,
            Some(_) => Verdict::Fail,
        },
    }
}
