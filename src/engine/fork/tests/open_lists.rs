//! Members, blocks and betas that nobody here knows, or that do nothing.

use super::*;

#[test]
fn a_marker_of_the_parent_is_copied_whole() {
    let mut parent = parent_body();
    let global = json!({"type": "ephemeral", "ttl": "1h", "scope": "global"});
    let tail = json!({"type": "ephemeral", "unheard_of": {"x": [1]}});
    parent["system"][0]["cache_control"] = global.clone();
    parent["messages"][0]["content"][0]["cache_control"] = tail.clone();
    let scene = Scene::of(&parent.to_string(), &two_calls());
    let mut body = child_body("a");
    let (prefix, first) = scene.first(&body.to_string(), 0);
    assert_eq!(value(&first)["messages"][0]["content"][0]["cache_control"], tail, "breakpoint a");
    let answer = json!({"role": "assistant", "content": [text("So.")]});
    let next = json!({"role": "user", "content": [{"type": "text", "text": "On.", "cache_control": tail}]});
    body["messages"].as_array_mut().unwrap().extend([answer, next]);
    let later = value(&scene.later(&prefix, &body.to_string(), None));
    assert_eq!(later["system"][0]["cache_control"], global, "the end of the system prompt");
    assert_eq!(later["messages"][4]["content"][0]["cache_control"], tail, "its own tail");
}

#[test]
fn system_messages_that_do_more_than_speak_stay_where_they_are() {
    for system in [
        json!({"role": "system", "content": "Soon gone.", "clear_at": "next_user_message"}),
        json!({"role": "system", "content": [text("Think less.")], "output_config": {"effort": "low"}}),
        json!({"role": "system", "content": [], "output_config": {"effort": "low"}}),
        json!({"role": "system", "content": [
            {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "Read"}}]}),
        json!({"role": "system", "content": [{"type": "text", "text": "So they say.", "citations": [{}]}]}),
    ] {
        // In the parent's history and in the child's own.
        let mut parent = parent_body();
        parent["messages"]
            .as_array_mut()
            .unwrap()
            .extend([system.clone(), json!({"role": "user", "content": "Go."})]);
        let scene = Scene::of(&parent.to_string(), &two_calls());
        let mut body = child_body("a");
        body["messages"].as_array_mut().unwrap().push(system.clone());
        let (_, composed) = scene.first(&body.to_string(), 0);
        let messages = unmarked(value(&composed))["messages"].as_array().unwrap().clone();
        assert_eq!((&messages[1], messages.last()), (&system, Some(&system)));
        assert!(!composed.notes.contains(&ForkNote::Hoisted), "{system}");
    }
}

#[test]
fn blocks_that_nobody_here_knows_keep_their_place_and_bytes() {
    let mut parent = parent_body();
    let listing = json!({"type": "mcp_tool_listing", "tools": [{"x": 1}], "toolset_name": "m"});
    parent["messages"][0]["content"].as_array_mut().unwrap().push(listing.clone());
    let blocks =
        [vec![listing.clone(), json!({"type": "unheard_of", "deep": {"y": [2]}})], two_calls()].concat();
    let scene = Scene::on(fan_out_of(&parent.to_string(), &blocks), None, Attribution::Stripped);
    let (_, composed) = scene.first(&child_body("a").to_string(), 0);
    let messages = unmarked(value(&composed))["messages"].clone();
    assert_eq!(messages[0]["content"][1], listing);
    assert_eq!(messages[1]["content"], json!(blocks));
}

#[test]
fn betas_without_effect_are_neither_added_nor_dropped() {
    assert_eq!(betas("pdfs-2024-09-25,a", "token-counting-2024-11-01,a"), "token-counting-2024-11-01,a");
    assert_eq!(betas("pdfs-2024-09-25,b", "token-counting-2024-11-01,a"), "b,token-counting-2024-11-01,a");
    assert_eq!(betas("files-api-2025-04-14", "a"), "files-api-2025-04-14,a", "this one chooses shapes");
}
