//! Children that run before their parent's last byte.

use std::time::Duration;

use forkpoint::config::{Config, Mode};
use forkpoint::engine::fork::Late;
use serde_json::{Value, json};

use crate::fork::scene::{HEAD, Scene, closing, request, sibling, task};
use crate::fork::talk::{
    Call, agent_call, assistant, event, events, parent, prompt_tokens, streamed, text, tool_use, user,
};
use crate::harness::peer::Peer;
use crate::harness::{PATIENCE, until};

/// A parent whose answer comes one call after the other.
pub struct Slow {
    scene: Scene,
    client: Peer,
    upstream: Peer,
    events: Vec<String>,
    sent: usize,
}

impl Slow {
    pub async fn begins(children: usize, configure: impl FnOnce(&mut Config)) -> Slow {
        let forks = |config: &mut Config| {
            config.server.mode = Mode::Fork;
            config.fork.await_parent = PATIENCE;
            config.fork.policy.max_cost_ratio = 1_000.0;
            configure(config);
        };
        let scene = Scene::with(forks).await;
        let call = parent("Survey it.");
        let mut client = scene.forkpoint.client().await;
        client.send(&request(&call)).await;
        let (mut upstream, _) = scene.upstream.asked().await;
        upstream.send(HEAD).await;
        let calls: Vec<_> = (0..children).map(|n| agent_call(&call_id(n), &task("", n))).collect();
        let events = events("msg_parent", prompt_tokens(&call.body), &calls);
        Slow { scene, client, upstream, events, sent: 0 }
    }

    /// Streams until so many calls have finished, and their client has read them.
    pub async fn finishes(&mut self, calls: usize) {
        let until = 1 + 3 * calls;
        for event in &self.events[self.sent..until] {
            self.upstream.send_chunk(event.as_bytes()).await;
        }
        self.sent = until;
        let stop = json!({"type": "content_block_stop", "index": calls - 1}).to_string();
        self.client.through(stop.as_bytes()).await;
    }

    /// Streams the rest.
    pub async fn ends(&mut self) {
        for event in &self.events[self.sent..] {
            self.upstream.send_chunk(event.as_bytes()).await;
        }
        self.upstream.send(b"0\r\n\r\n").await;
        self.client.through(b"message_stop").await;
    }

    pub async fn ask(&self, call: &Call) -> Peer {
        let mut client = self.scene.forkpoint.client().await;
        client.send(&request(call)).await;
        client
    }

    async fn child(&self, number: usize) -> Peer {
        self.ask(&sibling("", number)).await
    }

    async fn awaiting(&self, count: usize) {
        let awaiting = || self.scene.forkpoint.proxy.awaiting_seal() == count;
        until(&format!("{count} that wait for the seal"), awaiting).await;
    }

    /// Answers the next request with these blocks; says what it was, and what its client was told of it.
    async fn answers(&self, client: &mut Peer, blocks: &[Value]) -> (Value, [String; 3]) {
        let (mut peer, asked) = self.scene.upstream.asked().await;
        let answer = streamed(&events("msg_child", asked.body.len() / 4, blocks));
        peer.send(&closing(&answer)).await;
        let reply = client.reply().await;
        assert_eq!(reply.status(), 200);
        let said = ["role", "plan", "reason"].map(|name| reply.head.get(&format!("x-forkpoint-{name}")));
        (serde_json::from_slice(&asked.body).unwrap(), said.map(Option::unwrap))
    }

    pub async fn answered(&self, client: &mut Peer) -> (Value, [String; 3]) {
        self.answers(client, &[text("Here is what I found.")]).await
    }
}

fn call_id(child: usize) -> String {
    format!("toolu_{child}")
}

/// The ids of the calls that a forked body brings, and of their results.
fn calls(body: &Value) -> (Vec<String>, Vec<String>) {
    let ids = |message: usize, kind: &str, id: &str| {
        let blocks = body["messages"][message]["content"].as_array().unwrap().iter();
        let blocks = blocks.filter(|block| block["type"] == kind);
        blocks.map(|block| block[id].as_str().unwrap().to_owned()).collect()
    };
    (ids(1, "tool_use", "id"), ids(2, "tool_result", "tool_use_id"))
}

#[track_caller]
fn stands_on(body: &Value, count: usize) {
    let expected: Vec<_> = (0..count).map(call_id).collect();
    assert_eq!(calls(body), (expected.clone(), expected));
}

#[tokio::test]
async fn a_child_waits_for_the_seal_and_stands_on_the_whole_turn() {
    let mut slow = Slow::begins(3, |_| ()).await;
    slow.finishes(1).await;
    let mut first = slow.child(0).await;
    slow.awaiting(1).await;
    slow.finishes(2).await;
    let mut second = slow.child(1).await;
    slow.awaiting(2).await;
    slow.ends().await;
    // Which of the two leads is theirs to say.
    let (mut peer, leader) = slow.scene.upstream.asked().await;
    let leader: Value = serde_json::from_slice(&leader.body).unwrap();
    stands_on(&leader, 3);
    peer.send(&closing(&streamed(&events("msg_leader", 2_000, &[text("Here it is.")])))).await;
    let (mut peer, follower) = slow.scene.upstream.asked().await;
    let follower: Value = serde_json::from_slice(&follower.body).unwrap();
    stands_on(&follower, 3);
    peer.send(&closing(&streamed(&events("msg_follower", 2_000, &[text("Here it is.")])))).await;
    for client in [&mut first, &mut second] {
        let reply = client.reply().await;
        assert_eq!((reply.status(), reply.reason().as_deref()), (200, Some("none")));
    }
    let told =
        |body: &Value| body["messages"][2]["content"].as_array().unwrap().last().unwrap()["text"].clone();
    let mut told = [told(&leader), told(&follower)];
    told.sort_by_key(Value::to_string);
    assert_eq!(told, [json!(task("", 0)), json!(task("", 1))]);
    slow.awaiting(0).await;
}

#[tokio::test]
async fn a_child_that_cannot_wait_stands_on_the_turn_up_to_its_own_call_for_life() {
    let waits: [fn(&mut Config); 2] = [
        |config| config.fork.await_parent = Duration::ZERO,
        // No wait outlasts the one deadline.
        |config| config.gate.max_hold = Duration::ZERO,
    ];
    for wait in waits {
        let mut slow = Slow::begins(3, wait).await;
        let forked = ["child", "forked", "none"].map(String::from);
        slow.finishes(1).await;
        let looks = tool_use("toolu_look", "read_file", json!({"path": "src/lib.rs"}));
        let mut client = slow.child(0).await;
        let (body, said) = slow.answers(&mut client, std::slice::from_ref(&looks)).await;
        assert_eq!(said, forked);
        stands_on(&body, 1);
        slow.finishes(2).await;
        let (body, said) = slow.answered(&mut slow.child(1).await).await;
        assert_eq!(said, forked);
        stands_on(&body, 2);
        slow.ends().await;
        let (body, said) = slow.answered(&mut slow.child(2).await).await;
        assert_eq!(said, forked);
        stands_on(&body, 3);
        let result = json!([{"type": "tool_result", "tool_use_id": "toolu_look", "content": "There."}]);
        let later = sibling("", 0).then(assistant(&[looks])).then(user(result));
        let (body, said) = slow.answered(&mut slow.ask(&later).await).await;
        assert_eq!(said, forked);
        stands_on(&body, 1);
        assert_eq!(body["messages"].as_array().unwrap().len(), 5, "{body}");
    }
}

#[tokio::test]
async fn late_children_are_left_alone_if_so_configured() {
    let late = |config: &mut Config| {
        config.fork.await_parent = Duration::ZERO;
        config.fork.policy.late = Late::Passthrough;
    };
    let mut slow = Slow::begins(2, late).await;
    slow.finishes(1).await;
    let (body, said) = slow.answered(&mut slow.child(0).await).await;
    assert_eq!(said, ["child", "aligned", "late"]);
    assert_eq!(body["messages"], sibling("", 0).body["messages"]);
    slow.ends().await;
    let (_, said) = slow.answered(&mut slow.child(1).await).await;
    assert_eq!(said, ["child", "forked", "none"]);
}

#[tokio::test]
async fn who_cannot_be_forked_does_not_wait_for_the_seal() {
    for (late, reason) in [(Late::Partial, "tools_differ"), (Late::Passthrough, "late")] {
        let mut slow = Slow::begins(3, |config| config.fork.policy.late = late).await;
        slow.finishes(2).await;
        let other = sibling("", 0).and("tools", json!([crate::workload::tool("elsewhere")]));
        let (_, said) = slow.answered(&mut slow.ask(&other).await).await;
        assert_eq!(said, ["child", "aligned", reason]);
        // The one that could be waits.
        let _client = slow.child(1).await;
        slow.awaiting(1).await;
    }
    let mut slow = Slow::begins(2, |config| config.fork.policy.share = 0.0).await;
    slow.finishes(1).await;
    let (_, said) = slow.answered(&mut slow.child(0).await).await;
    assert_eq!(said, ["child", "aligned", "holdout"]);
}

#[tokio::test]
async fn a_directive_that_has_not_finished_is_nobodys() {
    let mut slow = Slow::begins(2, |_| ()).await;
    slow.finishes(1).await;
    let (body, said) = slow.answered(&mut slow.child(1).await).await;
    assert_eq!(said[0], "plain");
    assert_eq!(body["messages"], sibling("", 1).body["messages"]);
}

#[tokio::test]
async fn children_of_a_turn_that_comes_to_nothing_go_on_as_their_own() {
    for breaks_off in [true, false] {
        let mut slow = Slow::begins(2, |_| ()).await;
        slow.finishes(2).await;
        let mut client = slow.child(0).await;
        slow.awaiting(1).await;
        if breaks_off {
            slow.upstream.finish().await;
            slow.client.gone().await;
        } else {
            let delta = json!({"stop_reason": "max_tokens"});
            let usage = json!({"output_tokens": 9});
            let ends = event(json!({"type": "message_delta", "delta": delta, "usage": usage}));
            slow.events.splice(slow.sent..=slow.sent, [ends]);
            slow.ends().await;
        }
        let (body, said) = slow.answered(&mut client).await;
        assert_eq!(said[..2], ["plain", "aligned"], "breaks off: {breaks_off}");
        assert_eq!(body["messages"], sibling("", 0).body["messages"]);
        let outcome = if breaks_off { "unfinished" } else { "stop_reason" };
        let labels = [&*format!("outcome=\"{outcome}\"")];
        assert_eq!(slow.scene.forkpoint.metric("forkpoint_forks_total", &labels), 1.0);
    }
}

#[tokio::test]
async fn who_leaves_while_waiting_is_never_sent_and_may_come_again() {
    let mut slow = Slow::begins(2, |_| ()).await;
    slow.finishes(1).await;
    let gone = slow.child(0).await;
    slow.awaiting(1).await;
    drop(gone);
    slow.awaiting(0).await;
    slow.scene.forkpoint.recorded(1).await;
    let mut again = slow.child(0).await;
    slow.awaiting(1).await;
    slow.ends().await;
    let (body, said) = slow.answered(&mut again).await;
    assert_eq!(said, ["child", "forked", "none"]);
    stands_on(&body, 2);
    slow.scene.forkpoint.recorded(3).await;
}

#[tokio::test]
async fn a_child_that_awaits_the_seal_when_a_drain_begins_is_answered() {
    let mut slow = Slow::begins(2, |_| ()).await;
    slow.finishes(1).await;
    let mut child = slow.child(0).await;
    slow.awaiting(1).await;
    slow.scene.forkpoint.stop();
    slow.ends().await;
    let (body, said) = slow.answered(&mut child).await;
    stands_on(&body, 2);
    assert_eq!(said, ["child", "forked", "none"]);
    slow.scene.forkpoint.drained().await;
}
