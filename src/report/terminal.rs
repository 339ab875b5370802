//! The log line of an exchange for a person at a terminal: what came of it and what it cost, in one line.
//!
//! ```text
//! 17:07:20 ✓ child 2/3 turn 1 forked opus-5-5 read 9,167 write 901 $0.0066 (as sent $0.0372) 0.6 s
//! 17:07:21 ✗ plain aligned opus-5-5 529 overloaded_error 0.2 s
//! 17:07:22 ✓ plain left alone opus-5-5 read 0 write 0 $0.0104 0.9 s · it brings no credential
//! ```
//!
//! Times are those of the terminal's time zone. A line that is too long loses its less important parts; a log in JSON
//! has everything.

use std::fmt::{self, Display, Write as _};
use std::time::Duration;

use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

use super::ExchangeRecord;
use super::figures::{NAME_CHARS_MAX, duration, grouped, harmless, usd};
use crate::engine::words::clauses::{CAUSES, ENDINGS, REASONS, clause};
use crate::engine::words::{Ending, Endpoint, Plan, Reason, Role, Why};

/// The widest line, also where a terminal is wider.
pub const COLUMNS_MAX: usize = 120;
/// The columns of `17:07:20 `.
const TIME_COLUMNS: usize = 9;
/// The most characters of a model's name.
const MODEL_CHARS_MAX: usize = 24;
/// Shorter waits are not worth the room.
const HELD_MIN_MS: u64 = 100;

/// The time of day in the terminal's time zone.
pub struct LocalTime;

impl FormatTime for LocalTime {
    fn format_time(&self, out: &mut Writer<'_>) -> fmt::Result {
        write!(out, "{}", jiff::Zoned::now().strftime("%H:%M:%S"))
    }
}

/// The line of an exchange, without its time. The width of the formatter is that of the terminal, and its alternate
/// form has colours.
pub struct TerminalLine<'a>(pub &'a ExchangeRecord);

impl Display for TerminalLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = f.width().unwrap_or(COLUMNS_MAX).min(COLUMNS_MAX).saturating_sub(TIME_COLUMNS);
        let line = Line::of(self.0).fitting(columns);
        let is_coloured = f.alternate();
        let mut left = columns;
        for (index, part) in line.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { " " };
            if left <= separator.len() {
                break;
            }
            left -= separator.len();
            f.write_str(separator)?;
            // Only what is never left out can still be too long.
            let text = harmless(&part.text, left);
            left = left.saturating_sub(text.chars().count());
            match part.colour.code().filter(|_| is_coloured) {
                Some(code) => write!(f, "\x1b[{code}m{text}\x1b[0m")?,
                None => f.write_str(&text)?,
            }
        }
        Ok(())
    }
}

/// The parts of a line, in their order.
struct Line(Vec<Part>);

struct Part {
    text: String,
    colour: Colour,
    /// How soon it is left out where there is no room: the greatest first, and 0 never.
    rank: u8,
    /// True for words that are cut, and never left out.
    is_clause: bool,
}

#[derive(Clone, Copy)]
enum Colour {
    Plain,
    Green,
    Red,
    Yellow,
    Cyan,
    Dim,
}

impl Colour {
    fn code(self) -> Option<u8> {
        match self {
            Colour::Plain => None,
            Colour::Green => Some(32),
            Colour::Red => Some(31),
            Colour::Yellow => Some(33),
            Colour::Cyan => Some(36),
            Colour::Dim => Some(2),
        }
    }
}

impl Line {
    fn of(record: &ExchangeRecord) -> Line {
        let mut line = Line(Vec::new());
        let is_failed = record.is_failure();
        let has_left = record.ending == Ending::ClientLeft.as_str();
        match (is_failed, has_left) {
            (true, _) => line.add("✗", Colour::Red, 0),
            (false, true) => line.add("–", Colour::Yellow, 0),
            (false, false) => line.add("✓", Colour::Green, 0),
        }
        line.add(who(record), Colour::Plain, 0);
        line.add_plan(record);
        if record.details.is_messages {
            let model = record.model.strip_prefix("claude-").unwrap_or(&record.model);
            line.add(harmless(model, MODEL_CHARS_MAX), Colour::Dim, 5);
        }
        if is_failed {
            line.add(cause(record, record.details.fault), Colour::Red, 0);
        } else if has_left {
            line.add(clause(ENDINGS, &record.ending).unwrap_or_default(), Colour::Yellow, 0);
        }
        line.add_bill(record);
        line.add(duration(Duration::from_millis(record.duration_ms)), Colour::Plain, 3);
        if record.held_ms >= HELD_MIN_MS {
            let held = duration(Duration::from_millis(record.held_ms));
            line.add(format!("(held {held})"), Colour::Dim, 9);
        }
        line.add_reason(record);
        line.add_break(record);
        line
    }

    fn add(&mut self, text: impl Into<String>, colour: Colour, rank: u8) {
        self.0.push(Part { text: text.into(), colour, rank, is_clause: false });
    }

    /// Adds words that people look for: everything else is left out before they are cut.
    fn add_clause(&mut self, text: &str, colour: Colour) {
        self.0.push(Part { text: format!("· {text}"), colour, rank: 1, is_clause: true });
    }

    fn add_plan(&mut self, record: &ExchangeRecord) {
        match &*record.plan {
            "forked" => self.add("forked", Colour::Cyan, 0),
            "passthrough" => self.add("left alone", Colour::Yellow, 0),
            plan => self.add(plan, Colour::Plain, 0),
        }
        if let Some(children) = record.fanned_out_children {
            self.add(format!("fans out to {children}"), Colour::Cyan, 3);
        }
    }

    /// Adds tokens and dollars.
    fn add_bill(&mut self, record: &ExchangeRecord) {
        if let Some(usage) = record.usage() {
            let written = usage.cache_write_5m + usage.cache_write_1h;
            self.add(
                format!("read {} write {}", grouped(usage.cache_read), grouped(written)),
                Colour::Plain,
                5,
            );
            if usage.cache_read + written == 0 {
                self.add(format!("uncached {}", grouped(usage.uncached)), Colour::Plain, 8);
            }
        }
        if let Some(cost) = record.cost_usd {
            self.add(usd(cost), Colour::Plain, 2);
            if let Some(as_sent) = record.as_sent_usd {
                let colour = if cost > as_sent + 0.000_05 { Colour::Red } else { Colour::Green };
                self.add(format!("(as sent {})", usd(as_sent)), colour, 7);
            }
        }
    }

    /// Adds why no more was done, unless that goes without saying.
    fn add_reason(&mut self, record: &ExchangeRecord) {
        let is_plain = [Why::Mode, Why::NotAChild].map(Why::as_str).contains(&&*record.reason);
        if is_plain || record.details.fault.is_some() {
            return;
        }
        if let Some(why) = clause(REASONS, &record.reason) {
            let is_left_alone = record.plan == Plan::Passthrough(Reason::Observe).as_str();
            // A child that is not forked is what people ask about; that no breakpoint was added is a detail.
            if is_left_alone || record.role == Role::Child.as_str() {
                self.add_clause(why, Colour::Dim);
            } else {
                self.add(format!("· {why}"), Colour::Dim, 6);
            }
        }
    }

    fn add_break(&mut self, record: &ExchangeRecord) {
        let (Some(cause), Some(tokens)) = (&record.break_cause, record.break_tokens) else { return };
        let why = clause(CAUSES, cause).unwrap_or(cause);
        self.add_clause(&format!("lost {} tokens: {why}", grouped(tokens)), Colour::Yellow);
    }

    /// Leaves out the least important parts until the others fit.
    fn fitting(mut self, columns: usize) -> Line {
        while self.columns() > columns {
            let excess = self.columns() - columns;
            let droppable = self.0.iter_mut().enumerate().filter(|(_, part)| part.rank > 0);
            let Some((index, least)) = droppable.max_by_key(|(_, part)| part.rank) else { break };
            if least.is_clause {
                let room = least.text.chars().count().saturating_sub(excess);
                (least.text, least.rank) = (harmless(&least.text, room), 0);
            } else {
                self.0.remove(index);
            }
        }
        self
    }

    fn columns(&self) -> usize {
        let texts: usize = self.0.iter().map(|part| part.text.chars().count()).sum();
        texts + self.0.len().saturating_sub(1)
    }
}

/// Whose request it is: `child 2/3 turn 1`, `plain`, or the endpoint of what is no Messages call.
fn who(record: &ExchangeRecord) -> String {
    if record.endpoint != Endpoint::Messages.as_str() && record.role == Role::Plain.as_str() {
        return record.endpoint.clone();
    }
    let mut who = record.role.clone();
    if let Some(number) = record.details.child_number {
        let _ = write!(who, " {number}");
        if let Some(children) = record.details.children {
            let _ = write!(who, "/{children}");
        }
    }
    if let Some(turn) = record.child_turn {
        let _ = write!(who, " turn {turn}");
    }
    who
}

/// Why an exchange failed: the reason for which forkpoint answered itself, or what the upstream said.
pub fn cause(record: &ExchangeRecord, fault: Option<&str>) -> String {
    if let Some(fault) = fault {
        return clause(REASONS, fault).map_or_else(|| harmless(fault, NAME_CHARS_MAX), str::to_owned);
    }
    let status = record.status.filter(|status| *status >= 400).map(|status| status.to_string());
    let ending = clause(ENDINGS, &record.ending).map(str::to_owned);
    let error = record.error.as_deref().map(|error| harmless(error, NAME_CHARS_MAX));
    let said: Vec<String> = status.into_iter().chain(error).chain(ending).collect();
    said.join(" ")
}

#[cfg(test)]
mod tests;
