//! The part of a newly loaded configuration that a running process applies.
//!
//! Rule: everything that is open, or keyed by a setting, stays for the life of the process: addresses, upstream,
//! store, log, recording, traces, and how tenants are identified and named. Their new values are reported, and wait
//! for a restart. `record.match` can change, because it is set while a problem is being examined.

use super::keys::KEYS;
use super::kind::KeyKind;
use super::types::{Config, Identity, Record, Server};

/// The next configuration of a running process.
#[derive(Clone, Debug)]
pub struct Reload {
    pub config: Config,
    /// The keys whose values change.
    pub changed: Vec<&'static str>,
    /// The keys whose new values wait for a restart.
    pub left: Vec<&'static str>,
}

impl Config {
    /// Returns the configuration that follows this one when `new` is loaded.
    pub fn reload(&self, new: &Config) -> Reload {
        let (running, loaded) = (self.clone(), new.clone());
        let config = Config {
            server: Server {
                mode: loaded.server.mode,
                response_headers: loaded.server.response_headers,
                ..running.server
            },
            identity: Identity { oauth: loaded.identity.oauth, ..running.identity },
            canonical: loaded.canonical,
            fork: loaded.fork,
            gate: loaded.gate,
            prices: loaded.prices,
            limits: loaded.limits,
            drain: loaded.drain,
            record: Record {
                matching: loaded.record.matching,
                match_minutes: loaded.record.match_minutes,
                ..running.record
            },
            ..running
        };
        let (changed, mut left) = (differing(self, &config), differing(&config, new));
        left.extend((config.tenants != new.tenants).then_some("tenants"));
        Reload { config, changed, left }
    }
}

/// Returns the keys whose values differ. Secrets are compared too, without being shown.
fn differing(one: &Config, other: &Config) -> Vec<&'static str> {
    let differs = |kind: &KeyKind| match kind {
        KeyKind::Secret(slot) => *slot(&mut one.clone()) != *slot(&mut other.clone()),
        KeyKind::StoreUrl(slot) => *slot(&mut one.clone()) != *slot(&mut other.clone()),
        kind => kind.show(one) != kind.show(other),
    };
    KEYS.iter().filter(|key| differs(&key.kind)).map(|key| key.path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Overrides, load};

    fn given(env: &[(&str, &str)]) -> Config {
        load(&Overrides::default(), env.iter().copied()).unwrap().config
    }

    #[test]
    fn settings_are_taken_and_what_is_open_is_left() {
        let running = given(&[("FORKPOINT_IDENTITY__PEPPER", "old"), ("FORKPOINT_RECORD__FILE", "r")]);
        let new = given(&[
            ("FORKPOINT_IDENTITY__PEPPER", "new"),
            ("FORKPOINT_LISTEN", "127.0.0.1:1"),
            ("FORKPOINT_UPSTREAM", "http://up.example"),
            ("FORKPOINT_STORE__MAX_BYTES", "2 MiB"),
            ("FORKPOINT_MODE", "observe"),
            ("FORKPOINT_GATE__MAX_HOLD_MS", "7"),
            ("FORKPOINT_LIMITS__CONNECTIONS", "8"),
            ("FORKPOINT_FORK__TOOLS", "spawn"),
            ("FORKPOINT_RECORD__FILE", "r"),
            ("FORKPOINT_RECORD__FILES", "3"),
            ("FORKPOINT_RECORD__MATCH", "agent:0123abcd"),
        ]);
        let reload = running.reload(&new);
        let changed = ["server.mode", "fork.tools", "gate.max_hold_ms", "limits.connections", "record.match"];
        assert_eq!(reload.changed, changed);
        let left = ["server.listen", "upstream.url", "identity.pepper", "store.max_bytes", "record.files"];
        assert_eq!(reload.left, left);
        assert_eq!(reload.config.identity.pepper.reveal(), "old");
        assert_eq!(reload.config.limits.connections, 8);
    }

    #[test]
    fn the_same_again_changes_nothing() {
        let same = given(&[]).reload(&given(&[]));
        assert_eq!((same.changed.len(), same.left.len()), (0, 0));
    }
}
