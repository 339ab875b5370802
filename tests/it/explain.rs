//! `forkpoint explain` on bodies as clients send them.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

const TURN_1: &str = r#"{"model":"claude-sonnet-4-6","tools":[{"name":"read","input_schema":{"type":"object","properties":{"path":{"type":"string"}}}}],"system":[{"type":"text","text":"You are terse.","cache_control":{"type":"ephemeral","ttl":"1h"}}],"messages":[{"role":"user","content":[{"type":"text","text":"hello","cache_control":{"type":"ephemeral"}}]}]}"#;

fn write(folder: &Path, name: &str, body: &str) {
    std::fs::write(folder.join(name), body).unwrap();
}

fn explain(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_forkpoint"))
        .arg("explain")
        .args(args)
        .current_dir(folder)
        .env_clear()
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn divergence(first: &str, second: &str) -> Value {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "a.json", first);
    write(folder.path(), "b.json", second);
    let report: Value =
        serde_json::from_str(&text(&explain(folder.path(), &["--json", "a.json", "b.json"]))).unwrap();
    report["divergence"].clone()
}

#[test]
fn layers_hashes_sizes_and_breakpoints_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "a.json", TURN_1);
    let shown = text(&explain(folder.path(), &["a.json"]));
    assert!(shown.starts_with("a.json: claude-sonnet-4-6, "), "{shown}");
    let row =
        |layer: &str| shown.lines().find(|line| line.trim_start().starts_with(layer)).unwrap().to_owned();
    assert!(row("system").ends_with("system[0] 1h"), "{shown}");
    assert!(row("messages").ends_with("messages[0].content[0] 5m"), "{shown}");
    assert!(row("tools").split_whitespace().any(|word| word.len() == 16), "{shown}");
    assert!(!shown.contains('\x1b'), "no colour where nobody looks");
}

#[test]
fn the_breakpoints_that_align_would_add_are_named() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "marked.json", TURN_1);
    let shown = text(&explain(folder.path(), &["marked.json"]));
    assert!(shown.contains("align would add: nothing (below_minimum)"), "its tools are short: {shown}");
    let hour = r#""name":"read","cache_control":{"type":"ephemeral","ttl":"1h"}"#;
    write(folder.path(), "whole.json", &TURN_1.replace(r#""name":"read""#, hour));
    let shown = text(&explain(folder.path(), &["whole.json"]));
    assert!(shown.contains("align would add: nothing, the client's own"), "{shown}");
    let bare = TURN_1
        .replace(r#","cache_control":{"type":"ephemeral","ttl":"1h"}"#, "")
        .replace(r#","cache_control":{"type":"ephemeral"}"#, "");
    write(folder.path(), "short.json", &bare);
    let shown = text(&explain(folder.path(), &["short.json"]));
    assert!(
        shown.contains("align would add: nothing (below_minimum, below_minimum, below_minimum)"),
        "{shown}"
    );
    let bare = bare.replace("terse", &"terse ".repeat(2_000));
    write(folder.path(), "bare.json", &bare);
    let shown = text(&explain(folder.path(), &["bare.json"]));
    assert!(shown.contains("align would add: system[0] 5m, messages[0].content[0] 5m"), "{shown}");
    write(folder.path(), "once.json", r#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#);
    assert!(text(&explain(folder.path(), &["once.json"])).contains("align would add: nothing (one_shot)"));
}

#[test]
fn a_second_turn_is_planned_behind_the_entries_of_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let text_block = |text: &str| json!({"type": "text", "text": text});
    let mut body = json!({
        "model": "claude-sonnet-4-6",
        "tools": [{"name": "read", "input_schema": {"type": "object"}}],
        "messages": [{"role": "user", "content": [text_block(&"Look around. ".repeat(1_000))]}],
    });
    write(folder.path(), "a.json", &body.to_string());
    // So many blocks that the tail of this turn does not look back to that of the last.
    let blocks: Vec<_> = (0..40).map(|number| text_block(&format!("step {number}"))).collect();
    body["messages"].as_array_mut().unwrap().extend([
        json!({"role": "assistant", "content": blocks}),
        json!({"role": "user", "content": [text_block("Go on.")]}),
    ]);
    write(folder.path(), "b.json", &body.to_string());
    let shown = text(&explain(folder.path(), &["--json", "a.json", "b.json"]));
    let report: Value = serde_json::from_str(&shown).unwrap();
    let planned: Vec<_> =
        report["requests"][1]["planned"].as_array().unwrap().iter().map(|at| &at["path"]).collect();
    assert_eq!(planned, ["messages[0].content[0]", "messages[2].content[0]"], "the bridge and the tail");
}

#[test]
fn a_turn_that_only_adds_messages_extends_the_one_before() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "a.json", TURN_1);
    // The old marker moves, keys are reordered, white space appears: none of it is in the prompt.
    let later = r#"{"messages": [{"role":"user","content":[{"text":"hello","type":"text"}]},{"role":"assistant","content":"hi"}],
        "system": [{"type":"text","text":"You are terse."}], "tools": [{"name":"read","input_schema":{"type":"object","properties":{"path":{"type":"string"}}}}], "model":"claude-sonnet-4-6"}"#;
    write(folder.path(), "b.json", later);
    let shown = text(&explain(folder.path(), &["a.json", "b.json"]));
    assert!(shown.contains("extends: all 3 pieces of a.json are kept, 1 follow"), "{shown}");
    assert_eq!(divergence(TURN_1, later), Value::Null);
}

#[test]
fn the_first_divergence_is_named_with_both_spellings() {
    let respelt = TURN_1
        .replace(r#"{"type":"object","properties""#, r#"{"properties""#)
        .replace(r#"{"type":"string"}}}}]"#, r#"{"type":"string"}},"type":"object"}}]"#);
    let found = divergence(TURN_1, &respelt);
    assert_eq!(
        (&found["layer"], &found["path"], &found["kind"]),
        (&"tools".into(), &"tools[0]".into(), &"spelling".into())
    );
    assert!(found["spellings"][0].as_str().unwrap().contains(r#""type":"object""#), "{found}");
    assert!(found["spellings"][1].as_str().unwrap().contains(r#"{"properties""#), "{found}");
    assert!(found["lost_bytes"].as_u64().unwrap() > 100);

    let reworded = TURN_1.replace("terse", "verbose");
    assert_eq!(divergence(TURN_1, &reworded)["kind"], "meaning");
    assert_eq!(divergence(TURN_1, &TURN_1.replace("sonnet-4-6", "opus-4-8"))["path"], "model");
}

#[test]
fn the_same_tools_in_another_order_are_told_from_other_tools() {
    let tool =
        |name: &str| format!(r#"{{"name":"{name}","input_schema":{{"type":"object","title":"{name}"}}}}"#);
    let body = |tools: &[&str]| {
        let tools: Vec<String> = tools.iter().map(|name| tool(name)).collect();
        TURN_1.replace(
            r#"[{"name":"read","input_schema":{"type":"object","properties":{"path":{"type":"string"}}}}]"#,
            &format!("[{}]", tools.join(",")),
        )
    };
    let respelt =
        body(&["b", "c", "a"]).replace(r#""type":"object","title":"b""#, r#""title":"b","type":"object""#);
    for (second, is_reordered) in [
        (body(&["c", "a", "b"]), true),
        (respelt, true),
        (body(&["b", "c", "x"]), false),
        (body(&["b", "a"]), false),
        (body(&["b", "a", "a"]), false),
    ] {
        let first = body(&["a", "b", "c"]);
        assert_eq!(divergence(&first, &second)["tools_reordered"], is_reordered, "{second}");
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "a.json", &first);
        write(folder.path(), "b.json", &second);
        let shown = text(&explain(folder.path(), &["a.json", "b.json"]));
        let said = "the same tools in another order: `align` restores it";
        assert_eq!(shown.contains(said), is_reordered, "{shown}");
    }
}

#[test]
fn a_dash_is_standard_input_and_stands_for_one_body_only() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "a.json", TURN_1);
    let piped = |args: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_forkpoint"))
            .arg("explain")
            .args(args)
            .current_dir(folder.path())
            .env_clear()
            .stdin(std::fs::File::open(folder.path().join("a.json")).unwrap())
            .output()
            .unwrap()
    };
    assert!(text(&piped(&["-"])).starts_with("standard input: claude-sonnet-4-6, "));
    let shown = text(&piped(&["a.json", "-"]));
    assert!(shown.contains("extends: all 3 pieces of a.json are kept, 0 follow"), "{shown}");
    let twice = piped(&["-", "-"]);
    let message = String::from_utf8_lossy(&twice.stderr).into_owned();
    assert!(twice.status.code() == Some(64) && message.contains("'-' is named twice"), "{message}");
}

#[test]
fn requests_of_a_recording_are_named_by_their_ids() {
    let folder = tempfile::tempdir().unwrap();
    let second = TURN_1.replace("You are terse.", "You are brief.");
    let line = |id: u64, body: Option<&str>| json!({"v": 1, "id": id, "time_ms": id, "bodies": "full", "request": body});
    let lines = [line(17, Some(TURN_1)), line(18, Some(&second)), line(19, None)];
    write(folder.path(), "r.jsonl", &lines.map(|line| format!("{line}\n")).concat());
    write(folder.path(), "a.json", TURN_1);
    for operands in [
        &["--recording", "r.jsonl", "17", "18"][..],
        &["r.jsonl#17", "r.jsonl#18"],
        &["a.json", "r.jsonl#18"],
        &["--recording", "r.jsonl", "a.json", "18"],
    ] {
        let shown = text(&explain(folder.path(), operands));
        assert!(shown.contains("diverges at system[0]: different content"), "{operands:?}: {shown}");
        assert!(shown.contains("\nrequest 18: claude-sonnet-4-6, "), "{operands:?}: {shown}");
    }
    for (operands, code, said) in [
        (&["--recording", "r.jsonl", "19"][..], 1, "request 19 was recorded without its body"),
        (&["r.jsonl#20"], 1, "no request 20 in r.jsonl"),
        (&["17", "18"], 64, "--recording FILE"),
        (&["gone.json"], 1, "FILE#ID"),
    ] {
        let output = explain(folder.path(), operands);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{operands:?}: {message}");
        assert!(message.contains(said), "{operands:?}: {message}");
    }
}

#[test]
fn what_is_no_request_is_refused_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "bad.json", "{\n \"a\": 1,\n oops }");
    let refused = explain(folder.path(), &["bad.json"]);
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1));
    assert!(message.contains("bad.json:3: not one JSON object, byte 12 cannot stand there"), "{message}");
    let missing = explain(folder.path(), &["nowhere.json"]);
    assert!(String::from_utf8_lossy(&missing.stderr).contains("cannot read nowhere.json"));
}

#[test]
fn the_loss_is_priced_where_the_model_has_a_price() {
    let long =
        TURN_1.replace("claude-sonnet-4-6", "claude-opus-5-5-20260901").replace("hello", &"a".repeat(40_000));
    let found = divergence(&long, &long.replace("terse", "verbose"));
    let tokens = found["lost_tokens_estimate"].as_u64().unwrap();
    assert_eq!(tokens, found["lost_bytes"].as_u64().unwrap() / 4);
    let cost = &found["cost_estimate"];
    // The system prompt asks for an hour, so what is lost is written at $8 per million instead of read at $0.20.
    assert_eq!((&cost["model"], &cost["ttl"]), (&"claude-opus-5-5".into(), &"1h".into()), "{cost}");
    let usd = |key: &str| (cost[key].as_f64().unwrap() * 1e12).round() as u64;
    assert_eq!([usd("read_usd"), usd("write_usd")], [tokens * 200_000, tokens * 8_000_000]);
    assert_eq!(usd("extra_usd"), tokens * 7_800_000);
    let five_minutes = long.replace(r#","ttl":"1h""#, "");
    let found = divergence(&five_minutes, &five_minutes.replace("terse", "verbose"));
    assert_eq!(found["cost_estimate"]["ttl"], "5m");
}

#[test]
fn a_model_without_a_price_has_tokens_and_no_dollars() {
    let turn = TURN_1.replace("claude-sonnet-4-6", "claude-mythos-preview");
    let reworded = turn.replace("terse", "verbose");
    let found = divergence(&turn, &reworded);
    assert!(found["lost_tokens_estimate"].as_u64().unwrap() > 0);
    assert_eq!(found["cost_estimate"], Value::Null);

    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "a.json", &turn);
    write(folder.path(), "b.json", &reworded);
    let shown = text(&explain(folder.path(), &["a.json", "b.json"]));
    assert!(shown.contains("estimated cost: not known"), "{shown}");
    let table = "[claude-mythos-preview]\ninput = 1000\nread = 0.1\nwrite_5m = 1.25\nwrite_1h = 2\nsource = 's'\nas_of = 2026-02-01\n";
    write(folder.path(), "p.toml", table);
    let shown = text(&explain(folder.path(), &["--prices", "p.toml", "a.json", "b.json"]));
    assert!(shown.contains("; claude-mythos-preview, prices of 2026-02-01\n"), "{shown}");
    write(folder.path(), "p.toml", "[claude-mythos-preview]\ninput = no\n");
    let refused = explain(folder.path(), &["--prices", "p.toml", "a.json"]);
    assert_eq!(refused.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("p.toml:2:"), "{refused:?}");
}

#[test]
fn texts_that_change_are_shown_with_their_kinds() {
    let prompt = |date: &str, directory: &str| {
        TURN_1.replace("You are terse.", &format!(r"You are terse.\nToday is {date}.\nIn {directory}\nGo."))
    };
    let (one, two) = (prompt("2026-11-16", "/home/a"), prompt("2026-11-17", "/home/b"));
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "a.json", &one);
    write(folder.path(), "b.json", &two);
    let shown = text(&explain(folder.path(), &["a.json", "b.json"]));
    assert!(shown.contains("what changed before the messages"), "{shown}");
    let row = |kind: &str| shown.lines().find(|line| line.starts_with(&format!("    {kind} "))).unwrap();
    assert!(row("date").contains("system[0]  2026-11-16. → 2026-11-17."), "{shown}");
    assert!(row("directory").contains("/home/a → /home/b"), "{shown}");
    assert!(row("directory").ends_with(" tokens"), "{shown}");
    let report: Value =
        serde_json::from_str(&text(&explain(folder.path(), &["--json", "a.json", "b.json"]))).unwrap();
    let found = report["volatile"].as_array().unwrap();
    assert_eq!(found.len(), 2, "{report}");
    assert_eq!((&found[0]["kind"], &found[0]["layer"]), (&"date".into(), &"system".into()), "{report}");
    assert_eq!(found[1]["texts"], json!(["/home/a", "/home/b"]), "{report}");
    assert!(found[0]["tokens_estimate"].as_u64() > found[1]["tokens_estimate"].as_u64(), "{report}");

    write(folder.path(), "b.json", &one.replace("hello", "at 10:00"));
    let shown = text(&explain(folder.path(), &["a.json", "b.json"]));
    assert!(shown.contains("diverges") && !shown.contains("what changed before"), "{shown}");
}

/// A parent, an answer of its that calls three agents, and a child, with so many bytes of shared tools.
pub fn family(tools: usize) -> [Value; 3] {
    let tool = |name: &str, bytes: usize| json!({"name": name, "description": "x".repeat(bytes), "input_schema": {"type": "object"}});
    let told = |number: usize| {
        format!(
            "Investigate part {number} of the project and nothing else, and report what you have found there."
        )
    };
    let call = |number: usize| {
        let input = json!({"description": "look", "prompt": told(number)});
        json!({"type": "tool_use", "id": format!("toolu_{number}"), "name": "Agent", "input": input})
    };
    let model = "claude-sonnet-4-6";
    let parent = json!({
        "model": model, "max_tokens": 4000, "tools": [tool("read", tools), tool("Agent", 40)],
        "system": [{"type": "text", "text": "You lead."}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "y".repeat(80_000)}]}],
    });
    let answer = json!({"role": "assistant", "content": [
        {"type": "text", "text": "I split this."}, call(1), call(2), call(3)]});
    let child = json!({
        "model": model, "max_tokens": 1000, "tools": [tool("read", tools)],
        "system": [{"type": "text", "text": "You work."}],
        "messages": [{"role": "user", "content": told(2)}],
    });
    [parent, answer, child]
}

fn explain_child(family: &[Value; 3], more: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    for (name, value) in ["parent.json", "answer.json", "child.json"].iter().zip(family) {
        write(folder.path(), name, &value.to_string());
    }
    let args = ["--parent", "parent.json", "--answer", "answer.json", "child.json"];
    explain(folder.path(), &[&args, more].concat())
}

fn finding(family: &[Value; 3], more: &[&str]) -> Value {
    serde_json::from_str(&text(&explain_child(family, &[&["--json"], more].concat()))).unwrap()
}

#[test]
fn a_childs_plan_is_shown_with_its_layout_and_both_counterfactuals() {
    let family = family(200_000);
    let found = finding(&family, &[]);
    assert_eq!((&found["plan"], &found["reason"]), (&json!("aligned"), &json!("unlearned")), "{found:#}");
    assert!(found["forecast"]["limits"]["unknown"].as_f64() > Some(1.0), "{found:#}");
    let found = finding(&family, &["--turns", "4"]);
    assert_eq!((&found["plan"], &found["reason"]), (&json!("forked"), &json!("none")), "{found:#}");
    assert_eq!(
        found["recognised"],
        json!({"rank": "whole", "tool": "Agent", "tool_use": "toolu_2", "siblings": 3})
    );
    let layout = &found["layout"];
    assert!(layout["bytes_shared"].as_u64().unwrap() > 280_000, "{found:#}");
    assert!(layout["body_bytes"].as_u64() > layout["bytes_shared"].as_u64());
    let marked: Vec<_> =
        layout["breakpoints"].as_array().unwrap().iter().map(|at| at["path"].as_str().unwrap()).collect();
    // The parent's entry; the last placeholder, the last block before the directive, and the directive.
    let placed = [
        "messages[0].content[0]",
        "messages[2].content[2]",
        "messages[2].content[4]",
        "messages[2].content[5]",
    ];
    assert_eq!(marked, placed, "{found:#}");
    let forecast = &found["forecast"];
    assert_eq!((&forecast["unit"], &forecast["turns"]), (&json!("usd"), &json!(4)));
    let figure = |name: &str| forecast[name].as_f64().unwrap();
    assert!(figure("aligned") < figure("as_sent") && figure("forked") < figure("as_sent"), "{found:#}");

    let shown = text(&explain_child(&family, &["--turns", "4"]));
    assert!(shown.starts_with("child.json under parent.json and answer.json: forked\n"), "{shown}");
    for words in
        ["Agent (toolu_2): whole; one of 3 siblings", "breakpoints: ", "as sent ", "aligned ", "4 turns"]
    {
        assert!(shown.contains(words), "{words} in {shown}");
    }
}

#[test]
fn a_child_that_is_not_forked_is_told_why() {
    let found = finding(&family(100), &[]);
    assert_eq!((&found["plan"], &found["reason"]), (&json!("aligned"), &json!("cost")), "{found:#}");
    assert!(found["forecast"]["ratio"].as_f64().unwrap() > 1.0);

    let [parent, answer, child] = family(200_000);
    let mut other_model = child.clone();
    other_model["model"] = json!("claude-haiku-4-5");
    let found = finding(&[parent.clone(), answer.clone(), other_model], &[]);
    assert_eq!(found["reason"], "model");
    let mut stranger = child.clone();
    stranger["messages"][0]["content"] = json!("Hello.");
    let found = finding(&[parent.clone(), answer.clone(), stranger], &[]);
    assert_eq!((&found["reason"], &found["layout"]), (&json!("no_directive"), &Value::Null));
    let alone = json!({"content": [answer["content"][1]]});
    assert_eq!(finding(&[parent.clone(), alone, child.clone()], &[])["reason"], "few_calls");

    // Fewer tools than the parent: only where the client is known to keep to them.
    let mut more = parent;
    more["tools"].as_array_mut().unwrap().push(json!({"name": "write", "input_schema": {"type": "object"}}));
    let fewer = [more, answer, child];
    assert_eq!(finding(&fewer, &[])["reason"], "tools_subset");
    assert_eq!(finding(&fewer, &["--agent", "--turns", "4"])["plan"], "forked");
}

#[test]
fn a_forecast_follows_what_was_billed_and_how_long_the_child_lives() {
    let mut family = family(200_000);
    let guessed = finding(&family, &["--turns", "1"]);
    assert_eq!((&guessed["tokens_from"], &guessed["forecast"]["turns"]), (&json!("bytes"), &json!(1)));
    family[1]["usage"] =
        json!({"input_tokens": 10, "cache_creation_input_tokens": 140_000, "output_tokens": 300});
    let billed = finding(&family, &["--turns", "1"]);
    assert_eq!(billed["tokens_from"], "usage");
    // Twice as many tokens as guessed.
    let forked = |found: &Value| found["forecast"]["forked"].as_f64().unwrap();
    assert!((1.9..2.1).contains(&(forked(&billed) / forked(&guessed))), "{guessed:#} {billed:#}");
}

#[test]
fn what_is_no_answer_is_refused_and_half_a_question_too() {
    let [parent, _, child] = family(100);
    let refused = explain_child(&[parent, json!({"content": "as a string"}), child], &[]);
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1));
    assert!(message.contains("answer.json: not a whole assistant message"), "{message}");
    let folder = tempfile::tempdir().unwrap();
    let half = explain(folder.path(), &["--parent", "p.json", "c.json"]);
    assert_eq!(half.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&half.stderr).contains("--answer"));
}

#[test]
fn a_childs_plan_follows_the_configuration() {
    let family = family(200_000);
    let folder = tempfile::tempdir().unwrap();
    for (name, value) in ["parent.json", "answer.json", "child.json"].iter().zip(&family) {
        write(folder.path(), name, &value.to_string());
    }
    write(folder.path(), "strict.toml", "[fork]\nmax_cost_ratio = 0.01\n");
    let asked = |more: &[&str], variables: &[(&str, &str)]| {
        let output = Command::new(env!("CARGO_BIN_EXE_forkpoint"))
            .args(["explain", "--json", "--turns", "4", "--parent", "parent.json"])
            .args(["--answer", "answer.json", "child.json"])
            .args(more)
            .current_dir(folder.path())
            .env_clear()
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        serde_json::from_str::<Value>(&text(&output)).unwrap()
    };
    assert_eq!(asked(&[], &[])["plan"], "forked");
    let found = asked(&["--config", "strict.toml"], &[]);
    assert_eq!((&found["plan"], &found["reason"]), (&json!("aligned"), &json!("cost")), "{found:#}");
    assert_eq!(found["forecast"]["max_ratio"], 0.01);
    assert_eq!(asked(&[], &[("FORKPOINT_CONFIG", "strict.toml")])["reason"], "cost");
    assert_eq!(asked(&[], &[("FORKPOINT_FORK__MIN_CHILDREN", "4")])["reason"], "few_calls");
    assert_eq!(asked(&[], &[("FORKPOINT_FORK__TOOLS_POLICY", "subset")])["plan"], "forked");
    assert_eq!(asked(&[], &[("FORKPOINT_FORK__SHARE", "0.01")])["plan"], "forked");
    let found = asked(&[], &[("FORKPOINT_FORK__SHARE", "0")]);
    assert_eq!(found["reason"], "holdout");
    assert!(found["forecast"]["forked"].is_number(), "{found:#}");
    let refused = explain(folder.path(), &["--config", "strict.toml", "child.json"]);
    assert_eq!(refused.status.code(), Some(64), "only a child is planned by settings");
}

#[test]
fn hostile_text_does_nothing_to_the_terminal() {
    const HOSTILE: &str = r"Agent\u001b[2J\u202e";
    let folder = tempfile::tempdir().unwrap();
    // As escapes of JSON, which are decoded for the model's name, and as the characters themselves.
    let raw = "Agent\u{7f}\u{202e}\u{e0041}";
    let body = |text: &str| {
        TURN_1.replace("claude-sonnet-4-6", HOSTILE).replace("You are terse.", text).replace("hello", text)
    };
    write(folder.path(), "a.json", &body(raw));
    write(folder.path(), "b.json", &body(&format!("{raw}, or not")));
    let shown = text(&explain(folder.path(), &["a.json", "b.json"]));
    assert!(!shown.contains(['\u{1b}', '\u{7f}', '\u{202e}', '\u{e0041}']), "{shown}");
    assert!(shown.starts_with(r"a.json: Agent\u{1b}[2J\u{202e}, "), "{shown}");
    assert!(shown.contains(r"Agent\u{7f}\u{202e}\u{e0041}"), "{shown}");
}
