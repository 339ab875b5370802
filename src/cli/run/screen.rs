//! A receipt as a terminal shows it: in its width, with the verdict in colour. A file or a pipe gets it as it is.

use std::io::IsTerminal as _;

use super::super::logging;
use super::super::style::{Style, terminal_has_colours};
use super::receipt::NAME_COLUMNS;

/// A narrower terminal wraps lines itself.
const COLUMNS_MIN: usize = 40;
const COLUMNS_MAX: usize = 120;

/// What shows a receipt.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    /// None if lines may have any length.
    columns: Option<usize>,
    style: Style,
}

impl Screen {
    /// That of standard error.
    pub fn of_stderr() -> Screen {
        let is_terminal = std::io::stderr().is_terminal();
        let columns = is_terminal.then(|| logging::columns().clamp(COLUMNS_MIN, COLUMNS_MAX));
        Screen { columns, style: Style { colour: is_terminal && terminal_has_colours() } }
    }

    /// Returns the text as it is written there.
    pub fn show(self, receipt: &str) -> String {
        let mut out = String::new();
        for (index, line) in receipt.lines().enumerate() {
            let lines = match self.columns {
                Some(columns) => wrapped(line, columns),
                None => vec![line.to_owned()],
            };
            for line in lines {
                out += &self.painted(index == 0, &line);
                out.push('\n');
            }
        }
        out
    }

    fn painted(self, is_verdict: bool, line: &str) -> String {
        match line {
            _ if is_verdict && line.starts_with("saved -") => self.style.bad(line),
            _ if is_verdict && line.starts_with("saved $") => self.style.good(line),
            _ if is_verdict || line.starts_with("  warning ") => self.style.paint("33", line),
            _ => line.to_owned(),
        }
    }
}

/// The line in lines of at most this many columns; what follows is below the text of a line that has a name.
fn wrapped(line: &str, columns: usize) -> Vec<String> {
    let indent = if line.starts_with("  ") { NAME_COLUMNS } else { 2 };
    let mut lines = Vec::new();
    let mut rest = line.to_owned();
    while rest.chars().count() > columns {
        let end = rest.char_indices().nth(columns + 1).map_or(rest.len(), |(end, _)| end);
        // What is before the indent is no place to part a line.
        let Some(space) = rest[..end].rfind(' ').filter(|space| *space > indent) else { break };
        let following = format!("{:indent$}{}", "", rest[space..].trim_start());
        rest.truncate(space);
        lines.push(std::mem::replace(&mut rest, following));
    }
    lines.push(rest);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::golden::assert_golden;
    use crate::cli::run::receipt::samples;

    #[test]
    fn receipts_fit_the_terminal_and_colours_change_no_other_character() {
        for (name, receipt) in samples() {
            for columns in [80, 120] {
                let shown =
                    |colour| Screen { columns: Some(columns), style: Style { colour } }.show(&receipt);
                let (plain, coloured) = (shown(false), shown(true));
                assert_golden(&format!("receipt-{name}-{columns}.txt"), &plain);
                assert_golden(&format!("receipt-{name}-{columns}-colour.txt"), &coloured);
                assert!(plain.lines().all(|line| line.chars().count() <= columns), "{plain}");
                let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
                assert_eq!(words(&plain), words(&receipt), "nothing is lost");
                let without = ["\u{1b}[31m", "\u{1b}[32m", "\u{1b}[33m", "\u{1b}[0m"]
                    .iter()
                    .fold(coloured, |text, code| text.replace(code, ""));
                assert_eq!(without, plain);
            }
        }
    }

    #[test]
    fn a_word_that_fits_nowhere_stays_whole() {
        let long = "x".repeat(200);
        assert_eq!(wrapped(&format!("  tokens        {long}"), 80), [format!("  tokens        {long}")]);
        assert_eq!(wrapped("", 80), [""]);
        assert_eq!(wrapped("  cost          a b", 18), ["  cost          a", "                b"]);
    }
}
