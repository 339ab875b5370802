//! Who is taken for whose child, client by client: what their fan-outs look like on the wire.

use serde_json::{Value, json};

use crate::fork::talk::{
    Call, Talk, agent_call, assistant, directive, newcomer, parent, prompt_tokens, result, text, tool_use,
    user, whole,
};

/// A fan-out of two, and its children's directives.
async fn fanned_out(talk: &Talk, parent: &Call) -> [String; 2] {
    let told = ["the north", "the south"].map(directive);
    talk.fan_out(parent, "msg_1", &[&told[0], &told[1]]).await;
    told
}

#[tokio::test]
async fn a_new_conversation_that_opens_with_a_directive_is_a_child_however_it_is_wrapped() {
    let told = ["a", "b", "c", "d", "e", "f"].map(|part| directive(&format!("the {part} side")));
    let reminder = text("<system-reminder>\nToday is Monday.\n</system-reminder>");
    let shapes: [Value; 6] = [
        json!(told[0]),
        json!([text(&told[1])]),
        json!([reminder, reminder, text(&told[2])]),
        json!([text("the user's own words"), text(&told[3])]),
        json!(format!("<task>\n{}\n</task>\n\nReport when done.", told[4])),
        json!(format!("  {}\n", told[5])),
    ];
    let talk = Talk::new().await;
    let fan_out: Vec<&str> = told.iter().map(String::as_str).collect();
    let parent = talk.fan_out(&parent("Survey it."), "msg_1", &fan_out).await;
    assert_eq!((parent.role().as_str(), parent.fork()), ("plain", None), "known only when its answer ends");
    let forks: Vec<String> = {
        let mut forks = Vec::new();
        for content in shapes {
            forks.push(talk.ask(&newcomer(content)).await.child());
        }
        forks
    };
    assert!(forks.iter().all(|fork| *fork == forks[0] && fork.len() == 8), "{forks:?}");
    assert_eq!(talk.children(), 6);
}

#[tokio::test]
async fn neither_the_tool_nor_the_field_needs_a_known_name() {
    let talk = Talk::new().await;
    for (index, field) in ["prompt", "description", "task", "instructions", "input"].into_iter().enumerate() {
        let told = [format!("{field} one"), format!("{field} two")].map(|about| directive(&about));
        let call =
            |n: usize| tool_use(&format!("t{index}_{n}"), "consult", json!({"to": "x", field: told[n]}));
        let id = format!("msg_{index}");
        talk.say(&parent(field), &id, &[text("I will ask."), call(0), call(1)]).await;
        for told in &told {
            talk.ask(&newcomer(told.as_str())).await.child();
        }
    }
}

#[tokio::test]
async fn an_answer_in_one_json_body_fans_out_like_a_stream() {
    let talk = Talk::new().await;
    let call = parent("Survey it.").and("stream", json!(false));
    let told = ["the east", "the west"].map(directive);
    let calls = [agent_call("t1", &told[0]), agent_call("t2", &told[1])];
    let answer = whole("msg_1", prompt_tokens(&call.body), &calls);
    talk.answered(&call, answer).await;
    for told in &told {
        let words = whole("msg_2", 2_000, &[text("Found.")]);
        talk.answered(&newcomer(told.as_str()).and("stream", json!(false)), words).await.child();
    }
}

#[tokio::test]
async fn a_coding_agents_child_carries_its_session_and_an_agent_of_its_own() {
    let talk = Talk::new().await;
    let session = |call: Call, session: &str| call.with("x-claude-code-session-id", session);
    let told = fanned_out(&talk, &session(parent("Survey it."), "s1")).await;
    let child = |n: usize| {
        let reminder = text("<system-reminder>\nToday is Monday.\n</system-reminder>");
        newcomer(json!([reminder, text(&told[n])]))
            .then(json!({"role": "system", "content": "Types of agents."}))
    };
    talk.ask(&session(child(0), "s2").with("x-claude-code-agent-id", "a")).await.is_plain();
    talk.ask(&child(0).with("x-claude-code-agent-id", "a")).await.is_plain();
    let first = talk.ask(&session(child(0), "s1").with("x-claude-code-agent-id", "a")).await.child();
    let second = talk.ask(&session(child(1), "s1").with("x-claude-code-agent-id", "b")).await.child();
    assert_eq!(first, second);
    // Since the session has named its agents, what comes without such a name is no child.
    talk.ask(&session(child(0), "s1")).await.is_plain();
}

#[tokio::test]
async fn a_session_that_names_no_agents_has_children_all_the_same() {
    let talk = Talk::new().await;
    let session = |call: Call| call.with("x-claude-code-session-id", "s1");
    let told = fanned_out(&talk, &session(parent("Survey it."))).await;
    let [first, second] = [
        talk.ask(&session(newcomer(told[0].as_str()))).await,
        talk.ask(&session(newcomer(told[1].as_str()))).await,
    ];
    assert_eq!(first.child(), second.child());
    // One that was a child before the session named an agent stays one.
    let other = newcomer("Look around.").with("x-claude-code-agent-id", "a");
    talk.ask(&session(other)).await.is_plain();
    talk.ask(&session(newcomer(told[0].as_str()))).await.child();
    let changed = newcomer(told[0].as_str()).and("max_tokens", json!(5));
    talk.ask(&session(changed)).await.is_plain();
}

#[tokio::test]
async fn results_name_the_parent_in_whatever_order_and_even_before_the_children() {
    for order in [[0, 1], [1, 0]] {
        let talk = Talk::new().await;
        let told = fanned_out(&talk, &parent("Survey it.")).await;
        let turn = [agent_call("msg_1_0", &told[0]), agent_call("msg_1_1", &told[1])];
        let results = order.map(|n| result(&format!("msg_1_{n}")));
        let next = parent("Survey it.").then(assistant(&turn)).then(user(json!(results)));
        let back = talk.ask(&next).await;
        let fork = back.fork().unwrap();
        back.is_parent_of(&fork);
        // Background agents start after their call was answered with a receipt.
        for told in &told {
            assert_eq!(talk.ask(&newcomer(told.as_str())).await.child(), fork);
        }
        let later =
            next.then(assistant(&[text("Wait.")])).then(user("<task-notification>done</task-notification>"));
        talk.ask(&later).await.is_plain();
    }
}

#[tokio::test]
async fn a_turn_that_the_client_splits_is_still_the_parents() {
    let talk = Talk::new().await;
    let told = fanned_out(&talk, &parent("Survey it.")).await;
    let split = parent("Survey it.")
        .then(assistant(&[agent_call("msg_1_0", &told[0])]))
        .then(user(json!([result("msg_1_0")])))
        .then(assistant(&[agent_call("msg_1_1", &told[1])]))
        .then(user(json!([result("msg_1_1")])));
    let back = talk.ask(&split).await;
    back.is_parent_of(&back.fork().unwrap());
}

#[tokio::test]
async fn an_explicit_parent_wins_over_what_the_words_say() {
    let talk = Talk::new().await;
    fanned_out(&talk, &parent("Survey it.")).await;
    let named = |parent: &str| newcomer("Sum up.").with("x-forkpoint-parent", parent);
    let fork = talk.ask(&named("msg_1")).await.child();
    assert_eq!(talk.ask(&named("msg_1").with("x-forkpoint-tool-use", "msg_1_1")).await.child(), fork);
    talk.ask(&named("msg_1").with("x-forkpoint-tool-use", "toolu_unknown")).await.is_plain();
    talk.ask(&named("msg_of_nobody")).await.is_plain();
    talk.ask(&named("msg_1").of("another-key")).await.is_plain();
    let asked = talk.forkpoint.metric("forkpoint_requests_total", &[]);
    assert_eq!(asked, 6.0);
}

#[tokio::test]
async fn names_of_parents_are_for_us_and_do_not_go_upstream() {
    let mut talk = Talk::new().await;
    fanned_out(&talk, &parent("Survey it.")).await;
    let call =
        newcomer("Sum up.").with("x-forkpoint-parent", "msg_1").with("x-forkpoint-tool-use", "msg_1_1");
    talk.ask(&call).await.child();
    let sent = talk.upstream.so_far().pop().unwrap();
    let ours: Vec<String> =
        sent.head.names().into_iter().filter(|name| name.starts_with("x-forkpoint")).collect();
    assert_eq!(ours, [""; 0]);
}
