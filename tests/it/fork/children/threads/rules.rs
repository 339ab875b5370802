//! What nobody has verified of threads, read either way: clients notice nothing of it, and what is refused is refused
//! as it is directly.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use forkpoint::config::Mode;
use forkpoint::sim::{Cue, Recital, SimConfig};
use serde_json::{Value, json};

use super::{
    Client, FORKED, FREE, OTHER_BETA, Repeats, Stage, WORK, child, directives, error_of, fan_out_to,
    forwarded, id_of, letter, markers, parent, plan, usage,
};
use crate::harness::until;
use crate::workload::{Exchange, Letter, Line};

const GO_ON: &str = "Go on. [[sim:text words=5]]";

/// Each rule as it is not by default, after one that is.
const RULES: [(&str, &str); 7] = [
    ("threads.markers", "3"),
    ("threads.markers", "4"),
    ("threads.repeated_fields", "refused"),
    ("threads.cache", "separate"),
    ("threads.broken_answers", "held"),
    ("threads.refusals", "held"),
    ("threads.unsupported_options", "accepted"),
];

async fn stage_by(rule: (&str, &str), mode: Mode) -> Stage {
    let mut sim = SimConfig::default();
    sim.rules.set(rule.0, rule.1).unwrap();
    Stage::before(sim, |config| config.server.mode = mode).await
}

fn streamed(mut body: Value, stream: bool) -> Value {
    body["stream"] = json!(stream);
    body
}

/// The children repeat what a thread may compare or refuse: of a forked one that never goes out.
#[tokio::test]
async fn by_every_rule_children_are_forked_for_life_streamed_or_not() {
    for rule in RULES {
        for stream in [true, false] {
            let stage = stage_by(rule, Mode::Fork).await;
            let body = parent(FREE, "[[sim:text words=9]]");
            let mut lead = Client::new(streamed(body, stream), Repeats::Nothing);
            lead.turn(&stage).await;
            lead.says(&format!("Go on. [[sim:fan_out n=2 tool=Agent field=prompt | {WORK}]]"));
            let told = directives(&lead.turn(&stage).await);
            until("the seal", || stage.count("forks_total", &["outcome=\"sealed\""]) > 0).await;
            for told in &told {
                let body = streamed(child(FREE, told), stream);
                let mut client = Client::new(body, Repeats::All).with_betas(OTHER_BETA);
                let mut written = 0;
                for turn in 1..=3 {
                    let exchange = client.turn(&stage).await;
                    let at = format!("{rule:?}, streamed {stream}, turn {turn}");
                    assert_eq!((plan(&exchange), client.replays), (FORKED, 0), "{at}");
                    let (body, usage) = (forwarded(&exchange), usage(&exchange));
                    assert_eq!(body.get("system").is_some(), turn == 1, "{at}");
                    assert!(markers(&body) <= 3, "{at}: {body}");
                    assert!(usage.cache_read >= written && usage.uncached == 0, "{at}: {usage:?}, {written}");
                    written = usage.cache_read + usage.cache_write();
                }
            }
            let exchange = lead.turn(&stage).await;
            assert_eq!((&plan(&exchange)[..2], lead.replays), (&["parent", "aligned"][..], 0), "{rule:?}");
            assert!(stage.sim.requests().iter().all(|request| request.status == Some(200)), "{rule:?}");
        }
    }
}

/// A request and what became of it.
type Judged = (&'static str, u16, Value);

fn judged(name: &'static str, exchange: &Exchange) -> Judged {
    let details = if exchange.status == 200 { Value::Null } else { error_of(exchange)["details"].clone() };
    (name, exchange.status, details)
}

/// A client that marks its conversation itself, so that nothing is added to it.
fn marked() -> Client {
    let mut body = parent(FREE, "[[sim:text words=30]]");
    body["cache_control"] = json!({"type": "ephemeral"});
    Client::new(body, Repeats::All)
}

/// What may be refused or not.
async fn doubtful(line: &Line<'_>) -> Vec<Judged> {
    let mut all = Vec::new();
    let mut many = marked().create();
    let block =
        |text: u8| json!({"type": "text", "text": text.to_string(), "cache_control": {"type": "ephemeral"}});
    many["messages"] = json!([{"role": "user", "content": [block(1), block(2), block(3)]}]);
    all.push(judged("four markers", &line.send(&letter(&many)).await));
    for (name, member, value) in [
        ("fallbacks", "fallbacks", json!([{"model": "claude-haiku-4-5"}])),
        ("an edit", "context_management", json!({"edits": [{"type": "clear_tool_uses_20250919"}]})),
    ] {
        let mut body = marked().create();
        body[member] = value;
        all.push(judged(name, &line.send(&letter(&body)).await));
    }
    let mut client = marked();
    let begun = line.send(&letter(&client.create())).await;
    client.take_in(&begun);
    client.says(GO_ON);
    all.push(judged("repeated fields", &line.send(&letter(&client.resume(&id_of(&begun)))).await));
    let broken = line.send(&letter(&marked().create()).with("x-sim-error-after", "4")).await;
    all.push(judged("after a broken answer", &line.send(&after(&broken)).await));
    let said = vec![json!({"type": "text", "text": "That"})];
    let refusal = Recital::new(None, said, Some("refusal".to_owned()), 5);
    refusal.give(Cue::End);
    assert!(line.sim.recitals().put("refusal".to_owned(), Arc::new(refusal)));
    let refused = line.send(&letter(&marked().create()).with("x-sim-answer", "refusal")).await;
    all.push(judged("after a refusal", &line.send(&after(&refused)).await));
    all
}

/// The request that goes on from an answer, without what may be refused.
fn after(exchange: &Exchange) -> Letter {
    let mut client = Client { repeats: Repeats::Nothing, ..marked() };
    client.says(GO_ON);
    letter(&client.resume(&id_of(exchange)))
}

#[tokio::test]
async fn by_every_rule_what_is_refused_is_refused_as_it_is_directly() {
    let mut verdicts: BTreeMap<&str, BTreeSet<bool>> = BTreeMap::new();
    for rule in RULES {
        let stage = stage_by(rule, Mode::Align).await;
        let direct = doubtful(&Line::direct(&stage.sim)).await;
        for mode in Mode::ALL {
            let stage = stage_by(rule, mode).await;
            assert_eq!(doubtful(&stage.line()).await, direct, "{rule:?} {mode:?}");
        }
        for (name, status, _) in direct {
            verdicts.entry(name).or_default().insert(status == 200);
        }
    }
    // Each of them is refused by one rule and not by another.
    assert!(verdicts.len() == 6 && verdicts.values().all(|verdicts| verdicts.len() == 2), "{verdicts:?}");
}

/// Of a child that goes on from an answer whose stream broke off, which the upstream holds or not.
#[tokio::test]
async fn a_forked_child_whose_answer_broke_off_goes_on_by_either_rule() {
    for rule in [("threads.broken_answers", "held"), ("threads.broken_answers", "forgotten")] {
        for repeats in [Repeats::Nothing, Repeats::All] {
            let stage = stage_by(rule, Mode::Fork).await;
            let (_, told) = fan_out_to(&stage, FREE, repeats, "text words=30").await;
            let mut client = Client::new(child(FREE, &told[0]), repeats);
            assert_eq!(plan(&client.turn(&stage).await), FORKED);
            client.says(GO_ON);
            let broken = letter(&client.next()).with("x-sim-error-after", "4");
            let broken = stage.line().send(&broken).await;
            // What was there of it is kept, and the user goes on behind it.
            client.previous = Some(id_of(&broken));
            let said = json!({"role": "assistant", "content": [{"type": "text", "text": "I will look."}]});
            client.body["messages"].as_array_mut().unwrap().push(said);
            client.says(GO_ON);
            let exchange = client.turn(&stage).await;
            let at = format!("{rule:?} {repeats:?} {:?}", plan(&exchange));
            // The answer was not whole, so it is not known here, and what is repeated differs from what is held.
            let is_replayed = rule.1 == "forgotten" || repeats == Repeats::All;
            assert_eq!(client.replays, usize::from(is_replayed), "{at}");
            client.says(GO_ON);
            assert_eq!(client.turn(&stage).await.status, 200, "{at}");
            assert_eq!(client.replays, usize::from(is_replayed), "{at}");
        }
    }
}
