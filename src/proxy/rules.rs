//! The configuration in the engine's words.

use std::sync::Arc;

use super::clock::millis;
use crate::config::{self, Config, GateScope};
use crate::engine::cache::breakpoints::Profile;
use crate::engine::cache::prices::Prices;
use crate::engine::gate::{GateLimits, GateSettings};
use crate::engine::policy::Policy;
use crate::engine::request::prefix::Attribution;
use crate::engine::{align, family::fanout};

/// The settings that requests are planned by: those of Messages calls, and those of Vertex's. The path tells that an
/// upstream is Vertex, so it is treated as one even if `upstream.profile` was left as it is.
pub fn policies(config: &Config, prices: Prices) -> (Arc<Policy>, Arc<Policy>) {
    let policy = Arc::new(policy(config, Arc::new(prices)));
    if config.upstream.profile != config::Profile::Anthropic {
        return (Arc::clone(&policy), policy);
    }
    let mut vertex = config.clone();
    vertex.upstream.profile = config::Profile::Vertex;
    let vertex = Policy { align: align(&vertex), ..(*policy).clone() };
    (policy, Arc::new(vertex))
}

/// The settings that requests are planned by.
pub fn policy(config: &Config, prices: Arc<Prices>) -> Policy {
    Policy {
        align: align(config),
        fan_out: fanout(config),
        fork: config.fork.policy.clone(),
        prices,
        body_bytes: config.limits.body_bytes,
        await_parent_ms: millis(config.fork.await_parent),
        holds_children_only: config.gate.scope == GateScope::Children,
        max_hold_ms: millis(config.gate.max_hold),
        reports_volatile: config.canonical.volatile == config::Volatile::Report,
    }
}

/// Who waits at the gate, and for how long.
pub fn gate(config: &Config) -> GateSettings {
    let config::Gate { min_tokens, max_hold, json_hold, .. } = config.gate;
    GateSettings {
        min_tokens: min_tokens as u64,
        max_hold_ms: millis(max_hold),
        json_hold_ms: millis(json_hold),
        limits: GateLimits::default(),
    }
}

/// How requests are aligned.
pub fn align(config: &Config) -> align::Rules {
    align::Rules {
        order: config.canonical.order,
        system: config.canonical.system,
        profile: match config.upstream.profile {
            config::Profile::Anthropic => Profile::Anthropic,
            config::Profile::Bedrock | config::Profile::Vertex => Profile::BlocksOnly,
            config::Profile::Automatic => Profile::Automatic,
        },
        attribution: if config.upstream.strips_attribution() {
            Attribution::Stripped
        } else {
            Attribution::Counted
        },
        diagnose: config.canonical.diagnose && config.upstream.profile == config::Profile::Anthropic,
    }
}

/// Who is a child.
pub fn fanout(config: &Config) -> fanout::Rules {
    let config::Fork {
        tools,
        min_directive_chars,
        min_children,
        min_coverage,
        match_window,
        scan_bytes,
        ttl,
        ..
    } = config.fork.clone();
    fanout::Rules {
        tools,
        min_directive_chars,
        min_children,
        min_coverage,
        match_window_s: match_window.as_secs(),
        ttl_s: ttl.as_secs(),
        scan_bytes,
        pending_forks: config.limits.pending_forks,
        child_ttl_s: config.store.child_ttl.as_secs(),
        ..fanout::Rules::default()
    }
}
