//! The requests per second of the simulator, which must never be the bottleneck of a test or a demo.
//!
//! ```text
//! load generator (8 connections) ──▶ forkpoint sim, no latency, one core
//! ```
//!
//! Judged by requests per second of CPU time: on a busy machine the wall clock shows what was left of the
//! core, CPU time shows what the simulator would do with all of it.

use std::process::Command;

use crate::answers::Answer;
use crate::bodies::Bodies;
use crate::children::{Child, Worker, free_address, pinned};
use crate::job::{Job, Keys, Order};
use crate::load::{self, Outcome};
use crate::options::SimOptions;
use crate::procfs::{self, Cpu};
use crate::scenario::KB;
use crate::table::Table;
use crate::{Fallible, temporary_folder};

/// The requests that the simulator must answer per second on one core.
const PER_CORE_SECOND_MIN: f64 = 2_000.0;

const CONNECTIONS: usize = 8;

const BODY_BYTES: usize = 24 * KB;

/// Requests per connection that show how many the asked seconds will hold.
const TRIAL_REQUESTS: usize = 100;

pub fn run(options: &SimOptions) -> Fallible<bool> {
    let cores = procfs::cores();
    let core = |index: usize| cores.get(index).or(cores.last()).map_or("0".to_owned(), usize::to_string);
    let mut bench = Bench {
        target: free_address()?,
        load: Worker::start("load", &core(1))?,
        next_nonce: 1,
        problems: Vec::new(),
    };
    let mut sim = Child::server(
        "forkpoint sim",
        command(options, &core(0), bench.target),
        bench.target,
        &temporary_folder()?.join("sim.log"),
    )?;
    println!("{}, simulator on core {}, load generator on core {}", procfs::machine(), core(0), core(1));

    let head = ["answers", "requests", "req/s", "CPU µs/request", "req/CPU s"];
    let mut table = Table::new(format!("24 KB requests, {CONNECTIONS} connections, no two alike"), &head);
    for (name, answer) in [("JSON", Answer::AnyJson), ("stream", Answer::AnyStream)] {
        let trial = bench.load(answer, TRIAL_REQUESTS, sim.pid())?;
        let wanted = trial.per_second * options.seconds / CONNECTIONS as f64;
        let figures = bench.load(answer, (wanted as usize).max(TRIAL_REQUESTS), sim.pid())?;
        if figures.per_core_second < PER_CORE_SECOND_MIN {
            let found = figures.per_core_second;
            let least = PER_CORE_SECOND_MIN;
            bench
                .problems
                .push(format!("{name}: {found:.0} requests per CPU second, at least {least:.0} needed"));
        }
        table.rows.push(vec![
            name.to_owned(),
            figures.requests.to_string(),
            format!("{:.0}", figures.per_second),
            format!("{:.0}", 1e6 / figures.per_core_second),
            format!("{:.0}", figures.per_core_second),
        ]);
    }
    if !sim.is_running() {
        bench.problems.push("the simulator ended during the run".to_owned());
    }
    print!("{}", table.aligned());
    for problem in &bench.problems {
        eprintln!("FAILED: {problem}");
    }
    Ok(bench.problems.is_empty())
}

fn command(options: &SimOptions, core: &str, listen: std::net::SocketAddr) -> Command {
    let mut command = pinned(core, &options.forkpoint);
    command.args(["sim", "--latency", "0", "--latency-per-token", "0", "--listen", &listen.to_string()]);
    command
}

struct Bench {
    target: std::net::SocketAddr,
    load: Worker,
    next_nonce: u64,
    problems: Vec<String>,
}

struct Figures {
    requests: u64,
    per_second: f64,
    per_core_second: f64,
}

impl Bench {
    fn load(&mut self, answer: Answer, requests: usize, sim: u32) -> Fallible<Figures> {
        let turns = Bodies::Plain.turns(BODY_BYTES);
        let job = Job {
            target: self.target,
            connections: CONNECTIONS,
            conversations: requests.div_ceil(turns),
            turns,
            turns_before: 0,
            order: Order::OneByOne,
            pause_us: 0,
            keys: Keys::One,
            body_bytes: BODY_BYTES,
            bodies: Bodies::Plain,
            answer,
            pace_us: 0,
            first_nonce: self.next_nonce,
            headers: String::new(),
            flood: None,
        };
        self.next_nonce += job.requests_total();
        let (outcome, before) = load::order(&mut self.load, &job, || Cpu::of_tree(sim))?;
        let cpu_ns = Cpu::of_tree(sim).since(before);
        if outcome.errors > 0 || outcome.sent != job.requests_total() {
            let Outcome { sent, errors, error_texts, .. } = &outcome;
            self.problems.push(format!("{sent} sent, {errors} errors, such as {error_texts:?}"));
        }
        let requests = outcome.last_byte_ns.len() as u64;
        let per = |ns: u64| requests as f64 * 1e9 / ns.max(1) as f64;
        Ok(Figures { requests, per_second: per(outcome.wall_ns), per_core_second: per(cpu_ns) })
    }
}
