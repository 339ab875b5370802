//! How one simulator is set up: where it listens, how long it takes, what it holds at most.
//!
//! ```text
//! let mut config = SimConfig::default();
//! config.rules.merging = Merging::Separate;      // two user messages are not one turn
//! config.latency.base = Duration::from_millis(200);
//! ```

use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::models::{ModelSpec, public_models};
use super::settings::SimRules;

/// How one simulator behaves.
#[derive(Debug, Clone)]
pub struct SimConfig {
    /// Port 0 takes a free one.
    pub listen: SocketAddr,
    /// Everything invented (words, ids, signatures) follows from this and from the request.
    pub seed: u64,
    pub models: Vec<ModelSpec>,
    pub rules: SimRules,
    pub latency: Latency,
    pub limits: SimLimits,
    /// Compress every answer this way if the client accepts it.
    pub compress: Option<Encoding>,
}

impl Default for SimConfig {
    fn default() -> Self {
        SimConfig {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            seed: 1,
            models: public_models(),
            rules: SimRules::default(),
            latency: Latency::default(),
            limits: SimLimits::default(),
            compress: None,
        }
    }
}

/// How long an answer takes, in real time.
#[derive(Debug, Clone, Copy)]
pub struct Latency {
    /// From arrival to the first token of a fully cached prompt. Not zero, so that siblings sent together really
    /// overlap and miss each other's entries, as they do on the real service.
    pub base: Duration,
    /// Added per uncached or written prompt token.
    pub per_uncached_token: Duration,
    /// Between two events of a stream; `pace_ms` in an instruction wins.
    pub pace: Duration,
}

impl Default for Latency {
    fn default() -> Self {
        Latency {
            base: Duration::from_millis(5),
            per_uncached_token: Duration::from_nanos(2_000),
            pace: Duration::ZERO,
        }
    }
}

impl Latency {
    /// No delay at all: for tests of bytes and for measuring throughput.
    pub fn none() -> Self {
        Latency { base: Duration::ZERO, per_uncached_token: Duration::ZERO, pace: Duration::ZERO }
    }

    pub fn to_first_token(&self, uncached_tokens: u64) -> Duration {
        let tokens = u32::try_from(uncached_tokens).unwrap_or(u32::MAX);
        self.base.saturating_add(self.per_uncached_token.saturating_mul(tokens))
    }
}

/// The limits of everything that the simulator keeps or accepts.
#[derive(Debug, Clone, Copy)]
pub struct SimLimits {
    /// The API's own limit for a Messages request.
    pub body_bytes: usize,
    /// The API's own limit for one request.
    pub messages: usize,
    /// Requests remembered for `/sim/requests`; the oldest go first.
    pub journal_requests: usize,
    /// Bytes of their bodies, headers and refusals; the oldest go first.
    pub journal_bytes: usize,
    /// Live cache entries; those closest to their end go first.
    pub cache_entries: usize,
    /// Fingerprints kept for `diagnostics`.
    pub fingerprints: usize,
    /// Answers held for threads; the oldest go first.
    pub threads: usize,
    /// Bytes of the conversations held for them; the oldest go first.
    pub thread_bytes: usize,
    /// Fault rules waiting for their request.
    pub fault_rules: usize,
    /// Answers waiting for theirs.
    pub recitals: usize,
}

impl Default for SimLimits {
    fn default() -> Self {
        SimLimits {
            body_bytes: 32 * 1024 * 1024,
            messages: 100_000,
            journal_requests: 4_096,
            journal_bytes: 128 * 1024 * 1024,
            cache_entries: 100_000,
            fingerprints: 1_024,
            threads: 4_096,
            thread_bytes: 128 * 1024 * 1024,
            fault_rules: 1_024,
            recitals: 10_000,
        }
    }
}

/// A content coding an answer can be sent in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    Gzip,
    Deflate,
    Br,
    Zstd,
}

impl Encoding {
    pub const ALL: [Encoding; 4] = [Encoding::Gzip, Encoding::Deflate, Encoding::Br, Encoding::Zstd];

    pub fn as_str(self) -> &'static str {
        match self {
            Encoding::Gzip => "gzip",
            Encoding::Deflate => "deflate",
            Encoding::Br => "br",
            Encoding::Zstd => "zstd",
        }
    }

    pub fn parse(name: &str) -> Option<Encoding> {
        Encoding::ALL.into_iter().find(|encoding| encoding.as_str() == name.trim())
    }
}
