//! Recordings, log lines, traces, draining, and the admin port.

use super::super::super::kind::{KeyKind, WordChoice};
use super::super::super::types::{Bodies, LogFormat};
use super::super::ConfigKey;

const GIB: u64 = 1 << 30;

pub static KEYS: &[ConfigKey] = &[
    ConfigKey {
        path: "record.file",
        kind: KeyKind::OptionalPath(|config| &mut config.record.file),
        meaning: "Where the recording goes, one line of JSON per Messages exchange; readable by its owner only. \"\" for none.",
        reason: "none, because nothing is written to a disk unless somebody asks for it",
    },
    ConfigKey {
        path: "record.max_bytes",
        kind: KeyKind::Bytes(4096..=1024 * GIB, |config| &mut config.record.max_bytes),
        meaning: "How large one file may grow; then it becomes FILE.1 and a new one begins. A longer line is not written.",
        reason: "hours of lines without bodies, and small enough to be copied and looked at",
    },
    ConfigKey {
        path: "record.files",
        kind: KeyKind::Count(1..=1000, |config| &mut config.record.files),
        meaning: "How many files are kept, the one that is written included; the oldest goes first.",
        reason: "together with record.max_bytes half a GiB, which no disk is full of",
    },
    ConfigKey {
        path: "record.bodies",
        kind: KeyKind::Choice(WordChoice {
            words: &["off", "redacted", "full"],
            later: &[],
            get: |config| config.record.bodies.as_str(),
            put: |config, word| {
                let named = Bodies::ALL.into_iter().find(|bodies| bodies.as_str() == word);
                config.record.bodies = named.unwrap_or(Bodies::Off);
            },
        }),
        meaning: "What is kept of requests and answers: \"off\" nothing, \"redacted\" their shape, each word of a prompt replaced by filler of the same length, \"full\" everything but credentials. forkpoint replay needs one of the last two.",
        reason: "off, because prompts belong to those who wrote them; filler hides words from readers, not from an attacker with much text and time",
    },
    ConfigKey {
        path: "record.match",
        kind: KeyKind::Selector(|config| &mut config.record.matching),
        meaning: "Whose bodies are kept in full, as they came and as they went out, in FILE.match: \"tenant:…\", \"agent:…\" or \"fork:…\" and the eight digits that the log shows; \"\" for nobody.",
        reason: "nobody, because this is for finding out why one agent went wrong, while it does",
    },
    ConfigKey {
        path: "record.match_minutes",
        kind: KeyKind::Count(1..=1440, |config| &mut config.record.match_minutes),
        meaning: "How long they are kept, from the start or from the reload that changed record.match or this.",
        reason: "long enough to see it go wrong again, short enough to be forgotten safely",
    },
    ConfigKey {
        path: "log.format",
        kind: KeyKind::Choice(WordChoice {
            words: &["human", "json"],
            later: &[],
            get: |config| config.log.format.as_str(),
            put: |config, word| {
                config.log.format = if word == "json" { LogFormat::Json } else { LogFormat::Human };
            },
        }),
        meaning: "\"human\" for people: on a terminal one short line per request, in its time zone, coloured unless NO_COLOR is set; elsewhere every field as name=value. \"json\" for a collector, from the first line on.",
        reason: "the first reader is a person at a terminal",
    },
    ConfigKey {
        path: "log.level",
        kind: KeyKind::Choice(WordChoice {
            words: &["error", "warn", "info", "debug", "trace"],
            later: &[],
            get: |config| level_word(config.log.level),
            put: |config, word| config.log.level = level(word),
        }),
        meaning: "The least important lines that are written: \"error\", \"warn\", \"info\", \"debug\" or \"trace\".",
        reason: "info has one line per request and the start and end of the process",
    },
    ConfigKey {
        path: "trace.endpoint",
        kind: KeyKind::OptionalUrl(|config| &mut config.trace.endpoint),
        meaning: "The collector that traces go to, by OTLP over HTTP: its base URL, such as \"http://127.0.0.1:4318\"; \"\" for none.",
        reason: "none, because nothing is told to anybody unless somebody asks for it",
    },
    ConfigKey {
        path: "trace.sample",
        kind: KeyKind::Share(|config| &mut config.trace.sample),
        meaning: "The part of the traces that is kept; of a request that brings a traceparent its sender has decided.",
        reason: "all, because a trace is four small spans; with thousands of requests a minute, less",
    },
    ConfigKey {
        path: "trace.headers_file",
        kind: KeyKind::OptionalPath(|config| &mut config.trace.headers_file),
        meaning: "A file of headers for the collector, one \"name: value\" per line; \"\" for none.",
        reason: "none; a file, because such headers are credentials, and this configuration is printed",
    },
    ConfigKey {
        path: "trace.propagate",
        kind: KeyKind::Switch(|config| &mut config.trace.propagate),
        meaning: "Whether the upstream gets a traceparent of forkpoint's own call in the place of the client's.",
        reason: "off, because no header of a request is changed unless somebody asks for it",
    },
    ConfigKey {
        path: "drain.delay_ms",
        kind: KeyKind::Millis(0..=600_000, |config| &mut config.drain.delay),
        meaning: "How long the listener stays open after SIGTERM, so that load balancers notice readiness first.",
        reason: "none, because most set-ups have no load balancer in front; behind one, a few seconds",
    },
    ConfigKey {
        path: "drain.deadline_s",
        kind: KeyKind::Seconds(0..=86_400, |config| &mut config.drain.deadline),
        meaning: "How long running streams may take to finish before they are cut.",
        reason: "most answers end within five minutes; a supervisor's own patience should be longer",
    },
    ConfigKey {
        path: "admin.token_file",
        kind: KeyKind::OptionalPath(|config| &mut config.admin.token_file),
        meaning: "A file with a token of at least 16 characters, read at the start; all of the admin port but health and the live page's own files then asks for it as authorization: Bearer. \"\" for none.",
        reason: "none, because the admin port is on loopback; beyond that it does not start without one",
    },
    ConfigKey {
        path: "admin.open_metrics",
        kind: KeyKind::Switch(|config| &mut config.admin.open_metrics),
        meaning: "Whether /metrics of the admin port is for everybody, token or not.",
        reason: "off, because metrics name models and count tenants; server.metrics_listen is the door for scrapers",
    },
    ConfigKey {
        path: "admin.subscribers",
        kind: KeyKind::Count(0..=128, |config| &mut config.admin.subscribers),
        meaning: "How many may read /events at once, as each open live page does; one more is answered 503, and with 0 everybody is.",
        reason: "a team with a page each; a reader costs a connection and what is sent to it, and nothing is kept for it",
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
