//! `forkpoint demo --gate`: what the gate saves, and what it delays.
//!
//! Equal fan-outs are played through forkpoint with the gate and without it, over a grid of children and of
//! the prefix that the children share. The simulator bills and takes its time as a model does; both are faster
//! by one factor than in life, and so is the gate's deadline, so that the comparison stays what it is.

mod report;

use std::fmt;
use std::io::Write;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;

use super::super::Failure;
use super::super::progress::Progress;
use super::agent;
use super::model::DemoModel;
use super::plot;
use super::settings::DemoSettings;
use super::stage::{DemoStage, LATENCY, faster};
use super::table::{Row, is_child, total};
use super::workload::{Client, Workload};
use crate::config::{Config, Mode};
use crate::sim::Latency;
use report::{Cell, ChildrenOutcome, GateSetting};

const CHILDREN: [u16; 4] = [2, 5, 16, 64];
const PREFIXES: [u32; 4] = [2_000, 10_000, 50_000, 200_000];
/// The parent only has to fan out.
const PARENT_TOKENS: u32 = 2_000;
/// Fast enough to be played through in half a minute, slow enough that this machine's own time counts little.
const SPEED: u32 = 2;

/// The value of `--svg` that asks for no plot.
const NO_PLOT: &str = "-";

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "The gate")]
pub struct Flags {
    /// Compare cost and wall time with the gate and without it: 2 to 64 children, prefixes of 2k to 200k tokens
    #[arg(long, conflicts_with_all = ["scenario", "children", "context", "tools", "instructions", "requests", "json", "stay"])]
    pub gate: bool,
    /// Where to draw the comparison; '-' for nowhere
    #[arg(long, value_name = "PATH", default_value = "forkpoint-gate.svg", requires = "gate")]
    svg: String,
    /// Leave out larger fan-outs
    #[arg(long, value_name = "N", default_value_t = 64, requires = "gate", value_parser = clap::value_parser!(u16).range(2..=64))]
    children_max: u16,
    /// Leave out larger prefixes
    #[arg(long, value_name = "TOKENS", default_value_t = 200_000, requires = "gate", value_parser = clap::value_parser!(u32).range(2_000..=200_000))]
    prefix_max: u32,
    /// How long the gate may hold a child [default: that of gate.max_hold_ms]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=600_000))]
    max_hold_ms: Option<u64>,
    /// Play so many times faster than a model answers [default: 10, with --gate 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=20))]
    pub speed: Option<u32>,
}

impl Flags {
    /// The longest hold: this, or that of the configuration.
    pub fn max_hold(&self, config: &Config) -> Duration {
        self.max_hold_ms.map_or(config.gate.max_hold, Duration::from_millis)
    }
}

/// The two sides of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GateArm {
    Ungated,
    Gated,
}

impl fmt::Display for GateArm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GateArm::Ungated => "ungated",
            GateArm::Gated => "gated",
        })
    }
}

pub async fn run(
    flags: &Flags,
    settings: &DemoSettings,
    turns: u16,
    client: Client,
    model: &DemoModel,
) -> Result<(), Failure> {
    if flags.svg != NO_PLOT {
        // An address that cannot be written is better heard of before the play than after it.
        let opened = std::fs::File::options().create(true).append(true).open(&flags.svg);
        opened.map_err(|error| unwritable(&flags.svg, &error))?;
    }
    let speed = flags.speed.unwrap_or(SPEED);
    let setting = GateSetting {
        latency: LATENCY,
        max_hold: flags.max_hold(&settings.config()),
        speed,
        turns,
        client,
        model: model.clone(),
    };
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{}\n{}", setting.describe(), settings.describe());
    let started = Instant::now();
    let cells = play_all(flags, &setting, settings).await?;
    let _ = writeln!(out, "{}\n{}", report::table(&cells), report::conclusion(&cells, &setting));
    let _ = writeln!(out, "\nPlayed in {:.1} s.", started.elapsed().as_secs_f64());
    if flags.svg != NO_PLOT {
        let drawn = plot::svg(&report::chart(&cells, &setting));
        std::fs::write(&flags.svg, drawn).map_err(|error| unwritable(&flags.svg, &error))?;
        let _ = writeln!(out, "Drawn in {}", flags.svg);
    }
    Ok(())
}

fn unwritable(path: &str, error: &std::io::Error) -> Failure {
    Failure::new(format!("cannot write {path}: {error}"))
        .hint("--svg PATH draws elsewhere, --svg - draws nothing")
}

/// Fan-outs of all sizes over one prefix run side by side, which wait more than they work; prefixes and arms
/// follow each other.
async fn play_all(
    flags: &Flags,
    setting: &GateSetting,
    settings: &DemoSettings,
) -> Result<Vec<Cell>, Failure> {
    let sizes: Vec<u16> = CHILDREN.into_iter().filter(|size| *size <= flags.children_max).collect();
    let prefixes: Vec<u32> = PREFIXES.into_iter().filter(|prefix| *prefix <= flags.prefix_max).collect();
    let per_row: usize = sizes.iter().map(|size| workload(*size, 0, setting).requests()).sum();
    let progress = Progress::new();
    progress.expect(per_row * prefixes.len() * 2);
    let mut cells = Vec::new();
    for prefix in prefixes {
        let play = async |arm: GateArm| {
            let plays = sizes
                .iter()
                .map(|size| play(arm, workload(*size, prefix, setting), setting, settings, &progress));
            try_join_all(plays).await
        };
        let (ungated, gated) = (play(GateArm::Ungated).await?, play(GateArm::Gated).await?);
        let pairs = sizes.iter().zip(ungated.into_iter().zip(gated));
        cells.extend(pairs.map(|(children, (ungated, gated))| Cell {
            children: *children,
            prefix,
            ungated,
            gated,
        }));
    }
    progress.done();
    Ok(cells)
}

fn workload(children: u16, prefix: u32, setting: &GateSetting) -> Workload {
    Workload {
        children,
        turns: setting.turns,
        context_tokens: PARENT_TOKENS,
        tool_tokens: 0,
        child_tokens: prefix,
        client: setting.client,
        ..Workload::SINGLE
    }
}

async fn play(
    arm: GateArm,
    workload: Workload,
    setting: &GateSetting,
    settings: &DemoSettings,
    progress: &Progress,
) -> Result<ChildrenOutcome, Failure> {
    let mut config = settings.config();
    config.server.mode = Mode::Align;
    config.gate.max_hold = match arm {
        GateArm::Ungated => Duration::ZERO,
        GateArm::Gated => setting.max_hold / setting.speed,
    };
    let stage =
        DemoStage::with(Some(config), &settings.prices, faster(setting.speed), &setting.model).await?;
    let played = agent::run(&workload, &stage, progress).await?;
    let rows = stage.bill(&played.calls).await?;
    let (_, cost_usd) = total(rows.iter().filter(is_child));
    let took = played.children_took.iter().sum::<Duration>() * setting.speed;
    Ok(ChildrenOutcome { cost_usd, took, answering: answering(&rows, &setting.latency) })
}

/// How long the slowest child's answers alone took, by the model's own latency.
fn answering(rows: &[Row], latency: &Latency) -> Duration {
    let time = |row: &Row| latency.to_first_token(row.usage.uncached + row.usage.cache_write());
    let children = rows.iter().filter(is_child);
    let mut times: Vec<(&str, Duration)> = Vec::new();
    for row in children {
        match times.last_mut().filter(|(who, _)| *who == row.who) {
            Some((_, sum)) => *sum += time(row),
            None => times.push((&row.who, time(row))),
        }
    }
    times.into_iter().map(|(_, sum)| sum).max().unwrap_or_default()
}
