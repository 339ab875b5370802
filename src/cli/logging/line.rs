//! Writes the line of an exchange, which has dozens of fields and is written for every request, straight into its
//! buffer. What it looks like is what tracing's own formatters make of it; they write all other lines.

use std::fmt::{self, Debug, Write};

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::config::LogFormat;

/// Longer than most lines.
const LINE_BYTES: usize = 1_024;
/// The target of the lines that are written here.
const EXCHANGES: &str = "forkpoint::request";

pub struct LogLineFormat<F, T = SystemTime> {
    pub format: LogFormat,
    pub timer: T,
    /// For all other lines.
    pub others: F,
}

impl<S, N, F, T> FormatEvent<S, N> for LogLineFormat<F, T>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
    T: FormatTime,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut out: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        if metadata.target() != EXCHANGES {
            return self.others.format_event(context, out, event);
        }
        let mut time = String::new();
        self.timer.format_time(&mut Writer::new(&mut time))?;
        let level = metadata.level().as_str();
        let mut line = String::with_capacity(LINE_BYTES);
        match self.format {
            LogFormat::Human => {
                write!(line, "{time} {level:>5} {EXCHANGES}:")?;
                event.record(&mut Human(&mut line));
                line.push('\n');
            }
            LogFormat::Json => {
                write!(line, "{{\"timestamp\":\"{time}\",\"level\":\"{level}\"")?;
                event.record(&mut Json(&mut line));
                writeln!(line, ",\"target\":\"{EXCHANGES}\"}}")?;
            }
        }
        out.write_str(&line)
    }
}

/// `name=value`, texts in quotes. Nothing that is written to a text can fail.
struct Human<'a>(&'a mut String);

impl Human<'_> {
    fn name(&mut self, field: &Field) {
        self.0.push(' ');
        self.0.push_str(field.name());
        self.0.push('=');
    }
}

impl Visit for Human<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        let plain = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\';
        if !value.bytes().all(plain) {
            return self.record_debug(field, &value);
        }
        self.name(field);
        self.0.push('"');
        self.0.push_str(value);
        self.0.push('"');
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.name(field);
        push_number(self.0, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.name(field);
        self.0.push_str(if value { "true" } else { "false" });
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.name(field);
        let _ = write!(self.0, "{value:?}");
    }
}

/// `,"name":value`; what is no number and no boolean is a text.
struct Json<'a>(&'a mut String);

impl Json<'_> {
    fn name(&mut self, field: &Field) {
        self.0.push_str(",\"");
        self.0.push_str(field.name());
        self.0.push_str("\":");
    }
}

impl Visit for Json<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.name(field);
        self.0.push('"');
        push_escaped(self.0, value);
        self.0.push('"');
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.name(field);
        push_number(self.0, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.name(field);
        let _ = write!(self.0, "{value}");
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.name(field);
        self.0.push_str(if value { "true" } else { "false" });
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.name(field);
        self.0.push_str(&serde_json::to_string(&value).unwrap_or_else(|_| "null".to_owned()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

fn push_number(out: &mut String, mut number: u64) {
    const DIGITS_MAX: usize = 20;
    let (mut digits, mut at) = ([b'0'; DIGITS_MAX], DIGITS_MAX);
    while number > 0 || at == DIGITS_MAX {
        at -= 1;
        digits[at] += (number % 10) as u8;
        number /= 10;
    }
    out.push_str(std::str::from_utf8(&digits[at..]).unwrap_or_default());
}

/// Makes a text fit for a JSON string.
fn push_escaped(out: &mut String, text: &str) {
    let is_special = |byte: u8| byte == b'"' || byte == b'\\' || byte < b' ';
    // Nearly every text is plain, which is seen faster than the first letter that is not.
    if !text.bytes().fold(false, |found, byte| found | is_special(byte)) {
        return out.push_str(text);
    }
    let special = |c: char| c.is_ascii() && is_special(c as u8);
    let mut rest = text;
    while let Some(at) = rest.find(special) {
        let (plain, from) = rest.split_at(at);
        out.push_str(plain);
        let mut chars = from.chars();
        match chars.next() {
            Some('\n') => out.push_str("\\n"),
            Some('\r') => out.push_str("\\r"),
            Some('\t') => out.push_str("\\t"),
            Some('\x08') => out.push_str("\\b"),
            Some('\x0c') => out.push_str("\\f"),
            Some(c @ ('"' | '\\')) => out.extend(['\\', c]),
            Some(c) => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            None => {}
        }
        rest = chars.as_str();
    }
    out.push_str(rest);
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::fmt::{MakeWriter, SubscriberBuilder};

    use super::*;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for Buffer {
        type Writer = Buffer;

        fn make_writer(&'a self) -> Buffer {
            self.clone()
        }
    }

    #[derive(Clone, Copy)]
    struct Noon;

    impl FormatTime for Noon {
        fn format_time(&self, out: &mut Writer<'_>) -> fmt::Result {
            out.write_str("noon")
        }
    }

    fn written(subscribe: impl FnOnce(SubscriberBuilder, Buffer) -> tracing::Dispatch) -> String {
        let buffer = Buffer::default();
        let subscriber = subscribe(tracing_subscriber::fmt(), buffer.clone());
        tracing::dispatcher::with_default(&subscriber, || {
            for text in
                ["plain", "", "with \"quotes\" and \\", "\u{1}\u{8}\u{c}\u{1b}\r\n\t\u{7f}", "ä\u{2028}𝄞"]
            {
                tracing::info!(
                    target: "forkpoint::request",
                    id = 7_u64,
                    zero = 0_u64,
                    most = u64::MAX,
                    length = 12_usize,
                    status = Some(200_u16),
                    none = None::<u64>,
                    stream = true,
                    text,
                    kept = Some(text),
                    shown = Some(display(text)),
                    list = ?[text],
                    cost = Some(0.25),
                    dear = 1e21,
                    less = -3_i64,
                    no_number = f64::NAN,
                );
                tracing::warn!(target: "forkpoint::request", short = 1_u8);
                tracing::info!(text, "another line");
            }
        });
        let bytes = buffer.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn lines_are_those_of_the_slower_formatters() {
        let human =
            written(|builder, buffer| builder.with_ansi(false).with_timer(Noon).with_writer(buffer).into());
        let ours = written(|builder, buffer| {
            let builder = builder.with_ansi(false).with_timer(Noon).with_writer(buffer);
            let line = |others| LogLineFormat { format: LogFormat::Human, timer: Noon, others };
            builder.map_event_format(line).into()
        });
        assert_eq!(ours, human);
        let json = |builder: SubscriberBuilder, buffer| {
            let builder = builder.json().flatten_event(true).with_current_span(false);
            builder.with_timer(Noon).with_writer(buffer)
        };
        let theirs = written(|builder, buffer| json(builder, buffer).into());
        let ours = written(|builder, buffer| {
            let line = |others| LogLineFormat { format: LogFormat::Json, timer: Noon, others };
            json(builder, buffer).map_event_format(line).into()
        });
        assert_eq!(ours, theirs);
        assert_eq!(ours.lines().count(), 15);
    }
}
