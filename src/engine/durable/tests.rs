//! A tenant that is saved, and restored in another process whose clock shows another time.

use super::*;
use crate::engine::records::Writer;
use crate::engine::tenant::tests::{TestTenant, plain_body, yes};
use crate::engine::words::Moment;

/// The clock of the process that writes, some time after this moment.
fn times(now: u64) -> Times {
    Times { now: Moment(now), unix_ms: 1_700_000_000_000 + now }
}

/// The clock of the process that reads, at the same time.
fn later(now: u64) -> Times {
    Times { now: Moment(now + 500_000_000), ..times(now) }
}

fn saving() -> TestTenant {
    let tenant = TestTenant::new();
    tenant.look(|state| state.save_as(Writer(1)));
    tenant
}

fn restored(changes: &[Change], now: u64) -> TestTenant {
    let tenant = TestTenant::new();
    tenant.look(|state| state.save_as(Writer(2)));
    let outcome = restore(&tenant, changes, Origin::Everything { is_shared: false }, later(now));
    assert_eq!(outcome, Restored { records: changes.len(), unreadable: 0 });
    tenant
}

#[test]
fn the_spelling_that_was_seen_first_outlives_the_process() {
    let tenant = saving();
    let mut body = plain_body("Be brief.", &["Why?"]);
    tenant.exchange(&body, yes, 100);
    let changes = take_unsaved(&tenant, Pace::Soon, times(200));
    assert!(changes.iter().any(|change| change.key().kind == RecordKind::Spelling));
    assert_eq!(take_unsaved(&tenant, Pace::Soon, times(200)), [], "it is taken once");
    let schema = body["tools"][0].as_object_mut().unwrap();
    let name = schema.shift_remove("name").unwrap();
    schema.insert("name".to_owned(), name);
    let sent = |tenant: &TestTenant, at| tenant.send(&body, at).trace.whole().unwrap().body().clone();
    assert_eq!(sent(&restored(&changes, 200), 500_000_300), sent(&tenant, 300));
    assert_ne!(sent(&TestTenant::new(), 300), sent(&tenant, 310), "it is spelt otherwise now");
    // All that is known can be written once more, and says the same.
    tenant.look(|state| state.save_all_anew());
    let anew = take_unsaved(&tenant, Pace::Soon, times(400));
    assert_eq!(sent(&restored(&anew, 400), 500_000_500), sent(&tenant, 500));
}
