//! Records as the first version wrote them. Later versions read them: they were written once, with `UPDATE=1`, and never are
//! again. A member that is renamed without its old name would lose every child on an upgrade.

use std::fs;
use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use serde_json::{Value, json};

use super::*;
use crate::engine::durable::{Origin, Pace, Restored, restore, take_unsaved};
use crate::engine::records::{Record, RecordKey};
use crate::engine::tenant::Flight;
use crate::engine::tenant::tests::{TestTenant, child_again, child_body, reads, yes};
use crate::engine::words::Plan;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/store/records-v1.jsonl");
/// So much more the clock of the process that reads shows.
const APART_MS: u64 = 500_000_000;

fn times(now: u64) -> Times {
    Times { now: Moment(now), unix_ms: 1_700_000_000_000 + now }
}

/// A tenant with a record of every kind.
fn tenant() -> TestTenant {
    let tenant = TestTenant::new();
    tenant.look(|state| state.save_as(Writer([0xf1; 8])));
    tenant.parent_has_called(1_000);
    tenant.exchange(&child_body("a"), reads, 1_100);
    let mut held = plain_body("Be brief.", &["Why?"]);
    held["thread"] = json!({"type": "create"});
    tenant.exchange(&held, yes, 1_150);
    tenant
}

/// The bytes by which the second turn of the child goes out.
fn sent(flight: &Flight) -> String {
    blake3::hash(flight.trace.forwarded().body()).to_hex().to_string()
}

/// A line for each blob, for each record, and for what the child's next turn has to be.
fn lines(tenant: &TestTenant) -> String {
    let (mut blobs, mut lines) = (Vec::new(), Vec::new());
    for change in take_unsaved(tenant, Pace::Last, times(1_200)) {
        let Change::Put(key, record) = change else { continue };
        let number = |blob: &Bytes| {
            blobs.iter().position(|known| known == blob).unwrap_or_else(|| {
                lines.push(json!({"blob": BASE64_STANDARD.encode(blob)}));
                blobs.push(blob.clone());
                blobs.len() - 1
            })
        };
        let numbers: Vec<usize> = record.blobs.iter().map(number).collect();
        let body = std::str::from_utf8(&record.body).unwrap();
        lines.push(json!({
            "kind": key.kind.as_str(), "name": key.name, "group": record.group, "body": body,
            "blobs": numbers, "ttl_ms": record.ttl_ms,
        }));
    }
    lines.push(json!({"sent": sent(&tenant.send(&child_again("a"), 1_300))}));
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// The records, and the digest of what the child's next turn has to be.
fn kept() -> (Vec<Change>, String) {
    let (mut blobs, mut changes, mut sent) = (Vec::new(), Vec::new(), None);
    for line in fs::read_to_string(FILE).unwrap().lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        if let Some(blob) = line["blob"].as_str() {
            blobs.push(Bytes::from(BASE64_STANDARD.decode(blob).unwrap()));
        } else if let Some(digest) = line["sent"].as_str() {
            sent = Some(digest.to_owned());
        } else {
            let kind = RecordKind::ALL.into_iter().find(|kind| line["kind"] == kind.as_str()).unwrap();
            let numbers = line["blobs"].as_array().unwrap().iter();
            let record = Record {
                group: line["group"].as_str().map(str::to_owned),
                body: line["body"].as_str().unwrap().to_owned().into(),
                blobs: numbers.map(|number| blobs[number.as_u64().unwrap() as usize].clone()).collect(),
                ttl_ms: line["ttl_ms"].as_u64().unwrap(),
            };
            changes.push(Change::Put(RecordKey::new(kind, line["name"].as_str().unwrap()).unwrap(), record));
        }
    }
    (changes, sent.unwrap())
}

/// Restores records, and returns what the child's next turn goes out as.
fn goes_on(changes: &[Change]) -> String {
    let tenant = TestTenant::new();
    tenant.look(|state| state.save_as(Writer([0xf2; 8])));
    let times = Times { now: Moment(APART_MS + 1_200), ..times(1_200) };
    let outcome = restore(&tenant, changes, Origin::Everything { is_shared: false }, times);
    assert_eq!(outcome, Restored { records: changes.len(), unreadable: 0 });
    assert!(tenant.look(|state| state.recent.held("msg_yes").is_some()), "the conversation that is held");
    let flight = tenant.send(&child_again("a"), APART_MS + 1_300);
    assert_eq!(flight.plan, Plan::Forked);
    sent(&flight)
}

#[test]
fn records_of_the_first_version_are_read_and_a_child_goes_on_with_the_same_bytes() {
    if std::env::var_os("UPDATE").is_some() && !Path::new(FILE).exists() {
        fs::write(FILE, lines(&tenant())).unwrap();
    }
    let (changes, expected) = kept();
    let has = |kind| changes.iter().any(|change| change.key().kind == kind);
    assert!(RecordKind::ALL.into_iter().all(has), "a record of every kind");
    assert_eq!(goes_on(&changes), expected);
}

#[test]
fn what_this_version_has_added_to_them_may_be_missing() {
    let (mut changes, expected) = kept();
    for change in &mut changes {
        if let Change::Put(_, record) = change {
            let mut body: Value = serde_json::from_slice(&record.body).unwrap();
            for (of, added) in [("marks", "revision")] {
                if let Some(of) = body["data"][of].as_object_mut() {
                    of.remove(added);
                }
            }
            record.body = body.to_string().into();
        }
    }
    assert_eq!(goes_on(&changes), expected);
}
