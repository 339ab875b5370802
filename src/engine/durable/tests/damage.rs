//! Records that are damaged, or made to do harm.

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::engine::words::TenantId;

/// One record of every kind.
fn records() -> Vec<Change> {
    let tenant = saving();
    tenant.parent_has_called(1_000);
    tenant.exchange(&child_body("a"), reads, 1_100);
    take_unsaved(&tenant, Pace::Last, times(1_200))
}

/// Changes one value somewhere inside.
fn mutate(value: &mut Value, path: &mut impl Iterator<Item = usize>, with: &Value) {
    let Some(step) = path.next() else { return *value = with.clone() };
    let inner = match value {
        Value::Array(items) if !items.is_empty() => {
            let count = items.len();
            items.get_mut(step % count)
        }
        Value::Object(members) if !members.is_empty() => {
            let count = members.len();
            members.values_mut().nth(step % count)
        }
        _ => None,
    };
    match inner {
        Some(inner) => mutate(inner, path, with),
        None => *value = with.clone(),
    }
}

/// Requests of every sort are still planned.
fn goes_on(tenant: &TestTenant) {
    for (number, body) in
        [child_again("a"), child_body("b"), plain_body("Be brief.", &["Why?"])].into_iter().enumerate()
    {
        tenant.exchange(&body, yes, APART_MS + 2_000 + number as u64);
    }
    take_unsaved(tenant, Pace::All, later(3_000));
}

fn values() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        Just(Value::from(0)),
        Just(Value::from(1)),
        Just(Value::from(u64::MAX)),
        Just(Value::from(-1)),
        Just(Value::from(1e300)),
        Just(Value::from("")),
        Just(Value::from("00")),
        Just(Value::from(true)),
        Just(serde_json::json!([])),
        Just(serde_json::json!({})),
        Just(serde_json::json!({"@": u64::MAX})),
        (0..100_000u64).prop_map(Value::from),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_record_harms_nobody(
        chosen in any::<prop::sample::Index>(),
        path in prop::collection::vec(0..64usize, 1..9),
        with in values(),
        blob in any::<Option<(prop::sample::Index, prop::sample::Index, u8)>>(),
    ) {
        let mut changes = records();
        let at = chosen.index(changes.len());
        if let Change::Put(_, record) = &mut changes[at] {
            let mut body: Value = serde_json::from_slice(&record.body).unwrap();
            mutate(&mut body["data"], &mut path.into_iter(), &with);
            record.body = body.to_string().into();
            if let (Some((blob, byte, with)), false) = (blob, record.blobs.is_empty()) {
                let blob = blob.index(record.blobs.len());
                let mut bytes = record.blobs[blob].to_vec();
                if !bytes.is_empty() {
                    let byte = byte.index(bytes.len());
                    bytes[byte] = with;
                    record.blobs[blob] = bytes.into();
                }
            }
        }
        let tenant = TestTenant::new();
        tenant.look(|state| state.save_as(Writer([0xf2; 8])));
        restore(&tenant, &changes, Origin::Everything { is_shared: false }, later(1_200));
        goes_on(&tenant);
    }
}

#[test]
fn a_record_of_another_tenant_or_a_later_version_says_nothing_and_the_latter_is_no_damage() {
    let changes = records();
    assert!(changes.len() > 8);
    let (later_version, another) = ((r#"{"v":1,"#, r#"{"v":2,"#), (r#""tenant":""#, r#""tenant":"0"#));
    for ((from, to), unreadable) in [(later_version, 0), (another, changes.len())] {
        let tenant = TestTenant::new();
        let others: Vec<Change> = changes
            .iter()
            .map(|change| match change.clone() {
                Change::Put(key, record) => {
                    let body = String::from_utf8(record.body.to_vec()).unwrap().replacen(from, to, 1);
                    Change::Put(key, Record { body: body.into(), ..record })
                }
                gone => gone,
            })
            .collect();
        let outcome = restore(&tenant, &others, Origin::Everything { is_shared: false }, later(1_200));
        assert_eq!(outcome, Restored { records: 0, unreadable });
        assert_eq!(tenant.look(|state| (state.fan_outs.bytes(), state.worlds.billed.len())), (0, 0));
    }
    assert!(TenantId([7; 32]) != TenantId::NOBODY);
}

#[test]
fn a_blob_that_is_missing_or_changed_is_no_prefix() {
    for changed in [true, false] {
        let mut changes = records();
        for change in &mut changes {
            if let Change::Put(key, record) = change
                && key.kind == RecordKind::Child
            {
                match record.blobs.first_mut() {
                    Some(blob) if changed => *blob = Bytes::from(blob.to_ascii_uppercase()),
                    _ => record.blobs.clear(),
                }
            }
        }
        let tenant = TestTenant::new();
        let outcome = restore(&tenant, &changes, Origin::Everything { is_shared: false }, later(1_200));
        assert_eq!(outcome.unreadable, 1);
        assert_eq!(tenant.children(), 0);
    }
}
