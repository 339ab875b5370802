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

#[test]
fn the_prefix_of_a_child_is_written_again_before_its_record_ends_whoever_goes_on_with_it() {
    let tenant = saving();
    tenant.parent_has_called(1_000);
    tenant.exchange(&child_body("a"), reads, 1_100);
    let mut kept = Kept::default();
    kept.write(take_unsaved(&tenant, Pace::Soon, times(1_200)));
    let prefix = |changes: &[Change]| {
        let is_prefix = |change: &&Change| change.key().name == "f1f1f1f1f1f1f1f1-1";
        changes.iter().find_map(|change| match change {
            Change::Put(key, record) if key.kind == RecordKind::Child && is_prefix(&change) => {
                Some(record.ttl_ms)
            }
            _ => None,
        })
    };
    let whole_ms = prefix(&kept.0).unwrap();
    // The process is followed by another, and that by a third, when little more than the child's own life is left.
    for (left_ms, is_written) in [(whole_ms, false), (whole_ms * 2 / 3, true)] {
        for change in &mut kept.0 {
            if let Change::Put(_, record) = change {
                record.ttl_ms = record.ttl_ms.min(left_ms);
            }
        }
        let other = restored(&kept.0, 1_200);
        other.exchange(&child_again("a"), yes, APART_MS + 1_300);
        let news = take_unsaved(&other, Pace::Soon, later(1_400));
        assert_eq!(prefix(&news), is_written.then_some(whole_ms), "{left_ms} ms are left");
    }
}

#[test]
fn no_two_children_have_one_name_if_a_tenant_was_forgotten_and_is_read_again() {
    let tenant = saving();
    tenant.parent_has_called(1_000);
    for topic in ["a", "b"] {
        tenant.exchange(&child_body(topic), reads, 1_100);
    }
    let mut kept = take_unsaved(&tenant, Pace::All, times(1_200));
    // Of the first child nothing is left.
    kept.retain(|change| !change.key().name.starts_with("f1f1f1f1f1f1f1f1-1"));
    let again = TestTenant::new();
    again.look(|state| state.save_as(Writer([0xf1; 8])));
    restore(&again, &kept, Origin::Everything { is_shared: false }, later(1_200));
    assert_eq!(again.children(), 1);
    again.exchange(&child_body("a"), reads, APART_MS + 1_300);
    assert_eq!(again.children(), 2);
    let mut names: Vec<String> = take_all(&again, APART_MS + 1_400)
        .into_iter()
        .filter(|change| change.key().kind == RecordKind::Child)
        .map(|change| change.key().name.clone())
        .collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 4, "{names:?}");
}

#[test]
fn what_two_processes_have_claimed_at_once_is_known_in_the_end_to_whoever_reads() {
    let tenant = saving();
    tenant.parent_has_called(1_000);
    let mut kept = Kept::default();
    kept.write(take_unsaved(&tenant, Pace::All, times(1_010)));
    let other = restored(&kept.0, 1_010);
    tenant.exchange(&child_body("a"), reads, 1_100);
    other.exchange(&child_body("b"), reads, APART_MS + 1_100);
    kept.write(take_unsaved(&tenant, Pace::Soon, times(1_200)));
    kept.write(take_unsaved(&other, Pace::Soon, later(1_200)));
    // One hears what the other has written over it, and says it all.
    restore(&tenant, &kept.0, Origin::Since, times(1_300));
    kept.write(take_unsaved(&tenant, Pace::Soon, times(1_300)));
    let claimed = kept.0.iter().find_map(|change| match change {
        Change::Put(key, record)
            if key.kind == RecordKind::ForkPoint && key.name.ends_with(points::CHANGING) =>
        {
            let body: serde_json::Value = serde_json::from_slice(&record.body).unwrap();
            body["data"]["claims"]["claims"].as_object().map(|claims| claims.len())
        }
        _ => None,
    });
    assert_eq!(claimed, Some(2));
    restore(&other, &kept.0, Origin::Since, later(1_400));
    assert_eq!(take_unsaved(&other, Pace::Soon, later(1_500)), [], "nobody has more to say");
}
