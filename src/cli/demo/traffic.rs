//! `forkpoint demo --stay`: traffic without end, to watch on the live page.
//!
//! Fan-outs of several kinds follow each other, each of a project of its own, so that none reads what another wrote. Now
//! and then an agent changes its system prompt between two turns, as those do that put the time of day there, and loses
//! its cache.

use std::convert::Infallible;
use std::time::Duration;

use super::super::Failure;
use super::super::progress::Progress;
use super::agent;
use super::scenario::Scenario;
use super::settings::DemoSettings;
use super::stage::{DemoStage, faster};
use super::workload::Workload;
use super::{DemoArgs, DemoModel};

/// Slow enough to be watched.
const SPEED: u32 = 2;
/// Between two fan-outs.
const PAUSE: Duration = Duration::from_secs(1);
/// Every so many fan-outs an agent loses its cache.
const DRIFT_EVERY: u32 = 3;
const ROUND: [Scenario; 4] = [Scenario::Session, Scenario::ToolHeavy, Scenario::Reread, Scenario::Small];

/// Starts a simulator and a forkpoint with the user's configuration, says where to look, and plays until it is
/// cancelled.
pub async fn run(args: &DemoArgs, settings: &DemoSettings, model: &DemoModel) -> Result<Infallible, Failure> {
    let speed = args.gate.speed.unwrap_or(SPEED);
    let stage = DemoStage::with(Some(settings.config()), &settings.prices, faster(speed), model).await?;
    println!("{}", places(&stage));
    let silent = Progress::silent();
    let mut project = 0;
    loop {
        for scenario in ROUND {
            project += 1;
            let given = if args.is_particular() { args.workload()? } else { scenario.workload() };
            let workload = Workload { fan_outs: 1, project, ..given };
            agent::run(&workload, &stage, &silent).await?;
            if project.is_multiple_of(DRIFT_EVERY) {
                agent::drift(&workload, &stage, &silent).await?;
            }
            stage.forget();
            tokio::time::sleep(PAUSE).await;
        }
    }
}

fn places(stage: &DemoStage) -> String {
    format!(
        "The live page, with traffic until Ctrl-C:\n  \
         {admin}/\n\n\
         Three things to look at:\n  \
         1. The money line on top: what was billed, beside the same requests as sent.\n  \
         2. A fan-out as it runs: one child writes what the others wait for and read.\n     \
            Open it to see what each was sent, and why it was forked or not.\n  \
         3. Cache breaks: every third fan-out an agent has another time in its system\n     \
            prompt, and pays for all of it again.\n\n\
         Also up:\n  \
         {admin}/metrics       what forkpoint measured\n  \
         {proxy}               the proxy; point a client here (any key)\n  \
         {sim}/sim/requests  what arrived, raw, and what it cost\n  \
         {sim}/sim/cache     the live cache entries",
        proxy = stage.client_url(),
        admin = stage.admin_url(),
        sim = stage.sim_url(),
    )
}
