//! Child processes that cannot outlive the run.
//!
//! Three nets: a `Child` stops its whole process group when dropped; a signal stops all groups and exits;
//! and should this process be killed outright, the kernel tells each child (`setpriv --pdeathsig`).
//! That last one is tied to the thread that started the child, so children start on the main thread.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::Fallible;

/// A server that does not accept connections by then is not coming. Those in Python take their time.
const START_MAX: Duration = Duration::from_secs(60);

/// Time to end on request before it is made to.
const STOP_MAX: Duration = Duration::from_secs(3);

static GROUPS: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Set once a signal came: what fails from then on fails because its children are being stopped.
static STOPPING: AtomicBool = AtomicBool::new(false);

pub struct Child {
    name: String,
    process: std::process::Child,
}

/// A command that runs on these cores and ends with its parent.
pub fn pinned(cores: &str, program: impl AsRef<OsStr>) -> Command {
    let mut command = with_parent("taskset");
    command.args(["-c", cores]).arg(program);
    command
}

/// A command that ends with its parent.
pub fn with_parent(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM"]).arg(program);
    command
}

impl Child {
    pub fn start(name: &str, mut command: Command) -> Fallible<Child> {
        let process =
            command.process_group(0).spawn().map_err(|error| format!("{name} does not start: {error}"))?;
        GROUPS.lock().unwrap().push(process.id());
        Ok(Child { name: name.to_owned(), process })
    }

    /// Starts a server whose output goes to `log`, and waits until it accepts connections.
    pub fn server(name: &str, mut command: Command, listen: SocketAddr, log: &Path) -> Fallible<Child> {
        let file = File::create(log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let mut child = Child::start(name, command)?;
        let started = Instant::now();
        while TcpStream::connect(listen).is_err() {
            if let Some(status) = child.process.try_wait()? {
                let said = std::fs::read_to_string(log).unwrap_or_default();
                return Err(format!("{name} ended at its start ({status}): {}", said.trim()).into());
            }
            if started.elapsed() > START_MAX {
                return Err(format!("{name} does not listen on {listen} after {START_MAX:?}").into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(child)
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Waits until it ends by itself, and fails unless it succeeded.
    pub fn finish(mut self) -> Fallible<()> {
        let status = self.process.wait()?;
        if status.success() { Ok(()) } else { Err(format!("{} failed ({status})", self.name).into()) }
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.process.try_wait(), Ok(None))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let group = self.process.id();
        signal("TERM", group);
        let asked = Instant::now();
        while self.is_running() && asked.elapsed() < STOP_MAX {
            std::thread::sleep(Duration::from_millis(10));
        }
        if self.is_running() {
            eprintln!("{} does not end when asked to; it is killed", self.name);
        }
        // Also when the leader is gone: a worker may have stayed behind.
        signal("KILL", group);
        let killed = Instant::now();
        while self.is_running() && killed.elapsed() < STOP_MAX {
            std::thread::sleep(Duration::from_millis(10));
        }
        GROUPS.lock().unwrap().retain(|other| *other != group);
    }
}

/// A child of our own kind, spoken to in lines over its standard input and output.
pub struct Worker {
    child: Child,
    input: Option<std::process::ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Worker {
    pub fn start(role: &str, cores: &str) -> Fallible<Worker> {
        let mut command = pinned(cores, std::env::current_exe()?);
        command.arg(role).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = Child::start(role, command)?;
        let input = child.process.stdin.take();
        let output = child.process.stdout.take().ok_or("a worker without output")?;
        Ok(Worker { child, input, output: BufReader::new(output) })
    }

    pub fn tell(&mut self, line: &str) -> Fallible<()> {
        let input = self.input.as_mut().ok_or("a worker without input")?;
        writeln!(input, "{line}")?;
        Ok(input.flush()?)
    }

    pub fn hear(&mut self) -> Fallible<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            return Err(format!("the {} process ended early", self.child.name).into());
        }
        Ok(line.trim_end().to_owned())
    }

    pub fn pid(&self) -> u32 {
        self.child.pid()
    }
}

/// A loopback port that was free a moment ago.
pub fn free_address() -> io::Result<SocketAddr> {
    TcpListener::bind("127.0.0.1:0")?.local_addr()
}

/// From now on an interrupt stops every child before it stops us.
pub fn stop_on_signals() -> Fallible<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::spawn(move || {
        let code = runtime.block_on(async {
            use tokio::signal::unix::{SignalKind, signal};
            let mut interrupt = signal(SignalKind::interrupt()).expect("no handler for SIGINT");
            let mut terminate = signal(SignalKind::terminate()).expect("no handler for SIGTERM");
            let mut hang_up = signal(SignalKind::hangup()).expect("no handler for SIGHUP");
            tokio::select! {
                _ = interrupt.recv() => 130,
                _ = terminate.recv() => 143,
                _ = hang_up.recv() => 129,
            }
        });
        STOPPING.store(true, SeqCst);
        let groups = GROUPS.lock().map(|groups| groups.clone()).unwrap_or_default();
        for name in ["TERM", "KILL"] {
            groups.iter().for_each(|group| signal(name, *group));
            std::thread::sleep(Duration::from_millis(300));
        }
        eprintln!("\nstopped by a signal; nothing was reported");
        std::process::exit(code);
    });
    Ok(())
}

/// While a signal is being handled, leaves the last word and the exit code to its handler.
pub fn let_the_signal_win() {
    while STOPPING.load(SeqCst) {
        std::thread::park();
    }
}

/// Through the shell's own `kill`, since the standard library can only kill, not ask.
fn signal(name: &str, group: u32) {
    let _ = Command::new("sh")
        .args(["-c", &format!("kill -s {name} -- -{group}")])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
}
