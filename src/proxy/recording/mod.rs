//! The recording: one line of JSON per Messages exchange, written by a thread of its own.
//!
//! The exchange hands its [`Entry`] over and goes on. Redaction, JSON and the disk are the thread's business; when
//! it is behind by [`QUEUE_LINES`] lines or [`QUEUE_BYTES`] of bodies, lines are dropped and counted. No client
//! ever waits for a disk, and no credential gets in here.

mod filler;
mod line;
mod matching;
mod redact;
mod writer;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::config::{self, Bodies};
use crate::metrics::Metrics;

pub use super::record::Line;
pub use line::VERSION;
pub use redact::Redactor;

use super::Proxy;
use super::clock::Clock;
use super::record::Witnesses;
use matching::Matching;
use writer::{Writer, with_suffix};

/// Lines that may wait to be written.
pub const QUEUE_LINES: usize = 4096;
/// Bytes of bodies that may wait with them.
pub const QUEUE_BYTES: usize = 64 * 1024 * 1024;
/// How long the last lines may take to be written when the process ends.
const FLUSH: Duration = Duration::from_secs(2);

/// Why a recording could not be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot record to {path} (record.file): {error}")]
pub struct OpenError {
    path: PathBuf,
    error: std::io::Error,
}

/// Takes lines.
pub struct Recording {
    queue: SyncSender<Job>,
    /// Bytes of bodies in the queue.
    waiting: Arc<AtomicUsize>,
    /// Of whom bodies are kept: of everybody, and in full of some.
    bodies: Bodies,
    matching: Arc<Matching>,
    metrics: Arc<Metrics>,
}

/// An exchange that is to be written down.
#[derive(Debug, Default)]
pub struct Entry {
    pub line: Line,
    pub tool: Option<String>,
    pub parent: Option<(String, Option<String>)>,
    pub marks_agents: bool,
    pub request: Option<Bytes>,
    pub forwarded: Option<Vec<Bytes>>,
    pub refused: Option<Vec<Bytes>>,
    pub message_id: Option<String>,
    pub answer: Option<Vec<u8>>,
}

enum Job {
    Write(Box<Entry>),
    Flush(SyncSender<()>),
}

/// What an exchange keeps for its line.
pub struct Tape {
    recording: Arc<Recording>,
    forwarded: Vec<Bytes>,
    refused: Vec<Bytes>,
    /// As they went out, if those are others than came.
    betas: Vec<String>,
    begun: Option<Instant>,
}

impl Tape {
    pub fn new(recording: &Arc<Recording>) -> Tape {
        let (forwarded, refused, betas, begun) = Default::default();
        Tape { recording: Arc::clone(recording), forwarded, refused, betas, begun }
    }

    /// These betas go out instead of those that came.
    pub fn forwards_betas(&mut self, betas: &str) {
        self.betas = line::list(betas);
    }

    /// The body goes out so.
    pub fn forwards(&mut self, pieces: &[Bytes]) {
        if self.recording.keeps_bodies() {
            self.forwarded = pieces.to_vec();
        }
    }

    /// What went out so was refused, and goes out once more otherwise.
    pub fn refused(&mut self) {
        self.refused = std::mem::take(&mut self.forwarded);
        self.betas.clear();
    }

    /// The first content of the answer has come.
    pub fn begun(&mut self) {
        self.begun.get_or_insert_with(Instant::now);
    }
}

impl Entry {
    fn body_bytes(&self) -> usize {
        let sent = [&self.forwarded, &self.refused].into_iter().flatten().flatten();
        let forwarded = sent.map(Bytes::len).sum::<usize>();
        self.request.as_ref().map_or(0, Bytes::len) + forwarded + self.answer.as_ref().map_or(0, Vec::len)
    }

    /// The line without bodies and with what else is known.
    pub fn into_line(self) -> Line {
        Line { tool: self.tool, parent: self.parent, marks_agents: self.marks_agents, ..self.line }
    }

    /// The line with its bodies as they are, credentials aside.
    fn full(self, redactor: &Redactor) -> Line {
        let text = |bytes: Vec<u8>| redactor.without_secrets(&bytes);
        Line {
            bodies: Bodies::Full.as_str().into(),
            tool: self.tool,
            parent: self.parent,
            marks_agents: self.marks_agents,
            request: self.request.and_then(|body| text(body.to_vec())),
            forwarded: self.forwarded.and_then(|pieces| text(pieces.concat())),
            refused: self.refused.and_then(|pieces| text(pieces.concat())),
            message_id: self.message_id,
            answer: self.answer.and_then(text),
            ..self.line
        }
    }

    /// The line with its bodies redacted.
    fn redacted(&self, redactor: &Redactor) -> Line {
        let keep_model = self.line.model != "other" && self.line.model != "none";
        let body = |bytes: &[u8]| redactor.body(bytes, keep_model);
        let text = |text: &String| redactor.text(text);
        Line {
            bodies: Bodies::Redacted.as_str().into(),
            betas: redactor.betas(&self.line.betas),
            forwarded_betas: redactor.betas(&self.line.forwarded_betas),
            tool: self.tool.clone(),
            parent: self.parent.as_ref().map(|(id, call)| (text(id), call.as_ref().map(text))),
            marks_agents: self.marks_agents,
            request: self.request.as_deref().and_then(body),
            forwarded: self.forwarded.as_ref().and_then(|pieces| body(&pieces.concat())),
            refused: self.refused.as_ref().and_then(|pieces| body(&pieces.concat())),
            message_id: self.message_id.as_ref().map(text),
            answer: self.answer.as_deref().and_then(body),
            ..self.line.clone()
        }
    }

    /// The line without bodies.
    fn bare(&self, redactor: &Redactor) -> Line {
        let betas = redactor.betas(&self.line.betas);
        let forwarded_betas = redactor.betas(&self.line.forwarded_betas);
        Line { bodies: Bodies::Off.as_str().into(), betas, forwarded_betas, ..self.line.clone() }
    }
}

impl Recording {
    /// What the configuration asks for, if it asks.
    pub fn start(
        config: &config::Config,
        metrics: &Arc<Metrics>,
        clock: &Arc<Clock>,
    ) -> Result<Option<Arc<Recording>>, OpenError> {
        let record = &config.record;
        let Some(path) = &record.file else { return Ok(None) };
        let open = |path: PathBuf| {
            Writer::open(&path, record.max_bytes as u64, record.files)
                .map_err(|error| OpenError { path, error })
        };
        let (recording, jobs) = Recording::queue(record.bodies, metrics, clock, QUEUE_LINES);
        recording.match_from(record);
        let matched = match &record.matching {
            Some(_) => Some(open(with_suffix(path, "match"))?),
            None => None,
        };
        let scribe = Scribe {
            writer: open(path.clone())?,
            record: record.clone(),
            redactor: Redactor::new(&key(config.identity.pepper.reveal())),
            matching: Arc::clone(&recording.matching),
            matched,
            metrics: Arc::clone(metrics),
            waiting: Arc::clone(&recording.waiting),
            failed: false,
        };
        // If no thread can be had the queue has no reader: lines are dropped and counted.
        let _ = std::thread::Builder::new().name("record".into()).spawn(move || scribe.work(&jobs));
        Ok(Some(Arc::new(recording)))
    }

    /// Lines for somebody in this process.
    pub fn to_memory(metrics: &Arc<Metrics>, lines: usize) -> (Arc<Recording>, Entries) {
        let (recording, jobs) = Recording::queue(Bodies::Off, metrics, &Arc::default(), lines);
        let waiting = Arc::clone(&recording.waiting);
        (Arc::new(recording), Entries { jobs, waiting })
    }

    fn queue(
        bodies: Bodies,
        metrics: &Arc<Metrics>,
        clock: &Arc<Clock>,
        lines: usize,
    ) -> (Recording, Receiver<Job>) {
        let (queue, jobs) = sync_channel(lines);
        let recording = Recording {
            queue,
            waiting: Arc::default(),
            bodies,
            matching: Arc::new(Matching::by(clock)),
            metrics: Arc::clone(metrics),
        };
        (recording, jobs)
    }

    /// Keeps the bodies of whom `record.match` names, for `record.match_minutes` from now on.
    pub fn match_from(&self, record: &config::Record) {
        self.matching.begin(record);
    }

    fn keeps_bodies(&self) -> bool {
        self.bodies != Bodies::Off || self.matching.is_on()
    }

    fn take(&self, mut entry: Entry) {
        if !self.keeps_bodies() {
            (entry.request, entry.forwarded, entry.refused, entry.answer) = (None, None, None, None);
        }
        let bytes = entry.body_bytes();
        if self.waiting.fetch_add(bytes, Relaxed) + bytes > QUEUE_BYTES {
            self.waiting.fetch_sub(bytes, Relaxed);
            return self.dropped("memory");
        }
        if self.queue.try_send(Job::Write(Box::new(entry))).is_err() {
            self.waiting.fetch_sub(bytes, Relaxed);
            self.dropped("queue");
        }
    }

    fn dropped(&self, reason: &str) {
        self.metrics.record_dropped_total.with_label_values(&[reason]).inc();
    }

    /// Waits, a little, until everything before is written.
    pub fn flush(&self) {
        let (done, written) = sync_channel(1);
        let deadline = Instant::now() + FLUSH;
        let mut job = Job::Flush(done);
        while let Err(std::sync::mpsc::TrySendError::Full(back)) = self.queue.try_send(job) {
            if Instant::now() > deadline {
                return;
            }
            job = back;
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = written.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

/// The receiving end of a recording in memory.
pub struct Entries {
    jobs: Receiver<Job>,
    waiting: Arc<AtomicUsize>,
}

impl Entries {
    /// What came since.
    pub fn take(&self) -> Vec<Entry> {
        let jobs = std::iter::from_fn(|| self.jobs.try_recv().ok());
        let entries = jobs.filter_map(|job| match job {
            Job::Write(entry) => {
                self.waiting.fetch_sub(entry.body_bytes(), Relaxed);
                Some(*entry)
            }
            Job::Flush(_) => None,
        });
        entries.collect()
    }
}

impl Proxy {
    /// Records there instead of where the configuration says.
    pub fn recording_to(mut self, recording: Arc<Recording>) -> Proxy {
        self.witnesses = Arc::new(Witnesses { recording: Some(recording), tracer: None });
        self
    }

    pub fn recording(&self) -> Option<&Arc<Recording>> {
        self.witnesses.recording.as_ref()
    }

    pub fn witnesses(&self) -> &Arc<Witnesses> {
        &self.witnesses
    }
}

/// The thread that writes.
struct Scribe {
    writer: Writer,
    /// As it was at the start.
    record: config::Record,
    redactor: Redactor,
    matching: Arc<Matching>,
    /// `FILE.match`, once somebody is matched.
    matched: Option<Writer>,
    metrics: Arc<Metrics>,
    waiting: Arc<AtomicUsize>,
    /// The last write failed, and that was said.
    failed: bool,
}

impl Scribe {
    fn work(mut self, jobs: &Receiver<Job>) {
        while let Ok(job) = jobs.recv() {
            match job {
                Job::Write(entry) => {
                    let bytes = entry.body_bytes();
                    self.write(*entry);
                    self.waiting.fetch_sub(bytes, Relaxed);
                }
                Job::Flush(done) => drop(done.try_send(())),
            }
        }
    }

    fn write(&mut self, entry: Entry) {
        let redactor = &self.redactor;
        let bodies = self.record.bodies;
        let line = match bodies {
            Bodies::Off => entry.bare(redactor),
            Bodies::Redacted => entry.redacted(redactor),
            Bodies::Full => Line::default(),
        };
        let wanted = self.matching.wants(&entry.line);
        let full = (wanted || bodies == Bodies::Full).then(|| entry.full(redactor));
        let written = match (&full, bodies) {
            (Some(full), Bodies::Full) => put(&mut self.writer, full),
            _ => put(&mut self.writer, &line),
        };
        self.count(written);
        if let Some(full) = full.filter(|_| wanted) {
            let written = self.matched().and_then(|writer| put(writer, &full));
            self.count(written);
        }
    }

    /// `FILE.match`; whoever is named while this runs has none yet.
    fn matched(&mut self) -> Result<&mut Writer, Unwritten> {
        let writer = match (self.matched.take(), &self.record.file) {
            (Some(writer), _) => writer,
            (None, Some(path)) => {
                let path = with_suffix(path, "match");
                Writer::open(&path, self.record.max_bytes as u64, self.record.files)
                    .map_err(Unwritten::Failed)?
            }
            (None, None) => return Err(Unwritten::Failed(std::io::ErrorKind::NotFound.into())),
        };
        Ok(self.matched.insert(writer))
    }

    fn count(&mut self, written: Result<(), Unwritten>) {
        match written {
            Ok(()) => {
                self.metrics.record_lines_total.with_label_values::<&str>(&[]).inc();
                self.failed = false;
            }
            Err(Unwritten::TooLong) => {
                self.metrics.record_dropped_total.with_label_values(&["too_long"]).inc();
            }
            Err(Unwritten::Failed(error)) => {
                self.metrics.record_dropped_total.with_label_values(&["write"]).inc();
                if !std::mem::replace(&mut self.failed, true) {
                    tracing::warn!(%error, "the recording cannot be written; lines are lost until it can");
                }
            }
        }
    }
}

enum Unwritten {
    TooLong,
    Failed(std::io::Error),
}

fn put(writer: &mut Writer, line: &Line) -> Result<(), Unwritten> {
    let mut bytes = serde_json::to_vec(line).map_err(|error| Unwritten::Failed(error.into()))?;
    bytes.push(b'\n');
    match writer.fits(bytes.len()) {
        true => writer.write(&bytes).map_err(Unwritten::Failed),
        false => Err(Unwritten::TooLong),
    }
}

/// The key of the filler: the pepper's, so that restarts and replicas agree, or one that nobody knows.
fn key(pepper: &str) -> [u8; 32] {
    use std::hash::{BuildHasher, RandomState};
    if !pepper.is_empty() {
        return blake3::derive_key("forkpoint filler v1", pepper.as_bytes());
    }
    let random: Vec<u8> =
        (0_u64..4).flat_map(|part| RandomState::new().hash_one(part).to_le_bytes()).collect();
    *blake3::hash(&random).as_bytes()
}

#[cfg(test)]
mod tests;
