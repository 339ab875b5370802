//! The part of fan-outs that is kept while their children live.

use forkpoint::config::{Config, Mode};
use serde_json::json;

use super::{FORKED, FREE, Stage, child, extend, plan};
use crate::fork::talk::{Talk, directive, newcomer, parent, text};

fn forks(config: &mut Config) {
    config.server.mode = Mode::Fork;
    config.fork.policy.max_cost_ratio = 1_000.0;
}

#[tokio::test]
async fn a_message_id_that_comes_twice_names_the_turn_that_came_last() {
    let mut talk = Talk::with(forks).await;
    let tasks = [directive("the first part"), directive("the second part")];
    let tasks = [&*tasks[0], &*tasks[1]];
    for (opening, task) in [("It is Alice's project.", tasks[0]), ("It is Bob's project.", tasks[1])] {
        talk.fan_out(&parent(opening), "msg_1", &tasks).await;
        talk.ask(&newcomer(task)).await.child();
        let sent = String::from_utf8(talk.upstream.so_far().pop().unwrap().body).unwrap();
        assert!(sent.contains("<forkpoint-child>") && sent.contains(opening), "{opening}");
    }
}

#[tokio::test]
async fn what_children_share_is_remembered_once() {
    let stage = Stage::new(forks).await;
    let script = "[[sim:fan_out n=50 tool=Agent field=prompt alike=true | tools turns=3 tool=search]]";
    let parent = super::parent(FREE, script);
    let prefix = parent.to_string().len();
    assert!(prefix > 190_000);
    let mut children: Vec<_> = stage.fan_out(&parent).await.iter().map(|told| child(FREE, told)).collect();
    for child in &mut children {
        child["system"] = json!([{"type": "text", "text": "You are a worker and report once."}]);
    }
    let mut held = Vec::new();
    for turn in 0..2 {
        for child in &mut children {
            let exchange = stage.send(child).await;
            assert_eq!((exchange.status, plan(&exchange)), (200, FORKED), "turn {turn}");
            extend(child, &exchange);
            held.push(stage.count("store_bytes", &[]) as usize);
        }
        // The first brings along what all of them stand on; a later turn takes the place of the one before.
        let each = held.last().unwrap().saturating_sub(held[0]) / (children.len() - 1);
        assert!(each < prefix / 5, "turn {turn}: {each} bytes for each child of a parent of {prefix}");
    }
    stage.forkpoint.recorded(1 + 2 * 50).await;
    assert_eq!(stage.count("cache_breaks_total", &[]), 0);
    assert_eq!(stage.count("prefix_sightings_total", &["class=\"drift\""]), 0);
    // What is put together only when it is needed still tells where a child drifts.
    let told = &mut children[7]["messages"][2]["content"][0]["content"];
    assert_eq!(*told, "found");
    *told = json!("lost");
    let drifted = stage.send(&children[7]).await;
    assert_eq!((drifted.status, plan(&drifted)), (200, FORKED));
    stage.forkpoint.recorded(2 + 2 * 50).await;
    assert_eq!(stage.count("prefix_sightings_total", &["class=\"drift\"", "layer=\"messages\""]), 1);
    assert_eq!(stage.count("cache_breaks_total", &["cause=\"messages\"", "layer=\"messages\""]), 1);
}

/// A store so small that the prefixes of a few children fill it.
#[tokio::test]
async fn children_that_work_keep_their_prefixes_and_those_that_wait_for_nothing_make_room() {
    const MAX_BYTES: usize = 1 << 20;
    const RECENT_BYTES: usize = 64 << 10;
    let stage = Stage::new(|config| {
        forks(config);
        config.store.tenant_share = 1.0;
        (config.store.max_bytes, config.store.recent_bytes) = (MAX_BYTES, RECENT_BYTES);
    })
    .await;
    let script = "[[sim:fan_out n=12 tool=Agent field=prompt alike=true | tools turns=2 tool=search]]";
    let told = stage.fan_out(&super::parent(FREE, script)).await;
    let mut children: Vec<_> = told.iter().map(|told| child(FREE, told)).collect();
    let full = ["child", "aligned", "store_full"];
    let mut decided = Vec::new();
    for child in &mut children {
        let exchange = stage.send(child).await;
        decided.push(exchange.said("plan").unwrap().to_owned());
        let said = plan(&exchange);
        assert!(exchange.status == 200 && (said == FORKED || said == full), "{said:?}");
        extend(child, &exchange);
        assert!(stage.count("store_bytes", &[]) as usize <= MAX_BYTES + RECENT_BYTES);
    }
    let forked = decided.iter().filter(|plan| *plan == "forked").count();
    assert!((3..8).contains(&forked), "{forked} were forked");
    assert!(decided[..forked].iter().all(|plan| plan == "forked"), "{decided:?}");
    // All of them go on as they began.
    for (child, plan) in children.iter_mut().zip(&decided) {
        let exchange = stage.send(child).await;
        assert_eq!((exchange.status, exchange.said("plan")), (200, Some(&**plan)));
        extend(child, &exchange);
    }
    // Another fan-out finds no room while they work.
    let sealed = stage.count("forks_total", &["outcome=\"sealed\""]);
    let other = super::parent(FREE, &script.replace("n=12", "n=2"));
    stage.send(&other).await;
    stage.forkpoint.recorded(2 + 2 * 12).await;
    assert_eq!(stage.count("forks_total", &["outcome=\"too_large\""]), 1);
    // They report, and now it does.
    for child in &children {
        assert_eq!(stage.send(child).await.status, 200);
    }
    stage.forkpoint.recorded(2 + 3 * 12).await;
    let told = stage.fan_out(&other).await;
    assert_eq!(stage.count("forks_total", &["outcome=\"sealed\""]), sealed + 1);
    for told in &told {
        assert_eq!(plan(&stage.send(&child(FREE, told)).await), FORKED);
    }
    assert!(stage.count("store_bytes", &[]) as usize <= MAX_BYTES + RECENT_BYTES);
}

/// Two fan-outs, and a child of the newer one that goes out in its own words. Returns what is kept at the end, and the
/// fan-outs that are known.
async fn a_child_that_is_aligned(max_bytes: usize) -> (usize, usize) {
    let talk = Talk::with(|config| {
        (config.server.mode, config.store.tenant_share) = (Mode::Align, 1.0);
        config.store.max_bytes = max_bytes;
    })
    .await;
    for (id, told) in [("msg_old", "the old part"), ("msg_new", "the new part")] {
        talk.fan_out(&parent(id), id, &[&directive(told), &directive("something else")]).await;
    }
    let store = talk.forkpoint.proxy.store();
    assert_eq!(store.forks(), 2);
    // Its prefix would take far more than what is remembered of a child without one.
    let words = json!([text(&directive("the new part")), text(&"and so on ".repeat(10_000))]);
    talk.ask(&newcomer(words)).await.child();
    talk.forkpoint.recorded(3).await;
    (store.budget().kept(), store.forks())
}

#[tokio::test]
async fn a_child_that_is_not_forked_pushes_no_fan_out_out() {
    let (kept, _) = a_child_that_is_aligned(64 << 20).await;
    assert_eq!(a_child_that_is_aligned(kept + (16 << 10)).await.1, 2);
}
