//! The recording: one line of JSON per Messages exchange, written by a thread of its own.
//!
//! An exchange hands its [`Entry`] over and goes on. The thread redacts, serialises and writes. When it is behind
//! by [`QUEUE_LINES`] lines or [`QUEUE_BYTES`] of bodies, lines are dropped and counted. No client ever waits for a
//! disk, and no credential is written.

mod filler;
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
use crate::engine::words::Moment;
use crate::metrics::Metrics;

pub use redact::Redactor;

use super::ExchangeRecord;
use matching::Matching;
use writer::{Writer, with_suffix};

/// The version of the format; a reader refuses a later one.
pub const VERSION: u32 = 1;
/// The most lines that wait to be written.
pub const QUEUE_LINES: usize = 4096;
/// The most bytes of bodies that wait with them.
pub const QUEUE_BYTES: usize = 64 * 1024 * 1024;
/// The longest time for writing the last lines when the process ends.
const FLUSH: Duration = Duration::from_secs(2);

/// The clock of the process.
pub type Now = Arc<dyn Fn() -> Moment + Send + Sync>;

/// The reason why a recording could not be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot record to {path} (record.file): {error}")]
pub struct OpenError {
    path: PathBuf,
    error: std::io::Error,
}

/// The sending end of a recording.
pub struct Recording {
    queue: SyncSender<Job>,
    /// The bytes of bodies in the queue.
    waiting: Arc<AtomicUsize>,
    /// The bodies that are kept of every exchange.
    bodies: Bodies,
    /// The exchanges whose bodies are kept in full.
    matching: Arc<Matching>,
    metrics: Arc<Metrics>,
}

/// An exchange that is to be written.
#[derive(Debug, Default)]
pub struct Entry {
    pub record: ExchangeRecord,
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

/// Collects, while an exchange runs, what the recording keeps besides its record.
pub struct RecordingDraft {
    recording: Arc<Recording>,
    pub entry: Entry,
    /// The betas that went out, if they differ from those that came.
    betas: Vec<String>,
    /// The time of the first content of the answer.
    pub begun: Option<Instant>,
}

impl RecordingDraft {
    pub fn new(recording: &Arc<Recording>) -> RecordingDraft {
        let (entry, betas, begun) = Default::default();
        RecordingDraft { recording: Arc::clone(recording), entry, betas, begun }
    }

    /// Notes the betas that go out instead of those that came.
    pub fn forwards_betas(&mut self, betas: &str) {
        self.betas = beta_list(betas);
    }

    /// Notes the body that goes out.
    pub fn forwards(&mut self, pieces: &[Bytes]) {
        if self.recording.keeps_bodies() {
            self.entry.forwarded = Some(pieces.to_vec());
        }
    }

    /// Notes that the body was refused, and that another goes out instead.
    pub fn refused(&mut self) {
        self.entry.refused = self.entry.forwarded.take();
        self.betas.clear();
    }

    /// Notes that the first content of the answer has come.
    pub fn begun(&mut self) {
        self.begun.get_or_insert_with(Instant::now);
    }

    /// Hands over a Messages exchange that has ended. Others are not recorded.
    pub fn end(self, record: ExchangeRecord) {
        if !record.details.is_messages {
            return;
        }
        let RecordingDraft { recording, mut entry, betas, .. } = self;
        if record.sent == record.received {
            entry.forwarded = None;
        }
        entry.record = ExchangeRecord { v: VERSION, forwarded_betas: betas, ..record };
        recording.take(entry);
    }
}

/// Splits `a,b`.
pub fn beta_list(betas: &str) -> Vec<String> {
    betas.split(',').filter(|beta| !beta.is_empty()).map(String::from).collect()
}

impl Entry {
    fn body_bytes(&self) -> usize {
        let sent = [&self.forwarded, &self.refused].into_iter().flatten().flatten();
        let forwarded = sent.map(Bytes::len).sum::<usize>();
        self.request.as_ref().map_or(0, Bytes::len) + forwarded + self.answer.as_ref().map_or(0, Vec::len)
    }

    /// Returns the record without bodies, with the parent of a child.
    pub fn into_record(self) -> ExchangeRecord {
        ExchangeRecord { parent: self.parent, marks_agents: self.marks_agents, ..self.record }
    }

    /// Returns the record with its bodies, except for credentials.
    fn full(self, redactor: &Redactor) -> ExchangeRecord {
        let text = |bytes: Vec<u8>| redactor.without_secrets(&bytes);
        ExchangeRecord {
            bodies: Bodies::Full.as_str().into(),
            parent: self.parent,
            marks_agents: self.marks_agents,
            request: self.request.and_then(|body| text(body.to_vec())),
            forwarded: self.forwarded.and_then(|pieces| text(pieces.concat())),
            refused: self.refused.and_then(|pieces| text(pieces.concat())),
            message_id: self.message_id,
            answer: self.answer.and_then(text),
            ..self.record
        }
    }

    /// Returns the record with its bodies redacted.
    fn redacted(&self, redactor: &Redactor) -> ExchangeRecord {
        let keep_model = self.record.model != "other" && self.record.model != "none";
        let body = |bytes: &[u8]| redactor.body(bytes, keep_model);
        let text = |text: &String| redactor.text(text);
        ExchangeRecord {
            bodies: Bodies::Redacted.as_str().into(),
            betas: redactor.betas(&self.record.betas),
            forwarded_betas: redactor.betas(&self.record.forwarded_betas),
            parent: self.parent.as_ref().map(|(id, call)| (text(id), call.as_ref().map(text))),
            marks_agents: self.marks_agents,
            request: self.request.as_deref().and_then(body),
            forwarded: self.forwarded.as_ref().and_then(|pieces| body(&pieces.concat())),
            refused: self.refused.as_ref().and_then(|pieces| body(&pieces.concat())),
            message_id: self.message_id.as_ref().map(text),
            answer: self.answer.as_deref().and_then(body),
            ..self.record.clone()
        }
    }

    /// Returns the record without bodies.
    fn bare(&self, redactor: &Redactor) -> ExchangeRecord {
        let betas = redactor.betas(&self.record.betas);
        let forwarded_betas = redactor.betas(&self.record.forwarded_betas);
        ExchangeRecord { bodies: Bodies::Off.as_str().into(), betas, forwarded_betas, ..self.record.clone() }
    }
}

impl Recording {
    /// Starts the recording that the configuration asks for, if it asks for one.
    pub fn start(
        config: &config::Config,
        metrics: &Arc<Metrics>,
        now: Now,
    ) -> Result<Option<Arc<Recording>>, OpenError> {
        let record = &config.record;
        let Some(path) = &record.file else { return Ok(None) };
        let open = |path: PathBuf| {
            Writer::open(&path, record.max_bytes as u64, record.files)
                .map_err(|error| OpenError { path, error })
        };
        let (recording, jobs) = Recording::queue(record.bodies, metrics, now, QUEUE_LINES);
        recording.match_from(record);
        let matched = match &record.matching {
            Some(_) => Some(open(with_suffix(path, "match"))?),
            None => None,
        };
        let thread = RecordingThread {
            writer: open(path.clone())?,
            record: record.clone(),
            redactor: Redactor::new(&key(config.identity.pepper.reveal())),
            matching: Arc::clone(&recording.matching),
            matched,
            metrics: Arc::clone(metrics),
            waiting: Arc::clone(&recording.waiting),
            failed: false,
        };
        // If the thread cannot be started, the queue has no reader: lines are dropped and counted.
        let _ = std::thread::Builder::new().name("record".into()).spawn(move || thread.work(&jobs));
        Ok(Some(Arc::new(recording)))
    }

    /// Creates a recording that is read in this process.
    pub fn to_memory(metrics: &Arc<Metrics>, lines: usize) -> (Arc<Recording>, Entries) {
        let (recording, jobs) = Recording::queue(Bodies::Off, metrics, Arc::new(Moment::default), lines);
        let waiting = Arc::clone(&recording.waiting);
        (Arc::new(recording), Entries { jobs, waiting })
    }

    fn queue(bodies: Bodies, metrics: &Arc<Metrics>, now: Now, lines: usize) -> (Recording, Receiver<Job>) {
        let (queue, jobs) = sync_channel(lines);
        let recording = Recording {
            queue,
            waiting: Arc::default(),
            bodies,
            matching: Arc::new(Matching::new(now)),
            metrics: Arc::clone(metrics),
        };
        (recording, jobs)
    }

    /// Starts to keep the bodies of exchanges that `record.match` names, for `record.match_minutes`.
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

    /// Waits, for a limited time, until all lines so far are written.
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
    /// Returns the entries since the last call.
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

/// The thread that writes.
struct RecordingThread {
    writer: Writer,
    /// The settings at the start.
    record: config::Record,
    redactor: Redactor,
    matching: Arc<Matching>,
    /// The writer of `FILE.match`, once an exchange was matched.
    matched: Option<Writer>,
    metrics: Arc<Metrics>,
    waiting: Arc<AtomicUsize>,
    /// True if the last write failed, so that a warning was logged.
    failed: bool,
}

impl RecordingThread {
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
        let wanted = self.matching.wants(&entry.record);
        let redacted = match bodies {
            Bodies::Off => Some(entry.bare(redactor)),
            Bodies::Redacted => Some(entry.redacted(redactor)),
            Bodies::Full => None,
        };
        let full = if wanted || redacted.is_none() { Some(entry.full(redactor)) } else { None };
        if let Some(record) = redacted.as_ref().or(full.as_ref()) {
            let written = put(&mut self.writer, record);
            self.count(written);
        }
        if let (true, Some(full)) = (wanted, &full) {
            let written = self.matched().and_then(|writer| put(writer, full));
            self.count(written);
        }
    }

    /// Returns the writer of `FILE.match`. It is opened here if `record.match` was set after the start.
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

fn put(writer: &mut Writer, record: &ExchangeRecord) -> Result<(), Unwritten> {
    let mut bytes = serde_json::to_vec(record).map_err(|error| Unwritten::Failed(error.into()))?;
    bytes.push(b'\n');
    if !writer.fits(bytes.len()) {
        return Err(Unwritten::TooLong);
    }
    writer.write(&bytes).map_err(Unwritten::Failed)
}

/// Returns the key of the filler: derived from the pepper, so that restarts and replicas agree, or else random.
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
