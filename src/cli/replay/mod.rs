//! `forkpoint replay FILE.jsonl`: what a recording would have cost as sent, aligned and forked.
//!
//! The recorded requests are played again, at their times on a clock that jumps, through a forkpoint per mode into
//! the simulator, which gives the recorded answers and bills by its own model of the cache.

mod report;
mod run;
mod script;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::config::{self, Config, GateScope, Mode, Origin};
use crate::engine::fork::Prefer;
use crate::engine::usage::Usage;

use super::Failure;
use super::demo::grouped;
use report::Total;
use script::Script;

/// How often progress is said where no terminal shows it.
const SAY_EVERY: Duration = Duration::from_secs(2);

const AFTER_HELP: &str = "\
FILE is what record.file wrote with record.bodies = \"redacted\" or \"full\"; several files are one
recording. Nothing leaves this machine: the upstream is the embedded simulator. It counts a token
per four bytes, so its figures are for comparing runs with each other, not with a bill. Prompt cost
is in tokens weighed by price (an uncached one is 1), and in dollars where the prices are known;
outputs are the recorded ones in every run.

Examples:
  forkpoint replay traffic.jsonl
  forkpoint replay traffic.jsonl.1 traffic.jsonl --modes-only
  forkpoint replay --json traffic.jsonl | jq .best";

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// A recording
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Compare the modes and try no other settings
    #[arg(long)]
    modes_only: bool,
    /// Use this price table instead of the built-in one
    #[arg(long, value_name = "PATH")]
    prices: Option<PathBuf>,
}

/// A run: a mode, and what else is set.
struct Setting {
    title: String,
    words: String,
    mode: Mode,
    change: Change,
}

type Change = fn(&mut Config);

/// The modes that this version has, and other settings worth a try in the last of them.
fn settings(modes_only: bool) -> Vec<Setting> {
    let modes = [("observe", "as sent"), ("align", "aligned"), ("fork", "forked")];
    let modes = modes.into_iter().filter_map(|(word, title)| Some((Mode::named(word)?, title)));
    let mut settings: Vec<Setting> = modes
        .map(|(mode, title)| Setting {
            title: title.to_owned(),
            words: format!("server.mode = \"{}\"", mode.as_str()),
            mode,
            change: |_| (),
        })
        .collect();
    let tries: [(&str, Change); 3] = [
        ("fork.prefer = \"cost\"", |config| config.fork.policy.prefer = Prefer::Cost),
        ("gate.scope = \"all\"", |config| config.gate.scope = GateScope::All),
        ("gate.max_hold_ms = 0", |config| config.gate.max_hold = Duration::ZERO),
    ];
    let last = settings.last().map(|last| (last.title.clone(), last.words.clone(), last.mode));
    if let Some((title, words, mode)) = last.filter(|_| !modes_only) {
        settings.extend(tries.into_iter().map(|(other, change)| Setting {
            title: format!("{title}, {other}"),
            words: format!("{words}, {other}"),
            mode,
            change,
        }));
    }
    settings
}

pub fn run(args: Args) -> Result<(), Failure> {
    super::runtime()?.block_on(replay(&args))
}

async fn replay(args: &Args) -> Result<(), Failure> {
    let prices = config::load_prices(args.prices.as_deref(), &Origin::Flag("--prices"))?;
    let script = Script::read(&args.files)?;
    let settings = settings(args.modes_only);
    let mut progress = Progress::new(settings.len() * script.parts.len());
    let mut totals = Vec::new();
    for setting in &settings {
        let mut config = Config::default();
        config.server.mode = setting.mode;
        (setting.change)(&mut config);
        let outcomes = run::play(&script, config, &prices, || progress.step(&setting.title)).await?;
        totals.push(Total::of(&setting.title, &setting.words, &script, &outcomes, &prices));
    }
    progress.done();
    let modes = settings.iter().filter(|setting| !setting.title.contains(',')).count();
    let best = report::best(&totals);
    if args.json {
        let report = serde_json::json!({
            "exchanges": script.parts.len(),
            "left_out": {"no_body": script.no_body, "failed": script.failed, "broken_lines": script.broken},
            "recorded": script.billed(),
            "runs": totals.iter().map(Total::json).collect::<Vec<_>>(),
            "best": best.map(Total::json),
        });
        println!("{report:#}");
        return Ok(());
    }
    print!("{}\n{}", introduction(&script), report::table(&totals.iter().take(modes).collect::<Vec<_>>()));
    println!("\n{}", conclusion(&script, &totals, best));
    Ok(())
}

fn introduction(script: &Script) -> String {
    let seconds = script.length_ms() as f64 / 1e3;
    let mut out = format!(
        "{} exchanges within {seconds:.1} s, played again against the simulator.\n",
        grouped(script.parts.len() as u64)
    );
    for (count, why) in [
        (script.no_body, "were recorded without a body"),
        (script.failed, "were refused or got no answer"),
        (script.broken, "lines could not be read"),
    ] {
        if count > 0 {
            out += &format!("{} {why} and are left out.\n", grouped(count as u64));
        }
    }
    out
}

fn conclusion(script: &Script, totals: &[Total], best: Option<&Total>) -> String {
    let mut out = String::new();
    if let (Some(best), Some(first)) = (best, totals.first()) {
        let saved = 100.0 * (1.0 - best.all.weighed / first.all.weighed.max(1.0));
        out += &format!(
            "Best of {} settings tried: {}, {saved:.0} % less than as sent.\n",
            totals.len(),
            best.settings
        );
    }
    if let Some(unpriced) = totals.first().map(|total| total.all.unpriced).filter(|unpriced| *unpriced > 0) {
        out += &format!("{unpriced} requests are of models without a price: tokens, and no dollars.\n");
    }
    let billed = Usage::from(script.billed());
    let read = 100.0 * billed.cache_read as f64 / (billed.cached() + billed.uncached).max(1) as f64;
    out + &format!(
        "When it was recorded, {} prompt tokens were billed, {read:.0} % of them read from the cache.",
        grouped(billed.cached() + billed.uncached)
    )
}

/// A line that grows on a terminal, and a line now and then elsewhere.
struct Progress {
    total: usize,
    done: usize,
    visible: bool,
    said: Instant,
}

impl Progress {
    fn new(total: usize) -> Progress {
        Progress { total, done: 0, visible: std::io::stderr().is_terminal(), said: Instant::now() }
    }

    fn step(&mut self, what: &str) {
        self.done += 1;
        if self.visible {
            eprint!("\r\x1b[K  {}/{} requests, {what}", self.done, self.total);
        } else if self.said.elapsed() > SAY_EVERY {
            self.said = Instant::now();
            eprintln!("{}/{} requests, {what}", self.done, self.total);
        }
    }

    fn done(&self) {
        if self.visible {
            eprint!("\r\x1b[K");
        }
    }
}
