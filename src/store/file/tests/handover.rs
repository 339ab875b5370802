//! One process ends while the next one begins.

use super::*;

/// Two stores of one folder: the old one has handed over to the new one.
async fn handed_over(folder: &Path) -> (FileStore, FileStore) {
    let old = open(folder).await;
    old.write(tenant(1), vec![put("a", "before", &[b"a prompt"])]).await.unwrap();
    old.hand_over().await;
    (old, open(folder).await)
}

fn journals(folder: &Path) -> Vec<String> {
    files(&folder.join("journals"))
}

#[tokio::test]
async fn a_process_that_begins_waits_for_the_one_that_ends() {
    let folder = TempDir::new().unwrap();
    let old = open(folder.path()).await;
    let waits = Options { lock_wait: Duration::from_secs(20), ..options(folder.path()) };
    let new = tokio::spawn(open_with(waits));
    old.write(tenant(1), vec![put("a", "1", &[b"a prompt"])]).await.unwrap();
    assert!(!new.is_finished());
    old.hand_over().await;
    let new = new.await.unwrap().unwrap();
    assert_eq!(names(&new, 1).await, ["a"]);
}

#[tokio::test]
async fn what_the_old_process_still_learns_is_known_to_the_new_one_at_once() {
    let folder = TempDir::new().unwrap();
    let (old, new) = handed_over(folder.path()).await;
    assert!(new.is_shared());
    let before = new.changes(tenant(1), 0).await.unwrap();
    let long: Vec<u8> = b"a long prompt ".repeat(100_000);
    let changes = vec![put("b", "while it drains", &[&long, b""]), delete("a")];
    old.write(tenant(1), changes.clone()).await.unwrap();
    let mut found = new.changes(tenant(1), before.version).await.unwrap();
    for change in &mut found.changes {
        if let Change::Put(_, record) = change {
            record.ttl_ms = 600_000;
        }
    }
    assert_eq!(found.changes, changes);
    assert!(found.version > before.version);
    assert_eq!(names(&new, 1).await, ["b"]);
    assert!(!new.changes(tenant(1), found.version).await.unwrap().was_forgotten);
    assert!(old.forget(tenant(1)).await.unwrap());
    assert!(new.changes(tenant(1), found.version).await.unwrap().was_forgotten);
    assert!(!new.changes(tenant(2), found.version).await.unwrap().was_forgotten);
    let nothing = new.changes(tenant(1), 0).await.unwrap();
    assert_eq!((nothing.changes, nothing.was_forgotten), (Vec::new(), false));
    // The old one hears nothing more of those that it knows, and cannot say that others are new.
    assert_eq!(old.changes(tenant(1), 7).await.unwrap(), Changes { version: 7, ..Changes::default() });
    assert_eq!(old.changes(tenant(2), 0).await, Err(StoreError::Locked));
}

#[tokio::test]
async fn a_tenant_that_the_new_process_forgets_does_not_come_back_from_the_old_one() {
    let folder = TempDir::new().unwrap();
    let (old, new) = handed_over(folder.path()).await;
    old.write(tenant(2), vec![put("a", "of another", &[])]).await.unwrap();
    assert!(new.forget(tenant(1)).await.unwrap());
    old.write(tenant(1), vec![put("b", "still known", &[b"a prompt"])]).await.unwrap();
    assert_eq!(names(&new, 1).await, [""; 0]);
    // Nor does it after the new one has ended, while the old one still drains.
    new.close().await;
    old.write(tenant(1), vec![put("c", "still known", &[b"a prompt"])]).await.unwrap();
    let third = open(folder.path()).await;
    assert_eq!(names(&third, 1).await, [""; 0]);
    assert_eq!(names(&third, 2).await, ["a"]);
    // Whoever comes back to the process that forgot is somebody new.
    third.write(tenant(1), vec![put("d", "new", &[])]).await.unwrap();
    assert_eq!(names(&third, 1).await, ["d"]);
    old.close().await;
    until("the journal is over", async || !third.is_shared()).await;
    assert_eq!(names(&third, 1).await, ["d"]);
    third.close().await;
    whole::check(folder.path(), Seal::new(None));
}

#[tokio::test]
async fn what_the_new_process_has_written_since_is_not_replaced_by_what_the_old_one_wrote_before() {
    let folder = TempDir::new().unwrap();
    let (old, new) = handed_over(folder.path()).await;
    let lives = |name: &str, text: &str, ttl_ms: u64| {
        Change::Put(key(RecordKind::Child, name), Record { ttl_ms, ..record(text, &[]) })
    };
    new.write(tenant(1), vec![lives("a", "new", 500_000), lives("b", "old", 500_000)]).await.unwrap();
    // As if it had waited in the journal for a while.
    old.write(tenant(1), vec![lives("a", "old", 400_000), lives("b", "new", 600_000)]).await.unwrap();
    let found = all(&new, 1).await;
    let texts: Vec<_> = found.iter().map(|(name, body, _)| (&**name, body.ends_with(b"\"new\"}"))).collect();
    assert_eq!(texts, [("a", true), ("b", true)], "{found:?}");
    new.close().await;
    whole::check(folder.path(), Seal::new(None));
}

#[tokio::test]
async fn once_the_old_process_has_ended_nothing_is_shared_or_left() {
    let folder = TempDir::new().unwrap();
    let (old, new) = handed_over(folder.path()).await;
    old.write(tenant(1), vec![put("b", "2", &[])]).await.unwrap();
    assert_eq!(journals(folder.path()).len(), 1);
    old.close().await;
    until("the journal is over", async || !new.is_shared()).await;
    assert_eq!(journals(folder.path()), [""; 0]);
    assert_eq!(names(&new, 1).await, ["a", "b"]);
    assert_eq!(old.write(tenant(1), vec![put("c", "3", &[])]).await, Err(StoreError::Down));
    new.close().await;
    whole::check(folder.path(), Seal::new(None));
}

#[tokio::test]
async fn a_process_without_a_next_one_leaves_its_journal_to_the_start_after() {
    let folder = TempDir::new().unwrap();
    let old = open_with(keyed(folder.path(), KEY)).await.unwrap();
    old.hand_over().await;
    old.write(tenant(1), vec![put("a", "confidential", &[b"a secret prompt"])]).await.unwrap();
    old.close().await;
    let journal = fs::read(folder.path().join("journals").join(&journals(folder.path())[0])).unwrap();
    assert!(!journal.windows(6).any(|window| window == b"secret"));
    let new = open_with(keyed(folder.path(), KEY)).await.unwrap();
    assert!(!new.is_shared());
    assert_eq!(all(&new, 1).await[0].2, [&b"a secret prompt"[..]]);
    assert_eq!(journals(folder.path()), [""; 0]);
}

#[tokio::test]
async fn a_process_that_learned_nothing_while_it_drained_leaves_no_journal() {
    let folder = TempDir::new().unwrap();
    let old = open(folder.path()).await;
    old.hand_over().await;
    old.close().await;
    assert_eq!(journals(folder.path()), [""; 0]);
}

#[tokio::test]
async fn a_journal_is_taken_in_once_whoever_has_the_folder() {
    let folder = TempDir::new().unwrap();
    let (first, second) = handed_over(folder.path()).await;
    first.write(tenant(1), vec![put("a", "of the first", &[])]).await.unwrap();
    assert_eq!(names(&second, 1).await, ["a"]);
    second.write(tenant(1), vec![put("a", "of the second", &[])]).await.unwrap();
    second.hand_over().await;
    second.write(tenant(1), vec![put("b", "of the second", &[])]).await.unwrap();
    let third = open(folder.path()).await;
    first.write(tenant(1), vec![put("c", "of the first", &[])]).await.unwrap();
    let found = all(&third, 1).await;
    let found: Vec<_> = found.iter().map(|(name, body, _)| (name.as_str(), body.as_ref())).collect();
    let body = |text: &str| record(text, &[]).body;
    let [one, two] = [body("of the first"), body("of the second")];
    assert_eq!(found, [("a", &*two), ("b", &*two), ("c", &*one)]);
}

/// Writes two entries to a journal, and changes its bytes.
async fn changed_journal(folder: &Path, change: impl FnOnce(&mut Vec<u8>)) -> FileStore {
    let old = open(folder).await;
    old.hand_over().await;
    for name in ["a", "b"] {
        old.write(tenant(1), vec![put(name, "1", &[b"a prompt"])]).await.unwrap();
    }
    old.close().await;
    let path = folder.join("journals").join(&journals(folder)[0]);
    let mut bytes = fs::read(&path).unwrap();
    change(&mut bytes);
    fs::write(&path, bytes).unwrap();
    open(folder).await
}

#[tokio::test]
async fn of_a_journal_that_ends_in_half_an_entry_the_whole_ones_count() {
    let folder = TempDir::new().unwrap();
    let new = changed_journal(folder.path(), |bytes| bytes.truncate(bytes.len() - 1)).await;
    assert_eq!(names(&new, 1).await, ["a"]);
    assert_eq!(journals(folder.path()), [""; 0]);
}

#[tokio::test]
async fn a_damaged_journal_is_moved_aside_after_the_entries_before() {
    let folder = TempDir::new().unwrap();
    let new = changed_journal(folder.path(), |bytes| {
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
    })
    .await;
    assert_eq!(names(&new, 1).await, ["a"]);
    assert_eq!(journals(folder.path()), [""; 0]);
    assert!(files(folder.path()).iter().any(|name| name.contains(".journal.corrupt-")));
}

#[tokio::test]
async fn what_is_no_journal_is_moved_aside() {
    let folder = TempDir::new().unwrap();
    let (outside, journals) = (folder.path().join("outside"), folder.path().join("journals"));
    fs::write(&outside, "not ours").unwrap();
    fs::create_dir(&journals).unwrap();
    std::os::unix::fs::symlink(&outside, journals.join("1-1.journal")).unwrap();
    fs::write(journals.join("notes.txt"), "not ours").unwrap();
    let store = open(folder.path()).await;
    assert_eq!(files(&journals), [""; 0]);
    assert_eq!(fs::read(&outside).unwrap(), b"not ours");
    store.write(tenant(1), vec![put("a", "1", &[])]).await.unwrap();
}
