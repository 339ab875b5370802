//! Conversations that the server holds, known to another process.

use serde_json::{Value, json};

use super::*;
use crate::engine::answer::turn::Turn;
use crate::engine::answer::usage::Usage;
use crate::engine::family::arrival::Predecessor;
use crate::engine::tenant::Kind;
use crate::engine::tenant::tests::{silent, summary};

fn held(mut body: Value) -> Value {
    body["thread"] = json!({"type": "create"});
    body
}

/// The request that goes on from this answer, with nothing of what was said before.
fn going_on(mut body: Value, from: &str, messages: &Value) -> Value {
    body["thread"] = json!({"type": "continue", "previous_message_id": from});
    body["messages"] = messages.clone();
    body
}

fn last(tenant: &TestTenant, message_id: &str) -> Predecessor {
    let last = tenant.look(|state| state.recent.held(message_id).and_then(|id| state.recent.predecessor(id)));
    last.unwrap_or_else(|| panic!("{message_id} is not held"))
}

/// Lets a child on its parent's prefix answer so, and another process go on from that.
fn goes_on_elsewhere(answer: impl FnOnce(Usage) -> Turn, message_id: &str, messages: &Value) {
    let tenant = saving();
    tenant.parent_has_called(1_000);
    tenant.exchange(&held(child_body("a")), answer, 1_100);
    let changes = take_unsaved(&tenant, Pace::Soon, times(1_200));
    assert!(kinds(&changes).contains(&RecordKind::Thread));
    let other = restored(&changes, 1_200);
    let (here, there) = (last(&tenant, message_id), last(&other, message_id));
    assert_eq!(there.outcome.held, here.outcome.held);
    assert_eq!(there.trace.received.body(), here.trace.received.body());
    assert_eq!(there.trace.forwarded().body(), here.trace.forwarded().body());
    assert_eq!(there.trace.breakpoints, here.trace.breakpoints);
    assert!(there.conversation.was_forked() && !there.trace.is_as_it_came());
    let next = going_on(child_body("a"), message_id, messages);
    let (here, there) = (tenant.depart(&next, 1_300), other.depart(&next, APART_MS + 1_300));
    assert_eq!([here.flight.plan, there.flight.plan], [Plan::Forked; 2]);
    assert_eq!(sent(&here.flight), sent(&there.flight));
    let pieces = |departure: crate::engine::decide::Departure| departure.outgoing.pieces.unwrap().concat();
    let (here, there) = (pieces(here), pieces(there));
    assert_eq!(String::from_utf8(here).unwrap(), String::from_utf8(there.clone()).unwrap());
    let body: Value = serde_json::from_slice(&there).unwrap();
    assert_eq!((body.get("system"), body.get("tools")), (None, None), "the server has its parent's");
}

#[test]
fn a_held_child_goes_on_in_another_process_on_the_prefix_that_it_has() {
    let result = json!([{"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "toolu_read", "content": "Nothing."}]}]);
    goes_on_elsewhere(reads, "msg_child", &result);
}

#[test]
fn an_answer_that_said_nothing_and_a_summary_are_held_elsewhere_as_they_are_here() {
    type Answer = fn(Usage) -> Turn;
    let cases = [(silent as Answer, "msg_silent", 4), (summary as Answer, "msg_summary", 2)];
    for (answer, message_id, messages) in cases {
        let tenant = saving();
        let body = plain_body("Be brief.", &["Why?", "And why that?"]);
        tenant.exchange(&held(body.clone()), answer, 100);
        let other = restored(&take_unsaved(&tenant, Pace::Soon, times(200)), 200);
        let (here, there) = (last(&tenant, message_id), last(&other, message_id));
        assert_eq!(there.outcome.held, here.outcome.held);
        let is_summary = there.outcome.held.is_some_and(|answer| answer.is_summary);
        assert_eq!(is_summary, message_id == "msg_summary");
        let next = going_on(body, message_id, &json!([{"role": "user", "content": "Go on."}]));
        let (here, there) = (tenant.send(&next, 300), other.send(&next, APART_MS + 300));
        assert_eq!((here.plan, sent(&here)), (there.plan, sent(&there)));
        let whole: Value = serde_json::from_slice(&sent(&there)).unwrap();
        assert_eq!(whole["messages"].as_array().unwrap().len(), messages, "{message_id}");
    }
}

#[test]
fn a_dropped_thought_and_a_question_for_the_whole_outlive_the_process() {
    let tenant = saving();
    let body = plain_body("Be brief.", &["Why?"]);
    let mut flight = tenant.send(&held(body), 100);
    flight.drops_lost = true;
    let mut accepted = tenant.accept(flight, 100);
    let turn = yes(Usage::default());
    tenant.ends(&mut accepted, Some(&turn), 110);
    tenant.look(|state| {
        let id = state.recent.held("msg_yes").unwrap();
        assert!(state.recent.conversation_of(id).unwrap().ask_whole());
    });
    let other = restored(&take_unsaved(&tenant, Pace::Soon, times(200)), 200);
    let there = last(&other, "msg_yes");
    assert!(there.outcome.drops_lost && there.conversation.is_asked_whole());
}

#[test]
fn siblings_that_have_said_nothing_are_known_by_the_answers_that_they_go_on_from() {
    let tenant = saving();
    tenant.parent_has_called(1_000);
    // They are sent off with the same words, and their agents have no ids.
    let ids = ["msg_one", "msg_two"];
    for id in ids {
        let answer = |usage| Turn { id: Some(id.to_owned()), ..silent(usage) };
        tenant.exchange(&held(child_body("a")), answer, 1_100);
    }
    let other = restored(&take_unsaved(&tenant, Pace::Soon, times(1_200)), 1_200);
    let said = json!([{"role": "user", "content": "Go on."}]);
    for (known, now) in [(&tenant, 1_300), (&other, APART_MS + 1_300)] {
        let children = ids.map(|id| {
            let flight = known.send(&going_on(child_body("a"), id, &said), now);
            let Kind::Bound(child, _) = flight.relation.kind else { panic!("{id}: {:?}", flight.relation) };
            assert_eq!(flight.plan, Plan::Forked, "{id}");
            child
        });
        assert_ne!(children[0], children[1]);
    }
}

#[test]
fn an_answer_that_was_never_billed_is_taken_away_once_a_request_goes_on_from_it() {
    let tenant = saving();
    let body = plain_body("Be brief.", &["Why?"]);
    tenant.exchange(&held(body.clone()), |usage| Turn { bill: None, ..yes(usage) }, 100);
    let thread = |now| {
        let changes = take_unsaved(&tenant, Pace::Soon, times(now));
        changes.into_iter().find(|change| change.key().kind == RecordKind::Thread)
    };
    assert!(matches!(thread(200), Some(Change::Put(..))));
    let next = going_on(body, "msg_yes", &json!([{"role": "user", "content": "Go on."}]));
    tenant.accept(tenant.send(&next, 300), 300);
    assert!(matches!(thread(400), Some(Change::Delete(_))));
}
