//! One run of a script: a real forkpoint before the simulator, on one clock that jumps from event to event.
//!
//! A request comes when it came, or as long after what it follows as it did. Its answer begins and ends as long
//! after it went out as it did. Whoever is held goes out later, and so does all that follows. Nothing sleeps: between
//! two events every clock stands still, and the run waits until each request is at the simulator, held, or done.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use tokio::task::JoinHandle;

use crate::config::Config;
use crate::engine::answer::usage::Usage;
use crate::engine::cache::prices::Prices;
use crate::proxy::Proxy;
use crate::report::{Entries, ExchangeRecord, Recording};
use crate::sim::models::Support;
use crate::sim::recital::HEADER;
use crate::sim::settings::{Options, Signatures, VersionHeader};
use crate::sim::threads::rules::{BrokenAnswers, Refusals, ThreadRules, UnsupportedOptions};
use crate::sim::{Cue, Latency, Recital, Sim, SimConfig, models};

use super::super::Failure;
use super::super::start::{self, ServerTask};
use super::script::{Cause, Part, Script, Stage};

/// Requests that may be on their way at once; more are not recorded at once by one forkpoint.
const UNDERWAY_MAX: usize = 8_192;
/// How often those on their way are looked at.
const LOOK_EVERY: Duration = Duration::from_micros(200);
/// Longer than a busy machine takes: what has not moved for so long is held by something that is no event of ours.
const STUCK_AFTER: Duration = Duration::from_secs(5);
/// And what has not moved for so long never will.
const LOST_AFTER: Duration = Duration::from_secs(20);
/// How far time moves when nothing else moves it.
const IDLE_STEP_MS: u64 = 1_000;
/// Ends a block of a stream; in a text its line feed would be escaped.
const BLOCK_END: &[u8] = b"event: content_block_stop\n";
/// Of a model that nobody described.
const MINIMUM_TOKENS: u64 = 1024;

/// The results of a run.
#[derive(Default)]
pub struct Played {
    /// In the order of the script.
    pub outcomes: Vec<Outcome>,
    /// Exchanges that the simulator refused, or that got no answer, and what was said.
    pub refused: Vec<(usize, String)>,
}

/// The result of one exchange.
pub struct Outcome {
    pub part: usize,
    /// As the simulator billed it.
    pub usage: Usage,
    /// As the forkpoint of this run saw it.
    pub record: ExchangeRecord,
}

/// The events of a run, those of one moment in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    End(usize),
    Begin(usize),
    Arrive(usize),
    /// Whoever is held may have waited long enough.
    Look,
}

const ASKING: u8 = 0;
/// The whole content has come. It comes at once, so that a child that came before the end finds its call.
const BEGUN: u8 = 1;
const DONE: u8 = 2;

/// A request on its way.
struct Call {
    recital: Arc<Recital>,
    stage: Arc<AtomicU8>,
    client: JoinHandle<Answer>,
    scheduled: bool,
}

/// The answer as its client saw it.
enum Answer {
    /// With this request id.
    Given(Option<String>),
    Refused(String),
}

pub struct Run<'a> {
    script: &'a Script,
    sim: Sim,
    proxy: Arc<Proxy>,
    entries: Entries,
    http: reqwest::Client,
    url: String,
    now_ms: u64,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    followers: HashMap<(usize, Stage), Vec<(usize, u64)>>,
    calls: HashMap<usize, Call>,
    /// By the simulator's request id.
    parts: HashMap<String, (usize, Usage)>,
    refused: Vec<(usize, String)>,
    /// Since when only time moves.
    idle_since: Option<Instant>,
    /// Dropped with the run: the proxy stops.
    _server: ServerTask,
}

/// Plays the script once and calls `step` for each exchange that has ended.
pub async fn play(
    script: &Script,
    config: Config,
    prices: &Prices,
    mut step: impl FnMut(),
) -> Result<Played, Failure> {
    let mut run = Run::start(script, config, prices).await?;
    for (index, part) in script.parts.iter().enumerate() {
        match part.after {
            Some(Cause { exchange, at, gap_ms }) => {
                run.followers.entry((exchange, at)).or_default().push((index, gap_ms));
            }
            None => run.events.push(Reverse((part.at_ms, Event::Arrive(index)))),
        }
    }
    let mut records: Vec<ExchangeRecord> = Vec::new();
    while let Some(Reverse((at, event))) = run.next().await? {
        run.move_to(at);
        match event {
            Event::Arrive(index) => run.arrive(index)?,
            Event::Begin(index) => run.begin(index).await?,
            Event::End(index) => {
                run.end(index).await?;
                records.extend(run.entries.take().into_iter().map(|entry| entry.into_record()));
                step();
            }
            Event::Look => {}
        }
        // Whoever was refused has ended too.
        for _ in 0..run.settle().await {
            step();
        }
    }
    records.extend(run.entries.take().into_iter().map(|entry| entry.into_record()));
    let seen = |record: ExchangeRecord| {
        let (part, usage) = *run.parts.get(record.upstream_request_id.as_deref()?)?;
        Some(Outcome { part, usage, record })
    };
    let mut outcomes: Vec<Outcome> = records.into_iter().filter_map(seen).collect();
    outcomes.sort_by_key(|outcome| outcome.part);
    Ok(Played { outcomes, refused: std::mem::take(&mut run.refused) })
}

impl<'a> Run<'a> {
    async fn start(script: &'a Script, mut config: Config, prices: &Prices) -> Result<Run<'a>, Failure> {
        let sim = Sim::start(sim_config(script, prices)).await.map_err(failed("start the simulator"))?;
        sim.clock().freeze();
        config.upstream.url = sim.url().parse().map_err(failed("use the simulator's address"))?;
        config.record.file = None;
        config.record.matching = None;
        let (proxy, metrics) = start::proxy(config, prices.clone())?;
        let (recording, entries) = Recording::to_memory(&metrics, UNDERWAY_MAX);
        let proxy = Arc::new(proxy.recording_to(recording));
        let (server, address) = ServerTask::on_free_port(Arc::clone(&proxy)).await?;
        let url = format!("http://{address}/v1/messages");
        let http = reqwest::Client::builder().no_proxy().build().map_err(failed("make a client"))?;
        proxy.clock().stop();
        Ok(Run {
            script,
            sim,
            proxy,
            entries,
            http,
            url,
            now_ms: 0,
            events: BinaryHeap::new(),
            followers: HashMap::new(),
            calls: HashMap::new(),
            parts: HashMap::new(),
            refused: Vec::new(),
            idle_since: None,
            _server: server,
        })
    }

    /// The next event: one that is planned, or somebody has waited long enough. When there is neither and requests
    /// are still on their way, they wait for time to pass.
    async fn next(&mut self) -> Result<Option<Reverse<(u64, Event)>>, Failure> {
        let planned = self.events.peek().map(|Reverse((at, _))| *at);
        let due = self.proxy.next_due_ms().filter(|ms| *ms > 0).map(|ms| self.now_ms.saturating_add(ms));
        if let Some(due) = due.filter(|due| planned.is_none_or(|planned| *due < planned)) {
            self.idle_since = None;
            return Ok(Some(Reverse((due, Event::Look))));
        }
        if self.events.is_empty() && !self.calls.is_empty() {
            if self.idle_since.get_or_insert_with(Instant::now).elapsed() > LOST_AFTER {
                let lost = self.calls.len();
                return Err(Failure::new(format!("{lost} requests never reached the simulator")));
            }
            tokio::time::sleep(LOOK_EVERY).await;
            self.events.push(Reverse((self.now_ms + IDLE_STEP_MS, Event::Look)));
        } else if self.events.len() > 1 {
            self.idle_since = None;
        }
        Ok(self.events.pop())
    }

    /// Moves every clock.
    fn move_to(&mut self, at_ms: u64) {
        let ms = at_ms.saturating_sub(self.now_ms);
        self.now_ms += ms;
        self.sim.clock().set_ms(self.now_ms);
        self.proxy.clock().skip(ms);
    }

    fn arrive(&mut self, index: usize) -> Result<(), Failure> {
        let part = &self.script.parts[index];
        let ExchangeRecord { message_id, stop_reason, output, .. } = &part.record;
        let (id, why) = (message_id.clone(), stop_reason.clone());
        let recital = Arc::new(Recital::new(id, part.content.clone(), why, output.unwrap_or_default()));
        if !self.sim.recitals().put(index.to_string(), Arc::clone(&recital)) {
            return Err(Failure::new("too many requests of the recording are on their way at once"));
        }
        let stage = Arc::new(AtomicU8::new(ASKING));
        let request = request(&self.http, &self.url, index, part);
        let client = tokio::spawn(ask(request, part.content.len(), Arc::clone(&stage)));
        self.calls.insert(index, Call { recital, stage, client, scheduled: false });
        Ok(())
    }

    async fn begin(&mut self, index: usize) -> Result<(), Failure> {
        let Some(call) = self.calls.get(&index) else { return Ok(()) };
        call.recital.give(Cue::Begin);
        reached(|| call.stage.load(Relaxed) >= BEGUN || call.recital.has_begun()).await?;
        self.followed(index, Stage::Begun);
        Ok(())
    }

    async fn end(&mut self, index: usize) -> Result<(), Failure> {
        let Some(call) = self.calls.remove(&index) else { return Ok(()) };
        call.recital.give(Cue::End);
        reached(|| call.stage.load(Relaxed) >= DONE).await?;
        self.done(index, call).await;
        Ok(())
    }

    async fn done(&mut self, index: usize, call: Call) {
        self.sim.recitals().forget(&index.to_string());
        match (call.client.await, call.recital.billed()) {
            (Ok(Answer::Given(Some(id))), Some(billed)) => {
                let crate::sim::BilledUsage { uncached, cache_read, cache_write_5m, cache_write_1h, output } =
                    billed;
                let usage = Usage { uncached, cache_read, cache_write_5m, cache_write_1h, output };
                self.parts.insert(id, (index, usage));
            }
            (Ok(Answer::Refused(why)), _) => self.refused.push((index, why)),
            _ => self.refused.push((index, "it got no answer".to_owned())),
        }
        self.followed(index, Stage::Begun);
        self.followed(index, Stage::Ended);
    }

    /// An exchange has come so far: whoever follows it from there is next.
    fn followed(&mut self, index: usize, at: Stage) {
        for (follower, gap) in self.followers.remove(&(index, at)).unwrap_or_default() {
            self.events.push(Reverse((self.now_ms.saturating_add(gap), Event::Arrive(follower))));
        }
    }

    /// Waits until every request is at the simulator, held, or done, and says when its answer comes. How many were
    /// refused?
    async fn settle(&mut self) -> usize {
        let mut since = Instant::now();
        let mut last = usize::MAX;
        let mut refusals = 0;
        loop {
            let unasked = self.schedule();
            let refused: Vec<usize> = self
                .calls
                .iter()
                .filter(|(_, call)| call.stage.load(Relaxed) == DONE)
                .map(|(index, _)| *index)
                .collect();
            for index in refused {
                // It was answered before its time: refused.
                if let Some(call) = self.calls.remove(&index) {
                    self.done(index, call).await;
                    refusals += 1;
                }
            }
            if unasked <= self.proxy.waiting() || since.elapsed() > STUCK_AFTER {
                return refusals;
            }
            // Whoever began to wait while time was skipped looks again.
            self.proxy.clock().skip(0);
            if unasked != last {
                (last, since) = (unasked, Instant::now());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Says when the answers begin and end of those that have reached the simulator; how many have not?
    fn schedule(&mut self) -> usize {
        let mut unasked = 0;
        for (index, call) in &mut self.calls {
            let part = &self.script.parts[*index];
            if call.recital.billed().is_none() {
                unasked += usize::from(call.stage.load(Relaxed) < DONE);
            } else if !std::mem::replace(&mut call.scheduled, true) {
                let begins = self.now_ms + part.to_begin_ms;
                self.events.push(Reverse((begins, Event::Begin(*index))));
                self.events.push(Reverse((begins + part.to_end_ms, Event::End(*index))));
            }
        }
        unasked
    }
}

async fn reached(holds: impl Fn() -> bool) -> Result<(), Failure> {
    let since = Instant::now();
    while !holds() {
        if since.elapsed() > LOST_AFTER {
            return Err(Failure::new("an answer of the simulator never came through"));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Ok(())
}

/// The request as it was, under digests instead of names.
fn request(http: &reqwest::Client, url: &str, index: usize, part: &Part) -> reqwest::RequestBuilder {
    let record = &part.record;
    let tenant = record.tenant.as_deref().unwrap_or("nobody");
    let mut request = http
        .post(url)
        .header("content-type", "application/json")
        .header("anthropic-version", "2023-06-01")
        .header(HEADER, index.to_string())
        .body(record.request.clone().unwrap_or_default());
    request = match record.reason.as_str() {
        // What made it so was in the credential.
        "oauth" => request.header("authorization", format!("Bearer sk-ant-oat-{tenant}@{tenant}")),
        "signed" => request.header("x-api-key", format!("{tenant}@{tenant}")).header("signature", "any"),
        _ => request.header("x-api-key", format!("{tenant}@{tenant}")),
    };
    if !record.betas.is_empty() {
        request = request.header("anthropic-beta", record.betas.join(","));
    }
    let session = if record.marks_agents { "x-claude-code-session-id" } else { "x-forkpoint-session" };
    let hints = [
        (session, &record.session),
        ("x-claude-code-agent-id", &record.agent),
        ("user-agent", &record.client),
        ("x-forkpoint-mode", &record.asked_mode),
        ("x-forkpoint-parent", &record.parent.as_ref().map(|(id, _)| id.clone())),
        ("x-forkpoint-tool-use", &record.parent.as_ref().and_then(|(_, call)| call.clone())),
    ];
    for (name, value) in hints {
        if let Some(value) = value {
            request = request.header(name, value);
        }
    }
    request
}

/// Reads an answer to its end.
async fn ask(request: reqwest::RequestBuilder, blocks: usize, stage: Arc<AtomicU8>) -> Answer {
    let answer =
        read(request, blocks, &stage).await.unwrap_or_else(|error| Answer::Refused(error.to_string()));
    stage.store(DONE, Relaxed);
    answer
}

async fn read(request: reqwest::RequestBuilder, blocks: usize, stage: &AtomicU8) -> reqwest::Result<Answer> {
    let answer = request.send().await?;
    if !answer.status().is_success() {
        return Ok(Answer::Refused(said(&answer.bytes().await?)));
    }
    let id = answer.headers().get("request-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
    let mut chunks = answer.bytes_stream();
    let (mut tail, mut ended): (Vec<u8>, usize) = Default::default();
    while let Some(chunk) = chunks.next().await {
        tail.extend_from_slice(&chunk?);
        ended += memchr::memmem::find_iter(&tail, BLOCK_END).count();
        if ended >= blocks {
            stage.store(BEGUN, Relaxed);
        }
        // Enough to find the next one wherever a chunk ends, and too little to find one twice.
        let keep = tail.len().saturating_sub(BLOCK_END.len() - 1);
        tail.drain(..keep);
    }
    Ok(Answer::Given(id))
}

/// The message of an error, as the API says it.
fn said(body: &[u8]) -> String {
    let error: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    error["error"]["message"].as_str().unwrap_or("it was refused").to_owned()
}

/// A simulator that takes what the real one took.
fn sim_config(script: &Script, prices: &Prices) -> SimConfig {
    let mut config = SimConfig { latency: Latency::none(), ..SimConfig::default() };
    config.rules.signatures = Signatures::Ignored;
    config.rules.version_header = VersionHeader::Optional;
    config.rules.options = Options::Taken;
    config.rules.threads = ThreadRules {
        markers: config.rules.breakpoints,
        lifetime_s: u64::MAX,
        unsupported_options: UnsupportedOptions::Accepted,
        broken_answers: BrokenAnswers::Held,
        refusals: Refusals::Held,
        ..ThreadRules::default()
    };
    config.limits.recitals = UNDERWAY_MAX;
    for part in &script.parts {
        if models::find(&config.models, &part.model).is_some() {
            continue;
        }
        let facts = prices.facts(&part.model);
        if let Some(mut model) = config.models.first().cloned() {
            model.id = part.model.clone();
            model.binding = models::ThinkingBinding::Free;
            model.minimum_tokens = facts.minimum_tokens.unwrap_or(MINIMUM_TOKENS);
            config.models.push(model);
        }
    }
    for model in &mut config.models {
        // A token per four bytes is a guess, and may be too many for a window that the real ones did fit.
        model.window_tokens = u64::MAX;
        model.system_messages = Support::Yes;
    }
    config
}

fn failed<E: std::fmt::Display>(what: &str) -> impl Fn(E) -> Failure + '_ {
    move |error| Failure::new(format!("cannot {what}: {error}"))
}
