use super::*;
use crate::engine::words::{Carrier, ForkNote, Origin, Refusal, Ttl};

fn written(piece: usize, ttl: Ttl) -> Option<Breakpoint> {
    Some(Breakpoint { piece, ttl, origin: Origin::Client, carrier: Carrier::Block })
}

#[test]
fn the_whole_body_is_as_the_layout_says() {
    let scene = Scene::new();
    let (_, composed) = scene.first(&child_body("a").to_string(), 0);
    let body = value(&composed);
    let keys: Vec<_> = body.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, ["model", "tools", "system", "max_tokens", "stream", "messages"]);
    assert_eq!((body["max_tokens"].clone(), body["stream"].clone()), (json!(500), json!(true)));
    let parent = unmarked(parent_body());
    assert_eq!((&body["tools"], &unmarked(body.clone())["system"]), (&parent["tools"], &parent["system"]));
    let messages = unmarked(body.clone())["messages"].clone();
    assert_eq!(messages[0], parent["messages"][0]);
    assert_eq!(messages[1]["role"], "assistant");
    assert_eq!(messages[1]["content"].as_array().unwrap().len(), 3);
    let own = messages[2]["content"].as_array().unwrap();
    for (index, id) in ["toolu_a", "toolu_b"].into_iter().enumerate() {
        let result = json!({"type": "tool_result", "tool_use_id": id, "content": [text(PLACEHOLDER)]});
        assert_eq!(own[index], result);
    }
    assert!(own[2]["text"].as_str().unwrap().starts_with(CHILD_TAG));
    assert_eq!(own[3..], [text("You work."), text(&directive("a"))]);
    assert_eq!(messages.as_array().unwrap().len(), 3);
    assert_eq!(
        marks(&composed),
        [
            "messages[0].content[0]",
            "messages[2].content[1]",
            "messages[2].content[3]",
            "messages[2].content[4]"
        ]
    );
    assert_eq!(composed.notes, [ForkNote::Instructions, ForkNote::Tools]);
}

#[test]
fn the_note_says_what_concerns_this_child() {
    let scene = Scene::new();
    let note = |body: &Value, call: usize| {
        let (_, composed) = scene.first(&body.to_string(), call);
        let texts = value(&composed)["messages"][2]["content"].clone();
        texts[2]["text"].as_str().unwrap().to_owned()
    };
    let full = note(&child_body("a"), 0);
    assert!(full.ends_with("</forkpoint-child>") && full.contains("only these are yours"), "{full}");
    assert!(!full.contains("Scope:") && full.contains("instructions of your own"), "{full}");
    let mut bare = child_body("a");
    bare["system"] = json!("You lead.");
    bare["tools"] = parent_body()["tools"].clone();
    let short = note(&bare, 0);
    assert!(
        short.contains("\"Scope:\"") && short.contains("500 words") && short.contains("commit"),
        "{short}"
    );
    assert!(!short.contains("only these") && !short.contains("of your own"), "{short}");
}

#[test]
fn the_report_is_asked_for_by_policy_and_kind() {
    let calls = |kind: Value| {
        vec![
            call("t1", "Agent", json!({"prompt": directive("a"), "subagent_type": kind})),
            call("t2", "Agent", json!({"prompt": directive("b")})),
        ]
    };
    let mut bare = child_body("a");
    bare.as_object_mut().unwrap().remove("system");
    for (kind, report, expected) in [
        (json!("fork"), Report::Auto, true),
        (json!(""), Report::Auto, true),
        (json!("general-purpose"), Report::Auto, false),
        (json!("general-purpose"), Report::Always, true),
        (json!("fork"), Report::Never, false),
    ] {
        let mut scene = Scene::of(&parent_body().to_string(), &calls(kind.clone()));
        scene.policy.report = report;
        let (_, composed) = scene.first(&bare.to_string(), 0);
        assert_eq!(composed.notes.contains(&ForkNote::Report), expected, "{kind} {report:?}");
        assert_eq!(bytes(&composed).contains("Scope"), expected);
    }
}

#[test]
fn a_template_takes_the_place_of_our_words_inside_the_tag() {
    let mut scene = Scene::new();
    for template in ["Be quick.", "<forkpoint-child>\nBe quick.\n</forkpoint-child>\n"] {
        scene.policy.template = Some(template.into());
        let (_, composed) = scene.first(&child_body("a").to_string(), 0);
        let note = value(&composed)["messages"][2]["content"][2]["text"].as_str().unwrap().to_owned();
        assert_eq!(
            note,
            "<forkpoint-child>\nBe quick.\n- Of the tools above only these are yours; calls of the others \
             fail: Read.\n</forkpoint-child>"
        );
    }
}

#[test]
fn a_child_that_works_elsewhere_is_told_so() {
    let mut parent = parent_body();
    parent["system"] = json!("You lead.\nPrimary working directory: /srv/main\nOther: 1");
    let mut child = child_body("a");
    child["system"] = json!("You work.\nWorking directory: /srv/trees/a\nOther: 1");
    let scene = Scene::of(&parent.to_string(), &two_calls());
    let (_, composed) = scene.first(&child.to_string(), 0);
    assert!(composed.notes.contains(&ForkNote::Worktree));
    assert!(
        bytes(&composed).contains("in the directory /srv/trees/a, not in that of the main agent (/srv/main)")
    );
    child["system"] = json!("You work.\nWorking directory: /srv/main");
    let (_, composed) = scene.first(&child.to_string(), 0);
    assert!(!composed.notes.contains(&ForkNote::Worktree));
    let mut calls = two_calls();
    calls[0]["input"]["isolation"] = json!("worktree");
    let (_, composed) = Scene::of(&parent.to_string(), &calls).first(&child.to_string(), 0);
    assert!(composed.notes.contains(&ForkNote::Worktree), "the call says so");
}

#[test]
fn a_directory_is_known_by_the_words_of_each_client_and_by_the_call() {
    let notice = "in the directory /srv/trees/a, not in that of the main agent (/srv/main)";
    let is_told = |parent: &serde_json::Value, child: &serde_json::Value, calls: &[serde_json::Value]| {
        let (_, composed) = Scene::of(&parent.to_string(), calls).first(&child.to_string(), 0);
        bytes(&composed).contains(notice)
    };
    for (before, after) in
        [("Working directory: ", "\n"), ("Current directory: ", "\n"), ("cwd: ", "\n"), ("<cwd>", "</cwd>\n")]
    {
        let (mut parent, mut child) = (parent_body(), child_body("a"));
        let explained = "Commands take cwd: where they run.";
        parent["system"] = json!(format!("You lead. {explained}\n{before}/srv/main{after}Other: 1"));
        child["system"] = json!(format!("You work.\n{before}/srv/trees/a{after}Other: 1"));
        assert!(is_told(&parent, &child, &two_calls()), "{before}");
        child["system"] = json!("You work.");
        assert!(!is_told(&parent, &child, &two_calls()), "{before}");
        let mut calls = two_calls();
        calls[0]["input"]["cwd"] = json!("/srv/trees/a");
        assert!(is_told(&parent, &child, &calls), "{before}");
    }
}

#[test]
fn what_the_parent_says_too_is_not_said_again() {
    let scene = Scene::new();
    let mut child = child_body("a");
    child["system"] = json!([{"text": "You lead.", "type": "text", "cache_control": {"type": "ephemeral"}}, text(" "), text("Mine.")]);
    let (_, composed) = scene.first(&child.to_string(), 0);
    let own = unmarked(value(&composed))["messages"][2]["content"].clone();
    assert_eq!(own.as_array().unwrap()[3..], [text("Mine."), text(&directive("a"))]);
    child["system"] = json!("You lead.");
    let (_, composed) = scene.first(&child.to_string(), 0);
    let own = unmarked(value(&composed))["messages"][2]["content"].clone();
    assert_eq!(own.as_array().unwrap()[3..], [text(&directive("a"))]);
}

#[test]
fn other_blocks_travel_before_the_directive_in_their_order() {
    let scene = Scene::new();
    let mut child = child_body("a");
    child["messages"][0]["content"] = json!([text("reminder 1"), text(&directive("a")), text("reminder 2")]);
    let (_, composed) = scene.first(&child.to_string(), 0);
    let own = unmarked(value(&composed))["messages"][2]["content"].clone();
    let expected = [text("You work."), text("reminder 1"), text("reminder 2"), text(&directive("a"))];
    assert_eq!(own.as_array().unwrap()[3..], expected);
    let wrapped = format!("<task>\n{}\n</task>", directive("a"));
    child["messages"][0]["content"] = json!([text(&wrapped), text("context")]);
    let (_, composed) = scene.first(&child.to_string(), 0);
    let own = unmarked(value(&composed))["messages"][2]["content"].clone();
    assert_eq!(own.as_array().unwrap()[4..], [text("context"), text(&wrapped)]);
}

fn with_system_message(effort: &str) -> Value {
    let mut child = child_body("a");
    child["output_config"] = json!({"effort": "medium"});
    let content =
        json!([{"type": "text", "text": "Deferred tools.", "cache_control": {"type": "ephemeral"}}]);
    let system = json!({"role": "system", "content": content, "output_config": {"effort": effort}});
    child["messages"].as_array_mut().unwrap().push(system);
    child
}

#[test]
fn a_system_message_after_the_first_travels_with_it() {
    let mut parent = parent_body();
    parent["output_config"] = json!({"effort": "medium"});
    let mut scene = Scene::of(&parent.to_string(), &two_calls());
    let (_, composed) = scene.first(&with_system_message("medium").to_string(), 0);
    let messages = unmarked(value(&composed))["messages"].clone();
    assert_eq!(messages.as_array().unwrap().len(), 3);
    let expected = [text("You work."), text("Deferred tools."), text(&directive("a"))];
    assert_eq!(messages[2]["content"].as_array().unwrap()[3..], expected);
    assert!(composed.notes.contains(&ForkNote::Hoisted));
    // With members of its own, or against the policy, it stays where it is.
    let (_, composed) = scene.first(&with_system_message("high").to_string(), 0);
    let stays = value(&composed)["messages"][3].clone();
    assert_eq!(unmarked(stays), unmarked(with_system_message("high")["messages"][1].clone()));
    assert_eq!(marks(&composed).last().unwrap(), "messages[3].content[0]");
    scene.policy.hoist_system = false;
    let (_, composed) = scene.first(&with_system_message("medium").to_string(), 0);
    assert_eq!(value(&composed)["messages"].as_array().unwrap().len(), 4);
}

#[test]
fn the_attribution_line_is_the_childs_where_it_is_stripped_and_the_parents_elsewhere() {
    let line = |who: &str| text(&format!("x-anthropic-billing-header: {who};"));
    let (mut parent, mut child) = (parent_body(), child_body("a"));
    parent["system"] = json!([line("parent"), text("You lead.")]);
    child["system"] = json!([line("child"), text("You work.")]);
    for (attribution, expected, note) in [
        (Attribution::Stripped, "child", ForkNote::OwnLine),
        (Attribution::Counted, "parent", ForkNote::LineLeftOut),
    ] {
        let scene = Scene::on(fan_out(&parent.to_string(), &two_calls()), None, attribution);
        let (_, composed) = scene.first(&child.to_string(), 0);
        let body = unmarked(value(&composed));
        assert_eq!(body["system"], json!([line(expected), text("You lead.")]));
        assert!(!body["messages"].to_string().contains("billing"));
        assert!(composed.notes.contains(&note));
    }
    parent["system"] = json!("You lead.");
    let (_, composed) = Scene::of(&parent.to_string(), &two_calls()).first(&child.to_string(), 0);
    assert_eq!(value(&composed)["system"], "You lead.");
    assert!(composed.notes.contains(&ForkNote::LineLeftOut));
}

#[test]
fn the_first_breakpoint_stands_where_the_parents_entry_ends_or_soon_after() {
    let mut parent = parent_body();
    parent["messages"] = json!([{"role": "user", "content": "Survey."}]);
    parent["system"] = json!("You lead.");
    let fork = fan_out(&parent.to_string(), &two_calls());
    // Pieces: two tools, system, the message; then the turn. Strings cannot be marked.
    let paths = |piece: usize| {
        let scene = Scene::on(Arc::clone(&fork), written(piece, Ttl::OneHour), Attribution::Stripped);
        marks(&scene.first(&child_body("a").to_string(), 0).1)
    };
    assert_eq!(paths(1)[0], "tools[1]");
    assert_eq!(paths(2)[0], "messages[1].content[0]");
    assert_eq!(paths(3)[0], "messages[1].content[0]");
    assert_eq!(paths(3).len(), 4);
    let thinking = json!({"type": "thinking", "thinking": "t", "signature": "s"});
    let blocks: Vec<_> = (0..20).map(|_| thinking.clone()).chain(two_calls()).collect();
    let fork = fan_out_of(&parent.to_string(), &blocks);
    let scene = Scene::on(fork, written(3, Ttl::OneHour), Attribution::Stripped);
    assert_eq!(marks(&scene.first(&child_body("a").to_string(), 0).1).len(), 3, "too far");
}

#[test]
fn lifetimes_are_the_parents_first_and_never_longer_after() {
    let tiers = |parent: Ttl, child: Option<&str>| {
        let fork = fan_out(&parent_body().to_string(), &two_calls());
        let scene = Scene::on(fork, written(3, parent), Attribution::Stripped);
        let mut body = child_body("a");
        if let Some(ttl) = child {
            body["system"][0]["cache_control"] = json!({"type": "ephemeral", "ttl": ttl});
        }
        let (_, composed) = scene.first(&body.to_string(), 0);
        value(&composed);
        composed.breakpoints.iter().map(|point| point.ttl.as_str()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(tiers(Ttl::FiveMinutes, None), "5m 5m 5m 5m");
    assert_eq!(tiers(Ttl::OneHour, None), "1h 5m 5m 5m");
    assert_eq!(tiers(Ttl::OneHour, Some("1h")), "1h 1h 1h 1h");
    assert_eq!(tiers(Ttl::FiveMinutes, Some("1h")), "5m 5m 5m 5m");
}

#[test]
fn a_late_child_stands_on_the_turn_up_to_its_own_call() {
    let blocks: Vec<_> = [text("Split.")].into_iter().chain(two_calls()).collect();
    let fork = pending(&parent_body().to_string(), &blocks);
    let parent_prefix = Arc::new(
        ParentPrefix::of(&fork, Some(0), None, Attribution::Stripped, &ForkPolicy::default()).unwrap(),
    );
    let scene = Scene { fork: Arc::clone(&fork), parent_prefix, policy: ForkPolicy::default() };
    let (_, composed) = scene.first(&child_body("a").to_string(), 0);
    let messages = unmarked(value(&composed))["messages"].clone();
    assert_eq!(messages[1]["content"], json!([text("Split."), two_calls()[0]]));
    assert_eq!(messages[2]["content"][0]["tool_use_id"], "toolu_a");
    assert!(messages[2]["content"][1]["text"].as_str().unwrap().starts_with(CHILD_TAG));
    assert!(composed.notes.contains(&ForkNote::Partial));
    let refused = ParentPrefix::of(&fork, None, None, Attribution::Stripped, &ForkPolicy::default());
    assert_eq!(refused.err(), Some(Refusal::Unsealed));
}

#[test]
fn a_late_child_does_not_stand_on_a_server_tool_that_has_not_answered() {
    let search = json!({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}});
    let found = json!({"type": "web_search_tool_result", "tool_use_id": "s", "content": []});
    let [first, second] = [&two_calls()[0], &two_calls()[1]];
    let blocks = [first.clone(), search, second.clone(), found];
    let parent_prefix = |blocks: &[Value], call| {
        ParentPrefix::of(
            &pending(&parent_body().to_string(), blocks),
            Some(call),
            None,
            Attribution::Stripped,
            &ForkPolicy::default(),
        )
        .err()
    };
    assert_eq!(parent_prefix(&blocks, 0), None);
    assert_eq!(parent_prefix(&blocks, 1), Some(Refusal::Unsealed));
    let [a, b, c, d] = blocks;
    assert_eq!(parent_prefix(&[a, b, d, c], 1), None);
}

#[test]
fn results_of_a_toolset_carry_its_name() {
    let mut calls = two_calls();
    calls[1]["toolset_name"] = json!("browser");
    calls[1]["id"] = json!("id \"quoted\"");
    let (_, composed) = Scene::of(&parent_body().to_string(), &calls).first(&child_body("a").to_string(), 0);
    let result = unmarked(value(&composed))["messages"][2]["content"][1].clone();
    assert_eq!(
        (&result["toolset_name"], &result["tool_use_id"]),
        (&json!("browser"), &json!("id \"quoted\""))
    );
}

#[test]
fn a_child_that_only_names_its_parent_is_put_behind_all_its_calls() {
    let scene = Scene::new();
    let body = json!({"model": "claude-x", "max_tokens": 9, "messages": [{"role": "user", "content": "Summarize."}]});
    let child = Child { fork: Arc::clone(&scene.fork), call: None, rank: Rank::Explicit };
    let request = read(&body.to_string());
    let (prefix, _) = ChildPrefix::of(&scene.parent_prefix, &request, &child, &scene.policy).unwrap();
    let composed = prefix.compose(&request, Turn::First, Profile::Anthropic);
    let body = unmarked(value(&composed));
    assert_eq!(body["tools"], parent_body()["tools"]);
    assert_eq!(body["messages"][2]["content"].as_array().unwrap().last(), Some(&text("Summarize.")));
}

#[test]
fn a_turn_that_called_nobody_has_no_placeholders() {
    let mut fork = (*fan_out(&parent_body().to_string(), &two_calls())).clone();
    fork.calls.clear();
    fork.blocks = vec![Bytes::from(text("Done.").to_string())];
    let message = format!(r#"{{"role":"assistant","content":[{}]}}"#, text("Done."));
    fork.message = Some(message.into());
    let mut scene = Scene::on(Arc::new(fork), None, Attribution::Stripped);
    let body = child_body("a");
    let child = Child { fork: Arc::clone(&scene.fork), call: None, rank: Rank::Explicit };
    let request = read(&body.to_string());
    scene.policy.hoist_system = false;
    let (prefix, _) = ChildPrefix::of(&scene.parent_prefix, &request, &child, &scene.policy).unwrap();
    let composed = prefix.compose(&request, Turn::First, Profile::Anthropic);
    let messages = unmarked(value(&composed))["messages"].clone();
    assert!(messages[2]["content"][0]["text"].as_str().unwrap().starts_with(CHILD_TAG));
    assert_eq!(composed.breakpoints.len(), 3);
}

#[test]
fn many_siblings_stand_on_one_copy() {
    let calls: Vec<_> = (0..64)
        .map(|n| call(&format!("t{n}"), "Agent", json!({"prompt": directive(&n.to_string())})))
        .collect();
    let mut parent = parent_body();
    parent["messages"][0]["content"][0]["text"] = json!("x".repeat(200_000));
    let scene = Scene::of(&parent.to_string(), &calls);
    let held = Arc::strong_count(&scene.parent_prefix);
    let (mut prefixes, mut owned) = (Vec::new(), 0);
    for n in 0..64 {
        let (prefix, composed) = scene.first(&child_body(&n.to_string()).to_string(), n);
        assert!(scene.parent_prefix.is_shared_by(&composed.body.pieces));
        assert!(composed.shared > 200_000 && composed.shared < composed.body.length);
        owned += prefix.memory_bytes();
        prefixes.push(prefix);
    }
    assert_eq!(Arc::strong_count(&scene.parent_prefix), held + 64);
    assert!(owned < 64 * 8_192, "{owned}");
}

#[test]
fn betas_are_the_parents_then_the_childs() {
    assert_eq!(betas("b, a", "c,a, d"), "b,a,c,d");
    assert_eq!(betas("", "a"), "a");
    assert_eq!(betas("a", ""), "a");
}

#[test]
fn every_note_has_its_own_spelling() {
    let spellings: std::collections::HashSet<_> = ForkNote::ALL.iter().map(|note| note.as_str()).collect();
    assert_eq!(spellings.len(), ForkNote::ALL.len());
}
