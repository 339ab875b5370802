//! Parents, children, and what is made of them.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};

use super::*;
use crate::engine::answer::turn::{Turn as Answer, TurnLimits, Wholeness};
use crate::engine::cache::breakpoints::{Breakpoint, Profile};
use crate::engine::family::fanout::{
    CHILD_TAG, Child, Draft, FanOuts, ForkPoint, PLACEHOLDER, Parent, Rules, Who,
};
use crate::engine::request::anatomy::Anatomy;
use crate::engine::request::identify::Session;
use crate::engine::request::prefix::Attribution;
use crate::engine::request::recall::{Nothing, Remembered};
use crate::engine::words::{ForkNote, IdDigest, Moment, Rank, TenantId};

mod answers;
mod economy;
mod eligibility;
mod later;
mod laws;
mod layout;
mod open_lists;
mod snapshots;

const TENANT: TenantId = TenantId([7; 32]);
const LIMITS: TurnLimits = TurnLimits { bytes: 16 << 20, tool_uses: 256 };

fn read(body: &str) -> Remembered {
    Remembered::read(Bytes::from(body.to_owned()), &Nothing, Attribution::Stripped).unwrap()
}

fn who(request: &Remembered, session: Option<u8>, agent: Option<u8>) -> Who {
    let id = |id: Option<u8>| id.map(|id| IdDigest([id; 16]));
    let session = id(session).map(|digest| Session { shown: digest, hints: digest });
    Who::of(request, session, id(agent))
}

fn directive(topic: &str) -> String {
    format!(
        "You are a worker. Investigate {topic} and nothing else; report in under 200 words what you found."
    )
}

fn call(id: &str, name: &str, input: Value) -> Value {
    json!({"type": "tool_use", "id": id, "name": name, "input": input})
}

fn tool(name: &str) -> Value {
    json!({"name": name, "description": "d", "input_schema": {"type": "object"}})
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn parent_body() -> Value {
    json!({
        "model": "claude-x", "max_tokens": 1000,
        "tools": [tool("Agent"), tool("Read")],
        "system": [{"type": "text", "text": "You lead.", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": [
            {"type": "text", "text": "Survey the project.", "cache_control": {"type": "ephemeral"}}]}],
    })
}

fn child_body(topic: &str) -> Value {
    json!({
        "model": "claude-x", "max_tokens": 500, "stream": true,
        "tools": [tool("Read")],
        "system": [text("You work.")],
        "messages": [{"role": "user", "content": directive(topic)}],
    })
}

fn two_calls() -> Vec<Value> {
    ["a", "b"]
        .map(|topic| call(&format!("toolu_{topic}"), "Agent", json!({"prompt": directive(topic)})))
        .into()
}

fn parent(body: &str) -> Parent {
    let request = read(body);
    let who = who(&request, None, None);
    Parent { betas: "beta-1,beta-2".into(), ..Parent::new(Arc::new(request), who) }
}

fn answer(blocks: &[Value]) -> Answer {
    let body = json!({"id": "msg_1", "model": "m", "stop_reason": "tool_use", "content": blocks,
        "usage": {"input_tokens": 100, "cache_read_input_tokens": 900, "output_tokens": 50}});
    Answer::from_json(body.to_string().as_bytes(), LIMITS)
}

/// A sealed fork point: a text, then these calls.
fn fan_out(body: &str, calls: &[Value]) -> Arc<ForkPoint> {
    let blocks: Vec<_> = [text("I will split this.")].into_iter().chain(calls.iter().cloned()).collect();
    fan_out_of(body, &blocks)
}

fn fan_out_of(body: &str, blocks: &[Value]) -> Arc<ForkPoint> {
    let mut fan_outs = FanOuts::<()>::new(TENANT, Rules::default());
    let draft = Draft::begin(parent(body), false);
    fan_outs.seal(draft.end(&answer(blocks), &Rules::default()), Moment(0)).unwrap()
}

/// The same while it streams: these blocks are finished.
fn pending(body: &str, blocks: &[Value]) -> Arc<ForkPoint> {
    let mut forks = FanOuts::<()>::new(TENANT, Rules::default());
    let mut draft = Draft::begin(parent(body), false);
    for block in answer(blocks).blocks {
        draft.push(block, &Rules::default());
    }
    let id = forks.pending("msg_1", &mut draft, Moment(0)).unwrap();
    Arc::clone(forks.points().get(id).unwrap())
}

fn child_of(fork: &Arc<ForkPoint>, call: usize) -> Child {
    Child { fork: Arc::clone(fork), call: Some(call), rank: Rank::Whole }
}

/// A child on its first turn.
struct Scene {
    fork: Arc<ForkPoint>,
    parent_prefix: Arc<ParentPrefix>,
    policy: ForkPolicy,
}

impl Scene {
    fn new() -> Scene {
        Scene::of(&parent_body().to_string(), &two_calls())
    }

    fn of(parent: &str, calls: &[Value]) -> Scene {
        Scene::on(fan_out(parent, calls), None, Attribution::Stripped)
    }

    fn on(fork: Arc<ForkPoint>, written: Option<Breakpoint>, attribution: Attribution) -> Scene {
        let parent_prefix =
            Arc::new(ParentPrefix::of(&fork, None, written, attribution, &ForkPolicy::default()).unwrap());
        Scene { fork, parent_prefix, policy: ForkPolicy::default() }
    }

    fn prefix(&self, body: &str, call: usize) -> (ChildPrefix, Vec<ForkNote>) {
        ChildPrefix::of(&self.parent_prefix, &read(body), &child_of(&self.fork, call), &self.policy).unwrap()
    }

    fn first(&self, body: &str, call: usize) -> (ChildPrefix, Composed) {
        let (prefix, notes) = self.prefix(body, call);
        let mut composed = prefix.compose(&read(body), Turn::First, Profile::Anthropic);
        composed.notes.extend(notes);
        (prefix, composed)
    }

    fn later(&self, prefix: &ChildPrefix, body: &str, last: Option<usize>) -> Composed {
        prefix.compose(&read(body), Turn::Later(last), Profile::Anthropic)
    }
}

fn bytes(composed: &Composed) -> String {
    let whole = composed.body.pieces.concat();
    assert_eq!(whole.len(), composed.body.length);
    String::from_utf8(whole).unwrap()
}

fn value(composed: &Composed) -> Value {
    let whole = bytes(composed);
    let anatomy = Anatomy::read(whole.as_bytes()).unwrap();
    assert!(!anatomy.ambiguous);
    // What is said about the breakpoints is what stands in the body.
    let marked: Vec<_> =
        (0..anatomy.pieces.len()).filter(|piece| anatomy.pieces[*piece].is_marked()).collect();
    let told: Vec<_> = composed.breakpoints.iter().map(|point| point.piece).collect();
    assert_eq!(marked, told, "{whole}");
    assert!(marked.len() <= 4);
    serde_json::from_str(&whole).unwrap()
}

/// The value without any marker.
fn unmarked(mut value: Value) -> Value {
    fn walk(value: &mut Value) {
        match value {
            Value::Object(members) => {
                members.remove("cache_control");
                members.values_mut().for_each(walk);
            }
            Value::Array(items) => items.iter_mut().for_each(walk),
            _ => {}
        }
    }
    walk(&mut value);
    value
}

/// The paths of the blocks that are marked.
fn marks(composed: &Composed) -> Vec<String> {
    let whole = bytes(composed);
    let anatomy = Anatomy::read(whole.as_bytes()).unwrap();
    value(composed);
    composed.breakpoints.iter().map(|point| anatomy.path(point.piece)).collect()
}
