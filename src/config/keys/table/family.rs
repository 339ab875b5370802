//! Fan-outs, and the gate.

use super::super::super::kind::{Choice, Kind};
use super::super::super::types::GateScope;
use super::super::Key;

pub static KEYS: &[Key] = &[
    Key {
        path: "fork.tools",
        kind: Kind::Texts(|config| &mut config.fork.tools),
        meaning: "The names of tools that start agents: globs, upper and lower case alike. Others are learned once their children were seen.",
        reason: "what the tools of known agent clients are called",
    },
    Key {
        path: "fork.min_directive_chars",
        kind: Kind::Count(1..=1_000_000, |config| &mut config.fork.min_directive_chars),
        meaning: "The shortest text in a tool call that a child may be recognised by; shorter ones than 48 bytes never are.",
        reason: "shorter texts are titles, names and paths, which requests share by chance",
    },
    Key {
        path: "fork.min_children",
        kind: Kind::Count(2..=65_536, |config| &mut config.fork.min_children),
        meaning: "How many calls with such texts make an answer a fan-out.",
        reason: "two children are the fewest that can share anything",
    },
    Key {
        path: "fork.min_coverage",
        kind: Kind::Share(|config| &mut config.fork.min_coverage),
        meaning: "The part of a text block of a first message that the directive must make up, where it is not all of it.",
        reason: "half: what wraps a directive is short, and what quotes one is long",
    },
    Key {
        path: "fork.match_window_s",
        kind: Kind::Seconds(1..=86_400, |config| &mut config.fork.match_window),
        meaning: "How long after a fan-out a child may come, for clients that name neither session nor user.",
        reason: "every measured client starts its children within seconds; five minutes allow for a queue",
    },
    Key {
        path: "fork.scan_bytes",
        kind: Kind::Bytes(1_024..=64 << 20, |config| &mut config.fork.scan_bytes),
        meaning: "The most of a first message that is searched for directives.",
        reason: "larger than any measured first message, and cheap to search even when made to be dear",
    },
    Key {
        path: "fork.ttl_s",
        kind: Kind::Seconds(1..=604_800, |config| &mut config.fork.ttl),
        meaning: "How long a fan-out is remembered.",
        reason: "an hour: as long as the longest-lived cache entry",
    },
    Key {
        path: "gate.scope",
        kind: Kind::Choice(Choice {
            words: &["children", "all"],
            later: &[],
            get: |config| config.gate.scope.as_str(),
            put: |config, word| {
                config.gate.scope = if word == "all" { GateScope::All } else { GateScope::Children };
            },
        }),
        meaning: "Who may be held: \"children\" of a recognised fan-out, or \"all\" requests that would write what another is writing.",
        reason: "children come in bursts and share the most; nobody else waits unless asked for",
    },
    Key {
        path: "gate.max_hold_ms",
        kind: Kind::Millis(0..=600_000, |config| &mut config.gate.max_hold),
        meaning: "The longest that a request is ever held, counted from its arrival; 0 holds nobody.",
        reason: "five seconds, as clients do that stagger their own; most first answers begin sooner",
    },
    Key {
        path: "gate.min_tokens",
        kind: Kind::Count(0..=100_000_000, |config| &mut config.gate.min_tokens),
        meaning: "Nobody waits for an entry of fewer tokens.",
        reason: "below a thousand tokens the wait costs more than the write",
    },
    Key {
        path: "gate.json_hold_ms",
        kind: Kind::Millis(0..=600_000, |config| &mut config.gate.json_hold),
        meaning: "How long a request that does not stream is waited for, until it is learned whether that is enough.",
        reason: "half of the longest hold: such an answer shows nothing before its end",
    },
];
