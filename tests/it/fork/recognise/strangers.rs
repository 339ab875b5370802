//! Requests that look like children and are none. One false child would read another's conversation, so here
//! the number is zero.

use serde_json::{Value, json};

use crate::fork::talk::{
    Call, Talk, agent_call, assistant, directive, events, newcomer, parent, result, streamed, text, tool_use,
    user,
};

/// A fan-out of two under one key, without hints.
async fn fanned_out(talk: &Talk) -> [String; 2] {
    let told = ["the north", "the south"].map(directive);
    talk.fan_out(&parent("Survey it."), "msg_1", &[&told[0], &told[1]]).await;
    told
}

/// That none of these is taken for a child.
async fn none_is_a_child(talk: &Talk, calls: impl IntoIterator<Item = Call>) {
    let before = talk.children();
    for call in calls {
        let told = talk.ask(&call).await;
        assert_eq!(told.role(), "plain", "{}", call.body["messages"]);
    }
    assert_eq!(talk.children(), before);
}

fn without_tools(call: Call) -> Call {
    call.and("tools", json!([]))
}

#[tokio::test]
async fn calls_about_a_fan_out_are_not_of_it() {
    let talk = Talk::new().await;
    let told = fanned_out(&talk).await;
    let input = json!({"description": "Survey", "prompt": told[0]}).to_string();
    let asks = |what: &str, quoted: &str| {
        let padding =
            "It was asked for by the user, who is known to be careful with such requests. ".repeat(3);
        newcomer(format!("{what}\n{padding}\n\n{quoted}\n\n{padding}"))
    };
    let chat = |quoted: &str| newcomer("Hello.").then(assistant(&[text("Hello.")])).then(user(quoted));
    none_is_a_child(
        &talk,
        [
            without_tools(newcomer(told[0].as_str())),
            without_tools(newcomer(format!("Give this conversation a title of five words:\n{}", told[0]))),
            asks("Is this call safe to run? Answer yes or no.", &input),
            asks("Review what the agents were told.", &format!("{}\n\n{}", told[0], told[1])),
            asks("Classify the following text as question or order.", &told[0]),
            asks("Summarise the conversation so far.", &format!("user: Survey it.\nassistant: {}", told[1])),
            newcomer(json!([text(&told[0]), text(&told[1])])),
            newcomer(format!("{}\n{}", told[0], told[1])),
            newcomer(&told[0][..told[0].len() - 8]),
            newcomer(told[0].to_uppercase()),
            chat(&told[0]),
            chat(&format!("You told an agent: {}", told[0])),
        ],
    )
    .await;
    // And the children themselves are still recognised.
    for told in &told {
        talk.ask(&newcomer(told.as_str())).await.child();
    }
}

#[tokio::test]
async fn a_directive_starts_one_conversation() {
    let talk = Talk::new().await;
    let told = fanned_out(&talk).await;
    talk.ask(&newcomer(told[0].as_str())).await.child();
    let another = newcomer(told[0].as_str()).and("system", json!("You are somebody else."));
    none_is_a_child(&talk, [another]).await;
}

#[tokio::test]
async fn a_directive_that_comes_again_a_day_later_starts_nothing() {
    let talk = Talk::new().await;
    let told = fanned_out(&talk).await;
    talk.forkpoint.proxy.clock().skip(301_000);
    none_is_a_child(&talk, [newcomer(told[0].as_str())]).await;
    talk.forkpoint.proxy.clock().skip(86_400_000);
    let explicit = newcomer(told[1].as_str()).with("x-forkpoint-parent", "msg_1");
    none_is_a_child(&talk, [newcomer(told[1].as_str()), explicit]).await;
    assert_eq!(talk.forkpoint.proxy.store().forks(), 0, "and is forgotten");
}

#[tokio::test]
async fn nothing_crosses_from_one_tenant_to_another() {
    let talk = Talk::new().await;
    let told = ["the north", "the south"].map(directive);
    let mut forks = Vec::new();
    for key in ["key-a", "key-b"] {
        talk.fan_out(&parent("Survey it.").of(key), "msg_1", &[&told[0], &told[1]]).await;
        forks.push(talk.ask(&newcomer(told[0].as_str()).of(key)).await.child());
    }
    assert_ne!(forks[0], forks[1], "the same words, ids and all");
    let stranger = |n: usize| newcomer(told[n].as_str()).of("key-c");
    none_is_a_child(&talk, [stranger(0), stranger(1).with("x-forkpoint-parent", "msg_1")]).await;
}

#[tokio::test]
async fn users_of_one_key_are_told_apart_by_their_hints() {
    let talk = Talk::new().await;
    let told = ["the north", "the south"].map(directive);
    let of = |call: Call, user: &str| call.and("metadata", json!({"user_id": user}));
    let session = |call: Call, session: &str| call.with("x-forkpoint-session", session);
    talk.fan_out(&of(parent("Survey it."), "anna"), "msg_a", &[&told[0], &told[1]]).await;
    let child = || newcomer(told[0].as_str());
    none_is_a_child(
        &talk,
        [child(), of(child(), "bert"), session(child(), "1"), session(of(child(), "anna"), "1")],
    )
    .await;
    let named = of(child(), "bert").with("x-forkpoint-parent", "msg_a");
    none_is_a_child(&talk, [named]).await;
    let anna = talk.ask(&of(child(), "anna")).await.child();
    talk.fan_out(&of(parent("Survey it too."), "bert"), "msg_b", &[&told[0], &told[1]]).await;
    let bert = talk.ask(&of(child(), "bert")).await.child();
    assert_ne!(anna, bert, "equal words, each its own");
}

/// A gateway names its users; what a user adds to that must not make it another one.
#[tokio::test]
async fn a_client_does_not_overrule_the_session_that_its_gateway_names() {
    let talk = Talk::new().await;
    let told = ["the north", "the south"].map(directive);
    let gateway = |call: Call, user: &str| call.with("x-forkpoint-session", user);
    let claims = |call: Call, user: &str| call.with("x-claude-code-session-id", user);
    talk.fan_out(&gateway(parent("Survey it."), "anna"), "msg_a", &[&told[0], &told[1]]).await;
    let child = || newcomer(told[0].as_str());
    let bert = || claims(gateway(child(), "bert"), "anna");
    none_is_a_child(
        &talk,
        [
            bert(),
            bert().with("x-claude-code-agent-id", "a"),
            bert().with("x-forkpoint-parent", "msg_a"),
            claims(child(), "anna"),
            gateway(gateway(child(), "anna"), "bert"),
            gateway(gateway(child(), "bert"), "anna"),
        ],
    )
    .await;
    talk.ask(&gateway(child(), "anna")).await.child();
}

/// The names of a session that a request carries: two headers and a member of its body, none, once or twice.
const NAMED: [(&str, &str); 14] = [
    ("", ""),
    ("x-forkpoint-session: anna\r\n", ""),
    ("x-forkpoint-session: bert\r\n", ""),
    ("x-claude-code-session-id: anna\r\n", ""),
    ("x-claude-code-session-id: bert\r\n", ""),
    ("x-forkpoint-session: anna\r\nx-claude-code-session-id: bert\r\n", ""),
    ("x-forkpoint-session: bert\r\nx-claude-code-session-id: anna\r\n", ""),
    ("x-forkpoint-session: anna\r\nx-forkpoint-session: bert\r\n", ""),
    ("x-forkpoint-session: bert\r\nx-forkpoint-session: anna\r\n", ""),
    ("x-claude-code-session-id: bert\r\nx-claude-code-session-id: anna\r\n", ""),
    ("", r#""metadata":{"user_id":"anna"},"#),
    ("", r#""metadata":{"user_id":"bert"},"#),
    ("", r#""metadata":{"user_id":"bert","user_id":"anna"},"#),
    ("x-forkpoint-session: bert\r\n", r#""metadata":{"user_id":"anna"},"#),
];

#[tokio::test]
async fn only_a_child_with_all_names_of_its_parents_session_is_its_child() {
    let talk = Talk::new().await;
    let send = async |call: Call, (headers, member): (&str, &str), blocks: &[Value], id: &str| {
        let body = call.body.to_string().replacen('{', &format!("{{{member}"), 1);
        let answer = streamed(&events(id, body.len() / 4, blocks));
        talk.answered_as_spelt(&format!("{}{headers}", call.headers), body.as_bytes(), answer).await
    };
    for (number, parents) in NAMED.into_iter().enumerate() {
        let task = directive(&format!("part number {number}"));
        let tasks = [task.clone(), directive(&format!("the rest of {number}"))];
        let calls: Vec<Value> = tasks
            .iter()
            .enumerate()
            .map(|(call, task)| agent_call(&format!("t{number}_{call}"), task))
            .collect();
        let opening = parent(&format!("Survey number {number}."));
        send(opening, parents, &calls, &format!("msg_{number}")).await;
        for (other, childs) in NAMED.into_iter().enumerate() {
            let told = send(newcomer(task.as_str()), childs, &[text("Done.")], "msg_child").await;
            let role = told.role();
            assert_eq!(role == "child", number == other, "{role}: {parents:?} and {childs:?}");
        }
    }
}

/// One product, one key, many users, and a template that differs in a word.
#[tokio::test]
async fn templated_directives_of_many_users_do_not_mix() {
    let talk = Talk::new().await;
    let told = |user: usize, n: usize| {
        format!(
            "You are worker {n} of 2 for customer {user}. Read all of the orders and report what is left open."
        )
    };
    for user in 0..40 {
        let opening = format!("Customer {user} asks.");
        talk.fan_out(&parent(&opening), &format!("msg_{user}"), &[&told(user, 1), &told(user, 2)]).await;
    }
    let mut forks = std::collections::BTreeSet::new();
    for user in 0..40 {
        let pair = [
            talk.ask(&newcomer(told(user, 1))).await.child(),
            talk.ask(&newcomer(told(user, 2))).await.child(),
        ];
        assert_eq!(pair[0], pair[1]);
        assert!(forks.insert(pair[0].clone()), "another user's");
    }
    none_is_a_child(&talk, (40..60).map(|user| newcomer(told(user, 1)))).await;
}

#[tokio::test]
async fn a_directive_of_two_fan_outs_is_nobodys() {
    let talk = Talk::new().await;
    let told = ["the north", "the south", "the east"].map(directive);
    talk.fan_out(&parent("One."), "msg_1", &[&told[0], &told[1]]).await;
    talk.fan_out(&parent("Two."), "msg_2", &[&told[0], &told[2]]).await;
    none_is_a_child(&talk, [newcomer(told[0].as_str())]).await;
    let forks = [talk.ask(&newcomer(told[1].as_str())).await, talk.ask(&newcomer(told[2].as_str())).await];
    assert_ne!(forks[0].child(), forks[1].child());
}

#[tokio::test]
async fn paths_titles_and_one_long_call_are_no_directives() {
    let talk = Talk::new().await;
    let path = format!("/home/somebody/{}main.c", "folder/".repeat(12));
    let call = |id: &str, input: Value| tool_use(id, "Read", input);
    let reads =
        [call("r1", json!({"path": path})), call("r2", json!({"path": path.replace("main", "other")}))];
    talk.say(&parent("Read."), "msg_1", &reads).await;
    let one = directive("the one and only");
    talk.say(&parent("One."), "msg_2", &[agent_call("a1", &one), call("r3", json!({"path": "a.c"}))]).await;
    talk.say(&parent("Words."), "msg_3", &[text(&directive("the north")), text(&directive("the south"))])
        .await;
    let chats = [path.as_str(), &one, &directive("the north"), "Survey"];
    none_is_a_child(&talk, chats.map(newcomer)).await;
    assert_eq!(talk.forkpoint.proxy.store().forks(), 0);
}

/// Tools that are not known to start agents are done when their results are back.
#[tokio::test]
async fn what_a_finished_tool_was_told_may_be_said_again() {
    let talk = Talk::new().await;
    let told = ["the north", "the south"].map(directive);
    let calls = [0, 1].map(|n| tool_use(&format!("q{n}"), "query", json!({"text": told[n]})));
    talk.say(&parent("Look up."), "msg_1", &calls).await;
    let back = parent("Look up.").then(assistant(&calls)).then(user(json!([result("q0"), result("q1")])));
    talk.ask(&back).await;
    none_is_a_child(&talk, told.iter().map(|told| newcomer(told.as_str()))).await;
}
