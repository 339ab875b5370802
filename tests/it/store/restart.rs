//! What is known before a restart is known after it.

use std::time::Duration;

use forkpoint::config::{Config, Mode, Secret};
use forkpoint::sim::{Sim, SimConfig};
use serde_json::Value;

use super::{House, SCRIPT, prefix_bytes, shared};
use crate::fork::children::threads::{Client, Repeats};
use crate::fork::children::{
    BOUND, FORKED, FREE, child, directives, extend, forwarded, parent, plan, usage, without_markers,
};
use crate::harness::{Binary, Log};
use crate::limits::strangers::{flood, invented};
use crate::workload::{Exchange, Letter, Line};

#[tokio::test]
async fn a_child_keeps_its_prefix_byte_for_byte_between_its_turns() {
    for model in [FREE, BOUND] {
        let mut house = House::new().await;
        let told = house.fan_out(&parent(model, SCRIPT)).await;
        let mut body = child(model, &told[0]);
        let mut first = None;
        for turn in 1..=4 {
            let exchange = house.send(&body).await;
            let said = String::from_utf8_lossy(&exchange.answer).into_owned();
            assert_eq!((exchange.status, plan(&exchange)), (200, FORKED), "{model} turn {turn}: {said}");
            if turn > 1 {
                let used = usage(&exchange);
                assert!(used.cache_read * 10 > used.prompt() * 9, "{model} turn {turn}: {used:?}");
            }
            extend(&mut body, &exchange);
            let first = first.get_or_insert_with(|| exchange.clone());
            assert_eq!(exchange.said("prefix"), first.said("prefix"), "{model} turn {turn}");
            let same = shared(&exchange.forwarded, &first.forwarded);
            assert!(same >= prefix_bytes(first), "{model} turn {turn}: {same} of {}", prefix_bytes(first));
            house = house.restart().await;
        }
        assert_eq!(house.count("fallbacks_total", &[]), 0, "{model}");
    }
}

#[tokio::test]
async fn a_flood_of_strangers_after_the_restart_takes_no_prefix_from_a_child() {
    let keys: [fn(usize) -> Option<String>; 2] = [invented, |_| None];
    for key in keys {
        let house = House::new().await;
        let told = house.fan_out(&parent(FREE, SCRIPT)).await;
        let mut body = child(FREE, &told[0]);
        let first = house.send(&body).await;
        extend(&mut body, &first);
        let house = house.restart().await;
        let attackers = flood(&house.forkpoint, key).await;
        for body in [&body, &child(FREE, &told[1])] {
            let exchange = house.send(body).await;
            assert_eq!((exchange.status, plan(&exchange)), (200, FORKED));
            let used = usage(&exchange);
            assert!(used.cache_read * 10 > used.prompt() * 9, "{used:?}");
        }
        drop(attackers);
    }
}

#[tokio::test]
async fn a_forked_child_that_the_server_holds_keeps_its_prefix_between_its_turns() {
    for (model, repeats) in
        [(FREE, Repeats::Nothing), (FREE, Repeats::All), (BOUND, Repeats::Nothing), (BOUND, Repeats::All)]
    {
        let mut house = House::new().await;
        let mut lead = Client::new(parent(model, SCRIPT), repeats);
        let fan_out = lead.turn_through(&house.line()).await;
        let told = house.fanned_out(&fan_out).await;
        let mut client = Client::new(child(model, &told[0]), repeats).with_betas("one-2099-01-01");
        for turn in 1..=4 {
            let name = format!("{model} {repeats:?} turn {turn}");
            let exchange = client.turn_through(&house.line()).await;
            assert_eq!((plan(&exchange), client.replays), (FORKED, 0), "{name}");
            if turn > 1 {
                let body = forwarded(&exchange);
                assert_eq!((body.get("system"), body.get("tools")), (None, None), "{name}");
                let used = usage(&exchange);
                assert!(used.cache_read * 10 > used.prompt() * 9, "{name}: {used:?}");
            }
            assert_eq!(house.count("fallbacks_total", &[]), 0, "{name}");
            house = house.restart().await;
        }
    }
}

#[tokio::test]
async fn conversations_that_the_server_has_lost_say_nothing_about_the_base_url() {
    let mut house = House::new().await;
    let mut clients = Vec::new();
    for number in 0..4 {
        let body = parent(FREE, &format!("Do {number}. [[sim:text words=9]]"));
        let mut client = Client::new(body, Repeats::All);
        client.turn_through(&house.line()).await;
        clients.push(client);
    }
    let log = Log::start();
    house = house.restart().await;
    house.line().pause(Duration::from_secs(301));
    for client in &clients {
        let exchange = house.line().send(&client.letter(&client.next())).await;
        assert_eq!((exchange.status, plan(&exchange)[1]), (404, "aligned"), "it is known here");
    }
    house.forkpoint.recorded(4).await;
    let lines = log.text();
    assert!(lines.contains("forkpoint::request") && !lines.contains("got a 404"), "{lines}");
}

#[tokio::test]
async fn a_child_that_comes_after_the_restart_is_put_on_the_same_prefix() {
    for model in [FREE, BOUND] {
        let house = House::new().await;
        let told = house.fan_out(&parent(model, SCRIPT)).await;
        let first = house.send(&child(model, &told[0])).await;
        assert_eq!(plan(&first), FORKED, "{model}");
        let house = house.restart().await;
        for directive in &told[1..] {
            let late = house.send(&child(model, directive)).await;
            assert_eq!((late.status, plan(&late)), (200, FORKED), "{model}");
            assert_eq!(late.said("prefix"), first.said("prefix"), "{model}");
            assert_eq!(late.said("fork"), first.said("fork"), "{model}");
            let same = shared(&late.forwarded, &first.forwarded);
            assert!(same >= prefix_bytes(&first), "{model}: {same} of {}", prefix_bytes(&first));
            let used = usage(&late);
            assert!(used.cache_read * 10 > used.prompt() * 9, "{model}: {used:?}");
        }
    }
}

#[tokio::test]
async fn tools_are_spelt_as_they_were_first_before_the_restart() {
    let house = House::new().await;
    let body = child(FREE, "Look around, and say what there is.");
    let first = house.send(&body).await;
    assert_eq!(first.status, 200);
    let house = house.restart().await;
    let mut other = child(FREE, "Look around once more, and say what else there is.");
    other["tools"].as_array_mut().unwrap().reverse();
    let exchange = house.send(&other).await;
    let tools = |body: Value| without_markers(body)["tools"].clone();
    assert_eq!(tools(forwarded(&exchange)), tools(forwarded(&first)));
    assert_ne!(tools(forwarded(&exchange)), tools(other));
    let used = usage(&exchange);
    assert!(used.cache_read > 0, "its tools are warm: {used:?}");
}

#[tokio::test]
async fn a_tenant_that_was_forgotten_is_not_known_after_the_restart() {
    let house = House::new().await;
    let told = house.fan_out(&parent(FREE, SCRIPT)).await;
    let mut body = child(FREE, &told[0]);
    let first = house.send(&body).await;
    extend(&mut body, &first);
    let known: Vec<_> = house.forkpoint.proxy.store().known().into_iter().map(|(id, _)| id).collect();
    for id in known {
        let forgotten = house.forkpoint.proxy.store().forget_for_good(&id).await;
        assert!(forgotten.was_known && forgotten.error.is_none(), "{forgotten:?}");
    }
    let house = house.restart().await;
    let second = house.send(&body).await;
    assert_eq!((second.status, plan(&second)[0]), (200, "plain"));
    let late = house.send(&child(FREE, &told[1])).await;
    assert_eq!((late.status, plan(&late)[0]), (200, "plain"));
}

#[tokio::test]
async fn what_is_shown_as_saved_after_a_restart_is_no_more_than_without_one() {
    let mut saved = Vec::new();
    for restarts in [false, true] {
        let mut house = House::new().await;
        let told = house.fan_out(&parent(FREE, SCRIPT)).await;
        let mut bodies: Vec<_> = told.iter().map(|directive| child(FREE, directive)).collect();
        let mut sum = 0.0;
        for _ in 0..3 {
            for body in &mut bodies {
                let exchange = house.send(body).await;
                assert_eq!(plan(&exchange), FORKED);
                extend(body, &exchange);
            }
            if restarts {
                sum += house.usd("saved_usd");
                house = house.restart().await;
            }
        }
        saved.push(sum + house.usd("saved_usd"));
    }
    let [without, with] = saved[..] else { panic!("{saved:?}") };
    assert!(with <= without + 0.05 * without.abs(), "{with} is shown with restarts, {without} without");
}

#[tokio::test]
async fn a_key_is_needed_to_read_what_was_written_with_it() {
    let house = House::new().await;
    let secret = Secret::new("0123456789abcdef0123456789abcdef");
    let with_key = |config: &mut Config| config.store.key = secret.clone();
    let house = house.restart_as(with_key).await;
    let told = house.fan_out(&parent(FREE, &format!("{SCRIPT} xyzzy-the-secret"))).await;
    let house = house.restart_as(with_key).await;
    assert_eq!(plan(&house.send(&child(FREE, &told[0])).await), FORKED);
    for entry in walk(house.folder.path()) {
        let bytes = std::fs::read(&entry).unwrap_or_default();
        let found = bytes.windows(16).any(|window| window == b"xyzzy-the-secret");
        assert!(!found, "{} holds words of a prompt", entry.display());
    }
    let house = house.restart().await;
    let without = house.send(&child(FREE, &told[1])).await;
    assert_eq!((without.status, plan(&without)[0]), (200, "plain"));
}

/// The folder outlives a process that has no time to write anything at its end.
#[tokio::test]
async fn a_child_keeps_its_prefix_when_its_forkpoint_is_killed() {
    for model in [FREE, BOUND] {
        let sim = Sim::start(SimConfig::default()).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store").to_str().unwrap().to_owned();
        let settings = [
            ("FORKPOINT_STORE", "file"),
            ("STORE__PATH", &*path),
            ("STORE__DEADLINE_MS", "10000"),
            ("FORK__MAX_COST_RATIO", "100"),
            ("FORK__CONTEXT_PREMIUM", "100"),
        ];
        let mut binary = Binary::serve(&sim.url(), &settings).await;
        let told = directives(&send(&binary, &sim, &parent(model, SCRIPT)).await);
        let mut body = child(model, &told[0]);
        let mut first = None;
        for turn in 1..=3 {
            let exchange = send(&binary, &sim, &body).await;
            assert_eq!((exchange.status, plan(&exchange)), (200, FORKED), "{model} turn {turn}");
            extend(&mut body, &exchange);
            let first = first.get_or_insert_with(|| exchange.clone());
            let same = shared(&exchange.forwarded, &first.forwarded);
            assert!(same >= prefix_bytes(first), "{model} turn {turn}: {same} of {}", prefix_bytes(first));
            // What is promised to be written within a tenth of a second is, also on a busy machine.
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            binary.signal("KILL").await;
            assert!(!binary.exit().await.success());
            binary = Binary::serve(&sim.url(), &settings).await;
            assert_eq!(binary.admin("/readyz").await, (200, "ready\n".to_owned()));
        }
    }
}

pub async fn send(binary: &Binary, sim: &Sim, body: &serde_json::Value) -> Exchange {
    let mut line = Line::direct(sim);
    line.url = format!("http://{}", binary.proxy);
    line.send(&Letter::alone(body)).await
}

fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(walk(&path)) } else { found.push(path) }
    }
    found
}

#[tokio::test]
async fn a_question_about_tokens_of_a_child_is_of_its_prefix_after_a_restart() {
    let house = House::new().await;
    let told = house.fan_out(&parent(FREE, SCRIPT)).await;
    let mut body = child(FREE, &told[0]);
    let first = house.send(&body).await;
    extend(&mut body, &first);
    let mut house = house.restart_as(|config| config.server.mode = Mode::Observe).await;
    // Who was put on a prefix before keeps it, whatever the configuration says now.
    let second = house.send(&body).await;
    assert_eq!((second.status, plan(&second)), (200, FORKED));
    extend(&mut body, &second);
    house = house.restart().await;
    assert_eq!(plan(&house.send(&body).await), FORKED);
}
