//! A folder as the first version wrote it. Later versions read it: it was written once, with `UPDATE=1`, and never is again.

use super::*;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/store/file-v1");
const DATABASE: &str = "records.redb.zst";

/// The kinds of the first version.
const KINDS: [RecordKind; 6] = [
    RecordKind::ForkPoint,
    RecordKind::Child,
    RecordKind::Spelling,
    RecordKind::Worlds,
    RecordKind::Learned,
    RecordKind::Thread,
];

/// Far beyond the life of this code.
fn for_ever(path: &Path) -> Options {
    Options { max_age: Duration::MAX, ..keyed(path, KEY) }
}

fn lasting(text: &str, group: Option<&str>, prompts: &[&[u8]]) -> Record {
    let group = group.map(str::to_owned);
    Record { ttl_ms: 1 << 45, group, ..record(text, prompts) }
}

/// What the folder holds, and what its journal adds.
fn changes() -> [Vec<Change>; 2] {
    let prefix = b"the prompt of a parent and its children ".repeat(100);
    let of_kind = |kind: RecordKind| {
        let record = lasting(kind.as_str(), Some("00ff"), &[&prefix, kind.as_str().as_bytes()]);
        Change::Put(key(kind, "0a"), record)
    };
    let journal = Change::Put(key(RecordKind::Child, "0b"), lasting("late", None, &[&prefix]));
    [KINDS.into_iter().map(of_kind).collect(), vec![journal]]
}

#[tokio::test]
async fn a_folder_of_the_first_version_is_read() {
    if std::env::var_os("UPDATE").is_some() && !Path::new(FOLDER).exists() {
        write_folder(Path::new(FOLDER)).await;
    }
    let folder = TempDir::new().unwrap();
    for sub in ["prompts", "journals"] {
        fs::create_dir(folder.path().join(sub)).unwrap();
        for name in files(&Path::new(FOLDER).join(sub)) {
            fs::copy(Path::new(FOLDER).join(sub).join(&name), folder.path().join(sub).join(&name)).unwrap();
        }
    }
    let database = fs::read(Path::new(FOLDER).join(DATABASE)).unwrap();
    let database = zstd::bulk::decompress(&database, 64 << 20).unwrap();
    fs::write(folder.path().join("records.redb"), database).unwrap();

    let store = open_with(for_ever(folder.path())).await.unwrap();
    let mut found = store.changes(tenant(1), 0).await.unwrap().changes;
    for change in &mut found {
        if let Change::Put(_, record) = change {
            record.ttl_ms = 1 << 45;
        }
    }
    assert_eq!(found, changes().concat());
    store.write(tenant(1), vec![put("0c", "new", &[])]).await.unwrap();
    store.close().await;
    whole::check(folder.path(), Seal::new(Some(KEY)));
}

async fn write_folder(folder: &Path) {
    let store = open_with(for_ever(folder)).await.unwrap();
    let [records, late] = changes();
    store.write(tenant(1), records).await.unwrap();
    store.hand_over().await;
    store.write(tenant(1), late).await.unwrap();
    store.close().await;
    let database = fs::read(folder.join("records.redb")).unwrap();
    fs::write(folder.join(DATABASE), zstd::bulk::compress(&database, 19).unwrap()).unwrap();
    fs::remove_file(folder.join("records.redb")).unwrap();
    fs::remove_file(folder.join("lock")).unwrap();
}
