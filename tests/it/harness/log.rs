//! The log of a forkpoint in this process.

use std::cell::RefCell;
use std::io;
use std::sync::{Arc, Mutex, Once};

use forkpoint::config::LogFormat;
use forkpoint::report::LineFormat;
use serde_json::Value;
use tracing_subscriber::fmt::MakeWriter;

/// The log of the forkpoint on this thread.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

thread_local! {
    static CURRENT: RefCell<Log> = RefCell::default();
}

/// Writes to the log of the thread: each test has its own, and so has all that it starts.
struct ThisThread;

impl MakeWriter<'_> for ThisThread {
    type Writer = Log;

    fn make_writer(&self) -> Log {
        CURRENT.with_borrow(Log::clone)
    }
}

impl Log {
    /// A new one for this thread.
    pub fn start() -> Log {
        static LOGGING: Once = Once::new();
        LOGGING.call_once(|| {
            let json = tracing_subscriber::fmt().json().flatten_event(true).with_writer(ThisThread);
            json.map_event_format(|others| LineFormat { format: LogFormat::Json, others }).init();
        });
        CURRENT.replace(Log::default());
        CURRENT.with_borrow(Log::clone)
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// The lines about requests.
    pub fn records(&self) -> Vec<Value> {
        self.text()
            .lines()
            .filter(|line| is_record(line))
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    pub fn count(&self) -> usize {
        self.text().lines().filter(|line| is_record(line)).count()
    }
}

fn is_record(line: &str) -> bool {
    line.contains("forkpoint::request")
}
