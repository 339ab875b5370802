//! A steady mixed load for minutes, for faults that a short run cannot show.
//!
//! Conversations of three sizes, streams, clients that leave in the middle of an answer or of their own
//! body, uploads far larger than any body that may be collected, a thousand tenants whose every byte is signed
//! (`signs`), and clients that mean no good (`hostile`). It fails when resident memory or open files keep
//! growing, when an answer or an uploaded body differs by a byte, when anybody sees a byte of another tenant, or
//! when upstream calls go on after their clients left.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::answers::Answer;
use crate::arms::{self, Binaries, Running};
use crate::bodies::{Bodies, Conversation, Script};
use crate::children::Worker;
use crate::hostile::{Hostile, Means};
use crate::http1::broken;
use crate::load::Client;
use crate::mock::Counts;
use crate::options::SoakOptions;
use crate::procfs::{self, Memory};
use crate::scenario::KB;
use crate::signs::{Exchange, Signed};
use crate::stats::Spread;
use crate::{Fallible, temporary_folder};

const MINUTES: f64 = 10.0;
const SAMPLE_EVERY: Duration = Duration::from_millis(500);
/// Tenants with signs, and the requests that one of their clients sends between two pauses.
const TENANTS: u64 = 1_000;
const SIGNED_AT_ONCE: usize = 50;
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// Cancelled calls must be gone by then.
const QUIET_MAX: Duration = Duration::from_secs(10);
const UPLOAD_BYTES: usize = 20_000 * KB;
const FAILURES_KEPT: usize = 20;
/// Growth below these is the noise of allocators and pools.
const MEMORY_NOISE_KB: f64 = 8_192.0;
const FILES_NOISE: f64 = 8.0;
/// Growth of a quarter over the first, as a part of that: from quarter to quarter, and in all.
const RISE_MAX: f64 = 0.1;
const GROWTH_MAX: f64 = 0.2;

/// One kind of client; each entry of `CLIENTS` is one thread.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Talks { body_bytes: usize, bodies: Bodies },
    Streams { body_bytes: usize },
    LeavesAnswer,
    LeavesUpload,
    Uploads,
    Signed,
    Hostile(Means),
}

const CLIENTS: &[Kind] = &[
    Kind::Talks { body_bytes: 24 * KB, bodies: Bodies::Plain },
    Kind::Talks { body_bytes: 200 * KB, bodies: Bodies::Drifting },
    Kind::Talks { body_bytes: 200 * KB, bodies: Bodies::Fresh },
    Kind::Talks { body_bytes: 1_000 * KB, bodies: Bodies::Growing },
    Kind::Talks { body_bytes: 1_000 * KB, bodies: Bodies::Shifting },
    Kind::Streams { body_bytes: 24 * KB },
    Kind::Streams { body_bytes: 200 * KB },
    Kind::LeavesAnswer,
    Kind::LeavesUpload,
    Kind::Uploads,
    Kind::Signed,
    Kind::Signed,
    Kind::Signed,
    Kind::Signed,
    Kind::Hostile(Means::Silence),
    Kind::Hostile(Means::Trickle),
    Kind::Hostile(Means::Invented),
    Kind::Hostile(Means::Mangled),
    Kind::Hostile(Means::Multiplexed),
    Kind::Hostile(Means::Deaf),
    Kind::Hostile(Means::HalfClosed),
    Kind::Hostile(Means::ManyBlocks),
    Kind::Hostile(Means::Bombs),
    Kind::Hostile(Means::UpstreamFaults),
];

impl Kind {
    /// The pauses of a client after a request: the larger what it sends, the longer.
    fn pauses(self) -> u32 {
        match self {
            Kind::Uploads => 20,
            Kind::Hostile(Means::Deaf | Means::ManyBlocks | Means::Bombs) => 50,
            Kind::Talks { body_bytes, .. } => 1 + (body_bytes / (200 * KB)) as u32,
            _ => 1,
        }
    }
}

/// What all clients of a run share.
struct Shared<'r> {
    arm: &'r Running,
    deadline: Instant,
    /// Answers after which it is over.
    requests: Option<u64>,
    /// True if it goes on until it has lasted and answered as long.
    needs_both: bool,
    pause: Duration,
    tally: Tally,
}

impl Shared<'_> {
    fn is_over(&self) -> bool {
        let failed = self.tally.failures.lock().unwrap().len() >= FAILURES_KEPT;
        let has_lasted = Instant::now() >= self.deadline;
        let has_answered = self.requests.is_some_and(|most| self.tally.finished.load(Relaxed) >= most);
        failed || if self.needs_both { has_lasted && has_answered } else { has_lasted || has_answered }
    }

    fn number(&self) -> u64 {
        self.tally.nonce.fetch_add(1, Relaxed)
    }

    fn failed(&self, kind: Kind, error: impl std::fmt::Display) {
        self.tally.failures.lock().unwrap().push(format!("{kind:?}: {error}"));
    }
}

#[derive(Default)]
struct Tally {
    finished: AtomicU64,
    left: AtomicU64,
    signed: AtomicU64,
    attempts: AtomicU64,
    nonce: AtomicU64,
    failures: Mutex<Vec<String>>,
}

pub fn run(options: &SoakOptions) -> Fallible<bool> {
    let all_cores = procfs::cores().iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let mut mock = Worker::start("mock", &all_cores)?;
    let upstream: SocketAddr = mock.hear()?.parse()?;
    let binaries = Binaries { now: options.forkpoint.clone(), before: None };
    let arm = arms::named(&options.arm)?.start(&all_cores, upstream, &temporary_folder()?, &binaries)?;
    // The arm without a process is of use only to test this lane itself; then the mock is watched.
    let watched = arm.child.as_ref().map_or(mock.pid(), crate::children::Child::pid);
    let files_at_start = procfs::open_files(watched);

    let shared = Shared {
        arm: &arm,
        deadline: Instant::now() + Duration::from_secs_f64(options.minutes.unwrap_or(MINUTES) * 60.0),
        requests: options.requests,
        needs_both: options.minutes.is_some() && options.requests.is_some(),
        pause: Duration::from_millis(options.pause_ms),
        tally: Tally::default(),
    };
    let started = Instant::now();
    let mut memory_kb = Vec::new();
    let mut files = Vec::new();
    std::thread::scope(|scope| {
        for kind in CLIENTS {
            scope.spawn(|| client(*kind, &shared));
        }
        while !shared.is_over() {
            std::thread::sleep(SAMPLE_EVERY);
            memory_kb.push(Memory::of_tree(watched).now_kb as f64);
            files.push(procfs::open_files(watched) as f64);
            report_progress(&shared, &memory_kb, &files);
        }
    });
    let minutes = started.elapsed().as_secs_f64() / 60.0;
    let tally = shared.tally;

    let mut failures = tally.failures.into_inner()?;
    failures.extend(quiet_again(&mut mock, watched, files_at_start)?);
    failures.extend(growth("resident memory, KB", &memory_kb, MEMORY_NOISE_KB));
    failures.extend(growth("open files", &files, FILES_NOISE));
    println!(
        "{}: {} requests answered to the byte, {} of them of {TENANTS} tenants with signs, {} clients left early, \
         {} hostile attempts, {minutes:.1} minutes",
        arm.name,
        tally.finished.into_inner(),
        tally.signed.into_inner(),
        tally.left.into_inner(),
        tally.attempts.into_inner(),
    );
    print_spread("resident memory, MB", &memory_kb, 1024.0);
    print_spread("open files", &files, 1.0);
    for failure in &failures {
        eprintln!("FAILED: {failure}");
    }
    Ok(failures.is_empty())
}

fn client(kind: Kind, shared: &Shared<'_>) {
    match kind {
        Kind::Signed => signed(kind, shared),
        Kind::Hostile(means) => hostile(kind, means, shared),
        _ => ordinary(kind, shared),
    }
}

fn ordinary(kind: Kind, shared: &Shared<'_>) {
    let mut open = None;
    let (arm, tally) = (shared.arm, &shared.tally);
    let target = arm.address;
    let mut parts = Parts::new(kind, shared.number());
    while !shared.is_over() {
        let request = parts.request(arm, shared.number());
        let outcome = match kind {
            Kind::Streams { .. } => answered(&mut open, target, &request, Answer::Sse),
            Kind::LeavesAnswer => leave_answer(target, &request),
            Kind::LeavesUpload => leave_upload(target, &request),
            _ => answered(&mut open, target, &request, Answer::Json),
        };
        match (outcome, kind) {
            (Err(error), _) => {
                open = None;
                shared.failed(kind, error);
            }
            (Ok(()), Kind::LeavesAnswer | Kind::LeavesUpload) => {
                tally.left.fetch_add(1, Relaxed);
            }
            (Ok(()), _) => {
                tally.finished.fetch_add(1, Relaxed);
            }
        }
        std::thread::sleep(shared.pause * kind.pauses());
    }
}

/// Conversations of one tenant after the other, on one connection for all of them.
fn signed(kind: Kind, shared: &Shared<'_>) {
    let mut open = None;
    let mut since_pause = 0;
    while !shared.is_over() {
        let number = shared.number();
        let mut conversation = Signed::new(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % TENANTS, number);
        while let Some(exchange) = conversation.next(shared.arm.address) {
            if let Err(error) = says_so(&mut open, shared.arm.address, &exchange) {
                open = None;
                shared.failed(kind, error);
                break;
            }
            shared.tally.finished.fetch_add(1, Relaxed);
            shared.tally.signed.fetch_add(1, Relaxed);
            since_pause += 1;
        }
        if since_pause >= SIGNED_AT_ONCE {
            since_pause = 0;
            std::thread::sleep(shared.pause);
        }
    }
}

fn says_so(open: &mut Option<Client>, target: SocketAddr, exchange: &Exchange) -> std::io::Result<()> {
    if open.is_none() {
        *open = Some(Client::connect(target, ANSWER_MAX)?);
    }
    let Some(client) = open.as_mut() else { return Ok(()) };
    let answer = client.ask(&exchange.request)?;
    if answer == exchange.answer.as_bytes() {
        return Ok(());
    }
    Err(broken(&format!("{:?} instead of {:?}", String::from_utf8_lossy(&answer), exchange.answer)))
}

fn hostile(kind: Kind, means: Means, shared: &Shared<'_>) {
    let mut client = Hostile::new(means, shared.number());
    while !shared.is_over() {
        if let Err(error) = client.attempt(shared.arm.address, shared.number()) {
            shared.failed(kind, error);
        }
        shared.tally.attempts.fetch_add(1, Relaxed);
        std::thread::sleep(shared.pause * kind.pauses());
    }
}

fn answered(
    open: &mut Option<Client>,
    target: SocketAddr,
    request: &[u8],
    answer: Answer,
) -> std::io::Result<()> {
    if open.is_none() {
        *open = Some(Client::connect(target, ANSWER_MAX)?);
    }
    let Some(client) = open.as_mut() else { return Ok(()) };
    client.exchange(request, answer).map(drop)
}

/// Reads the first event and closes the connection.
fn leave_answer(target: SocketAddr, request: &[u8]) -> std::io::Result<()> {
    let mut client = Client::connect(target, ANSWER_MAX)?;
    client.send(request)?;
    let framing = client.answer_framing()?;
    client.first_chunk(framing).map(drop)
}

/// Sends half of the request and closes the connection.
fn leave_upload(target: SocketAddr, request: &[u8]) -> std::io::Result<()> {
    Client::connect(target, ANSWER_MAX)?.send(&request[..request.len() / 2])
}

/// The parts of a client's requests.
enum Parts {
    Messages { conversation: Box<Conversation>, answer: Answer, pace_us: u64 },
    File(Vec<u8>),
}

impl Parts {
    fn new(kind: Kind, nonce: u64) -> Parts {
        let messages = |body_bytes, bodies: Bodies, answer, pace_us| {
            let turns = bodies.turns(body_bytes);
            let script = Script::new(body_bytes, bodies, turns, answer != Answer::Json);
            Parts::Messages { conversation: Box::new(Conversation::new(&script, nonce)), answer, pace_us }
        };
        match kind {
            Kind::Talks { body_bytes, bodies } => messages(body_bytes, bodies, Answer::Json, 0),
            Kind::Streams { body_bytes } => messages(body_bytes, Bodies::Plain, Answer::Sse, 200),
            // Slow enough that the client is gone long before the end.
            Kind::LeavesAnswer => messages(24 * KB, Bodies::Plain, Answer::Sse, 2_000),
            Kind::LeavesUpload => messages(200 * KB, Bodies::Plain, Answer::Json, 0),
            _ => Parts::File((0..UPLOAD_BYTES).map(|at| (at * 31 % 251) as u8).collect()),
        }
    }

    /// The whole message, with the digest that the mock checks on arrival, unless the arm may respell it.
    fn request(&mut self, arm: &Running, nonce: u64) -> Vec<u8> {
        let mut written = Vec::new();
        let (path, answer, pace_us, body): (_, _, _, &[u8]) = match self {
            Parts::Messages { conversation, answer, pace_us } => {
                conversation.next(nonce, &mut written);
                ("/v1/messages", *answer, *pace_us, &written)
            }
            Parts::File(bytes) => {
                bytes[..8].copy_from_slice(&nonce.to_be_bytes());
                ("/v1/files", Answer::Json, 0, bytes)
            }
        };
        let digest = match path {
            "/v1/messages" if arm.adds_bytes > 0 => String::new(),
            _ => format!("x-bench-digest: {}\r\n", blake3::hash(body).to_hex()),
        };
        let mut request = format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\nx-api-key: bench-key\r\n\
             anthropic-version: 2023-06-01\r\nx-bench-answer: {}\r\nx-bench-pace-us: {pace_us}\r\n\
             {digest}content-length: {}\r\n\r\n",
            arm.address,
            answer.as_str(),
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        request
    }
}

/// With all clients gone, the arm must drop their upstream calls and their files.
fn quiet_again(mock: &mut Worker, watched: u32, files_at_start: usize) -> Fallible<Vec<String>> {
    // One pooled upstream connection per client and a few of the arm's own may stay.
    let files_allowed = files_at_start + CLIENTS.len() + FILES_NOISE as usize;
    let asked = Instant::now();
    loop {
        mock.tell("counts")?;
        let counts: Counts = serde_json::from_str(&mock.hear()?)?;
        let files = procfs::open_files(watched);
        let mut failures = Vec::new();
        if counts.damaged > 0 {
            failures.push(format!("{} bodies arrived altered", counts.damaged));
        }
        if counts.foreign > 0 {
            failures.push(format!("{} requests arrived with a sign of somebody else", counts.foreign));
        }
        if counts.answering > 0 {
            failures.push(format!("{} upstream calls go on without clients", counts.answering));
        }
        if files > files_allowed {
            failures.push(format!("{files} files open without clients, {files_at_start} at start"));
        }
        if failures.is_empty() || asked.elapsed() > QUIET_MAX {
            println!("  children on their parent's prefix: {}", counts.forked);
            return Ok(failures);
        }
        std::thread::sleep(SAMPLE_EVERY);
    }
}

/// The first fifth is warm-up; after it, four quarters that each lie above the one before are growth, and so is a last one
/// far above the first.
fn growth(what: &str, samples: &[f64], noise: f64) -> Option<String> {
    let steady = &samples[samples.len() / 5..];
    let quarter = (steady.len() / 4).max(1);
    let medians: Vec<f64> =
        steady.chunks_exact(quarter).take(4).filter_map(Spread::of).map(|spread| spread.median).collect();
    let (first, last) = (*medians.first()?, *medians.last()?);
    let rising = medians.windows(2).all(|pair| pair[0] < pair[1]);
    let grown = last - first;
    let is_steady = rising && grown > noise.max(first * RISE_MAX);
    (is_steady || grown > noise.max(first * GROWTH_MAX))
        .then(|| format!("{what} keeps growing, quarter by quarter: {medians:.0?}"))
}

fn report_progress(shared: &Shared<'_>, memory_kb: &[f64], files: &[f64]) {
    /// A line about every ten seconds.
    const SAMPLES_PER_LINE: usize = 20;
    if memory_kb.len() % SAMPLES_PER_LINE != 1 {
        return;
    }
    let tally = &shared.tally;
    eprintln!(
        "{} s left: {} answered, {} left early, {:.1} MB, {:.0} files, {} failures",
        shared.deadline.saturating_duration_since(Instant::now()).as_secs(),
        tally.finished.load(Relaxed),
        tally.left.load(Relaxed),
        memory_kb.last().unwrap_or(&0.0) / 1024.0,
        files.last().unwrap_or(&0.0),
        tally.failures.lock().unwrap().len()
    );
}

fn print_spread(what: &str, samples: &[f64], unit: f64) {
    if let Some(Spread { median, min, max }) = Spread::of(samples) {
        println!("  {what}: median {:.1}, {:.1}–{:.1}", median / unit, min / unit, max / unit);
    }
}
