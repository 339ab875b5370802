//! Requests go out, are taken, begin to be answered, or come to nothing.

use super::*;
use crate::engine::cache::ledger::CacheLedger;
use crate::engine::cache::worlds::WorldPrompt;
use crate::engine::fork::ParentPrefix;
use crate::engine::prepare::ForkOption;
use crate::engine::tenant::predict::Lookup;
use crate::engine::words::{Plan, Refusal, Role, Why};

/// What a request would find in one world.
pub fn find(ledger: &CacheLedger, flight: &Flight, now: u64) -> Prediction {
    Lookup::of(&flight.trace, &flight.trace.parameters).predict(ledger, None, Moment(now))
}

fn relation(tenant: &TestTenant, body: &Value, now: u64) -> Relation {
    tenant.prepare(&read(tenant, body, now), now).relation
}

#[test]
fn a_forked_child_is_bound_when_it_goes_out_and_others_when_they_are_taken() {
    let tenant = TestTenant::new();
    tenant.parent_has_called(0);
    let forked = tenant.send(&child_body("a"), 100);
    assert_eq!((forked.plan, tenant.children()), (Plan::Forked, 1));
    assert!(matches!(relation(&tenant, &child_body("a"), 100).kind, Kind::Child(_)));
    tenant.look(|state| state.prefixes.stand_down(tenant.fork_id()));
    abandon(&tenant, &forked, Moment(150));
    let own = tenant.send(&child_body("b"), 200);
    assert_eq!((own.plan, tenant.children()), (Plan::Aligned(Why::Refused(Refusal::StoodDown)), 0));
    let accepted = tenant.accept(own, 300);
    assert_eq!((accepted.child_turn, tenant.children()), (Some(1), 1));
    let binding = accepted.flight.binding.unwrap();
    let why = tenant.look(|state| match &state.fan_outs.children().get(binding).unwrap().fate {
        Fate::Own(why) => Some(*why),
        Fate::Forked(..) => None,
    });
    assert_eq!(why, Some(Why::Refused(Refusal::StoodDown)));
}

#[test]
fn a_forked_child_is_unbound_if_nothing_comes_of_its_first_turn() {
    let tenant = TestTenant::new();
    tenant.parent_has_called(0);
    let refused = tenant.send(&child_body("a"), 100);
    abandon(&tenant, &refused, Moment(200));
    assert_eq!(tenant.children(), 0);
    // Taken, but never answered.
    let broken = tenant.send(&child_body("a"), 300);
    let broken = tenant.accept(broken, 300);
    abandon(&tenant, &broken.flight, Moment(400));
    assert_eq!(tenant.children(), 0);
    let again = tenant.send(&child_body("a"), 500);
    assert_eq!((again.plan, tenant.children()), (Plan::Forked, 1));
}

#[test]
fn a_child_stays_bound_if_nothing_comes_of_a_later_turn() {
    let tenant = TestTenant::new();
    tenant.parent_has_called(0);
    tenant.exchange(&child_body("a"), reads, 100);
    let later = tenant.send(&child_again("a"), 200);
    assert!(later.plan == Plan::Forked && later.relation.newcomer().is_none());
    abandon(&tenant, &later, Moment(300));
    assert_eq!(tenant.children(), 1);
    let again = tenant.accept(tenant.send(&child_again("a"), 400), 400);
    assert_eq!((again.flight.plan, again.child_turn), (Plan::Forked, Some(2)), "one turn was answered");
}

#[test]
fn siblings_share_one_prefix_of_their_parent() {
    let tenant = TestTenant::new();
    tenant.parent_has_called(0);
    let prefix = |body: &Value, now: u64| -> Arc<ParentPrefix> {
        let prepared = tenant.prepare(&read(&tenant, body, now), now);
        let ForkOption::First { child, .. } = prepared.fork else { panic!("no child") };
        Arc::clone(child.first().unwrap().composed.prefix.parent_prefix())
    };
    let first = prefix(&child_body("a"), 100);
    assert!(Arc::ptr_eq(&first, &prefix(&child_body("b"), 110)));
}

#[test]
fn a_request_writes_from_when_it_goes_out_and_can_be_read_once_its_answer_begins() {
    let tenant = TestTenant::new();
    let body = plain_body("Be brief.", &["Why?"]);
    let flight = tenant.send(&body, 100);
    let ticket = flight.ticket;
    let found = |flight: &Flight, now| tenant.look(|state| find(&state.worlds.billed, flight, now));
    let underway = found(&flight, 100).underway;
    assert!(!underway.is_empty() && underway.iter().all(|one| one.ticket == ticket));
    let mut accepted = tenant.accept(flight, 500);
    assert!(found(&accepted.flight, 500).read.is_none(), "its answer has not begun");
    assert!(!accepted.has_begun());
    tenant.begins(&mut accepted, None, 900);
    let read = found(&accepted.flight, 900).read.unwrap();
    assert!(accepted.has_begun() && read.bytes > 40_000);
    let begun = tenant.look(|state| state.recent.outcome_mut(accepted.recent).unwrap().begun);
    assert_eq!(begun, Some(Moment(900)));
    tenant.begins(&mut accepted, None, 950);
    let begun = tenant.look(|state| state.recent.outcome_mut(accepted.recent).unwrap().begun);
    assert_eq!(begun, Some(Moment(900)), "it begins once");
}

#[test]
fn a_request_that_comes_to_nothing_leaves_every_world() {
    let tenant = TestTenant::new();
    let flight = tenant.send(&plain_body("Be brief.", &["Why?"]), 100);
    let sizes = || tenant.look(|state| [state.worlds.billed.len(), state.worlds.sent.len()]);
    assert!(sizes()[0] > 0);
    abandon(&tenant, &flight, Moment(200));
    assert_eq!(sizes(), [0, 0]);
    assert_eq!(tenant.look(|state| state.gate.requests()), 0);
}

#[test]
fn a_request_of_a_tenant_that_another_request_made_known_is_adopted() {
    let (unknown, known) = (TestTenant::new(), TestTenant::new());
    let body = plain_body("Be brief.", &["Why?"]);
    let flight = unknown.send(&body, 100);
    known.next_ticket.set(flight.ticket.0 + 1);
    known.exchange(&plain_body("Be another.", &["Who?"]), yes, 110);
    let ticket = flight.ticket;
    let flight = known.look(|state| state.adopt(flight));
    let writes = known.look(|state| state.worlds.billed.writes(ticket).to_vec());
    assert!(!writes.is_empty() && writes == flight.prediction().writes());
    let waits = |state: &TenantState| state.worlds.billed.leader(&writes[0].key).map(|leader| leader.ticket);
    assert_eq!(known.look(|state| waits(state)), Some(ticket), "others wait for it");
    assert_eq!(known.look(|state| state.worlds.billed.leader(&writes[0].key).unwrap().since), Moment(100));
    // From here on it is like any other.
    let (usage, mut accepted) = (bill(&flight), known.accept(flight, 200));
    known.begins(&mut accepted, Some(usage), 200);
    known.ends(&mut accepted, Some(&yes(usage)), 300);
    let [billed, sent] = known.look(|state| {
        [&state.worlds.billed, &state.worlds.sent].map(|world| find(world, &accepted.flight, 300).tokens())
    });
    assert!(billed > 0 && billed == usage.cached());
    assert_eq!(sent, 0, "its client has marked nothing");
    let next = known.send(&plain_body("Be brief.", &["Why?", "How?"]), 400);
    assert!(next.request.arrival.predecessor().is_some() && next.prediction().tokens() == usage.cached());
    assert_eq!(unknown.look(|state| state.recent.bytes()), 0);
}

#[test]
fn a_request_that_is_adopted_is_nobody_elses_child_or_turn() {
    let [forgotten, known] = [(); 2].map(|()| {
        let tenant = TestTenant::new();
        tenant.parent_has_called(0);
        tenant
    });
    let [brief, kind] = ["Be brief.", "Be kind."];
    forgotten.exchange(&plain_body(brief, &["Why?"]), yes, 50);
    let turn = forgotten.send(&plain_body(brief, &["Why?", "How?"]), 100);
    let child = forgotten.send(&child_body("a"), 100);
    known.next_ticket.set(100);
    known.exchange(&child_body("b"), reads, 110);
    known.exchange(&plain_body(kind, &["Who?"]), yes, 120);
    // A child whose prefix is not known here.
    let child = known.look(|state| state.adopt(child));
    let child = known.accept(child, 200);
    assert_eq!((child.flight.plan, child.child_turn, known.children()), (Plan::Forked, None, 1));
    let own = known.accept(known.send(&child_again("b"), 300), 300);
    assert_eq!((own.flight.plan, own.child_turn), (Plan::Forked, Some(2)));
    // A turn of a conversation that is not known here.
    let turn = known.look(|state| state.adopt(turn));
    let turn = known.accept(turn, 400);
    let conversation = |recent| known.look(|state| state.recent.conversation_of(recent).unwrap().id);
    let adopted = conversation(turn.recent);
    let others = read(&known, &plain_body(kind, &["Who?", "When?"]), 500);
    let others = others.arrival.conversation().expect("it is not known").id;
    assert!(adopted.is_some() && adopted != others);
}

#[test]
fn a_turn_that_is_adopted_takes_nobody_elses_place() {
    let [forgotten, known] = [(); 2].map(|()| TestTenant::new());
    forgotten.exchange(&plain_body("Be brief.", &["Why?"]), yes, 50);
    let turn = forgotten.send(&plain_body("Be brief.", &["Why?", "How?"]), 100);
    let last = turn.request.arrival.predecessor().map(|last| last.id);
    known.exchange(&plain_body("Be kind.", &["Who?"]), yes, 120);
    let others = |at| {
        let request = read(&known, &plain_body("Be kind.", &["Who?", "When?"]), at);
        request.arrival.predecessor().map(|last| last.id)
    };
    assert!(last.is_some() && others(150) == last, "two requests have one id, each in its state");
    known.accept(known.look(|state| state.adopt(turn)), 200);
    assert_eq!(others(300), last);
}

#[test]
fn children_are_recognised_while_their_parent_answers() {
    let tenant = TestTenant::new();
    let flight = tenant.send(&parent_body(), 0);
    let turn = fan_out(bill(&flight));
    let mut accepted = tenant.accept(flight, 0);
    tenant.begins(&mut accepted, turn.usage(), 0);
    let role = |topic: &str| relation(&tenant, &child_body(topic), 10).role();
    assert_eq!([role("a"), role("b")], [Role::Plain, Role::Plain]);
    block(&tenant, &mut accepted, turn.id.as_deref(), turn.blocks[1].clone(), Moment(10));
    assert_eq!([role("a"), role("b")], [Role::Child, Role::Plain]);
    block(&tenant, &mut accepted, turn.id.as_deref(), turn.blocks[2].clone(), Moment(20));
    assert_eq!([role("a"), role("b")], [Role::Child, Role::Child]);
    assert!(!tenant.look(|state| state.fan_outs.points().get(tenant.fork_id()).unwrap().is_sealed()));
}

#[test]
fn the_children_of_a_child_are_gated_and_not_forked() {
    let tenant = TestTenant::new();
    tenant.parent_has_called(0);
    let fanned_out = tenant.exchange(&child_body("a"), nested_fan_out, 100).fanout.unwrap().unwrap();
    assert!(fanned_out.is_nested);
    let own = fanned_out.parent.request.body().clone();
    assert_eq!(own, child_body("a").to_string(), "nothing of its parent's prompt is kept once more");
    let flight = tenant.send(&child_body("c"), 200);
    assert_eq!((flight.relation.role(), flight.relation.fork_id()), (Role::Child, Some(fanned_out.id)));
    assert_eq!(flight.plan, Plan::Aligned(Why::Refused(Refusal::Nested)));
    // Its results come back with a later turn of the child.
    let returned = || {
        let points = tenant.look(|state| state.fan_outs.points().summaries());
        let nested = points.into_iter().find(|point| point.id == fanned_out.id).unwrap();
        nested.calls.iter().filter(|call| call.has_returned).count()
    };
    assert_eq!(returned(), 0);
    let back = relation(&tenant, &child_with_results("a"), 300);
    assert!(matches!(back.kind, Kind::Bound(..)));
    assert_eq!(returned(), 0, "to look changes nothing");
    tenant.send(&child_with_results("a"), 300);
    assert_eq!(returned(), 2);
}

#[test]
fn a_child_is_known_by_the_calls_that_were_streamed_to_it() {
    let tenant = TestTenant::new();
    tenant.parent_has_called(0);
    let flight = tenant.send(&child_body("a"), 100);
    let turn = reads(bill(&flight));
    let mut accepted = tenant.accept(flight, 100);
    assert!(accepted.listens());
    assert!(!matches!(relation(&tenant, &child_again("a"), 110).kind, Kind::Bound(..)));
    tenant.blocks(&mut accepted, &turn, 120);
    let Kind::Bound(binding, bound) = relation(&tenant, &child_again("a"), 130).kind else {
        panic!("it is not known")
    };
    assert!(Some(binding) == accepted.flight.binding && bound.is_forked());
}

#[test]
fn a_prompt_with_fewer_breakpoints_is_the_one_that_is_read_from_its_bytes() {
    let unmarked = plain_body("Be brief.", &["Why?", "How?"]);
    let mut marked = unmarked.clone();
    marked["system"][0]["cache_control"] = json!({"type": "ephemeral"});
    for body in [unmarked, marked] {
        let flight = TestTenant::new().send(&body, 0);
        let as_sent = flight.as_sent.as_ref().expect("breakpoints were added");
        let read = WorldPrompt::of(as_sent.reading(), &as_sent.breakpoints, as_sent.parameters.scope());
        assert_eq!(*flight.prompts().sent, read);
        assert_ne!(flight.prompts().sent, flight.prompts().billed);
    }
}
