//! The types of a valid configuration, in which a wrong value cannot be expressed.
//!
//! The defaults are in `defaults` alone; the table in [`super::keys`], `check-config` and the manual read them
//! from [`Config::default`].

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::engine::fork;
use crate::engine::respell::canonical::Order;
use crate::engine::respell::system_block::SystemForm;
use crate::engine::words::{Mode, shown_enums};

/// A valid configuration. Only [`super::load`] makes one from outside values; an empty file gives
/// `Config::default()`.
#[derive(Clone, Debug, Default)]
pub struct Config {
    pub server: Server,
    pub upstream: Upstream,
    pub identity: Identity,
    pub canonical: CanonicalConfig,
    pub fork: Fork,
    pub gate: Gate,
    pub store: Store,
    pub prices: PriceTable,
    pub limits: Limits,
    pub record: Record,
    pub log: Log,
    pub trace: TraceConfig,
    pub drain: Drain,
    pub admin: Admin,
    /// The names of tenants in metrics, by digest.
    pub tenants: BTreeMap<String, String>,
}

#[derive(Clone, Debug)]
pub struct Server {
    pub listen: SocketAddr,
    pub admin_listen: SocketAddr,
    /// The address of the metrics port, with health and metrics only, for probes and scrapers.
    pub metrics_listen: Option<SocketAddr>,
    pub mode: Mode,
    /// Adds `x-forkpoint-*` headers to responses.
    pub response_headers: bool,
}

#[derive(Clone, Debug)]
pub struct Upstream {
    /// Scheme, authority and an optional path prefix; never credentials, query or fragment.
    pub url: http::Uri,
    pub profile: Profile,
    /// `None` means what the profile implies.
    pub strips_attribution: Option<bool>,
    pub connect: Duration,
    /// The longest silence of the upstream within one exchange.
    pub idle: Duration,
}

shown_enums! {
    /// The kind of cache that the upstream has, and how requests address it.
    pub enum Profile {
        Anthropic = "anthropic",
        Bedrock = "bedrock",
        Vertex = "vertex",
        Automatic = "automatic",
    }
}

#[derive(Clone, Debug)]
pub struct Identity {
    pub pepper: Secret,
    pub tenant_headers: Vec<http::HeaderName>,
    /// The families of clients that are shown by name, besides the known ones.
    pub clients: Vec<String>,
    pub oauth: OAuth,
}

shown_enums! {
    /// The changes that are allowed to requests of consumer logins.
    pub enum OAuth {
        Observe = "observe",
        Full = "full",
    }
}

#[derive(Clone, Debug)]
pub struct CanonicalConfig {
    pub order: Order,
    pub system: SystemForm,
    pub volatile: Volatile,
    /// Asks the upstream for its own verdict on each miss.
    pub diagnose: bool,
}

shown_enums! {
    pub enum Volatile {
        Off = "off",
        Report = "report",
    }
}

/// The recognition of children, and the way they are forked.
#[derive(Clone, Debug)]
pub struct Fork {
    pub tools: Vec<String>,
    pub min_directive_chars: usize,
    pub min_children: usize,
    pub min_coverage: f64,
    pub match_window: Duration,
    pub scan_bytes: usize,
    pub ttl: Duration,
    /// The longest time that a child waits for the end of its parent's answer.
    pub await_parent: Duration,
    /// The file whose text replaces the built-in boilerplate; `policy` holds that text.
    pub boilerplate: Option<PathBuf>,
    pub policy: fork::ForkPolicy,
}

#[derive(Clone, Debug)]
pub struct Gate {
    pub scope: GateScope,
    pub max_hold: Duration,
    pub min_tokens: usize,
    pub json_hold: Duration,
}

shown_enums! {
    /// The requests that may be held.
    pub enum GateScope {
        Children = "children",
        All = "all",
    }
}

#[derive(Clone, Debug)]
pub struct Store {
    pub kind: StoreKind,
    /// The folder of the `file` store; `None` for the user's state folder.
    pub path: Option<PathBuf>,
    /// The server of the `redis` store.
    pub url: Option<StoreUrl>,
    /// The key that the external stores encrypt with, if it is set.
    pub key: Secret,
    /// The file with that key.
    pub key_file: Option<PathBuf>,
    /// The longest time that a request waits for the store, and that a call to the store takes.
    pub deadline: Duration,
    /// The longest time that a start waits for a folder that another process has.
    pub lock_wait: Duration,
    /// The longest time that a record is kept after it was written.
    pub max_age: Duration,
    pub max_bytes: usize,
    /// The share of each limit that one tenant may take.
    pub tenant_share: f64,
    pub recent_bytes: usize,
    pub child_ttl: Duration,
}

shown_enums! {
    pub enum StoreKind {
        Memory = "memory",
        File = "file",
        Redis = "redis",
    }
}

/// The URL of a Redis server, or of some of a cluster: `redis://[user:password@]host[:port][,host…][/database]`, or
/// `rediss://` for TLS. The password is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl(String);

#[derive(Clone, Debug, Default)]
pub struct PriceTable {
    /// The file that replaces the built-in table.
    pub file: Option<PathBuf>,
}

/// A value that is never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

#[derive(Clone, Debug)]
pub struct Limits {
    pub body_bytes: usize,
    pub observe_bytes: usize,
    pub connections: usize,
    pub held_requests: usize,
    pub held_bytes: usize,
    pub pending_forks: usize,
    pub tool_uses: usize,
    /// The longest time for a client to send its request headers, or to be idle before them.
    pub header: Duration,
    /// The longest time for which a client may send nothing of its body, or read nothing of its answer.
    pub stall: Duration,
}

/// Recordings of the traffic.
#[derive(Clone, Debug)]
pub struct Record {
    pub file: Option<PathBuf>,
    /// The most bytes of one file.
    pub max_bytes: usize,
    /// The number of files, which includes the one that is written.
    pub files: usize,
    pub bodies: Bodies,
    /// The exchanges whose bodies are kept in full.
    pub matching: Option<Selector>,
    pub match_minutes: usize,
}

shown_enums! {
    /// The form in which a recording keeps requests and answers.
    pub enum Bodies {
        Off = "off",
        Redacted = "redacted",
        Full = "full",
    }
}

/// Selects a part of the traffic by a digest that the log shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    Tenant(String),
    Agent(String),
    Fork(String),
}

#[derive(Clone, Debug)]
pub struct Log {
    pub format: LogFormat,
    pub level: tracing::Level,
}

shown_enums! {
    pub enum LogFormat {
        Human = "human",
        Json = "json",
    }
}

/// The destination of traces, and the share that is sent.
#[derive(Clone, Debug)]
pub struct TraceConfig {
    pub endpoint: Option<http::Uri>,
    /// The share that is kept of the traces that begin here.
    pub sample: f64,
    /// The file of headers that the collector wants with each request.
    pub headers_file: Option<PathBuf>,
    /// Sends the trace context on to the upstream.
    pub propagate: bool,
    /// Attributes of what sends the traces, as `name=value`. No key sets them, but `OTEL_SERVICE_NAME` and
    /// `OTEL_RESOURCE_ATTRIBUTES` do.
    pub resource: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct Drain {
    /// The time that the listener stays open after SIGTERM, so that load balancers see first that it is not ready.
    pub delay: Duration,
    /// The longest time for running streams to finish.
    pub deadline: Duration,
}

#[derive(Clone, Debug)]
pub struct Admin {
    /// The file with the token that callers of the admin port must send.
    pub token_file: Option<PathBuf>,
    /// Serves `/metrics` without a token.
    pub open_metrics: bool,
    /// The number of readers of `/events` at once.
    pub subscribers: usize,
}

impl Secret {
    pub fn new(value: impl Into<String>) -> Self {
        Secret(value.into())
    }

    pub fn reveal(&self) -> &str {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl StoreUrl {
    /// Takes a URL that was checked.
    pub fn new(url: String) -> StoreUrl {
        StoreUrl(url)
    }

    /// Returns the URL with its password.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&super::parse::masked_url(&self.0))
    }
}

impl std::fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(MASK)
    }
}

/// The text that is printed instead of a secret.
pub const MASK: &str = "MASKED";

impl std::fmt::Display for Selector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Selector::Tenant(digest) => write!(f, "tenant:{digest}"),
            Selector::Agent(digest) => write!(f, "agent:{digest}"),
            Selector::Fork(digest) => write!(f, "fork:{digest}"),
        }
    }
}

impl Upstream {
    /// Returns true if the upstream removes the attribution line in `system[0]` from the prompt.
    pub fn strips_attribution(&self) -> bool {
        self.strips_attribution.unwrap_or(self.profile == Profile::Anthropic)
    }
}
