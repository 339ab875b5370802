//! forkpoint as its users run it: a process with a log, signals and an exit code.

use std::net::SocketAddr;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::Notify;

use super::peer::Peer;
use super::{get, within};

/// Between two looks at something that changes by itself.
const POLL: std::time::Duration = std::time::Duration::from_millis(50);

pub struct Binary {
    child: Child,
    pub proxy: SocketAddr,
    pub admin: SocketAddr,
    said: Arc<Said>,
}

#[derive(Default)]
struct Said {
    lines: Mutex<Vec<String>>,
    more: Notify,
}

/// A command that inherits nothing that could configure it.
pub fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forkpoint"));
    command.env_clear().kill_on_drop(true).stdin(Stdio::null());
    command
}

impl Binary {
    /// Serves on free ports in front of `upstream`, with settings such as `("LIMITS__STALL_S", "1")`.
    pub async fn serve(upstream: &str, settings: &[(&str, &str)]) -> Binary {
        Binary::start(command(), upstream, settings).await
    }

    /// Serves with a limit of open files that it cannot raise.
    pub async fn serve_with_files(upstream: &str, files: usize) -> Binary {
        Binary::serve_after(&format!("ulimit -n {files}"), upstream, &[]).await
    }

    /// Serves with a single core.
    pub async fn serve_on_one_core(upstream: &str, settings: &[(&str, &str)]) -> Binary {
        let pin = format!("taskset -c -p {} $$ > /dev/null", super::one_core());
        Binary::serve_after(&pin, upstream, settings).await
    }

    /// Serves in the place of a shell that has run a line.
    pub async fn serve_after(line: &str, upstream: &str, settings: &[(&str, &str)]) -> Binary {
        let mut command = Command::new("sh");
        let script = format!("{line}; exec {} \"$@\"", env!("CARGO_BIN_EXE_forkpoint"));
        command.env_clear().kill_on_drop(true).stdin(Stdio::null()).args(["-c", &script, "sh"]);
        Binary::start(command, upstream, settings).await
    }

    async fn start(command: Command, upstream: &str, settings: &[(&str, &str)]) -> Binary {
        Binary::spawn(command, upstream, settings).serving(settings).await
    }

    /// Starts, and does not wait until it serves.
    pub fn begin(upstream: &str, settings: &[(&str, &str)]) -> Binary {
        Binary::spawn(command(), upstream, settings)
    }

    fn spawn(mut command: Command, upstream: &str, settings: &[(&str, &str)]) -> Binary {
        let (mut listen, mut admin) = ("127.0.0.1:0", "127.0.0.1:0");
        for (name, value) in settings {
            match *name {
                "--listen" => {
                    listen = value;
                    continue;
                }
                "--admin-listen" => {
                    admin = value;
                    continue;
                }
                _ => {}
            }
            // Settings of our own carry a section; everything else is the plain environment.
            if name.contains("__") {
                command.env(format!("FORKPOINT_{name}"), value)
            } else {
                command.env(name, value)
            };
        }
        command.args(["serve", "--listen", listen, "--admin-listen", admin, "--upstream", upstream]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let said = Arc::new(Said::default());
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let listening = said.clone();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                listening.lines.lock().unwrap().push(line);
                listening.more.notify_waiters();
            }
        });
        let nowhere = ([0, 0, 0, 0], 0).into();
        Binary { child, proxy: nowhere, admin: nowhere, said }
    }

    /// Waits until it serves.
    pub async fn serving(mut self, settings: &[(&str, &str)]) -> Binary {
        if settings.contains(&("LOG__FORMAT", "json")) {
            let first: serde_json::Value =
                serde_json::from_str(&self.line(r#""serving""#).await).expect("JSON");
            self.proxy = address(first["proxy"].as_str().unwrap());
            self.admin = address(first["admin"].as_str().unwrap());
        } else {
            self.proxy = address(&self.line("  proxy ").await);
            self.admin = address(&self.line("  admin ").await);
            self.line("  off ").await;
        }
        self
    }

    /// Waits for the first line that contains `text`.
    pub async fn line(&self, text: &str) -> String {
        self.lines(text, 1).await.remove(0)
    }

    /// Waits for `count` lines that contain `text`.
    pub async fn lines(&self, text: &str, count: usize) -> Vec<String> {
        within(&format!("{count} lines with {text:?}"), async {
            loop {
                let more = self.said.more.notified();
                let found: Vec<_> = self.said().into_iter().filter(|line| line.contains(text)).collect();
                if found.len() >= count {
                    return found;
                }
                more.await;
            }
        })
        .await
    }

    /// Everything it said so far.
    pub fn said(&self) -> Vec<String> {
        self.said.lines.lock().unwrap().clone()
    }

    /// The request lines of a log in JSON.
    pub async fn records(&self, count: usize) -> Vec<serde_json::Value> {
        let lines = self.lines("forkpoint::request", count).await;
        lines.iter().map(|line| serde_json::from_str(line).expect("a log line in JSON")).collect()
    }

    pub async fn client(&self) -> Peer {
        Peer::connect(self.proxy).await
    }

    /// The status and text of a page of the admin port; metrics are those of now, and no text that others share.
    pub async fn admin(&self, path: &str) -> (u16, String) {
        let asked = std::time::Instant::now();
        within(path, async {
            loop {
                let reply = Peer::connect(self.admin).await.ask(&get_admin(path)).await;
                let age = reply.head.get("x-forkpoint-age-ms").map_or(0, |age| age.parse().unwrap());
                if age <= asked.elapsed().as_millis() {
                    return (reply.status(), String::from_utf8(reply.body).unwrap());
                }
                tokio::time::sleep(POLL).await;
            }
        })
        .await
    }

    /// Sends a signal by its name.
    pub async fn signal(&self, name: &str) {
        let pid = self.child.id().expect("a running process").to_string();
        let sent = Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status().await.unwrap();
        assert!(sent.success());
    }

    pub async fn exit(&mut self) -> ExitStatus {
        within("the process to end", self.child.wait()).await.unwrap()
    }

    /// The most bytes of a file that it may write from now on.
    pub fn limit_files(&self, bytes: Option<u64>) {
        use rustix::process::{Pid, Resource, Rlimit, prlimit};
        let pid = Pid::from_raw(self.child.id().expect("a running process").try_into().unwrap());
        prlimit(pid, Resource::Fsize, Rlimit { current: bytes, maximum: None }).unwrap();
    }

    /// The most memory it ever had, in bytes.
    pub fn peak_memory(&self) -> usize {
        self.status("VmHWM:")
    }

    /// The memory that it has, in bytes.
    pub fn memory(&self) -> usize {
        self.status("VmRSS:")
    }

    fn status(&self, name: &str) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id().unwrap())).unwrap();
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
    }
}

fn get_admin(path: &str) -> Vec<u8> {
    String::from_utf8(get(path)).unwrap().replace("host: here", "host: localhost").into_bytes()
}

fn address(line: &str) -> SocketAddr {
    line.rsplit("http://").next().unwrap().parse().unwrap()
}
