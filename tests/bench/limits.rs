//! The most that a request may cost, and whether this run kept to it.
//!
//! Each limit is about a paired median: a figure divided by another one of the same round, be it of nginx, of a peer,
//! of the same mode of an earlier forkpoint, or of the same arm in another scenario. Beside nginx, latency is judged by
//! what the proxy *adds* to the same request without a proxy, since the request's own time would hide a slow proxy.

use serde::Serialize;

use crate::arms::{
    ALIGN, BEFORE_ALIGN, BEFORE_FORK, BEFORE_OBSERVE, FORK, OBSERVE, REFERENCE, forks, is_before,
};
use crate::figures::{Figures, Metric};
use crate::itself::{ALONE, EARLY, FLOODED, LATE, MANY_KEYS, ONE_KEY};
use crate::peers::{LITELLM, NEMO, PORTKEY, is_peer};
use crate::scenario::FORKED;
use crate::stats::Spread;

use Bound::{AtLeast, AtMost};

/// The commit that a new binary is compared with: the last one before the code was rearranged to be easier to change.
pub const BEFORE: &str = "4b9477c";

/// CPU per request, divided by that of the binary of `BEFORE`. Code that is easier to change may cost up to 15 % of
/// what was 100 to 800 µs, since a request takes seconds at the provider. It needs a quiet machine: with builds beside
/// it, six rounds of `--quick` gave 0.85 to 1.24 for one source compared with itself.
const BESIDE_BEFORE_MAX: f64 = 1.15;

/// Memory beyond the bytes that the store reports.
const PEAK_MB_MAX: f64 = 64.0;
const MB: f64 = 1024.0 * 1024.0;

/// The arms that are judged.
pub const JUDGED: [&str; 3] = [OBSERVE, ALIGN, FORK];

/// Each arm and its counterpart of the earlier binary.
const BESIDE_BEFORE: [(&str, &str); 3] =
    [(OBSERVE, BEFORE_OBSERVE), (ALIGN, BEFORE_ALIGN), (FORK, BEFORE_FORK)];

/// The requests that both binaries are compared by, and their scenarios.
const REQUESTS: &[(&str, &str)] = &[
    ("24 KB", "json-24k"),
    ("200 KB", "json-200k"),
    ("1 MB", "json-1m"),
    ("200 KB, growing", "growing-200k"),
    ("200 KB, drifting", "drifting-200k"),
    ("200 KB, 16 interleaved", "interleaved-200k"),
    ("200 KB, never seen", "fresh-200k"),
    ("a child forked to 200 KB", FORKED),
];

/// One cell of a run: an arm and a scenario.
type Cell = (&'static str, &'static str);

#[derive(Clone, Copy)]
struct Limit {
    row: &'static str,
    cell: Cell,
    /// The cell that it is divided by.
    reference: Cell,
    metric: Metric,
    bound: Bound,
}

#[derive(Clone, Copy)]
enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

/// The limits beside nginx, which hold for each arm.
const BESIDE_NGINX: &[(&str, &str, Metric, f64)] = &[
    ("CPU, 200 KB, never seen, × nginx", "fresh-200k", Metric::Cpu, 6.0),
    ("added p50, 24 KB, × nginx", "json-24k", Metric::AddedP50, 1.5),
    ("added p50, 200 KB, × nginx", "json-200k", Metric::AddedP50, 1.3),
    ("added p50, 1 MB, × nginx", "json-1m", Metric::AddedP50, 1.3),
    ("SSE, CPU per event, × nginx", "sse-24k", Metric::CpuPerEvent, 1.6),
    ("SSE, added first byte, × nginx", "sse-24k", Metric::AddedFirstByte, 2.0),
];

/// The limits beside one more arm.
const FURTHER: &[Limit] = &[
    cpu("CPU, 200 KB, × NeMo Relay", (ALIGN, "json-200k"), (NEMO, "json-200k"), 1.0 / 12.0),
    cpu("CPU, 200 KB, × Portkey", (ALIGN, "json-200k"), (PORTKEY, "json-200k"), 1.0 / 25.0),
    cpu("CPU, 200 KB, × LiteLLM", (ALIGN, "json-200k"), (LITELLM, "json-200k"), 1.0 / 70.0),
    cpu("CPU, a child forked to 200 KB, × one aligned", (FORK, FORKED), (ALIGN, "json-200k"), 2.0),
];

/// The limits of each arm beside itself in another scenario. Both are explained in `itself.rs`.
const BESIDE_ITSELF: &[(&str, [&str; 2], Metric, Bound)] = &[
    ("growth: CPU per new byte, turn 60 ÷ turn 6", [LATE, EARLY], Metric::CpuPerNewByte, AtMost(1.5)),
    ("bystander: p99 beside a flood ÷ alone", [FLOODED, ALONE], Metric::P99, AtMost(3.0)),
    ("500 conversations: p99, one key ÷ 500 keys", [ONE_KEY, MANY_KEYS], Metric::P99, AtMost(1.3)),
    ("500 conversations: req/s, one key ÷ 500 keys", [ONE_KEY, MANY_KEYS], Metric::PerSecond, AtLeast(0.9)),
];

const fn cpu(row: &'static str, cell: Cell, reference: Cell, at_most: f64) -> Limit {
    Limit { row, cell, reference, metric: Metric::Cpu, bound: AtMost(at_most) }
}

impl Bound {
    fn holds(self, ratio: f64) -> bool {
        match self {
            AtMost(most) => ratio <= most,
            AtLeast(least) => ratio >= least,
        }
    }

    /// The text of a column that is headed "at most".
    fn shown(self) -> String {
        match self {
            AtMost(most) => figure(most),
            AtLeast(least) => format!("at least {}", figure(least)),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Verdict {
    Pass,
    Fail,
    NotMeasured,
}

impl Verdict {
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Pass => "pass",
            Verdict::Fail => "FAIL",
            Verdict::NotMeasured => "not measured",
        }
    }
}

#[derive(Clone, Debug, Serialize)]
pub struct Judged {
    pub arm: &'static str,
    /// The name of the figure.
    pub row: &'static str,
    pub measured: String,
    /// The most that it may be, or the least if it says so.
    pub limit: String,
    pub verdict: Verdict,
    /// The arm that it was divided by, which may be the arm itself; `None` for memory.
    pub reference: Option<&'static str>,
    /// The figure itself, over all rounds, and that of the reference.
    pub medians: [Option<f64>; 2],
}

/// Judges the arms that ran.
pub fn judge(figures: &Figures, store_mb: Option<f64>) -> Vec<Judged> {
    let mut rows: Vec<Judged> = limits()
        .iter()
        .filter(|limit| applies(limit, figures))
        .map(|limit| judge_one(figures, limit))
        .collect();
    for arm in JUDGED.into_iter().filter(|arm| figures.arms.contains(arm)) {
        rows.push(judge_memory(figures, arm, store_mb));
    }
    rows
}

fn limits() -> Vec<Limit> {
    let mut limits = Vec::new();
    for (arm, before) in BESIDE_BEFORE {
        for (row, scenario) in REQUESTS {
            if *scenario != FORKED || forks(arm) {
                limits.push(cpu(row, (arm, scenario), (before, scenario), BESIDE_BEFORE_MAX));
            }
        }
    }
    for arm in JUDGED {
        for (row, scenario, metric, at_most) in BESIDE_NGINX {
            let (cell, reference) = ((arm, *scenario), (REFERENCE, *scenario));
            limits.push(Limit { row, cell, reference, metric: *metric, bound: AtMost(*at_most) });
        }
        for (row, [scenario, reference], metric, bound) in BESIDE_ITSELF {
            let (cell, reference) = ((arm, *scenario), (arm, *reference));
            limits.push(Limit { row, cell, reference, metric: *metric, bound: *bound });
        }
    }
    limits.extend(FURTHER.iter().copied());
    limits
}

/// Returns true for a limit of an arm that ran, if its reference ran too or belongs to every run.
fn applies(limit: &Limit, figures: &Figures) -> bool {
    let reference = limit.reference.0;
    let is_optional = is_peer(reference) || is_before(reference);
    figures.arms.contains(&limit.cell.0) && (!is_optional || figures.arms.contains(&reference))
}

impl Judged {
    /// Returns true if it compares two forkpoint binaries.
    pub fn is_beside_before(&self) -> bool {
        self.reference.is_some_and(is_before)
    }
}

fn judge_one(figures: &Figures, limit: &Limit) -> Judged {
    let Limit { row, cell, reference, metric, bound } = *limit;
    let ratio = figures.ratio_of(cell, reference, metric);
    let verdict = match ratio {
        None => Verdict::NotMeasured,
        Some(ratio) if bound.holds(ratio.median) => Verdict::Pass,
        Some(_) => Verdict::Fail,
    };
    let median = |(arm, scenario)| figures.spread(arm, scenario, metric).map(|spread| spread.median);
    Judged {
        arm: cell.0,
        row,
        measured: measured(ratio),
        limit: bound.shown(),
        verdict,
        reference: Some(reference.0),
        medians: [median(cell), median(reference)],
    }
}

fn measured(ratio: Option<Spread>) -> String {
    let Some(Spread { median, min, max }) = ratio else { return "–".into() };
    format!("{} ({}–{})", figure(median), figure(min), figure(max))
}

/// Writes a ratio, a small one as a fraction.
fn figure(ratio: f64) -> String {
    if ratio < 0.2 { format!("1/{:.0}", 1.0 / ratio) } else { format!("{ratio:.2}") }
}

fn judge_memory(figures: &Figures, arm: &'static str, store_mb: Option<f64>) -> Judged {
    let entry = figures.memory.iter().find(|entry| entry.arm == arm);
    let peak = entry.and_then(|entry| {
        let peak_kb = entry.after_load.peak_kb.max(entry.idle_streams.peak_kb);
        let held = store_mb.or(entry.store_bytes.map(|bytes| bytes / MB))?;
        Some((peak_kb as f64 * 1024.0 / MB, held))
    });
    let (measured, verdict) = match peak {
        None => ("–".into(), Verdict::NotMeasured),
        Some((peak, held)) => {
            let beyond = peak - held;
            let verdict = if beyond <= PEAK_MB_MAX { Verdict::Pass } else { Verdict::Fail };
            (format!("{beyond:.0} MB ({peak:.0} less the store's {held:.0})"), verdict)
        }
    };
    Judged {
        arm,
        row: "peak memory beyond what the store holds",
        measured,
        limit: format!("{PEAK_MB_MAX:.0} MB"),
        verdict,
        reference: None,
        medians: [None, None],
    }
}
