//! Plays a series on the simulator, directly or through forkpoint, on one clock that jumps from event to event.
//!
//! Nothing sleeps. Between two events every clock stands still, and the play goes on once each request is at the
//! simulator, held, or done. What is answered is given; when, follows from the tokens that the simulator billed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::Instant;

use forkpoint::config::{Config, Mode};
use forkpoint::engine::answer::usage::Usage;
use forkpoint::metrics::Metrics;
use forkpoint::proxy::live::Live;
use forkpoint::proxy::{Proxy, server};
use forkpoint::report::recording::Entry;
use forkpoint::report::{Entries, ExchangeRecord, Recording};
use forkpoint::sim::recital::HEADER;
use forkpoint::sim::{Cue, Latency, Recital, Sim, SimConfig};
use futures_util::StreamExt;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::script::{Fate, Part, Start};
use crate::harness::{PATIENCE, prices, sum};

/// A refusal takes so long.
const REFUSAL_MS: u64 = 30;
/// More entries than a series has requests.
const ENTRIES_MAX: usize = 8_192;
/// Ends a block of a stream.
const BLOCK_END: &[u8] = b"event: content_block_stop\n";

/// How a series reaches the simulator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arm {
    Direct,
    Through(Mode, f64),
}

/// A series that was played.
pub struct Played {
    /// By part.
    pub bills: Vec<Usage>,
    pub lines: Vec<Line>,
    /// The text exposition of the metrics at the end.
    metrics: String,
}

/// The line of a part in the recording, and when it happened: milliseconds since the start.
pub struct Line {
    pub part: usize,
    pub record: ExchangeRecord,
    pub times: Times,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    pub came: u64,
    pub sent: u64,
    pub begun: u64,
    pub ended: u64,
}

impl Played {
    /// The sum of a metric's samples whose labels contain all of `labels`.
    pub fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        sum(&self.metrics, name, labels)
    }
}

/// When answers begin.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub base_ms: u64,
    pub per_token_us: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    End(usize),
    Begin(usize),
    Arrive(usize),
    /// Whoever is held may have waited long enough.
    Look,
}

const ASKING: u8 = 0;
const BEGUN: u8 = 1;
const DONE: u8 = 2;

/// A request on its way.
struct Call {
    recital: Arc<Recital>,
    stage: Arc<AtomicU8>,
    client: JoinHandle<String>,
    is_scheduled: bool,
}

/// forkpoint in front of the simulator.
struct Between {
    proxy: Arc<Proxy>,
    metrics: Arc<Metrics>,
    entries: Entries,
    _stop: watch::Sender<bool>,
}

struct Play<'a> {
    parts: &'a [Part],
    pace: Pace,
    sim: Sim,
    between: Option<Between>,
    url: String,
    http: reqwest::Client,
    now_ms: u64,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    /// How many ends a part still waits for.
    awaited: HashMap<usize, usize>,
    calls: BTreeMap<usize, Call>,
    times: Vec<Times>,
    bills: Vec<Usage>,
    /// By the simulator's request id.
    names: HashMap<String, usize>,
    records: Vec<ExchangeRecord>,
}

/// Plays a series.
pub async fn play(parts: &[Part], pace: Pace, arm: Arm) -> Played {
    let mut play = Play::start(parts, pace, arm).await;
    for (index, part) in parts.iter().enumerate() {
        match &part.start {
            Start::At(at) => play.events.push(Reverse((*at, Event::Arrive(index)))),
            Start::Begun(..) => {}
            Start::Ended(causes, _) => drop(play.awaited.insert(index, causes.len())),
        }
    }
    while let Some((at, event)) = play.next() {
        play.move_to(at);
        match event {
            Event::Arrive(index) => play.arrive(index),
            Event::Begin(index) => play.begin(index).await,
            Event::End(index) => play.end(index).await,
            Event::Look => {}
        }
        play.settle().await;
    }
    play.finish()
}

impl<'a> Play<'a> {
    async fn start(parts: &'a [Part], pace: Pace, arm: Arm) -> Play<'a> {
        let mut config = SimConfig { latency: Latency::none(), ..SimConfig::default() };
        config.limits.journal_requests = 1;
        let sim = Sim::start(config).await.unwrap();
        sim.clock().freeze();
        let (between, url) = match arm {
            Arm::Direct => (None, sim.url()),
            Arm::Through(mode, premium) => {
                let mut config = Config::default();
                config.upstream.url = sim.url().parse().unwrap();
                config.server.mode = mode;
                config.fork.policy.context_premium = premium;
                let (between, url) = Between::start(config).await;
                (Some(between), url)
            }
        };
        Play {
            parts,
            pace,
            sim,
            between,
            url: format!("{url}/v1/messages"),
            http: reqwest::Client::builder().no_proxy().build().unwrap(),
            now_ms: 0,
            events: BinaryHeap::new(),
            awaited: HashMap::new(),
            calls: BTreeMap::new(),
            times: vec![Times::default(); parts.len()],
            bills: vec![Usage::default(); parts.len()],
            names: HashMap::new(),
            records: Vec::new(),
        }
    }

    /// The next event: one that is planned, or somebody has waited long enough.
    fn next(&mut self) -> Option<(u64, Event)> {
        let due = self.between.as_ref().and_then(|between| between.proxy.next_due_ms());
        let due = due.filter(|ms| *ms > 0).map(|ms| self.now_ms + ms);
        let planned = self.events.peek().map(|Reverse((at, _))| *at);
        match (due, planned) {
            (Some(due), planned) if planned.is_none_or(|planned| due < planned) => Some((due, Event::Look)),
            (_, Some(_)) => self.events.pop().map(|Reverse(event)| event),
            _ => {
                assert!(self.calls.is_empty(), "requests that nothing moves: {:?}", self.calls.keys());
                None
            }
        }
    }

    /// Moves every clock.
    fn move_to(&mut self, at_ms: u64) {
        let ms = at_ms.saturating_sub(self.now_ms);
        self.now_ms += ms;
        self.sim.clock().set_ms(self.now_ms);
        if let Some(between) = &self.between {
            between.proxy.clock().skip(ms);
        }
    }

    fn arrive(&mut self, index: usize) {
        let part = &self.parts[index];
        self.times[index].came = self.now_ms;
        let (id, stop) = (Some(format!("msg_{index:05}")), Some(part.stop.to_owned()));
        let recital = Arc::new(Recital::new(id, part.content.clone(), stop, part.output));
        assert!(self.sim.recitals().put(index.to_string(), Arc::clone(&recital)));
        let stage = Arc::new(AtomicU8::new(ASKING));
        let mut request = self
            .http
            .post(&self.url)
            .header("content-type", "application/json")
            .header("anthropic-version", "2023-06-01")
            .header("x-api-key", "sk-money")
            .header(HEADER, index.to_string())
            .body(part.body.clone());
        if let Some(session) = &part.session {
            request = request.header("x-forkpoint-session", session);
        }
        if part.fate == Fate::Refused {
            request = request.header("x-sim-status", "529");
        }
        let client = tokio::spawn(ask(request, part.content.len(), part.fate, Arc::clone(&stage)));
        self.calls.insert(index, Call { recital, stage, client, is_scheduled: false });
    }

    async fn begin(&mut self, index: usize) {
        let call = &self.calls[&index];
        call.recital.give(Cue::Begin);
        // A client that leaves has left before anything else happens.
        let leaves = self.parts[index].fate == Fate::Left;
        let has_begun = || match call.stage.load(Relaxed) {
            DONE => true,
            BEGUN => !leaves,
            _ => !leaves && call.recital.has_begun(),
        };
        spin("the answer begins", has_begun).await;
        self.times[index].begun = self.now_ms;
        for (follower, part) in self.parts.iter().enumerate() {
            if let Start::Begun(cause, gap) = part.start
                && cause == index
            {
                self.events.push(Reverse((self.now_ms + gap, Event::Arrive(follower))));
            }
        }
    }

    async fn end(&mut self, index: usize) {
        let call = self.calls.remove(&index).unwrap();
        call.recital.give(Cue::End);
        spin("the answer ends", || call.stage.load(Relaxed) == DONE).await;
        self.times[index].ended = self.now_ms;
        self.sim.recitals().forget(&index.to_string());
        let id = call.client.await.unwrap();
        // What was refused is not billed.
        self.bills[index] = usage_of(&call.recital).unwrap_or_default();
        if let Some(between) = &mut self.between {
            let records = &mut self.records;
            spin("the answer is recorded", || {
                records.extend(between.entries.take().into_iter().map(Entry::into_record));
                records.iter().rev().any(|record| record.upstream_request_id.as_ref() == Some(&id))
            })
            .await;
        }
        self.names.insert(id, index);
        for (follower, part) in self.parts.iter().enumerate() {
            if let Start::Ended(causes, gap) = &part.start
                && causes.contains(&index)
                && let Some(awaited) = self.awaited.get_mut(&follower)
            {
                *awaited -= 1;
                if *awaited == 0 {
                    self.events.push(Reverse((self.now_ms + gap, Event::Arrive(follower))));
                }
            }
        }
    }

    /// Waits until every request is at the simulator, held, or done, and plans when its answer comes.
    async fn settle(&mut self) {
        let since = Instant::now();
        loop {
            let unasked = self.schedule();
            let waiting = self.between.as_ref().map_or(0, |between| between.proxy.waiting());
            if unasked <= waiting {
                return;
            }
            assert!(since.elapsed() < PATIENCE, "{unasked} requests are nowhere, {waiting} wait");
            if let Some(between) = &self.between {
                // Whoever began to wait while time was skipped looks again.
                between.proxy.clock().skip(0);
            }
            tokio::task::yield_now().await;
        }
    }

    /// Plans the answers of those that have reached the simulator; returns how many have not.
    fn schedule(&mut self) -> usize {
        let mut unasked = 0;
        for (index, call) in &mut self.calls {
            let fate = self.parts[*index].fate;
            let Some(usage) = usage_of(&call.recital) else {
                if fate != Fate::Refused || call.stage.load(Relaxed) != DONE {
                    unasked += 1;
                } else if !std::mem::replace(&mut call.is_scheduled, true) {
                    self.times[*index].sent = self.now_ms;
                    self.events.push(Reverse((self.now_ms + REFUSAL_MS, Event::End(*index))));
                }
                continue;
            };
            if !std::mem::replace(&mut call.is_scheduled, true) {
                let unread = usage.prompt() - usage.cache_read;
                let begins = self.now_ms + self.pace.base_ms + self.pace.per_token_us * unread / 1_000;
                self.times[*index].sent = self.now_ms;
                self.events.push(Reverse((begins, Event::Begin(*index))));
                let ends = begins + if fate == Fate::Left { 1 } else { self.parts[*index].to_end_ms };
                self.events.push(Reverse((ends, Event::End(*index))));
            }
        }
        unasked
    }

    fn finish(self) -> Played {
        let line = |record: ExchangeRecord| {
            let part = self.names[record.upstream_request_id.as_deref().unwrap()];
            Line { part, record, times: self.times[part] }
        };
        let mut lines: Vec<Line> = self.records.into_iter().map(line).collect();
        lines.sort_by_key(|line| line.part);
        let metrics = self.between.map(|between| between.metrics.render().unwrap()).unwrap_or_default();
        Played { bills: self.bills, lines, metrics }
    }
}

impl Between {
    async fn start(config: Config) -> (Between, String) {
        let metrics = Arc::new(Metrics::new().unwrap());
        let (recording, entries) = Recording::to_memory(&metrics, ENTRIES_MAX);
        let proxy = Proxy::new(config, prices(), Arc::clone(&metrics)).unwrap().recording_to(recording);
        let proxy = Arc::new(proxy);
        proxy.clock().stop();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(server::serve(listener, Live::from(Arc::clone(&proxy)), stopped));
        (Between { proxy, metrics, entries, _stop: stop }, url)
    }
}

fn usage_of(recital: &Recital) -> Option<Usage> {
    let billed = recital.billed()?;
    Some(Usage {
        uncached: billed.uncached,
        cache_read: billed.cache_read,
        cache_write_5m: billed.cache_write_5m,
        cache_write_1h: billed.cache_write_1h,
        output: billed.output,
    })
}

/// Lets everybody else go on until a condition holds.
async fn spin(what: &str, mut holds: impl FnMut() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < PATIENCE, "waited too long for: {what}");
        tokio::task::yield_now().await;
    }
}

/// Reads an answer to its end, or until its client leaves; returns its request id.
async fn ask(request: reqwest::RequestBuilder, blocks: usize, fate: Fate, stage: Arc<AtomicU8>) -> String {
    let answer = request.send().await.unwrap();
    let (status, headers) = (answer.status(), answer.headers().clone());
    let id = headers.get("request-id").map(|id| id.to_str().unwrap().to_owned());
    let mut chunks = answer.bytes_stream();
    let mut received: Vec<u8> = Vec::new();
    while let Some(chunk) = chunks.next().await {
        received.extend_from_slice(&chunk.unwrap());
        if memchr::memmem::find_iter(&received, BLOCK_END).count() >= blocks {
            stage.store(BEGUN, Relaxed);
            if fate == Fate::Left {
                break;
            }
        }
    }
    drop(chunks);
    let is_expected = if fate == Fate::Refused { status == 529 } else { status.is_success() };
    assert!(is_expected, "{status}: {}", String::from_utf8_lossy(&received));
    stage.store(DONE, Relaxed);
    id.unwrap()
}
