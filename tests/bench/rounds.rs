//! One run: start everything, measure all arms in turn, round after round, stop everything.
//!
//! Within a round each scenario visits every arm before the next scenario begins. Each round begins with another
//! arm, and every other one goes backwards, so that whatever else the machine does falls on all of them alike.

use std::io::{IsTerminal, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::answers::Answer;
use crate::arms::{self, Binaries, DIRECT, Running};
use crate::beside::Beside;
use crate::children::{Child, Worker};
use crate::figures::{ArmMemory, Figures, Sample};
use crate::job::Job;
use crate::load::{self, Outcome};
use crate::mock::Counts;
use crate::options::FigureOptions;
use crate::procfs::{self, Cpu, Memory};
use crate::scenario::{self, Scenario};
use crate::stats::percentile;
use crate::{Fallible, temporary_folder};

/// Below this the median of paired ratios says little; such a run is marked.
pub const ROUNDS_MIN: usize = 5;

/// Memory is read when allocators had this long to settle.
const SETTLE: Duration = Duration::from_millis(500);

pub fn run(options: &FigureOptions, beside: Option<Beside>) -> Fallible<Figures> {
    let started = Instant::now();
    let cores = Cores::split(&procfs::cores());
    let scenarios = scenario::chosen(&options.scenarios, options.quick)?;
    let mut bench = Bench::start(options, &cores, beside)?;
    // After the bench, so that the arms are dropped first, while their upstream still answers.
    let running = bench.start_arms(options)?;
    bench.figures.scenarios = scenarios.iter().map(|scenario| scenario.id).collect();
    bench.hold_idle_streams(&running, options.idle_streams)?;

    let rounds = options.rounds();
    let mut slowest_round = Duration::ZERO;
    for round in 0..rounds {
        if started.elapsed() + slowest_round > Duration::from_secs(options.budget_s()) {
            eprintln!("the time is up after {round} of {rounds} rounds");
            break;
        }
        let round_started = Instant::now();
        for scenario in &scenarios {
            bench.progress(&format!("round {}/{rounds}  {:<17}", round + 1, scenario.id), started);
            for index in visits(running.len(), round) {
                let arm = &running[index];
                if !scenario.includes(arm.name) {
                    continue;
                }
                if scenario.is_apart {
                    bench.measure_apart(arm.name, scenario, round)?;
                } else {
                    bench.measure(arm, scenario, round)?;
                }
            }
        }
        bench.figures.rounds = round + 1;
        slowest_round = slowest_round.max(round_started.elapsed());
    }
    bench.progress_end();
    std::thread::sleep(SETTLE);
    bench.finish(running, started)
}

/// The order in which a round visits the arms.
fn visits(arms: usize, round: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..arms).map(|turn| (turn + round) % arms).collect();
    if round % 2 == 1 {
        order.reverse();
    }
    order
}

/// The cores of each process.
struct Cores {
    arms: String,
    mock: String,
    load: String,
    stated: String,
}

impl Cores {
    fn split(cores: &[usize]) -> Cores {
        let nth = |index: usize| cores.get(index).or(cores.last()).map_or("0".to_owned(), usize::to_string);
        let stated = match cores.len() {
            0 | 1 => {
                "arms, mock and load generator share the only core: latency and req/s mean little".into()
            }
            2 => format!("each arm on core {}, mock and load generator share core {}", nth(0), nth(1)),
            _ => format!("each arm on core {}, mock on {}, load generator on {}", nth(0), nth(1), nth(2)),
        };
        Cores { arms: nth(0), mock: nth(1), load: nth(2), stated }
    }
}

struct Bench {
    load: Worker,
    mock: Worker,
    upstream: SocketAddr,
    /// The core of every arm.
    arm_core: String,
    binaries: Binaries,
    figures: Figures,
    next_nonce: u64,
    pace_us: u64,
}

impl Bench {
    fn start(options: &FigureOptions, cores: &Cores, beside: Option<Beside>) -> Fallible<Bench> {
        let mut mock = Worker::start("mock", &cores.mock)?;
        let upstream: SocketAddr = mock.hear()?.parse()?;
        let load = Worker::start("load", &cores.load)?;
        let figures = Figures {
            quick: options.quick,
            machine: procfs::machine(),
            pinning: cores.stated.clone(),
            load_average: [procfs::load_average(), String::new()],
            nginx: nginx_version(),
            pace_us: options.sse_pace_us,
            idle_streams: options.idle_streams,
            beside: beside.as_ref().map(|beside| beside.commit.clone()),
            ..Figures::default()
        };
        let binaries =
            Binaries { now: options.forkpoint.clone(), before: beside.map(|beside| beside.binary) };
        let arm_core = cores.arms.clone();
        let pace_us = options.sse_pace_us;
        Ok(Bench { load, mock, upstream, arm_core, binaries, figures, next_nonce: 1, pace_us })
    }

    fn start_arms(&mut self, options: &FigureOptions) -> Fallible<Vec<Running>> {
        let folder = temporary_folder()?;
        let mut running = Vec::new();
        for name in options.arms(self.binaries.before.is_some()) {
            let arm = arms::named(&name)?;
            match arm.start(&self.arm_core, self.upstream, &folder, &self.binaries) {
                Ok(arm) => running.push(arm),
                Err(error) => {
                    eprintln!("{} is left out: {error}", arm.name);
                    self.figures.missing.push((arm.name, error.to_string()));
                }
            }
        }
        self.figures.arms = running.iter().map(|arm| arm.name).collect();
        for arm in running.iter().filter(|arm| has_memory(arm.name)) {
            self.figures.memory.push(ArmMemory {
                arm: arm.name,
                at_start: memory(arm),
                idle_streams: Memory::default(),
                after_load: Memory::default(),
                store_bytes: None,
            });
        }
        Ok(running)
    }

    /// Reads memory with idle streams open. It comes before any load, so that what a heap kept from large bodies is not taken for the streams' share.
    fn hold_idle_streams(&mut self, running: &[Running], streams: usize) -> Fallible<()> {
        for arm in running {
            let name = arm.name;
            // Also the earlier binary, whose memory nobody reports, so that both binaries have the same past.
            if name == DIRECT || streams == 0 {
                continue;
            }
            eprintln!("{streams} idle streams  {name}");
            let job = scenario::idle(arm.address, self.next_nonce, streams);
            self.next_nonce += job.requests_total();
            let before = self.counts()?;
            self.load.tell(&serde_json::to_string(&job)?)?;
            let held = self.load.hear()?;
            std::thread::sleep(SETTLE);
            let now = memory(arm);
            self.mock.tell("release")?;
            let outcome: Outcome = serde_json::from_str(&self.load.hear()?)?;
            if held != "held" {
                self.figures.problems.push(format!("{name}: the idle streams were not held"));
            }
            self.check(arm, "idle streams", &job, &outcome, before)?;
            if let Some(entry) = self.figures.memory.iter_mut().find(|entry| entry.arm == name) {
                entry.idle_streams = now;
            }
        }
        Ok(())
    }

    fn measure(&mut self, arm: &Running, scenario: &Scenario, round: usize) -> Fallible<()> {
        let mut job = scenario.job(arm.address, self.next_nonce, self.pace_us);
        job.headers = arm.headers.clone();
        if arm.rewrites {
            job.answer = if job.answer.is_streamed() { Answer::AnyStream } else { Answer::AnyJson };
        }
        self.next_nonce += job.requests_total();
        let pid = arm.child.as_ref().map(Child::pid);
        let before = self.counts()?;
        let cpu = || pid.map(Cpu::of_tree);
        let (outcome, cpu_before) = load::order(&mut self.load, &job, cpu)?;
        let cpu = cpu().zip(cpu_before);
        self.check(arm, scenario.id, &job, &outcome, before)?;

        let measured = outcome.last_byte_ns.len() as f64;
        let each = |ns: u64| ns as f64 / measured;
        let cpu_ns = cpu.map(|(after, before)| each(after.since(before)));
        let waited_ns = cpu.map(|(after, before)| each(after.waited_since(before)));
        let wall_ns = outcome.wall_ns as f64;
        let share = |ns_each: f64| ns_each * measured / wall_ns;
        let is_flooded = job.flood.is_some();
        self.figures.samples.push(Sample {
            arm: arm.name,
            scenario: scenario.id,
            round,
            cpu_us: if is_flooded { None } else { cpu_ns.map(|cpu| cpu / 1e3) },
            body_bytes: outcome.measured_bytes as f64 / measured,
            new_bytes: outcome.new_bytes as f64 / measured,
            first_byte_us: percentile(&outcome.first_byte_ns, 0.5) / 1e3,
            p50_us: percentile(&outcome.last_byte_ns, 0.5) / 1e3,
            p99_us: percentile(&outcome.last_byte_ns, 0.99) / 1e3,
            per_second: measured / (wall_ns / 1e9),
            flood_per_second: is_flooded.then(|| outcome.flood_sent as f64 / (outcome.flood_ns as f64 / 1e9)),
            core_share: cpu_ns.map(share),
            waited_share: waited_ns.map(share),
        });
        Ok(())
    }

    /// Measures one more process of an arm, which knows nothing yet and ends with the scenario.
    fn measure_apart(&mut self, arm: &'static str, scenario: &Scenario, round: usize) -> Fallible<()> {
        let folder = temporary_folder()?.join("apart");
        match arms::named(arm)?.start(&self.arm_core, self.upstream, &folder, &self.binaries) {
            Ok(apart) => self.measure(&apart, scenario, round),
            Err(error) => {
                self.figures.problems.push(format!("{arm}, {}: {error}", scenario.id));
                Ok(())
            }
        }
    }

    /// Every request must have arrived once and whole, and every answer must have come back.
    fn check(
        &mut self,
        arm: &Running,
        what: &str,
        job: &Job,
        outcome: &Outcome,
        before: Counts,
    ) -> Fallible<()> {
        let after = self.counts()?;
        let Running { name, adds_bytes, rewrites, .. } = *arm;
        let mut problem = |text: String| self.figures.problems.push(format!("{name}, {what}: {text}"));
        if outcome.errors > 0 {
            problem(format!("{} errors, such as {:?}", outcome.errors, outcome.error_texts));
        }
        if outcome.sent != job.requests_total() {
            problem(format!("{} of {} requests sent", outcome.sent, job.requests_total()));
        }
        if job.flood.is_some() && outcome.flood_sent == 0 {
            problem("the flood sent nothing".into());
        }
        let sent = outcome.sent + outcome.flood_sent;
        let arrived = after.arrivals - before.arrivals;
        if arrived != sent {
            problem(format!("{sent} requests sent, {arrived} arrived at the upstream"));
        }
        let forked = after.forked - before.forked;
        if forked != job.children_total() {
            problem(format!(
                "{} children sent, {forked} arrived on their parent's prefix",
                job.children_total()
            ));
        }
        let bytes = after.body_bytes - before.body_bytes;
        // A forked child arrives with its parent's body, and with what the fan-out adds to it.
        let added = arrived * adds_bytes + forked * 2 * job.body_bytes as u64;
        if !rewrites && !(outcome.body_bytes..=outcome.body_bytes + added).contains(&bytes) {
            problem(format!("{} body bytes sent, {bytes} arrived at the upstream", outcome.body_bytes));
        }
        Ok(())
    }

    fn counts(&mut self) -> Fallible<Counts> {
        self.mock.tell("counts")?;
        Ok(serde_json::from_str(&self.mock.hear()?)?)
    }

    fn finish(mut self, mut running: Vec<Running>, started: Instant) -> Fallible<Figures> {
        for arm in &mut running {
            let Some(child) = arm.child.as_mut() else { continue };
            if !child.is_running() {
                self.figures.problems.push(format!("{}: the process ended during the run", arm.name));
            }
            let now = memory(arm);
            if let Some(entry) = self.figures.memory.iter_mut().find(|entry| entry.arm == arm.name) {
                entry.after_load = now;
                entry.store_bytes = arm.admin.and_then(store_bytes);
            }
        }
        if self.figures.rounds < ROUNDS_MIN && !self.figures.quick {
            let text = format!("{} rounds; at least {ROUNDS_MIN} are needed", self.figures.rounds);
            self.figures.problems.push(text);
        }
        self.figures.load_average[1] = procfs::load_average();
        self.figures.seconds = started.elapsed().as_secs();
        Ok(std::mem::take(&mut self.figures))
    }

    fn progress(&self, text: &str, started: Instant) {
        let seconds = started.elapsed().as_secs();
        let errors = self.figures.problems.len();
        let line = format!("{text}  {}:{:02}  problems {errors}", seconds / 60, seconds % 60);
        if std::io::stderr().is_terminal() {
            eprint!("\r{line}  ");
            let _ = std::io::stderr().flush();
        } else {
            eprintln!("{line}");
        }
    }

    fn progress_end(&self) {
        if std::io::stderr().is_terminal() {
            eprintln!();
        }
    }
}

/// Returns true for an arm whose memory is reported. Only the CPU time of the earlier binary is.
fn has_memory(arm: &str) -> bool {
    arm != DIRECT && !arms::is_before(arm)
}

fn memory(arm: &Running) -> Memory {
    arm.child.as_ref().map(|child| Memory::of_tree(child.pid())).unwrap_or_default()
}

/// Asks an arm of ours for the bytes that its store holds.
fn store_bytes(admin: SocketAddr) -> Option<f64> {
    let mut stream = TcpStream::connect(admin).ok()?;
    stream.set_read_timeout(Some(SETTLE * 10)).ok()?;
    write!(stream, "GET /metrics HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let line = answer.lines().find_map(|line| line.strip_prefix("forkpoint_store_bytes "))?;
    line.trim().parse().ok()
}

fn nginx_version() -> String {
    let said = std::process::Command::new("nginx").arg("-v").output();
    let text = said.map(|output| String::from_utf8_lossy(&output.stderr).into_owned()).unwrap_or_default();
    text.trim().strip_prefix("nginx version: ").unwrap_or("nginx not found").to_owned()
}
