//! The log line of an exchange, which has dozens of fields and is written for every request.
//!
//! Its event has three fields, the whole line in each format. A field is formatted only if it is asked for, and
//! [`LineFormat`] or [`TerminalFormat`] asks for the one that is configured. Tracing's formatters would take the record
//! apart, value by value, which costs five times as much. They write all other lines, and an exchange looks as if they
//! had written it.

use std::fmt::{self, Debug, Display};

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::ExchangeRecord;
use super::record::Logged;
use super::terminal::{LocalTime, TerminalLine};
use crate::config::LogFormat;

/// The target of the lines about exchanges.
const EXCHANGES: &str = "forkpoint::request";

const JSON: &str = "json";
const HUMAN: &str = "human";
const TERMINAL: &str = "terminal";

/// Writes the log line of an exchange; that of a failure is a warning.
pub fn log(record: &ExchangeRecord) {
    let (logged, terminal) = (Logged(record), TerminalLine(record));
    let json = JsonFields(&logged);
    if record.is_failure() {
        tracing::warn!(target: EXCHANGES, %json, human = %logged, %terminal);
    } else {
        tracing::info!(target: EXCHANGES, %json, human = %logged, %terminal);
    }
}

/// The format of a log: exchanges as [`log`] hands them over, all other lines by a formatter of tracing.
pub struct LineFormat<F> {
    pub format: LogFormat,
    pub others: F,
}

impl<S, N, F> FormatEvent<S, N> for LineFormat<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut out: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if event.metadata().target() != EXCHANGES {
            return self.others.format_event(context, out, event);
        }
        let level = event.metadata().level().as_str();
        match self.format {
            LogFormat::Human => {
                SystemTime.format_time(&mut out)?;
                write!(out, " {level:>5} {EXCHANGES}:")?;
                write_field(event, HUMAN, &mut out)?;
                out.write_char('\n')
            }
            LogFormat::Json => {
                out.write_str("{\"timestamp\":\"")?;
                SystemTime.format_time(&mut out)?;
                write!(out, "\",\"level\":\"{level}\",")?;
                write_field(event, JSON, &mut out)?;
                writeln!(out, ",\"target\":\"{EXCHANGES}\"}}")
            }
        }
    }
}

/// The format of a log that a person reads in a terminal: exchanges in one line each, all other lines by a formatter of
/// tracing.
pub struct TerminalFormat<F> {
    /// Returns the width of the terminal.
    pub columns: fn() -> usize,
    pub has_colours: bool,
    pub others: F,
}

impl<S, N, F> FormatEvent<S, N> for TerminalFormat<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut out: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if event.metadata().target() != EXCHANGES {
            return self.others.format_event(context, out, event);
        }
        LocalTime.format_time(&mut out)?;
        let columns = (self.columns)();
        let has_colours = self.has_colours;
        let write = move |value: &dyn Debug, out: &mut Writer<'_>| {
            if has_colours { write!(out, " {value:#columns$?}") } else { write!(out, " {value:columns$?}") }
        };
        write_field_by(event, TERMINAL, &write, &mut out)?;
        out.write_char('\n')
    }
}

/// Writes one field of an event.
fn write_field(event: &Event<'_>, name: &'static str, out: &mut Writer<'_>) -> fmt::Result {
    write_field_by(event, name, &|value, out| write!(out, "{value:?}"), out)
}

/// Writes a value of a field.
type WriteValue<'a> = &'a dyn Fn(&dyn Debug, &mut Writer<'_>) -> fmt::Result;

fn write_field_by(
    event: &Event<'_>,
    name: &'static str,
    write: WriteValue<'_>,
    out: &mut Writer<'_>,
) -> fmt::Result {
    let mut one = OneField { name, write, out, result: Ok(()) };
    event.record(&mut one);
    one.result
}

struct OneField<'a, 'w> {
    name: &'static str,
    write: WriteValue<'a>,
    out: &'a mut Writer<'w>,
    result: fmt::Result,
}

impl Visit for OneField<'_, '_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == self.name {
            self.result = (self.write)(value, self.out);
        }
    }
}

/// The fields of a line as members of a JSON object, without its braces.
struct JsonFields<'a>(&'a Logged<'a>);

impl Display for JsonFields<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let object = serde_json::to_string(self.0).map_err(|_| fmt::Error)?;
        f.write_str(object.strip_prefix('{').and_then(|fields| fields.strip_suffix('}')).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::fmt::SubscriberBuilder;

    use super::*;

    /// The part of a line that follows its time, as a subscriber writes it.
    fn written(
        subscriber: impl FnOnce(SubscriberBuilder, Buffer) -> tracing::Dispatch,
        event: impl FnOnce(),
    ) -> String {
        let buffer = Buffer::default();
        tracing::dispatcher::with_default(&subscriber(tracing_subscriber::fmt(), buffer.clone()), event);
        let line = String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap();
        line.split_once('Z').unwrap().1.to_owned()
    }

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn by_us(format: LogFormat, record: &ExchangeRecord) -> String {
        let subscriber = |builder: SubscriberBuilder, buffer: Buffer| match format {
            LogFormat::Human => builder
                .with_ansi(false)
                .map_event_format(|others| LineFormat { format, others })
                .with_writer(move || buffer.clone())
                .into(),
            LogFormat::Json => builder
                .json()
                .map_event_format(|others| LineFormat { format, others })
                .with_writer(move || buffer.clone())
                .into(),
        };
        written(subscriber, || log(record))
    }

    fn by_tracing(format: LogFormat, record: &ExchangeRecord) -> String {
        let subscriber = |builder: SubscriberBuilder, buffer: Buffer| match format {
            LogFormat::Human => builder.with_ansi(false).with_writer(move || buffer.clone()).into(),
            LogFormat::Json => builder
                .json()
                .flatten_event(true)
                .with_current_span(false)
                .with_writer(move || buffer.clone())
                .into(),
        };
        written(subscriber, || {
            let ExchangeRecord { id, config, held_ms, shared_bytes, markers_added, .. } = *record;
            let ExchangeRecord { stream, answer_bytes, duration_ms, overhead_us, .. } = *record;
            let (endpoint, role, plan) = (&*record.endpoint, &*record.role, &*record.plan);
            let (reason, ending, model) = (&*record.reason, &*record.ending, &*record.model);
            let tenant = record.tenant.as_ref().map(tracing::field::display);
            let (status, cost_usd, error) = (record.status, record.cost_usd, record.error.as_deref());
            tracing::warn!(
                target: EXCHANGES,
                id, config, endpoint, role, plan, reason, status, ending, model, stream, tenant, held_ms,
                shared_bytes, markers_added, answer_bytes, cost_usd, error, duration_ms, overhead_us,
            );
        })
    }

    #[test]
    fn a_line_is_the_one_that_tracing_would_write() {
        for text in ["plain", "", "with \"quotes\" and \\", "\u{1}\u{8}\r\n\t\u{7f}", "ä\u{2028}𝄞"] {
            let record = ExchangeRecord {
                id: u64::MAX,
                endpoint: text.to_owned(),
                model: "m".to_owned(),
                stream: true,
                status: Some(200),
                tenant: Some("81f9b6d4".to_owned()),
                cost_usd: Some(0.25),
                error: Some(text.to_owned()),
                ..ExchangeRecord::default()
            };
            for format in [LogFormat::Human, LogFormat::Json] {
                assert_eq!(by_us(format, &record), by_tracing(format, &record));
            }
        }
    }
}
