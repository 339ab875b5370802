//! Fan-outs as real clients play them.

use super::*;
use crate::engine::words::{Rank, Spawning};

/// The parent of Claude Code: a reminder, the task, a system message within the messages.
fn claude_parent(tools: &[&str]) -> Value {
    let mut body = request(
        tools,
        &[
            user(json!([text("<system-reminder>\nremember</system-reminder>"), text("Survey the project.")])),
            json!({"role": "system", "content": [{"type": "text", "text": "Agent types: …",
                "cache_control": {"type": "ephemeral"}}], "output_config": {"effort": "medium"}}),
        ],
    );
    body["metadata"] = json!({"user_id": "{\"session_id\":\"s\"}"});
    body
}

fn claude_calls(kind: &str) -> Vec<Value> {
    let input = |n: usize| json!({"description": format!("Investigate area {n}"), "prompt": directive(&n.to_string()), "subagent_type": kind});
    (0..3).map(|n| call(&format!("toolu_{n}"), "Agent", input(n))).collect()
}

fn claude_child(n: usize) -> Value {
    let mut body = request(
        &["Bash", "Read"],
        &[
            user(json!([
                text("<system-reminder>\nremember</system-reminder>"),
                text(&directive(&n.to_string()))
            ])),
            json!({"role": "system", "content": [{"type": "text", "text": "Deferred tools: …",
                "cache_control": {"type": "ephemeral"}}], "output_config": {"effort": "medium"}}),
        ],
    );
    body["metadata"] = json!({"user_id": "{\"session_id\":\"s\"}"});
    body
}

fn events(id: &str, blocks: &[Value]) -> Vec<Vec<String>> {
    let mut events = vec![vec![json!({"type": "message_start", "message": {"id": id}}).to_string()]];
    for (index, block) in blocks.iter().enumerate() {
        events.push(vec![
            json!({"type": "content_block_start", "index": index, "content_block": block}).to_string(),
            json!({"type": "content_block_stop", "index": index}).to_string(),
        ]);
    }
    events.push(vec![
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}})
            .to_string(),
        json!({"type": "message_stop"}).to_string(),
    ]);
    events
}

#[test]
fn claude_codes_children_are_known_before_the_parents_last_byte() {
    let mut scene = Scene::new();
    let mut draft = Draft::begin(parent(&claude_parent(&["Agent", "Bash"]), claude(1, None)), false);
    let mut builder = TurnBuilder::new(LIMITS);
    let mut blocks = vec![json!({"type": "thinking", "thinking": "", "signature": "s"}), text("I split.")];
    blocks.extend(claude_calls("general-purpose"));
    let mut known = Vec::new();
    for step in events("msg_1", &blocks) {
        step.iter().for_each(|event| builder.push(event.as_bytes()));
        let finished: Vec<Block> = builder.finished().collect();
        for block in finished {
            if draft.push(block, scene.forks.points().rules()) {
                scene.forks.pending(builder.id().unwrap(), &mut draft, scene.now).unwrap();
            }
        }
        let asked = (0..3).map(|n| scene.ask(&claude_child(n), claude(1, Some(10 + n as u8))));
        known.push(asked.map(|it| u8::from(say(&it) == "child")).sum::<u8>());
    }
    assert_eq!(known, [0, 0, 0, 1, 2, 3, 3]);

    // A child that will not wait stands on what was finished.
    let Recognised::Child(first, _) = scene.ask(&claude_child(0), claude(1, Some(10))) else { panic!() };
    assert!(!first.fork.is_sealed());
    let so_far: Value = serde_json::from_slice(&first.fork.up_to(0).unwrap()).unwrap();
    assert_eq!(so_far, assistant(&blocks[..3]));

    let turn = builder.finish();
    let sealed = scene.seal(draft, &turn).unwrap();
    assert_eq!(sealed.message.as_deref(), turn.message().as_deref());
    assert_eq!(
        sealed.blocks,
        turn.blocks.iter().map(|block| Bytes::from(block.json.clone())).collect::<Vec<_>>()
    );
    assert_eq!(sealed.usage.unwrap().output, 9);
    let input: Value = serde_json::from_slice(&sealed.input(1).unwrap()).unwrap();
    assert_eq!(input["subagent_type"], "general-purpose");
    for n in 0..3 {
        let Recognised::Child(child, _) = scene.ask(&claude_child(n), claude(1, Some(n as u8))) else {
            panic!()
        };
        assert!(child.fork.is_sealed());
        assert_eq!((child.call, child.rank, child.spawning()), (Some(n), Rank::Whole, Spawning::Listed));
    }
}

#[test]
fn claude_codes_parent_goes_on_in_the_background_and_its_children_still_come() {
    let mut scene = Scene::new();
    let body = claude_parent(&["Agent", "Bash"]);
    let calls = claude_calls("general-purpose");
    scene.fan_out(&body, claude(1, None), "msg_1", &calls);
    let mut next = body.clone();
    let results: Vec<_> = (0..3)
        .map(|n| result(&format!("toolu_{n}"), json!([text(&format!("started, agentId: a{n}"))])))
        .collect();
    next["messages"].as_array_mut().unwrap().extend([assistant(&calls), user(json!(results))]);
    assert_eq!(say(&scene.ask(&next, claude(1, None))), "parent");
    for n in 0..3 {
        assert_eq!(as_child(scene.ask(&claude_child(n), claude(1, Some(n as u8)))).1, Some(n));
    }
    // A later turn brings nothing back: notifications are plain text.
    next["messages"].as_array_mut().unwrap().extend([
        assistant(&[text("Waiting.")]),
        user(json!([text("<task-notification>\n<tool-use-id>toolu_1</tool-use-id>\ndone")])),
    ]);
    assert_eq!(say(&scene.ask(&next, claude(1, None))), "later_turn");
    // Session hints need no window: an agent may be resumed.
    scene.wait(1_000);
    assert_eq!(say(&scene.ask(&claude_child(0), claude(1, Some(9)))), "child");
    scene.wait(3_000);
    assert_eq!(say(&scene.ask(&claude_child(0), claude(1, Some(9)))), "no_fork_point");
}

#[test]
fn older_claude_code_puts_many_reminders_first_and_returns_results_as_they_complete() {
    let mut scene = Scene::new();
    let body = claude_parent(&["Task", "Bash"]);
    let calls = claude_calls("");
    scene.fan_out(&body, claude(1, None), "msg_1", &calls);
    for n in 0..3 {
        let mut texts: Vec<_> =
            (0..8).map(|n| text(&format!("<system-reminder>\n{n}</system-reminder>"))).collect();
        texts.push(text(&directive(&n.to_string())));
        let mut body = request(&["Bash"], &[user(json!(texts))]);
        body["metadata"] = json!({"user_id": "{\"session_id\":\"s\"}"});
        assert_eq!(
            as_child(scene.ask(&body, claude(1, Some(n)))),
            (fork_name("msg_1"), Some(n.into()), Rank::Whole)
        );
    }
    let mut next = body.clone();
    let results = [2, 0, 1].map(|n| result(&format!("toolu_{n}"), json!("report")));
    next["messages"].as_array_mut().unwrap().extend([assistant(&calls), user(json!(results))]);
    assert_eq!(say(&scene.ask(&next, claude(1, None))), "parent");
}

#[test]
fn a_native_fork_is_the_clients_own() {
    let mut scene = Scene::new();
    let body = claude_parent(&["Agent", "Bash"]);
    let calls = claude_calls("fork");
    scene.fan_out(&body, claude(1, None), "msg_1", &calls);
    let fork = |n: usize| {
        let mut fork = body.clone();
        // The marker moves on, and the message that lost it becomes a string.
        fork["messages"][1]["content"] = json!("Agent types: …");
        let boilerplate = format!(
            "<fork-boilerplate>\n{}\n</fork-boilerplate>\n{}",
            "w ".repeat(50),
            directive(&n.to_string())
        );
        fork["messages"].as_array_mut().unwrap().extend([
            assistant(&calls[n..=n]),
            user(json!([result(&format!("toolu_{n}"), json!([text("started")])), text(&boilerplate)])),
        ]);
        fork
    };
    for headers in [claude(1, Some(5)), claude(1, None)] {
        for n in 0..3 {
            let Recognised::ClientFork(child) = scene.ask(&fork(n), headers) else { panic!() };
            assert_eq!(child.call, Some(n));
        }
    }
    assert_eq!(say(&scene.ask(&fork(0), claude(2, Some(5)))), "hints");
}

#[test]
fn a_fork_that_appends_to_the_parents_last_message_is_the_clients_own() {
    let mut scene = Scene::new();
    let fork = two_agents(&mut scene, BARE, "msg_1");
    let history = "msg_1: survey the project";
    let task = format!("You are a fork of the conversation above. Your task:\n{}", directive("a"));
    let forked = request(&["get_fact", "spawn_agent"], &[user(json!([text(history), text(&task)]))]);
    let Recognised::ClientFork(child) = scene.ask(&forked, BARE) else { panic!() };
    assert_eq!((child.fork.id, child.call), (fork.id, Some(0)));
    // Two words of the parent are no history with other tools: mastra sends its children so.
    let isolated = request(&["get_fact"], &[user(json!([text(history), text(&directive("b"))]))]);
    assert_eq!(as_child(scene.ask(&isolated, BARE)), (fork_name("msg_1"), Some(1), Rank::Whole));

    // The same in the middle of a conversation.
    let messages = [user(json!("one")), assistant(&[text("two")]), user(json!("three"))];
    let body = request(&["spawn_agent"], &messages);
    let calls = ["c", "d"].map(|topic| call(topic, "spawn_agent", json!({"task": directive(topic)})));
    scene.fan_out(&body, BARE, "msg_2", &calls);
    let mut later = messages.to_vec();
    later[2] = user(json!([text("three"), text(&format!("Your task:\n{}", directive("c")))]));
    let Recognised::ClientFork(child) = scene.ask(&request(&["spawn_agent"], &later), BARE) else { panic!() };
    assert_eq!(child.call, Some(0));
    later[1] = assistant(&[text("else")]);
    assert_eq!(say(&scene.ask(&request(&["spawn_agent"], &later), BARE)), "later_turn");
}

#[test]
fn frameworks_send_the_directive_as_a_string_or_as_one_block() {
    for content in
        [json!(directive("a")), json!([text(&directive("a"))]), json!([text(&(directive("a") + "\n"))])]
    {
        let mut scene = Scene::new();
        two_agents(&mut scene, BARE, "msg_1");
        let body = request(&["get_fact"], &[user(content)]);
        assert_eq!(as_child(scene.ask(&body, BARE)), (fork_name("msg_1"), Some(0), Rank::Whole));
        assert_eq!(as_child(scene.ask(&child(&directive("b")), BARE)).1, Some(1));
    }
}

#[test]
fn a_template_around_the_directive_is_seen_through() {
    let mut scene = Scene::new();
    two_agents(&mut scene, BARE, "msg_1");
    let wrapped = format!("<task>\n{}\n</task>\n\nAnswer briefly.", directive("b"));
    let body = request(&["get_fact"], &[user(json!([text(&wrapped)]))]);
    assert_eq!(as_child(scene.ask(&body, BARE)), (fork_name("msg_1"), Some(1), Rank::Contained));
}

#[test]
fn directives_mixed_into_one_request_are_nobodys() {
    let mut scene = Scene::new();
    let long = format!("{} {}", directive("b"), "More words of the same kind. ".repeat(20));
    let calls = [
        call("t1", "worker", json!({"task": directive("a")})),
        call("t2", "worker", json!({"task": long.trim()})),
        call("t3", "worker", json!({"task": directive("c")})),
    ];
    scene.fan_out(&request(&["worker"], &[user(json!("go"))]), BARE, "msg_1", &calls);
    let wrapped = |task: &str| text(&format!("New task:\n{task}"));
    for mixed in [
        json!([text(&directive("a")), text(long.trim())]),
        json!([wrapped(&directive("a")), wrapped(long.trim())]),
    ] {
        assert_eq!(say(&scene.ask(&request(&["x"], &[user(mixed)]), BARE)), "ambiguous");
    }
    // In one text as long as each other, neither makes up half of it.
    let both = format!("New task:\n{}\nNew task:\n{}", directive("a"), directive("c"));
    assert_eq!(say(&scene.ask(&request(&["x"], &[user(json!(both))]), BARE)), "coverage");
    // One inside the other is only the longer.
    assert_eq!(as_child(scene.ask(&child(long.trim()), BARE)).1, Some(1));
}

#[test]
fn of_directives_in_one_text_the_longer_counts_and_a_whole_text_before_any_part() {
    let long = format!("{} {}", directive("b"), "More words of the same kind. ".repeat(20));
    let long = long.trim();
    let calls =
        [call("t1", "worker", json!({"task": directive("a")})), call("t2", "worker", json!({"task": long}))];
    let quoted = format!("New task:\n{}\nNew task:\n{long}", directive("a"));
    for (content, call, rank) in [
        (json!(quoted), 1, Rank::Contained),
        (json!([text(&format!("New task:\n{long}")), text(&directive("a"))]), 0, Rank::Whole),
    ] {
        let mut scene = Scene::new();
        scene.fan_out(&request(&["worker"], &[user(json!("go"))]), BARE, "msg_1", &calls);
        let (_, found, sure) = as_child(scene.ask(&request(&["x"], &[user(content)]), BARE));
        assert_eq!((found, sure), (Some(call), rank));
    }
}

#[test]
fn a_directive_inside_a_longer_one_does_not_count() {
    let mut scene = Scene::new();
    let outer = format!("Before: {} After that, check it twice.", directive("a"));
    let calls = [("t1", directive("a")), ("t2", outer.clone())]
        .map(|(id, task)| call(id, "task", json!({"t": task})));
    scene.fan_out(&request(&["task"], &[user(json!("go"))]), BARE, "msg_1", &calls);
    assert_eq!(as_child(scene.ask(&child(&outer), BARE)).1, Some(1));
    let wrapped = child(&format!("Task: {outer}"));
    assert_eq!(say(&scene.ask(&wrapped, BARE)), "claimed");
    assert_eq!(as_child(scene.ask(&child(&directive("a")), BARE)).1, Some(0));
}

#[test]
fn results_in_split_turns_make_a_parent() {
    let mut scene = Scene::new();
    two_agents(&mut scene, BARE, "msg_1");
    let task =
        |topic: &str| call(&format!("msg_1_{topic}"), "spawn_agent", json!({"task": directive(topic)}));
    let body = request(
        &["get_fact", "spawn_agent"],
        &[
            user(json!("msg_1: survey the project")),
            assistant(&[text("I will split this."), task("a")]),
            user(json!([result("msg_1_a", json!("ra"))])),
            assistant(&[task("b")]),
            user(json!([result("msg_1_b", json!("rb"))])),
        ],
    );
    assert_eq!(say(&scene.ask(&body, BARE)), "parent");
    assert!(scene.forks.points().parent_of(["x", "msg_1_b"]).is_some());
    assert!(scene.forks.points().parent_of(["x"]).is_none());
}

#[test]
fn a_named_parent_wins_and_the_vetoes_still_hold() {
    let mut scene = Scene::new();
    two_agents(&mut scene, BARE, "msg_1");
    two_agents(&mut scene, BARE, "msg_2");
    let named = |message_id, tool_use| Some(Explicit { message_id, tool_use });
    let body = child(&directive("a"));
    assert_eq!(say(&scene.ask(&body, BARE)), "ambiguous");
    let got = as_child(scene.ask_naming(&body, BARE, named("msg_1", None)));
    assert_eq!(got, (fork_name("msg_1"), Some(0), Rank::Explicit));
    let other = child("Do something else.");
    let got = as_child(scene.ask_naming(&other, BARE, named("msg_2", Some("msg_2_b"))));
    assert_eq!(got, (fork_name("msg_2"), Some(1), Rank::Explicit));
    // A summary names its parent, and has neither a directive nor tools.
    let summary = request(&[], &[user(json!("Summarise."))]);
    assert_eq!(as_child(scene.ask_naming(&summary, BARE, named("msg_1", None))).1, None);

    assert_eq!(say(&scene.ask_naming(&body, BARE, named("msg_3", None))), "unknown_parent");
    assert_eq!(say(&scene.ask_naming(&body, BARE, named("msg_1", Some("msg_2_a")))), "unknown_call");
    let session = Headers { session: Some(1), ..BARE };
    assert_eq!(say(&scene.ask_naming(&other, session, named("msg_1", None))), "hints");
    assert_eq!(say(&scene.ask_naming(&other, BARE, named("msg_2", Some("msg_2_b")))), "child");
    assert_eq!(say(&scene.ask_naming(&summary, BARE, named("msg_2", Some("msg_2_b")))), "claimed");
    let later = request(&["x"], &[user(json!("a")), assistant(&[text("b")]), user(json!("c"))]);
    assert_eq!(say(&scene.ask_naming(&later, BARE, named("msg_1", None))), "later_turn");
    scene.wait(301);
    assert_eq!(say(&scene.ask_naming(&summary, BARE, named("msg_1", None))), "window");
}

#[test]
fn a_tool_is_learned_from_the_children_of_an_earlier_fan_out() {
    let mut scene = Scene::new();
    let fan_out = |scene: &mut Scene, id: &str| {
        let body = request(&["consult"], &[user(json!(id))]);
        let calls = ["a", "b", "c"].map(|topic| {
            call(&format!("{id}{topic}"), "consult", json!({"q": directive(&format!("{id} {topic}"))}))
        });
        scene.fan_out(&body, BARE, id, &calls);
    };
    let ask = |scene: &mut Scene, topic: &str| match scene.ask(&child(&directive(topic)), BARE) {
        Recognised::Child(child, _) => child.spawning(),
        other => panic!("{}", say(&other)),
    };
    fan_out(&mut scene, "one");
    assert_eq!(ask(&mut scene, "one a"), Spawning::Unknown);
    fan_out(&mut scene, "two");
    assert_eq!(ask(&mut scene, "two a"), Spawning::Unknown, "one child may be chance");
    assert_eq!(ask(&mut scene, "one b"), Spawning::Unknown);
    assert_eq!(ask(&mut scene, "one c"), Spawning::Unknown, "siblings are treated alike");
    fan_out(&mut scene, "three");
    assert_eq!(ask(&mut scene, "three a"), Spawning::Learned);
}

#[test]
fn what_siblings_share_of_a_clients_own_fork_ends_before_their_directives() {
    let mut scene = Scene::new();
    let calls = ["a", "b"].map(|topic| call(topic, "spawn_agent", json!({"task": directive(topic)})));
    let body =
        request(&["spawn_agent"], &[user(json!("one")), assistant(&[text("two")]), user(json!("three"))]);
    scene.fan_out(&body, BARE, "msg_1", &calls);
    let mut shared = |after: &[Value]| {
        let mut fork = body.clone();
        fork["messages"].as_array_mut().unwrap().extend(after.iter().cloned());
        let read = read(&fork);
        let Recognised::ClientFork(child) = scene.ask(&fork, BARE) else { panic!("{fork}") };
        let last = child.last_shared(&read).unwrap();
        read.anatomy().path(last)
    };
    let said = [text("I will split this."), calls[0].clone(), calls[1].clone()];
    let told = |topic: &str| text(&format!("You are a fork.\n{}", directive(topic)));
    let results = [result("a", json!("started")), result("b", json!("started"))];
    let [first, second] = results;
    let whole = user(json!([first, second, text("Be brief."), told("a")]));
    assert_eq!(shared(&[assistant(&said), whole]), "messages[4].content[2]");
    // Its own call alone, as nobody else has it.
    let own = user(json!([first, told("a")]));
    assert_eq!(shared(&[assistant(&said[..2]), own]), "messages[2].content");
}
