//! The load generator: its own process on its own core, one thread per keep-alive connection.
//!
//! Closed loop: a connection sends its next request when the last byte of the previous answer is there.
//! Each answer is compared with the mock's bytes, or with the end of a whole one where no mock answers. Its
//! parent drives it over standard input, one job per line:
//!
//! ```text
//! → {"target":…,"conversations":12,"turns":40,…}
//! ← warm       every conversation was opened; the parent reads the CPU time of the arm
//! → go
//! ← {"sent":492,"errors":0,"last_byte_ns":[…],…}
//! ```
//!
//! A job that holds idle streams answers `held` instead of `warm`, and needs no `go`.

use std::io::{self, BufRead, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::answers::{Answer, Expected};
use crate::bodies::{Conversation, Script};
use crate::children::Worker;
use crate::flood;
use crate::http1::{Framing, Reader, broken};
use crate::job::Job;
use crate::{Fallible, say};

/// A request that takes longer counts as an error; the slowest honest one takes a second.
pub const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Idle streams may wait for their release while the driver settles and reads memory.
const HELD_MAX: Duration = Duration::from_secs(100);

/// Errors reported by their text; the others are only counted.
const ERRORS_SHOWN: usize = 3;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    pub sent: u64,
    /// Requests of the flood, which are not measured, and how long it lasted.
    pub flood_sent: u64,
    pub flood_ns: u64,
    /// Of all requests, the flood's included.
    pub body_bytes: u64,
    /// Bytes of the bodies that were measured.
    pub measured_bytes: u64,
    /// The number of bytes by which those were longer than the ones before them in their conversations.
    pub new_bytes: u64,
    pub errors: u64,
    pub error_texts: Vec<String>,
    /// From the end of the warm-up to the last answer.
    pub wall_ns: u64,
    /// Request start to first byte of the answer's body, warm-up left out.
    pub first_byte_ns: Vec<u64>,
    /// Request start to last byte.
    pub last_byte_ns: Vec<u64>,
}

/// Has the load process do a job. `at_start` is called when its warm-up is over.
pub fn order<T>(load: &mut Worker, job: &Job, at_start: impl FnOnce() -> T) -> Fallible<(Outcome, T)> {
    load.tell(&serde_json::to_string(job)?)?;
    match load.hear()?.as_str() {
        "warm" => {}
        other => return Err(format!("load: {other:?} instead of \"warm\"").into()),
    }
    let started = at_start();
    load.tell("go")?;
    Ok((serde_json::from_str(&load.hear()?)?, started))
}

pub fn run() -> Fallible<()> {
    let mut lines = io::stdin().lock().lines();
    while let Some(line) = lines.next() {
        let job: Job = serde_json::from_str(&line?)?;
        let outcome = match job.answer {
            Answer::Idle => hold(&job)?,
            _ => drive(&job, || {
                say("warm")?;
                lines.next().unwrap_or_else(|| Err(broken("no one says when to go on"))).map(drop)
            })?,
        };
        say(&serde_json::to_string(&outcome)?)?;
    }
    Ok(())
}

/// All connections at once; when all are warm and `may_start` returns, the clock starts for all of them together.
fn drive(job: &Job, may_start: impl FnOnce() -> io::Result<()>) -> Fallible<Outcome> {
    let barrier = Barrier::new(job.connections + 1);
    let done = AtomicBool::new(false);
    let script = Script::new(job.body_bytes, job.bodies, job.turns, job.answer.is_streamed());
    let mut total = Outcome::default();
    std::thread::scope(|scope| {
        let (barrier, script) = (&barrier, &script);
        let flood = job.flood.map(|flood| flood::start(scope, flood, job, &done));
        let threads: Vec<_> = (0..job.connections)
            .map(|connection| scope.spawn(move || one_connection(job, script, connection, barrier)))
            .collect();
        barrier.wait();
        let started = may_start();
        barrier.wait();
        for thread in threads {
            total.add(thread.join().expect("a connection's thread ended by panic"));
        }
        done.store(true, Relaxed);
        for thread in flood.into_iter().flatten() {
            total.add(thread.join().expect("a thread of the flood ended by panic"));
        }
        started
    })?;
    Ok(total)
}

fn one_connection(job: &Job, script: &Arc<Script>, connection: usize, barrier: &Barrier) -> Outcome {
    let mut outcome = Outcome::default();
    let rota = job.rota();
    let first_nonce = job.first_nonce + (connection * rota.len()) as u64;
    let mut conversations: Vec<_> =
        (0..rota.len()).map(|number| Conversation::new(script, first_nonce + number as u64)).collect();
    let keys: Vec<_> = (0..rota.len()).map(|number| job.key(connection, number)).collect();
    let mut lengths = vec![0; rota.len()];
    let mut request = Request::new(job);
    let mut client = match Client::connect(job.target, ANSWER_MAX) {
        Ok(client) => Some(client),
        Err(error) => {
            outcome.fail(&format!("connect: {error}"));
            None
        }
    };
    let mut started = Instant::now();
    for (number, conversation) in rota.into_iter().enumerate() {
        if number == job.warmup() {
            barrier.wait();
            barrier.wait();
            started = Instant::now();
        }
        // After a failure the run is invalid anyway; the loop goes on only to meet the others above.
        let Some(open) = client.as_mut() else { continue };
        std::thread::sleep(Duration::from_micros(job.pause_us));
        let answer = job.answer_to(number);
        let length = request.write(&mut conversations[conversation], 0, &keys[conversation], answer);
        let new_bytes = length.saturating_sub(std::mem::replace(&mut lengths[conversation], length));
        outcome.body_bytes += length as u64;
        outcome.sent += 1;
        match open.exchange(&request.message, answer) {
            Ok((first, last)) if number >= job.warmup() => {
                outcome.first_byte_ns.push(first);
                outcome.last_byte_ns.push(last);
                outcome.measured_bytes += length as u64;
                outcome.new_bytes += new_bytes as u64;
            }
            Ok(_) => {}
            Err(error) => {
                outcome.fail(&format!("request {number} of connection {connection}: {error}"));
                client = None;
            }
        }
    }
    outcome.wall_ns = nanoseconds(started);
    outcome
}

/// Opens every stream, reads its first event, says so, and then reads all of them to the end.
fn hold(job: &Job) -> Fallible<Outcome> {
    let mut outcome = Outcome::default();
    let mut held = Vec::new();
    let script = Script::new(job.body_bytes, job.bodies, job.turns, job.answer.is_streamed());
    let mut request = Request::new(job);
    for connection in 0..job.connections {
        let mut conversation = Conversation::new(&script, job.first_nonce + connection as u64);
        outcome.sent += 1;
        let key = job.key(connection, 0);
        outcome.body_bytes += request.write(&mut conversation, 0, &key, job.answer) as u64;
        let opened = Client::connect(job.target, HELD_MAX).and_then(|mut client| {
            client.send(&request.message)?;
            let framing = client.answer_framing()?;
            let first = client.first_chunk(framing)?;
            Ok((client, framing, first))
        });
        match opened {
            Ok(stream) => held.push(stream),
            Err(error) => outcome.fail(&format!("stream {connection}: {error}")),
        }
    }
    say("held")?;
    for (mut client, framing, first) in held {
        let rest = client.compare(framing, Matcher::new(job.answer.expected()).after(first));
        if let Err(error) = rest {
            outcome.fail(&format!("held stream: {error}"));
        }
    }
    Ok(outcome)
}

/// A whole HTTP message, written anew for each request.
pub struct Request {
    head: String,
    pub message: Vec<u8>,
}

impl Request {
    pub fn new(job: &Job) -> Request {
        let head = format!(
            "POST /v1/messages?beta=true HTTP/1.1\r\nhost: {}\r\naccept: application/json\r\n\
             content-type: application/json\r\nuser-agent: bench/1.0 (external, cli)\r\n\
             anthropic-version: 2023-06-01\r\nanthropic-beta: interleaved-thinking-2025-05-14\r\nx-app: cli\r\n\
             x-stainless-lang: js\r\nx-stainless-retry-count: 0\r\nx-bench-pace-us: {}\r\n{}",
            job.target, job.pace_us, job.headers
        );
        Request { head, message: Vec::new() }
    }

    /// Writes the next request of a conversation, to be answered with `answer`, and returns the length of its body.
    /// Past its last turn the conversation is another one, by the number `nonce`.
    pub fn write(&mut self, conversation: &mut Conversation, nonce: u64, key: &str, answer: Answer) -> usize {
        let length = conversation.next_len();
        self.message.clear();
        let answer = answer.as_str();
        let _ = write!(self.message, "{}x-api-key: {key}\r\nx-bench-answer: {answer}\r\n", self.head);
        let _ = write!(self.message, "content-length: {length}\r\n\r\n");
        let head_len = self.message.len();
        conversation.next(nonce, &mut self.message);
        assert_eq!(self.message.len() - head_len, length, "a body has the length that its head states");
        length
    }
}

impl Outcome {
    pub fn fail(&mut self, text: &str) {
        self.errors += 1;
        if self.error_texts.len() < ERRORS_SHOWN {
            self.error_texts.push(text.to_owned());
        }
    }

    fn add(&mut self, other: Outcome) {
        self.sent += other.sent;
        self.flood_sent += other.flood_sent;
        self.flood_ns = self.flood_ns.max(other.flood_ns);
        self.measured_bytes += other.measured_bytes;
        self.new_bytes += other.new_bytes;
        self.body_bytes += other.body_bytes;
        self.errors += other.errors;
        self.error_texts.extend(other.error_texts);
        self.error_texts.truncate(ERRORS_SHOWN);
        self.wall_ns = self.wall_ns.max(other.wall_ns);
        self.first_byte_ns.extend(other.first_byte_ns);
        self.last_byte_ns.extend(other.last_byte_ns);
    }
}

/// One keep-alive connection to an arm.
pub struct Client {
    stream: TcpStream,
    reader: Reader<TcpStream>,
}

impl Client {
    pub fn connect(target: SocketAddr, answer_max: Duration) -> io::Result<Client> {
        let stream = TcpStream::connect(target)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(answer_max))?;
        stream.set_write_timeout(Some(answer_max))?;
        let reader = Reader::new(stream.try_clone()?);
        Ok(Client { stream, reader })
    }

    /// One request and its whole answer: nanoseconds to its first and its last body byte.
    pub fn exchange(&mut self, request: &[u8], answer: Answer) -> io::Result<(u64, u64)> {
        let started = Instant::now();
        self.send(request)?;
        let framing = self.answer_framing()?;
        let mut first = None;
        let mut matcher = Matcher::new(answer.expected());
        self.reader.body(framing, |piece| {
            first.get_or_insert_with(|| nanoseconds(started));
            matcher.take(piece);
        })?;
        let last = nanoseconds(started);
        matcher.verdict()?;
        Ok((first.unwrap_or(last), last))
    }

    /// One request and its whole answer.
    pub fn ask(&mut self, request: &[u8]) -> io::Result<Vec<u8>> {
        self.send(request)?;
        let framing = self.answer_framing()?;
        let mut answer = Vec::new();
        self.reader.body(framing, |piece| answer.extend_from_slice(piece))?;
        Ok(answer)
    }

    pub fn send(&mut self, request: &[u8]) -> io::Result<()> {
        self.stream.write_all(request)
    }

    /// Reads the head of the answer, which must be a 200 on a connection that stays open.
    pub fn answer_framing(&mut self) -> io::Result<Framing> {
        let head = self.reader.head()?.ok_or_else(|| broken("closed before an answer"))?;
        if head.first_line().split(' ').nth(1) != Some("200") {
            return Err(broken(&format!("answered {:?}", head.first_line())));
        }
        if head.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) {
            return Err(broken("the answer closes a keep-alive connection"));
        }
        head.framing(Framing::UntilClose)
    }

    /// The first chunk of a streamed answer and its length.
    pub fn first_chunk(&mut self, framing: Framing) -> io::Result<usize> {
        if framing != Framing::Chunked {
            return Err(broken("a streamed answer that is not chunked"));
        }
        let length = self.reader.chunk(&mut |_: &[u8]| ())?;
        length.map(|length| length as usize).ok_or_else(|| broken("a streamed answer without events"))
    }

    fn compare(&mut self, framing: Framing, mut matcher: Matcher) -> io::Result<()> {
        self.reader.body(framing, |piece| matcher.take(piece))?;
        matcher.verdict()
    }
}

/// Compares an answer with what is expected while it arrives.
struct Matcher {
    expected: Expected,
    at: usize,
    equal: bool,
    /// The last bytes that came, where only the end is known.
    tail: Vec<u8>,
}

impl Matcher {
    fn new(expected: Expected) -> Matcher {
        Matcher { expected, at: 0, equal: true, tail: Vec::new() }
    }

    /// Skips bytes that were taken elsewhere.
    fn after(mut self, bytes: usize) -> Matcher {
        self.at = bytes;
        self
    }

    fn take(&mut self, piece: &[u8]) {
        let end = self.at + piece.len();
        match self.expected {
            Expected::Exactly(bytes) => self.equal &= bytes.get(self.at..end) == Some(piece),
            Expected::EndingWith(last) => {
                self.tail.extend_from_slice(&piece[piece.len().saturating_sub(last.len())..]);
                self.tail.drain(..self.tail.len().saturating_sub(last.len()));
                self.equal = self.tail == last;
            }
        }
        self.at = end;
    }

    fn verdict(&self) -> io::Result<()> {
        match self.expected {
            Expected::Exactly(bytes) if self.equal && self.at == bytes.len() => Ok(()),
            Expected::Exactly(bytes) => Err(broken(&format!(
                "the answer differs from the mock's: {} bytes came, {} were sent",
                self.at,
                bytes.len()
            ))),
            Expected::EndingWith(_) if self.equal && self.at > 0 => Ok(()),
            Expected::EndingWith(_) => Err(broken(&format!("the answer of {} bytes is not whole", self.at))),
        }
    }
}

pub fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
