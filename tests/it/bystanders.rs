//! Nobody waits for another's bytes: how long somebody else's small requests take while a hostile one is served.
//!
//! All of it runs on one core, with one worker. A round in which the machine was busy with something else proves nothing,
//! so a slow one is played again, a few times.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forkpoint::config::Mode;
use serde_json::{Value, json};

use crate::fork::talk::{
    Call, Talk, agent_call, assistant, directive, events, newcomer, parent, streamed, text, user,
};
use crate::harness::on_one_core;
use crate::workload::tool;

/// The longest that anybody else may wait.
const WAIT_MAX: Duration = Duration::from_millis(500);
/// The times that a slow round is played again.
const ROUNDS_MAX: usize = 3;

/// Plays `round` until nobody waited for long in it.
pub async fn nobody_waits<F: Future<Output = Duration>>(what: &str, round: impl Fn() -> F) {
    let mut longest = Vec::new();
    for _ in 0..ROUNDS_MAX {
        longest.push(round().await);
        if longest.last().is_some_and(|wait| *wait < WAIT_MAX) {
            return;
        }
    }
    panic!("{what}: others waited {longest:?}");
}

/// The longest that a small request of somebody else takes until `hostile` is over.
async fn longest_wait(talk: &Talk, hostile: impl Future<Output = ()> + Send + 'static) -> Duration {
    let hostile = tokio::spawn(hostile);
    let mut longest = Duration::ZERO;
    while !hostile.is_finished() {
        let started = Instant::now();
        let told = talk.ask(&newcomer("Good morning.").of("bystander")).await;
        assert_eq!(told.reply.status(), 200);
        longest = longest.max(started.elapsed());
    }
    hostile.await.unwrap();
    longest
}

const CHILDREN: usize = 3;
const LINE_BYTES: usize = 4 << 20;

/// A parent and its children that bring the same in great numbers.
async fn fan_out_of_many(what: &str, bring: fn(Call) -> Call) {
    let tasks: Vec<String> = (0..CHILDREN).map(|n| directive(&format!("part number {n}"))).collect();
    let calls: Vec<Value> =
        tasks.iter().enumerate().map(|(n, task)| agent_call(&format!("call_{n}"), task)).collect();
    // Written before the clock starts: what a test does itself must delay nobody.
    let written = |call: Call, id: &str, blocks: &[Value]| {
        let body = serde_json::to_vec(&call.body).unwrap();
        let answer = streamed(&events(id, body.len() / 4, blocks));
        (call.headers, body, answer)
    };
    let parent = written(bring(parent("Survey it.")), "msg_many", &calls);
    let children = tasks
        .iter()
        .map(|task| written(bring(newcomer(task.as_str())), "msg_child", &[text("Here is what I found.")]));
    let children: Vec<_> = children.collect();
    nobody_waits(what, || async {
        let talk = Arc::new(Talk::with(|config| config.server.mode = Mode::Fork).await);
        let (hostile, parent, children) = (Arc::clone(&talk), parent.clone(), children.clone());
        longest_wait(&talk, async move {
            let (headers, body, answer) = parent;
            assert_eq!(hostile.answered_as_spelt(&headers, &body, answer).await.reply.status(), 200);
            for (headers, body, answer) in children {
                hostile.answered_as_spelt(&headers, &body, answer).await.child();
            }
        })
        .await
    })
    .await;
}

fn each(count: usize, of: impl Fn(usize) -> Value) -> Vec<Value> {
    (0..count).map(of).collect()
}

#[test]
fn nobody_waits_for_the_comparison_of_many_fields() {
    on_one_core(async {
        fan_out_of_many("fields", |mut call| {
            for number in 0..15_000 {
                call.body[format!("field_{number}")] = json!(1);
            }
            call
        })
        .await;
    });
}

#[test]
fn nobody_waits_for_the_comparison_of_many_system_blocks() {
    on_one_core(async {
        fan_out_of_many("system blocks", |call| {
            let blocks = each(6_000, |number| json!({"type": "text", "text": format!("{number}")}));
            call.and("system", json!(blocks))
        })
        .await;
    });
}

#[test]
fn nobody_waits_for_the_comparison_of_many_tools() {
    on_one_core(async {
        fan_out_of_many("tools", |call| {
            let own = call.body["tools"].as_array().unwrap().clone();
            let many = each(6_000, |number| json!({"name": format!("t{number}"), "description": own.len()}));
            call.and("tools", json!([own, vec![tool("Agent")], many].concat()))
        })
        .await;
    });
}

#[test]
fn nobody_waits_for_the_comparison_of_many_images() {
    on_one_core(async {
        fan_out_of_many("images", |mut call| {
            let own = call.body["messages"][0]["content"].take();
            let shown = each(4_000, |number| json!({"type": "image", "source": {"n": number}}));
            call.body["messages"][0]["content"] =
                json!([shown, vec![json!({"type": "text", "text": own})]].concat());
            call
        })
        .await;
    });
}

#[test]
fn nobody_waits_for_the_comparison_of_many_betas() {
    on_one_core(async {
        fan_out_of_many("betas", |call| {
            let betas: Vec<String> = (0..15_000).map(|number| number.to_string()).collect();
            call.with("anthropic-beta", &betas.join(","))
        })
        .await;
    });
}

/// A system prompt of one line of this many bytes, with `word` in every second place.
fn one_line(word: &str, bytes: usize) -> Value {
    let pair = format!("same {word} ");
    json!([{"type": "text", "text": pair.repeat(bytes / pair.len())}])
}

#[test]
fn nobody_waits_for_the_comparison_of_two_long_texts() {
    on_one_core(async {
        nobody_waits("long texts", || async {
            let talk = Arc::new(Talk::new().await);
            let hostile = Arc::clone(&talk);
            let words = [text("Here is what I found.")];
            let opening = newcomer("Good morning.");
            let next = opening.clone().then(assistant(&words)).then(user("And now?"));
            // Written before the clock starts: what a test does itself must delay nobody.
            let turns = [(opening, "one"), (next, "two")].map(|(call, word)| {
                let call = call.and("system", one_line(word, LINE_BYTES));
                (call.headers.clone(), serde_json::to_vec(&call.body).unwrap())
            });
            let answer = streamed(&events("msg_long", LINE_BYTES / 4, &words));
            longest_wait(&talk, async move {
                for (headers, body) in turns {
                    let told = hostile.answered_as_spelt(&headers, &body, answer.clone()).await;
                    assert_eq!(told.reply.status(), 200);
                }
            })
            .await
        })
        .await;
    });
}

#[test]
fn nobody_waits_for_directives_that_were_given_often() {
    const FAN_OUTS: usize = 40;
    const CALLS: usize = 256;
    on_one_core(async {
        let told = directive("the same part");
        let of = |number: usize| move |call: usize| format!("call_{number}_{call}");
        let fan_outs: Vec<_> = (0..FAN_OUTS)
            .map(|number| {
                let calls = each(CALLS, |call| agent_call(&of(number)(call), &told));
                (parent(&format!("Survey number {number}.")), format!("msg_{number}"), calls)
            })
            .collect();
        nobody_waits("directives", || async {
            let talk = Arc::new(Talk::with(|config| config.server.mode = Mode::Fork).await);
            for (parent, id, calls) in &fan_outs {
                assert_eq!(talk.say(parent, id, calls).await.reply.status(), 200);
            }
            let (hostile, child) = (Arc::clone(&talk), newcomer(told.as_str()));
            longest_wait(&talk, async move {
                for _ in 0..3 {
                    hostile.ask(&child).await.is_plain();
                }
            })
            .await
        })
        .await;
    });
}
