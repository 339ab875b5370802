//! The valid configuration: what everything else reads, typed so that a wrong value cannot be written down.
//!
//! The defaults are in `defaults` alone; the table in [`super::keys`], `check-config` and the manual read them
//! from [`Config::default`].

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::engine::fork;
use crate::engine::respell::canonical::Order;
use crate::engine::words::shown_enums;

/// A valid configuration. Only [`super::load`] makes one from outside values; `Config::default()` is what an empty file gives.
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
    /// Names for the digests of tenants, in metrics.
    pub tenants: BTreeMap<String, String>,
}

#[derive(Clone, Debug)]
pub struct Server {
    pub listen: SocketAddr,
    pub admin_listen: SocketAddr,
    /// Health and metrics only, for probes and scrapers.
    pub metrics_listen: Option<SocketAddr>,
    pub mode: Mode,
    /// Adds `x-forkpoint-*` headers to responses.
    pub response_headers: bool,
}

shown_enums! {
    /// Each mode does what the one before does, and more.
    #[derive(PartialOrd, Ord)]
    pub enum Mode {
        Observe = "observe",
        Align = "align",
        Fork = "fork",
    }
}

#[derive(Clone, Debug)]
pub struct Upstream {
    /// Scheme, authority and an optional path prefix; never credentials, query or fragment.
    pub url: http::Uri,
    pub profile: Profile,
    /// `None`: as the profile says.
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
    /// Families of clients that are shown by their names, beside those that are known.
    pub clients: Vec<String>,
    pub oauth: OAuth,
}

shown_enums! {
    /// The changes that are allowed to the traffic of a consumer login.
    pub enum OAuth {
        Observe = "observe",
        Full = "full",
    }
}

#[derive(Clone, Debug)]
pub struct CanonicalConfig {
    pub order: Order,
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

/// Who is taken for a child, and what is done for it.
#[derive(Clone, Debug)]
pub struct Fork {
    pub tools: Vec<String>,
    pub min_directive_chars: usize,
    pub min_children: usize,
    pub min_coverage: f64,
    pub match_window: Duration,
    pub scan_bytes: usize,
    pub ttl: Duration,
    /// How long a child waits for the end of its parent's answer.
    pub await_parent: Duration,
    /// Words to be used instead of the built-in ones; the policy holds what is in it.
    pub boilerplate: Option<PathBuf>,
    pub policy: fork::Policy,
}

#[derive(Clone, Debug)]
pub struct Gate {
    pub scope: GateScope,
    pub max_hold: Duration,
    pub min_tokens: usize,
    pub json_hold: Duration,
}

shown_enums! {
    /// Who may be held.
    pub enum GateScope {
        Children = "children",
        All = "all",
    }
}

#[derive(Clone, Debug)]
pub struct Store {
    pub kind: StoreKind,
    pub max_bytes: usize,
    /// The part of each limit that one tenant may take.
    pub tenant_share: f64,
    pub recent_bytes: usize,
    pub child_ttl: Duration,
}

shown_enums! {
    pub enum StoreKind {
        Memory = "memory",
    }
}

#[derive(Clone, Debug, Default)]
pub struct PriceTable {
    /// Replaces the built-in table.
    pub file: Option<PathBuf>,
}

/// A value that never prints.
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
    /// How long a client may take to send its request headers, or idle before them.
    pub header: Duration,
    /// How long a client may stall: sending nothing of its body, or taking nothing of its answer.
    pub stall: Duration,
}

/// Recordings of the traffic.
#[derive(Clone, Debug)]
pub struct Record {
    pub file: Option<PathBuf>,
    /// Of one file.
    pub max_bytes: usize,
    /// The one that is written, and those before it.
    pub files: usize,
    pub bodies: Bodies,
    /// Whose bodies are kept as they came and as they went out.
    pub matching: Option<Selector>,
    pub match_minutes: usize,
}

shown_enums! {
    /// The part of requests and answers that a recording holds.
    pub enum Bodies {
        Off = "off",
        Redacted = "redacted",
        Full = "full",
    }
}

/// Some of the traffic, by a digest as the log shows it.
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

/// Where traces go.
#[derive(Clone, Debug)]
pub struct TraceConfig {
    pub endpoint: Option<http::Uri>,
    /// The part that is kept of those that begin here.
    pub sample: f64,
    /// The file of headers that the collector wants with each request.
    pub headers_file: Option<PathBuf>,
    /// Sends the trace context on to the upstream.
    pub propagate: bool,
}

#[derive(Clone, Debug)]
pub struct Drain {
    /// How long the listener stays open after SIGTERM, so that load balancers notice readiness first.
    pub delay: Duration,
    /// How long running streams may take to finish.
    pub deadline: Duration,
}

#[derive(Clone, Debug, Default)]
pub struct Admin {
    /// Holds the token that callers of the admin port must bring.
    pub token_file: Option<PathBuf>,
    /// Serves `/metrics` without a token too.
    pub open_metrics: bool,
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

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(MASK)
    }
}

/// Printed instead of a secret.
pub const MASK: &str = "MASKED";

impl Mode {
    pub fn named(word: &str) -> Option<Mode> {
        Mode::ALL.into_iter().find(|mode| mode.as_str() == word)
    }
}

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
    /// Returns true if the attribution line in `system[0]` is no part of the prompt.
    pub fn strips_attribution(&self) -> bool {
        self.strips_attribution.unwrap_or(self.profile == Profile::Anthropic)
    }
}
