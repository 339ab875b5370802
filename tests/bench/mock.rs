//! The upstream of every arm: one process, one thread per connection, fixed answers.
//!
//! It counts what arrives, because a proxy that drops, repeats or shortens requests would otherwise look
//! fast. Its parent drives it over standard input, one word per line, and ends it by closing that pipe:
//!
//! ```text
//! → counts     ← {"arrivals":1200,"body_bytes":28800000,"damaged":0,"foreign":0,"forked":0,"answering":0}
//! → release    ← (nothing; idle streams go on to their end)
//! ```

use std::io::{self, BufRead, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::answers::{self, Answer, SIGNED_CHILDREN};
use crate::bodies::CHILDREN;
use crate::http1::{Framing, Head, Reader, broken};
use crate::{Fallible, say, signs};

/// Small stacks, since 500 idle streams are 500 threads here and twice that while arms change.
const STACK_BYTES: usize = 128 * 1024;

/// An idle stream that nobody releases ends by itself.
const IDLE_MAX: Duration = Duration::from_secs(120);

/// The text in a forked child for each result of its parent's calls.
const PLACEHOLDER: &[u8] = b"Fork started -- processing in background";

/// The counters of the mock since it started.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Requests whose body arrived to its end.
    pub arrivals: u64,
    pub body_bytes: u64,
    /// Bodies whose digest was not the one that the client announced in `x-bench-digest`.
    pub damaged: u64,
    /// Requests with a sign of somebody else in them.
    pub foreign: u64,
    /// Children that came on their parent's prefix.
    pub forked: u64,
    /// Requests being answered at this moment.
    pub answering: u64,
}

#[derive(Default)]
struct State {
    arrivals: AtomicU64,
    body_bytes: AtomicU64,
    damaged: AtomicU64,
    foreign: AtomicU64,
    forked: AtomicU64,
    answering: AtomicU64,
    releases: Mutex<u64>,
    released: Condvar,
}

pub fn run() -> Fallible<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    say(&listener.local_addr()?.to_string())?;
    let state = Arc::new(State::default());
    let accepting = Arc::clone(&state);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let state = Arc::clone(&accepting);
            let served = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
                // A connection that breaks is the proxy's business; the counts show if it mattered.
                let _ = serve(&state, &stream);
            });
            if let Err(error) = served {
                eprintln!("mock: no thread for a connection: {error}");
            }
        }
    });
    for line in io::stdin().lock().lines() {
        match line?.as_str() {
            "counts" => say(&serde_json::to_string(&state.counts())?)?,
            "release" => state.release(),
            other => return Err(format!("mock: unknown command {other:?}").into()),
        }
    }
    Ok(())
}

impl State {
    fn counts(&self) -> Counts {
        Counts {
            arrivals: self.arrivals.load(SeqCst),
            body_bytes: self.body_bytes.load(SeqCst),
            damaged: self.damaged.load(SeqCst),
            foreign: self.foreign.load(SeqCst),
            forked: self.forked.load(SeqCst),
            answering: self.answering.load(SeqCst),
        }
    }

    fn release(&self) {
        *self.releases.lock().unwrap() += 1;
        self.released.notify_all();
    }

    fn wait_for_release(&self) {
        let releases = self.releases.lock().unwrap();
        let seen = *releases;
        let _ = self.released.wait_timeout_while(releases, IDLE_MAX, |now| *now == seen).unwrap();
    }
}

fn serve(state: &State, stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = Reader::new(stream);
    while let Some(head) = reader.head()? {
        if head.header("expect").is_some() {
            (&mut &*stream).write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        }
        let framing = head.framing(Framing::Length(0))?;
        let wanted = head.header("x-bench-answer").and_then(Answer::named).unwrap_or(Answer::Json);
        let length = match head.header("x-bench-digest") {
            None if matches!(wanted, Answer::Signed | Answer::SignedFanOut) => {
                let mut body = Vec::new();
                let length = reader.body(framing, |piece| body.extend_from_slice(piece))?;
                let sign = sign_of(&head);
                let is_foreign =
                    signs::is_foreign(sign, head.text().as_bytes()) || signs::is_foreign(sign, &body);
                state.foreign.fetch_add(u64::from(is_foreign), SeqCst);
                let results = memchr::memmem::find_iter(&body, PLACEHOLDER).count();
                state.forked.fetch_add(u64::from(results == SIGNED_CHILDREN), SeqCst);
                length
            }
            None if wanted == Answer::Forked => {
                let mut body = Vec::new();
                let length = reader.body(framing, |piece| body.extend_from_slice(piece))?;
                let results = memchr::memmem::find_iter(&body, PLACEHOLDER).count();
                state.forked.fetch_add(u64::from(results == CHILDREN), SeqCst);
                length
            }
            None => reader.body(framing, |_| ())?,
            Some(expected) => {
                let mut digest = blake3::Hasher::new();
                let length = reader.body(framing, |piece| {
                    digest.update(piece);
                })?;
                if digest.finalize().to_hex().as_str() != expected {
                    state.damaged.fetch_add(1, SeqCst);
                }
                length
            }
        };
        let number = state.arrivals.fetch_add(1, SeqCst);
        state.body_bytes.fetch_add(length, SeqCst);
        if let Some(fault) = head.header("x-bench-fault") {
            return (&mut &*stream).write_all(faulty(fault));
        }
        state.answering.fetch_add(1, SeqCst);
        let answered = match wanted {
            Answer::Json => whole(answers::json(), stream),
            Answer::Forked => whole(answers::forked(), stream),
            Answer::FanOut => whole(&answers::fan_out(number), stream),
            Answer::Signed => whole(&answers::signed(sign_of(&head)), stream),
            Answer::SignedFanOut => whole(&answers::signed_fan_out(sign_of(&head)), stream),
            _ => events(state, &head, wanted, stream),
        };
        state.answering.fetch_sub(1, SeqCst);
        answered?;
    }
    Ok(())
}

/// What an upstream says that fails in this way, before it closes the connection.
fn faulty(fault: &str) -> &'static [u8] {
    match fault {
        "cut" => b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"id\":",
        "garbage" => b"HTP/9 whatever\r\n\r\n",
        _ => b"HTTP/1.1 529 overloaded\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
    }
}

fn sign_of(head: &Head) -> &str {
    head.header(signs::HEADER).unwrap_or_default()
}

fn whole(body: &str, mut stream: &TcpStream) -> io::Result<()> {
    let text = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nrequest-id: req_bench\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(text.as_bytes())
}

fn events(state: &State, head: &Head, wanted: Answer, mut stream: &TcpStream) -> io::Result<()> {
    let pace = match head.header("x-bench-pace-us") {
        None => Duration::ZERO,
        Some(text) => Duration::from_micros(text.parse().map_err(|_| broken("pace is no number"))?),
    };
    stream.write_all(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n\
          request-id: req_bench\r\ntransfer-encoding: chunked\r\n\r\n",
    )?;
    for (number, event) in answers::events().iter().enumerate() {
        if number == 1 && wanted == Answer::Idle {
            state.wait_for_release();
        } else if number > 0 && !pace.is_zero() {
            std::thread::sleep(pace);
        }
        stream.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes())?;
    }
    stream.write_all(b"0\r\n\r\n")
}
