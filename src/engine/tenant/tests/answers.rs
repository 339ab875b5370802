//! Answers end, and are billed or not.

use super::transitions::find;
use super::*;
use crate::engine::answer::usage::Bill;
use crate::engine::tenant::predict::Lookup;
use crate::engine::words::{Arm, FanOutDropped, Layer, Plan, Skip, Why};

/// A client that marks the end of its system prompt itself.
fn marked_body(system: &str, questions: &[&str]) -> Value {
    let mut body = plain_body(system, questions);
    body["system"][0]["cache_control"] = json!({"type": "ephemeral"});
    body
}

#[test]
fn a_settled_request_is_billed_as_it_went_out_and_as_it_was_sent() {
    let tenant = TestTenant::new();
    let body = marked_body("Be brief.", &[&"Why? ".repeat(400)]);
    let flight = tenant.send(&body, 100);
    let usage = bill(&flight);
    let mut accepted = tenant.accept(flight, 100);
    tenant.begins(&mut accepted, None, 200);
    let settlement = tenant.ends(&mut accepted, Some(&yes(usage)), 300);
    let bills = settlement.bills.unwrap();
    let as_sent = bills.sent.unwrap();
    assert!(as_sent.cached() > 0 && as_sent.cached() < usage.cached());
    assert_eq!((as_sent.prompt(), as_sent.output), (usage.prompt(), usage.output));
    assert_eq!(bills.aligned, Some(usage), "it was aligned");
    // The same request, as each world would answer it now.
    let next = tenant.prepare(&read(&tenant, &body, 400), 400);
    let trace = next.as_sent.unwrap();
    let sent = tenant
        .look(|state| Lookup::of(&trace, &trace.parameters).predict(&state.worlds.sent, None, Moment(400)));
    assert_eq!(sent.tokens(), as_sent.cached());
    let billed = tenant.look(|state| find(&state.worlds.billed, &accepted.flight, 400));
    assert_eq!(billed.tokens(), usage.cached());
    assert!(tenant.look(|state| state.learned.tokens_per_byte(MODEL)).is_some());
    let answer = tenant.look(|state| state.recent.outcome_mut(accepted.recent).unwrap().answer.clone());
    assert_eq!(answer.unwrap().message_id.as_deref(), Some("msg_yes"));
}

#[test]
fn an_answer_without_content_leaves_nothing_warm() {
    let tenant = TestTenant::new();
    let flight = tenant.send(&marked_body("Be brief.", &["Why?"]), 100);
    let usage = bill(&flight);
    let mut accepted = tenant.accept(flight, 100);
    let settlement = tenant.ends(&mut accepted, Some(&yes(usage)), 300);
    assert!(settlement.bills.is_some() && settlement.verdict.cache_break.is_none());
    assert!(tenant.look(|state| state.worlds.billed.is_empty() && state.worlds.sent.is_empty()));
    let found = tenant.look(|state| find(&state.worlds.billed, &accepted.flight, 300));
    assert!(found.read.is_none() && found.underway.is_empty());
    assert_eq!(tenant.look(|state| state.gate.requests()), 0);
}

#[test]
fn an_answer_without_usage_changes_no_other_world() {
    let tenant = TestTenant::new();
    let body = marked_body("Be brief.", &[&"Why? ".repeat(400)]);
    let flight = tenant.send(&body, 100);
    let turn = Turn { bill: None, ..yes(bill(&flight)) };
    let mut accepted = tenant.accept(flight, 100);
    tenant.begins(&mut accepted, None, 200);
    assert!(tenant.ends(&mut accepted, Some(&turn), 300).bills.is_none());
    assert!(tenant.look(|state| state.worlds.sent.is_empty() && state.worlds.aligned.is_empty()));
}

#[test]
fn a_bill_that_does_not_say_what_was_read_is_no_cache_break() {
    let tenant = TestTenant::new();
    let body = marked_body("Be brief.", &[&"Why? ".repeat(400)]);
    tenant.exchange(&body, yes, 100);
    let flight = tenant.send(&body, 300);
    assert!(flight.prediction().read.is_some());
    let mut summary = Bill::default();
    summary.update(r#"{"iterations":[{"type":"compaction","input_tokens":500,"output_tokens":9}]}"#);
    let turn = Turn { bill: Some(summary), ..yes(Usage::default()) };
    let mut accepted = tenant.accept(flight, 300);
    tenant.begins(&mut accepted, None, 300);
    let settlement = tenant.ends(&mut accepted, Some(&turn), 400);
    assert!(settlement.verdict.cache_break.is_none());
    let bills = settlement.bills.unwrap();
    assert_eq!((bills.sent, bills.aligned, bills.billed.uncached), (None, None, 500));
}

#[test]
fn an_answer_that_breaks_off_after_it_began_stays_readable() {
    let tenant = TestTenant::new();
    let flight = tenant.send(&marked_body("Be brief.", &["Why?"]), 100);
    let mut accepted = tenant.accept(flight, 100);
    tenant.begins(&mut accepted, None, 200);
    let settlement = tenant.ends(&mut accepted, None, 300);
    assert!(settlement.bills.is_none());
    assert!(tenant.look(|state| find(&state.worlds.billed, &accepted.flight, 300)).read.is_some());
}

#[test]
fn those_that_wait_for_the_end_of_an_answer_are_woken_however_it_ends() {
    for is_whole in [true, false] {
        let tenant = TestTenant::new();
        let (mut parent, turn) = tenant.parent_calls(0);
        let fork = tenant.fork_id();
        let other = ForkId::of(TENANT, "msg_other");
        tenant.look(|state| {
            state.await_seal(Ticket(11), fork, Moment(500));
            state.await_seal(Ticket(12), other, Moment(600));
            state.await_seal(Ticket(13), fork, Moment(700));
        });
        assert_eq!(
            tenant.look(|state| (state.awaiting_seal(Moment(0)), state.next_due())),
            (3, Some(Moment(500)))
        );
        assert_eq!(tenant.look(|state| state.awaiting_seal(Moment(500))), 2, "one of them may look");
        let turn = if is_whole { Some(&turn) } else { None };
        let fanout = tenant.ends(&mut parent, turn, 400).fanout.unwrap();
        assert_eq!(fanout.err(), if is_whole { None } else { Some(FanOutDropped::Unfinished) });
        assert_eq!(tenant.woken(), [Ticket(11), Ticket(13)]);
        let waits = |ticket| tenant.look(|state| state.waits_until(Ticket(ticket)));
        assert_eq!([waits(11), waits(12), waits(13)], [None, Some(Moment(600)), None]);
    }
}

#[test]
fn a_turn_of_a_child_is_compared_with_what_was_predicted() {
    let tenant = TestTenant::new();
    tenant.parent_has_called(0);
    let first = tenant.exchange(&child_body("a"), reads, 100).child.unwrap();
    assert_eq!((first.arm, first.is_first, first.output_tokens), (Arm::Forked, true, 50));
    assert!(first.cost.is_some() && !first.is_empty);
    let second = tenant.exchange(&child_again("a"), yes, 700).child.unwrap();
    assert_eq!((second.arm, second.is_first, second.wall_ms), (Arm::Forked, false, 600));
}

#[test]
fn a_conversation_that_lost_its_cache_twice_is_marked_no_more() {
    let tenant = TestTenant::new();
    // A system prompt that says what time it is, and a turn more each time.
    let questions = ["Why?", "How?", "Who?", "When?", "Where?"];
    let turn = |number: usize| plain_body(&format!("It is {number} o'clock."), &questions[..=number]);
    let unread_from = || {
        let next = read(&tenant, &turn(4), 9_000);
        let last = next.arrival.predecessor().expect("it is not known");
        last.conversation.unread_from()
    };
    let is_marked = |flight: &Flight| {
        let statics = flight.trace.reading().anatomy().tools;
        flight.trace.breakpoints.iter().any(|point| point.piece >= statics)
    };
    for (number, losses) in [(0, None), (1, None), (2, Some(Layer::System))] {
        let now = 1_000 * (number as u64 + 1);
        let flight = tenant.send(&turn(number), now);
        assert!(is_marked(&flight), "turn {number}");
        let usage = bill(&flight);
        let mut accepted = tenant.accept(flight, now);
        tenant.begins(&mut accepted, Some(usage), now);
        let settlement = tenant.ends(&mut accepted, Some(&yes(usage)), now);
        assert_eq!(settlement.verdict.cache_break.is_some(), number > 0, "turn {number}");
        assert_eq!(unread_from(), losses, "turn {number}");
    }
    let flight = tenant.send(&turn(3), 4_000);
    assert_eq!(flight.plan, Plan::Aligned(Why::Skipped(Skip::NeverRead)));
    assert!(!is_marked(&flight));
    assert!(!flight.trace.breakpoints.is_empty(), "its tools are read");
}

#[test]
fn a_turn_that_extends_the_one_before_makes_up_for_a_loss() {
    let tenant = TestTenant::new();
    let questions = ["Why?", "How?", "Who?", "When?"];
    let turn =
        |hour: usize, number: usize| plain_body(&format!("It is {hour} o'clock."), &questions[..=number]);
    for (hour, number) in [(0, 0), (1, 1), (1, 2), (2, 3)] {
        tenant.exchange(&turn(hour, number), yes, 1_000 * (number as u64 + 1));
    }
    let next = plain_body("It is 2 o'clock.", &["Why?", "How?", "Who?", "When?", "Where?"]);
    let next = read(&tenant, &next, 9_000);
    assert_eq!(next.arrival.predecessor().unwrap().conversation.unread_from(), None);
}

#[test]
fn an_answer_that_is_slow_and_wrote_little_says_nothing_about_the_gate() {
    let answered = |usage: Usage| {
        let tenant = TestTenant::new();
        let mut accepted = tenant.accept(tenant.send(&parent_body(), 0), 0);
        tenant.begins(&mut accepted, Some(usage), tenant.policy.max_hold_ms + 1);
        tenant.look(|state| state.learned.is_slow(MODEL, 100_000))
    };
    assert!(!answered(Usage { cache_read: 20_000, uncached: 10, ..Usage::default() }));
    assert!(!answered(Usage { cache_write_5m: 100, ..Usage::default() }));
    assert!(answered(Usage { cache_write_5m: 20_000, ..Usage::default() }));
}
