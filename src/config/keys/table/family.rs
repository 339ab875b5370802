//! Fan-outs, and the gate.

use super::super::super::kind::{KeyKind, WordChoice};
use super::super::super::types::GateScope;
use super::super::ConfigKey;
use crate::engine::fork::{Late, Report, SnapshotScope, ToolsPolicy};

pub static KEYS: &[ConfigKey] = &[
    ConfigKey {
        path: "fork.tools",
        kind: KeyKind::Texts(|config| &mut config.fork.tools),
        meaning: "The names of tools that start agents: globs, upper and lower case alike. Others are learned once their children were seen.",
        reason: "what the tools of known agent clients are called",
    },
    ConfigKey {
        path: "fork.min_directive_chars",
        kind: KeyKind::Count(1..=1_000_000, |config| &mut config.fork.min_directive_chars),
        meaning: "The shortest text in a tool call that a child may be recognised by; shorter ones than 48 bytes never are.",
        reason: "shorter texts are titles, names and paths, which requests share by chance",
    },
    ConfigKey {
        path: "fork.min_children",
        kind: KeyKind::Count(2..=65_536, |config| &mut config.fork.min_children),
        meaning: "How many calls with such texts make an answer a fan-out.",
        reason: "two children are the fewest that can share anything",
    },
    ConfigKey {
        path: "fork.min_coverage",
        kind: KeyKind::Share(|config| &mut config.fork.min_coverage),
        meaning: "The part of a text block of a first message that the directive must make up, where it is not all of it.",
        reason: "half: what wraps a directive is short, and what quotes one is long",
    },
    ConfigKey {
        path: "fork.match_window_s",
        kind: KeyKind::Seconds(1..=86_400, |config| &mut config.fork.match_window),
        meaning: "How long after a fan-out a child may come, for clients that name neither session nor user.",
        reason: "every measured client starts its children within seconds; five minutes allow for a queue",
    },
    ConfigKey {
        path: "fork.scan_bytes",
        kind: KeyKind::Bytes(1_024..=64 << 20, |config| &mut config.fork.scan_bytes),
        meaning: "The most of a first message that is searched for directives.",
        reason: "larger than any measured first message, and cheap to search even when made to be dear",
    },
    ConfigKey {
        path: "fork.ttl_s",
        kind: KeyKind::Seconds(1..=604_800, |config| &mut config.fork.ttl),
        meaning: "How long a fan-out is remembered.",
        reason: "an hour: as long as the longest-lived cache entry",
    },
    ConfigKey {
        path: "fork.await_parent_ms",
        kind: KeyKind::Millis(0..=600_000, |config| &mut config.fork.await_parent),
        meaning: "How long a child that comes before the end of its parent's answer waits for it; never longer than gate.max_hold_ms.",
        reason: "clients start a child when its own call is complete, seconds before the last one is",
    },
    ConfigKey {
        path: "fork.late",
        kind: KeyKind::Choice(WordChoice {
            words: &["partial", "passthrough"],
            later: &[],
            get: |config| config.fork.policy.late.as_str(),
            put: |config, word| {
                config.fork.policy.late = if word == "partial" { Late::Partial } else { Late::Passthrough };
            },
        }),
        meaning: "A child that has waited so long: \"partial\" puts it on the parent's turn up to its own call, \"passthrough\" does not fork it.",
        reason: "the parent's own entry, which is most of it, can be read at once either way",
    },
    ConfigKey {
        path: "fork.tools_policy",
        kind: KeyKind::Choice(WordChoice {
            words: &["equal", "subset"],
            later: &[],
            get: |config| config.fork.policy.tools_policy.as_str(),
            put: |config, word| {
                config.fork.policy.tools_policy =
                    if word == "subset" { ToolsPolicy::Subset } else { ToolsPolicy::Equal };
            },
        }),
        meaning: "A child with fewer tools than its parent: \"equal\" forks it only if its client is known to keep it to its own (Claude Code), \"subset\" always.",
        reason: "a forked child sees all tools of its parent, and may call one that its client does not run for it",
    },
    ConfigKey {
        path: "fork.inherit",
        kind: KeyKind::Texts(|config| &mut config.fork.policy.inherit),
        meaning: "Top-level fields that a child takes from its parent whatever it sent itself, such as \"thinking\".",
        reason: "none, because a child silently gets no setting that it did not ask for",
    },
    ConfigKey {
        path: "fork.specialist_fields",
        kind: KeyKind::Texts(|config| &mut config.fork.policy.specialist_fields),
        meaning: "Members of a call that name the kind of agent it starts.",
        reason: "what known agent clients call it",
    },
    ConfigKey {
        path: "fork.general_types",
        kind: KeyKind::Texts(|config| &mut config.fork.policy.general_types),
        meaning: "The kinds that are no specialists; children of any other kind are not forked.",
        reason: "a specialist is meant to begin with nothing but its own instructions",
    },
    ConfigKey {
        path: "fork.exclude_sessions",
        kind: KeyKind::Texts(|config| &mut config.fork.policy.exclude_sessions),
        meaning: "Sessions whose children are not forked, by their ids or the eight digits that log lines show: coordinators, and whoever keeps untrusted input apart.",
        reason: "none are known beforehand",
    },
    ConfigKey {
        path: "fork.max_context_share",
        kind: KeyKind::Share(|config| &mut config.fork.policy.max_context_share),
        meaning: "The most of the model's window that a forked prompt may fill, where the window is known.",
        reason: "half, so that a child has as much room to work as its parent had",
    },
    ConfigKey {
        path: "fork.max_cost_ratio",
        kind: KeyKind::Factor(|config| &mut config.fork.policy.max_cost_ratio),
        meaning: "What forked children may cost with all that was billed so far, in multiples of what they cost as sent.",
        reason: "never dearer than without forkpoint",
    },
    ConfigKey {
        path: "fork.horizon_turns",
        kind: KeyKind::Count(1..=1_000, |config| &mut config.fork.policy.horizon_turns),
        meaning: "How many turns a child is taken to have, until that was learned for its tool; until then it is forked only if it also pays over one turn and over eight times as many.",
        reason: "most measured children end within four",
    },
    ConfigKey {
        path: "fork.context_premium",
        kind: KeyKind::Factor(|config| &mut config.fork.policy.context_premium),
        meaning: "How much more than aligned children forked ones may cost with all that was billed so far, as a part of that: 0 forks only what is cheapest, 100 whatever fork.max_cost_ratio allows.",
        reason: "at most a quarter more than aligning, for a child that knows what its parent knows",
    },
    ConfigKey {
        path: "fork.share",
        kind: KeyKind::Share(|config| &mut config.fork.policy.share),
        meaning: "The part of fan-outs that is forked; the children of the rest are aligned, and show what forking saves.",
        reason: "all of them; 0.9 buys a comparison for a tenth of the saving",
    },
    ConfigKey {
        path: "fork.report",
        kind: KeyKind::Choice(WordChoice {
            words: &["auto", "always", "never"],
            later: &[],
            get: |config| config.fork.policy.report.as_str(),
            put: |config, word| {
                config.fork.policy.report = match word {
                    "always" => Report::Always,
                    "never" => Report::Never,
                    _ => Report::Auto,
                };
            },
        }),
        meaning: "Whether a forked child is told how to report: \"auto\" for those that nobody else tells.",
        reason: "a child with instructions of its own has been told already",
    },
    ConfigKey {
        path: "fork.boilerplate",
        kind: KeyKind::OptionalPath(|config| &mut config.fork.boilerplate),
        meaning: "A file with what to say to a forked child, instead of the built-in words; \"\" for those.",
        reason: "the built-in words, which say that it is the fork, whose tools are whose, and to stay in scope",
    },
    ConfigKey {
        path: "fork.hoist_system",
        kind: KeyKind::Switch(|config| &mut config.fork.policy.hoist_system),
        meaning: "Whether a message of role \"system\" directly after a child's first one travels with its instructions, as text.",
        reason: "on, or such a child could not be forked: nothing may stand between its words and its directive",
    },
    ConfigKey {
        path: "fork.snapshots",
        kind: KeyKind::Choice(WordChoice {
            words: &["fan-out", "latest"],
            later: &[],
            get: |config| config.fork.policy.snapshots.as_str(),
            put: |config, word| {
                config.fork.policy.snapshots =
                    if word == "latest" { SnapshotScope::Latest } else { SnapshotScope::FanOut };
            },
        }),
        meaning: "The turns that a request may name in x-forkpoint-parent to be put on: those that fanned out, or also the \"latest\" of every conversation.",
        reason: "fan-out turns are kept anyway; keeping the newest turn of every conversation takes its memory twice",
    },
    ConfigKey {
        path: "gate.scope",
        kind: KeyKind::Choice(WordChoice {
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
    ConfigKey {
        path: "gate.max_hold_ms",
        kind: KeyKind::Millis(0..=600_000, |config| &mut config.gate.max_hold),
        meaning: "The longest that a request is ever held, counted from its arrival; 0 holds nobody.",
        reason: "five seconds, as clients do that stagger their own; most first answers begin sooner",
    },
    ConfigKey {
        path: "gate.min_tokens",
        kind: KeyKind::Count(0..=100_000_000, |config| &mut config.gate.min_tokens),
        meaning: "Nobody waits for an entry of fewer tokens.",
        reason: "below a thousand tokens the wait costs more than the write",
    },
    ConfigKey {
        path: "gate.json_hold_ms",
        kind: KeyKind::Millis(0..=600_000, |config| &mut config.gate.json_hold),
        meaning: "How long a request that does not stream is waited for, until it is learned whether that is enough.",
        reason: "half of the longest hold: such an answer shows nothing before its end",
    },
];
