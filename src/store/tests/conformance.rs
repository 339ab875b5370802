//! The promises of a store of records. Every implementation runs [`conforms`].

use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::engine::records::{BLOBS_MAX, BODY_BYTES_MAX, Change, Record, RecordKey};
use crate::engine::words::{RecordKind, TenantId};
use crate::store::records::{Changes, Lease, RecordStore};

const LONG_MS: u64 = 600_000;
const SHORT_MS: u64 = 60;
const PATIENCE: Duration = Duration::from_secs(10);

/// Checks each promise of [`RecordStore`], on tenants that nobody else uses.
pub async fn conforms(store: &dyn RecordStore) {
    starts_empty(store, tenant(1)).await;
    returns_what_was_written_last_in_order(store, tenant(2)).await;
    keeps_tenants_apart(store, tenant(3), tenant(4)).await;
    returns_blobs_whole_and_keeps_shared_ones(store, tenant(5)).await;
    tells_only_what_is_new(store, tenant(6)).await;
    lets_records_die(store, tenant(7)).await;
    forgets_a_tenant(store, tenant(8)).await;
    refuses_what_is_too_large(store, tenant(9)).await;
    writes_a_batch_of_every_kind(store, tenant(10)).await;
    tells_many_records_all(store, tenant(11)).await;
}

pub fn tenant(number: u8) -> TenantId {
    let mut digest = *blake3::hash(&[number]).as_bytes();
    digest[0] = number;
    TenantId(digest)
}

pub fn key(kind: RecordKind, name: &str) -> RecordKey {
    RecordKey::new(kind, name).unwrap()
}

pub fn record(text: &str, blobs: &[&[u8]]) -> Record {
    let blobs = blobs.iter().map(|blob| Bytes::copy_from_slice(blob)).collect();
    Record { group: None, body: format!(r#"{{"v":1,"text":"{text}"}}"#).into(), blobs, ttl_ms: LONG_MS }
}

fn put(name: &str, record: Record) -> Change {
    Change::Put(key(RecordKind::Child, name), record)
}

fn delete(name: &str) -> Change {
    Change::Delete(key(RecordKind::Child, name))
}

async fn all(store: &dyn RecordStore, tenant: TenantId) -> Changes {
    news(store, tenant, 0).await
}

/// The changes after a version, as if they had just been written.
async fn news(store: &dyn RecordStore, tenant: TenantId, after: u64) -> Changes {
    let mut found = store.changes(tenant, after).await.unwrap();
    while found.has_more {
        let more = store.changes(tenant, found.version).await.unwrap();
        assert!(more.version > found.version, "it says that there is more, and comes to no end");
        found = Changes { changes: [found.changes, more.changes].concat(), ..more };
    }
    for change in &mut found.changes {
        if let Change::Put(key, record) = change {
            assert!((1..=LONG_MS).contains(&record.ttl_ms), "{key:?} lives for {} ms", record.ttl_ms);
            record.ttl_ms = LONG_MS;
        }
    }
    found
}

/// The names and bodies that live.
async fn bodies(store: &dyn RecordStore, tenant: TenantId) -> Vec<(String, String)> {
    let changes = all(store, tenant).await.changes;
    changes
        .into_iter()
        .map(|change| match change {
            Change::Put(key, record) => (key.name, String::from_utf8(record.body.to_vec()).unwrap()),
            Change::Delete(key) => panic!("{key:?} is deleted, and was told"),
        })
        .collect()
}

async fn starts_empty(store: &dyn RecordStore, tenant: TenantId) {
    assert_eq!(all(store, tenant).await, Changes::default());
    assert!(!store.forget(tenant).await.unwrap());
}

async fn returns_what_was_written_last_in_order(store: &dyn RecordStore, tenant: TenantId) {
    let first =
        store.write(tenant, vec![put("a", record("1", &[])), put("b", record("2", &[]))]).await.unwrap();
    let second = store
        .write(tenant, vec![put("a", record("3", &[])), put("c", record("4", &[])), delete("b")])
        .await
        .unwrap();
    assert!(first > 0);
    assert_eq!(second, first + 3, "each change takes the next version");
    let expected = [("a", "3"), ("c", "4")]
        .map(|(name, text)| (name.to_owned(), format!(r#"{{"v":1,"text":"{text}"}}"#)));
    assert_eq!(bodies(store, tenant).await, expected);
    assert_eq!(all(store, tenant).await.version, second);
    // A deletion of what is not there is none.
    store.write(tenant, vec![delete("ff")]).await.unwrap();
    assert_eq!(bodies(store, tenant).await, expected);
}

async fn keeps_tenants_apart(store: &dyn RecordStore, one: TenantId, other: TenantId) {
    let prompt: &[u8] = b"a prompt that both have";
    store.write(one, vec![put("a", record("one", &[prompt]))]).await.unwrap();
    store.write(other, vec![put("a", record("other", &[prompt]))]).await.unwrap();
    assert!(bodies(store, one).await[0].1.contains("one"));
    assert!(store.forget(one).await.unwrap());
    let left = all(store, other).await.changes;
    assert_eq!(left, [put("a", record("other", &[prompt]))]);
    assert_eq!(all(store, one).await.changes, []);
}

async fn returns_blobs_whole_and_keeps_shared_ones(store: &dyn RecordStore, tenant: TenantId) {
    let large: Vec<u8> = (0..1_500_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let shared: &[u8] = b"\x00the prefix of two siblings\xff";
    let first = put("a", record("1", &[shared, &large]));
    let second = put("b", record("2", &[shared, b""]));
    store.write(tenant, vec![first, second.clone()]).await.unwrap();
    store.write(tenant, vec![delete("a")]).await.unwrap();
    assert_eq!(all(store, tenant).await.changes, [second], "a sibling lost its prefix");
    let again = put("a", record("1", &[&large]));
    store.write(tenant, vec![again.clone()]).await.unwrap();
    assert_eq!(all(store, tenant).await.changes[1], again, "a blob that had gone does not come back");
}

async fn tells_only_what_is_new(store: &dyn RecordStore, tenant: TenantId) {
    let before =
        store.write(tenant, vec![put("a", record("1", &[])), put("b", record("2", &[]))]).await.unwrap();
    let nothing = news(store, tenant, before).await;
    assert_eq!(nothing, Changes { version: before, ..Changes::default() });
    let after = store.write(tenant, vec![put("c", record("3", &[])), delete("a")]).await.unwrap();
    let found = news(store, tenant, before).await;
    let changes = vec![put("c", record("3", &[])), delete("a")];
    assert_eq!(found, Changes { changes, version: after, ..Changes::default() });
}

async fn lets_records_die(store: &dyn RecordStore, tenant: TenantId) {
    let mortal = Record { ttl_ms: SHORT_MS, ..record("1", &[b"a prompt"]) };
    store.write(tenant, vec![put("a", mortal), put("b", record("2", &[b"a prompt"]))]).await.unwrap();
    let began = Instant::now();
    while all(store, tenant).await.changes.len() > 1 {
        assert!(began.elapsed() < PATIENCE, "a record outlives its TTL");
        tokio::time::sleep(Duration::from_millis(SHORT_MS / 4)).await;
    }
    assert_eq!(all(store, tenant).await.changes, [put("b", record("2", &[b"a prompt"]))]);
}

async fn forgets_a_tenant(store: &dyn RecordStore, tenant: TenantId) {
    store.write(tenant, vec![put("a", record("1", &[b"a prompt"]))]).await.unwrap();
    assert!(store.forget(tenant).await.unwrap());
    assert_eq!(all(store, tenant).await.changes, []);
    assert!(!store.forget(tenant).await.unwrap());
    store.write(tenant, vec![put("b", record("2", &[b"a prompt"]))]).await.unwrap();
    assert_eq!(all(store, tenant).await.changes, [put("b", record("2", &[b"a prompt"]))]);
}

/// Checks the promises of stores that other processes write to at the same time.
pub async fn conforms_shared(store: &dyn RecordStore) {
    assert!(store.is_shared());
    tells_that_a_tenant_was_forgotten(store, tenant(12)).await;
    gives_a_lease_to_one_owner(store, tenant(13), tenant(14)).await;
}

async fn gives_a_lease_to_one_owner(store: &dyn RecordStore, tenant: TenantId, other: TenantId) {
    let take = async |owner: &str, hold_ms: u64| {
        store.lease(tenant, "entry", owner, Duration::from_millis(hold_ms)).await.unwrap()
    };
    assert_eq!(take("sa", LONG_MS).await, Lease::Taken);
    assert_eq!((take("sb", LONG_MS).await, take("sa", LONG_MS).await), (Lease::Held, Lease::Taken));
    let long = Duration::from_millis(LONG_MS);
    assert_eq!(store.lease(other, "entry", "sb", long).await, Ok(Lease::Taken), "another tenant's");
    assert_eq!(store.lease(tenant, "another", "sb", long).await, Ok(Lease::Taken), "another entry's");
    store.release(tenant, "entry", "sb", None).await.unwrap();
    assert_eq!(take("sb", LONG_MS).await, Lease::Held, "nobody gives back another's");
    store.release(tenant, "entry", "sa", None).await.unwrap();
    // Of a whole answer it is taken over, and one of a process that is gone ends.
    assert_eq!(take("jc", LONG_MS).await, Lease::Taken);
    assert_eq!((take("jd", LONG_MS).await, take("sb", SHORT_MS).await), (Lease::Held, Lease::Taken));
    let began = Instant::now();
    while take("sa", LONG_MS).await != Lease::Taken {
        assert!(began.elapsed() < PATIENCE, "a lease outlives its time");
        tokio::time::sleep(Duration::from_millis(SHORT_MS / 4)).await;
    }
    store.release(tenant, "entry", "sa", Some(long)).await.unwrap();
    assert_eq!(take("sb", LONG_MS).await, Lease::Written);
    // Leases are not what is forgotten of a tenant: others still wait for them.
    store.forget(tenant).await.unwrap();
    assert_eq!(take("sb", LONG_MS).await, Lease::Written);
}

pub async fn tells_that_a_tenant_was_forgotten(store: &dyn RecordStore, tenant: TenantId) {
    let both = vec![put("a", record("1", &[b"a prompt"])), put("b", record("1", &[]))];
    let before = store.write(tenant, both).await.unwrap();
    assert!(!store.changes(tenant, before).await.unwrap().was_forgotten);
    assert!(store.forget(tenant).await.unwrap());
    let late = || vec![put("a", record("2", &[b"another prompt"]))];
    for known in [before, before - 1] {
        assert!(store.changes(tenant, known).await.unwrap().was_forgotten);
        assert_eq!(
            store.write_after(tenant, known, late()).await,
            Ok(None),
            "it depends on what is forgotten"
        );
    }
    let nothing = all(store, tenant).await;
    assert_eq!((nothing.changes, nothing.was_forgotten), (Vec::new(), false));
    let again = store.write_after(tenant, 0, vec![put("b", record("3", &[]))]).await.unwrap().unwrap();
    assert!(again > before);
    assert_eq!(all(store, tenant).await.changes, [put("b", record("3", &[]))]);
    assert!(store.changes(tenant, before).await.unwrap().was_forgotten, "also if others wrote since");
    assert!(!store.changes(tenant, again).await.unwrap().was_forgotten);
    let more = vec![put("c", record("4", &[]))];
    assert_eq!(store.write_after(tenant, again, more).await, Ok(Some(again + 1)));
}

async fn refuses_what_is_too_large(store: &dyn RecordStore, tenant: TenantId) {
    let wide = Record { body: vec![b' '; BODY_BYTES_MAX + 1].into(), ..record("1", &[]) };
    let many = Record { blobs: vec![Bytes::new(); BLOBS_MAX + 1], ..record("1", &[]) };
    for record in [wide, many] {
        assert!(store.write(tenant, vec![put("a", record)]).await.is_err());
    }
    assert_eq!(all(store, tenant).await.changes, []);
}

async fn writes_a_batch_of_every_kind(store: &dyn RecordStore, tenant: TenantId) {
    let of_kind = |(number, kind): (usize, RecordKind)| {
        let group = (number % 2 == 0).then(|| "00ff".to_owned());
        Change::Put(key(kind, "0"), Record { group, ..record("1", &[b"a prompt"]) })
    };
    let batch: Vec<Change> = RecordKind::ALL.into_iter().enumerate().map(of_kind).collect();
    store.write(tenant, batch.clone()).await.unwrap();
    let mut found = all(store, tenant).await.changes;
    found.sort_by_key(|change| change.key().kind);
    assert_eq!(found, batch);
}

async fn tells_many_records_all(store: &dyn RecordStore, tenant: TenantId) {
    for batch in 0..6 {
        let numbers = batch * 100..(batch + 1) * 100;
        let changes = numbers.map(|number| put(&format!("{number:x}"), record(&number.to_string(), &[])));
        store.write(tenant, changes.collect()).await.unwrap();
    }
    let found = bodies(store, tenant).await;
    let expected = |number: usize| (format!("{number:x}"), format!(r#"{{"v":1,"text":"{number}"}}"#));
    assert_eq!(found, (0..600).map(expected).collect::<Vec<_>>());
}
