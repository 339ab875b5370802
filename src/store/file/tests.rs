use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tempfile::TempDir;

use super::*;
use crate::engine::records::Record;
use crate::engine::words::RecordKind;
use crate::store::records::Place;
use crate::store::tests::conformance::{conforms, key, record, tenant};

mod crash;
mod damage;
mod golden;
mod handover;
mod limits;
mod whole;

const MIB: u64 = 1 << 20;
const KEY: &[u8] = b"0123456789abcdef0123456789abcdef";

/// A store in a folder, as it is configured by default.
fn options(path: &Path) -> Options {
    Options {
        place: Place::File(path.to_owned()),
        seal: Seal::new(None),
        max_bytes: 256 * MIB,
        tenant_share: 0.25,
        deadline: Duration::from_millis(50),
        // A process that another test starts has the files of this one until it runs its own program.
        lock_wait: Duration::from_secs(20),
        max_age: Duration::from_secs(7 * 24 * 3600),
    }
}

fn keyed(path: &Path, key: &[u8]) -> Options {
    Options { seal: Seal::new(Some(key)), ..options(path) }
}

async fn open_with(options: Options) -> Result<FileStore, StoreError> {
    let Place::File(path) = &options.place else { panic!("not a folder") };
    FileStore::open(path.clone(), options).await
}

async fn open(path: &Path) -> FileStore {
    open_with(options(path)).await.unwrap()
}

/// A record of its own kind and name, with prompts.
fn put(name: &str, text: &str, prompts: &[&[u8]]) -> Change {
    Change::Put(key(RecordKind::Child, name), record(text, prompts))
}

fn delete(name: &str) -> Change {
    Change::Delete(key(RecordKind::Child, name))
}

/// The names, bodies and prompts of a tenant's records.
async fn all(store: &FileStore, number: u8) -> Vec<(String, Bytes, Vec<Bytes>)> {
    let changes = store.changes(tenant(number), 0).await.unwrap().changes;
    changes
        .into_iter()
        .map(|change| match change {
            Change::Put(key, record) => (key.name, record.body, record.blobs),
            Change::Delete(key) => panic!("{key:?} is deleted, and was told"),
        })
        .collect()
}

async fn names(store: &FileStore, number: u8) -> Vec<String> {
    all(store, number).await.into_iter().map(|(name, ..)| name).collect()
}

fn files(path: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn prompts(folder: &Path) -> Vec<String> {
    files(&folder.join("prompts"))
}

/// Waits until something holds.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < Duration::from_secs(20), "{what}: not within 20 s");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn records_in_a_folder_keep_the_promises_of_a_store() {
    let folder = TempDir::new().unwrap();
    let store = open(folder.path()).await;
    conforms(&store).await;
    store.close().await;
    whole::check(folder.path(), Seal::new(None));
}

#[tokio::test]
async fn encrypted_records_in_a_folder_keep_the_promises_of_a_store() {
    let folder = TempDir::new().unwrap();
    let store = open_with(keyed(folder.path(), KEY)).await.unwrap();
    conforms(&store).await;
    store.close().await;
    whole::check(folder.path(), Seal::new(Some(KEY)));
}

#[tokio::test]
async fn what_was_written_is_there_after_a_restart_with_the_same_version() {
    let folder = TempDir::new().unwrap();
    let store = open(folder.path()).await;
    let changes = vec![put("a", "1", &[b"a prompt"]), put("b", "2", &[b"a prompt", b""])];
    let version = store.write(tenant(1), changes).await.unwrap();
    let before = all(&store, 1).await;
    store.close().await;
    let store = open(folder.path()).await;
    assert_eq!(all(&store, 1).await, before);
    assert_eq!(store.changes(tenant(1), 0).await.unwrap().version, version);
    assert_eq!(store.write(tenant(1), vec![put("a", "1", &[])]).await.unwrap(), version + 1);
}

#[tokio::test]
async fn only_its_user_may_look_into_the_folder() {
    let parent = TempDir::new().unwrap();
    let folder = parent.path().join("made/by/the/store");
    let store = open(&folder).await;
    store.write(tenant(1), vec![put("a", "1", &[b"a prompt"])]).await.unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for name in [".", "prompts", "journals"] {
        assert_eq!(mode(&folder.join(name)), 0o700, "{name}");
    }
    let prompt = folder.join("prompts").join(&prompts(&folder)[0]);
    for file in [folder.join("records.redb"), folder.join("lock"), prompt] {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
}

/// All bytes of all files.
fn everything(folder: &Path) -> Vec<u8> {
    let mut bytes = fs::read(folder.join("records.redb")).unwrap();
    for name in prompts(folder) {
        bytes.extend(name.as_bytes());
        bytes.extend(fs::read(folder.join("prompts").join(name)).unwrap());
    }
    bytes
}

#[tokio::test]
async fn with_a_key_no_file_holds_a_word_and_two_tenants_share_no_file() {
    let folder = TempDir::new().unwrap();
    let store = open_with(keyed(folder.path(), KEY)).await.unwrap();
    for number in [1, 2] {
        store.write(tenant(number), vec![put("a", "confidential", &[b"a secret prompt"])]).await.unwrap();
    }
    assert_eq!(prompts(folder.path()).len(), 2);
    store.close().await;
    let bytes = everything(folder.path());
    for word in [&b"confidential"[..], b"secret", &tenant(1).0] {
        assert!(!bytes.windows(word.len()).any(|window| window == word));
    }
    let known = blake3::hash(b"a secret prompt").to_hex();
    assert!(!prompts(folder.path()).contains(&known.to_string()), "a name tells what it names");
}

#[tokio::test]
async fn another_key_knows_nothing_and_the_first_key_knows_it_again() {
    let folder = TempDir::new().unwrap();
    let store = open_with(keyed(folder.path(), KEY)).await.unwrap();
    store.write(tenant(1), vec![put("a", "1", &[b"a prompt"])]).await.unwrap();
    store.close().await;
    for seal in [Seal::new(Some(b"another key")), Seal::new(None)] {
        let store = open_with(Options { seal, ..options(folder.path()) }).await.unwrap();
        assert_eq!(all(&store, 1).await, []);
        store.write(tenant(1), vec![put("b", "2", &[b"a prompt"])]).await.unwrap();
        assert_eq!(names(&store, 1).await, ["b"]);
        store.close().await;
    }
    let store = open_with(keyed(folder.path(), KEY)).await.unwrap();
    assert_eq!(names(&store, 1).await, ["a"]);
}

#[tokio::test]
async fn siblings_share_one_file_and_it_goes_with_the_last() {
    let folder = TempDir::new().unwrap();
    let store = open(folder.path()).await;
    let prefix: &[u8] = b"the prefix of two siblings";
    store.write(tenant(1), vec![put("a", "1", &[prefix]), put("b", "2", &[prefix])]).await.unwrap();
    assert_eq!(prompts(folder.path()).len(), 1);
    store.write(tenant(1), vec![delete("a"), put("b", "3", &[prefix])]).await.unwrap();
    assert_eq!(prompts(folder.path()).len(), 1);
    // Gone and back in one transaction.
    store.write(tenant(1), vec![delete("b"), put("c", "4", &[prefix])]).await.unwrap();
    assert_eq!(all(&store, 1).await[0].2, [prefix]);
    store.write(tenant(1), vec![delete("c")]).await.unwrap();
    assert_eq!(prompts(folder.path()), [""; 0]);
}

#[tokio::test]
async fn versions_count_changes_and_never_come_back() {
    let folder = TempDir::new().unwrap();
    let store = open(folder.path()).await;
    for number in [1, 2] {
        let first = store.write(tenant(number), vec![put("a", "1", &[]), put("b", "2", &[])]).await.unwrap();
        let second =
            store.write(tenant(number), vec![delete("a"), put("c", "3", &[]), delete("ff")]).await.unwrap();
        assert_eq!((first, second), (2, 4));
    }
    assert!(store.forget(tenant(1)).await.unwrap());
    let again = store.write(tenant(1), vec![put("a", "1", &[])]).await.unwrap();
    assert_eq!(store.changes(tenant(1), 4).await.unwrap().changes.len(), 1, "version {again} came back");
}
