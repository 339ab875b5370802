//! Log lines, and the end.

use super::super::super::kind::{Choice, Kind};
use super::super::super::types::LogFormat;
use super::super::Key;

pub static KEYS: &[Key] = &[
    Key {
        path: "log.format",
        kind: Kind::Choice(Choice {
            words: &["human", "json"],
            later: &[],
            get: |config| config.log.format.as_str(),
            put: |config, word| {
                config.log.format = if word == "json" { LogFormat::Json } else { LogFormat::Human };
            },
        }),
        meaning: "\"human\" for a terminal, \"json\" for a collector.",
        reason: "the first reader is a person at a terminal",
    },
    Key {
        path: "log.level",
        kind: Kind::Choice(Choice {
            words: &["error", "warn", "info", "debug", "trace"],
            later: &[],
            get: |config| level_word(config.log.level),
            put: |config, word| config.log.level = level(word),
        }),
        meaning: "The least important lines that are written: \"error\", \"warn\", \"info\", \"debug\" or \"trace\".",
        reason: "info has one line per request and the start and end of the process",
    },
    Key {
        path: "drain.delay_ms",
        kind: Kind::Millis(0..=600_000, |config| &mut config.drain.delay),
        meaning: "How long the listener stays open after SIGTERM, so that load balancers notice readiness first.",
        reason: "none, because most set-ups have no load balancer in front; behind one, a few seconds",
    },
    Key {
        path: "drain.deadline_s",
        kind: Kind::Seconds(0..=86_400, |config| &mut config.drain.deadline),
        meaning: "How long running streams may take to finish before they are cut.",
        reason: "most answers end within five minutes; a supervisor's own patience should be longer",
    },
    Key {
        path: "admin.token_file",
        kind: Kind::OptionalPath(|config| &mut config.admin.token_file),
        meaning: "A file with a token of at least 16 characters, read at the start; all of the admin port but health then asks for it as authorization: Bearer. \"\" for none.",
        reason: "none, because the admin port is on loopback; beyond that it does not start without one",
    },
    Key {
        path: "admin.open_metrics",
        kind: Kind::Switch(|config| &mut config.admin.open_metrics),
        meaning: "Whether /metrics of the admin port is for everybody, token or not.",
        reason: "off, because metrics name models and count tenants; server.metrics_listen is the door for scrapers",
    },
];

fn level(word: &str) -> tracing::Level {
    match word {
        "error" => tracing::Level::ERROR,
        "warn" => tracing::Level::WARN,
        "debug" => tracing::Level::DEBUG,
        "trace" => tracing::Level::TRACE,
        _ => tracing::Level::INFO,
    }
}

fn level_word(level: tracing::Level) -> &'static str {
    match level {
        tracing::Level::ERROR => "error",
        tracing::Level::WARN => "warn",
        tracing::Level::DEBUG => "debug",
        tracing::Level::TRACE => "trace",
        _ => "info",
    }
}
