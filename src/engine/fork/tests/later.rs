use super::*;
use crate::engine::words::ForkNote;

fn turn(number: usize) -> [Value; 2] {
    let id = format!("toolu_child_{number}");
    [
        json!({"role": "assistant", "content": [text("Looking."), call(&id, "Read", json!({"path": "x"}))]}),
        json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": "found"}]}),
    ]
}

fn after(mut body: Value, turns: usize) -> Value {
    body["messages"].as_array_mut().unwrap().extend((0..turns).flat_map(turn));
    body
}

/// The bytes of a body up to the child's first answer.
fn before_answer(composed: &Composed) -> String {
    let whole = unmarked(value(composed)).to_string();
    let end =
        whole.find("\"Looking.\"").map_or(whole.len() - 3, |at| whole[..at].rfind(r#",{"role":"#).unwrap());
    whole[..end].to_owned()
}

#[test]
fn the_prefix_stays_the_same_turn_after_turn() {
    let scene = Scene::new();
    let first = child_body("a");
    let (prefix, composed) = scene.first(&first.to_string(), 0);
    let mut last = composed.breakpoints.last().map(|point| point.piece);
    let start = before_answer(&composed);
    for turns in 1..6 {
        let body = after(first.clone(), turns);
        let later = scene.later(&prefix, &body.to_string(), last);
        assert!(before_answer(&later).starts_with(&start), "{turns}");
        let messages = unmarked(value(&later))["messages"].as_array().unwrap().clone();
        assert_eq!(messages[3..], body["messages"].as_array().unwrap()[1..], "verbatim");
        let paths = marks(&later);
        assert_eq!(paths[..2], ["system[0]", "messages[2].content[3]"], "the end of system, and c");
        assert_eq!(*paths.last().unwrap(), format!("messages[{}].content[0]", 2 + 2 * turns), "d");
        assert_eq!(later.breakpoints[2].piece, last.unwrap(), "the last d");
        last = later.breakpoints.last().map(|point| point.piece);
        assert!(later.notes.is_empty(), "{:?}", later.notes);
    }
}

#[test]
fn the_first_message_is_known_in_another_form() {
    let scene = Scene::new();
    let mut sent = child_body("a");
    let block = json!({"type": "text", "text": directive("a"), "cache_control": {"type": "ephemeral"}});
    sent["messages"][0]["content"] = json!([block]);
    let (prefix, composed) = scene.first(&sent.to_string(), 0);
    let start = before_answer(&composed);
    for content in [
        json!(directive("a")),
        json!([text(&directive("a"))]),
        json!([{"text": directive("a"), "type": "text"}]),
    ] {
        let mut body = after(sent.clone(), 1);
        body["messages"][0]["content"] = content.clone();
        let later = scene.later(&prefix, &body.to_string(), None);
        assert!(before_answer(&later).starts_with(&start), "{content}");
        assert!(!later.notes.contains(&ForkNote::Compacted));
    }
}

#[test]
fn a_hoisted_system_message_is_known_again_as_a_string() {
    let mut parent = parent_body();
    parent["output_config"] = json!({"effort": "medium"});
    let scene = Scene::of(&parent.to_string(), &two_calls());
    let mut first = child_body("a");
    first["output_config"] = json!({"effort": "medium"});
    let system =
        json!({"role": "system", "content": [text("Tools.")], "output_config": {"effort": "medium"}});
    first["messages"].as_array_mut().unwrap().push(system);
    let (prefix, composed) = scene.first(&first.to_string(), 0);
    let start = before_answer(&composed);
    let mut body = after(first.clone(), 1);
    body["messages"][1]["content"] = json!("Tools.");
    let later = scene.later(&prefix, &body.to_string(), None);
    assert!(before_answer(&later).starts_with(&start));
    assert_eq!(unmarked(value(&later))["messages"][3], body["messages"][2]);
    // Changed, it is no longer what was recorded, and stays where the client has it.
    for change in [("content", json!("Others.")), ("output_config", json!({"effort": "high"}))] {
        let mut changed = body.clone();
        changed["messages"][1][change.0] = change.1;
        let later = scene.later(&prefix, &changed.to_string(), None);
        assert!(later.notes.contains(&ForkNote::Compacted));
        let messages = unmarked(value(&later))["messages"].as_array().unwrap().clone();
        assert_eq!(messages[3..], changed["messages"].as_array().unwrap()[..]);
    }
}

#[test]
fn a_compacted_child_keeps_its_prefix_and_its_instructions() {
    let scene = Scene::new();
    let (prefix, composed) = scene.first(&child_body("a").to_string(), 0);
    let mut body = after(child_body("a"), 2);
    body["messages"][0]["content"] = json!("Summary of the work so far: nothing was found yet.");
    let later = scene.later(&prefix, &body.to_string(), Some(500));
    assert_eq!(later.notes, [ForkNote::Compacted]);
    let (one, two) = (unmarked(value(&composed)), unmarked(value(&later)));
    assert_eq!(one["messages"].as_array().unwrap()[..2], two["messages"].as_array().unwrap()[..2]);
    let own = one["messages"][2]["content"].as_array().unwrap();
    assert_eq!(two["messages"][2]["content"].as_array().unwrap()[..], own[..4], "all but the directive");
    assert_eq!(two["messages"].as_array().unwrap()[3..], body["messages"].as_array().unwrap()[..]);
    let again = scene.later(&prefix, &body.to_string(), None);
    assert_eq!(bytes(&again), bytes(&later));
}

#[test]
fn a_call_for_a_summary_takes_nothing_over_that_the_api_refuses_beside_it() {
    let mut parent = parent_body();
    parent["context_management"] = json!({"edits": []});
    parent["tool_choice"] = json!({"type": "any"});
    let mut scene = Scene::of(&parent.to_string(), &two_calls());
    scene.policy.inherit = vec!["context_management".into(), "tool_choice".into()];
    let (prefix, composed) = scene.first(&child_body("a").to_string(), 0);
    assert_eq!(value(&composed)["tool_choice"], json!({"type": "any"}), "otherwise it does");
    let mut body = after(child_body("a"), 1);
    body["compaction"] = json!({"type": "summarize"});
    let later = scene.later(&prefix, &body.to_string(), None);
    let sent = value(&later);
    assert_eq!((sent.get("context_management"), sent.get("tool_choice")), (None, None));
    assert_eq!(sent["compaction"], body["compaction"]);
    assert!(before_answer(&later).contains("Survey the project."), "on its prefix, like every turn");
}

#[test]
fn a_new_system_prompt_is_not_lost() {
    let scene = Scene::new();
    let (prefix, _) = scene.first(&child_body("a").to_string(), 0);
    let mut body = after(child_body("a"), 1);
    body["system"] = json!([text("You work."), text("And hurry.")]);
    let later = scene.later(&prefix, &body.to_string(), None);
    assert_eq!(later.notes, [ForkNote::NewInstructions]);
    let own = unmarked(value(&later))["messages"][2]["content"].clone();
    let expected = [text("You work."), text("And hurry."), text(&directive("a"))];
    assert_eq!(own.as_array().unwrap()[3..], expected);
}

#[test]
fn settings_that_change_are_the_childs() {
    let mut parent = parent_body();
    parent["thinking"] = json!({"type": "adaptive"});
    let mut scene = Scene::of(&parent.to_string(), &two_calls());
    let mut child = child_body("a");
    child["thinking"] = json!({"type": "adaptive"});
    let (prefix, _) = scene.first(&child.to_string(), 0);
    let mut body = after(child, 1);
    body["tool_choice"] = json!({"type": "none"});
    body["max_tokens"] = json!(7);
    body.as_object_mut().unwrap().remove("thinking");
    let later = scene.later(&prefix, &body.to_string(), None);
    let made = value(&later);
    assert_eq!((&made["tool_choice"], &made["max_tokens"]), (&json!({"type": "none"}), &json!(7)));
    assert_eq!(made.get("thinking"), None);
    assert_eq!(later.notes, [ForkNote::ChangedFields]);
    // What it takes from its parent whatever it says was settled when it came.
    scene.policy.inherit = vec!["thinking".into(), "tool_choice".into()];
    let (inheriting, _) = scene.first(&body.to_string(), 0);
    scene.policy.inherit.clear();
    let made = value(&scene.later(&inheriting, &body.to_string(), None));
    assert_eq!((made.get("tool_choice"), made.get("thinking")), (None, Some(&json!({"type": "adaptive"}))));
}

#[test]
fn an_upstream_that_caches_by_itself_gets_the_same_bytes_without_markers() {
    let scene = Scene::new();
    let mut body = child_body("a");
    body["system"][0]["cache_control"] = json!({"type": "ephemeral"});
    let (prefix, first) = scene.first(&body.to_string(), 0);
    let later = after(body.clone(), 3);
    for (body, turn) in [(body, Turn::First), (later, Turn::Later(Some(9)))] {
        let request = read(&body.to_string());
        let plain = prefix.compose(&request, turn, Profile::Automatic);
        assert!(plain.breakpoints.is_empty());
        assert!(!bytes(&plain).contains("cache_control"));
        let marked = prefix.compose(&request, turn, Profile::Anthropic);
        assert_eq!(value(&plain), unmarked(value(&marked)));
        assert!(before_answer(&plain).starts_with(&before_answer(&first)));
    }
}

#[test]
fn a_long_turn_is_bridged() {
    let scene = Scene::new();
    let (prefix, composed) = scene.first(&child_body("a").to_string(), 0);
    let last = composed.breakpoints.last().unwrap().piece;
    let calls: Vec<_> = (0..30).map(|n| call(&format!("c{n}"), "Read", json!({}))).collect();
    let results: Vec<_> = (0..30)
        .map(|n| json!({"type": "tool_result", "tool_use_id": format!("c{n}"), "content": "x"}))
        .collect();
    let mut body = child_body("a");
    let more = [json!({"role": "assistant", "content": calls}), json!({"role": "user", "content": results})];
    body["messages"].as_array_mut().unwrap().extend(more);
    let later = scene.later(&prefix, &body.to_string(), Some(last));
    let pieces: Vec<_> = later.breakpoints.iter().map(|point| point.piece).collect();
    assert_eq!(pieces, [last - 1, last, last + 19, last + 60], "the end of system gives way");
    marks(&later);
    // An entry that cannot be marked any more is found from soon after it.
    let mut body = after(child_body("a"), 2);
    let thinking = json!({"type": "thinking", "thinking": "t", "signature": "s"});
    body["messages"][1]["content"].as_array_mut().unwrap().insert(0, thinking);
    let later = scene.later(&prefix, &body.to_string(), Some(last + 1));
    let pieces: Vec<_> = later.breakpoints.iter().map(|point| point.piece).collect();
    let parent = scene.fork.parent.request.anatomy();
    let end_of_system = parent.tools + parent.system - 1;
    assert_eq!(pieces, [end_of_system, last - 1, last + 2, last + 7]);
}

#[test]
fn an_unknown_last_tail_does_no_harm() {
    let scene = Scene::new();
    let (prefix, _) = scene.first(&child_body("a").to_string(), 0);
    let body = after(child_body("a"), 3);
    for last in [0, 1, 5, 12, 100, usize::MAX] {
        marks(&scene.later(&prefix, &body.to_string(), Some(last)));
    }
}

#[test]
fn the_end_of_the_parents_system_has_its_tier() {
    let hour = json!({"type": "ephemeral", "ttl": "1h"});
    let mut parent = parent_body();
    parent["system"][0]["cache_control"] = hour.clone();
    for mark in [json!(null), json!({"type": "ephemeral"}), hour] {
        let mut parent = parent.clone();
        parent["messages"][0]["content"] = json!([text("Go.")]);
        parent["messages"][0]["content"][0]["cache_control"] = mark;
        let scene = Scene::of(&parent.to_string(), &two_calls());
        let (prefix, composed) = scene.first(&child_body("a").to_string(), 0);
        let last = composed.breakpoints.last().map(|point| point.piece);
        let later = scene.later(&prefix, &after(child_body("a"), 1).to_string(), last);
        assert_eq!(marks(&later)[0], "system[0]");
        let tiers: Vec<Ttl> = later.breakpoints.iter().map(|point| point.ttl).collect();
        assert_eq!(tiers[0], Ttl::OneHour);
        assert!(tiers.is_sorted_by_key(|ttl| *ttl == Ttl::FiveMinutes), "an hour never follows five minutes");
    }
}

#[test]
fn where_a_parents_system_is_a_string_the_end_of_its_tools_is_marked() {
    let mut parent = parent_body();
    parent["system"] = json!("You lead.");
    let scene = Scene::of(&parent.to_string(), &two_calls());
    let (prefix, composed) = scene.first(&child_body("a").to_string(), 0);
    let last = composed.breakpoints.last().map(|point| point.piece);
    let later = scene.later(&prefix, &after(child_body("a"), 1).to_string(), last);
    let last_tool = parent["tools"].as_array().unwrap().len() - 1;
    assert_eq!(marks(&later)[0], format!("tools[{last_tool}]"));
}
