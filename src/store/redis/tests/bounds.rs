//! Tenants that have much.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn of_more_records_than_may_be_those_go_that_are_missed_least() {
    let server = RedisServer::start();
    let store = RedisStore { records_max: 6, ..connected(&server.url(), AMPLE).await };
    let of_kind = |kind: RecordKind, name: &str| Change::Put(key(kind, name), record("1", &[b"a prompt"]));
    let first = [
        of_kind(RecordKind::Child, "1"),
        of_kind(RecordKind::Learned, "2"),
        of_kind(RecordKind::Spelling, "3"),
        of_kind(RecordKind::Spelling, "4"),
        of_kind(RecordKind::ForkPoint, "5"),
    ];
    store.write(tenant(68), first.to_vec()).await.unwrap();
    let more = ["6", "7", "8"].map(|name| of_kind(RecordKind::Child, name));
    store.write(tenant(68), more.to_vec()).await.unwrap();
    assert_eq!(names_of(&store.changes(tenant(68), 0).await.unwrap()), ["1", "2", "5", "6", "7", "8"]);
    store
        .write(tenant(68), vec![of_kind(RecordKind::Child, "9"), of_kind(RecordKind::Child, "a")])
        .await
        .unwrap();
    assert_eq!(names_of(&store.changes(tenant(68), 0).await.unwrap()), ["1", "6", "7", "8", "9", "a"]);
    let left = server.command(&["KEYS", "*:r:*"]);
    assert_eq!(left.lines().count(), 6, "{left}");
}

#[tokio::test(flavor = "multi_thread")]
async fn records_of_one_answer_share_their_blobs() {
    let server = RedisServer::start();
    let store = connected(&server.url(), AMPLE).await;
    let parent = prompt(1, 300_000);
    let children = ["a", "b", "c"].map(|name| put(name, record(name, &[&parent])));
    store.write(tenant(67), children.to_vec()).await.unwrap();
    let found = store.changes(tenant(67), 0).await.unwrap();
    let blobs = found.changes.iter().map(|change| match change {
        Change::Put(_, record) => (record.blobs[0].as_ptr(), record.blobs[0].len()),
        Change::Delete(_) => panic!("{:?}", names_of(&found)),
    });
    assert_eq!(blobs.collect::<std::collections::HashSet<_>>().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_fork_points_are_read_page_by_page() {
    let server = RedisServer::start();
    let store = connected(&server.url(), AMPLE).await;
    let shared = prompt(0, 100_000);
    for batch in 0..10_u64 {
        let fork = |number: u64| {
            let own = prompt(number + 1, 3_000);
            let key = RecordKey::new(RecordKind::ForkPoint, &format!("{number:x}")).unwrap();
            Change::Put(key, record(&"directive ".repeat(200), &[&[&shared[..], &own].concat()]))
        };
        store.write(tenant(65), (batch * 100..(batch + 1) * 100).map(fork).collect()).await.unwrap();
    }
    let other = connected(&server.url(), AMPLE).await;
    let (found, pages) = all(&other, tenant(65)).await;
    assert_eq!(found.changes.len(), 1_000);
    assert!(pages > 1);
}
