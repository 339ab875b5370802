//! The scenarios in which forkpoint is compared with itself; `limits.rs` has their limits.
//!
//! ```text
//! turn-60 ÷ turn-6                       the cost of a conversation's history
//! bystander-flooded ÷ bystander-alone    the latency of a quiet tenant while another one misbehaves
//! one-key ÷ many-keys                    500 conversations of one tenant, and of 500 tenants
//! ```
//!
//! Both scenarios of a pair run in the same round on the same arm, each on a process that is started for it: nothing
//! that another scenario left in a store is measured, and the memory and stores of the other arms stay as they are.
//! `minimal-hyper` takes part but is not judged: it shows how much of a figure comes from the machine and from moving
//! the bytes.
//!
//! One round says little, since one interruption by the host takes as long as many requests; the median of seven ratios
//! says more.

use crate::answers::Answer;
use crate::arms::MINIMAL;
use crate::bodies::Bodies;
use crate::figures::{Figures, Metric};
use crate::flood::Flood;
use crate::job::{Keys, Order};
use crate::limits::JUDGED;
use crate::report::range;
use crate::scenario::{KB, Scenario};
use crate::stats::Spread;
use crate::table::Table;

pub const EARLY: &str = "turn-6";
pub const LATE: &str = "turn-60";
pub const ALONE: &str = "bystander-alone";
pub const FLOODED: &str = "bystander-flooded";
pub const MANY_KEYS: &str = "many-keys";
pub const ONE_KEY: &str = "one-key";

/// The turns around 6 and 60 over which CPU time is read, first and last. Conversations that open with 24 KB and grow by
/// about 2 KB a turn are played from their first turn, `GROWING` in rotation:
///
/// ```text
/// cost   = CPU per request ÷ new bytes per request
/// growth = cost over turns 57 to 63 ÷ cost over turns 3 to 9
/// ```
///
/// New bytes are those by which a body is longer than the one before it in its conversation. Turns add about as much
/// at the end as at the beginning, so this is close to the plain ratio of CPU per request.
///
/// The whole body, four times as long by then, must be received and sent on every turn, which no proxy can avoid. That
/// is part of the figure that is judged, so the figure alone can mislead: `minimal-hyper`, which only moves the bytes,
/// grows by as much as forkpoint or more, since its fixed cost per request is lower. Two more figures say whether
/// history is read again. *Beyond minimal-hyper* is the growth of what forkpoint takes on top of it: about 1 if its own
/// work is only on what is new. *Per received byte* would be 1 if all work were on the whole body.
const EARLY_TURNS: (usize, usize) = (3, 9);
const LATE_TURNS: (usize, usize) = (57, 63);

/// Conversations that grow: at their longest, all of them fit into what the store keeps of one tenant.
const GROWING: usize = 32;

/// The tenant that misbehaves: 100 MB a second of which nothing is known, which keep a core of forkpoint busy for about
/// half of the time. The bystander shares that core, so its p99 is about the longest piece of work that the proxy does
/// without letting others run. It is the fifth slowest of 405 requests (with `--quick`, the second slowest of 108).
const FLOOD: Flood = Flood { connections: 4, body_bytes: 1_000 * KB, interval_us: 10_000 };

/// Pause of the bystander before each request, so that it is quiet and does not follow the rhythm of the flood.
const BYSTANDER_PAUSE_US: u64 = 2_000;

/// Connections and the conversations of each: 500 together. `minimal-hyper` does not look at keys, so its figures for
/// one key and for many differ by noise alone. On one core nothing waits for a lock that another core holds: this shows
/// what the number of conversations costs in lookups and wake-ups, not in contention.
const MANY: (usize, usize) = (10, 50);

/// Bodies of the 500. Received and sent, they fit into what the store keeps of one tenant by default; with larger
/// ones the limit of one tenant would be compared with that of all.
const MANY_BYTES: usize = 10 * KB;

pub fn scenarios(quick: bool) -> Vec<Scenario> {
    let conversations = if quick { GROWING / 2 } else { GROWING };
    let growing = |id, (first, last): (usize, usize)| Scenario {
        bodies: Bodies::FromStart,
        order: Order::Interleaved,
        turns: last - 1,
        // The first request of a conversation is never measured.
        turns_before: first - 2,
        requests: conversations * (last - 1),
        ..base(id, 24 * KB)
    };
    let bystander = |id, flood| Scenario {
        requests: if quick { 100 } else { 400 },
        turns: Bodies::Plain.turns(24 * KB),
        pause_us: BYSTANDER_PAUSE_US,
        flood,
        ..base(id, 24 * KB)
    };
    let (connections, conversations) = MANY;
    let turns = if quick { 6 } else { 11 };
    let many = |id, keys| Scenario {
        bodies: Bodies::Growing,
        order: Order::Interleaved,
        keys,
        connections,
        requests: conversations * turns,
        turns,
        turns_before: 1,
        ..base(id, MANY_BYTES)
    };
    vec![
        growing(EARLY, EARLY_TURNS),
        growing(LATE, LATE_TURNS),
        bystander(ALONE, None),
        bystander(FLOODED, Some(FLOOD)),
        many(MANY_KEYS, Keys::Each),
        many(ONE_KEY, Keys::One),
    ]
}

fn base(id: &'static str, body_bytes: usize) -> Scenario {
    Scenario {
        id,
        body_bytes,
        bodies: Bodies::Plain,
        answer: Answer::Json,
        connections: 1,
        requests: 0,
        turns: 0,
        turns_before: 0,
        order: Order::OneByOne,
        pause_us: 0,
        keys: Keys::One,
        flood: None,
        is_apart: true,
    }
}

/// Returns true for an arm that takes part in these scenarios.
pub fn includes(arm: &str) -> bool {
    arm == MINIMAL || JUDGED.contains(&arm)
}

/// A table for each pair.
pub fn tables(figures: &Figures) -> [Table; 3] {
    [growth(figures), bystander(figures), many(figures)]
}

fn growth(figures: &Figures) -> Table {
    let mut table = Table::new(
        "One conversation that opens with 24 KB, CPU µs per request at turn 6 and at turn 60",
        &["arm", "turn 6", "turn 60", "per new byte", "beyond minimal-hyper", "per received byte"],
    );
    for arm in arms(figures, LATE) {
        let ratio = |metric| range(figures.ratio_of((arm, LATE), (arm, EARLY), metric));
        table.rows.push(vec![
            arm.to_owned(),
            cpu_and_size(figures, arm, EARLY),
            cpu_and_size(figures, arm, LATE),
            ratio(Metric::CpuPerNewByte),
            if arm == MINIMAL { "–".into() } else { ratio(Metric::OwnCpuPerNewByte) },
            ratio(Metric::CpuPerByte),
        ]);
    }
    table
}

/// CPU per request, and how much of a body is new.
fn cpu_and_size(figures: &Figures, arm: &str, scenario: &str) -> String {
    let of = |metric, digits| median(figures.spread(arm, scenario, metric), digits);
    format!("{} ({} KB of {})", of(Metric::Cpu, 0), of(Metric::NewKb, 1), of(Metric::BodyKb, 0))
}

fn bystander(figures: &Figures) -> Table {
    let title = format!(
        "A quiet tenant, 24 KB, alone and beside one that floods with bodies of {} KB: µs, p50 / p99",
        FLOOD.body_bytes / KB
    );
    let head = ["arm", "alone", "flooded", "p50 ×", "p99 ×", "flood, req/s", "its core"];
    let mut table = Table::new(title, &head);
    for arm in arms(figures, FLOODED) {
        let latency = |scenario| {
            let of = |metric| median(figures.spread(arm, scenario, metric), 0);
            format!("{} / {}", of(Metric::P50), of(Metric::P99))
        };
        let ratio = |metric| range(figures.ratio_of((arm, FLOODED), (arm, ALONE), metric));
        table.rows.push(vec![
            arm.to_owned(),
            latency(ALONE),
            latency(FLOODED),
            ratio(Metric::P50),
            ratio(Metric::P99),
            median(figures.spread(arm, FLOODED, Metric::FloodPerSecond), 0),
            figures
                .spread(arm, FLOODED, Metric::CoreShare)
                .map_or("–".into(), |used| format!("{:.0} %", used.median * 100.0)),
        ]);
    }
    table
}

fn many(figures: &Figures) -> Table {
    let (connections, conversations) = MANY;
    let title = format!(
        "{} conversations of {} KB on {connections} connections: req/s / p99 µs",
        connections * conversations,
        MANY_BYTES / KB
    );
    let mut table = Table::new(title, &["arm", "a key for each", "one key", "req/s ×", "p99 ×"]);
    for arm in arms(figures, ONE_KEY) {
        let of = |scenario| {
            let of = |metric| median(figures.spread(arm, scenario, metric), 0);
            format!("{} / {}", of(Metric::PerSecond), of(Metric::P99))
        };
        let ratio = |metric| range(figures.ratio_of((arm, ONE_KEY), (arm, MANY_KEYS), metric));
        table.rows.push(vec![
            arm.to_owned(),
            of(MANY_KEYS),
            of(ONE_KEY),
            ratio(Metric::PerSecond),
            ratio(Metric::P99),
        ]);
    }
    table
}

/// The arms with figures of a scenario.
fn arms<'f>(figures: &'f Figures, scenario: &'f str) -> impl Iterator<Item = &'static str> + 'f {
    figures.arms.iter().copied().filter(move |arm| includes(arm) && figures.has(scenario))
}

fn median(spread: Option<Spread>, digits: usize) -> String {
    spread.map_or("–".into(), |spread| format!("{:.digits$}", spread.median))
}
