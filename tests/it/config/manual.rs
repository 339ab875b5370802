//! The agreement: manual, table of keys, defaults in code and `check-config` all say the same.
//!
//! `config/forkpoint.toml` is the manual. Its text is the table of keys written out, so `UPDATE=1` writes it
//! anew after a change of the table. Lines `#key = value` are settings at their defaults, lines `# …` are prose.

use std::collections::BTreeMap;

use forkpoint::config::{ConfigKey, KEYS, KeyKind, SECTIONS};
use serde_json::{Value, json};

use super::{assert_golden, check_config, repository};

const INTRODUCTION: &str = "\
# forkpoint: every option, what it does, its default and the reason for it.
#
# An empty file is a valid configuration. Lines that start with \"#\" and no space are settings at their
# defaults: take the \"#\" away to change one. Unknown keys are errors.
#
# A file is read only when it is named: forkpoint serve --config forkpoint.toml, or FORKPOINT_CONFIG.
# The environment replaces the file: limits.body_bytes is FORKPOINT_LIMITS__BODY_BYTES, lists are a,b.
# Flags replace both. Short names: FORKPOINT_LISTEN, _ADMIN_LISTEN, _UPSTREAM, _MODE, _STORE.
# Sizes are bytes, or text such as \"32 MiB\" (1024) and \"16 MB\" (1000).
#
# forkpoint check-config prints what is in effect, and where each value came from.
";

#[test]
fn the_manual_is_the_table_of_keys_written_out() {
    assert_golden(&repository("config/forkpoint.toml"), &manual());
}

#[test]
fn the_manual_as_it_stands_and_with_every_setting_taken_up_is_the_default() {
    let defaults: BTreeMap<_, _> = KEYS.iter().map(|key| (key.path, key.default().to_json())).collect();
    let text = std::fs::read_to_string(repository("config/forkpoint.toml")).unwrap();
    let taken_up = text.lines().map(|line| match line.strip_prefix('#') {
        Some(setting) if setting.starts_with(|c: char| c.is_ascii_lowercase()) => setting,
        _ => line,
    });
    let taken_up = taken_up.collect::<Vec<_>>().join("\n");
    for (text, from_file) in [(&text, false), (&taken_up, true)] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f.toml"), text).unwrap();
        let run = check_config(dir.path(), &["--config", "f.toml", "--json"], &[]);
        assert_eq!(run.code, Some(0), "{}", run.stderr);
        let json = run.json();
        let keys = json["keys"].as_object().unwrap();
        let values: BTreeMap<_, _> =
            keys.iter().map(|(path, key)| (path.as_str(), key["value"].clone())).collect();
        assert_eq!(values, defaults);
        let every_key_from_file =
            keys.values().all(|key| key["origin"].as_str().unwrap().starts_with("f.toml:"));
        assert_eq!(every_key_from_file, from_file);
    }
}

#[test]
fn check_config_prints_exactly_the_keys_of_the_table_at_their_defaults() {
    let run = check_config(&repository("."), &[], &[]);
    let printed: toml_edit::DocumentMut = run.stdout.parse().unwrap();
    let mut seen = Vec::new();
    for (section, table) in printed.iter() {
        for (name, value) in table.as_table().unwrap().iter() {
            seen.push((format!("{section}.{name}"), value.to_string().trim().to_owned()));
        }
    }
    let without_comments = seen.iter().map(|(path, value)| {
        let value = value.split('#').next().unwrap_or_default().trim().to_owned();
        (path.clone(), value)
    });
    let table: Vec<_> = KEYS.iter().map(|key| (key.path.to_owned(), key.default().to_toml())).collect();
    assert_eq!(without_comments.collect::<Vec<_>>(), table);
}

/// The contract, spelled by hand: a changed default must be changed here too, on purpose.
#[test]
fn the_defaults_are_the_ones_that_were_promised() {
    let promised: Vec<(&str, Value)> = vec![
        ("server.listen", json!("127.0.0.1:8787")),
        ("server.admin_listen", json!("127.0.0.1:8788")),
        ("server.metrics_listen", json!("")),
        ("server.mode", json!("fork")),
        ("server.response_headers", json!(true)),
        ("upstream.url", json!("https://api.anthropic.com")),
        ("upstream.profile", json!("anthropic")),
        ("upstream.strips_attribution", json!("")),
        ("upstream.connect_ms", json!(5000)),
        ("upstream.idle_s", json!(900)),
        ("identity.pepper", json!("")),
        ("identity.tenant_headers", json!([])),
        ("identity.clients", json!([])),
        ("identity.oauth", json!("observe")),
        ("canonical.order", json!("first-seen")),
        ("canonical.system", json!("auto")),
        ("canonical.volatile", json!("report")),
        ("canonical.diagnose", json!(false)),
        ("fork.tools", json!(["Agent", "Task", "task", "*agent*", "spawn*", "delegate*", "dispatch*"])),
        ("fork.min_directive_chars", json!(60)),
        ("fork.min_children", json!(2)),
        ("fork.min_coverage", json!(0.5)),
        ("fork.match_window_s", json!(300)),
        ("fork.scan_bytes", json!(262_144)),
        ("fork.ttl_s", json!(3600)),
        ("fork.await_parent_ms", json!(3000)),
        ("fork.late", json!("partial")),
        ("fork.tools_policy", json!("equal")),
        ("fork.inherit", json!([])),
        ("fork.specialist_fields", json!(["subagent_type", "agent_type"])),
        ("fork.general_types", json!(["", "fork", "general-purpose"])),
        ("fork.exclude_sessions", json!([])),
        ("fork.max_context_share", json!(0.5)),
        ("fork.max_cost_ratio", json!(1.0)),
        ("fork.horizon_turns", json!(4)),
        ("fork.context_premium", json!(0.25)),
        ("fork.share", json!(1.0)),
        ("fork.report", json!("auto")),
        ("fork.boilerplate", json!("")),
        ("fork.hoist_system", json!(true)),
        ("fork.snapshots", json!("fan-out")),
        ("gate.scope", json!("children")),
        ("gate.max_hold_ms", json!(5000)),
        ("gate.min_tokens", json!(1024)),
        ("gate.json_hold_ms", json!(2500)),
        ("store.kind", json!("memory")),
        ("store.path", json!("")),
        ("store.url", json!("")),
        ("store.key", json!("")),
        ("store.key_file", json!("")),
        ("store.deadline_ms", json!(50)),
        ("store.lock_wait_ms", json!(10_000)),
        ("store.max_age_s", json!(604_800)),
        ("store.max_bytes", json!(268_435_456)),
        ("store.tenant_share", json!(0.25)),
        ("store.recent_bytes", json!(67_108_864)),
        ("store.child_ttl_s", json!(3600)),
        ("prices.file", json!("")),
        ("limits.body_bytes", json!(33_554_432)),
        ("limits.observe_bytes", json!(16_777_216)),
        ("limits.connections", json!(4096)),
        ("limits.held_requests", json!(1024)),
        ("limits.held_bytes", json!(268_435_456)),
        ("limits.pending_forks", json!(64)),
        ("limits.tool_uses", json!(256)),
        ("limits.header_s", json!(75)),
        ("limits.stall_s", json!(60)),
        ("record.file", json!("")),
        ("record.max_bytes", json!(67_108_864)),
        ("record.files", json!(8)),
        ("record.bodies", json!("off")),
        ("record.match", json!("")),
        ("record.match_minutes", json!(15)),
        ("log.format", json!("human")),
        ("log.level", json!("info")),
        ("trace.endpoint", json!("")),
        ("trace.sample", json!(1.0)),
        ("trace.headers_file", json!("")),
        ("trace.propagate", json!(false)),
        ("drain.delay_ms", json!(0)),
        ("drain.deadline_s", json!(300)),
        ("admin.token_file", json!("")),
        ("admin.open_metrics", json!(false)),
        ("admin.subscribers", json!(16)),
    ];
    let table: Vec<_> = KEYS.iter().map(|key| (key.path, key.default().to_json())).collect();
    assert_eq!(table, promised);
}

fn manual() -> String {
    let mut text = INTRODUCTION.to_owned();
    for section in SECTIONS {
        text.push_str(&format!("\n\n# {}\n[{}]\n", section.meaning, section.name));
        for key in KEYS.iter().filter(|key| key.section() == section.name) {
            text.push('\n');
            text.push_str(&entry(key));
        }
    }
    text
}

fn entry(key: &ConfigKey) -> String {
    let secret = if matches!(key.kind, KeyKind::Secret(_)) {
        format!(" Better set as {} than written here.", key.variable())
    } else {
        String::new()
    };
    let meaning = prose(&format!("{}{secret}", key.meaning));
    let reason = prose(&format!("Default: {}.", key.reason));
    format!("{meaning}{reason}#{} = {}\n", key.name(), key.default().to_toml())
}

/// Lines of at most 110 columns, each a comment.
fn prose(text: &str) -> String {
    let mut lines = String::new();
    let mut line = "#".to_owned();
    for word in text.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > 110 {
            lines.push_str(&line);
            lines.push('\n');
            line = "#".to_owned();
        }
        line.push(' ');
        line.push_str(word);
    }
    lines.push_str(&line);
    lines.push('\n');
    lines
}
