//! Everything one run measured, and the questions a report may ask of it.

use serde::Serialize;

use crate::answers::EVENTS;
use crate::arms::{DIRECT, MINIMAL};
use crate::procfs::Memory;
use crate::scenario::KB;
use crate::stats::Spread;

/// One scenario on one arm in one round.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    pub arm: &'static str,
    pub scenario: &'static str,
    pub round: usize,
    /// CPU of the arm's process tree per request; `None` for the arm without a process, and beside a flood, which
    /// takes most of it.
    pub cpu_us: Option<f64>,
    /// The size of a body, and the part of it that is new in its conversation.
    pub body_bytes: f64,
    pub new_bytes: f64,
    pub first_byte_us: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub per_second: f64,
    /// Requests of the flood, if there is one.
    pub flood_per_second: Option<f64>,
    /// Share of its core that the arm used while this was measured.
    pub core_share: Option<f64>,
    /// Share of that time in which it was ready to run and others had its core.
    pub waited_share: Option<f64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct ArmMemory {
    pub arm: &'static str,
    pub at_start: Memory,
    pub idle_streams: Memory,
    pub after_load: Memory,
    /// The bytes that its store reports after the load.
    pub store_bytes: Option<f64>,
}

#[derive(Debug, Default, Serialize)]
pub struct Figures {
    pub quick: bool,
    pub machine: String,
    pub pinning: String,
    pub load_average: [String; 2],
    pub nginx: String,
    pub pace_us: u64,
    pub seconds: u64,
    pub rounds: usize,
    pub arms: Vec<&'static str>,
    pub scenarios: Vec<&'static str>,
    /// Arms that were asked for and did not start, with the reason.
    pub missing: Vec<(&'static str, String)>,
    /// Why the run does not count. Empty in a valid one.
    pub problems: Vec<String>,
    pub idle_streams: usize,
    /// The commit of the earlier binary, if one was measured.
    pub beside: Option<String>,
    pub memory: Vec<ArmMemory>,
    pub samples: Vec<Sample>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Metric {
    Cpu,
    CpuPerEvent,
    /// CPU per request divided by the bytes of a body that are new, or by all of them.
    CpuPerNewByte,
    CpuPerByte,
    /// Less what the proxy that does nothing takes for the same bytes, in the same round.
    OwnCpuPerNewByte,
    BodyKb,
    NewKb,
    CoreShare,
    WaitedShare,
    FirstByte,
    P50,
    P99,
    /// Less the same figure without a proxy, of the same round.
    AddedFirstByte,
    AddedP50,
    AddedP99,
    PerSecond,
    FloodPerSecond,
}

impl Metric {
    fn of(self, sample: &Sample) -> Option<f64> {
        match self {
            Metric::Cpu => sample.cpu_us,
            Metric::CpuPerEvent => sample.cpu_us.map(|cpu| cpu / EVENTS as f64),
            Metric::CpuPerNewByte | Metric::OwnCpuPerNewByte => {
                sample.cpu_us.map(|cpu| cpu / sample.new_bytes)
            }
            Metric::CpuPerByte => sample.cpu_us.map(|cpu| cpu / sample.body_bytes),
            Metric::BodyKb => Some(sample.body_bytes / KB as f64),
            Metric::NewKb => Some(sample.new_bytes / KB as f64),
            Metric::CoreShare => sample.core_share,
            Metric::WaitedShare => sample.waited_share,
            Metric::FirstByte | Metric::AddedFirstByte => Some(sample.first_byte_us),
            Metric::P50 | Metric::AddedP50 => Some(sample.p50_us),
            Metric::P99 | Metric::AddedP99 => Some(sample.p99_us),
            Metric::PerSecond => Some(sample.per_second),
            Metric::FloodPerSecond => sample.flood_per_second,
        }
    }

    /// The arm whose figure is subtracted.
    fn base(self) -> Option<&'static str> {
        match self {
            Metric::AddedFirstByte | Metric::AddedP50 | Metric::AddedP99 => Some(DIRECT),
            Metric::OwnCpuPerNewByte => Some(MINIMAL),
            _ => None,
        }
    }
}

impl Figures {
    pub fn has(&self, scenario: &str) -> bool {
        self.scenarios.contains(&scenario)
    }

    /// The figure over all rounds.
    pub fn spread(&self, arm: &str, scenario: &str, metric: Metric) -> Option<Spread> {
        let values: Vec<f64> =
            (0..self.rounds).filter_map(|round| self.value(arm, scenario, round, metric)).collect();
        Spread::of(&values)
    }

    /// The figure divided by the reference's of the same round, over all rounds.
    pub fn ratio(&self, arm: &str, reference: &str, scenario: &str, metric: Metric) -> Option<Spread> {
        self.ratio_of((arm, scenario), (reference, scenario), metric)
    }

    /// The figure of one cell divided by that of another in the same round, each an arm and a scenario.
    pub fn ratio_of(&self, cell: (&str, &str), reference: (&str, &str), metric: Metric) -> Option<Spread> {
        let pairs = (0..self.rounds).filter_map(|round| {
            let ours = self.value(cell.0, cell.1, round, metric)?;
            let theirs = self.value(reference.0, reference.1, round, metric)?;
            Some(ours / theirs)
        });
        Spread::of(&pairs.collect::<Vec<_>>())
    }

    fn value(&self, arm: &str, scenario: &str, round: usize, metric: Metric) -> Option<f64> {
        let of = |arm: &str| {
            let sample = self
                .samples
                .iter()
                .find(|sample| sample.arm == arm && sample.scenario == scenario && sample.round == round)?;
            metric.of(sample)
        };
        let value = of(arm)?;
        match metric.base() {
            Some(base) => Some(value - of(base)?),
            None => Some(value),
        }
    }
}
