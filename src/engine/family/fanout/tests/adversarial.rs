//! Requests that quote, repeat or forge what a fan-out said, and are nobody's children.

use proptest::prelude::*;

use super::*;
use crate::engine::words::FanOutDropped;

/// Whatever comes after a fan-out without hints: none of it is a child.
#[track_caller]
fn plain(scene: &mut Scene, body: &Value, headers: Headers, expected: &str) {
    assert_eq!(say(&scene.ask(body, headers)), expected);
}

#[test]
fn calls_that_quote_tool_input_are_no_children() {
    let mut scene = Scene::new();
    two_agents(&mut scene, BARE, "msg_1");
    let told = directive("a");
    let one_line = told.replace('\n', " ");
    scene.fan_out(
        &request(&["Agent"], &[user(json!("other"))]),
        BARE,
        "msg_2",
        &[call("x1", "Agent", json!({"p": one_line})), call("x2", "Agent", json!({"p": directive("z")}))],
    );
    let quotes = [
        format!("Generate a short title for this task:\n\n{told}"),
        format!("Is this tool call safe? Answer yes or no.\n{{\"prompt\": \"{one_line}\"}}"),
        format!("Summarise:\n{told}"),
        told.clone(),
        one_line,
    ];
    for quote in &quotes {
        for content in [json!(quote), json!([text("Review what follows."), text(quote)])] {
            plain(&mut scene, &request(&[], &[user(content)]), BARE, "no_tools");
        }
    }
    // With tools, but most of it is something else.
    for around in ["What do you think of this prompt? ", "I have found this in a log: "] {
        let chat = format!("{}{told}", around.repeat(20));
        plain(&mut scene, &request(&["get_fact"], &[user(json!(chat))]), BARE, "coverage");
    }
    // In the middle of a conversation.
    let chat = [user(json!("hi")), assistant(&[text("hello")]), user(json!(told))];
    plain(&mut scene, &request(&["get_fact"], &chat), BARE, "later_turn");
    // Not in the first user message.
    let second = [user(json!("hi")), user(json!(told))];
    plain(&mut scene, &request(&["get_fact"], &second), BARE, "no_directive");
    let system = [user(json!("hi")), json!({"role": "system", "content": told})];
    plain(&mut scene, &request(&["get_fact"], &system), BARE, "no_directive");
    // In a result, or in a document.
    let results = [user(json!([result("q", json!([text(&told)]))]))];
    plain(&mut scene, &request(&["get_fact"], &results), BARE, "no_directive");
    let document = json!([{"type": "document", "source": {"type": "text", "data": told}}]);
    plain(&mut scene, &request(&["get_fact"], &[user(document)]), BARE, "no_directive");
}

#[test]
fn a_session_that_has_named_an_agent_has_no_unnamed_ones() {
    let mut scene = Scene::new();
    two_agents(&mut scene, claude(1, None), "msg_1");
    plain(&mut scene, &child(&directive("a")), claude(2, Some(1)), "hints");
    plain(&mut scene, &child(&directive("a")), BARE, "hints");
    // Some versions name no agents.
    assert_eq!(say(&scene.ask(&child(&directive("a")), claude(1, None))), "child");
    assert_eq!(say(&scene.ask(&child(&directive("b")), claude(1, Some(1)))), "child");
    let mut other = child(&directive("a"));
    other["max_tokens"] = json!(7);
    plain(&mut scene, &other, claude(1, None), "no_agent");
    // Another session has shown nothing yet.
    two_agents(&mut scene, claude(3, None), "msg_2");
    assert_eq!(say(&scene.ask(&other, claude(3, None))), "child");
}

#[test]
fn sessions_that_name_their_agents_are_bounded() {
    let mut scene = Scene::new();
    let request = read(&child("Do it."));
    let of = |number: u16| {
        let digest = IdDigest(std::array::from_fn(|at| number.to_le_bytes()[at % 2]));
        Who::of(&request, Some(Session { shown: digest, hints: digest }), Some(digest))
    };
    for number in 0..=1_024 {
        scene.forks.note_agent(&of(number));
    }
    let known = |number| scene.forks.points().names_agents(&of(number));
    assert_eq!([0, 1, 1_024].map(known), [false, true, true]);
}

#[test]
fn templated_directives_of_many_users_under_one_key_find_their_own_parent() {
    let mut scene = Scene::new();
    let headers = |session| Headers { session: Some(session), ..BARE };
    let forks: Vec<_> =
        (0..200).map(|n| two_agents(&mut scene, headers(n), &format!("msg_{n}")).id.to_string()).collect();
    for n in (0..200).rev() {
        assert_eq!(as_child(scene.ask(&child(&directive("a")), headers(n))).0, forks[usize::from(n)]);
    }
    plain(&mut scene, &child(&directive("a")), headers(250), "hints");
    plain(&mut scene, &child(&directive("a")), BARE, "hints");
    // The user id counts like a session, and both must agree.
    let mut with_user = child(&directive("a"));
    with_user["metadata"] = json!({"user_id": "ann"});
    plain(&mut scene, &with_user, headers(3), "hints");
}

#[test]
fn equal_directives_of_two_conversations_without_hints_are_left_alone_until_one_has_its_child() {
    let mut scene = Scene::new();
    let [first, second] = ["msg_1", "msg_2"].map(|name| two_agents(&mut scene, BARE, name).id.to_string());
    // Nobody can tell whose these are.
    let (one, mut other) = (child(&directive("a")), child(&directive("a")));
    other["max_tokens"] = json!(7);
    plain(&mut scene, &one, BARE, "ambiguous");
    plain(&mut scene, &other, BARE, "ambiguous");
    // One names its parent: the other call is left for the other.
    let named = Explicit { message_id: "msg_1", tool_use: None };
    assert_eq!(as_child(scene.ask_naming(&one, BARE, Some(named))).0, first);
    assert_eq!(as_child(scene.ask(&other, BARE)).0, second);
    // Each is known again, and a third is nobody's.
    assert_eq!(as_child(scene.ask(&one, BARE)).0, first);
    assert_eq!(as_child(scene.ask(&other, BARE)).0, second);
    let mut third = child(&directive("a"));
    third["max_tokens"] = json!(8);
    plain(&mut scene, &third, BARE, "ambiguous");
    plain(&mut scene, &child(&directive("b")), BARE, "ambiguous");
}

#[test]
fn a_request_that_the_upstream_has_not_taken_stays_with_its_call() {
    let mut scene = Scene::new();
    let first = two_agents(&mut scene, BARE, "msg_1");
    let body = child(&directive("a"));
    assert_eq!(as_child(scene.ask(&body, BARE)).0, first.id.to_string());
    let second = two_agents(&mut scene, BARE, "msg_2");
    assert_eq!(as_child(scene.ask(&body, BARE)).0, first.id.to_string());
    scene.forks.accepted(first.id, 0);
    assert_eq!(as_child(scene.ask(&body, BARE)).0, second.id.to_string());
    // Sent once more after that it is the one of the second, and not of whoever comes next in another conversation.
    assert_eq!(as_child(scene.ask(&body, BARE)).0, second.id.to_string());
}

#[test]
fn equal_directives_of_one_fan_out_are_left_alone() {
    let mut scene = Scene::new();
    let calls = ["t1", "t2"].map(|id| call(id, "Agent", json!({"p": directive("a")})));
    scene.fan_out(&request(&["Agent"], &[user(json!("vote"))]), BARE, "msg_1", &calls);
    plain(&mut scene, &child(&directive("a")), BARE, "ambiguous");
}

#[test]
fn a_directive_is_claimed_once_and_not_a_day_later() {
    let mut scene = Scene::new();
    two_agents(&mut scene, BARE, "msg_1");
    assert_eq!(say(&scene.ask(&child(&directive("a")), BARE)), "child");
    let mut pasted = child(&directive("a"));
    pasted["system"] = json!("You are a chat.");
    plain(&mut scene, &pasted, BARE, "claimed");
    scene.wait(301);
    plain(&mut scene, &child(&directive("b")), BARE, "window");
    scene.wait(86_400);
    plain(&mut scene, &child(&directive("b")), BARE, "no_fork_point");
    assert_eq!((scene.forks.points().len(), scene.forks.bytes()), (0, 0));
}

#[test]
fn paths_and_commands_quoted_in_chats_are_no_directives() {
    let mut scene = Scene::new();
    let path = |n: u8| format!("/home/user/projects/a-rather-long-name/src/engine/module/file_number_{n}.rs");
    let calls = [1, 2].map(|n| call(&format!("r{n}"), "Read", json!({"file_path": path(n)})));
    let draft = Draft::begin(parent(&request(&["Read"], &[user(json!("go"))]), BARE), false);
    let turn = answer("msg_1", "tool_use", &calls);
    assert_eq!(scene.seal(draft, &turn).unwrap_err(), FanOutDropped::FewDirectives);

    let command =
        |n: u8| format!("cargo test --all-targets --package number-{n} -- --nocapture --test-threads 1");
    let calls = [1, 2].map(|n| call(&format!("b{n}"), "Bash", json!({"command": command(n)})));
    scene.fan_out(&request(&["Bash"], &[user(json!("go"))]), BARE, "msg_2", &calls);
    let chat = format!(
        "This hangs on my machine since yesterday, and I do not know what else to try: {}",
        command(1)
    );
    plain(&mut scene, &request(&["Bash"], &[user(json!(chat))]), BARE, "coverage");
}

#[test]
fn what_an_unknown_tool_was_given_is_nobodys_once_its_result_is_back() {
    let mut scene = Scene::new();
    let body = request(&["Write"], &[user(json!("write two files"))]);
    let content =
        |n: u8| format!("fn number_{n}() {{\n    println!(\"a file that a reviewer will be shown\");\n}}\n");
    let calls = [1, 2].map(|n| call(&format!("w{n}"), "Write", json!({"path": "f", "content": content(n)})));
    scene.fan_out(&body, BARE, "msg_1", &calls);
    let mut next = body.clone();
    let results = ["w1", "w2"].map(|id| result(id, json!("written")));
    next["messages"].as_array_mut().unwrap().extend([assistant(&calls), user(json!(results))]);
    assert_eq!(say(&scene.ask(&next, BARE)), "parent");
    let review = request(&["Read"], &[user(json!([text("Review this file."), text(&content(1))]))]);
    plain(&mut scene, &review, BARE, "returned");
}

#[test]
fn a_short_directive_in_a_long_message_is_no_match() {
    let mut scene = Scene::new();
    let short = "Look into the parser and tell me what you have found there, ok";
    let calls = ["t1", "t2"].map(|id| call(id, "Agent", json!({"p": format!("{short} {id}")})));
    scene.fan_out(&request(&["Agent"], &[user(json!("go"))]), BARE, "msg_1", &calls);
    let long = format!("{} {short} t1 {}", "words ".repeat(900), "words ".repeat(900));
    plain(&mut scene, &child(&long), BARE, "coverage");
    plain(&mut scene, &child(short), BARE, "no_directive");
}

#[test]
fn a_hostile_first_message_costs_little() {
    let mut scene = Scene::new();
    for n in 0..60 {
        two_agents(&mut scene, BARE, &format!("msg_{n}"));
    }
    let told = directive("a");
    let end = &told[told.len() - 48..];
    let scan = scene.forks.points().rules().scan_bytes;
    let repeated = [end.repeat(scan / end.len() + 1), told.repeat(scan / told.len() + 1)];
    for hostile in &repeated {
        let request = read(&child(hostile));
        let search = scene.forks.points.leaves.search(shape::first_texts(&request, scan), scan);
        assert!(search.comparisons <= 1, "{}", search.comparisons);
        assert!(search.probes <= 2 * (scan / 48 + 1), "{}", search.probes);
        let said = scene.ask(&child(hostile), BARE);
        assert!(matches!(said, Recognised::Plain(_)), "{}", say(&said));
    }
}

#[test]
fn more_directives_than_may_be_compared_are_left_alone() {
    let mut scene = Scene::new();
    let topics: Vec<_> = (0..200).map(|n| directive(&n.to_string())).collect();
    let calls: Vec<_> = topics
        .iter()
        .enumerate()
        .map(|(n, task)| call(&format!("t{n}"), "Agent", json!({"p": task})))
        .collect();
    scene.fan_out(&request(&["Agent"], &[user(json!("go"))]), BARE, "msg_1", &calls);
    plain(&mut scene, &child(&topics.join("\n")), BARE, "search_limit");
    assert_eq!(say(&scene.ask(&child(&topics[150]), BARE)), "child");
}

#[test]
fn what_readers_could_see_differently_is_left_alone() {
    let mut scene = Scene::new();
    two_agents(&mut scene, BARE, "msg_1");
    let told = json!(directive("a"));
    let twice = format!(
        r#"{{"tools":[{{"name":"x"}}],"messages":[{{"role":"user","content":"a","content":{told}}}]}}"#
    );
    let request = Remembered::read(twice.into(), &Nothing, Attribution::Stripped).unwrap();
    let newcomer = Newcomer { request: &request, who: Who::default(), explicit: None };
    assert_eq!(say(&scene.recognise(&newcomer)), "unreadable");
}

#[test]
fn nothing_crosses_tenants() {
    let mut scene = Scene::new();
    let fork = two_agents(&mut scene, BARE, "msg_1");
    assert_ne!(fork.id, ForkId::of(TenantId([8; 32]), "msg_1"));
    assert_eq!(fork.id.to_string().len(), 8);
    let mut other = Scene { forks: FanOuts::new(TenantId([8; 32]), Rules::default()), now: scene.now };
    plain(&mut other, &child(&directive("a")), BARE, "no_fork_point");
}

/// What a request says of itself: a session, a user, both or neither.
fn any_hints() -> impl Strategy<Value = (Option<u8>, Option<u8>)> {
    (prop::option::of(0..3_u8), prop::option::of(0..3_u8))
}

fn of_user(mut body: Value, user: Option<u8>) -> Value {
    if let Some(user) = user {
        body["metadata"] = json!({"user_id": format!("user {user}")});
    }
    body
}

proptest! {
    #[test]
    fn nobody_is_put_with_a_parent_that_says_otherwise_of_itself(
        parents in prop::collection::vec(any_hints(), 1..6),
        asks in prop::collection::vec((any_hints(), prop::option::of(0..6_usize)), 1..16),
    ) {
        let mut scene = Scene::new();
        let mut forks = Vec::new();
        for (number, (session, user)) in parents.iter().enumerate() {
            let body = request(&["get_fact", "spawn_agent"], &[user_of_all()]);
            let calls = ["a", "b"].map(|topic| {
                call(&format!("{number}_{topic}"), "spawn_agent", json!({"task": directive(topic)}))
            });
            let headers = Headers { session: *session, ..BARE };
            let fork = scene.fan_out(&of_user(body, *user), headers, &format!("msg_{number}"), &calls);
            forks.push(fork.id);
        }
        for ((session, user), named) in asks {
            let headers = Headers { session, ..BARE };
            let named = named.map(|number| format!("msg_{number}"));
            let explicit = named.as_deref().map(|message_id| Explicit { message_id, tool_use: None });
            let asked = of_user(child(&directive("a")), user);
            if let Recognised::Child(child, _) = scene.ask_naming(&asked, headers, explicit) {
                let found = forks.iter().position(|fork| *fork == child.fork.id).unwrap();
                prop_assert_eq!(parents[found], (session, user));
            }
        }
    }
}

fn user_of_all() -> Value {
    user(json!("Survey the project."))
}
