//! Files that are damaged, missing, of others, or of another version.

use std::os::unix::fs::symlink;

use redb::{Database, TableDefinition};

use super::*;

/// A folder with two records, one with a prompt, and the name of its file.
async fn filled(folder: &Path) -> String {
    let store = open(folder).await;
    let changes = vec![put("a", "1", &[b"a prompt"]), put("b", "2", &[])];
    store.write(tenant(1), changes).await.unwrap();
    store.close().await;
    prompts(folder)[0].clone()
}

fn moved_aside(folder: &Path) -> Vec<String> {
    files(folder).into_iter().filter(|name| name.contains(".corrupt-")).collect()
}

#[tokio::test]
async fn a_file_that_is_no_database_is_moved_aside_and_few_are_kept() {
    let folder = TempDir::new().unwrap();
    filled(folder.path()).await;
    for times in 1..7 {
        fs::write(folder.path().join("records.redb"), "a letter to a friend ".repeat(500)).unwrap();
        let store = open(folder.path()).await;
        assert_eq!(all(&store, 1).await, []);
        assert_eq!(prompts(folder.path()), [""; 0], "prompts without records are collected");
        store.write(tenant(1), vec![put("a", "1", &[b"a prompt"])]).await.unwrap();
        assert_eq!(names(&store, 1).await, ["a"]);
        store.close().await;
        assert_eq!(moved_aside(folder.path()).len(), times.min(4));
    }
    let aside = folder.path().join(&moved_aside(folder.path())[0]);
    assert!(fs::read_to_string(aside).unwrap().starts_with("a letter"));
    whole::check(folder.path(), Seal::new(None));
}

#[tokio::test]
async fn a_database_with_damage_anywhere_tells_the_truth_or_nothing() {
    let folder = TempDir::new().unwrap();
    filled(folder.path()).await;
    let store = open(folder.path()).await;
    let whole = all(&store, 1).await;
    store.close().await;
    let path = folder.path().join("records.redb");
    let good = fs::read(&path).unwrap();
    let used: Vec<usize> =
        (0..good.len()).step_by(512).filter(|at| good[*at..*at + 512] != [0; 512]).collect();
    for (turn, at) in used.iter().enumerate() {
        let mut bad = good.clone();
        for byte in &mut bad[*at..*at + 512] {
            *byte ^= 0x5a;
        }
        bad.truncate(if turn % 8 == 7 { *at } else { good.len() });
        fs::write(&path, bad).unwrap();
        let store = open(folder.path()).await;
        if let Ok(found) = store.changes(tenant(1), 0).await {
            for change in found.changes {
                let Change::Put(key, record) = change else { panic!("nothing was deleted") };
                assert!(whole.contains(&(key.name, record.body, record.blobs)), "damage at {at}");
            }
        }
        // It comes to work again, whatever it was.
        until("it works again", async || {
            store.write(tenant(2), vec![put("a", "1", &[b"a prompt"])]).await.is_ok()
                && store.changes(tenant(2), 0).await.is_ok_and(|found| found.changes.len() == 1)
        })
        .await;
        store.close().await;
    }
}

#[tokio::test]
async fn reads_that_fail_at_once_have_a_whole_database_examined_once_and_nothing_is_lost() {
    let folder = TempDir::new().unwrap();
    filled(folder.path()).await;
    let store = open(folder.path()).await;
    for _ in 0..5 {
        store.jobs.try_send(Job::Examine("a read failed".to_owned(), 0)).unwrap();
    }
    store.write(tenant(2), vec![put("a", "1", &[])]).await.unwrap();
    assert_eq!(store.shared.examinations.load(Relaxed), 1);
    assert_eq!((moved_aside(folder.path()).len(), names(&store, 1).await.len()), (0, 2));
    // What fails again though it is whole is of no use to anybody.
    store.jobs.try_send(Job::Examine("a read failed".to_owned(), 1)).unwrap();
    store.write(tenant(2), vec![put("a", "1", &[])]).await.unwrap();
    assert_eq!((moved_aside(folder.path()).len(), names(&store, 1).await.len()), (1, 0));
}

#[tokio::test]
async fn while_the_database_is_opened_again_nobody_is_said_to_be_unknown() {
    let folder = TempDir::new().unwrap();
    filled(folder.path()).await;
    let store = open(folder.path()).await;
    *store.shared.database_alone() = None;
    for after in [0, 1] {
        assert_eq!(store.changes(tenant(1), after).await, Err(StoreError::Down));
    }
    store.write(tenant(2), vec![put("a", "1", &[])]).await.unwrap();
    assert_eq!(names(&store, 1).await, ["a", "b"]);
}

#[tokio::test]
async fn places_in_the_order_without_a_record_are_taken_away() {
    type Names = (&'static str, &'static str);
    let order: TableDefinition<'_, (&[u8; 32], u64), Names> = TableDefinition::new("order");
    let ends: TableDefinition<'_, (u64, &[u8; 32], u64), Names> = TableDefinition::new("ends");
    let folder = TempDir::new().unwrap();
    filled(folder.path()).await;
    let digest = Seal::new(None).digest(b"tenant", &tenant(1).0);
    let database = Database::open(folder.path().join("records.redb")).unwrap();
    let write = database.begin_write().unwrap();
    for (version, name) in [(0, "a"), (77, "ff")] {
        write.open_table(order).unwrap().insert((&digest, version), ("child", name)).unwrap();
        write.open_table(ends).unwrap().insert((1, &digest, version), ("child", name)).unwrap();
    }
    write.commit().unwrap();
    drop(database);
    let opened = tokio::time::timeout(Duration::from_secs(20), open(folder.path())).await;
    let store = opened.expect("a store that opens");
    assert_eq!(names(&store, 1).await, ["a", "b"]);
    assert!(store.forget(tenant(1)).await.unwrap());
    assert_eq!(names(&store, 1).await, [""; 0]);
    store.close().await;
    whole::check(folder.path(), Seal::new(None));
}

#[tokio::test]
async fn what_was_moved_aside_goes_when_no_record_would_be_kept_for_longer() {
    let folder = TempDir::new().unwrap();
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let day = 24 * 3600;
    let [old, new] = [now - 8 * day, now - 6 * day].map(|second| format!("records.redb.corrupt-{second}"));
    for name in [&old, &new, "notes.corrupt-1"] {
        fs::write(folder.path().join(name), "prompts, perhaps").unwrap();
    }
    fs::create_dir(folder.path().join(format!("prompts.corrupt-{}", now - 8 * day))).unwrap();
    let _store = open(folder.path()).await;
    assert_eq!(moved_aside(folder.path()), ["notes.corrupt-1".to_owned(), new]);
}

#[tokio::test]
async fn another_programs_database_is_moved_aside() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("records.redb");
    let database = Database::create(&path).unwrap();
    let write = database.begin_write().unwrap();
    write.open_table(TableDefinition::<u64, u64>::new("theirs")).unwrap().insert(1, 2).unwrap();
    write.commit().unwrap();
    drop(database);
    let store = open(folder.path()).await;
    store.write(tenant(1), vec![put("a", "1", &[])]).await.unwrap();
    assert_eq!(moved_aside(folder.path()).len(), 1);
}

#[tokio::test]
async fn a_newer_form_is_left_as_it_is() {
    let folder = TempDir::new().unwrap();
    filled(folder.path()).await;
    let facts: TableDefinition<'_, &str, u64> = TableDefinition::new("facts");
    let set_form = |form: u64| {
        let database = Database::open(folder.path().join("records.redb")).unwrap();
        let write = database.begin_write().unwrap();
        write.open_table(facts).unwrap().insert("form", form).unwrap();
        write.commit().unwrap();
    };
    set_form(2);
    let refused = open_with(options(folder.path())).await;
    assert_eq!(refused.err(), Some(StoreError::Garbage));
    assert_eq!((moved_aside(folder.path()).len(), prompts(folder.path()).len()), (0, 1));
    set_form(1);
    assert_eq!(names(&open(folder.path()).await, 1).await, ["a", "b"]);
}

/// Changes the only prompt of a folder. Its record is not known then, is counted, and can be written anew.
async fn without_its_prompt(change: impl FnOnce(&Path)) {
    let folder = TempDir::new().unwrap();
    let prompt = filled(folder.path()).await;
    change(&folder.path().join("prompts").join(prompt));
    let store = open(folder.path()).await;
    assert_eq!(names(&store, 1).await, ["b"]);
    assert_eq!(store.damaged(), 1);
    store.write(tenant(1), vec![put("a", "3", &[b"a prompt"])]).await.unwrap();
    assert_eq!(all(&store, 1).await[1].2, [&b"a prompt"[..]]);
    store.close().await;
    whole::check(folder.path(), Seal::new(None));
}

#[tokio::test]
async fn a_record_without_its_prompt_is_not_known() {
    without_its_prompt(|path| fs::remove_file(path).unwrap()).await;
}

#[tokio::test]
async fn a_record_with_a_damaged_prompt_is_not_known() {
    without_its_prompt(|path| {
        let mut bytes = fs::read(path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(path, bytes).unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_prompt_that_is_a_link_is_not_followed() {
    without_its_prompt(|path| {
        let copy = path.with_file_name("../copy");
        fs::rename(path, &copy).unwrap();
        symlink(&copy, path).unwrap();
    })
    .await;
}

#[tokio::test]
async fn orphans_are_collected_and_files_of_others_are_left_alone() {
    let folder = TempDir::new().unwrap();
    let prompt = filled(folder.path()).await;
    let path = |name: &str| folder.path().join("prompts").join(name);
    fs::write(path(&"0".repeat(64)), "an orphan").unwrap();
    fs::write(path(&format!("new-{}", "1".repeat(64))), "half of one").unwrap();
    fs::write(path("notes.txt"), "not ours").unwrap();
    let store = open(folder.path()).await;
    assert_eq!(prompts(folder.path()), [prompt, "notes.txt".to_owned()]);
    assert_eq!(names(&store, 1).await, ["a", "b"]);
}

#[tokio::test]
async fn links_in_the_place_of_files_and_folders_are_not_followed() {
    let (folder, outside) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let orphan = outside.path().join("0".repeat(64));
    let file = outside.path().join("file");
    for path in [&orphan, &file] {
        fs::write(path, "not ours").unwrap();
    }
    symlink(outside.path(), folder.path().join("prompts")).unwrap();
    symlink(&file, folder.path().join("records.redb")).unwrap();
    let store = open(folder.path()).await;
    store.write(tenant(1), vec![put("a", "1", &[b"a prompt"])]).await.unwrap();
    assert_eq!(names(&store, 1).await, ["a"]);
    assert_eq!(files(outside.path()).len(), 2);
    assert_eq!([fs::read(orphan).unwrap(), fs::read(file).unwrap()], [b"not ours"; 2]);
    assert_eq!(moved_aside(folder.path()).len(), 2);
}

#[tokio::test]
async fn a_lock_that_is_a_link_is_not_followed() {
    let (folder, outside) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    symlink(outside.path().join("lock"), folder.path().join("lock")).unwrap();
    assert_eq!(open_with(options(folder.path())).await.err(), Some(StoreError::Garbage));
    assert_eq!(files(outside.path()), [""; 0]);
}
