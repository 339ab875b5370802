//! A tenant that is saved, and restored in another process whose clock shows another time.

use std::sync::Arc;

use super::*;
use crate::engine::records::Writer;
use crate::engine::tenant::tests::{TestTenant, child_again, child_body, plain_body, reads, yes};
use crate::engine::tenant::{Fate, Flight};
use crate::engine::words::{Moment, Plan};
use bytes::Bytes;

mod damage;
mod laws;
mod replicas;
mod threads;
mod spellings;

/// So much more the clock of the process that reads shows.
const APART_MS: u64 = 500_000_000;

/// The clock of the process that writes, at this moment.
fn times(now: u64) -> Times {
    Times { now: Moment(now), unix_ms: 1_700_000_000_000 + now }
}

/// The clock of the process that reads, at the same time.
fn later(now: u64) -> Times {
    Times { now: Moment(now + APART_MS), ..times(now) }
}

fn saving() -> TestTenant {
    let tenant = TestTenant::new();
    tenant.look(|state| state.save_as(Writer([0xf1; 8])));
    tenant
}

/// The tenant as another process knows it that has read these records.
fn restored(changes: &[Change], now: u64) -> TestTenant {
    let tenant = TestTenant::new();
    tenant.look(|state| state.save_as(Writer([0xf2; 8])));
    let outcome = restore(&tenant, changes, Origin::Everything { is_shared: false }, later(now));
    assert_eq!(outcome, Restored { records: changes.len(), unreadable: 0 });
    assert_eq!(take_unsaved(&tenant, Pace::Soon, later(now)), [], "what was read is not written again");
    tenant
}

/// What a store keeps of changes that were written in turn.
#[derive(Default)]
struct Kept(Vec<Change>);

impl Kept {
    fn write(&mut self, changes: Vec<Change>) {
        for change in changes {
            self.0.retain(|kept| kept.key() != change.key());
            if let Change::Put(_, record) = &change {
                assert!(record.fits(), "{:?}", change.key());
                self.0.push(change);
            }
        }
    }
}

fn sent(flight: &Flight) -> Bytes {
    flight.trace.forwarded().body().clone()
}

fn kinds(changes: &[Change]) -> Vec<RecordKind> {
    let mut kinds: Vec<RecordKind> = changes.iter().map(|change| change.key().kind).collect();
    kinds.sort();
    kinds.dedup();
    kinds
}

#[test]
fn the_spelling_that_was_seen_first_outlives_the_process() {
    let tenant = saving();
    let mut body = plain_body("Be brief.", &["Why?"]);
    tenant.exchange(&body, yes, 100);
    let changes = take_unsaved(&tenant, Pace::Soon, times(200));
    assert_eq!(kinds(&changes), [RecordKind::Spelling]);
    assert_eq!(take_unsaved(&tenant, Pace::Soon, times(200)), [], "it is taken once");
    let schema = body["tools"][0].as_object_mut().unwrap();
    let name = schema.shift_remove("name").unwrap();
    schema.insert("name".to_owned(), name);
    let sent = |tenant: &TestTenant, at| sent(&tenant.send(&body, at));
    assert_eq!(sent(&restored(&changes, 200), APART_MS + 300), sent(&tenant, 300));
    assert_ne!(sent(&TestTenant::new(), 300), sent(&tenant, 310), "it is spelt otherwise now");
    // All that is known can be written once more, and says the same.
    tenant.look(|state| state.save_all_anew());
    let anew = take_unsaved(&tenant, Pace::Soon, times(400));
    assert_eq!(sent(&restored(&anew, 400), APART_MS + 500), sent(&tenant, 500));
}

#[test]
fn nothing_is_noted_of_a_tenant_that_no_store_stands_behind() {
    let tenant = TestTenant::new();
    tenant.parent_has_called(0);
    tenant.exchange(&child_body("a"), reads, 100);
    assert_eq!(tenant.look(|state| state.has_unsaved()), None);
    assert_eq!(take_unsaved(&tenant, Pace::All, times(200)), []);
}

#[test]
fn a_late_sibling_is_put_on_the_same_bytes_by_another_process() {
    let tenant = saving();
    tenant.parent_has_called(1_000);
    assert_eq!(tenant.look(|state| state.has_unsaved()), Some(Urgency::Soon));
    tenant.exchange(&child_body("a"), reads, 1_100);
    let changes = take_unsaved(&tenant, Pace::All, times(1_200));
    let here = tenant.send(&child_body("b"), 1_300);
    for other in [restored(&changes, 1_200), restored_without_children(&changes, 1_200)] {
        let there = other.send(&child_body("b"), APART_MS + 1_300);
        assert_eq!([here.plan, there.plan], [Plan::Forked; 2]);
        assert_eq!(sent(&here), sent(&there));
    }
}

/// The prefix that siblings share is made anew then.
fn restored_without_children(changes: &[Change], now: u64) -> TestTenant {
    let others: Vec<Change> =
        changes.iter().filter(|change| change.key().kind != RecordKind::Child).cloned().collect();
    restored(&others, now)
}

#[test]
fn a_child_goes_on_with_the_bytes_of_its_prefix_though_its_fork_point_is_gone() {
    let tenant = saving();
    tenant.parent_has_called(1_000);
    for topic in ["a", "b"] {
        tenant.exchange(&child_body(topic), reads, 1_100);
    }
    let mut kept = Kept::default();
    kept.write(take_unsaved(&tenant, Pace::All, times(1_200)));
    kept.0.retain(|change| change.key().kind != RecordKind::ForkPoint);
    let other = restored(&kept.0, 1_200);
    let (here, there) =
        (tenant.send(&child_again("a"), 1_300), other.send(&child_again("a"), APART_MS + 1_300));
    assert_eq!([here.plan, there.plan], [Plan::Forked; 2]);
    assert_eq!(sent(&here), sent(&there));
    assert_eq!(here.trace.breakpoints, there.trace.breakpoints, "its tail is known");
    // Siblings hold one parent, and one prefix of it.
    other.look(|state| {
        let children = state.fan_outs.children();
        let forked: Vec<_> = children
            .all()
            .filter_map(|bound| match &bound.fate {
                Fate::Forked(prefix, point) => Some((prefix.parent_prefix().clone(), point.clone())),
                Fate::Own(_) => None,
            })
            .collect();
        assert_eq!(forked.len(), 2);
        assert!(Arc::ptr_eq(&forked[0].0, &forked[1].0) && Arc::ptr_eq(&forked[0].1, &forked[1].1));
    });
    assert!(other.look(|state| state.fan_outs.bytes()) < 100_000, "a parent counts once");
}

#[test]
fn a_turn_of_a_child_writes_no_prompt_again() {
    let tenant = saving();
    tenant.parent_has_called(1_000);
    tenant.exchange(&child_body("a"), reads, 1_100);
    let first = take_unsaved(&tenant, Pace::Soon, times(1_200));
    let blobs = |changes: &[Change]| -> usize {
        let of = |change: &Change| match change {
            Change::Put(_, record) => record.blobs.iter().map(Bytes::len).sum(),
            Change::Delete(_) => 0,
        };
        changes.iter().map(of).sum()
    };
    assert!(blobs(&first) > 80_000);
    tenant.exchange(&child_again("a"), yes, 1_300);
    let second = take_unsaved(&tenant, Pace::Soon, times(1_400));
    assert!(second.iter().any(|change| change.key().kind == RecordKind::Child));
    assert!(blobs(&second) < 1_000, "{} bytes", blobs(&second));
    // But for the life of the record.
    tenant.exchange(&child_again("a"), yes, 2_500_000);
    assert!(blobs(&take_unsaved(&tenant, Pace::Soon, times(2_500_100))) > 40_000);
}

#[test]
fn a_child_that_another_process_goes_on_with_is_known_by_its_newest_turn() {
    let tenant = saving();
    tenant.parent_has_called(1_000);
    tenant.exchange(&child_body("a"), reads, 1_100);
    let mut kept = Kept::default();
    kept.write(take_unsaved(&tenant, Pace::Soon, times(1_200)));
    let other = restored(&kept.0, 1_200);
    other.exchange(&child_again("a"), yes, APART_MS + 1_300);
    let news = take_unsaved(&other, Pace::Soon, later(1_400));
    let children = news.iter().filter(|change| change.key().kind == RecordKind::Child);
    let names: Vec<&str> = children.map(|change| change.key().name.as_str()).collect();
    assert_eq!(names, ["f1f1f1f1f1f1f1f1-1-1"], "it keeps its name");
    restore(&tenant, &news, Origin::Since, times(1_400));
    let turn = |tenant: &TestTenant, at| tenant.accept(tenant.send(&child_again("a"), at), at).child_turn;
    assert_eq!(turn(&tenant, 1_500), Some(3));
    // What comes back of one's own is no news.
    restore(&tenant, &kept.0, Origin::Since, times(1_500));
    assert_eq!(turn(&tenant, 1_600), Some(4));
}

#[test]
fn a_record_that_is_too_large_is_counted_and_keeps_no_other_back() {
    let tenant = saving();
    tenant.parent_has_called(1_000);
    tenant.exchange(&child_body("a"), reads, 1_100);
    tenant.look(|state| {
        let child = state.fan_outs.named_child(ChildName { writer: Writer([0xf1; 8]), number: 1 }).unwrap();
        (0..64).for_each(|call| state.fan_outs.called(child, &format!("{call}-{}", "x".repeat(20_000))));
    });
    let Taken { changes, too_large } = take_changes(&tenant, Pace::Soon, times(1_200));
    assert_eq!(too_large, 1, "its marks");
    let names: Vec<&str> = changes.iter().map(|change| change.key().name.as_str()).collect();
    assert!(names.contains(&"f1f1f1f1f1f1f1f1-1"), "{names:?}");
}

#[test]
fn a_pending_fork_point_is_known_elsewhere_and_is_sealed_or_dropped_there_too() {
    let tenant = saving();
    let (mut accepted, turn) = tenant.parent_calls(1_000);
    let pending = take_unsaved(&tenant, Pace::Soon, times(1_010));
    let [other, dropped] = [(); 2].map(|()| {
        let tenant = TestTenant::new();
        restore(&tenant, &pending, Origin::Everything { is_shared: true }, later(1_010));
        tenant
    });
    let is_sealed = |tenant: &TestTenant| {
        tenant.look(|state| state.fan_outs.points().get(tenant.fork_id()).map(|point| point.is_sealed()))
    };
    assert_eq!(is_sealed(&other), Some(false));
    assert_eq!(is_sealed(&restored(&pending, 1_010)), None, "nobody will seal it");
    tenant.ends(&mut accepted, Some(&turn), 1_020);
    let sealed = take_unsaved(&tenant, Pace::Soon, times(1_030));
    restore(&other, &sealed, Origin::Since, later(1_030));
    assert_eq!(is_sealed(&other), Some(true));
    restore(&other, &pending, Origin::Since, later(1_030));
    assert_eq!(is_sealed(&other), Some(true), "what was before is no news");
    let broken = saving();
    let (mut accepted, _) = broken.parent_calls(1_000);
    take_unsaved(&broken, Pace::Soon, times(1_010));
    assert!(broken.ends(&mut accepted, None, 1_020).fanout.unwrap().is_err());
    let gone = take_unsaved(&broken, Pace::Soon, times(1_030));
    assert!(gone.iter().any(|change| matches!(change, Change::Delete(_))));
    restore(&dropped, &gone, Origin::Since, later(1_030));
    assert_eq!(is_sealed(&dropped), None);
}
