//! Logs go to standard error or into a file, written by a thread of their own.
//!
//! A full pipe must not stop the proxy, and a wake-up per line would cost more than the line: lines gather in
//! a buffer, the thread takes all of them every [`GATHER`], and when [`BUFFER_BYTES`] are waiting further
//! lines are dropped, counted, and the count is written as soon as there is room.

use std::fs::File;
use std::io::{self, IsTerminal as _, Write};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

use crate::config::{Log, LogFormat};
use crate::report::{COLUMNS_MAX, LineFormat, LocalTime, TerminalFormat};

use super::Failure;
use super::style::terminal_has_colours;

/// About four thousand lines.
const BUFFER_BYTES: usize = 2 * 1024 * 1024;
/// Short for a person who watches, long for a processor that writes.
const GATHER: Duration = Duration::from_millis(20);
/// Days of a busy agent.
const FILE_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// How long the last lines may take to be written when the process ends.
const FLUSH: Duration = Duration::from_secs(2);

/// Starts logging for the whole process, on standard error.
pub fn start(config: &Log) -> Lines {
    let is_terminal = config.format == LogFormat::Human && io::stderr().is_terminal();
    start_to(config, io::stderr(), if is_terminal { Shape::Terminal } else { Shape::of(config.format) })
}

/// The form of lines.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// For a person who watches: short lines, coloured.
    Terminal,
    /// All fields, as `name=value`.
    Fields,
    Json,
}

impl Shape {
    fn of(format: LogFormat) -> Shape {
        match format {
            LogFormat::Human => Shape::Fields,
            LogFormat::Json => Shape::Json,
        }
    }
}

/// The width of the terminal on standard error, which may change at any time.
pub fn columns() -> usize {
    let size = rustix::termios::tcgetwinsize(io::stderr());
    size.ok().map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0).unwrap_or(COLUMNS_MAX)
}

/// Starts logging into a file. Nobody rotates it, so it ends at [`FILE_BYTES_MAX`].
pub fn append(config: &Log, path: &Path) -> Result<Lines, Failure> {
    let opened = File::options().create(true).append(true).open(path);
    let measured = opened.and_then(|file| file.metadata().map(|meta| (file, meta.len())));
    let (file, length) = measured
        .map_err(|error| Failure::usage(format!("cannot write the log file {}: {error}", path.display())))?;
    let out = BoundedFile { left: FILE_BYTES_MAX.saturating_sub(length), file };
    Ok(start_to(config, out, Shape::of(config.format)))
}

fn start_to(config: &Log, mut out: impl Write + Send + 'static, shape: Shape) -> Lines {
    let lines = Lines::default();
    let taken = lines.clone();
    // If no thread can be had the buffer has no reader, and lines are dropped: never a reason to stop.
    let _ = std::thread::Builder::new().name("log".into()).spawn(move || taken.write_out(&mut out, shape));
    let builder = tracing_subscriber::fmt().with_max_level(config.level).with_writer(lines.clone());
    let format = config.format;
    let _ = match shape {
        Shape::Json => {
            let builder = builder.json().flatten_event(true).with_current_span(false);
            builder.map_event_format(|others| LineFormat { format, others }).try_init()
        }
        Shape::Fields => {
            let builder = builder.with_ansi(false);
            builder.map_event_format(|others| LineFormat { format, others }).try_init()
        }
        Shape::Terminal => {
            let has_colours = terminal_has_colours();
            let builder = builder.with_ansi(has_colours).with_target(false).with_timer(LocalTime);
            let format = |others| TerminalFormat { columns, has_colours, others };
            builder.map_event_format(format).try_init()
        }
    };
    lines
}

/// A file that takes a limited number of bytes.
struct BoundedFile {
    file: File,
    left: u64,
}

impl Write for BoundedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let fits = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let written = if fits == 0 { 0 } else { self.file.write(&bytes[..fits])? };
        self.left -= written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The lines that wait to be written.
#[derive(Clone, Default)]
pub struct Lines(Arc<LineQueue>);

#[derive(Default)]
struct LineQueue {
    waiting: Mutex<QueuedLines>,
    /// Notified when there is something to write.
    filled: Condvar,
    /// Notified when everything is written.
    drained: Condvar,
}

#[derive(Default)]
struct QueuedLines {
    lines: Vec<u8>,
    dropped: u64,
    writing: bool,
}

impl QueuedLines {
    fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.dropped == 0
    }
}

impl Lines {
    /// Waits, a little, until what was logged is written.
    pub fn flush(&self) {
        let busy = |waiting: &mut QueuedLines| waiting.writing || !waiting.is_empty();
        let _ = self.0.drained.wait_timeout_while(self.lock(), FLUSH, busy);
    }

    fn write_out(&self, out: &mut dyn Write, shape: Shape) {
        loop {
            let empty = self.0.filled.wait_while(self.lock(), |waiting| waiting.is_empty());
            drop(empty.unwrap_or_else(PoisonError::into_inner));
            std::thread::sleep(GATHER);
            self.write_batch(out, shape);
        }
    }

    fn write_batch(&self, out: &mut dyn Write, shape: Shape) {
        let mut waiting = self.lock();
        waiting.writing = true;
        let (lines, dropped) = (std::mem::take(&mut waiting.lines), std::mem::take(&mut waiting.dropped));
        drop(waiting);
        let _ = out.write_all(&lines);
        if dropped > 0 {
            let message = "log lines dropped: the reader of the log is too slow";
            let _ = match shape {
                Shape::Json => {
                    writeln!(
                        out,
                        r#"{{"level":"WARN","message":"{message}","dropped":{dropped},"target":"forkpoint::log"}}"#
                    )
                }
                Shape::Fields | Shape::Terminal => writeln!(out, "forkpoint: {dropped} {message}"),
            };
        }
        self.lock().writing = false;
        self.0.drained.notify_all();
    }

    /// Whoever panicked while holding the lock, the lines are still lines.
    fn lock(&self) -> MutexGuard<'_, QueuedLines> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for Lines {
    /// The subscriber writes each line with one call.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut waiting = self.lock();
        let wake = waiting.is_empty();
        if waiting.lines.len() + line.len() > BUFFER_BYTES {
            waiting.dropped += 1;
        } else {
            waiting.lines.extend_from_slice(line);
        }
        drop(waiting);
        if wake {
            self.0.filled.notify_one();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stuck_reader_costs_lines_and_says_how_many() {
        let mut lines = Lines::default();
        let line = vec![b'x'; BUFFER_BYTES / 2];
        for _ in 0..5 {
            lines.write_all(&line).unwrap();
        }
        let mut out = Vec::new();
        lines.write_batch(&mut out, Shape::Fields);
        assert!(out.len() < BUFFER_BYTES + 200);
        assert!(String::from_utf8_lossy(&out).contains("3 log lines dropped"));
        for _ in 0..2 {
            lines.write_all(&vec![b' '; BUFFER_BYTES / 4 * 3]).unwrap();
        }
        let mut out = Vec::new();
        lines.write_batch(&mut out, Shape::Json);
        let said: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!((&said["dropped"], &said["level"]), (&1.into(), &"WARN".into()));
        lines.write_all(b"again").unwrap();
        let mut out = Vec::new();
        lines.write_batch(&mut out, Shape::Json);
        assert_eq!(out, b"again");
    }
}
