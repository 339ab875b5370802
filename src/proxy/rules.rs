//! The configuration in the engine's words.

use crate::config::{self, Config};
use crate::engine::cache::breakpoints::Profile;
use crate::engine::request::prefix::Attribution;
use crate::engine::{align, family::fanout};

/// How requests are aligned.
pub fn align(config: &Config) -> align::Rules {
    align::Rules {
        order: config.canonical.order,
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
