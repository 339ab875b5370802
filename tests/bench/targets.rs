//! What the product promises to cost, and whether this run shows it.
//!
//! Each target is a paired median against the reference arm. Latency is judged by what the proxy *adds*
//! to the same request without a proxy, since the request's own time would hide a slow proxy.

use serde::Serialize;

use crate::arms::{ALIGN, FORK, OBSERVE, REFERENCE};
use crate::figures::{Figures, Metric};
use crate::peers::{LITELLM, NEMO, PORTKEY, is_peer};

/// Memory beyond what the store says it holds.
const PEAK_MB_MAX: f64 = 64.0;
const MB: f64 = 1024.0 * 1024.0;

/// The arms that are judged.
pub const JUDGED: [&str; 3] = [OBSERVE, ALIGN, FORK];

/// Those that are judged beside nginx.
const BESIDE_NGINX: [&str; 2] = [OBSERVE, ALIGN];

struct Target {
    arms: &'static [&'static str],
    row: &'static str,
    scenario: &'static str,
    metric: Metric,
    /// What it is divided by: an arm, and a scenario if it is another one.
    reference: (&'static str, Option<&'static str>),
    aim: f64,
    worst: f64,
}

const TARGETS: &[Target] = &[
    of(&[OBSERVE], "CPU, 24 KB", "json-24k", Metric::Cpu, 1.4, 1.6),
    of(&[OBSERVE], "CPU, 200 KB", "json-200k", Metric::Cpu, 0.8, 1.0),
    of(&[OBSERVE], "CPU, 1 MB", "json-1m", Metric::Cpu, 0.8, 1.0),
    of(&[ALIGN], "CPU, 24 KB", "json-24k", Metric::Cpu, 1.5, 1.7),
    of(&[ALIGN], "CPU, 200 KB", "json-200k", Metric::Cpu, 0.9, 1.0),
    of(&[ALIGN], "CPU, 1 MB", "json-1m", Metric::Cpu, 0.9, 1.0),
    of(&[ALIGN], "CPU, 200 KB, growing", "growing-200k", Metric::Cpu, 0.7, 0.9),
    of(&[ALIGN], "CPU, 200 KB, drifting", "drifting-200k", Metric::Cpu, 0.9, 1.2),
    of(&[ALIGN], "CPU, 200 KB, 16 interleaved", "interleaved-200k", Metric::Cpu, 0.9, 1.3),
    of(&BESIDE_NGINX, "CPU, 200 KB, never seen", "fresh-200k", Metric::Cpu, 3.0, 4.0),
    of(&BESIDE_NGINX, "added p50, 24 KB", "json-24k", Metric::AddedP50, 1.3, 1.5),
    of(&BESIDE_NGINX, "added p50, 200 KB", "json-200k", Metric::AddedP50, 0.9, 1.0),
    of(&BESIDE_NGINX, "added p50, 1 MB", "json-1m", Metric::AddedP50, 0.9, 1.0),
    of(&BESIDE_NGINX, "SSE, CPU per event", "sse-24k", Metric::CpuPerEvent, 1.2, 1.5),
    of(&BESIDE_NGINX, "SSE, added first byte", "sse-24k", Metric::AddedFirstByte, 1.2, 1.5),
    of(&BESIDE_NGINX, "requests per second on one core, 200 KB", "load-200k", Metric::PerSecond, 1.5, 1.0),
    beside(NEMO, "CPU, 200 KB, × NeMo Relay", 1.0 / 12.0, 1.0 / 8.0),
    beside(PORTKEY, "CPU, 200 KB, × Portkey", 1.0 / 25.0, 1.0 / 15.0),
    beside(LITELLM, "CPU, 200 KB, × LiteLLM", 1.0 / 70.0, 1.0 / 40.0),
    Target {
        reference: (ALIGN, None),
        ..of(&[FORK], "CPU, 200 KB, plain traffic, × align", "json-200k", Metric::Cpu, 1.05, 1.15)
    },
    Target {
        reference: (ALIGN, Some("json-200k")),
        ..of(&[FORK], "CPU, a child forked to 200 KB, × one aligned", "forked-200k", Metric::Cpu, 1.1, 1.3)
    },
];

/// Of one that is measured beside a peer, if that is.
const fn beside(peer: &'static str, row: &'static str, aim: f64, worst: f64) -> Target {
    Target { reference: (peer, None), ..of(&[ALIGN], row, "json-200k", Metric::Cpu, aim, worst) }
}

const fn of(
    arms: &'static [&'static str],
    row: &'static str,
    scenario: &'static str,
    metric: Metric,
    aim: f64,
    worst: f64,
) -> Target {
    Target { arms, row, scenario, metric, reference: (REFERENCE, None), aim, worst }
}

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
    pub arm: &'static str,
    pub row: &'static str,
    pub measured: String,
    pub aim: String,
    pub worst: String,
    pub verdict: Verdict,
}

/// Every target of the arms that ran.
pub fn judge(figures: &Figures, store_mb: Option<f64>) -> Vec<Judged> {
    let mut rows = Vec::new();
    for arm in JUDGED.into_iter().filter(|arm| figures.arms.contains(arm)) {
        let is_there =
            |target: &&Target| !is_peer(target.reference.0) || figures.arms.contains(&target.reference.0);
        let targets = TARGETS.iter().filter(|target| target.arms.contains(&arm)).filter(is_there);
        rows.extend(targets.map(|target| judge_one(figures, arm, target)));
        rows.push(judge_memory(figures, arm, store_mb));
    }
    rows
}

fn judge_one(figures: &Figures, arm: &'static str, target: &Target) -> Judged {
    let higher_is_better = target.metric == Metric::PerSecond;
    let (reference, scenario) = target.reference;
    let reference = (reference, scenario.unwrap_or(target.scenario));
    let ratio = figures.ratio_of((arm, target.scenario), reference, target.metric);
    let within = |value: f64, limit: f64| if higher_is_better { value >= limit } else { value <= limit };
    let verdict = match ratio {
        None => Verdict::NotMeasured,
        Some(ratio) if within(ratio.median, target.aim) => Verdict::Pass,
        Some(ratio) if within(ratio.median, target.worst) => Verdict::WorstAcceptable,
        Some(_) => Verdict::Fail,
    };
    let sign = if higher_is_better { "≥" } else { "≤" };
    Judged {
        arm,
        row: target.row,
        measured: ratio.map_or("–".into(), |ratio| {
            format!("× {} ({}–{})", figure(ratio.median), figure(ratio.min), figure(ratio.max))
        }),
        aim: format!("{sign} {}", limit(target.aim)),
        worst: format!("{sign} {}", limit(target.worst)),
        verdict,
    }
}

/// A small ratio is read as a part.
fn figure(ratio: f64) -> String {
    if ratio < 0.2 { format!("1/{:.0}", 1.0 / ratio) } else { format!("{ratio:.2}") }
}

fn limit(ratio: f64) -> String {
    if ratio < 0.2 { figure(ratio) } else { format!("{ratio:?}") }
}

fn judge_memory(figures: &Figures, arm: &'static str, store_mb: Option<f64>) -> Judged {
    let entry = figures.memory.iter().find(|entry| entry.arm == arm);
    let peak = entry.and_then(|entry| {
        let peak_kb = entry.after_load.peak_kb.max(entry.idle_streams.peak_kb);
        let held = store_mb.or(entry.store_bytes.map(|bytes| bytes / MB))?;
        Some((peak_kb as f64 * 1024.0 / MB, held))
    });
    Judged {
        arm,
        row: "peak memory beyond what the store holds",
        measured: peak.map_or("–".into(), |(peak, held)| {
            format!("{:.0} MB ({peak:.0} less the store's {held:.0})", peak - held)
        }),
        aim: format!("≤ {PEAK_MB_MAX:.0} MB"),
        worst: format!("≤ {PEAK_MB_MAX:.0} MB"),
        verdict: match peak {
            None => Verdict::NotMeasured,
            Some((peak, held)) if peak - held <= PEAK_MB_MAX => Verdict::Pass,
            Some(_) => Verdict::Fail,
        },
    }
}
