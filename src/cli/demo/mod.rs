//! `forkpoint demo`: the main job, on the embedded simulator. No key, no network, no configuration.
//!
//! A parent agent with a large context fans out to sub-agents that run at once, each with tools of its own,
//! and reads their reports. The same is played once straight to the simulator, which is what happens without
//! forkpoint, and through a real forkpoint on a real port: aligned, forked, and as the default configuration chooses.
//! The simulator bills; each play has one of its own, so that none reads what another wrote.

mod workload;
mod scenario;
mod model;
mod agent;
mod stage;
mod table;
mod why;
mod comparison;
mod overview;
mod gate;
mod plot;

use std::io::Write;
use std::time::Instant;

use futures_util::future::try_join_all;
use futures_util::{StreamExt, TryStreamExt};
use serde_json::json;

use super::Failure;
use super::progress::Progress;
use crate::config::{ValueOrigin, load_prices};
use comparison::PlanComparison;
use model::DemoModel;
use scenario::Scenario;
use stage::{DemoArm, DemoStage, faster};
use table::Column;
pub use table::{aligned, grouped};
use workload::{Client, Workload};

/// A tenth of what real models take, so that a demo lasts seconds and siblings still overlap as they do.
const SPEED: u32 = 10;
/// Scenarios that are played side by side: they wait more than they work.
const AT_ONCE: usize = 4;

const AFTER_HELP: &str = "\
Examples:
  forkpoint demo                          a session in full, then every scenario in a line
  forkpoint demo --scenario reread        one of them in full
  forkpoint demo --client naive           a client that does nothing for the cache
  forkpoint demo --model claude-haiku-5-5 at other prices: that of reading decides what pays
  forkpoint demo --children 8 --stay      eight, then keep everything up to look around
  forkpoint demo --json | jq '.scenarios[] | {scenario, as_chosen_to_as_sent}'
  forkpoint demo --gate                   what the gate saves and delays: a table and a plot
  forkpoint demo --gate --max-hold-ms 12000 --svg gate.svg    with a longer deadline

Columns: as sent, without forkpoint; aligned, mode align; forked, every child that may be
forked; as chosen, the default configuration. Pauses are skipped, not waited for.";

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct DemoArgs {
    /// Play only this scenario [default: session in full, and all in a line each]
    #[arg(long, value_enum, value_name = "NAME")]
    scenario: Option<Scenario>,
    /// Play this model of the price table [default: the one that it marks as current]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
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
        let scenario = self.scenario().workload();
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
            ..scenario
        })
    }

    /// The scenario that is shown in full.
    fn scenario(&self) -> Scenario {
        self.scenario.unwrap_or(Scenario::Session)
    }
}

pub fn run(args: DemoArgs) -> Result<(), Failure> {
    let prices = load_prices(None, &ValueOrigin::Default)?;
    let model = DemoModel::named(args.model.as_deref(), &prices)?;
    let runtime = super::runtime()?;
    if args.gate.gate {
        let client = args.client.unwrap_or(Client::Careful);
        runtime.block_on(gate::run(&args.gate, args.turns.unwrap_or(0), client, &model))
    } else {
        runtime.block_on(demo(args, model))
    }
}

async fn demo(args: DemoArgs, model: DemoModel) -> Result<(), Failure> {
    let workload = args.workload()?;
    let shown = args.scenario();
    let others: Vec<Scenario> = if args.is_particular() {
        Vec::new()
    } else {
        Scenario::ALL.into_iter().filter(|scenario| *scenario != shown).collect()
    };
    let started = Instant::now();
    let progress = Progress::new();
    for workload in others.iter().map(|other| other.workload()).chain([workload]) {
        progress.expect(workload.requests() * DemoArm::ALL.len());
    }
    let mut out = std::io::stdout().lock();
    if !args.json {
        let _ = writeln!(out, "{}\n{}\n", model.describe(), stage::pace());
    }
    let theatre = Theatre { args: &args, model: &model, progress: &progress };
    let (first, stage) = theatre.play(shown.name(), workload).await?;
    if !args.json {
        progress.done();
        let _ = writeln!(out, "{}", first.text());
    }
    if args.requests
        && let Some(column) = first.column(DemoArm::AsChosen)
    {
        let title = column.arm.title();
        let _ = writeln!(out, "Every request, {title}:\n\n{}", table::render(&column.rows));
    }
    let plays = others.into_iter().map(|other| theatre.play(other.name(), other.workload()));
    let played: Vec<_> = futures_util::stream::iter(plays).buffered(AT_ONCE).try_collect().await?;
    let comparisons: Vec<_> =
        std::iter::once(first).chain(played.into_iter().map(|(comparison, _)| comparison)).collect();
    progress.done();
    if args.json {
        let scenarios: Vec<_> = comparisons.iter().map(PlanComparison::json).collect();
        let _ = writeln!(out, "{:#}", json!({ "model": model.json(), "scenarios": scenarios }));
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

/// Everything that all plays share.
struct Theatre<'a> {
    args: &'a DemoArgs,
    model: &'a DemoModel,
    progress: &'a Progress,
}

impl Theatre<'_> {
    /// Plays a workload under every plan at once, each on a stage of its own; the last stage stays.
    async fn play(
        &self,
        name: &'static str,
        workload: Workload,
    ) -> Result<(PlanComparison, DemoStage), Failure> {
        let speed = self.args.gate.speed.unwrap_or(SPEED);
        let plays = DemoArm::ALL.into_iter().map(|arm| self.perform(arm, &workload, speed));
        let (columns, mut stages): (Vec<Column>, Vec<DemoStage>) =
            try_join_all(plays).await?.into_iter().unzip();
        let stage = stages.pop().ok_or_else(|| Failure::new("nothing was played"))?;
        let mut comparison = PlanComparison { name, workload, model: self.model.clone(), columns };
        // On a busy machine siblings come one after the other, and read what they would not find in life.
        let slower = [speed / 3, 1].into_iter().filter(|slower| (1..speed).contains(slower));
        for speed in slower {
            if comparison.overlapped() {
                break;
            }
            self.progress.expect(workload.requests());
            let (column, _) = self.perform(DemoArm::AsSent, &workload, speed).await?;
            comparison.replace(column);
        }
        Ok((comparison, stage))
    }

    /// Plays a workload under one plan.
    async fn perform(
        &self,
        arm: DemoArm,
        workload: &Workload,
        speed: u32,
    ) -> Result<(Column, DemoStage), Failure> {
        let mut config = arm.config();
        if let Some(config) = &mut config {
            config.gate.max_hold = self.args.gate.max_hold();
        }
        let stage = DemoStage::with(config, faster(speed), self.model).await?;
        let played = agent::run(workload, &stage, self.progress).await?;
        let rows = stage.bill(&played.calls).await?;
        // Scaled back to the pace of the model that is simulated.
        let children_s = played.children_took.iter().map(|took| (*took * speed).as_secs_f64()).collect();
        Ok((Column { arm, rows, children_s }, stage))
    }
}

fn next_steps(stage: &DemoStage, args: &DemoArgs) -> String {
    if !args.stay {
        return "Next:\n  \
                forkpoint demo --scenario reread  one scenario in full; see demo --help\n  \
                forkpoint demo --client naive     a client that does nothing for the cache\n  \
                forkpoint demo --gate             what the gate saves and what it delays\n  \
                forkpoint demo --stay             the same, and keeps it up to look around\n  \
                forkpoint serve                   the proxy itself, before the real API; then\n  \
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
