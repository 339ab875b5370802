//! Refused requests: what comes of them, and what is known afterwards.

use super::*;
use crate::engine::answer::refused::{HeldRefusal, ThreadRefusal};
use crate::engine::outgoing::again;
use crate::engine::words::{Plan, Reason, UpstreamRefusal};

fn refused(tenant: &TestTenant, flight: &mut Flight, refusal: UpstreamRefusal) -> Fallback {
    let attempt = Attempt { is_rewritten: true, can_drop_lost: true, mode: Mode::Fork };
    tenant.look(|state| state.refused(flight, refusal, &attempt))
}

/// The upstream takes a refused request as it came. Returns true if no more of its fan-out are forked.
fn takes_original(tenant: &TestTenant, first: &Flight, refusal: UpstreamRefusal) -> bool {
    let (request, plan) = again(first, Reason::Refused);
    let ticket = tenant.ticket();
    let mut second = tenant.look(|state| state.begin(request, plan, ticket, Moment(1_200)));
    let has_stood_down = tenant.look(|state| state.took_original(first, &mut second, refusal));
    tenant.accept(second, 1_210);
    has_stood_down
}

#[test]
fn a_conversation_goes_out_once_more_only_once() {
    let tenant = TestTenant::new();
    let mut first = tenant.send(&plain_body("Be brief.", &["Why?"]), 1_100);
    assert_eq!(refused(&tenant, &mut first, UpstreamRefusal::Other), Fallback::Original);
    assert_eq!(refused(&tenant, &mut first, UpstreamRefusal::Other), Fallback::None);
    assert!(!takes_original(&tenant, &first, UpstreamRefusal::Other));
    // From now on it goes out as it comes, and what is refused of that is its own.
    let mut next = tenant.send(&plain_body("Be brief.", &["Why?", "And why that?"]), 1_300);
    assert_eq!(next.plan, Plan::Passthrough(Reason::Refused));
    assert_eq!(refused(&tenant, &mut next, UpstreamRefusal::Other), Fallback::None);
}

#[test]
fn no_more_of_a_fan_out_are_forked_once_a_child_was_taken_as_it_came() {
    for refusal in [UpstreamRefusal::Other, UpstreamRefusal::Window] {
        let tenant = TestTenant::new();
        tenant.parent_has_called(1_000);
        let mut first = tenant.send(&child_body("a"), 1_100);
        assert!(first.is_forked());
        assert_eq!(refused(&tenant, &mut first, refusal), Fallback::Original);
        assert!(takes_original(&tenant, &first, refusal), "{refusal:?}");
        assert!(tenant.look(|state| state.prefixes.is_stood_down(tenant.fork_id())));
        assert!(!takes_original(&tenant, &first, refusal), "it is no news");
    }
}

#[test]
fn a_child_that_has_outgrown_the_upstream_says_nothing_about_the_others() {
    for (refusal, stands_down) in [(UpstreamRefusal::Window, false), (UpstreamRefusal::Other, true)] {
        let tenant = TestTenant::new();
        tenant.parent_has_called(1_000);
        tenant.exchange(&child_body("a"), reads, 1_100);
        let mut later = tenant.send(&child_again("a"), 1_150);
        assert!(later.is_forked());
        assert_eq!(refused(&tenant, &mut later, refusal), Fallback::Original);
        assert_eq!(takes_original(&tenant, &later, refusal), stands_down, "{refusal:?}");
    }
}

#[test]
fn a_held_conversation_is_asked_for_once() {
    let tenant = TestTenant::new();
    let mut body = plain_body("Be brief.", &["Why?"]);
    body["thread"] = json!({"type": "create"});
    tenant.exchange(&body, yes, 1_000);
    body["thread"] = json!({"type": "continue", "previous_message_id": "msg_yes"});
    body["messages"] = json!([{"role": "user", "content": [{"type": "text", "text": "Go on."}]}]);
    let mut flight = tenant.send(&body, 1_100);
    let mut refuse = |thread| {
        let refusal = HeldRefusal { thread, why: Some(UpstreamRefusal::Other), names_marker: false };
        let fallback = tenant.look(|state| state.refused_held(&mut flight, &refusal));
        (fallback, tenant.look(|state| state.recent.held("msg_yes").is_some()))
    };
    assert_eq!(refuse(ThreadRefusal::Taken), (Fallback::None, true));
    assert_eq!(refuse(ThreadRefusal::Other), (Fallback::None, true), "it names no marker");
    assert_eq!(refuse(ThreadRefusal::Mismatch), (Fallback::AskWhole, false), "it was changed here");
    assert_eq!(refuse(ThreadRefusal::Mismatch), (Fallback::None, false), "once");
}
