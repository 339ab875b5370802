//! Bytes, time, the lock, and a disk that is full.

use std::process::Command;

use super::*;

const DISK: &str = "FORKPOINT_TEST_DISK";

/// Bytes that do not compress.
fn filler(seed: u64, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

#[tokio::test]
async fn a_folder_that_stays_locked_is_left_alone() {
    let folder = TempDir::new().unwrap();
    let first = open(folder.path()).await;
    let wait = Duration::from_millis(60);
    let second = open_with(Options { lock_wait: wait, ..options(folder.path()) }).await;
    assert_eq!(second.err(), Some(StoreError::Locked));
    first.write(tenant(1), vec![put("a", "1", &[])]).await.unwrap();
    assert_eq!(names(&first, 1).await, ["a"]);
}

#[tokio::test]
async fn the_tenant_that_has_most_gives_its_oldest() {
    let folder = TempDir::new().unwrap();
    let limits = Options { max_bytes: 4 * MIB, tenant_share: 1.0, ..options(folder.path()) };
    let store = open_with(limits).await.unwrap();
    store.write(tenant(1), vec![put("a", "quiet", &[b"a prompt"])]).await.unwrap();
    for number in 0..60_u64 {
        let prompt = filler(number, 200_000);
        store.write(tenant(2), vec![put(&format!("{number:x}"), "busy", &[&prompt])]).await.unwrap();
        assert!(store.bytes().unwrap() <= 4 * MIB);
    }
    assert_eq!(names(&store, 1).await, ["a"]);
    let left = names(&store, 2).await;
    let newest: Vec<String> = (60 - left.len()..60).map(|number| format!("{number:x}")).collect();
    assert!(left.len() > 10 && left == newest, "{left:?}");
    assert_eq!(prompts(folder.path()).len(), left.len() + 1);
    store.close().await;
    whole::check(folder.path(), Seal::new(None));
}

#[tokio::test]
async fn a_tenant_keeps_to_its_share_and_what_is_larger_is_refused() {
    let folder = TempDir::new().unwrap();
    let limits = Options { max_bytes: 4 * MIB, tenant_share: 0.25, ..options(folder.path()) };
    let store = open_with(limits).await.unwrap();
    for number in 0..20_u64 {
        let prompt = filler(number, 100_000);
        store.write(tenant(1), vec![put(&format!("{number:x}"), "1", &[&prompt])]).await.unwrap();
    }
    let left = names(&store, 1).await;
    assert!((8..=10).contains(&left.len()), "{left:?}");
    let refused = store.write(tenant(1), vec![put("ff", "1", &[&filler(99, 1 << 20)])]).await;
    assert_eq!(refused, Err(StoreError::Full));
    assert_eq!(names(&store, 1).await, left);
    assert_eq!(prompts(folder.path()).len(), left.len());
    store.close().await;
    whole::check(folder.path(), Seal::new(None));
}

#[tokio::test]
async fn of_what_is_written_together_only_that_is_left_out_which_does_not_fit() {
    let folder = TempDir::new().unwrap();
    let limits = Options { max_bytes: 4 * MIB, tenant_share: 0.25, ..options(folder.path()) };
    let store = open_with(limits).await.unwrap();
    let prompts: Vec<Vec<u8>> = (0..20).map(|number| filler(number, 100_000)).collect();
    let large = filler(99, 1 << 20);
    let mut changes: Vec<Change> = prompts
        .iter()
        .enumerate()
        .map(|(number, prompt)| put(&format!("{number:x}"), "1", &[prompt]))
        .collect();
    changes.insert(15, put("ff", "too large", &[&large]));
    let version = store.write(tenant(1), changes).await.unwrap();
    let left = names(&store, 1).await;
    let newest: Vec<String> = (20 - left.len()..20).map(|number| format!("{number:x}")).collect();
    assert!((8..=10).contains(&left.len()) && left == newest, "{left:?}");
    assert_eq!(self::prompts(folder.path()).len(), left.len());
    assert_eq!(store.changes(tenant(1), 0).await.unwrap().version, version);
    store.close().await;
    whole::check(folder.path(), Seal::new(None));
}

#[tokio::test]
async fn no_record_is_kept_for_longer_than_the_folder_allows() {
    let folder = TempDir::new().unwrap();
    let short = || Options { max_age: Duration::from_millis(40), ..options(folder.path()) };
    let store = open_with(short()).await.unwrap();
    store.write(tenant(1), vec![put("a", "1", &[b"a prompt"])]).await.unwrap();
    until("the record goes", async || all(&store, 1).await.is_empty()).await;
    store.close().await;
    // A start takes away what is over, and nothing is left of the tenant.
    let store = open(folder.path()).await;
    assert_eq!((prompts(folder.path()).len(), store.bytes()), (0, Some(0)));
    store.close().await;
    whole::check(folder.path(), Seal::new(None));
}

#[tokio::test]
async fn a_path_that_cannot_be_a_folder_is_an_error_with_a_word() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(open_with(options(&file.join("store"))).await.is_err());
    assert!(open_with(options(Path::new("/proc/nowhere/store"))).await.is_err());
    assert_eq!(fs::read(&file).unwrap(), b"");
}

#[test]
fn failures_of_a_disk_have_their_words() {
    use std::io::ErrorKind;
    let word = |kind: ErrorKind| {
        let error = || std::io::Error::from(kind);
        let of_database = Trouble::from(redb::StorageError::Io(error()));
        assert_eq!(of_database.word(), Trouble::from(error()).word());
        of_database.word()
    };
    assert_eq!(word(ErrorKind::StorageFull), StoreError::Full);
    assert_eq!(word(ErrorKind::FileTooLarge), StoreError::Full);
    assert_eq!(word(ErrorKind::ReadOnlyFilesystem), StoreError::ReadOnly);
    assert_eq!(word(ErrorKind::PermissionDenied), StoreError::ReadOnly);
    assert_eq!(word(ErrorKind::InvalidData), StoreError::Garbage);
    assert_eq!(word(ErrorKind::Other), StoreError::Down);
    assert_eq!(Trouble::from(redb::DatabaseError::DatabaseAlreadyOpen).word(), StoreError::Locked);
}

#[tokio::test]
async fn a_process_of_its_own_fills_a_small_disk() {
    let Ok(disk) = std::env::var(DISK) else { return };
    let folder = Path::new(&disk).join("store");
    let store = open(&folder).await;
    let mut known = Vec::new();
    let refused = loop {
        let number = known.len() as u64;
        // Larger each time, so that a limit on files is reached as well as one on the disk.
        let prompt = filler(number, 300_000 << (number / 4).min(5));
        let name = format!("{number:x}");
        match store.write(tenant(1), vec![put(&name, "1", &[&prompt])]).await {
            Ok(_) => known.push(name),
            Err(error) => break error,
        }
        assert!(known.len() < 64, "the disk is never full");
    };
    assert_eq!(refused, StoreError::Full);
    assert!(known.len() > 2);
    assert_eq!(names(&store, 1).await, known, "what was there before is still there");
    // With room again, it goes on.
    store.write(tenant(1), known.drain(..2).map(|name| delete(&name)).collect()).await.unwrap();
    store.write(tenant(1), vec![put("ff", "1", &[&filler(77, 300_000)])]).await.unwrap();
    known.push("ff".to_owned());
    assert_eq!(names(&store, 1).await, known);
    store.close().await;
    whole::check(&folder, Seal::new(None));
    println!("the disk was full, and is whole");
}

/// On a disk of eight megabytes in memory; where no disk can be mounted, with no file of more than eight megabytes.
#[test]
fn a_full_disk_refuses_what_is_new_and_loses_nothing_old() {
    let disk = TempDir::new().unwrap();
    let script = "if unshare -rm true 2>/dev/null
        then exec unshare -rm sh -c 'mount -t tmpfs -o size=8m tmpfs \"$FORKPOINT_TEST_DISK\" && exec \"$@\"' sh \"$@\"
        else trap '' XFSZ; ulimit -f 16384; exec \"$@\"
        fi";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(std::env::current_exe().unwrap());
    command.args([
        "store::file::tests::limits::a_process_of_its_own_fills_a_small_disk",
        "--exact",
        "--nocapture",
    ]);
    let output = command.env(DISK, disk.path()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("and is whole"), "{text}{errors}");
}
