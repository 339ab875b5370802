//! `forkpoint demo`: the main job, on the embedded simulator. No key, no network, no configuration.
//!
//! A parent agent with a large context fans out to sub-agents that run at once, each with tools of its own,
//! and reads their reports. The same is played once straight to the simulator, which is what happens without
//! forkpoint, and once per mode through a real forkpoint on a real port. The simulator bills; each play has one
//! of its own, so that none reads what another wrote.

mod agent;
mod stage;
mod table;
mod gate;
mod plot;

use std::io::{IsTerminal, Write};
use std::time::Instant;

use super::Failure;
use agent::{Client, Workload};
use stage::{Arm, Stage};
use table::Column;
pub use table::grouped;

/// What sub-agents bring as their own instructions, by the captured clients.
const CHILD_TOKENS: u32 = 2_000;

const AFTER_HELP: &str = "\
Examples:
  forkpoint demo                       five children under a 48,500-token parent
  forkpoint demo --client naive        a client that does nothing for the cache
  forkpoint demo --children 8 --stay   eight, then keep everything up to look around
  forkpoint demo --gate                what the gate saves and delays: a table and a plot
  forkpoint demo --gate --max-hold-ms 12000 --svg gate.svg    with a longer deadline";

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// How many sub-agents the parent spawns
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(2..=64))]
    children: u16,
    /// How many times each child calls a tool before it reports [default: 2, with --gate 0]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=20))]
    turns: Option<u16>,
    /// Size of the parent's context in tokens, before the fan-out
    #[arg(long, value_name = "TOKENS", default_value_t = 48_500, value_parser = clap::value_parser!(u32).range(2_000..=400_000))]
    context: u32,
    /// How much the client does for the cache by itself
    #[arg(long, value_enum, default_value_t = Client::Careful)]
    client: Client,
    /// List every request of the last column too
    #[arg(long)]
    requests: bool,
    /// Keep simulator, proxy and admin running until Ctrl-C
    #[arg(long)]
    stay: bool,
    #[command(flatten)]
    gate: gate::Flags,
}

pub fn run(args: Args) -> Result<(), Failure> {
    let runtime = super::runtime()?;
    match args.gate.gate {
        true => runtime.block_on(gate::run(&args.gate, args.turns.unwrap_or(0), args.client)),
        false => runtime.block_on(demo(args)),
    }
}

async fn demo(args: Args) -> Result<(), Failure> {
    let turns = args.turns.unwrap_or(2);
    let workload = Workload {
        children: args.children,
        turns,
        context_tokens: args.context,
        child_tokens: CHILD_TOKENS,
        client: args.client,
    };
    let mut out = std::io::stdout().lock();
    let _ = writeln!(
        out,
        "A parent with {} tokens of context spawns {} sub-agents; each calls a tool {} times and reports.\n{}\n",
        table::grouped(args.context.into()),
        args.children,
        turns,
        args.client.describe(),
    );
    let started = Instant::now();
    let progress = Progress::new(workload.requests() * Arm::ALL.len());
    let mut columns = Vec::new();
    let mut last = None;
    for arm in Arm::ALL {
        let stage = Stage::start(arm).await?;
        let play = agent::run(&workload, stage.client_url(), &progress).await?;
        columns.push(Column { title: arm.title(), rows: stage.bill(&play.calls)? });
        last = Some(stage);
    }
    progress.done();
    let _ = writeln!(out, "{}", table::compare(&columns));
    if let Some(column) = columns.last().filter(|_| args.requests) {
        let _ = writeln!(out, "Every request, {}:\n\n{}", column.title, table::render(&column.rows));
    }
    let requests: usize = columns.iter().map(|column| column.rows.len()).sum();
    let _ = writeln!(
        out,
        "{requests} requests in {:.1} s; the simulator billed each.\n",
        started.elapsed().as_secs_f64()
    );
    if let Some(stage) = &last {
        let _ = writeln!(out, "{}", next_steps(stage, &args));
    }
    drop(out);
    if args.stay {
        let _ = tokio::signal::ctrl_c().await;
    }
    Ok(())
}

fn next_steps(stage: &Stage, args: &Args) -> String {
    if !args.stay {
        return "Next:\n  \
                forkpoint demo --client naive   a client that does nothing for the cache\n  \
                forkpoint demo --gate           what the gate saves and what it delays, over many sizes\n  \
                forkpoint demo --stay           the same, and keeps it up to look around\n  \
                forkpoint serve                 the proxy itself, in front of the real API; then\n  \
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
struct Progress {
    total: usize,
    done: std::sync::atomic::AtomicUsize,
    visible: bool,
}

impl Progress {
    fn new(total: usize) -> Progress {
        Progress { total, done: Default::default(), visible: std::io::stderr().is_terminal() }
    }

    fn step(&self, what: &str) {
        self.done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.show(what);
    }

    fn show(&self, what: &str) {
        if self.visible {
            let done = self.done.load(std::sync::atomic::Ordering::Relaxed);
            eprint!("\r\x1b[K  {done}/{} requests, {what}", self.total);
        }
    }

    fn done(&self) {
        if self.visible {
            eprint!("\r\x1b[K");
        }
    }
}
