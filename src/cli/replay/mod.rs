//! `forkpoint replay FILE.jsonl`: what a recording would have cost as sent, aligned and forked.
//!
//! The recorded requests are played again, at their times on a clock that jumps, through a forkpoint per mode into
//! the simulator, which gives the recorded answers and bills by its own model of the cache.

mod report;
mod run;
mod script;
mod settings;

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::config::{self, Config, Identity, Overrides, ValueOrigin};
use crate::engine::cache::prices::Prices;

use super::Failure;
use super::demo::grouped;
use super::progress::Progress;
use report::Total;
use run::Played;
use script::Script;
use settings::RunSetting;

const AFTER_HELP: &str = "\
FILE is what record.file wrote with record.bodies = \"redacted\" or \"full\"; several files are one
recording. Nothing leaves this machine: the upstream is the embedded simulator. It counts a token
per four bytes, so its figures are for comparing runs with each other, not with a bill. Prompt cost
is in tokens weighed by price (an uncached one is 1), and in dollars where the prices are known;
outputs are the recorded ones in every run.

What is played is the configuration that --config, FORKPOINT_CONFIG and the environment give, with
server.mode changed: fork.*, gate.*, canonical.*, limits.*, store.*, upstream.profile and the like
count. Not taken are addresses, how tenants are told apart, and where to record or send traces.
Then, one at a time and those that helped together, other values of fork.context_premium,
fork.max_cost_ratio, fork.late, gate.scope and gate.max_hold_ms are tried in mode fork.

A request that asked for a lower mode (x-forkpoint-mode) gets it in every run. An exchange that the
simulator refuses in one run is left out of all of them.

Examples:
  forkpoint replay traffic.jsonl
  forkpoint replay --config forkpoint.toml traffic.jsonl
  forkpoint replay traffic.jsonl.1 traffic.jsonl --modes-only
  forkpoint replay --json traffic.jsonl | jq .best";

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct ReplayArgs {
    /// A recording
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Compare the modes and try no other settings
    #[arg(long)]
    modes_only: bool,
    /// Play the settings of this TOML file
    ///
    /// Environment: FORKPOINT_CONFIG. Without either, the defaults and the environment count.
    #[arg(long, value_name = "PATH")]
    config: Option<PathBuf>,
    /// Use this price table instead of the configured one
    #[arg(long, value_name = "PATH")]
    prices: Option<PathBuf>,
}

pub fn run(args: ReplayArgs) -> Result<(), Failure> {
    super::runtime()?.block_on(replay(&args))
}

async fn replay(args: &ReplayArgs) -> Result<(), Failure> {
    let (config, prices) = configured(args)?;
    let progress = Progress::new();
    let script = Script::read(&args.files, || progress.read())?;
    progress.play();
    let modes = RunSetting::modes();
    let mut stage = ReplaySession { script: &script, config: &config, prices: &prices, progress };
    let mut runs = stage.play(modes.clone()).await?;
    let of_modes = refused(&runs);
    if !args.json {
        stage.progress.done();
        println!("{}", introduction(&script, &of_modes));
        print!("{}", report::table(&stage.totals(&runs).iter().collect::<Vec<_>>()));
    }
    if !args.modes_only
        && let Some(last) = modes.last()
    {
        stage.try_others(&mut runs, last).await?;
    }
    stage.progress.done();
    let refused = refused(&runs);
    let totals = stage.totals(&runs);
    let best = report::best(&totals);
    if args.json {
        println!("{:#}", json(&script, &refused, &totals, best));
        return Ok(());
    }
    let (of_these, tried) = totals.split_at(modes.len());
    print!("{}", report::tried(tried, of_these.first()));
    if refused.len() > of_modes.len() {
        let more = refused.len() - of_modes.len();
        println!(
            "Left out of this table and of what follows: {more} more that the simulator refused in one run."
        );
    }
    println!("\n{}", conclusion(&script, &totals, best));
    Ok(())
}

fn json(
    script: &Script,
    refused: &BTreeMap<usize, String>,
    totals: &[Total],
    best: Option<&Total>,
) -> serde_json::Value {
    let said: Vec<_> = refused
        .iter()
        .map(|(part, why)| serde_json::json!({"id": script.parts[*part].record.id, "why": why}))
        .collect();
    serde_json::json!({
        "exchanges": script.parts.len(),
        "compared": script.parts.len() - refused.len(),
        "left_out": {"no_body": script.no_body, "failed": script.failed, "broken_lines": script.broken,
            "repeated": script.repeated, "files": script.unread},
        "refused": said,
        "recorded": report::tokens(&script.billed()),
        "runs": totals.iter().map(Total::json).collect::<Vec<_>>(),
        "best": best.map(Total::json),
    })
}

/// The settings to be played. Nothing is taken that reaches out, or names tenants by what is not recorded.
fn configured(args: &ReplayArgs) -> Result<(Config, Prices), Failure> {
    let overrides = Overrides { config: args.config.clone(), ..Overrides::default() };
    let loaded = config::load(&overrides, std::env::vars_os())?;
    let prices = match &args.prices {
        Some(path) => config::load_prices(Some(path), &ValueOrigin::Flag("--prices"))?,
        None => loaded.prices,
    };
    let plain = Config::default();
    let config = Config {
        identity: Identity { oauth: loaded.config.identity.oauth, ..plain.identity },
        record: plain.record,
        trace: plain.trace,
        tenants: plain.tenants,
        ..loaded.config
    };
    Ok((config, prices))
}

/// Everything that all runs of one replay share.
struct ReplaySession<'a> {
    script: &'a Script,
    config: &'a Config,
    prices: &'a Prices,
    progress: Progress,
}

/// A run that was played.
struct PlayedRun {
    setting: RunSetting,
    played: Played,
}

impl ReplaySession<'_> {
    async fn play(&mut self, settings: Vec<RunSetting>) -> Result<Vec<PlayedRun>, Failure> {
        self.progress.expect(settings.len() * self.script.parts.len());
        let mut runs = Vec::new();
        for setting in settings {
            let config = setting.apply(self.config);
            let step = || self.progress.step(&setting.title);
            let played = run::play(self.script, config, self.prices, step).await?;
            runs.push(PlayedRun { setting, played });
        }
        Ok(runs)
    }

    /// Tries other settings after the modes: one change to the last mode at a time, then together those that helped.
    async fn try_others(&mut self, runs: &mut Vec<PlayedRun>, last: &RunSetting) -> Result<(), Failure> {
        let modes = runs.len();
        let tried = self.play(last.tries(self.config)).await?;
        let totals = self.totals(runs.iter().chain(&tried));
        let plain = &totals[modes - 1];
        let mut helped: Vec<(&PlayedRun, &Total)> = tried.iter().zip(&totals[modes..]).collect();
        helped.retain(|(_, total)| total.is_cheaper(plain));
        helped.sort_by(|(_, one), (_, other)| one.cost(other).0.total_cmp(&one.cost(other).1));
        let helped: Vec<&RunSetting> = helped.iter().map(|(run, _)| &run.setting).collect();
        let together = last.together(&helped);
        runs.extend(tried);
        runs.extend(self.play(together.into_iter().collect()).await?);
        Ok(())
    }

    /// The runs, each added up over what succeeded in all of them.
    fn totals<'r>(&self, runs: impl IntoIterator<Item = &'r PlayedRun> + Clone) -> Vec<Total> {
        let refused = refused(runs.clone());
        let total = |run: &PlayedRun| {
            let PlayedRun { setting, played } = run;
            let outcomes = played.outcomes.iter().filter(|outcome| !refused.contains_key(&outcome.part));
            let settings = setting.words.join(", ");
            Total::of(&setting.title, &settings, self.script, outcomes, self.prices, played.refused.len())
        };
        runs.into_iter().map(total).collect()
    }
}

/// The exchanges that were refused in any of the runs, and what was said.
fn refused<'r>(runs: impl IntoIterator<Item = &'r PlayedRun>) -> BTreeMap<usize, String> {
    runs.into_iter().flat_map(|run| run.played.refused.iter().cloned()).collect()
}

fn introduction(script: &Script, refused: &BTreeMap<usize, String>) -> String {
    let seconds = script.length_ms() as f64 / 1e3;
    let mut out = format!(
        "{} exchanges within {seconds:.1} s, played again against the simulator.\n",
        grouped(script.parts.len() as u64)
    );
    let broken = match &script.first_broken {
        Some(place) => format!("not readable ({place})"),
        None => String::new(),
    };
    for (count, what, why) in [
        (script.no_body, "exchange", "recorded without a body"),
        (script.failed, "exchange", "refused, or without an answer"),
        (script.broken, "line", &broken),
        (script.repeated, "line", "of exchanges that another line has already"),
    ] {
        if count > 0 {
            let plural = if count == 1 { "" } else { "s" };
            out += &format!("Left out: {} {what}{plural}, {why}.\n", grouped(count as u64));
        }
    }
    for file in &script.unread {
        out += &format!("Not named, though it has older lines: {}\n", file.display());
    }
    if let Some((part, why)) = refused.first_key_value() {
        out += &format!(
            "Left out of all runs: {} that the simulator refused in one; request {}: {why}\n",
            grouped(refused.len() as u64),
            script.parts[*part].record.id,
        );
    }
    out
}

fn conclusion(script: &Script, totals: &[Total], best: Option<&Total>) -> String {
    let mut out = String::new();
    if let (Some(best), Some(first)) = (best, totals.first()) {
        let saved = 100.0 * (1.0 - best.cost(first).0 / best.cost(first).1.max(f64::MIN_POSITIVE));
        out += &format!(
            "Best of {} settings tried: {}, {saved:.0} % less than as sent.\n",
            totals.len(),
            best.settings
        );
    }
    if let Some(unpriced) = totals.first().map(|total| total.all.unpriced).filter(|unpriced| *unpriced > 0) {
        out += &format!("{unpriced} requests are of models without a price: tokens, and no dollars.\n");
    }
    let billed = script.billed();
    let read = 100.0 * billed.cache_read as f64 / (billed.cached() + billed.uncached).max(1) as f64;
    out + &format!(
        "When it was recorded, {} prompt tokens were billed, {read:.0} % of them read from the cache.",
        grouped(billed.cached() + billed.uncached)
    )
}
