//! The arms: the programs between the load generator and the mock.
//!
//! An arm is a name, a line for the reader, and a function that writes its command. To add one (another
//! mode of ours, another peer), write that function and put a line into `ARMS`; nothing else knows them.
//! Every arm gets one core, speaks HTTP/1.1 and keeps its connections to the upstream open.
//!
//! Each arm `before-*` runs the binary of an earlier commit (`--beside`), and follows the arm that it is compared
//! with, so that both are measured within seconds of each other.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Fallible;
use crate::children::{Child, free_address, pinned};
use crate::peers::{self, PEERS, is_peer};

/// The baseline of added latency: the load generator talks to the mock.
pub const DIRECT: &str = "direct";
/// The arm that every ratio is taken against.
pub const REFERENCE: &str = "nginx";
/// The proxy that does nothing but what any proxy on the same libraries must do.
pub const MINIMAL: &str = "minimal-hyper";
/// The arms that are judged.
pub const OBSERVE: &str = "forkpoint-observe";
pub const ALIGN: &str = "forkpoint-align";
pub const FORK: &str = "forkpoint-fork";
/// Mode fork with a store that outlives the process.
pub const FORK_FILE: &str = "forkpoint-file";
/// The arms that run the earlier binary, one for each mode.
pub const BEFORE_OBSERVE: &str = "before-observe";
pub const BEFORE_ALIGN: &str = "before-align";
pub const BEFORE_FORK: &str = "before-fork";

/// Bytes that alignment may add to a body: four markers.
const MARKERS_BYTES: u64 = 4 * r#","cache_control":{"type":"ephemeral"}"#.len() as u64;

pub struct Arm {
    pub name: &'static str,
    pub what: &'static str,
    /// None: no process at all.
    pub command: Option<fn(&Place) -> Fallible<Command>>,
}

pub const ARMS: &[Arm] = &[
    Arm { name: DIRECT, what: "no proxy", command: None },
    Arm {
        name: REFERENCE,
        what: "streams the request body through a 16 KB buffer, access log off",
        command: Some(nginx_streaming),
    },
    Arm {
        name: "nginx-buf",
        what: "collects the request body in memory first, access log off",
        command: Some(nginx_collecting),
    },
    Arm {
        name: MINIMAL,
        what: "hyper in, collect, hyper out; no log, no metrics",
        command: Some(minimal_hyper),
    },
    Arm {
        name: OBSERVE,
        what: "mode observe, its normal log line per request into a file",
        command: Some(forkpoint_observe),
    },
    Arm {
        name: BEFORE_OBSERVE,
        what: "mode observe of the binary that it is compared with",
        command: Some(before_observe),
    },
    Arm { name: ALIGN, what: "mode align, the same log line", command: Some(forkpoint_align) },
    Arm {
        name: BEFORE_ALIGN,
        what: "mode align of the binary that it is compared with",
        command: Some(before_align),
    },
    Arm {
        name: FORK,
        what: "mode fork, the same log line; every child that may be forked is, whatever it costs",
        command: Some(forkpoint_fork),
    },
    Arm {
        name: BEFORE_FORK,
        what: "mode fork of the binary that it is compared with, every child forked there too",
        command: Some(before_fork),
    },
];

/// Arms that only a soak has by default.
const SOAKED: &[Arm] = &[Arm {
    name: FORK_FILE,
    what: "mode fork as above, with a store in a folder of its own",
    command: Some(forkpoint_file),
}];

/// The forkpoint binaries of a run.
#[derive(Clone, Debug)]
pub struct Binaries {
    /// The one that is measured and judged.
    pub now: PathBuf,
    /// The one that it is compared with, if there is one.
    pub before: Option<PathBuf>,
}

/// Where an arm runs and what it may use.
pub struct Place {
    pub cores: String,
    pub upstream: SocketAddr,
    pub listen: SocketAddr,
    /// Where ours speaks about itself.
    pub admin: SocketAddr,
    /// A folder of its own for configuration and logs.
    pub folder: PathBuf,
    pub binaries: Binaries,
}

/// An arm that accepts connections.
pub struct Running {
    pub name: &'static str,
    pub address: SocketAddr,
    /// Where it says what its store holds, if it is one of ours.
    pub admin: Option<SocketAddr>,
    pub child: Option<Child>,
    /// The number of bytes by which a body may be longer when it arrives; 0 if its bytes are not touched.
    pub adds_bytes: u64,
    /// True if it writes requests and answers anew, so that their bytes cannot be compared.
    pub rewrites: bool,
    /// Header lines that it wants with every request.
    pub headers: String,
}

pub fn named(name: &str) -> Fallible<&'static Arm> {
    let all = || ARMS.iter().chain(SOAKED).chain(PEERS);
    let known = || all().map(|arm| arm.name).collect::<Vec<_>>().join(", ");
    all()
        .find(|arm| arm.name == name)
        .ok_or_else(|| format!("no arm {name:?}\n\nhint: the arms are {}", known()).into())
}

impl Arm {
    pub fn start(
        &self,
        cores: &str,
        upstream: SocketAddr,
        folder: &Path,
        binaries: &Binaries,
    ) -> Fallible<Running> {
        let Some(command) = self.command else {
            return Ok(Running {
                name: self.name,
                address: upstream,
                admin: None,
                child: None,
                adds_bytes: 0,
                rewrites: false,
                headers: String::new(),
            });
        };
        let folder = folder.join(self.name);
        fs::create_dir_all(&folder)?;
        let place = Place {
            cores: cores.to_owned(),
            upstream,
            listen: free_address()?,
            admin: free_address()?,
            folder,
            binaries: binaries.clone(),
        };
        let log = place.folder.join("output.log");
        let child = Child::server(self.name, command(&place)?, place.listen, &log)?;
        Ok(Running {
            name: self.name,
            address: place.listen,
            admin: is_forkpoint(self.name).then_some(place.admin),
            child: Some(child),
            adds_bytes: if adds_markers(self.name) { MARKERS_BYTES } else { 0 },
            rewrites: is_peer(self.name),
            headers: peers::headers(&place, self.name),
        })
    }
}

/// Returns true for an arm that runs the earlier binary.
pub fn is_before(arm: &str) -> bool {
    [BEFORE_OBSERVE, BEFORE_ALIGN, BEFORE_FORK].contains(&arm)
}

/// Returns true for an arm that forks children.
pub fn forks(arm: &str) -> bool {
    [FORK, FORK_FILE, BEFORE_FORK].contains(&arm)
}

fn is_forkpoint(arm: &str) -> bool {
    is_before(arm) || [OBSERVE, ALIGN, FORK, FORK_FILE].contains(&arm)
}

fn adds_markers(arm: &str) -> bool {
    forks(arm) || [ALIGN, BEFORE_ALIGN].contains(&arm)
}

fn forkpoint_observe(place: &Place) -> Fallible<Command> {
    Ok(forkpoint(place, &place.binaries.now, "observe"))
}

fn forkpoint_align(place: &Place) -> Fallible<Command> {
    Ok(forkpoint(place, &place.binaries.now, "align"))
}

fn forkpoint_fork(place: &Place) -> Fallible<Command> {
    forking(place, &place.binaries.now)
}

fn forkpoint_file(place: &Place) -> Fallible<Command> {
    let mut command = forking(place, &place.binaries.now)?;
    command.env("FORKPOINT_STORE", "file").env("FORKPOINT_STORE__PATH", place.folder.join("store"));
    Ok(command)
}

fn before_observe(place: &Place) -> Fallible<Command> {
    Ok(forkpoint(place, before(place)?, "observe"))
}

fn before_align(place: &Place) -> Fallible<Command> {
    Ok(forkpoint(place, before(place)?, "align"))
}

fn before_fork(place: &Place) -> Fallible<Command> {
    forking(place, before(place)?)
}

fn before(place: &Place) -> Fallible<&Path> {
    place
        .binaries
        .before
        .as_deref()
        .ok_or_else(|| "there is no binary to compare with\n\nhint: name a commit with --beside".into())
}

/// Mode fork, set so that no price keeps a child from being forked.
fn forking(place: &Place, binary: &Path) -> Fallible<Command> {
    let mut command = forkpoint(place, binary, "fork");
    command.env("FORKPOINT_FORK__MAX_COST_RATIO", "100");
    // A binary refuses a key that it does not know, and earlier ones do not know this one.
    if has_key(binary, "context_premium")? {
        command.env("FORKPOINT_FORK__CONTEXT_PREMIUM", "100");
    }
    Ok(command)
}

/// Returns true if a forkpoint binary has a configuration key of this name.
fn has_key(binary: &Path, name: &str) -> Fallible<bool> {
    let mut command = Command::new(binary);
    forget_settings(&mut command);
    let output = command.arg("check-config").output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{} does not list its keys: {}", binary.display(), said.trim()).into());
    }
    let listed = String::from_utf8_lossy(&output.stdout);
    Ok(listed.lines().any(|line| line.split('=').next().is_some_and(|key| key.trim() == name)))
}

fn forkpoint(place: &Place, binary: &Path, mode: &str) -> Command {
    let mut command = pinned(&place.cores, binary);
    forget_settings(&mut command);
    command
        .arg("serve")
        .env("FORKPOINT_MODE", mode)
        .env("FORKPOINT_LISTEN", place.listen.to_string())
        .env("FORKPOINT_ADMIN_LISTEN", place.admin.to_string())
        .env("FORKPOINT_UPSTREAM", format!("http://{}", place.upstream));
    command
}

/// Removes the settings of this process's environment: they would measure another product than the one the table
/// names.
fn forget_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FORKPOINT_") {
            command.env_remove(name);
        }
    }
}

fn minimal_hyper(place: &Place) -> Fallible<Command> {
    let mut command = pinned(&place.cores, std::env::current_exe()?);
    command.args(["minimal", &place.listen.to_string(), &place.upstream.to_string()]);
    Ok(command)
}

fn nginx_streaming(place: &Place) -> Fallible<Command> {
    nginx(place, "proxy_request_buffering off;")
}

fn nginx_collecting(place: &Place) -> Fallible<Command> {
    nginx(place, "proxy_request_buffering on; client_body_buffer_size 2m;")
}

/// Answers are never buffered, or events would wait for a full buffer; the limits on requests per
/// connection are lifted, since a reconnect in the middle of a round would be charged to that round.
fn nginx(place: &Place, request_body: &str) -> Fallible<Command> {
    let Place { cores, upstream, listen, folder, .. } = place;
    let configuration = format!(
        "daemon off;
worker_processes 1;
worker_rlimit_nofile 8192;
pid nginx.pid;
error_log error.log warn;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    keepalive_requests 100000000;
    keepalive_timeout 1h;
    client_max_body_size 64m;
    upstream mock {{ server {upstream}; keepalive 1024; keepalive_requests 100000000; keepalive_timeout 1h; }}
    server {{
        listen {listen};
        location / {{
            proxy_pass http://mock;
            proxy_http_version 1.1;
            proxy_set_header Connection \"\";
            proxy_set_header Host $host;
            proxy_buffering off;
            proxy_read_timeout 1h;
            {request_body}
        }}
    }}
}}
"
    );
    let file = folder.join("nginx.conf");
    fs::write(&file, configuration)?;
    let mut command = pinned(cores, "nginx");
    command.arg("-p").arg(folder).arg("-c").arg(&file).arg("-e").arg(folder.join("error.log"));
    Ok(command)
}
