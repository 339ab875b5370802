//! Problems of a configuration, and their places.
//!
//! Every problem has the same four parts: its place, its value, what is wrong, and what to do.
//!
//! ```text
//! forkpoint.toml:3: server.listen = "localhost:1": not an IP address with a port
//!   hint: names are not resolved here; write an address such as 127.0.0.1:8787
//! ```
//!
//! Rule: the values of secret keys and of unknown keys (they may be misspelt secrets), and lines that cannot be
//! parsed, are never shown.

use std::fmt;

/// The origin of a value, in the order of the layers: the greatest origin of a key wins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ValueOrigin {
    Default,
    /// The path of the file as it was given, and the line of the value.
    File {
        path: String,
        line: usize,
        /// Set for syntax errors only, where the line is not precise enough.
        column: Option<usize>,
    },
    /// The name of an environment variable.
    Environment(String),
    /// A flag with its dashes.
    Flag(&'static str),
}

/// One problem of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub origin: ValueOrigin,
    /// The key, with its value where that may be shown.
    pub subject: String,
    pub message: String,
    pub hint: String,
}

/// All problems of a configuration; never empty.
#[derive(Debug)]
pub struct Problems(Vec<Problem>);

/// A problem of a value, found by code that does not know its origin.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Complaint {
    pub message: String,
    pub hint: String,
}

impl Complaint {
    pub fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Complaint { message: message.into(), hint: hint.into() }
    }

    pub fn at(self, origin: ValueOrigin, subject: impl Into<String>) -> Problem {
        Problem { origin, subject: subject.into(), message: self.message, hint: self.hint }
    }
}

impl Problems {
    /// Returns the problems in the order of their origins, or `None` if there are none.
    pub(super) fn from_list(mut list: Vec<Problem>) -> Option<Self> {
        list.sort_by(|a, b| a.origin.cmp(&b.origin));
        if list.is_empty() { None } else { Some(Problems(list)) }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter()
    }
}

impl fmt::Display for ValueOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ValueOrigin::Default => f.write_str("default"),
            ValueOrigin::File { path, line, column: None } => write!(f, "{path}:{line}"),
            ValueOrigin::File { path, line, column: Some(column) } => write!(f, "{path}:{line}:{column}"),
            ValueOrigin::Environment(name) => f.write_str(name),
            ValueOrigin::Flag(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.origin)?;
        if !self.subject.is_empty() {
            write!(f, "{}: ", self.subject)?;
        }
        write!(f, "{}\n  hint: {}", self.message, self.hint)
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            1 => f.write_str("1 problem in the configuration")?,
            count => write!(f, "{count} problems in the configuration")?,
        }
        self.0.iter().try_for_each(|problem| write!(f, "\n\n{problem}"))
    }
}

impl std::error::Error for Problems {}

/// The most characters of a value that a message repeats.
const QUOTED_CHARS: usize = 120;

/// Returns a text in quotes that is safe to print: shortened, and with control characters escaped.
pub(super) fn quoted(text: &str) -> String {
    let mut start: String = text.chars().take(QUOTED_CHARS).collect();
    if start.len() < text.len() {
        start.push('…');
    }
    format!("{start:?}")
}

/// Returns a name or path that is safe to print: as it is if it is plain, otherwise in quotes.
pub(super) fn named(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || c.is_ascii_punctuation() && c != '"';
    if !text.is_empty() && text.len() <= QUOTED_CHARS && text.chars().all(plain) {
        text.to_owned()
    } else {
        quoted(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_ordered_and_so_are_the_lines_of_a_file() {
        let line = |line| ValueOrigin::File { path: "f".into(), line, column: None };
        let sorted = [
            ValueOrigin::Default,
            line(2),
            line(10),
            ValueOrigin::Environment("E".into()),
            ValueOrigin::Flag("--f"),
        ];
        assert!(sorted.is_sorted());
    }

    #[test]
    fn foreign_text_cannot_reach_the_terminal_raw_or_without_end() {
        assert_eq!(quoted("a\u{1b}[31m\n"), r#""a\u{1b}[31m\n""#);
        assert!(quoted(&"é".repeat(10_000)).chars().count() < QUOTED_CHARS + 4);
        assert_eq!(named("server.listen"), "server.listen");
        assert_eq!(named("a b"), "\"a b\"");
        assert_eq!(named(""), "\"\"");
        assert_eq!(named("a\u{202e}b"), "\"a\\u{202e}b\"");
    }
}
