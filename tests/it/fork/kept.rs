//! What is kept of fan-outs while their children live.

use forkpoint::config::{Config, Mode};
use serde_json::json;

use super::{FORKED, FREE, Stage, child, extend, plan};
use crate::fanout::talk::{Talk, directive, newcomer, parent};

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
