//! The table of keys: every option that this version has, declared once.
//!
//! Parsing, messages, hints, `check-config` and the manual (`config/forkpoint.toml`) all use it. To add an option,
//! add its field in [`super::types`], its default in `defaults.rs`, and one row here; a test then asks for the
//! manual to be written again.
//!
//! Rule: a row says what the key means and *why* it has its default. The default itself is only in `defaults.rs`.

mod table;

pub use table::KEYS;

use super::kind::{Given, KeyKind, ShownValue};
use super::types::Config;

/// One option.
#[derive(Debug)]
pub struct ConfigKey {
    /// Section and name: `server.listen`.
    pub path: &'static str,
    pub kind: KeyKind,
    /// The effect of the option, in one line.
    pub meaning: &'static str,
    /// The reason for the default.
    pub reason: &'static str,
}

/// A section of the file.
#[derive(Debug)]
pub struct Section {
    pub name: &'static str,
    pub meaning: &'static str,
}

pub static SECTIONS: &[Section] = &[
    Section { name: "server", meaning: "The doors of the proxy, and what it does with requests." },
    Section { name: "upstream", meaning: "The Messages API behind the proxy." },
    Section {
        name: "identity",
        meaning: "How tenants are told apart; nothing that one sends ever reaches another.",
    },
    Section { name: "canonical", meaning: "One spelling for what is said again and again." },
    Section {
        name: "fork",
        meaning: "Who is taken for a child of a fan-out, and who is put on its parent's prompt.",
    },
    Section { name: "gate", meaning: "One writer per cache entry: who waits for whom, and how long." },
    Section { name: "store", meaning: "What is remembered between requests." },
    Section { name: "prices", meaning: "What tokens cost, for metrics and estimates." },
    Section {
        name: "limits",
        meaning: "The most of everything; beyond a limit requests pass or are refused, never queued without end.",
    },
    Section { name: "record", meaning: "One line of JSON per Messages exchange, in files." },
    Section { name: "log", meaning: "Log lines, on standard error." },
    Section { name: "trace", meaning: "OpenTelemetry traces, to a collector." },
    Section { name: "drain", meaning: "What happens between SIGTERM and the exit." },
    Section { name: "admin", meaning: "Who may use the admin port." },
    Section {
        name: "tenants",
        meaning: "Names in metrics for the digests that the log shows: \"81f9b6d4\" = \"checkout\". At most 50.",
    },
];

impl ConfigKey {
    pub fn find(path: &str) -> Option<&'static ConfigKey> {
        KEYS.iter().copied().find(|key| key.path == path)
    }

    pub fn section(&self) -> &'static str {
        self.path.split_once('.').map_or("", |(section, _)| section)
    }

    pub fn name(&self) -> &'static str {
        self.path.split_once('.').map_or(self.path, |(_, name)| name)
    }

    /// Returns the environment variable that sets the option.
    pub fn variable(&self) -> String {
        super::environment::long_name(self.path)
    }

    /// Returns the value in an empty configuration.
    pub fn default(&self) -> ShownValue {
        self.shown(&Config::default())
    }

    /// Returns the value in this configuration.
    pub fn shown(&self, config: &Config) -> ShownValue {
        self.kind.show(config)
    }

    /// Returns the key and the given value, in a form that messages may show.
    pub(super) fn assignment(&self, given: &Given) -> String {
        match given {
            Given::Other(_) => self.path.to_owned(),
            _ => format!("{} = {}", self.path, self.kind.quote(given)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{
        Admin, CanonicalConfig, Drain, Fork, Gate, Identity, Limits, Log, PriceTable, Record, Server, Store,
        TraceConfig, Upstream,
    };
    use crate::engine::fork::ForkPolicy;

    #[test]
    fn every_field_of_the_configuration_has_a_row() {
        // A new field does not compile until it is named here, and a named field must be counted.
        // [tenants] has no fixed keys.
        let Config {
            server,
            upstream,
            identity,
            canonical,
            fork,
            gate,
            store,
            prices,
            limits,
            record,
            log,
            trace,
            drain,
            admin,
            tenants: _,
        } = Config::default();
        let Server { listen: _, admin_listen: _, metrics_listen: _, mode: _, response_headers: _ } = server;
        let Upstream { url: _, profile: _, strips_attribution: _, connect: _, idle: _ } = upstream;
        let Identity { pepper: _, tenant_headers: _, clients: _, oauth: _ } = identity;
        let CanonicalConfig { order: _, system: _, volatile: _, diagnose: _ } = canonical;
        let Fork {
            tools: _,
            min_directive_chars: _,
            min_children: _,
            min_coverage: _,
            match_window: _,
            scan_bytes: _,
            ttl: _,
            await_parent: _,
            boilerplate: _,
            policy,
        } = fork;
        let ForkPolicy {
            tools_policy: _,
            inherit: _,
            specialist_fields: _,
            general_types: _,
            exclude_sessions: _,
            max_context_share: _,
            max_cost_ratio: _,
            horizon_turns: _,
            context_premium: _,
            share: _,
            report: _,
            hoist_system: _,
            late: _,
            template: _, // The text of fork.boilerplate.
            snapshots: _,
        } = policy;
        let Gate { scope: _, max_hold: _, min_tokens: _, json_hold: _ } = gate;
        let Store {
            kind: _,
            path: _,
            url: _,
            key: _,
            key_file: _,
            deadline: _,
            lock_wait: _,
            max_age: _,
            max_bytes: _,
            tenant_share: _,
            recent_bytes: _,
            child_ttl: _,
        } = store;
        let PriceTable { file: _ } = prices;
        let Limits {
            body_bytes: _,
            observe_bytes: _,
            connections: _,
            held_requests: _,
            held_bytes: _,
            pending_forks: _,
            tool_uses: _,
            header: _,
            stall: _,
        } = limits;
        let Record { file: _, max_bytes: _, files: _, bodies: _, matching: _, match_minutes: _ } = record;
        let Log { format: _, level: _ } = log;
        // Variables of OpenTelemetry alone set the resource.
        let TraceConfig { endpoint: _, sample: _, headers_file: _, propagate: _, resource: _ } = trace;
        let Drain { delay: _, deadline: _ } = drain;
        let Admin { token_file: _, open_metrics: _, subscribers: _ } = admin;
        assert_eq!(KEYS.len(), 5 + 5 + 4 + 4 + 23 + 4 + 12 + 1 + 9 + 6 + 2 + 4 + 2 + 3);
    }

    #[test]
    fn each_row_fills_a_field_of_its_own() {
        for key in KEYS.iter() {
            let Some(other) = another_value(&key.kind) else { continue };
            let mut config = Config::default();
            key.kind.put(&mut config, &Given::Word(other.to_owned())).unwrap();
            let changed: Vec<_> =
                KEYS.iter().filter(|k| k.shown(&config) != k.default()).map(|k| k.path).collect();
            assert_eq!(changed, [key.path]);
        }
    }

    /// Returns a valid value that is no key's default, or `None` for a choice of one word.
    fn another_value(kind: &KeyKind) -> Option<&'static str> {
        match kind {
            KeyKind::Switch(slot) => {
                let mut config = Config::default();
                Some(if *slot(&mut config) { "false" } else { "true" })
            }
            KeyKind::OptionalSwitch(_) => Some("true"),
            KeyKind::Share(_) | KeyKind::Factor(_) => Some("0.75"),
            KeyKind::Address(_) | KeyKind::OptionalAddress(_) => Some("127.0.0.9:9"),
            KeyKind::Url(_) | KeyKind::OptionalUrl(_) => Some("http://other.example"),
            KeyKind::StoreUrl(_) => Some("redis://other.example"),
            KeyKind::Secret(_) => Some("hunter2"),
            KeyKind::OptionalPath(_) => Some("other.toml"),
            KeyKind::Selector(_) => Some("tenant:0123abcd"),
            KeyKind::Headers(_) | KeyKind::Texts(_) => Some("x-user,x-team"),
            KeyKind::Bytes(..) => Some("7777777"),
            KeyKind::Count(..) | KeyKind::Millis(..) | KeyKind::Seconds(..) => Some("77"),
            KeyKind::Choice(choice) => {
                let default = (choice.get)(&Config::default());
                choice.words.iter().find(|word| **word != default).copied()
            }
        }
    }

    #[test]
    fn every_choice_is_what_it_says_and_every_later_word_is_refused_as_such() {
        for key in KEYS.iter() {
            let KeyKind::Choice(choice) = &key.kind else { continue };
            for word in choice.words {
                let mut config = Config::default();
                key.kind.put(&mut config, &Given::Text((*word).to_owned())).unwrap();
                assert_eq!(key.shown(&config), ShownValue::Text((*word).to_owned()));
            }
            for word in choice.later {
                let refused = key.kind.put(&mut Config::default(), &Given::Text((*word).to_owned()));
                assert!(refused.unwrap_err().message.starts_with("known, but not built"), "{word}");
            }
        }
    }

    #[test]
    fn rows_stand_in_the_order_of_their_sections_and_are_written_out() {
        let sections: Vec<_> = SECTIONS.iter().map(|section| section.name).collect();
        let place = |key: &ConfigKey| sections.iter().position(|name| *name == key.section());
        assert!(KEYS.iter().all(|key| place(key).is_some()));
        assert!(KEYS.iter().map(|key| place(key)).is_sorted());
        for key in KEYS.iter() {
            assert!(key.meaning.ends_with('.') && !key.reason.is_empty(), "{}", key.path);
            assert!(crate::config::later::later(key.path).is_none(), "{} is built", key.path);
        }
    }
}
