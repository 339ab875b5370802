//! Leaders that come to nothing: the next one leads, in order of arrival; nobody is lost, nobody waits too long.

use std::time::Duration;

use serde_json::json;

use crate::harness::peer::Peer;
use crate::harness::{PATIENCE, until};

use crate::fork::scene::{Asked, Scene, request, sibling};
use crate::fork::talk::{event, text};

const SHORT: Duration = Duration::from_millis(150);

/// A leader at the upstream, and two that wait for it.
struct Started {
    scene: Scene,
    leader: Asked,
    clients: Vec<Peer>,
}

async fn started() -> Started {
    let scene = Scene::fanned_out(3, |_| ()).await;
    let mut clients = vec![scene.arrives(0, 1).await];
    let leader = scene.next().await;
    assert_eq!(leader.child, 0);
    for child in 1..3 {
        clients.push(scene.arrives(child, child + 1).await);
    }
    Started { scene, leader, clients }
}

/// The leader came to nothing: the second leads, alone, and the third goes when the second's answer begins.
async fn second_leads(scene: Scene, mut rest: Vec<Peer>) {
    let mut second = scene.next().await;
    assert_eq!(second.child, 1, "succession is in order of arrival");
    scene.at_gate(2).await;
    assert_eq!(scene.holds("released"), 0, "nothing can be read yet");
    second.begin().await;
    let mut third = scene.next().await;
    assert_eq!(third.child, 2);
    second.finish().await;
    third.answer().await;
    for client in &mut rest {
        let reply = client.reply().await;
        assert_eq!(reply.status(), 200);
        assert!(reply.body.ends_with(b"{\"type\":\"message_stop\"}\n\n"), "a whole answer");
        assert_eq!(reply.head.get("x-forkpoint-role").as_deref(), Some("child"));
    }
    scene.at_gate(0).await;
    scene.forkpoint.recorded(4).await;
    let outcomes = ["led", "succeeded", "released", "timed_out"].map(|outcome| scene.holds(outcome));
    assert_eq!(outcomes, [1, 1, 1, 0]);
}

#[tokio::test]
async fn of_a_leader_that_begins_all_followers_are_released_at_its_first_content() {
    let Started { scene, mut leader, mut clients } = started().await;
    leader.start().await;
    clients[0].head().await;
    scene.at_gate(3).await;
    leader.send_event(&event(json!({"type": "ping"}))).await;
    clients[0].through(b"ping").await;
    scene.at_gate(3).await;
    assert_eq!(scene.holds("released"), 0, "neither head nor bill nor ping can be read from");
    let begins = json!({"type": "content_block_start", "index": 0, "content_block": text("")});
    leader.send_event(&event(begins)).await;
    let mut answered = scene.answer(2).await;
    answered.sort_unstable();
    assert_eq!(answered, [1, 2]);
    leader.finish().await;
    for client in &mut clients[1..] {
        assert_eq!(client.reply().await.status(), 200);
    }
    scene.at_gate(0).await;
    assert_eq!((scene.holds("led"), scene.holds("released")), (1, 2));
}

#[tokio::test]
async fn the_next_one_leads_when_the_leader_is_refused() {
    let Started { scene, mut leader, mut clients } = started().await;
    let overloaded = br#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
    let head = format!(
        "HTTP/1.1 529 Overloaded\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        overloaded.len()
    );
    leader.send(&[head.as_bytes(), overloaded].concat()).await;
    let refused = clients.remove(0).reply().await;
    assert_eq!(
        (refused.status(), refused.error().0.as_str()),
        (529, "overloaded_error"),
        "relayed, not retried"
    );
    second_leads(scene, clients).await;
}

#[tokio::test]
async fn the_next_one_leads_when_the_leaders_client_leaves() {
    let Started { scene, mut leader, mut clients } = started().await;
    drop(clients.remove(0));
    leader.gone().await;
    second_leads(scene, clients).await;
}

#[tokio::test]
async fn the_next_one_leads_when_the_leaders_client_leaves_after_the_head() {
    let Started { scene, mut leader, mut clients } = started().await;
    leader.start().await;
    let mut client = clients.remove(0);
    client.through(b"message_start").await;
    drop(client);
    leader.gone().await;
    second_leads(scene, clients).await;
}

#[tokio::test]
async fn the_next_one_leads_when_the_leader_errs_after_its_head() {
    let Started { scene, mut leader, mut clients } = started().await;
    leader.start().await;
    leader.send_event(&event(json!({"type": "error", "error": {"type": "overloaded_error"}}))).await;
    leader.end().await;
    let erred = clients.remove(0).reply().await;
    assert!(String::from_utf8(erred.body).unwrap().contains("overloaded_error"));
    second_leads(scene, clients).await;
}

#[tokio::test]
async fn the_next_one_leads_when_the_leader_breaks_off() {
    let Started { scene, mut leader, mut clients } = started().await;
    leader.start().await;
    let mut broken = clients.remove(0);
    broken.through(b"message_start").await;
    drop(leader);
    broken.gone().await;
    second_leads(scene, clients).await;
}

/// What a leader that broke off had been billed for is not there: those that come later must not believe it.
#[tokio::test]
async fn what_no_leader_began_is_not_taken_for_warm() {
    let scene = Scene::fanned_out(3, |_| ()).await;
    let mut erring = scene.arrives(0, 1).await;
    let mut leader = scene.next().await;
    leader.start().await;
    leader.send_event(&event(json!({"type": "error", "error": {"type": "api_error"}}))).await;
    leader.end().await;
    erring.reply().await;
    scene.forkpoint.recorded(2).await;
    let _second = scene.arrives(1, 1).await;
    let mut leader = scene.next().await;
    let _third = scene.arrives(2, 2).await;
    assert_eq!(scene.holds("led"), 1, "the third waits for the second, which leads");
    leader.begin().await;
    assert_eq!(scene.answer(1).await, [2]);
}

#[tokio::test]
async fn behind_a_leader_that_stalls_followers_go_at_their_deadline() {
    let scene = Scene::fanned_out(4, |config| config.gate.max_hold = SHORT).await;
    let mut stalled = scene.arrives(0, 1).await;
    let mut leader = scene.next().await;
    leader.start().await;
    let mut clients = Vec::new();
    for child in 1..4 {
        let mut client = scene.forkpoint.client().await;
        client.send(&request(&sibling("", child))).await;
        clients.push(client);
    }
    let mut asked = Vec::new();
    for _ in 0..3 {
        // None of them begins, so each has to wait for its own deadline.
        asked.push(scene.next().await);
    }
    for asked in &mut asked {
        asked.answer().await;
    }
    for client in &mut clients {
        let reply = client.reply().await;
        assert_eq!(reply.status(), 200);
        let held: u64 = reply.head.get("x-forkpoint-held-ms").unwrap().parse().unwrap();
        assert!(held > 0);
    }
    until("all to be recorded", || scene.holds("timed_out") == 3).await;
    leader.finish_after_start().await;
    stalled.reply().await;
    scene.at_gate(0).await;
}

#[tokio::test]
async fn nobody_waits_for_a_write_whose_answers_begin_too_late() {
    let scene = Scene::fanned_out(3, |_| ()).await;
    let mut first = scene.arrives(0, 1).await;
    let mut leader = scene.next().await;
    scene.forkpoint.proxy.clock().skip(2 * PATIENCE.as_millis() as u64);
    leader.answer().await;
    assert_eq!(first.reply().await.status(), 200);
    // As much to be written, and not the same: at the gate it would lead.
    let mut other = sibling("", 1);
    let system = &mut other.body["system"][0]["text"];
    *system = format!("Otherwise. {}", system.as_str().unwrap()).into();
    let mut client = scene.calls(&other, 0).await;
    scene.next().await.answer().await;
    assert_eq!(client.reply().await.status(), 200);
    scene.forkpoint.recorded(3).await;
    assert_eq!(["led", "too_slow"].map(|outcome| scene.holds(outcome)), [1, 1]);
}

#[tokio::test]
async fn those_at_the_gate_when_a_drain_begins_are_answered() {
    let Started { scene, mut leader, mut clients } = started().await;
    scene.forkpoint.stop();
    leader.begin().await;
    let mut answered = scene.answer(2).await;
    answered.sort_unstable();
    assert_eq!(answered, [1, 2]);
    leader.finish().await;
    for client in &mut clients {
        let reply = client.reply().await;
        assert_eq!(reply.status(), 200);
        assert!(reply.body.ends_with(b"{\"type\":\"message_stop\"}\n\n"), "a whole answer");
    }
    scene.forkpoint.drained().await;
}
