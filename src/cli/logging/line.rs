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

/// The target of the lines that are written here.
const EXCHANGES: &str = "forkpoint::request";

pub struct Line<F, T = SystemTime> {
    pub format: LogFormat,
    pub timer: T,
    /// For all other lines.
    pub others: F,
}

impl<S, N, F, T> FormatEvent<S, N> for Line<F, T>
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
        match self.format {
            LogFormat::Human => {
                self.timer.format_time(&mut out)?;
                write!(out, " {:>5} {EXCHANGES}:", metadata.level().as_str())?;
                let mut fields = Human { out, written: Ok(()) };
                event.record(&mut fields);
                fields.written?;
                fields.out.write_char('\n')
            }
            LogFormat::Json => {
                out.write_str("{\"timestamp\":\"")?;
                self.timer.format_time(&mut out)?;
                write!(out, "\",\"level\":\"{}\"", metadata.level().as_str())?;
                let mut fields = Json { out, written: Ok(()) };
                event.record(&mut fields);
                fields.written?;
                writeln!(fields.out, ",\"target\":\"{EXCHANGES}\"}}")
            }
        }
    }
}

/// `name=value`, texts in quotes.
struct Human<'a> {
    out: Writer<'a>,
    written: fmt::Result,
}

impl Human<'_> {
    fn field(&mut self, field: &Field, value: impl FnOnce(&mut Writer<'_>) -> fmt::Result) {
        let out = &mut self.out;
        self.written = self.written.and_then(|()| {
            out.write_char(' ')?;
            out.write_str(field.name())?;
            out.write_char('=')?;
            value(out)
        });
    }
}

impl Visit for Human<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        let plain = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\';
        self.field(field, |out| match value.bytes().all(plain) {
            true => quoted(out, |out| out.write_str(value)),
            false => write!(out, "{value:?}"),
        });
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.field(field, |out| write!(out, "{value}"));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.field(field, |out| out.write_str(if value { "true" } else { "false" }));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.field(field, |out| write!(out, "{value:?}"));
    }
}

/// `,"name":value`; what is no number and no boolean is a text.
struct Json<'a> {
    out: Writer<'a>,
    written: fmt::Result,
}

impl Json<'_> {
    fn field(&mut self, field: &Field, value: impl FnOnce(&mut Writer<'_>) -> fmt::Result) {
        let out = &mut self.out;
        self.written = self.written.and_then(|()| {
            out.write_str(",\"")?;
            out.write_str(field.name())?;
            out.write_str("\":")?;
            value(out)
        });
    }
}

impl Visit for Json<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.field(field, |out| quoted(out, |out| Escaped(out).write_str(value)));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.field(field, |out| write!(out, "{value}"));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.field(field, |out| out.write_str(if value { "true" } else { "false" }));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.field(field, |out| write!(out, "{value}"));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        let text = serde_json::to_string(&value).map_err(|_| fmt::Error);
        self.field(field, |out| out.write_str(&text?));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.field(field, |out| quoted(out, |out| write!(Escaped(out), "{value:?}")));
    }
}

fn quoted(out: &mut Writer<'_>, text: impl FnOnce(&mut Writer<'_>) -> fmt::Result) -> fmt::Result {
    out.write_char('"')?;
    text(out)?;
    out.write_char('"')
}

/// What goes through is fit for a JSON string.
struct Escaped<'a, 'b>(&'a mut Writer<'b>);

impl Write for Escaped<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let special = |c: char| c == '"' || c == '\\' || c < ' ';
        let mut rest = text;
        while let Some(at) = rest.find(special) {
            let (plain, from) = rest.split_at(at);
            self.0.write_str(plain)?;
            let mut chars = from.chars();
            match chars.next() {
                Some('\n') => self.0.write_str("\\n")?,
                Some('\r') => self.0.write_str("\\r")?,
                Some('\t') => self.0.write_str("\\t")?,
                Some('\x08') => self.0.write_str("\\b")?,
                Some('\x0c') => self.0.write_str("\\f")?,
                Some(c @ ('"' | '\\')) => write!(self.0, "\\{c}")?,
                Some(c) => write!(self.0, "\\u{:04x}", c as u32)?,
                None => {}
            }
            rest = chars.as_str();
        }
        self.0.write_str(rest)
    }
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
            let line = |others| Line { format: LogFormat::Human, timer: Noon, others };
            builder.map_event_format(line).into()
        });
        assert_eq!(ours, human);
        let json = |builder: SubscriberBuilder, buffer| {
            let builder = builder.json().flatten_event(true).with_current_span(false);
            builder.with_timer(Noon).with_writer(buffer)
        };
        let theirs = written(|builder, buffer| json(builder, buffer).into());
        let ours = written(|builder, buffer| {
            let line = |others| Line { format: LogFormat::Json, timer: Noon, others };
            json(builder, buffer).map_event_format(line).into()
        });
        assert_eq!(ours, theirs);
        assert_eq!(ours.lines().count(), 15);
    }
}
