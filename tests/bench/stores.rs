//! What a store of records costs beside the memory of the process: the time of a write and of a load, the bytes of a
//! conversation that fans out again and again, the time to open a folder whose process was killed, what it adds to
//! requests and how soon it has a fan-out, and fan-outs a second on two replicas. `tests/deep store` calls it.

// A bench may fail loudly.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "stores/fleet.rs"]
mod fleet;
#[path = "stores/requests.rs"]
mod requests;
#[path = "../it/harness/redis.rs"]
#[allow(dead_code, reason = "tests need more of it")]
mod redis;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forkpoint::engine::records::{Change, Record, RecordKey};
use forkpoint::engine::words::{RecordKind, StoreError, TenantId};
use forkpoint::store::file::FileStore;
use forkpoint::store::records::{Changes, Options, Place, RecordStore};
use forkpoint::store::redis::{RedisAddress, RedisOptions, RedisStore};
use forkpoint::store::seal::Seal;
use futures_util::future::BoxFuture;

const ROUNDS: u64 = 200;
const PROMPT: usize = 1_000_000;
const FOLDER: &str = "FORKPOINT_BENCH_FOLDER";
const KEY: &[u8] = b"a key of a bench, with 32 bytes...";
/// The fan-outs of one conversation, the children of each, and the bytes by which it grows between two.
const POINTS: u64 = 10;
const CHILDREN: u64 = 3;
const GROWTH: usize = 20_000;

/// Records in memory, whole and open.
#[derive(Default)]
struct Memory(Mutex<BTreeMap<TenantId, BTreeMap<RecordKey, Record>>>);

impl RecordStore for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn changes(&self, tenant: TenantId, _after: u64) -> BoxFuture<'_, Result<Changes, StoreError>> {
        let tenants = self.0.lock().unwrap();
        let records = tenants.get(&tenant).into_iter().flatten();
        let changes = records.map(|(key, record)| Change::Put(key.clone(), record.clone())).collect();
        Box::pin(async { Ok(Changes { changes, version: 1, ..Changes::default() }) })
    }

    fn write(&self, tenant: TenantId, changes: Vec<Change>) -> BoxFuture<'_, Result<u64, StoreError>> {
        let mut tenants = self.0.lock().unwrap();
        let records = tenants.entry(tenant).or_default();
        for change in changes {
            match change {
                Change::Put(key, record) => records.insert(key, record),
                Change::Delete(key) => records.remove(&key),
            };
        }
        Box::pin(async { Ok(1) })
    }

    fn forget(&self, tenant: TenantId) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move { Ok(self.0.lock().unwrap().remove(&tenant).is_some()) })
    }
}

/// A prompt of one megabyte, as repetitive as code and prose are.
fn prompt(seed: u64) -> Bytes {
    const WORDS: &[&str] = &[
        "the ",
        "parser ",
        "returns ",
        "a span ",
        "of bytes, ",
        "fn ",
        "let ",
        "self.",
        "cache ",
        "() {\\n    ",
        "if ",
        "tests/it/",
        "main.rs:",
        "error ",
        "expected ",
        "tenant ",
        "prefix ",
        "`",
        "0x",
        "and ",
        "is not ",
        "\\\"",
    ];
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut text = String::with_capacity(PROMPT + 32);
    while text.len() < PROMPT {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.push_str(WORDS[(state >> 33) as usize % WORDS.len()]);
        if state >> 61 == 0 {
            text.push_str(&format!("{:x}", state >> 20));
        }
    }
    text.into()
}

fn tenant(number: u64) -> TenantId {
    TenantId(*blake3::hash(&number.to_le_bytes()).as_bytes())
}

fn put(kind: RecordKind, name: u64, body: usize, blobs: Vec<Bytes>) -> Vec<Change> {
    let body = format!(r#"{{"v":1,"text":"{}"}}"#, "a claim, a turn, an id ".repeat(body / 23));
    let record = Record { group: None, body: body.into(), blobs, ttl_ms: 3_600_000 };
    vec![Change::Put(RecordKey::new(kind, &format!("{name:x}")).unwrap(), record)]
}

/// The time that each of many calls takes.
async fn times(mut call: impl AsyncFnMut(u64)) -> Vec<Duration> {
    let mut times = Vec::new();
    for round in 0..ROUNDS {
        let began = Instant::now();
        call(round).await;
        times.push(began.elapsed());
    }
    sorted(&times)
}

fn sorted(times: &[Duration]) -> Vec<Duration> {
    let mut times = times.to_vec();
    times.sort();
    times
}

fn milliseconds(times: &[Duration], share: f64) -> String {
    let at = (times.len() as f64 * share) as usize;
    format!("{:.3}", times[at.min(times.len() - 1)].as_secs_f64() * 1000.0)
}

async fn measure(store: &dyn RecordStore) {
    let row = |what: &str, times: Vec<Duration>| {
        let [half, most] = [milliseconds(&times, 0.5), milliseconds(&times, 0.99)];
        println!("| {} | {what} | {half} | {most} |", store.name());
    };
    let prompts: Vec<Bytes> = (0..ROUNDS).map(prompt).collect();
    let fork_point = async |round: u64| {
        let changes = put(RecordKind::ForkPoint, 0, 2_000, vec![prompts[round as usize].clone()]);
        store.write(tenant(round), changes).await.unwrap();
    };
    row("record: a fork point with a new prompt of 1 MB", times(fork_point).await);
    let child = async |round: u64| {
        let changes = put(RecordKind::Child, 1, 2_000, vec![prompts[round as usize].clone()]);
        store.write(tenant(round), changes).await.unwrap();
    };
    row("record: a child on a prompt of 1 MB that is there", times(child).await);
    let small = async |round: u64| {
        store.write(tenant(round), put(RecordKind::Learned, 2, 2_000, Vec::new())).await.unwrap();
    };
    row("record: 2 KB", times(small).await);
    let recall = async |round: u64| {
        assert_eq!(store.changes(tenant(round), 0).await.unwrap().changes.len(), 3);
    };
    row("recall: a tenant with a fork point and a child, 1 MB", times(recall).await);
    let stranger = async |round: u64| {
        assert_eq!(store.changes(tenant(ROUNDS + round), 0).await.unwrap().changes.len(), 0);
    };
    row("recall: a tenant that nothing is known of", times(stranger).await);
}

async fn open(folder: &Path) -> FileStore {
    let options = Options {
        place: Place::File(folder.to_owned()),
        seal: Seal::new(Some(KEY)),
        max_bytes: 1 << 30,
        tenant_share: 1.0,
        deadline: Duration::from_millis(50),
        lock_wait: Duration::from_secs(10),
        max_age: Duration::from_secs(3600),
    };
    FileStore::open(folder.to_owned(), options).await.unwrap()
}

fn bytes_on_disk(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| match entry.metadata().unwrap() {
            found if found.is_dir() => bytes_on_disk(&entry.path()),
            found => found.blocks() * 512,
        })
        .sum()
}

/// A store in this Redis, once it has connected.
async fn connected(server: &redis::RedisServer) -> RedisStore {
    let store = RedisStore::open(RedisOptions {
        address: RedisAddress::parse(&server.url()).unwrap(),
        key: Some(KEY.to_vec()),
        deadline: Duration::from_secs(5),
        max_age: Duration::from_secs(3600),
        tenant_bytes: 1 << 30,
    });
    while store.changes(tenant(u64::MAX), 0).await.is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    store
}

fn bytes_in_redis(server: &redis::RedisServer) -> u64 {
    let info = server.command(&["INFO", "memory"]);
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    used.unwrap().trim().parse().unwrap()
}

/// Is there a `redis-server`?
fn has_redis() -> bool {
    let found = Command::new("redis-server").arg("--version").stdout(Stdio::null()).status();
    found.is_ok_and(|status| status.success())
}

/// The prompts of a conversation at each of its fan-outs: each is the one before and some more.
fn growing() -> Vec<Bytes> {
    let whole = prompt(u64::MAX);
    let from = PROMPT - POINTS as usize * GROWTH;
    (0..POINTS as usize).map(|point| whole.slice(..from + point * GROWTH)).collect()
}

/// Writes the fan-outs of a growing conversation: of each the fork point, and its children on the same prompt.
async fn grow(store: &dyn RecordStore, of: TenantId) {
    for (point, prompt) in (0..POINTS).zip(growing()) {
        let name = point * (CHILDREN + 1);
        store.write(of, put(RecordKind::ForkPoint, name, 2_000, vec![prompt.clone()])).await.unwrap();
        for child in 1..=CHILDREN {
            let changes = put(RecordKind::Child, name + child, 2_000, vec![prompt.clone()]);
            store.write(of, changes).await.unwrap();
        }
    }
}

/// The bytes of one of these fan-outs if each record were stored with all that belongs to it, compressed and encrypted.
fn whole_bytes() -> u64 {
    let seal = Seal::new(Some(KEY));
    let records = growing().into_iter().flat_map(|prompt| vec![prompt; 1 + CHILDREN as usize]);
    let sealed = records.map(|prompt| {
        let changes = put(RecordKind::Child, 0, 2_000, vec![prompt]);
        let Some(Change::Put(_, record)) = changes.first() else { panic!("no record") };
        seal.close(b"a record", &[&record.body[..], &record.blobs[0]].concat()).len() as u64
    });
    sealed.sum::<u64>() / POINTS
}

/// Kills a process that writes to the folder, and returns how long it takes to open it then.
async fn open_after_kill(folder: &Path) -> Duration {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let mut child = command.env(FOLDER, folder).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    std::thread::sleep(Duration::from_millis(30));
    child.kill().unwrap();
    child.wait().unwrap();
    let began = Instant::now();
    let store = open(folder).await;
    let took = began.elapsed();
    store.close().await;
    took
}

async fn write_for_ever(folder: &Path) {
    let store = open(folder).await;
    println!("begun");
    for round in 0.. {
        store.write(tenant(0), put(RecordKind::Child, round % 50, 2_000, vec![prompt(round)])).await.unwrap();
    }
}

#[tokio::main]
async fn main() {
    if let Ok(folder) = std::env::var(FOLDER) {
        return write_for_ever(Path::new(&folder)).await;
    }
    // `cargo test --all-targets` runs benches too, without arguments.
    if !std::env::args().any(|word| word == "--bench") {
        return println!("nothing to test here; `tests/deep store` measures");
    }
    let server = has_redis().then(redis::RedisServer::start);
    if server.is_none() {
        println!("redis-server is not installed: nothing is said of redis");
    }
    // On a disk: what is below /tmp may lie in memory.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    println!("| store | call | p50 ms | p99 ms |\n|---|---|---|---|");
    measure(&Memory::default()).await;
    let store = open(folder.path()).await;
    measure(&store).await;
    if let Some(server) = &server {
        measure(&connected(server).await).await;
        server.command(&["FLUSHALL"]);
    }
    println!(
        "\nOne of {POINTS} fan-outs with {CHILDREN} children, the last on {PROMPT} bytes, each {GROWTH} bytes longer:\n"
    );
    println!("| stored | bytes of a fan-out |\n|---|---|\n| each record whole | {} |", whole_bytes());
    let before = bytes_on_disk(folder.path());
    grow(&store, tenant(u64::MAX)).await;
    store.close().await;
    println!("| file | {} |", bytes_on_disk(folder.path()).saturating_sub(before) / POINTS);
    if let Some(server) = &server {
        let store = connected(server).await;
        let before = bytes_in_redis(server);
        grow(&store, tenant(u64::MAX)).await;
        println!("| redis, in its memory | {} |", bytes_in_redis(server).saturating_sub(before) / POINTS);
        server.command(&["FLUSHALL"]);
    }
    let mut opened = Vec::new();
    for _ in 0..20 {
        opened.push(open_after_kill(folder.path()).await);
    }
    opened.sort();
    println!(
        "\nopen after kill -9, ms: p50 {}, most {}\n",
        milliseconds(&opened, 0.5),
        milliseconds(&opened, 1.0)
    );
    requests::measure(folder.path(), server.as_ref()).await;
    if let Some(server) = &server {
        server.command(&["FLUSHALL"]);
        fleet::measure(server).await;
    }
}
