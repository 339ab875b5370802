//! An upstream that refuses what was added: the client gets the answer to its own bytes.

use forkpoint::config::Mode;
use forkpoint::sim::faults::{FaultCondition, Rule};
use forkpoint::sim::{InjectedFault, Sim};

use crate::harness::peer::Peer;
use crate::harness::{Forkpoint, Upstream, post};
use crate::workload::{Behaviour, Client, Exchange, Line, Shape, play};

use super::{Stage, simulator};

const MARKER: &str = r#""cache_control""#;

/// From now on the upstream refuses every request with a marker.
fn refuse_markers(sim: &Sim, status: u16) {
    let fault = InjectedFault::Status { status, retry_after_s: None };
    let matching = FaultCondition { body_contains: Some(MARKER.to_owned()), ..FaultCondition::default() };
    sim.faults().order(Rule { fault, count: 1_000, matching }).unwrap();
}

fn has_marker(body: &[u8]) -> bool {
    std::str::from_utf8(body).unwrap().contains(MARKER)
}

async fn played(stage: &Stage, turns: usize) -> Vec<Exchange> {
    play(&mut Client::new(Shape::Tools, Behaviour::Naive, 5), &stage.line(), turns).await
}

#[tokio::test]
async fn a_refused_rewrite_goes_out_once_more_as_the_original() {
    let stage = Stage::aligned().await;
    refuse_markers(&stage.sim, 400);
    let exchanges = played(&stage, 4).await;
    for (turn, exchange) in exchanges.iter().enumerate() {
        assert_eq!(exchange.status, 200, "turn {}", turn + 1);
        assert!(exchange.is_untouched(), "turn {}", turn + 1);
    }
    // The first turn met the refusal; the conversation is left alone from then on.
    let marked = stage.sim.requests().iter().filter(|record| has_marker(&record.body)).count();
    assert_eq!((marked, stage.sim.requests().len()), (1, 5));
    for exchange in &exchanges[1..] {
        assert_eq!(exchange.said("plan"), Some("passthrough"));
        assert!(exchange.said("reason").is_some_and(|reason| reason != "none"), "a reason is given");
    }
    let direct = simulator(|_| ()).await;
    let client = &mut Client::new(Shape::Tools, Behaviour::Naive, 5);
    let own = play(client, &Line::direct(&direct), 1).await.remove(0);
    assert_eq!(exchanges[0].blocks().unwrap().len(), own.blocks().unwrap().len());
    assert_eq!(stage.forkpoint.metric("forkpoint_fallbacks_total", &[]), 1.0);
}

#[tokio::test]
async fn another_conversation_is_tried_anew() {
    let stage = Stage::aligned().await;
    refuse_markers(&stage.sim, 400);
    played(&stage, 1).await;
    stage.sim.faults().clear();
    let other = &mut Client::new(Shape::LongTurns, Behaviour::Naive, 5);
    let exchanges = play(other, &stage.line(), 2).await;
    assert!(exchanges.iter().all(|exchange| exchange.status == 200 && has_marker(&exchange.forwarded)));
}

#[tokio::test]
async fn a_fault_of_the_client_is_relayed_once() {
    let stage = Stage::aligned().await;
    let fault = InjectedFault::Status { status: 400, retry_after_s: None };
    stage.sim.faults().order(Rule { fault, count: 1_000, matching: FaultCondition::default() }).unwrap();
    let exchange = played(&stage, 1).await.remove(0);
    assert_eq!(exchange.status, 400);
    assert!(exchange.is_untouched(), "the answer is that of the original");
    assert_eq!(stage.sim.requests().len(), 2);
}

#[tokio::test]
async fn other_failures_are_relayed_and_never_repeated() {
    for status in [401, 403, 429, 500, 529] {
        let stage = Stage::aligned().await;
        refuse_markers(&stage.sim, status);
        let exchange = played(&stage, 1).await.remove(0);
        assert_eq!(exchange.status, status);
        assert_eq!(stage.sim.requests().len(), 1, "{status} is not for us to repeat");
    }
}

#[tokio::test]
async fn a_refusal_of_what_was_not_changed_is_not_repeated() {
    let stage = Stage::aligned().await;
    refuse_markers(&stage.sim, 400);
    let client = &mut Client::new(Shape::Framework, Behaviour::WellBehaved, 5);
    let exchange = play(client, &stage.line(), 1).await.remove(0);
    assert_eq!((exchange.status, stage.sim.requests().len()), (400, 1));
}

/// The beginning of an error that never ends.
const TRICKLE: &str = r#"{"type":"error","error":{"#;

fn trickling(status: u16) -> String {
    format!("HTTP/1.1 {status} No\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{TRICKLE}")
}

/// A client's first request, on its way to an upstream that the test plays.
async fn asks(forkpoint: &Forkpoint, behaviour: Behaviour, shape: Shape) -> (Peer, Vec<u8>) {
    let letter = Client::new(shape, behaviour, 5).letter();
    let headers: String = letter.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let mut client = forkpoint.client().await;
    client.send(&post(letter.target, &headers, &letter.body)).await;
    (client, letter.body.to_vec())
}

/// Neither side waits for the end of an answer that has been decided by its beginning.
#[tokio::test]
async fn a_refusal_that_trickles_is_acted_on_at_once() {
    for status in [400, 413, 415, 422] {
        let upstream = Upstream::bind().await;
        let forkpoint = Forkpoint::with(&upstream.url(), |config| config.server.mode = Mode::Align).await;
        let (mut client, body) = asks(&forkpoint, Behaviour::Naive, Shape::Tools).await;
        let (mut refusing, first) = upstream.asked().await;
        assert!(has_marker(&first.body), "{status}");
        refusing.send(trickling(status).as_bytes()).await;
        let (mut server, second) = upstream.asked().await;
        assert_eq!(second.body, body, "{status}: as it came");
        server.send(trickling(status).as_bytes()).await;
        assert_eq!(client.head().await.status(), status);
        client.through(TRICKLE.as_bytes()).await;
    }
}

#[tokio::test]
async fn a_refusal_that_trickles_is_passed_on_at_once_if_nothing_was_changed() {
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::with(&upstream.url(), |config| config.server.mode = Mode::Align).await;
    let (mut client, body) = asks(&forkpoint, Behaviour::WellBehaved, Shape::Framework).await;
    let (mut server, asked) = upstream.asked().await;
    assert_eq!(asked.body, body);
    server.send(trickling(400).as_bytes()).await;
    assert_eq!(client.head().await.status(), 400);
    client.through(TRICKLE.as_bytes()).await;
}
