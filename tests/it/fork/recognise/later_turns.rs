//! A child stays a child, and a request that comes twice is the same child.

use serde_json::{Value, json};

use crate::fork::talk::{
    Call, Talk, agent_call, assistant, directive, newcomer, parent, result, text, tool_use, user,
};

async fn fanned_out(talk: &Talk) -> [String; 2] {
    let told = ["the north", "the south"].map(directive);
    talk.fan_out(&parent("Survey it."), "msg_1", &[&told[0], &told[1]]).await;
    told
}

#[tokio::test]
async fn later_turns_of_a_child_are_known_by_the_calls_that_streamed_to_it() {
    let talk = Talk::new().await;
    let told = fanned_out(&talk).await;
    let mut call = newcomer(told[0].as_str());
    let mut forks = Vec::new();
    for turn in 0..5 {
        let read = tool_use(&format!("toolu_{turn}"), "read_file", json!({"path": "a.c"}));
        forks.push(talk.say(&call, &format!("msg_c{turn}"), &[text("I read."), read.clone()]).await.child());
        // Some clients echo less than they were told.
        call = call.then(assistant(&[read])).then(user(json!([result(&format!("toolu_{turn}"))])));
    }
    assert!(forks.iter().all(|fork| *fork == forks[0]));
    talk.ask(&call).await.child();
    talk.forkpoint.recorded(7).await;
    assert_eq!(talk.children(), 1, "one child, of six turns");
    let turns = talk.forkpoint.metric("forkpoint_child_turns_sum", &[]);
    assert_eq!(turns, 6.0);
}

#[tokio::test]
async fn later_turns_without_calls_are_known_by_how_the_conversation_began() {
    let talk = Talk::new().await;
    let told = fanned_out(&talk).await;
    let first = newcomer(told[0].as_str());
    talk.ask(&first).await.child();
    let echoed = json!([{"text": "Here is what I found.", "type": "text"}]);
    let next = first.then(json!({"role": "assistant", "content": echoed})).then(user("And then?"));
    talk.ask(&next).await.child();
    let other =
        newcomer(told[0].as_str()).then(assistant(&[text("I found something else.")])).then(user("And?"));
    talk.ask(&other).await.is_plain();
    talk.ask(&next.clone().of("another-key")).await.is_plain();
    let moved = next.and("tools", json!([]));
    talk.ask(&moved).await.is_plain();
}

#[tokio::test]
async fn a_child_that_fans_out_has_children_and_is_no_fork_point_for_anybody() {
    let talk = Talk::new().await;
    let told = fanned_out(&talk).await;
    let nested = ["the attic", "the cellar"].map(directive);
    let calls = [agent_call("toolu_a", &nested[0]), agent_call("toolu_b", &nested[1])];
    talk.say(&newcomer(told[0].as_str()), "msg_nested", &calls).await.child();
    let forks =
        [talk.ask(&newcomer(nested[0].as_str())).await, talk.ask(&newcomer(nested[1].as_str())).await];
    assert_eq!(forks[0].child(), forks[1].child());
    assert_eq!(
        (crate::fork::fan_out::forks(&talk.forkpoint, "sealed"), talk.forkpoint.proxy.store().forks()),
        (1, 2)
    );
    let back = newcomer(told[0].as_str())
        .then(assistant(&calls))
        .then(user(json!([result("toolu_a"), result("toolu_b")])));
    talk.ask(&back).await.child();
    // The same holds of an agent that says so of itself, known or not.
    let agent = parent("Survey more.").with("x-claude-code-agent-id", "a");
    let more = ["the garden", "the roof"].map(directive);
    talk.fan_out(&agent, "msg_agent", &[&more[0], &more[1]]).await;
    talk.ask(&newcomer(more[0].as_str())).await.child();
    assert_eq!(crate::fork::fan_out::forks(&talk.forkpoint, "sealed"), 1);
    let blocked = || talk.forkpoint.metric("forkpoint_recursion_blocked_total", &[]) == 2.0;
    crate::harness::until("both to be counted", blocked).await;
}

/// An agent that goes through the same motions again and again: what it tells its children is the same each time.
#[tokio::test]
async fn a_later_fan_out_with_the_same_directives_has_its_own_children() {
    let talk = Talk::new().await;
    let told = ["the north", "the south"].map(directive);
    let mut call = parent("Survey it.");
    let mut forks = Vec::new();
    for round in 0..3 {
        let id = format!("msg_{round}");
        talk.fan_out(&call, &id, &[&told[0], &told[1]]).await;
        let children =
            [talk.ask(&newcomer(told[0].as_str())).await, talk.ask(&newcomer(told[1].as_str())).await];
        assert_eq!(children[0].child(), children[1].child(), "round {round}");
        forks.push(children[0].child());
        let calls = [0, 1].map(|n| agent_call(&format!("{id}_{n}"), &told[n]));
        let results = [0, 1].map(|n| result(&format!("{id}_{n}")));
        call = call.then(assistant(&calls)).then(user(json!(results)));
    }
    forks.dedup();
    assert_eq!(forks.len(), 3, "each fan-out has its own");
}

#[tokio::test]
async fn a_child_that_is_sent_again_is_the_same_child() {
    let talk = Talk::new().await;
    let told = fanned_out(&talk).await;
    let child = newcomer(told[0].as_str());
    let refusal = b"HTTP/1.1 529 Overloaded\r\ncontent-length: 0\r\n\r\n".to_vec();
    let refused = talk.answered(&child, refusal).await;
    assert_eq!((refused.reply.status(), refused.role().as_str()), (529, "child"));
    let fork = talk.ask(&child.clone().with("x-stainless-retry-count", "1")).await.child();
    assert_eq!(talk.ask(&child).await.child(), fork);
    talk.ask(&child.and("max_tokens", json!(5))).await.is_plain();
}

#[tokio::test]
async fn of_a_parent_that_was_sent_again_the_newest_turn_has_the_children() {
    let talk = Talk::new().await;
    let told = ["the north", "the south"].map(directive);
    let fork = |id: &'static str| {
        let (talk, told) = (&talk, &told);
        async move {
            talk.fan_out(&parent("Survey it."), id, &[&told[0], &told[1]]).await;
            talk.ask(&newcomer("Sum up.").with("x-forkpoint-parent", id)).await.child()
        }
    };
    let (lost, kept) = (fork("msg_lost").await, fork("msg_kept").await);
    assert_ne!(lost, kept);
    for told in &told {
        assert_eq!(talk.ask(&newcomer(told.as_str())).await.child(), kept);
    }
}

/// A client that forks by itself sends its parent's history, and is left as it is.
#[tokio::test]
async fn a_clients_own_fork_is_a_child_of_the_turn_that_it_continues() {
    let talk = Talk::new().await;
    let told = fanned_out(&talk).await;
    let own = |n: usize| -> Call {
        let wrapped = format!("<fork-boilerplate>You are a fork.</fork-boilerplate>\n{}", told[n]);
        let turn = assistant(&[agent_call(&format!("msg_1_{n}"), &told[n])]);
        let news: Value = json!([result(&format!("msg_1_{n}")), text(&wrapped)]);
        parent("Survey it.").then(turn).then(user(news))
    };
    let forks = [talk.ask(&own(0)).await.child(), talk.ask(&own(1)).await.child()];
    assert_eq!(forks[0], forks[1]);
}
