use std::future::Future;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::names::TenantNames;
use super::*;
use crate::engine::records::{Record, RecordKey};
use crate::engine::words::RecordKind;
use crate::store::tests::conformance::{conforms, conforms_shared, key, record, tenant};

mod bounds;
mod races;
mod tls;
mod upgrade;
#[path = "../../../tests/it/harness/redis.rs"]
mod servers;

use servers::{RedisCluster, RedisServer};

/// Longer than any pause of a busy machine, where a test is not about time.
const AMPLE: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(10);

fn store(url: &str, deadline: Duration) -> RedisStore {
    keyed_store(url, deadline, None)
}

fn keyed_store(url: &str, deadline: Duration, key: Option<&[u8]>) -> RedisStore {
    RedisStore::open(RedisOptions {
        address: RedisAddress::parse(url).unwrap(),
        key: key.map(<[u8]>::to_vec),
        deadline,
        max_age: Duration::from_secs(86_400),
        tenant_bytes: 1 << 30,
    })
}

/// A store that has connected.
async fn connected(url: &str, deadline: Duration) -> RedisStore {
    let store = store(url, deadline);
    until("it connects", async || store.changes(tenant(99), 0).await.is_ok()).await;
    store
}

async fn until<F: Future<Output = bool>>(what: &str, holds: impl Fn() -> F) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < PATIENCE, "waited too long until {what}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn put(name: &str, record: Record) -> Change {
    Change::Put(key(RecordKind::Child, name), record)
}

/// Text that does not repeat itself.
fn prompt(seed: u64, bytes: usize) -> Vec<u8> {
    let words = (0_u64..).map(|n| format!("{} ", blake3::hash(&[seed, n].map(u64::to_be_bytes).concat())));
    words.flat_map(String::into_bytes).take(bytes).collect()
}

/// All that lives, and the number of answers that it took.
async fn all(store: &RedisStore, tenant: TenantId) -> (Changes, usize) {
    let (mut found, mut pages) = (store.changes(tenant, 0).await.unwrap(), 1);
    while found.has_more {
        let more = store.changes(tenant, found.version).await.unwrap();
        found = Changes { changes: [found.changes, more.changes].concat(), ..more };
        pages += 1;
    }
    (found, pages)
}

fn names_of(changes: &Changes) -> Vec<&str> {
    changes.changes.iter().map(|change| &*change.key().name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_server_keeps_the_promises_of_a_store() {
    let server = RedisServer::start();
    let store = connected(&server.url(), AMPLE).await;
    conforms(&store).await;
    conforms_shared(&store).await;
    // No prompt is left of what was refused.
    let chunk = store.names.of(tenant(12)).chunk(0, &[0; 16]);
    assert_eq!(server.command(&["KEYS", &chunk.replace(&"00".repeat(16), "*").replace("00", "*")]), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_the_place_of_another_may_have_lost_the_last_records_and_all_are_read_again() {
    let server = RedisServer::start();
    let store = connected(&server.url(), AMPLE).await;
    let write = async |name: &str| store.write(tenant(66), vec![put(name, record("1", &[]))]).await.unwrap();
    write("a").await;
    let kept = write("b").await;
    let known = write("c").await;
    // The other server has never heard of the last record, and others write before anybody looks.
    let names = store.names.of(tenant(66));
    server.command(&["ZREM", &names.records(), "child:c"]);
    server.command(&["DEL", &format!("{}child:c", names.record_prefix())]);
    server.command(&["HSET", &names.version(), "newest", &kept.to_string()]);
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    server.command(&["REPLICAOF", "NO", "ONE"]);
    until("it takes records again", async || {
        store.write(tenant(66), vec![put("d", record("1", &[])), put("e", record("1", &[]))]).await.is_ok()
    })
    .await;
    for known in [kept, known] {
        assert_eq!(store.changes(tenant(66), known).await, Ok(Changes::default()), "it has lost what it had");
    }
    let found = store.changes(tenant(66), 0).await.unwrap();
    assert_eq!(names_of(&found), ["a", "b", "d", "e"]);
    let next = write("f").await;
    assert_eq!(
        (next, store.changes(tenant(66), found.version).await.unwrap().version),
        (found.version + 1, next)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_server_keeps_them_encrypted_too_and_reads_nothing_without_the_key() {
    let server = RedisServer::start();
    connected(&server.url(), AMPLE).await;
    let key: &[u8] = b"a key of thirty-two random bytes";
    let store = keyed_store(&server.url(), AMPLE, Some(key));
    until("it connects", async || store.changes(tenant(99), 0).await.is_ok()).await;
    conforms(&store).await;
    conforms_shared(&store).await;
    let secret = b"a prompt that nobody may read, nobody at all";
    store.write(tenant(50), vec![put("a", record("a body that nobody may read", &[secret]))]).await.unwrap();
    for name in server.command(&["KEYS", "*"]).lines() {
        let dump = server.command(&["DUMP", name]);
        assert!(!dump.contains("nobody may read"), "{name}");
        let digest = names::hex(&tenant(50).0);
        assert!(!name.contains(&digest[..16]), "{name} has the tenant's digest");
    }
    let unkeyed = connected(&server.url(), AMPLE).await;
    assert_eq!(unkeyed.changes(tenant(50), 0).await.unwrap().changes, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_keeps_the_promises_and_one_tenant_is_on_all_of_its_nodes() {
    let cluster = RedisCluster::start();
    let store = connected(&cluster.url(), AMPLE).await;
    conforms(&store).await;
    conforms_shared(&store).await;
    cluster.nodes.iter().for_each(|node| assert_eq!(node.command(&["FLUSHALL"]), "OK"));
    let large = prompt(1, 2_000_000);
    store.write(tenant(51), vec![put("a", record("1", &[&large]))]).await.unwrap();
    for entry in 0..30 {
        let lease = store.lease(tenant(51), &entry.to_string(), "me", AMPLE).await.unwrap();
        assert_eq!(lease, Lease::Taken);
    }
    let bytes = |node: &RedisServer| -> usize { node.command(&["DBSIZE"]).parse().unwrap() };
    let sizes: Vec<usize> = cluster.nodes.iter().map(bytes).collect();
    assert!(sizes.iter().all(|keys| *keys >= 10), "{sizes:?}");
    // A replica that is told of one node finds the others.
    let other = connected(&cluster.nodes[2].url(), AMPLE).await;
    let found = other.changes(tenant(51), 0).await.unwrap();
    assert_eq!(as_written(found), [put("a", record("1", &[&large]))]);
    assert!(other.forget(tenant(51)).await.unwrap());
    for node in &cluster.nodes {
        let left = node.command(&["KEYS", "*"]);
        let is_no_record = |name: &str| name.ends_with(":lease") || name.ends_with(":version");
        assert!(left.lines().all(is_no_record), "{left}");
    }
}

/// Changes as they were written, whatever is left of their lives.
fn as_written(mut found: Changes) -> Vec<Change> {
    for change in &mut found.changes {
        if let Change::Put(_, found) = change {
            found.ttl_ms = record("", &[]).ttl_ms;
        }
    }
    found.changes
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_replica_writes_the_other_reads_with_one_round_trip_if_nothing_is_new() {
    let server = RedisServer::start();
    let (one, other) = (connected(&server.url(), AMPLE).await, connected(&server.url(), AMPLE).await);
    let large = prompt(1, 300_000);
    one.write(tenant(52), vec![put("a", record("1", &[&large]))]).await.unwrap();
    let found = other.changes(tenant(52), 0).await.unwrap();
    let version = found.version;
    assert_eq!(as_written(found), [put("a", record("1", &[&large]))]);
    let commands = || -> u64 {
        let stats = server.command(&["INFO", "commandstats"]);
        let calls = |line: &str| line.split(['=', ',']).nth(1)?.parse::<u64>().ok();
        stats.lines().filter(|line| line.starts_with("cmdstat_evalsha")).filter_map(calls).sum()
    };
    let before = commands();
    let nothing = other.changes(tenant(52), version).await.unwrap();
    assert_eq!((nothing.changes, nothing.version), (Vec::new(), version));
    assert_eq!(commands() - before, 1);
}

/// The key of a prompt of one chunk.
fn chunk_key(server: &RedisServer, names: &TenantNames, prompt: &[u8]) -> String {
    let key = server.command(&["KEYS", &format!("*:c:*:{}", names::hex(&names.chunk_name(prompt)))]);
    assert!(!key.is_empty() && !key.contains('\n'), "{key}");
    key
}

/// The bytes of all chunks.
fn chunk_bytes(server: &RedisServer) -> usize {
    let names = server.command(&["KEYS", "*:c:*"]);
    names.lines().map(|name| server.command(&["STRLEN", name]).parse::<usize>().unwrap()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_growing_conversation_is_not_stored_whole_again() {
    let server = RedisServer::start();
    let store = connected(&server.url(), AMPLE).await;
    let mut grown = prompt(1, 1_000_000);
    store.write(tenant(53), vec![put("a", record("1", &[&grown]))]).await.unwrap();
    let first = chunk_bytes(&server);
    for turn in 2..=5 {
        grown.extend(prompt(turn, 5_000));
        let name = turn.to_string();
        store.write(tenant(53), vec![put(&name, record("1", &[&grown]))]).await.unwrap();
    }
    let after = chunk_bytes(&server);
    assert!(after < first + first / 2, "{first} bytes became {after} with 20,000 more");
    let found = store.changes(tenant(53), 0).await.unwrap();
    let Some(Change::Put(_, last)) = found.changes.last() else { panic!("{:?}", names_of(&found)) };
    assert!(last.blobs == [Bytes::from(grown)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_damaged_is_left_out_and_the_rest_is_read() {
    let server = RedisServer::start();
    let store = connected(&server.url(), AMPLE).await;
    let prompts = [1, 2, 3, 4].map(|seed| prompt(seed, 10_000));
    for (name, prompt) in ["a", "b", "c", "d", "e"].iter().zip(prompts.iter().chain([&Vec::new()])) {
        store.write(tenant(54), vec![put(name, record("1", &[prompt]))]).await.unwrap();
    }
    let records = server.command(&["KEYS", "*:r:child:*"]);
    let named = |name: &str| records.lines().find(|key| key.ends_with(name)).unwrap().to_owned();
    server.command(&["SET", &named(":a"), "garbage", "PX", "60000"]);
    server.command(&["DEL", &named(":b")]);
    server.command(&["LPUSH", &named(":b"), "a list"]);
    let names = store.names.of(tenant(54));
    let chunk = |prompt: &[u8]| chunk_key(&server, &names, prompt);
    server.command(&["SET", &chunk(&prompts[2]), "garbage"]);
    server.command(&["DEL", &chunk(&prompts[3])]);
    server.command(&["ZADD", &names.records(), "1", "not a record"]);
    // It has none of the chunks in its memory.
    let other = connected(&server.url(), AMPLE).await;
    let found = other.changes(tenant(54), 0).await.unwrap();
    assert_eq!((names_of(&found), found.damaged), (vec!["e"], 4));
    server.command(&["DEL", &names.records()]);
    server.command(&["SET", &names.records(), "a string"]);
    assert_eq!(other.changes(tenant(54), 0).await, Err(StoreError::Garbage));
    assert_eq!(other.write(tenant(54), vec![put("f", record("1", &[]))]).await, Err(StoreError::Garbage));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_is_far_too_large_is_not_fetched() {
    let server = RedisServer::start();
    let store = connected(&server.url(), AMPLE).await;
    let names = store.names.of(tenant(55));
    store
        .write(tenant(55), vec![put("a", record("1", &[b"a prompt"])), put("b", record("2", &[]))])
        .await
        .unwrap();
    server.command(&["SETRANGE", &chunk_key(&server, &names, b"a prompt"), "100000000", "x"]);
    server.command(&["SETRANGE", &format!("{}child:b", names.record_prefix()), "100000000", "x"]);
    let other = connected(&server.url(), AMPLE).await;
    assert_eq!(other.changes(tenant(55), 0).await.unwrap().changes, []);
    let sent: u64 = {
        let stats = server.command(&["INFO", "stats"]);
        let line = stats.lines().find(|line| line.starts_with("total_net_output_bytes:")).unwrap();
        line.split(':').nth(1).unwrap().trim().parse().unwrap()
    };
    assert!(sent < 5_000_000, "{sent} bytes were sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_server_is_down_at_once_and_serves_again_when_it_is_back_empty() {
    let mut server = RedisServer::start();
    let store = connected(&server.url(), AMPLE).await;
    let before = store.write(tenant(56), vec![put("a", record("1", &[]))]).await.unwrap();
    server.kill();
    assert_eq!(store.changes(tenant(56), 0).await, Err(StoreError::Down));
    let began = Instant::now();
    for _ in 0..100 {
        assert_eq!(store.changes(tenant(56), 0).await, Err(StoreError::Down));
        assert_eq!(store.lease(tenant(56), "e", "me", AMPLE).await, Err(StoreError::Down));
    }
    assert!(began.elapsed() < AMPLE / 2, "nobody waits for a server that is down");
    server.restart();
    until("it is there again", async || store.changes(tenant(56), 0).await.is_ok()).await;
    assert_eq!(store.changes(tenant(56), before).await, Ok(Changes::default()), "it has lost what it had");
    store.write(tenant(56), vec![put("b", record("2", &[b"a prompt"]))]).await.unwrap();
    assert_eq!(store.changes(tenant(56), before).await, Ok(Changes::default()), "also if others wrote since");
    let found = store.changes(tenant(56), 0).await.unwrap();
    assert_eq!(names_of(&found), ["b"]);
    let yet_to_come = found.version + 1;
    assert_eq!(store.changes(tenant(56), yet_to_come).await, Ok(Changes::default()), "it was set back");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_there_yet_is_found_when_it_comes() {
    let mut server = RedisServer::start();
    server.kill();
    let store = store(&server.url(), AMPLE);
    assert_eq!(store.changes(tenant(57), 0).await, Err(StoreError::Down));
    server.restart();
    until("it is found", async || store.changes(tenant(57), 0).await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_server_is_slow_within_the_deadline_and_serves_again() {
    let server = RedisServer::start();
    let store = connected(&server.url(), SHORT).await;
    server.pause();
    let began = Instant::now();
    assert_eq!(store.changes(tenant(58), 0).await, Err(StoreError::Slow));
    assert_eq!(store.write(tenant(58), vec![put("a", record("1", &[]))]).await, Err(StoreError::Slow));
    assert_eq!(store.lease(tenant(58), "e", "me", AMPLE).await, Err(StoreError::Slow));
    assert!(began.elapsed() >= 3 * SHORT);
    server.resume();
    until("it answers", async || store.changes(tenant(58), 0).await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_nothing_is_read_only_and_is_still_read() {
    let server = RedisServer::start();
    let store = connected(&server.url(), AMPLE).await;
    store.write(tenant(59), vec![put("a", record("1", &[b"a prompt"]))]).await.unwrap();
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let write = || store.write(tenant(59), vec![put("b", record("1", &[]))]);
    assert_eq!(write().await, Err(StoreError::ReadOnly));
    until("it is read", async || {
        store.changes(tenant(59), 0).await.is_ok_and(|found| names_of(&found) == ["a"])
    })
    .await;
    server.command(&["REPLICAOF", "NO", "ONE"]);
    until("it takes records again", async || write().await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_says_so_and_writes_no_record_in_part() {
    let server = RedisServer::start_with(&["--maxmemory", "3mb", "--maxmemory-policy", "noeviction"]);
    let store = connected(&server.url(), AMPLE).await;
    store.write(tenant(60), vec![put("a", record("1", &[]))]).await.unwrap();
    let large = prompt(1, 20_000_000);
    let both = || vec![put("b", record("2", &[&large])), put("c", record("3", &[]))];
    assert_eq!(store.write(tenant(60), both()).await, Err(StoreError::Full));
    assert_eq!(names_of(&store.changes(tenant(60), 0).await.unwrap()), ["a"]);
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(store.write(tenant(60), vec![put("c", record("3", &[]))]).await, Err(StoreError::Full));
    assert_eq!(store.lease(tenant(60), "e", "me", AMPLE).await, Err(StoreError::Full));
    assert_eq!(names_of(&store.changes(tenant(60), 0).await.unwrap()), ["a"]);
    // What is there can still be forgotten, and makes room.
    assert!(store.forget(tenant(60)).await.unwrap());
    server.command(&["CONFIG", "SET", "maxmemory", "50mb"]);
    store.write(tenant(60), both()).await.unwrap();
    let (found, pages) = all(&store, tenant(60)).await;
    assert_eq!((names_of(&found), pages), (vec!["b", "c"], 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_down_and_the_right_one_connects() {
    let server = RedisServer::start_with(&["--requirepass", "right"]);
    let url = |password: &str| format!("redis://:{password}@127.0.0.1:{}", server.port);
    let refused = store(&url("wrong"), AMPLE);
    connected(&url("right"), AMPLE).await;
    assert_eq!(refused.changes(tenant(61), 0).await, Err(StoreError::Down));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_belongs_to_one_owner_until_it_ends_or_is_given_back() {
    let server = RedisServer::start();
    let (one, other) = (connected(&server.url(), AMPLE).await, connected(&server.url(), AMPLE).await);
    let take = async |store: &RedisStore, owner: &str, hold: Duration| {
        store.lease(tenant(62), "entry", owner, hold).await.unwrap()
    };
    assert_eq!(take(&one, "a", AMPLE).await, Lease::Taken);
    assert_eq!(take(&one, "a", AMPLE).await, Lease::Taken, "it is its own");
    assert_eq!(take(&other, "b", AMPLE).await, Lease::Held);
    assert_eq!(one.lease(tenant(63), "entry", "b", AMPLE).await, Ok(Lease::Taken), "another tenant's");
    other.release(tenant(62), "entry", "b", None).await.unwrap();
    assert_eq!(take(&other, "b", AMPLE).await, Lease::Held, "nobody gives back another's");
    one.release(tenant(62), "entry", "a", None).await.unwrap();
    assert_eq!(take(&other, "b", SHORT).await, Lease::Taken);
    until("a dead owner's lease ends", async || take(&one, "a", AMPLE).await == Lease::Taken).await;
    // The late one has lost it, and takes nothing away.
    other.release(tenant(62), "entry", "b", Some(AMPLE)).await.unwrap();
    assert_eq!(take(&other, "b", AMPLE).await, Lease::Held);
    one.release(tenant(62), "entry", "a", Some(SHORT)).await.unwrap();
    assert_eq!(take(&other, "b", AMPLE).await, Lease::Written);
    until("nobody is told any more", async || take(&other, "b", AMPLE).await == Lease::Taken).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_streams_takes_a_lease_over_from_a_whole_answer_and_prolongs_its_own() {
    let server = RedisServer::start();
    let store = connected(&server.url(), AMPLE).await;
    let take =
        async |owner: &str, hold: Duration| store.lease(tenant(66), "entry", owner, hold).await.unwrap();
    assert_eq!(take("ja", AMPLE).await, Lease::Taken);
    assert_eq!(take("jb", AMPLE).await, Lease::Held);
    assert_eq!(take("sc", AMPLE).await, Lease::Taken);
    assert_eq!((take("ja", AMPLE).await, take("sd", AMPLE).await), (Lease::Held, Lease::Held));
    let left_ms = || -> u64 {
        let name = server.command(&["KEYS", "*:lease"]);
        server.command(&["PTTL", &name]).parse().unwrap()
    };
    assert!(left_ms() <= AMPLE.as_millis() as u64);
    assert_eq!(take("sc", 2 * AMPLE).await, Lease::Taken);
    assert!(left_ms() > AMPLE.as_millis() as u64, "whoever waits for another entry keeps it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_that_loses_a_node_serves_the_tenants_of_the_others() {
    let mut cluster = RedisCluster::start();
    let store = connected(&cluster.url(), AMPLE).await;
    // The node of a tenant's records.
    let node = |number: u8| -> u64 {
        let name = Names::new(None).of(tenant(number)).records();
        cluster.nodes[0].command(&["CLUSTER", "KEYSLOT", &name]).parse::<u64>().unwrap() / 5_462
    };
    let (mut lost, mut left): (Vec<u8>, Vec<u8>) = (100..130).partition(|number| node(*number) == 2);
    lost.truncate(3);
    left.truncate(6);
    for number in lost.iter().chain(&left) {
        store.write(tenant(*number), vec![put("a", record("1", &[]))]).await.unwrap();
    }
    cluster.nodes[2].kill();
    for _ in 0..3 {
        for number in &lost {
            assert!(store.changes(tenant(*number), 0).await.is_err());
        }
        for number in &left {
            let found = store.changes(tenant(*number), 0).await;
            assert_eq!(found.as_ref().map(names_of), Ok(vec!["a"]), "tenant {number}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_that_ask_at_once_one_gets_the_lease() {
    let server = RedisServer::start();
    let store = connected(&server.url(), AMPLE).await;
    let ask = (0..50).map(|owner| {
        let store = &store;
        async move { store.lease(tenant(64), "entry", &owner.to_string(), AMPLE).await.unwrap() }
    });
    let taken = futures_util::future::join_all(ask).await;
    assert_eq!(taken.iter().filter(|lease| **lease == Lease::Taken).count(), 1);
}
