//! The valid configuration: what everything else reads, typed so that a wrong value cannot be written down.
//!
//! [`Config::default`] is the one place where defaults stand; the table in [`super::keys`] reads them from
//! here, and so do `check-config` and the manual.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// A valid configuration. Only [`super::load`] makes one from outside values; `Config::default()` is what an empty file gives.
#[derive(Clone, Debug)]
pub struct Config {
    pub server: Server,
    pub upstream: Upstream,
    pub identity: Identity,
    pub store: Store,
    pub prices: PriceTable,
    pub limits: Limits,
    pub log: Log,
    pub drain: Drain,
}

#[derive(Clone, Debug)]
pub struct Server {
    pub listen: SocketAddr,
    pub admin_listen: SocketAddr,
    /// Health and metrics only, for probes and scrapers.
    pub metrics_listen: Option<SocketAddr>,
    pub mode: Mode,
    /// Whether `x-forkpoint-*` headers are added to responses.
    pub response_headers: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Observe,
}

#[derive(Clone, Debug)]
pub struct Upstream {
    /// Scheme, authority and an optional path prefix; never credentials, query or fragment.
    pub url: http::Uri,
    pub connect: Duration,
    /// The longest silence of the upstream within one exchange.
    pub idle: Duration,
}

#[derive(Clone, Debug)]
pub struct Identity {
    pub pepper: Secret,
    pub tenant_headers: Vec<http::HeaderName>,
}

#[derive(Clone, Debug)]
pub struct Store {
    pub kind: StoreKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    Memory,
}

#[derive(Clone, Debug)]
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
    pub tool_uses: usize,
    /// How long a client may take to send its request headers, or idle before them.
    pub header: Duration,
    /// How long a client may stall: sending nothing of its body, or taking nothing of its answer.
    pub stall: Duration,
}

#[derive(Clone, Debug)]
pub struct Log {
    pub format: LogFormat,
    pub level: tracing::Level,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Human,
    Json,
}

#[derive(Clone, Debug)]
pub struct Drain {
    /// How long the listener stays open after SIGTERM, so that load balancers notice readiness first.
    pub delay: Duration,
    /// How long running streams may take to finish.
    pub deadline: Duration,
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

/// What stands in the place of a secret wherever one would print.
pub const MASK: &str = "MASKED";

impl Mode {
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Observe => "observe",
        }
    }
}

impl StoreKind {
    pub fn as_str(self) -> &'static str {
        match self {
            StoreKind::Memory => "memory",
        }
    }
}

impl LogFormat {
    pub fn as_str(self) -> &'static str {
        match self {
            LogFormat::Human => "human",
            LogFormat::Json => "json",
        }
    }
}

const MIB: usize = 1024 * 1024;

impl Default for Config {
    fn default() -> Self {
        Config {
            server: Server {
                listen: ([127, 0, 0, 1], 8787).into(),
                admin_listen: ([127, 0, 0, 1], 8788).into(),
                metrics_listen: None,
                mode: Mode::Observe,
                response_headers: true,
            },
            upstream: Upstream {
                url: http::Uri::from_static("https://api.anthropic.com"),
                connect: Duration::from_millis(5000),
                idle: Duration::from_secs(900),
            },
            identity: Identity { pepper: Secret::default(), tenant_headers: Vec::new() },
            store: Store { kind: StoreKind::Memory },
            prices: PriceTable { file: None },
            limits: Limits {
                body_bytes: 32 * MIB,
                observe_bytes: 16 * MIB,
                connections: 4096,
                held_requests: 1024,
                held_bytes: 256 * MIB,
                tool_uses: 256,
                header: Duration::from_secs(75),
                stall: Duration::from_secs(60),
            },
            log: Log { format: LogFormat::Human, level: tracing::Level::INFO },
            drain: Drain { delay: Duration::ZERO, deadline: Duration::from_secs(300) },
        }
    }
}
