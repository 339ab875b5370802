//! `forkpoint demo`: the main job, on the embedded simulator. No key, no network, no configuration needed.
//!
//! The result comes first: in words, as bars, then in tables.
//!
//! A parent agent with a large context fans out to sub-agents that run at once, each with tools of its own,
//! and reads their reports. The same is played once straight to the simulator, which is what happens without
//! forkpoint, and through a real forkpoint on a real port: aligned, forked, and as the default configuration or the user's chooses.
//! The simulator bills; each play has one of its own, so that none reads what another wrote.

mod workload;
mod scenario;
mod model;
mod agent;
mod settings;
mod stage;
mod traffic;
mod table;
mod why;
mod comparison;
mod overview;
mod verdict;
mod gate;
mod plot;

use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

use futures_util::future::try_join_all;
use futures_util::{StreamExt, TryStreamExt};
use serde_json::json;

use super::Failure;
use super::progress::Progress;
use super::style::Style;
use comparison::PlanComparison;
use model::DemoModel;
use scenario::Scenario;
use settings::DemoSettings;
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
  forkpoint demo --config forkpoint.toml  with your settings of canonical, fork, gate, limits
  forkpoint demo --stay                   a session, then the live page with traffic to watch
  forkpoint demo --json | jq '.scenarios[] | {scenario, as_chosen_to_as_sent}'
  forkpoint demo --gate                   what the gate saves and delays: a table and a plot
  forkpoint demo --gate --max-hold-ms 12000 --svg gate.svg    with a longer deadline

Columns: as sent, without forkpoint; aligned, mode align; forked, every child that may be
forked; as chosen, the default configuration or yours (--config, FORKPOINT_CONFIG, the
environment): server.mode, canonical.*, fork.*, gate.*, limits.* and prices.* count, and what
does not is named. Pauses are skipped, not waited for.";

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
    /// Then play traffic without end, to watch on the live page, until Ctrl-C
    #[arg(long)]
    stay: bool,
    /// Choose by the settings of this TOML file
    ///
    /// Environment: FORKPOINT_CONFIG. Without either, the defaults and the environment count.
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
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
    let settings = DemoSettings::load(args.config.clone())?;
    let model = DemoModel::named(args.model.as_deref(), &settings.prices)?;
    let runtime = super::runtime()?;
    if args.gate.gate {
        let client = args.client.unwrap_or(Client::Careful);
        runtime.block_on(gate::run(&args.gate, &settings, args.turns.unwrap_or(0), client, &model))
    } else {
        runtime.block_on(demo(&args, &settings, &model))
    }
}

async fn demo(args: &DemoArgs, settings: &DemoSettings, model: &DemoModel) -> Result<(), Failure> {
    let started = Instant::now();
    let progress = Progress::new();
    let theatre = Theatre { args, settings, model, progress: &progress };
    let comparisons = theatre.play_all().await?;
    progress.done();
    if args.json {
        let scenarios: Vec<_> = comparisons.iter().map(PlanComparison::json).collect();
        println!("{:#}", json!({ "model": model.json(), "scenarios": scenarios }));
        return Ok(());
    }
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{}\n", verdict::sentences(&comparisons));
    let _ = writeln!(out, "{}", verdict::chart(&comparisons, Style::of_stdout()));
    let _ = writeln!(out, "{}\n{}", model.describe(), stage::pace());
    let _ = writeln!(out, "{}", settings.describe());
    if let Some(first) = comparisons.first() {
        let _ = writeln!(out, "{}", first.text(settings.chooser()));
    }
    if let Some(column) = comparisons.first().and_then(|first| first.column(DemoArm::AsChosen))
        && args.requests
    {
        let title = column.arm.title();
        let _ = writeln!(out, "Every request, {title}:\n\n{}", table::render(&column.rows));
    }
    if comparisons.len() > 1 {
        let _ = writeln!(out, "{}", overview::table(&comparisons, settings.chooser()));
    }
    let seconds = started.elapsed().as_secs_f64();
    let _ = writeln!(out, "{} requests in {seconds:.1} s; the simulator billed each.\n", progress.played());
    if !args.stay {
        let _ = writeln!(out, "{NEXT}");
        return Ok(());
    }
    drop(out);
    tokio::select! {
        ended = tokio::signal::ctrl_c() => ended.map_err(|error| Failure::new(format!("cannot handle signals: {error}"))),
        played = traffic::run(args, settings, model) => played.map(|never| match never {}),
    }
}

const NEXT: &str = "\
Next:
  forkpoint demo --scenario reread  one scenario in full; see demo --help
  forkpoint demo --client naive     a client that does nothing for the cache
  forkpoint demo --gate             what the gate saves and what it delays
  forkpoint demo --stay             the live page, with traffic to watch
  forkpoint serve                   the proxy itself, before the real API; then
  ANTHROPIC_BASE_URL=http://127.0.0.1:8787 your-agent";

/// Everything that all plays share.
struct Theatre<'a> {
    args: &'a DemoArgs,
    settings: &'a DemoSettings,
    model: &'a DemoModel,
    progress: &'a Progress,
}

impl Theatre<'_> {
    /// Plays the scenario that is shown in full, and the others if nothing particular is asked for.
    async fn play_all(&self) -> Result<Vec<PlanComparison>, Failure> {
        let (workload, shown) = (self.args.workload()?, self.args.scenario());
        let others: Vec<Scenario> = if self.args.is_particular() || self.args.stay {
            Vec::new()
        } else {
            Scenario::ALL.into_iter().filter(|scenario| *scenario != shown).collect()
        };
        for workload in others.iter().map(|other| other.workload()).chain([workload]) {
            self.progress.expect(workload.requests() * DemoArm::ALL.len());
        }
        let first = self.play(shown.name(), workload).await?;
        let plays = others.into_iter().map(|other| self.play(other.name(), other.workload()));
        let played: Vec<_> = futures_util::stream::iter(plays).buffered(AT_ONCE).try_collect().await?;
        Ok(std::iter::once(first).chain(played).collect())
    }

    /// Plays a workload under every plan at once, each on a stage of its own.
    async fn play(&self, name: &'static str, workload: Workload) -> Result<PlanComparison, Failure> {
        let speed = self.args.gate.speed.unwrap_or(SPEED);
        let plays = DemoArm::ALL.into_iter().map(|arm| self.perform(arm, &workload, speed));
        let columns: Vec<Column> = try_join_all(plays).await?;
        let mut comparison = PlanComparison { name, workload, model: self.model.clone(), columns };
        // On a busy machine siblings come one after the other, and read what they would not find in life.
        let slower = [speed / 3, 1].into_iter().filter(|slower| (1..speed).contains(slower));
        for speed in slower {
            if comparison.overlapped() {
                break;
            }
            self.progress.expect(workload.requests());
            comparison.replace(self.perform(DemoArm::AsSent, &workload, speed).await?);
        }
        Ok(comparison)
    }

    /// Plays a workload under one plan.
    async fn perform(&self, arm: DemoArm, workload: &Workload, speed: u32) -> Result<Column, Failure> {
        let mut config = self.settings.of(arm);
        if let Some(config) = &mut config {
            config.gate.max_hold = self.args.gate.max_hold(config);
        }
        let stage = DemoStage::with(config, &self.settings.prices, faster(speed), self.model).await?;
        let played = agent::run(workload, &stage, self.progress).await?;
        let rows = stage.bill(&played.calls).await?;
        // Scaled back to the pace of the model that is simulated.
        let children_s = played.children_took.iter().map(|took| (*took * speed).as_secs_f64()).collect();
        Ok(Column { arm, rows, children_s })
    }
}
