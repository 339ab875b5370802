//! A command in a terminal of its own, by `script`, and the screen that its user would see.

use std::process::{ExitStatus, Stdio};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::{PATIENCE, within};

pub struct Terminal {
    child: Child,
    keys: ChildStdin,
    output: ChildStdout,
    /// Bytes that are no whole character yet.
    rest: Vec<u8>,
    pub screen: Screen,
    folder: tempfile::TempDir,
}

/// What was written to a terminal.
pub struct Screen {
    /// Every character that came, with its escapes.
    pub raw: String,
    rows: Vec<Vec<char>>,
    place: (usize, usize),
    /// The escape that is being read.
    escape: Option<String>,
}

impl Terminal {
    /// Runs forkpoint with these words and variables in a terminal of this size.
    pub fn start(words: &str, variables: &[(&str, &str)], columns: usize, rows: usize) -> Terminal {
        let folder = tempfile::tempdir().unwrap();
        let binary = env!("CARGO_BIN_EXE_forkpoint");
        let inside = format!("stty rows {rows} cols {columns}; echo $$ > pid; exec {binary} {words}");
        let mut child = Command::new("script")
            .args(["-q", "-e", "-f", "-c", &inside, "/dev/null"])
            .env_clear()
            .envs([
                ("PATH", "/usr/local/bin:/usr/bin:/bin"),
                ("SHELL", "/bin/sh"),
                ("TERM", "xterm-256color"),
            ])
            .envs([("TZ", "UTC")])
            .envs(variables.iter().copied())
            .current_dir(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let (keys, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Terminal { child, keys, output, rest: Vec::new(), screen: Screen::new(columns, rows), folder }
    }

    pub async fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).await.unwrap();
    }

    /// Waits until the screen is as wanted.
    pub async fn until(&mut self, what: &str, is_there: impl Fn(&Screen) -> bool) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while !is_there(&self.screen) {
            let read = tokio::time::timeout_at(deadline, self.read()).await;
            assert!(matches!(read, Ok(true)), "no {what:?} on this screen:\n{}", self.screen.text());
        }
    }

    /// Waits until this text is on the screen.
    pub async fn shows(&mut self, text: &str) {
        self.until(text, |screen| screen.text().contains(text)).await;
    }

    /// Sends a signal to forkpoint itself.
    pub async fn signal(&self, name: &str) {
        let pid = std::fs::read_to_string(self.folder.path().join("pid")).unwrap();
        let kill = format!("kill -{name} {}", pid.trim());
        assert!(Command::new("sh").args(["-c", &kill]).status().await.unwrap().success());
    }

    /// Reads to the end, and returns the exit code.
    pub async fn ended(&mut self) -> ExitStatus {
        within("the end", async { while self.read().await {} }).await;
        within("the exit", self.child.wait()).await.unwrap()
    }

    /// Reads some bytes; false at the end.
    async fn read(&mut self) -> bool {
        let mut some = [0; 4096];
        let count = self.output.read(&mut some).await.unwrap();
        self.rest.extend_from_slice(&some[..count]);
        let whole = match std::str::from_utf8(&self.rest) {
            Ok(_) => self.rest.len(),
            Err(error) => error.valid_up_to(),
        };
        let text: Vec<u8> = self.rest.drain(..whole).collect();
        String::from_utf8(text).unwrap().chars().for_each(|char| self.screen.write(char));
        count > 0
    }
}

impl Screen {
    fn new(columns: usize, rows: usize) -> Screen {
        Screen { raw: String::new(), rows: vec![vec![' '; columns]; rows], place: (0, 0), escape: None }
    }

    /// The screen as lines, without the blanks behind them.
    pub fn text(&self) -> String {
        let lines = self.rows.iter().map(|row| row.iter().collect::<String>());
        lines.map(|line| format!("{}\n", line.trim_end())).collect()
    }

    fn write(&mut self, char: char) {
        self.raw.push(char);
        if let Some(mut escape) = self.escape.take() {
            escape.push(char);
            let is_whole = escape.len() > 1 && char.is_ascii_alphabetic();
            if is_whole {
                self.act(&escape)
            } else {
                self.escape = Some(escape)
            }
            return;
        }
        match char {
            '\u{1b}' => self.escape = Some(String::new()),
            '\r' => self.place.1 = 0,
            '\n' => self.place.0 += 1,
            char => {
                if let Some(cell) = self.rows.get_mut(self.place.0).and_then(|row| row.get_mut(self.place.1))
                {
                    *cell = char;
                }
                self.place.1 += 1;
            }
        }
    }

    /// Does what an escape says, as far as it matters here.
    fn act(&mut self, escape: &str) {
        if let Some(place) = escape.strip_prefix('[').and_then(|rest| rest.strip_suffix('H')) {
            let (row, column) = place.split_once(';').unwrap_or(("1", "1"));
            self.place = (row.parse::<usize>().unwrap() - 1, column.parse::<usize>().unwrap() - 1);
        } else if escape == "[2J" {
            self.rows.iter_mut().for_each(|row| row.fill(' '));
        }
    }
}
