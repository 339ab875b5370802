//! Decisions on a tenant that is made up, at moments that are made up.

use serde_json::{Value, json};

use super::*;
use crate::engine::tenant::tests::*;
use crate::engine::tenant::{TenantAccess, abandon};
use crate::engine::words::{ForkNote, Skip};

/// A request that was read and prepared, and how it comes.
struct Case<'a> {
    tenant: &'a TestTenant,
    request: ReadRequest,
    prepared: Box<Prepared>,
    facts: Circumstances,
}

impl<'a> Case<'a> {
    fn new(tenant: &'a TestTenant, body: &Value, now: u64) -> Case<'a> {
        let request = read(tenant, body, now);
        let prepared = tenant.prepare(&request, now);
        Case { tenant, request, prepared, facts: tenant.facts() }
    }

    fn mode(mut self, mode: Mode, keeps_prefix: bool) -> Case<'a> {
        self.facts = Circumstances { mode, keeps_prefix, ..self.facts };
        self
    }

    fn prepare_again(&mut self, now: u64) {
        self.prepared = self.tenant.prepare(&self.request, now);
    }

    /// Decides, twice: it changes nothing.
    #[track_caller]
    fn decide(&self, now: u64) -> Decision {
        let Case { tenant, request, prepared, facts } = self;
        let decide =
            || tenant.look(|state| decide(request, prepared, state, &tenant.policy, facts, Moment(now)));
        let (first, second) = (decide(), decide());
        assert_eq!(format!("{first:?}"), format!("{second:?}"));
        first
    }

    #[track_caller]
    fn sending(&self, now: u64) -> Sending {
        match self.decide(now) {
            Decision::Send(sending) => sending,
            other => panic!("it does not go: {other:?}"),
        }
    }

    #[track_caller]
    fn plan(&self, now: u64) -> Plan {
        self.sending(now).plan
    }

    fn proceed(self, now: u64) -> Next {
        let Case { tenant, request, prepared, facts } = self;
        tenant.look(|state| proceed(request, prepared, state, &tenant.policy, &facts, Moment(now)))
    }

    #[track_caller]
    fn go(self, now: u64) -> Departure {
        let Next::Send(departure) = self.proceed(now) else { panic!("it does not go") };
        *departure
    }

    /// Waits, and may be decided again.
    #[track_caller]
    fn wait(self, now: u64) -> (Case<'a>, Wait) {
        let (tenant, facts) = (self.tenant, self.facts);
        let Next::Wait(request, prepared, wait) = self.proceed(now) else { panic!("it does not wait") };
        (Case { tenant, request, prepared, facts }, wait)
    }
}

#[track_caller]
fn gate(sending: &Sending) -> &LetGo {
    &sending.gate.as_ref().expect("the gate was not asked").let_go
}

#[test]
fn a_plain_request_is_aligned_for_the_reason_that_says_most() {
    let tenant = TestTenant::new();
    let plain = |mode| Case::new(&tenant, &plain_body("Be brief.", &["Why?"]), 0).mode(mode, true);
    assert_eq!(plain(Mode::Fork).plan(0), Plan::Aligned(Why::NotAChild));
    assert_eq!(plain(Mode::Align).plan(0), Plan::Aligned(Why::Mode));
    assert_eq!(plain(Mode::Align).sending(0).would_fork, None);
    // What is asked once is not marked, and that says more than whose child it is not.
    let one_shot = json!({"model": MODEL, "messages": [{"role": "user", "content": "Why?"}]});
    for mode in [Mode::Fork, Mode::Align] {
        let case = Case::new(&tenant, &one_shot, 0).mode(mode, true);
        assert_eq!(case.plan(0), Plan::Aligned(Why::Skipped(Skip::OneShot)));
    }
}

#[test]
fn a_plain_request_goes_out_with_its_markers() {
    let tenant = TestTenant::new();
    let departure = Case::new(&tenant, &plain_body("Be brief.", &["Why?"]), 0).go(0);
    assert_eq!((departure.flight.plan, departure.outgoing.betas), (Plan::Aligned(Why::NotAChild), None));
    let sent: Value = serde_json::from_slice(&departure.outgoing.pieces.unwrap().concat()).unwrap();
    for marked in [&sent["tools"][0], &sent["system"][0], &sent["messages"][0]["content"][0]] {
        assert_eq!(marked["cache_control"], json!({"type": "ephemeral"}));
    }
    assert_eq!(departure.outgoing.markers_added, 3);
}

#[test]
fn a_child_waits_for_the_seal_no_longer_than_it_may() {
    let tenant = TestTenant::new();
    let (mut parent, turn) = tenant.parent_calls(0);
    let child = Case::new(&tenant, &child_body("a"), 100);
    for now in [100, 1_000, 100 + AWAIT_PARENT_MS - 1] {
        let Decision::AwaitSeal(fork, until) = child.decide(now) else { panic!("at {now}") };
        assert_eq!((fork, until), (tenant.fork_id(), Moment(100 + AWAIT_PARENT_MS)), "at {now}");
    }
    let (child, wait) = child.wait(1_000);
    assert_eq!(wait, Wait { until: Moment(100 + AWAIT_PARENT_MS), underway_tokens: None });
    let ticket = child.facts.ticket;
    assert_eq!(tenant.look(|state| state.waits_until(ticket)), Some(wait.until));
    // Its time has come: it continues the turn up to its own call.
    let departure = child.go(wait.until.0);
    assert_eq!((departure.flight.plan, tenant.look(|state| state.waits_until(ticket))), (Plan::Forked, None));
    assert!(departure.outgoing.notes.contains(&ForkNote::Partial));
    assert_eq!(tenant.woken(), []);
    tenant.ends(&mut parent, Some(&turn), 3_000);
    assert_eq!(tenant.woken(), [], "nobody waits any more");
}

#[test]
fn a_deadline_before_that_counts() {
    let tenant = TestTenant::new();
    let _parent = tenant.parent_calls(0);
    let mut child = Case::new(&tenant, &child_body("a"), 100);
    child.facts.deadline = Moment(300);
    assert!(matches!(child.decide(299), Decision::AwaitSeal(_, Moment(300))));
    assert_eq!(child.plan(300), Plan::Forked);
}

#[test]
fn nobody_waits_for_a_seal_that_would_be_of_no_use() {
    let tenant = TestTenant::new();
    let _parent = tenant.parent_calls(0);
    let aligned = Case::new(&tenant, &child_body("a"), 100).mode(Mode::Align, true);
    assert_eq!(aligned.plan(100), Plan::Aligned(Why::Mode));
    let mut forced = child_body("b");
    forced["tool_choice"] = json!({"type": "any"});
    let refused = Case::new(&tenant, &forced, 100);
    assert_eq!(refused.plan(100), Plan::Aligned(Why::Refused(Refusal::ToolChoice)));
}

#[test]
fn after_the_seal_a_child_is_prepared_again_and_forked() {
    let tenant = TestTenant::new();
    let (mut parent, turn) = tenant.parent_calls(0);
    let (mut child, _) = Case::new(&tenant, &child_body("a"), 100).wait(100);
    tenant.ends(&mut parent, Some(&turn), 500);
    assert_eq!(tenant.woken(), [child.facts.ticket]);
    assert!(matches!(child.decide(500), Decision::PrepareAgain));
    child.prepare_again(500);
    let departure = child.go(500);
    assert_eq!((departure.flight.plan, departure.would_fork), (Plan::Forked, None));
    assert!(departure.outgoing.shared_bytes > 0 && !departure.outgoing.notes.contains(&ForkNote::Partial));
    assert!(departure.flight.forecast.is_some());
    assert_eq!(tenant.children(), 1);
}

#[test]
fn nobody_waits_for_a_seal_that_has_come() {
    for is_whole in [true, false] {
        let tenant = TestTenant::new();
        let (mut parent, turn) = tenant.parent_calls(0);
        let (mut child, _) = Case::new(&tenant, &child_body("a"), 100).wait(100);
        tenant.ends(&mut parent, is_whole.then_some(&turn), 500);
        child.facts.is_last_round = true;
        assert!(matches!(child.decide(500), Decision::Send(_)), "nobody would wake it");
    }
}

#[test]
fn a_child_whose_fork_point_is_gone_is_prepared_again_and_is_plain() {
    let tenant = TestTenant::new();
    let (mut parent, _) = tenant.parent_calls(0);
    let (mut child, _) = Case::new(&tenant, &child_body("a"), 100).wait(100);
    tenant.ends(&mut parent, None, 500);
    assert_eq!(tenant.woken(), [child.facts.ticket]);
    assert!(matches!(child.decide(500), Decision::PrepareAgain));
    child.prepare_again(500);
    assert_eq!(child.plan(500), Plan::Aligned(Why::NotAChild));
}

#[test]
fn a_fan_out_that_was_stood_down_is_left_alone() {
    let tenant = TestTenant::new();
    tenant.parent_has_called(0);
    let mut child = Case::new(&tenant, &child_body("a"), 100);
    assert_eq!(child.plan(100), Plan::Forked);
    tenant.look(|state| state.prefixes.stand_down(tenant.fork_id()));
    assert!(matches!(child.decide(100), Decision::PrepareAgain));
    let stood_down = Plan::Aligned(Why::Refused(Refusal::StoodDown));
    child.facts.is_last_round = true;
    assert_eq!(child.plan(100), stood_down, "whatever it was prepared by");
    child.facts.is_last_round = false;
    child.prepare_again(100);
    assert_eq!(child.plan(100), stood_down);
    let departure = child.go(100);
    assert!(departure.flight.forecast.is_some(), "its bill is compared with what was predicted");
    assert_eq!(tenant.children(), 0, "it is bound once it is accepted");
}

#[test]
fn a_child_that_there_is_no_room_for_keeps_its_own_prompt() {
    let tenant = TestTenant::new();
    tenant.parent_has_called(0);
    let mut child = Case::new(&tenant, &child_body("a"), 100);
    child.facts.has_room = Some(false);
    assert_eq!(child.plan(100), Plan::Aligned(Why::Refused(Refusal::StoreFull)));
}

#[test]
fn room_is_asked_for_by_a_child_that_is_forked_and_by_nobody_else() {
    let tenant = TestTenant::new();
    tenant.parent_has_called(0);
    let asks = |child: &mut Case<'_>| {
        child.facts.has_room = None;
        matches!(child.decide(100), Decision::NeedsRoom(bytes) if bytes > 0)
    };
    assert!(asks(&mut Case::new(&tenant, &child_body("a"), 100)));
    assert!(!asks(&mut Case::new(&tenant, &child_body("a"), 100).mode(Mode::Align, true)));
    assert!(!asks(&mut Case::new(&tenant, &parent_body(), 100)));
    tenant.look(|state| state.prefixes.stand_down(tenant.fork_id()));
    assert!(!asks(&mut Case::new(&tenant, &child_body("a"), 100)), "it is not forked");
}

#[test]
fn mode_align_says_what_fork_would_do_and_does_not_do_it() {
    let tenant = TestTenant::new();
    tenant.parent_has_called(0);
    let child = Case::new(&tenant, &child_body("a"), 100).mode(Mode::Align, true);
    let sending = child.sending(100);
    assert_eq!((sending.plan, sending.would_fork), (Plan::Aligned(Why::Mode), Some("none")));
    assert!(sending.forecast.is_some());
    let departure = child.go(100);
    assert_eq!((departure.would_fork, departure.outgoing.shared_bytes), (Some("none"), 0));
    assert_eq!(tenant.children(), 0);
    abandon(&tenant, &departure.flight, Moment(150));
    tenant.look(|state| state.prefixes.stand_down(tenant.fork_id()));
    let child = Case::new(&tenant, &child_body("b"), 150).mode(Mode::Align, true);
    assert_eq!(child.sending(150).would_fork, Some("stood_down"));
}

#[test]
fn a_forked_child_keeps_its_prefix_unless_its_client_asks_for_less() {
    let tenant = TestTenant::new();
    tenant.parent_has_called(0);
    tenant.exchange(&child_body("a"), reads, 100);
    let again = |mode, keeps_prefix| {
        let case = Case::new(&tenant, &child_again("a"), 200).mode(mode, keeps_prefix);
        assert!(case.prepared.relation.bound().is_some_and(|bound| bound.is_forked()));
        case.plan(200)
    };
    assert_eq!(again(Mode::Fork, true), Plan::Forked);
    assert_eq!(again(Mode::Align, true), Plan::Forked, "the configuration says less");
    assert_eq!(again(Mode::Align, false), Plan::Aligned(Why::Mode), "its client does");
    let mut full = Case::new(&tenant, &child_again("a"), 200);
    full.facts.has_room = Some(false);
    assert_eq!(full.plan(200), Plan::Forked, "it has its room already");
}

#[test]
fn a_child_that_is_forgotten_while_it_waits_is_prepared_again() {
    let tenant = TestTenant::new();
    tenant.parent_has_called(0);
    tenant.exchange(&child_body("a"), reads, 100);
    let child = Case::new(&tenant, &child_again("a"), 200);
    let Kind::Bound(binding, _) = child.prepared.relation.kind else { panic!("it is not bound") };
    tenant.look(|state| state.fan_outs.release(binding));
    assert!(matches!(child.decide(200), Decision::PrepareAgain));
}

#[test]
fn the_second_sibling_waits_and_reads_what_the_first_has_written() {
    let tenant = TestTenant::new();
    tenant.parent_has_called(0);
    let first = Case::new(&tenant, &child_body("a"), 100);
    assert_eq!(*gate(&first.sending(100)), LetGo::from(GateOutcome::Led));
    let leader = first.facts.ticket;
    let first = first.go(100).flight;
    let second = Case::new(&tenant, &child_body("b"), 110);
    let Decision::AwaitWriter { arrival, until, underway_tokens } = second.decide(110) else {
        panic!("it does not wait")
    };
    assert_eq!((arrival.ticket, until), (second.facts.ticket, Moment(110 + 5_000)));
    let (second, wait) = second.wait(110);
    assert_eq!(wait, Wait { until, underway_tokens: Some(underway_tokens) });
    assert!(matches!(second.decide(900), Decision::AwaitWriter { .. }), "nothing has changed");
    let usage = bill(&first);
    let mut first = tenant.accept(first, 900);
    assert_eq!(tenant.woken(), []);
    tenant.begins(&mut first, Some(usage), 900);
    assert_eq!(tenant.woken(), [second.facts.ticket]);
    let released = LetGo { outcome: GateOutcome::Released, leader: Some(leader), lesson: None };
    assert_eq!(*gate(&second.sending(900)), released);
    let second = second.go(900).flight;
    let read = second.prediction().read.expect("nothing is warm");
    assert!(read.bytes > 40_000 && second.prediction().writes().len() <= 1);
}

#[test]
fn the_second_sibling_goes_next_when_nothing_comes_of_the_first() {
    let tenant = TestTenant::new();
    tenant.parent_has_called(0);
    let first = Case::new(&tenant, &child_body("a"), 100).go(100).flight;
    let (second, _) = Case::new(&tenant, &child_body("b"), 110).wait(110);
    let (third, _) = Case::new(&tenant, &child_body("b"), 120).wait(120);
    abandon(&tenant, &first, Moment(900));
    assert_eq!(tenant.woken(), [second.facts.ticket]);
    let succeeded = LetGo { outcome: GateOutcome::Succeeded, leader: Some(first.ticket), lesson: None };
    assert_eq!(*gate(&second.sending(900)), succeeded);
    assert!(matches!(third.decide(900), Decision::AwaitWriter { .. }), "it waits for the second now");
}

#[test]
fn nobody_waits_at_the_gate_past_its_deadline() {
    let tenant = TestTenant::new();
    tenant.parent_has_called(0);
    let first = Case::new(&tenant, &child_body("a"), 100).go(100).flight;
    let mut second = Case::new(&tenant, &child_body("b"), 110);
    second.facts.deadline = Moment(1_000);
    let (second, wait) = second.wait(110);
    assert_eq!(wait.until, Moment(1_000));
    let let_go = gate(&second.sending(1_000)).clone();
    assert_eq!((let_go.outcome, let_go.leader), (GateOutcome::TimedOut, Some(first.ticket)));
}

#[test]
fn others_than_children_wait_only_where_the_operator_says_so() {
    let mut tenant = TestTenant::new();
    let _first = tenant.send(&plain_body("Be brief.", &["Why?"]), 0);
    let second = plain_body("Be brief.", &["Who?"]);
    assert!(matches!(Case::new(&tenant, &second, 10).decide(10), Decision::AwaitWriter { .. }));
    tenant.policy.holds_children_only = true;
    assert!(Case::new(&tenant, &second, 10).sending(10).gate.is_none());
}

#[test]
fn nobody_waits_for_a_model_that_was_learned_to_be_slow() {
    let tenant = TestTenant::new();
    tenant.exchange(&plain_body("Be slow.", &["Why?"]), yes, 0);
    tenant.look(|state| state.learned.began(MODEL, 1, false));
    let _first = tenant.send(&plain_body("Be brief.", &["Why?"]), 10_000);
    let sending = Case::new(&tenant, &plain_body("Be brief.", &["Who?"]), 10_010).sending(10_010);
    assert_eq!(gate(&sending).outcome, GateOutcome::TooSlow);
    assert!(sending.gate.unwrap().arrival.is_none());
}

#[test]
fn what_was_decided_for_a_fan_out_holds_for_all_its_children_and_for_a_while() {
    let mut tenant = TestTenant::new();
    tenant.parent_has_called(0);
    let first = Case::new(&tenant, &child_body("a"), 100).go(100).flight;
    assert_eq!(first.plan, Plan::Forked);
    let decided = first.forecast.expect("a forecast");
    let usage = bill(&first);
    let mut first = tenant.accept(first, 200);
    tenant.begins(&mut first, Some(usage), 200);
    // From here on forking pays for nobody whose fan-out is decided now.
    tenant.policy.fork.max_cost_ratio = 0.0;
    let second = Case::new(&tenant, &child_body("b"), 300);
    let sending = second.sending(300);
    assert_eq!((sending.plan, sending.forecast), (Plan::Forked, Some(decided)));
    let late = 100 + decided.ttl.ms();
    assert_eq!(second.plan(late), Plan::Aligned(Why::Refused(Refusal::Cost)), "the parent's entry is gone");
}

#[test]
fn of_two_that_could_start_from_one_call_the_first_to_go_has_it() {
    let tenant = TestTenant::new();
    tenant.parent_has_called(0);
    let mut other = child_body("a");
    other["max_tokens"] = json!(77);
    let mut second = Case::new(&tenant, &other, 100);
    let first = Case::new(&tenant, &child_body("a"), 110);
    assert_eq!((first.plan(110), second.plan(110)), (Plan::Forked, Plan::Forked), "nobody has gone yet");
    first.go(110);
    assert!(matches!(second.decide(120), Decision::PrepareAgain));
    second.prepare_again(120);
    assert_eq!(second.prepared.relation.why, "claimed");
}
