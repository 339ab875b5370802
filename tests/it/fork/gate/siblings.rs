//! Siblings that are sent together, through real sockets, before a cache that bills what it really does.

use std::sync::Arc;
use std::time::Duration;

use forkpoint::config::Mode;
use forkpoint::sim::recital::{self, Cue, Recital};
use serde_json::json;

use crate::harness::until;
use crate::workload::{Exchange, Letter, prose};

use crate::fork::fan_out::{Stage, child, cost, directives, is_whole, parent, together, usage, writers};
use crate::fork::scene::{Scene, sibling, task};
use crate::fork::talk::{agent_call, events, prompt_tokens, streamed};

/// How long followers wait at least, by the clock of the gate.
const HELD_MS: u64 = 5;

/// The cost of this number of siblings, all in all.
struct Round {
    children: Vec<Exchange>,
    cost: f64,
}

/// Who is upstream before the first of the siblings is answered.
#[derive(Clone, Copy, PartialEq)]
enum Upstream {
    /// One of them; the others wait for it.
    Leader,
    /// All of them.
    Everybody,
}

/// A fan-out and its children, sent together in this mode. None is answered before all of them are there.
async fn round(stage: &Stage, count: usize, mode: &str, upstream: Upstream) -> Round {
    let line = stage.line();
    let instruction = format!("[[sim:fan_out n={count} alike=true words=20 | text words=20]]");
    let fan_out = line.send(&Letter::alone(&parent(&instruction)).with("x-forkpoint-mode", mode)).await;
    let told = directives(&fan_out);
    assert_eq!(told.len(), count);
    let sealed = || crate::fork::fan_out::forks(&stage.forkpoint, "sealed") == 1;
    until("the fan-out to be sealed", sealed).await;
    let report = json!({"type": "text", "text": "I have looked at all of it."});
    let report = Arc::new(Recital::new(None, vec![report], Some("end_turn".to_owned()), 20));
    assert!(stage.sim.recitals().put("report".to_owned(), Arc::clone(&report)));
    let letter = |told: &String| {
        let letter = Letter::alone(&child(told)).with("x-forkpoint-mode", mode);
        letter.with(recital::HEADER, "report")
    };
    let are_there = || match upstream {
        Upstream::Leader => stage.forkpoint.proxy.waiting() == count - 1,
        // Each has asked the cache, as the parent did.
        Upstream::Everybody => {
            stage.sim.requests().iter().filter(|record| record.usage.is_some()).count() == count + 1
        }
    };
    let answered = async {
        until("all siblings to be there", are_there).await;
        stage.forkpoint.proxy.clock().skip(HELD_MS);
        report.give(Cue::End);
    };
    let (children, ()) = tokio::join!(together(&line, told.iter().map(letter).collect()), answered);
    for exchange in &children {
        assert!(is_whole(exchange), "{} {:?}", exchange.status, exchange.answer);
        assert_eq!(exchange.said("role"), Some("child"));
        assert_eq!(exchange.said("fork"), children[0].said("fork"));
    }
    Round { cost: cost(&children), children }
}

fn held_ms(exchange: &Exchange) -> u64 {
    exchange.said("held-ms").unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_siblings_one_writes_what_all_share_and_the_others_read_it() {
    for count in [5, 16, 64] {
        let gated = {
            let stage = Stage::new(|_| ()).await;
            let gated = round(&stage, count, "align", Upstream::Leader).await;
            stage.forkpoint.recorded(count as u32 + 1).await;
            assert_eq!(stage.holds("released"), count as u64 - 1);
            let read = |children: &mut dyn Iterator<Item = &Exchange>| -> u64 {
                children.map(|exchange| usage(exchange).cache_read).sum()
            };
            let all = read(&mut gated.children.iter());
            let by_held = read(&mut gated.children.iter().filter(|exchange| held_ms(exchange) > 0));
            let saved = stage.forkpoint.metric("forkpoint_gate_tokens_total", &["saved"]) as u64;
            assert!((by_held / 2..=all).contains(&saved), "saved {saved}, read {by_held} of {all}");
            assert_eq!(stage.forkpoint.proxy.at_gate(), 0);
            gated
        };
        assert_eq!(writers(&gated.children), 1, "of {count}");
        let open = Stage::new(|config| config.gate.max_hold = Duration::ZERO).await;
        let ungated = round(&open, count, "align", Upstream::Everybody).await;
        let observed = round(&Stage::new(|_| ()).await, count, "observe", Upstream::Everybody).await;
        for (name, other) in [("ungated", &ungated), ("observed", &observed)] {
            assert_eq!(writers(&other.children), count, "{name}: none could read what another wrote");
            assert!(gated.cost < other.cost, "{count} {name}: {} against {}", gated.cost, other.cost);
        }
        println!(
            "{count:>2} children: cost {:>7.0} gated, {:>7.0} ungated, {:>7.0} as sent",
            gated.cost, ungated.cost, observed.cost,
        );
        assert!(observed.children.iter().all(Exchange::is_untouched));
    }
}

/// A client that launches each child at its own `content_block_stop`, as coding agents do.
#[tokio::test(flavor = "multi_thread")]
async fn children_that_come_before_the_parents_last_byte_are_children() {
    let stage = Stage::new(|_| ()).await;
    let line = stage.line();
    let instruction = "[[sim:fan_out n=6 pace_ms=100 words=20 | text words=5]]";
    let body = serde_json::to_vec(&parent(instruction)).unwrap();
    let mut client = stage.forkpoint.client().await;
    let headers = "x-api-key: sk-test\r\nanthropic-version: 2023-06-01\r\ncontent-type: application/json\r\n";
    client.send(&crate::harness::post("/v1/messages", headers, &body)).await;
    client.head().await;
    let mut early = Vec::new();
    let mut input = String::new();
    while early.len() < 2 {
        let event = String::from_utf8(client.through(b"\n\n").await).unwrap();
        let Some(data) = event.lines().find_map(|line| line.strip_prefix("data: ")) else { continue };
        let data: serde_json::Value = serde_json::from_str(data).unwrap();
        match data["type"].as_str().unwrap() {
            "content_block_start" => input.clear(),
            "content_block_delta" => input += data["delta"]["partial_json"].as_str().unwrap_or_default(),
            "content_block_stop" if !input.is_empty() => {
                let input: serde_json::Value = serde_json::from_str(&input).unwrap();
                let exchange = line.send(&Letter::alone(&child(input["prompt"].as_str().unwrap()))).await;
                assert_eq!(exchange.said("role"), Some("child"));
                early.push(exchange);
            }
            _ => {}
        }
    }
    assert_eq!(crate::fork::fan_out::forks(&stage.forkpoint, "sealed"), 0, "the parent still streams");
    client.through(b"message_stop\"}").await;
    until("the fan-out to be sealed", || crate::fork::fan_out::forks(&stage.forkpoint, "sealed") == 1).await;
    assert_eq!(writers(&early), 1);
}

/// Children of a child, with a system prompt that nobody has sent yet.
#[tokio::test]
async fn grandchildren_wait_for_each_other() {
    let scene = Scene::fanned_out(2, |config| config.server.mode = Mode::Fork).await;
    let mut child = scene.arrives(0, 1).await;
    let mut asked = scene.next().await;
    let calls = [0, 1].map(|n| agent_call(&format!("toolu_nested_{n}"), &task("_nested", n)));
    asked.send(&streamed(&events("msg_nested", prompt_tokens(&sibling("", 0).body), &calls))).await;
    assert_eq!(child.reply().await.status(), 200);
    let known = || scene.forkpoint.metric("forkpoint_recursion_blocked_total", &[]) == 1.0;
    until("the child's fan-out to be known", known).await;
    let system = json!([{"type": "text", "text": prose("You work for a worker.", 6_000)}]);
    let grandchild = |n: usize| sibling("_nested", n).and("system", system.clone());
    let mut clients = vec![scene.calls(&grandchild(0), 1).await];
    let mut leader = scene.next().await;
    clients.push(scene.calls(&grandchild(1), 2).await);
    assert_eq!(scene.forkpoint.proxy.waiting(), 1);
    leader.begin().await;
    let mut follower = scene.next().await;
    assert_eq!((leader.child, follower.child, scene.holds("released")), (0, 1, 0));
    leader.finish().await;
    follower.answer().await;
    for client in &mut clients {
        let reply = client.reply().await;
        let said = ["role", "plan", "reason"].map(|name| reply.head.get(&format!("x-forkpoint-{name}")));
        assert_eq!(said, ["child", "aligned", "nested"].map(|word| Some(word.to_owned())));
    }
    until("the follower's wait to be counted", || scene.holds("released") == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_says_how_long_it_was_held_and_its_leader_that_it_was_not() {
    let stage = Stage::new(|_| ()).await;
    let gated = round(&stage, 3, "align", Upstream::Leader).await;
    let (writers, readers): (Vec<_>, Vec<_>) =
        gated.children.iter().partition(|exchange| usage(exchange).cache_read == 0);
    assert_eq!(writers.iter().map(|exchange| held_ms(exchange)).collect::<Vec<_>>(), [0]);
    assert!(readers.iter().all(|exchange| held_ms(exchange) >= HELD_MS));
}
