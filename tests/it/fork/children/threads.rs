//! Conversations that the server holds: parents and children of which only the end comes.

mod forms;
mod replays;
mod resumed;
mod rules;
mod unknown;

use std::sync::Arc;
use std::time::Duration;

use forkpoint::config::Mode;
use forkpoint::sim::{Cue, Recital};
use serde_json::{Value, json};

use super::{
    BOUND, Exchange, FORKED, FREE, Stage, child, directives, forwarded, parent, plan, usage, without_markers,
};
use crate::harness::until;
use crate::workload::{Letter, Line};

const BETA: &str = "message-threads-2026-08-12";
const OTHER_BETA: &str = "one-2099-01-01";
const MISMATCH: &str = "thread_fingerprint_mismatch";
/// Calls two tools, then answers.
const WORK: &str = "tools turns=2 calls=1 tool=search";

/// What a client brings again of its first request when it goes on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Repeats {
    /// Neither tools nor system, as the SDKs do.
    Nothing,
    /// Both, as Claude Code does.
    All,
}

/// A client that lets the server hold its conversation.
pub struct Client {
    /// Its first request.
    pub body: Value,
    repeats: Repeats,
    betas: String,
    /// The id of the last answer.
    previous: Option<String>,
    /// How often it was asked for the whole conversation.
    pub replays: usize,
}

impl Client {
    pub fn new(body: Value, repeats: Repeats) -> Client {
        Client { body, repeats, betas: BETA.to_owned(), previous: None, replays: 0 }
    }

    pub fn with_betas(self, betas: &str) -> Client {
        Client { betas: format!("{BETA},{betas}"), ..self }
    }

    /// The request that begins a thread with everything that was said.
    fn create(&self) -> Value {
        let mut body = self.body.clone();
        body["thread"] = json!({"type": "create"});
        body
    }

    /// The request that brings only the last message.
    fn resume(&self, previous: &str) -> Value {
        let mut body = self.create();
        body["thread"] = json!({"type": "continue", "previous_message_id": previous});
        body["messages"] = json!([body["messages"].as_array().unwrap().last().unwrap()]);
        if self.repeats == Repeats::Nothing {
            let fields = body.as_object_mut().unwrap();
            fields.remove("system");
            fields.remove("tools");
        }
        body
    }

    /// The next request.
    pub fn next(&self) -> Value {
        self.previous.as_deref().map_or_else(|| self.create(), |previous| self.resume(previous))
    }

    async fn post(&self, stage: &Stage, body: &Value) -> Exchange {
        stage.line().send(&self.letter(body)).await
    }

    pub fn letter(&self, body: &Value) -> Letter {
        Letter::alone(body).with("anthropic-beta", &self.betas)
    }

    async fn turn(&mut self, stage: &Stage) -> Exchange {
        self.turn_through(&stage.line()).await
    }

    /// Sends the next turn and takes its answer in. Asked for the whole conversation it sends that, as every SDK does.
    pub async fn turn_through(&mut self, line: &Line<'_>) -> Exchange {
        let first = line.send(&self.letter(&self.next())).await;
        self.answered(line, first).await
    }

    /// The same where the upstream refuses the first attempt with this code.
    async fn turn_refused(&mut self, line: &Line<'_>, code: &str) -> Exchange {
        let first = line.send(&self.letter(&self.next()).with("x-sim-refusal", code)).await;
        self.answered(line, first).await
    }

    async fn answered(&mut self, line: &Line<'_>, mut exchange: Exchange) -> Exchange {
        if exchange.status == 404 {
            assert_eq!(error_of(&exchange)["details"]["error_code"], "thread_not_found");
            self.replays += 1;
            exchange = line.send(&self.letter(&self.create())).await;
        }
        assert_eq!(exchange.status, 200, "{}", String::from_utf8_lossy(&exchange.answer));
        self.previous = Some(id_of(&exchange));
        self.take_in(&exchange);
        exchange
    }

    /// Keeps an answer and, if it calls tools, their results.
    fn take_in(&mut self, exchange: &Exchange) {
        super::extend(&mut self.body, exchange);
        let messages = self.body["messages"].as_array_mut().unwrap();
        messages.pop_if(|last| last["content"] == json!([]));
    }

    /// Lets its user say something.
    pub fn says(&mut self, text: &str) {
        let said = json!({"role": "user", "content": [{"type": "text", "text": text}]});
        self.body["messages"].as_array_mut().unwrap().push(said);
    }
}

pub fn id_of(exchange: &Exchange) -> String {
    let text = String::from_utf8_lossy(&exchange.answer);
    let start = text.find("msg_").expect("an id");
    text[start..].chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect()
}

fn error_of(exchange: &Exchange) -> Value {
    let body: Value = serde_json::from_slice(&exchange.answer).unwrap();
    body["error"].clone()
}

fn markers(value: &Value) -> usize {
    value.to_string().matches(r#""cache_control":"#).count()
}

fn worker(model: &str) -> Value {
    parent(model, &format!("[[sim:{WORK}]]"))
}

#[tokio::test]
async fn a_turn_that_the_server_completes_is_marked_in_what_came_and_reads_what_was_written() {
    for (repeats, stream) in [(Repeats::Nothing, true), (Repeats::Nothing, false), (Repeats::All, true)] {
        let stage = Stage::new(|config| config.server.mode = Mode::Align).await;
        let mut body = worker(FREE);
        body["stream"] = json!(stream);
        let mut client = Client::new(body, repeats);
        let mut written = 0;
        for turn in 1..=3 {
            let sent = client.next();
            let exchange = client.turn(&stage).await;
            let body = forwarded(&exchange);
            assert_eq!(plan(&exchange), ["plain", "aligned", "align"], "{repeats:?} turn {turn}");
            assert_eq!(without_markers(body.clone()), sent, "{repeats:?} turn {turn}");
            assert_eq!((markers(&body), markers(&body["messages"])), (1, 1), "{repeats:?} turn {turn}");
            let usage = usage(&exchange);
            assert!(usage.cache_read >= written, "{repeats:?} turn {turn}: {usage:?}, {written} were there");
            written = usage.cache_read + usage.cache_write();
            assert!(written > 10_000 && usage.uncached == 0, "{repeats:?} turn {turn}: {usage:?}");
        }
        assert_eq!(client.replays, 0);
    }
}

/// A parent whose fan-out is the answer to a request of which only the end came.
async fn fan_out(stage: &Stage, model: &str, repeats: Repeats) -> (Client, Vec<String>) {
    fan_out_to(stage, model, repeats, WORK).await
}

/// The same to children that do this.
async fn fan_out_to(stage: &Stage, model: &str, repeats: Repeats, work: &str) -> (Client, Vec<String>) {
    let mut lead = Client::new(parent(model, "[[sim:text words=9]]"), repeats);
    lead.turn(stage).await;
    lead.says(&format!("Go on. [[sim:fan_out n=3 tool=Agent field=prompt | {work}]]"));
    let before = stage.count("forks_total", &["outcome=\"sealed\""]);
    let told = directives(&lead.turn(stage).await);
    until("the fan-out to be sealed", || stage.count("forks_total", &["outcome=\"sealed\""]) > before).await;
    (lead, told)
}

#[tokio::test]
async fn children_of_a_parent_that_the_server_completes_are_forked_for_life() {
    for (model, repeats) in [(FREE, Repeats::Nothing), (FREE, Repeats::All), (BOUND, Repeats::All)] {
        let stage = Stage::new(|_| ()).await;
        let (mut lead, told) = fan_out(&stage, model, repeats).await;
        for (number, told) in told.iter().enumerate() {
            let mut client = Client::new(child(model, told), repeats).with_betas(OTHER_BETA);
            let mut written = 0;
            for turn in 1..=3 {
                let exchange = client.turn(&stage).await;
                let name = format!("{model} {repeats:?} child {number} turn {turn}");
                assert_eq!(plan(&exchange), FORKED, "{name}");
                let body = forwarded(&exchange);
                assert!(markers(&body) <= 3, "{name}: {body}");
                let usage = usage(&exchange);
                assert!(usage.cache_read >= written && usage.uncached == 0, "{name}: {usage:?}, {written}");
                written = usage.cache_read + usage.cache_write();
                if turn == 1 {
                    assert_eq!(body["system"], lead.body["system"], "{name}");
                    continue;
                }
                assert_eq!((body.get("system"), body.get("tools")), (None, None), "{name}");
                assert_eq!(body["messages"].as_array().unwrap().len(), 1, "{name}");
                assert_eq!((markers(&body), markers(&body["messages"])), (1, 1), "{name}");
            }
            assert_eq!(client.replays, 0, "{model} {repeats:?}");
        }
        let exchange = lead.turn(&stage).await;
        assert_eq!(plan(&exchange)[..2], ["parent", "aligned"], "{model} {repeats:?}");
        assert_eq!(lead.replays, 0);
    }
}

#[tokio::test]
async fn a_field_that_was_changed_when_a_child_began_stays_changed() {
    let stage = Stage::new(|_| ()).await;
    let (_, told) = fan_out(&stage, FREE, Repeats::All).await;
    let mut body = child(FREE, &told[0]);
    body["cache_control"] = json!({"type": "ephemeral"});
    let mut client = Client::new(body, Repeats::All);
    let first = client.turn(&stage).await;
    assert_eq!((plan(&first), forwarded(&first).get("cache_control")), (FORKED, None));
    for _ in 0..2 {
        let next = client.turn(&stage).await;
        let body = forwarded(&next);
        assert_eq!((plan(&next), body.get("cache_control")), (FORKED, None));
        assert_eq!(markers(&body["messages"]), 1, "in the place of the one at the top");
        assert_eq!(usage(&next).uncached, 0);
    }
    assert_eq!(client.replays, 0);
}

#[tokio::test]
async fn an_answer_that_is_not_known_is_gone_on_from_as_it_came() {
    let mut stage = Stage::new(|_| ()).await;
    let mut client = Client::new(worker(FREE), Repeats::Nothing);
    client.turn(&stage).await;
    stage.restart().await;
    let sent = client.resume(client.previous.as_deref().unwrap());
    let exchange = client.turn(&stage).await;
    assert_eq!(plan(&exchange), ["plain", "passthrough", "unknown_thread"]);
    assert_eq!((forwarded(&exchange), client.replays), (sent, 0));
}

#[tokio::test]
async fn a_forked_child_of_a_proxy_that_forgot_it_is_asked_for_everything_once() {
    let mut stage = Stage::new(|_| ()).await;
    let (_, told) = fan_out(&stage, FREE, Repeats::All).await;
    let mut client = Client::new(child(FREE, &told[0]), Repeats::All);
    assert_eq!(plan(&client.turn(&stage).await), FORKED);
    stage.restart().await;
    // The upstream holds it on its parent's prefix, and compares that with what comes.
    let exchange = client.turn(&stage).await;
    assert_eq!((client.replays, plan(&exchange)), (1, ["plain", "passthrough", "refused"]));
    assert_eq!(forwarded(&exchange)["system"], client.body["system"], "its own words from now on");
    client.turn(&stage).await;
    assert_eq!(client.replays, 1);
    assert_eq!(stage.count("fallbacks_total", &["reason=\"thread\""]), 1);
}

#[tokio::test]
async fn a_mismatch_is_passed_on_unless_the_conversation_was_changed_here() {
    // Nothing is changed in a conversation that its client marks itself.
    let stage = Stage::new(|config| config.server.mode = Mode::Align).await;
    let mut body = worker(FREE);
    body["cache_control"] = json!({"type": "ephemeral"});
    let mut client = Client::new(body, Repeats::Nothing);
    client.turn(&stage).await;
    client.body["tool_choice"] = json!({"type": "any"});
    let exchange = client.post(&stage, &client.resume(client.previous.as_deref().unwrap())).await;
    assert_eq!((exchange.status, &error_of(&exchange)["details"]["error_code"]), (400, &json!(MISMATCH)));
    // One that was marked here is held otherwise than it came.
    let mut client = Client::new(worker(FREE), Repeats::Nothing);
    client.turn(&stage).await;
    client.body["tool_choice"] = json!({"type": "auto"});
    let sent = client.create();
    let exchange = client.turn(&stage).await;
    assert_eq!((client.replays, plan(&exchange)), (1, ["plain", "passthrough", "refused"]));
    assert_eq!(forwarded(&exchange), sent);
    client.body["tool_choice"] = json!({"type": "none"});
    let exchange = client.post(&stage, &client.resume(client.previous.as_deref().unwrap())).await;
    assert_eq!(exchange.status, 400, "once per conversation");
}

/// The answers to requests that are wrong themselves: status, and the error without the id of the request.
async fn refusals(stage: &Stage, line: &Line<'_>) -> Vec<(u16, Value)> {
    let mut client = Client::new(worker(FREE), Repeats::Nothing);
    let begun = line.send(&letter(&client.create())).await;
    let id = id_of(&begun);
    client.take_in(&begun);
    let mut refused = Vec::new();
    for thread in [
        json!("create"),
        json!({}),
        json!({"type": "fork"}),
        json!({"type": "continue"}),
        json!({"type": "continue", "previous_message_id": 5}),
        json!({"type": "continue", "previous_message_id": "msg_nobody"}),
    ] {
        let mut body = client.resume(&id);
        body["thread"] = thread;
        refused.push(line.send(&letter(&body)).await);
    }
    let mut of_another = letter(&client.resume(&id));
    of_another.headers.retain(|(name, _)| *name != "x-api-key");
    refused.push(line.send(&of_another.with("x-api-key", "sk-another")).await);
    let mut many = client.create();
    let marked = |text: usize| json!({"type": "text", "text": text.to_string(), "cache_control": {"type": "ephemeral"}});
    many["messages"] = json!([{"role": "user", "content": (0..5).map(marked).collect::<Value>()}]);
    refused.push(line.send(&letter(&many)).await);
    refused.extend(twice(line, &letter(&client.resume(&id))).await);
    assert_eq!(stage.count("fallbacks_total", &["reason=\"thread\""]), 0);
    refused.iter().map(|refused| (refused.status, error_of(refused))).collect()
}

/// What the same continue is answered while it runs, and after it.
async fn twice(line: &Line<'_>, resumed: &Letter) -> [Exchange; 2] {
    let said = vec![json!({"type": "text", "text": "So it is."})];
    let held = Arc::new(Recital::new(None, said, Some("end_turn".to_owned()), 5));
    assert!(line.sim.recitals().put("held".to_owned(), Arc::clone(&held)));
    let asked = resumed.clone().with("x-sim-answer", "held");
    let second = async {
        let runs = || line.sim.threads().iter().any(|thread| thread.state == "running");
        until("the first to run", runs).await;
        let second = line.send(resumed).await;
        held.give(Cue::End);
        second
    };
    let (first, second) = tokio::join!(line.send(&asked), second);
    assert_eq!(first.status, 200, "{:?}", first.answer);
    let third = line.send(resumed).await;
    let codes = [&second, &third].map(|refused| error_of(refused)["details"]["error_code"].clone());
    assert_eq!(codes, ["thread_continue_in_flight", "thread_already_continued"]);
    [second, third]
}

fn letter(body: &Value) -> Letter {
    Letter::alone(body).with("anthropic-beta", BETA)
}

#[tokio::test]
async fn what_the_upstream_refuses_by_itself_is_refused_alike() {
    let stage = Stage::new(|_| ()).await;
    let direct = refusals(&stage, &Line::direct(&stage.sim)).await;
    for mode in Mode::ALL {
        let stage = Stage::new(|config| config.server.mode = mode).await;
        let through = refusals(&stage, &stage.line()).await;
        assert_eq!(unnamed(&through), unnamed(&direct), "{mode:?}");
    }
}

/// What was said, less the ids in it.
fn unnamed(refusals: &[(u16, Value)]) -> Vec<(u16, String)> {
    let word = |word: &str| if word.contains("msg_") { "an id".to_owned() } else { word.to_owned() };
    let said = |error: &Value| error.to_string().split(' ').map(word).collect::<Vec<_>>().join(" ");
    refusals.iter().map(|(status, error)| (*status, said(error))).collect()
}

#[tokio::test]
async fn an_observed_thread_is_untouched_and_its_fan_out_is_known() {
    let stage = Stage::new(|config| config.server.mode = Mode::Observe).await;
    let (lead, told) = fan_out(&stage, FREE, Repeats::All).await;
    let mut client = Client::new(child(FREE, &told[0]), Repeats::Nothing);
    for _ in 0..3 {
        let exchange = client.turn(&stage).await;
        assert!(exchange.is_untouched());
        assert_eq!(plan(&exchange), ["child", "passthrough", "observe"]);
    }
    assert_eq!((lead.replays, client.replays), (0, 0));
}

#[tokio::test]
async fn a_thread_that_the_upstream_loses_starts_anew_on_its_prefix() {
    let stage = Stage::new(|_| ()).await;
    let (_, told) = fan_out(&stage, BOUND, Repeats::Nothing).await;
    let mut client = Client::new(child(BOUND, &told[0]), Repeats::Nothing);
    assert_eq!(plan(&client.turn(&stage).await), FORKED);
    stage.line().pause(Duration::from_secs(301));
    let exchange = client.turn(&stage).await;
    assert_eq!((client.replays, plan(&exchange)), (1, FORKED), "with the whole of what it said");
    assert!(markers(&forwarded(&exchange)) <= 3);
    assert_eq!(plan(&client.turn(&stage).await), FORKED);
    assert_eq!(client.replays, 1);
}

#[tokio::test]
async fn what_a_held_conversation_would_have_cost_is_what_it_costs() {
    for repeats in [Repeats::Nothing, Repeats::All] {
        let [observed, aligned] = [Mode::Observe, Mode::Align];
        let mut sums = Vec::new();
        for mode in [observed, aligned] {
            let stage = Stage::new(|config| config.server.mode = mode).await;
            let mut client = Client::new(worker(FREE), repeats);
            for _ in 0..3 {
                client.turn(&stage).await;
            }
            stage.forkpoint.recorded(3).await;
            let of = |baseline: &str| {
                let label = format!("baseline=\"{baseline}\"");
                stage.forkpoint.metric("forkpoint_counterfactual_usd_total", &[&label])
            };
            sums.push([of("sent"), of("aligned")]);
        }
        let off = |one: f64, two: f64| (one / two - 1.0).abs();
        let [observed, aligned] = sums[..] else { panic!("two runs") };
        assert!(off(aligned[0], observed[0]) < 0.05, "{repeats:?} as sent: {aligned:?} {observed:?}");
        assert!(off(observed[1], aligned[1]) < 0.05, "{repeats:?} aligned: {observed:?} {aligned:?}");
        assert!(aligned[1] < 0.6 * observed[0], "{repeats:?}: {aligned:?} {observed:?}");
    }
}
