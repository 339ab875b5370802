//! Continues that bring nothing or much: after a summary, after a pause, and of conversations that are too large.

use std::sync::Arc;

use forkpoint::config::Mode;
use forkpoint::sim::{Cue, Recital};
use serde_json::json;

use super::{BOUND, Client, Exchange, FREE, Repeats, Stage, forwarded, id_of, parent, plan, usage};
use crate::workload::prose;

const SUMMARIES: &str = "compact-2026-09-04";
/// An answer of the simulator that is asked for by name.
const PAUSE: &str = "pause";

/// A client that says one thing after the other.
fn talker(model: &str) -> Client {
    Client::new(parent(model, "[[sim:text words=9]]"), Repeats::Nothing)
}

/// Goes on from the last answer with nothing.
async fn goes_on(client: &mut Client, stage: &Stage) -> Exchange {
    let mut body = client.next();
    body["messages"] = json!([]);
    let exchange = client.post(stage, &body).await;
    assert_eq!(exchange.status, 200, "{}", String::from_utf8_lossy(&exchange.answer));
    assert_eq!(plan(&exchange)[1], "aligned");
    assert_eq!(forwarded(&exchange), body, "there is nothing to mark");
    client.previous = Some(id_of(&exchange));
    exchange
}

#[tokio::test]
async fn a_conversation_goes_on_from_its_summary_and_from_nothing_else() {
    for mode in [Mode::Align, Mode::Fork] {
        for model in [FREE, BOUND] {
            let stage = Stage::new(|config| config.server.mode = mode).await;
            let mut client = talker(model).with_betas(SUMMARIES);
            let first = client.turn(&stage).await;
            client.says("Sum it up.");
            let mut ask = client.next();
            ask["compaction"] = json!({"type": "summarize"});
            let asked = client.post(&stage, &ask).await;
            let said = String::from_utf8_lossy(&asked.answer).into_owned();
            assert_eq!((asked.status, plan(&asked)[1]), (200, "aligned"), "{mode:?} {model}: {said}");
            assert_eq!(asked.blocks().unwrap()[0]["type"], "compaction");
            assert!(usage(&asked).cache_read > 40_000, "{mode:?} {model}: it reads what was written");
            client.previous = Some(id_of(&asked));
            let next = goes_on(&mut client, &stage).await;
            // Instructions and tools are still there, and the summary in the place of the project.
            let prompt = usage(&next).prompt();
            assert!(prompt * 3 < usage(&first).prompt(), "{mode:?} {model}: {prompt}");
            client.says("Go on.");
            let last = client.turn(&stage).await;
            assert_eq!((plan(&last)[1], client.replays), ("aligned", 0), "{mode:?} {model}");
            assert!(usage(&last).prompt() > prompt);
            assert_eq!(stage.count("passthrough_total", &["reason=\"unknown_thread\""]), 0);
        }
    }
}

#[tokio::test]
async fn a_paused_turn_of_a_held_conversation_goes_on_with_nothing() {
    for model in [FREE, BOUND] {
        let stage = Stage::new(|_| ()).await;
        let said = json!({"type": "text", "text": "I am still at it."});
        let recital = Recital::new(None, vec![said], Some("pause_turn".to_owned()), 5);
        recital.give(Cue::End);
        assert!(stage.sim.recitals().put(PAUSE.to_owned(), Arc::new(recital)));
        let mut client = talker(model);
        let create = client.letter(&client.create()).with("x-sim-answer", PAUSE);
        let paused = stage.line().send(&create).await;
        assert_eq!((paused.status, plan(&paused)[1]), (200, "aligned"), "{model}");
        client.previous = Some(id_of(&paused));
        let next = goes_on(&mut client, &stage).await;
        assert!(usage(&next).prompt() > usage(&paused).prompt(), "{model}: what was said is a part of it");
        client.says("Go on.");
        assert_eq!(plan(&client.turn(&stage).await)[1], "aligned", "{model}");
        assert_eq!(client.replays, 0, "{model}");
    }
}

#[tokio::test]
async fn a_conversation_that_is_too_large_to_be_made_whole_goes_on_as_it_comes() {
    let mut client = talker(FREE);
    // Room for its first request, and for one more of its size only where nothing was held.
    let room = client.create().to_string().len() + 2_000;
    let stage = Stage::new(|config| config.limits.body_bytes = room).await;
    assert_eq!(plan(&client.turn(&stage).await)[1], "aligned");
    client.says(&prose("Here is more.", 1_000));
    let sent = client.next();
    assert!(sent.to_string().len() * 10 < room, "it is small itself");
    let exchange = client.turn(&stage).await;
    assert_eq!(plan(&exchange), ["plain", "passthrough", "body_too_large"]);
    assert_eq!((forwarded(&exchange), client.replays), (sent, 0));
}

#[tokio::test]
async fn what_tenants_and_clients_cost_adds_up_to_what_was_billed() {
    let stage = Stage::new(|_| ()).await;
    for key in ["sk-one", "sk-two"] {
        for agent in ["one/1.0", "two/2.0"] {
            let mut client = talker(FREE);
            for turn in 0..2 {
                let mut letter = client.letter(&client.next());
                letter.headers.retain(|(name, _)| *name != "x-api-key");
                let letter = letter.with("x-api-key", key).with("user-agent", agent);
                let exchange = stage.line().send(&letter).await;
                assert_eq!(exchange.status, 200, "{key} {agent} {turn}");
                client.previous = Some(id_of(&exchange));
                client.take_in(&exchange);
                client.says("Go on.");
            }
        }
    }
    stage.forkpoint.recorded(8).await;
    let sum = |name: &str, baseline: &str| {
        let label = format!("baseline=\"{baseline}\"");
        let labels: &[&str] = if baseline.is_empty() { &[] } else { &[&label] };
        stage.forkpoint.metric(&format!("forkpoint_{name}"), labels)
    };
    let billed = sum("cost_usd_total", "");
    let expected = [
        ("billed", billed),
        ("sent", sum("counterfactual_usd_total", "sent")),
        ("aligned", sum("counterfactual_usd_total", "aligned")),
    ];
    for (baseline, expected) in expected {
        assert!(expected > 0.0, "{baseline}");
        for owners in ["tenant_cost_usd_total", "client_cost_usd_total"] {
            let found = sum(owners, baseline);
            assert!((found / expected - 1.0).abs() < 1e-9, "{owners} {baseline}: {found} of {expected}");
        }
    }
    // And the bill is the upstream's own.
    let of_upstream: f64 = stage.sim.requests().iter().filter_map(|record| record.cost_usd).sum();
    assert!((billed / of_upstream - 1.0).abs() < 1e-6, "{billed} of {of_upstream}");
}
