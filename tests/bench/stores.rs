//! What a store of records costs beside the memory of the process: the time of a write and of a load, bytes on disk, and
//! the time to open a folder whose process was killed. `tests/deep store` calls it.

// A bench may fail loudly.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

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
use forkpoint::store::seal::Seal;
use futures_util::future::BoxFuture;

const ROUNDS: u64 = 200;
const PROMPT: usize = 1_000_000;
const FOLDER: &str = "FORKPOINT_BENCH_FOLDER";

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
        Box::pin(async { Ok(Changes { changes, version: 1, has_more: false }) })
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
        seal: Seal::new(Some(b"a key of a bench, with 32 bytes...")),
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
    // On a disk: what is below /tmp may lie in memory.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    println!("| store | call | p50 ms | p99 ms |\n|---|---|---|---|");
    measure(&Memory::default()).await;
    let store = open(folder.path()).await;
    measure(&store).await;
    store.close().await;
    let per_point = bytes_on_disk(folder.path()) / ROUNDS;
    println!("\nbytes on disk of a fork point of {PROMPT} bytes, its child and 2 KB more: {per_point}");
    let mut opened = Vec::new();
    for _ in 0..20 {
        opened.push(open_after_kill(folder.path()).await);
    }
    opened.sort();
    println!(
        "open after kill -9, ms: p50 {}, most {}",
        milliseconds(&opened, 0.5),
        milliseconds(&opened, 1.0)
    );
}
