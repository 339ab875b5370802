//! Colours on a terminal: none where nobody looks, and none with `NO_COLOR`.

use std::io::IsTerminal;

/// Returns true if a terminal may be sent colours.
pub fn terminal_has_colours() -> bool {
    let is_refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    !(is_refused || is_dumb)
}

#[derive(Clone, Copy, Debug)]
pub struct Style {
    pub colour: bool,
}

impl Style {
    /// The style of standard output.
    pub fn of_stdout() -> Style {
        Style { colour: std::io::stdout().is_terminal() && terminal_has_colours() }
    }

    /// The text in the colour with this code (SGR).
    pub fn paint(self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    pub fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }

    pub fn good(self, text: &str) -> String {
        self.paint("32", text)
    }

    pub fn bad(self, text: &str) -> String {
        self.paint("31", text)
    }
}
