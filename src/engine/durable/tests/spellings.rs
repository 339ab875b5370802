//! Which spellings outlive the process, and for how long.

use super::*;

/// The lives of the records of spellings, by what they hold: tools and prompts, or inputs.
fn lives(changes: &[Change]) -> [Vec<u64>; 2] {
    let mut lives = [Vec::new(), Vec::new()];
    for change in changes {
        if let Change::Put(key, record) = change
            && key.kind == RecordKind::Spelling
        {
            let body: serde_json::Value = serde_json::from_slice(&record.body).unwrap();
            let has = |name: &str| body["data"][name].as_array().is_some_and(|all| !all.is_empty());
            assert_ne!(has("elements") || has("lists"), has("inputs"), "no record has both: {body}");
            lives[usize::from(has("inputs"))].push(record.ttl_ms);
        }
    }
    lives
}

const HOUR_MS: u64 = 60 * 60 * 1_000;
const WEEK_MS: u64 = 7 * 24 * HOUR_MS;
const NONE: [u64; 0] = [];

#[test]
fn inputs_live_for_an_hour_and_tools_for_a_week() {
    let tenant = saving();
    tenant.exchange(&child_again("a"), yes, 100);
    assert_eq!(lives(&take_unsaved(&tenant, Pace::Soon, times(200))), [vec![WEEK_MS], vec![HOUR_MS]]);
}

#[test]
fn the_spellings_of_tools_in_use_are_written_again_before_their_records_end() {
    let tenant = saving();
    tenant.exchange(&plain_body("Be brief.", &["Why?"]), yes, 100);
    let mut first = take_unsaved(&tenant, Pace::Soon, times(200));
    assert_eq!(lives(&first)[0], [WEEK_MS]);
    let goes_on = |tenant: &TestTenant, question: &str, at: u64| {
        tenant.exchange(&plain_body("Be brief.", &["Why?", question]), yes, at);
        lives(&take_unsaved(tenant, Pace::All, times(at)))
    };
    assert_eq!(goes_on(&tenant, "How?", WEEK_MS / 2)[0], NONE);
    assert_eq!(goes_on(&tenant, "When?", WEEK_MS / 2 + 300)[0], [WEEK_MS]);
    assert_eq!(goes_on(&tenant, "Who?", WEEK_MS / 2 + 600)[0], NONE, "once");
    // Another process knows by the records how long they still live.
    for change in &mut first {
        if let Change::Put(_, record) = change {
            record.ttl_ms = 10_000;
        }
    }
    let other = TestTenant::new();
    other.look(|state| state.save_as(Writer([0xf2; 8])));
    restore(&other, &first, Origin::Everything { is_shared: false }, times(1_000));
    assert_eq!(goes_on(&other, "How?", 5_000)[0], NONE);
    assert_eq!(goes_on(&other, "When?", 7_000)[0], [WEEK_MS]);
}
