//! Two processes that hear of each other while conversations go on.

use super::*;
use crate::engine::tenant::tests::bill;

/// A child whose first turn is heard of twice: once it was accepted, and once it has ended.
fn heard_in_the_middle() -> (TestTenant, TestTenant) {
    let tenant = saving();
    tenant.parent_has_called(1_000);
    let flight = tenant.send(&child_body("a"), 1_100);
    let turn = reads(bill(&flight));
    let mut accepted = tenant.accept(flight, 1_100);
    let other = restored(&take_unsaved(&tenant, Pace::Soon, times(1_110)), 1_110);
    tenant.begins(&mut accepted, turn.usage(), 1_120);
    tenant.blocks(&mut accepted, &turn, 1_130);
    tenant.ends(&mut accepted, Some(&turn), 1_140);
    restore(&other, &take_unsaved(&tenant, Pace::All, times(1_150)), Origin::Since, later(1_150));
    (tenant, other)
}

#[test]
fn a_child_is_known_by_what_came_in_the_turn_that_another_process_has_heard_of_before() {
    let (tenant, other) = heard_in_the_middle();
    let (here, there) =
        (tenant.send(&child_again("a"), 1_300), other.send(&child_again("a"), APART_MS + 1_300));
    assert_eq!([here.plan, there.plan], [Plan::Forked; 2]);
    assert_eq!(sent(&here), sent(&there));
    assert_eq!(here.trace.breakpoints, there.trace.breakpoints);
}

#[test]
fn what_comes_late_of_a_turn_that_has_passed_changes_no_later_one() {
    let (tenant, other) = heard_in_the_middle();
    // It goes on in the other process, which tells of it, and then hears once more what was before.
    let before = take_all(&tenant, 1_200);
    other.exchange(&child_again("a"), yes, APART_MS + 1_300);
    let rests = |tenant: &TestTenant| tenant.look(|state| state.fan_outs.forget_resting_child());
    let after = take_unsaved(&other, Pace::Soon, later(1_400));
    restore(&other, &before, Origin::Since, later(1_400));
    restore(&tenant, &after, Origin::Since, times(1_400));
    assert!(rests(&other) && rests(&tenant), "its last answer has left it nothing to do");
}

fn take_all(tenant: &TestTenant, now: u64) -> Vec<Change> {
    tenant.look(|state| state.save_all_anew());
    take_unsaved(tenant, Pace::All, times(now))
}
