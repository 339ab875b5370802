//! What is kept of fan-outs while their children live.

use forkpoint::config::{Config, Mode};

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
