//! Logs go to standard error, written by a thread of their own.
//!
//! A full pipe must not stop the proxy: lines wait in a queue of [`QUEUE_LINES`], and when that is full they
//! are dropped and counted, and the count is written as soon as there is room.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

use crate::config::{Log, LogFormat};

/// At about 600 bytes a line, two megabytes.
const QUEUE_LINES: usize = 4096;
/// How long the last lines may take to be written when the process ends.
const FLUSH: Duration = Duration::from_secs(2);

/// Starts logging for the whole process.
pub fn start(config: &Log) -> Flusher {
    let (lines, queue) = sync_channel(QUEUE_LINES);
    let dropped = Arc::new(AtomicU64::new(0));
    let writer = Lines { lines: lines.clone(), dropped: dropped.clone() };
    // If no thread can be had the queue has no reader, and lines are dropped: never a reason to stop.
    let _ = std::thread::Builder::new().name("log".into()).spawn(move || write_lines(&queue, &dropped));
    let builder = tracing_subscriber::fmt().with_max_level(config.level).with_writer(writer);
    let _ = match config.format {
        LogFormat::Json => builder.json().flatten_event(true).with_current_span(false).try_init(),
        LogFormat::Human => builder.with_ansi(false).try_init(),
    };
    Flusher(lines)
}

/// Waits, a little, until what was logged is written.
pub struct Flusher(SyncSender<Entry>);

impl Flusher {
    pub fn flush(self) {
        let (done, written) = sync_channel(1);
        if self.0.try_send(Entry::Flush(done)).is_ok() {
            let _ = written.recv_timeout(FLUSH);
        }
    }
}

enum Entry {
    Line(Vec<u8>),
    Flush(SyncSender<()>),
}

fn write_lines(queue: &Receiver<Entry>, dropped: &AtomicU64) {
    while let Ok(entry) = queue.recv() {
        let mut out = io::stderr().lock();
        match entry {
            Entry::Line(line) => drop(out.write_all(&line)),
            Entry::Flush(done) => drop(done.try_send(())),
        }
        let lost = dropped.swap(0, Relaxed);
        if lost > 0 {
            let _ = writeln!(
                out,
                "forkpoint: {lost} log lines dropped, the reader of standard error is too slow"
            );
        }
    }
}

#[derive(Clone)]
struct Lines {
    lines: SyncSender<Entry>,
    dropped: Arc<AtomicU64>,
}

impl Write for Lines {
    /// The subscriber writes each line with one call.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.lines.try_send(Entry::Line(line.to_vec())).is_err() {
            self.dropped.fetch_add(1, Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Lines;

    fn make_writer(&'a self) -> Lines {
        self.clone()
    }
}
