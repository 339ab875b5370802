//! Real Redis servers, on free ports of this machine, that are gone with the test.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Only a guard against hanging.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// One server.
pub struct RedisServer {
    child: Child,
    pub port: u16,
    arguments: Vec<String>,
    folder: tempfile::TempDir,
}

impl RedisServer {
    pub fn start() -> RedisServer {
        RedisServer::start_with(&[])
    }

    /// Starts a server with more arguments.
    pub fn start_with(arguments: &[&str]) -> RedisServer {
        let folder = tempfile::tempdir().unwrap();
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let port = free_port();
        let child = spawn(port, &arguments, folder.path());
        let mut server = RedisServer { child, port, arguments, folder };
        server.wait_until_ready();
        server
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Kills it, as a machine that fails does.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again after a kill, on the same port, and empty.
    pub fn restart(&mut self) {
        self.child = spawn(self.port, &self.arguments, self.folder.path());
        self.wait_until_ready();
    }

    /// Stops it, with all of its connections open.
    pub fn pause(&self) {
        self.signal("-STOP");
    }

    pub fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success(), "kill {signal}");
    }

    /// Sends a command, and returns the answer: the elements of an array as one line each.
    pub fn command(&self, command: &[&str]) -> String {
        self.try_command(command).unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    fn try_command(&self, command: &[&str]) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut request = format!("*{}\r\n", command.len()).into_bytes();
        for word in command {
            request.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
        }
        stream.write_all(&request)?;
        let mut lines = Vec::new();
        read_answer(&mut BufReader::new(stream), &mut lines)?;
        Ok(lines.join("\n"))
    }

    fn wait_until_ready(&mut self) {
        let began = Instant::now();
        let is_ready = |answer: String| answer == "PONG" || answer.starts_with("-NOAUTH");
        while !self.try_command(&["PING"]).is_ok_and(is_ready) {
            let exited = self.child.try_wait().unwrap();
            assert!(exited.is_none(), "redis-server ended: {exited:?}");
            assert!(began.elapsed() < PATIENCE, "redis-server does not answer");
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Three masters that share the slots.
pub struct RedisCluster {
    pub nodes: Vec<RedisServer>,
}

impl RedisCluster {
    pub fn start() -> RedisCluster {
        let buses: Vec<String> = (0..3).map(|_| free_port().to_string()).collect();
        let node = |bus: &String| {
            RedisServer::start_with(&[
                "--cluster-enabled",
                "yes",
                "--cluster-port",
                bus,
                "--cluster-node-timeout",
                "2000",
                "--cluster-require-full-coverage",
                "no",
            ])
        };
        let nodes: Vec<RedisServer> = buses.iter().map(node).collect();
        for (node, (first, last)) in nodes.iter().zip([(0, 5460), (5461, 10922), (10923, 16383)]) {
            let range = [first, last].map(|slot: u32| slot.to_string());
            assert_eq!(node.command(&["CLUSTER", "ADDSLOTSRANGE", &range[0], &range[1]]), "OK");
        }
        for (node, bus) in nodes.iter().zip(&buses).skip(1) {
            let port = node.port.to_string();
            assert_eq!(nodes[0].command(&["CLUSTER", "MEET", "127.0.0.1", &port, bus]), "OK");
        }
        let began = Instant::now();
        let is_ready = |node: &RedisServer| {
            let info = node.command(&["CLUSTER", "INFO"]);
            info.contains("cluster_state:ok")
                && info.contains("cluster_slots_ok:16384")
                && info.contains("cluster_known_nodes:3")
        };
        while !nodes.iter().all(is_ready) {
            assert!(began.elapsed() < PATIENCE, "the cluster does not come together");
            std::thread::sleep(LOOK_EVERY);
        }
        RedisCluster { nodes }
    }

    pub fn url(&self) -> String {
        self.nodes.iter().map(RedisServer::url).collect::<Vec<_>>().join(",")
    }
}

fn spawn(port: u16, arguments: &[String], folder: &std::path::Path) -> Child {
    let program = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
    let mut command = Command::new(&program);
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
    command.args(["--enable-debug-command", "yes", "--dir"]).arg(folder).args(arguments);
    let started = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    started.unwrap_or_else(|error| {
        panic!("{program} cannot be started ({error}): install the package redis-server, as tests/run does")
    })
}

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

fn read_answer(reader: &mut impl BufRead, lines: &mut Vec<String>) -> std::io::Result<()> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let line = line.trim_end();
    let Some(kind) = line.chars().next() else { return Err(std::io::ErrorKind::UnexpectedEof.into()) };
    let rest = &line[1..];
    let count = || rest.parse::<i64>().unwrap_or_else(|_| panic!("not a length: {line}"));
    match kind {
        '$' if count() < 0 => lines.push("(nil)".to_owned()),
        '$' => {
            let mut bytes = vec![0; count() as usize + 2];
            reader.read_exact(&mut bytes)?;
            lines.push(String::from_utf8_lossy(&bytes[..bytes.len() - 2]).into_owned());
        }
        '*' => {
            for _ in 0..count() {
                read_answer(reader, lines)?;
            }
        }
        '-' => lines.push(line.to_owned()),
        _ => lines.push(rest.to_owned()),
    }
    Ok(())
}
