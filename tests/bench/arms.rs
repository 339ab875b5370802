//! The arms: what stands between the load generator and the mock.
//!
//! An arm is a name, a line for the reader, and a function that writes its command. To add one (another
//! mode of ours, another peer), write that function and put a line into `ARMS`; nothing else knows them.
//! Every arm gets one core, speaks HTTP/1.1 and keeps its connections to the upstream open.

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
/// The arms that the targets are about.
pub const OBSERVE: &str = "forkpoint-observe";
pub const ALIGN: &str = "forkpoint-align";
pub const FORK: &str = "forkpoint-fork";

/// What alignment may add to a body: four markers.
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
        name: "minimal-hyper",
        what: "hyper in, collect, hyper out; no log, no metrics",
        command: Some(minimal_hyper),
    },
    Arm {
        name: OBSERVE,
        what: "mode observe, its normal log line per request into a file",
        command: Some(forkpoint_observe),
    },
    Arm { name: ALIGN, what: "mode align, the same log line", command: Some(forkpoint_align) },
    Arm {
        name: FORK,
        what: "mode fork, the same log line; every child that may be forked is, whatever it costs",
        command: Some(forkpoint_fork),
    },
];

/// Where an arm runs and what it may use.
pub struct Place {
    pub cores: String,
    pub upstream: SocketAddr,
    pub listen: SocketAddr,
    /// Where ours speaks about itself.
    pub admin: SocketAddr,
    /// A folder of its own for configuration and logs.
    pub folder: PathBuf,
    pub forkpoint: PathBuf,
}

/// An arm that accepts connections.
pub struct Running {
    pub name: &'static str,
    pub address: SocketAddr,
    /// Where it says what its store holds, if it is one of ours.
    pub admin: Option<SocketAddr>,
    pub child: Option<Child>,
    /// By how much a body may be longer when it arrives; nothing means that its bytes are not touched.
    pub adds_bytes: u64,
    /// It writes requests and answers anew, so that their bytes say nothing.
    pub rewrites: bool,
    /// Header lines that it wants with every request.
    pub headers: String,
}

pub fn named(name: &str) -> Fallible<&'static Arm> {
    let all = || ARMS.iter().chain(PEERS);
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
        forkpoint: &Path,
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
            forkpoint: forkpoint.to_owned(),
        };
        let log = place.folder.join("output.log");
        let child = Child::server(self.name, command(&place)?, place.listen, &log)?;
        Ok(Running {
            name: self.name,
            address: place.listen,
            admin: [OBSERVE, ALIGN, FORK].contains(&self.name).then_some(place.admin),
            child: Some(child),
            adds_bytes: if [ALIGN, FORK].contains(&self.name) { MARKERS_BYTES } else { 0 },
            rewrites: is_peer(self.name),
            headers: peers::headers(&place, self.name),
        })
    }
}

fn forkpoint_observe(place: &Place) -> Fallible<Command> {
    forkpoint(place, "observe")
}

fn forkpoint_align(place: &Place) -> Fallible<Command> {
    forkpoint(place, "align")
}

fn forkpoint_fork(place: &Place) -> Fallible<Command> {
    let mut command = forkpoint(place, "fork")?;
    command.env("FORKPOINT_FORK__MAX_COST_RATIO", "100");
    Ok(command)
}

fn forkpoint(place: &Place, mode: &str) -> Fallible<Command> {
    let mut command = pinned(&place.cores, &place.forkpoint);
    for (name, _) in std::env::vars_os() {
        // A setting from outside would measure another product than the one the table names.
        if name.to_string_lossy().starts_with("FORKPOINT_") {
            command.env_remove(name);
        }
    }
    command
        .arg("serve")
        .env("FORKPOINT_MODE", mode)
        .env("FORKPOINT_LISTEN", place.listen.to_string())
        .env("FORKPOINT_ADMIN_LISTEN", place.admin.to_string())
        .env("FORKPOINT_UPSTREAM", format!("http://{}", place.upstream));
    Ok(command)
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
