//! `forkpoint demo`: the main job, on the embedded simulator. No key, no network, no configuration.
//!
//! A parent agent with a large context fans out to sub-agents that run at once, each with tools of its own,
//! and reads their reports. The same is played once straight to the simulator, which is what happens without
//! forkpoint, and once per mode through a real forkpoint on a real port. The simulator bills; each play has one
//! of its own, so that none reads what another wrote.

mod agent;
mod scenario;
mod stage;
mod table;
mod overview;
mod gate;
mod plot;

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use futures_util::future::try_join_all;
use futures_util::{StreamExt, TryStreamExt};
use serde_json::json;

use super::Failure;
use crate::config::Config;
use agent::{Client, Workload};
use overview::PlanComparison;
use scenario::Scenario;
use stage::{DemoArm, DemoStage, faster};
use table::Column;
pub use table::{aligned, grouped};

/// A tenth of what real models take, so that a demo lasts seconds and siblings still overlap as they do.
const SPEED: u32 = 10;
/// Fan-outs that are played side by side: they wait more than they work.
const AT_ONCE: usize = 2;

const AFTER_HELP: &str = "\
Examples:
  forkpoint demo                          five children under a 48,500-token parent, then all scenarios
  forkpoint demo --scenario tool-heavy    one of them
  forkpoint demo --client naive           a client that does nothing for the cache
  forkpoint demo --children 8 --stay      eight, then keep everything up to look around
  forkpoint demo --json | jq '.scenarios[] | {scenario, forked_to_as_sent}'
  forkpoint demo --gate                   what the gate saves and delays: a table and a plot
  forkpoint demo --gate --max-hold-ms 12000 --svg gate.svg    with a longer deadline

Units weigh prompt tokens by price: 1 uncached, 1.25 written to the cache, 0.1 read from it.";

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct DemoArgs {
    /// Play only this fan-out
    #[arg(long, value_enum, value_name = "NAME")]
    scenario: Option<Scenario>,
    /// How many sub-agents the parent spawns [default: 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=64))]
    children: Option<u16>,
    /// How many times each child calls a tool before it reports [default: 2, with --gate 0]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=20))]
    turns: Option<u16>,
    /// Size of the parent's context in tokens, before the fan-out [default: 48500]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(2_000..=400_000))]
    context: Option<u32>,
    /// Of that the tools, which the children bring too [default: 20000, or half of --context]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(0..=400_000))]
    tools: Option<u32>,
    /// Size of each child's own instructions [default: 2000]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(0..=400_000))]
    instructions: Option<u32>,
    /// How much the client does for the cache by itself [default: careful]
    #[arg(long, value_enum)]
    client: Option<Client>,
    /// List every request of the last column too
    #[arg(long)]
    requests: bool,
    /// Print JSON instead of tables
    #[arg(long, conflicts_with_all = ["requests", "stay"])]
    json: bool,
    /// Keep simulator, proxy and admin running until Ctrl-C
    #[arg(long)]
    stay: bool,
    #[command(flatten)]
    gate: gate::Flags,
}

impl DemoArgs {
    /// Returns true if any flag changes the main job.
    fn is_particular(&self) -> bool {
        let sizes = [self.context, self.tools, self.instructions];
        let counts = [self.children, self.turns];
        self.scenario.is_some()
            || self.client.is_some()
            || sizes.iter().any(Option::is_some)
            || counts.iter().any(Option::is_some)
    }

    fn workload(&self) -> Result<Workload, Failure> {
        let scenario = self.scenario.unwrap_or(Scenario::Main).workload();
        let context_tokens = self.context.unwrap_or(scenario.context_tokens);
        let tools_max = self.context.map_or(u32::MAX, |context| context / 2);
        let tool_tokens = self.tools.unwrap_or_else(|| scenario.tool_tokens.min(tools_max));
        if tool_tokens > context_tokens {
            let message = format!("--tools {tool_tokens} is more than the whole context, {context_tokens}");
            return Err(Failure::new(message).hint("give more with --context"));
        }
        Ok(Workload {
            children: self.children.unwrap_or(scenario.children),
            turns: self.turns.unwrap_or(scenario.turns),
            context_tokens,
            tool_tokens,
            child_tokens: self.instructions.unwrap_or(scenario.child_tokens),
            client: self.client.unwrap_or(scenario.client),
        })
    }
}

pub fn run(args: DemoArgs) -> Result<(), Failure> {
    let runtime = super::runtime()?;
    if args.gate.gate {
        let client = args.client.unwrap_or(Client::Careful);
        runtime.block_on(gate::run(&args.gate, args.turns.unwrap_or(0), client))
    } else {
        runtime.block_on(demo(args))
    }
}

async fn demo(args: DemoArgs) -> Result<(), Failure> {
    let workload = args.workload()?;
    let others: Vec<Scenario> = if args.is_particular() {
        Vec::new()
    } else {
        Scenario::ALL.into_iter().filter(|scenario| *scenario != Scenario::Main).collect()
    };
    let name = args.scenario.unwrap_or(Scenario::Main).name();
    let started = Instant::now();
    let workloads = others.iter().map(|other| other.workload()).chain([workload]);
    let progress =
        DemoProgress::new(workloads.map(|workload| workload.requests() * DemoArm::ALL.len()).sum());
    let mut out = std::io::stdout().lock();
    if !args.json {
        let _ = writeln!(out, "{}\n", introduction(&workload));
    }
    let (first, stage) = play(name, workload, &args, &progress).await?;
    if !args.json {
        progress.done();
        let _ = writeln!(out, "{}\n{}", table::compare(&first.columns), first.conclusion());
    }
    if args.requests
        && let Some(column) = first.columns.last()
    {
        let title = column.arm.title();
        let _ = writeln!(out, "Every request, {title}:\n\n{}", table::render(&column.rows));
    }
    let plays = others.into_iter().map(|other| play(other.name(), other.workload(), &args, &progress));
    let played: Vec<_> = futures_util::stream::iter(plays).buffered(AT_ONCE).try_collect().await?;
    let comparisons: Vec<_> =
        std::iter::once(first).chain(played.into_iter().map(|(comparison, _)| comparison)).collect();
    progress.done();
    if args.json {
        let scenarios: Vec<_> = comparisons.iter().map(PlanComparison::json).collect();
        let _ = writeln!(out, "{:#}", json!({ "scenarios": scenarios }));
        return Ok(());
    }
    if comparisons.len() > 1 {
        let _ = writeln!(out, "{}", overview::table(&comparisons));
    }
    let seconds = started.elapsed().as_secs_f64();
    let _ = writeln!(out, "{} requests in {seconds:.1} s; the simulator billed each.\n", progress.played());
    let _ = writeln!(out, "{}", next_steps(&stage, &args));
    drop(out);
    if args.stay {
        let _ = tokio::signal::ctrl_c().await;
    }
    Ok(())
}

fn introduction(workload: &Workload) -> String {
    format!(
        "A parent with {} tokens of context spawns {} sub-agents of {} tokens; each calls a tool {} times and reports.\n{}",
        grouped(workload.context_tokens.into()),
        workload.children,
        grouped((workload.tool_tokens + workload.child_tokens).into()),
        workload.turns,
        workload.client.describe(),
    )
}

/// Plays a fan-out under every plan at once, each on a stage of its own; the last stage stays.
async fn play(
    name: &'static str,
    workload: Workload,
    args: &DemoArgs,
    progress: &DemoProgress,
) -> Result<(PlanComparison, DemoStage), Failure> {
    let speed = args.gate.speed.unwrap_or(SPEED);
    let plays = DemoArm::ALL.into_iter().map(|arm| perform(arm, &workload, args, speed, progress));
    let (columns, mut stages): (Vec<Column>, Vec<DemoStage>) = try_join_all(plays).await?.into_iter().unzip();
    let stage = stages.pop().ok_or_else(|| Failure::new("nothing was played"))?;
    let mut comparison = PlanComparison { name, workload, columns };
    // On a busy machine siblings come one after the other, and read what they would not find in life.
    let slower = [speed / 3, 1].into_iter().filter(|slower| (1..speed).contains(slower));
    for speed in slower {
        if comparison.overlapped() {
            break;
        }
        progress.expect(workload.requests());
        let (column, _) = perform(DemoArm::AsSent, &workload, args, speed, progress).await?;
        comparison.replace(column);
    }
    Ok((comparison, stage))
}

/// Plays a fan-out under one plan.
async fn perform(
    arm: DemoArm,
    workload: &Workload,
    args: &DemoArgs,
    speed: u32,
    progress: &DemoProgress,
) -> Result<(Column, DemoStage), Failure> {
    let mut config = Config::default();
    config.gate.max_hold = args.gate.max_hold();
    // The columns show what each plan costs, also where the default bounds would choose to align.
    config.fork.policy.context_premium = 100.0;
    config.fork.policy.max_cost_ratio = 100.0;
    let stage = DemoStage::with(arm.mode(), faster(speed), config).await?;
    let play = agent::run(workload, stage.client_url(), progress).await?;
    let rows = stage.bill(&play.calls)?;
    Ok((Column { arm, rows }, stage))
}

fn next_steps(stage: &DemoStage, args: &DemoArgs) -> String {
    if !args.stay {
        return "Next:\n  \
                forkpoint demo --scenario small   one scenario in full; see demo --help\n  \
                forkpoint demo --client naive     a client that does nothing for the cache\n  \
                forkpoint demo --gate             what the gate saves and what it delays, over many sizes\n  \
                forkpoint demo --stay             the same, and keeps it up to look around\n  \
                forkpoint serve                   the proxy itself, in front of the real API; then\n  \
                ANTHROPIC_BASE_URL=http://127.0.0.1:8787 your-agent"
            .to_owned();
    }
    format!(
        "Still up, until Ctrl-C:\n  \
         {proxy}               the proxy; point a client here (any key)\n  \
         {admin}/metrics       what forkpoint measured\n  \
         {sim}/sim/requests  what arrived, raw, and what it cost\n  \
         {sim}/sim/cache     the live cache entries",
        proxy = stage.client_url(),
        admin = stage.admin_url(),
        sim = stage.sim_url(),
    )
}

/// A line that grows on a terminal, and nothing elsewhere.
struct DemoProgress {
    total: AtomicUsize,
    done: AtomicUsize,
    visible: bool,
}

impl DemoProgress {
    fn new(total: usize) -> DemoProgress {
        let visible = std::io::stderr().is_terminal();
        DemoProgress { total: total.into(), done: AtomicUsize::default(), visible }
    }

    /// More is played than was thought.
    fn expect(&self, more: usize) {
        self.total.fetch_add(more, Relaxed);
    }

    fn step(&self, what: &str) {
        self.done.fetch_add(1, Relaxed);
        self.show(what);
    }

    fn show(&self, what: &str) {
        if self.visible {
            eprint!("\r\x1b[K  {}/{} requests, {what}", self.played(), self.total.load(Relaxed));
        }
    }

    fn played(&self) -> usize {
        self.done.load(Relaxed)
    }

    fn done(&self) {
        if self.visible {
            eprint!("\r\x1b[K");
        }
    }
}
