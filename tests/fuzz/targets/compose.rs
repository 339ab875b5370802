//! Whatever a parent and its child say, forking the child loses nothing of either.
//!
//! The input is two bodies, one per line: a parent, which is answered by two calls, and the first turn of a child. The
//! child's messages get a directive of the first call in front of them, so that most inputs are children.

#![no_main]

use std::sync::Arc;

use bytes::Bytes;
use forkpoint::engine::answer::turn::{Turn as Answer, TurnLimits};
use forkpoint::engine::cache::breakpoints::{self, Profile};
use forkpoint::engine::family::fanout::{Child, Draft, FanOuts, ForkPoint, Parent, Rules, Who};
use forkpoint::engine::fork::{ChildPrefix, Composed, ForkPolicy, ParentPrefix, ToolsPolicy, Turn, eligible};
use forkpoint::engine::request::anatomy::Anatomy;
use forkpoint::engine::request::prefix::Attribution;
use forkpoint::engine::request::recall::{Nothing, Remembered};
use forkpoint::engine::words::{Moment, Rank, TenantId};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};

const LIMITS: TurnLimits = TurnLimits { bytes: 1 << 20, tool_uses: 16 };
const MARKERS_MAX: usize = 4;

fuzz_target!(|input: &[u8]| {
    let Some(line) = input.iter().position(|byte| *byte == b'\n') else { return };
    let (lead, own) = (&input[..line], &input[line + 1..]);
    let Some(fork) = fan_out(lead) else { return };
    for body in [own.to_vec(), directed(own).unwrap_or_default()] {
        for (call, rank) in [(Some(0), Rank::Whole), (Some(1), Rank::Contained), (None, Rank::Explicit)] {
            see(&Child { fork: Arc::clone(&fork), call, rank }, &body);
        }
    }
});

fn read(body: &[u8]) -> Option<Remembered> {
    Remembered::read(Bytes::copy_from_slice(body), &Nothing, Attribution::Stripped).ok()
}

fn directive(topic: &str) -> String {
    format!("Investigate {topic} and nothing else; report in under 200 words what you found.")
}

fn fan_out(lead: &[u8]) -> Option<Arc<ForkPoint>> {
    let request = Arc::new(read(lead)?);
    let who = Who::of(&request, None, None);
    let draft = Draft::begin(Parent::new(request, who), false);
    let calls = ["a", "b"].map(|topic| {
        json!({"type": "tool_use", "id": topic, "name": "Agent", "input": {"prompt": directive(topic)}})
    });
    let answer = json!({"id": "m", "stop_reason": "tool_use", "content": calls}).to_string();
    let mut fan_outs = FanOuts::<()>::new(TenantId([1; 32]), Rules::default());
    let ended = draft.end(&Answer::from_json(answer.as_bytes(), LIMITS), &Rules::default());
    fan_outs.seal(ended, Moment(0)).ok()
}

/// The child, opening with a directive.
fn directed(own: &[u8]) -> Option<Vec<u8>> {
    let mut body = serde_json::from_slice::<Value>(own).ok()?;
    let first = json!({"role": "user", "content": directive("a")});
    body.get_mut("messages")?.as_array_mut()?.insert(0, first);
    Some(body.to_string().into_bytes())
}

fn see(child: &Child, body: &[u8]) {
    let Some(request) = read(body) else { return };
    let policy = ForkPolicy { tools_policy: ToolsPolicy::Subset, ..ForkPolicy::default() };
    let who = Who::of(&request, None, None);
    if eligible(&request, child, &who, &policy, &Rules::default()).is_err() {
        return;
    }
    let parent_prefix = ParentPrefix::of(&child.fork, child.call, None, Attribution::Stripped, &policy)
        .expect("it is sealed");
    let (prefix, _) =
        ChildPrefix::of(&Arc::new(parent_prefix), &request, child, &policy).expect("it is eligible");
    let first = prefix.compose(&request, Turn::First, Profile::Anthropic);
    let later = prefix.compose(&request, Turn::Later(Some(3)), Profile::Anthropic);
    let parent = child.fork.parent.request.body();
    for composed in [&first, &later] {
        holds(composed, parent, body);
    }
    assert_eq!(unmarked(&first), unmarked(&later), "every turn has the same prefix");
}

/// A legal body of an exact length, with all that parent and child say.
fn holds(composed: &Composed, parent: &[u8], own: &[u8]) {
    let whole = composed.body.pieces.concat();
    assert_eq!(whole.len(), composed.body.length);
    let anatomy = Anatomy::read(&whole).expect("it can be read");
    let marked = anatomy.pieces.iter().enumerate().filter(|(_, piece)| piece.is_marked());
    assert!(marked.map(|(place, _)| place).eq(composed.breakpoints.iter().map(|point| point.piece)));
    assert!(composed.breakpoints.len() <= MARKERS_MAX && !breakpoints::are_illegal(&whole, &anatomy));
    let [Ok(parent), Ok(own), Ok(whole)] = [parent, own, &whole].map(serde_json::from_slice::<Value>) else {
        return;
    };
    // A system message may be hoisted, so that its role does not count.
    let texts = |value: &Value| -> Vec<String> {
        let messages = value.get("messages").and_then(Value::as_array).into_iter().flatten();
        let said =
            value.get("system").into_iter().chain(messages.filter_map(|message| message.get("content")));
        let mut found = Vec::new();
        said.for_each(|said| strings(said, &mut found));
        found
    };
    let made = texts(&whole);
    for text in texts(&parent).into_iter().chain(texts(&own)) {
        // One attribution line takes the place of another; the API refuses a text of nothing.
        let is_left_out = text.trim().is_empty() || text.starts_with("x-anthropic-billing-header");
        assert!(is_left_out || made.contains(&text), "{text:?} is lost");
    }
}

fn unmarked(composed: &Composed) -> Option<Value> {
    let mut value = serde_json::from_slice(&composed.body.pieces.concat()).ok()?;
    take_markers(&mut value);
    Some(value)
}

fn take_markers(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.remove("cache_control");
            members.values_mut().for_each(take_markers);
        }
        Value::Array(items) => items.iter_mut().for_each(take_markers),
        _ => {}
    }
}

/// Every string that is no key and no part of a marker.
fn strings(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(text) => found.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| strings(item, found)),
        Value::Object(members) => {
            let said = members.iter().filter(|(key, _)| *key != "cache_control");
            said.for_each(|(_, item)| strings(item, found));
        }
        _ => {}
    }
}
