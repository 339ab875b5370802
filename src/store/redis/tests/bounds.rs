//! Tenants that have much.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// Bytes that cannot be compressed.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut noise);
    noise
}

/// Passes what comes on to a server, so many bytes in a millisecond, and answers at once. Returns its port.
async fn narrow_line(server: u16, bytes_per_ms: usize) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (mut asks, mut hears) = client.into_split();
            let (mut answers, mut takes) =
                TcpStream::connect(("127.0.0.1", server)).await.unwrap().into_split();
            tokio::spawn(async move { tokio::io::copy(&mut answers, &mut hears).await });
            tokio::spawn(async move {
                let (mut bytes, mut due) = (vec![0; 16 << 10], tokio::time::Instant::now());
                while let Ok(read @ 1..) = asks.read(&mut bytes).await {
                    let takes_us = (1_000 * read / bytes_per_ms) as u64;
                    due = due.max(tokio::time::Instant::now()) + Duration::from_micros(takes_us);
                    tokio::time::sleep_until(due).await;
                    if takes.write_all(&bytes[..read]).await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_that_takes_longer_than_the_deadline_on_its_way_is_not_slow_as_long_as_its_parts_are_not() {
    let server = RedisServer::start();
    let port = narrow_line(server.port, 10_000).await;
    let store = connected(&format!("redis://127.0.0.1:{port}"), Duration::from_millis(500)).await;
    let large = noise(1, 20_000_000);
    let began = Instant::now();
    store.write(tenant(74), vec![put("a", record("1", &[&large]))]).await.unwrap();
    assert!(began.elapsed() > Duration::from_millis(1_500), "the line is not narrow");
    assert_eq!(names_of(&store.changes(tenant(74), 0).await.unwrap()), ["a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_that_has_more_bytes_than_it_may_gives_its_own_oldest_and_nobody_elses() {
    const GENERATION: usize = 1 << 20;
    let server = RedisServer::start();
    let store = RedisStore { generation_bytes: GENERATION, ..connected(&server.url(), AMPLE).await };
    let others = noise(0, 500_000);
    store.write(tenant(75), vec![put("a", record("1", &[&others]))]).await.unwrap();
    let keeps = noise(1, 100_000);
    for number in 2..40 {
        let renewed = put("ff", record("a child that goes on", &[&keeps]));
        let new = put(&format!("{number:x}"), record("1", &[&noise(number, 200_000)]));
        store.write(tenant(76), vec![renewed, new]).await.unwrap();
        let most = 2 * GENERATION + others.len() + 100_000;
        assert!(chunk_bytes(&server) <= most, "{} bytes after {number}", chunk_bytes(&server));
    }
    let other = connected(&server.url(), AMPLE).await;
    let found = other.changes(tenant(76), 0).await.unwrap();
    let names = names_of(&found);
    assert!(names.contains(&"ff") && names.contains(&"27") && !names.contains(&"2"), "{names:?}");
    assert!(names.len() >= 5, "{names:?}");
    // What has gone is no damage, and is in no list.
    assert_eq!(found.damaged, 0);
    let listed = [75, 76].map(|number| server.command(&["ZCARD", &store.names.of(tenant(number)).chunks()]));
    let listed: usize = listed.iter().map(|chunks| chunks.parse::<usize>().unwrap()).sum();
    assert_eq!(listed, server.command(&["KEYS", "*:c:*"]).lines().count());
    assert_eq!(as_written(other.changes(tenant(75), 0).await.unwrap()), [put("a", record("1", &[&others]))]);
    let too_large = put("b", record("1", &[&noise(99, GENERATION + 1)]));
    assert_eq!(store.write(tenant(76), vec![too_large]).await, Err(StoreError::Full));
}

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
