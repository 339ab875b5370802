//! Killed at random moments, a writer loses nothing that was confirmed, and leaves nothing behind that is not whole.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use super::*;

const ROUNDS: u64 = 50;
const TENANTS: u8 = 4;
const FOLDER: &str = "FORKPOINT_TEST_FOLDER";
const DONE: &str = "FORKPOINT_TEST_DONE";
/// What such a process says before it opens the folder.
const BEGINS: &str = "it begins";
const HANDS_OVER: &str = "FORKPOINT_TEST_HANDS_OVER";

/// A step of a tenant: a record is written, or deleted.
fn step(tenant: u8, number: u64) -> (String, Option<Record>) {
    let name = format!("{:x}", number.wrapping_mul(7) % 8);
    if number % 11 == 10 {
        return (name, None);
    }
    // Some prompts are shared by the steps around.
    let prompts = [prompt(tenant, number / 4, 3_000), prompt(tenant, number, 20_000 * (number as usize % 9))];
    let prompts = prompts.each_ref().map(Vec::as_slice);
    (name, Some(record(&number.to_string(), &prompts)))
}

/// Bytes that do not compress.
fn prompt(tenant: u8, number: u64, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    let mut hasher = blake3::Hasher::new();
    hasher.update(&[tenant]).update(&number.to_le_bytes());
    hasher.finalize_xof().fill(&mut bytes);
    bytes
}

fn change(tenant: u8, number: u64) -> Change {
    match step(tenant, number) {
        (name, Some(record)) => Change::Put(key(RecordKind::Child, &name), record),
        (name, None) => delete(&name),
    }
}

type Known = BTreeMap<String, (Bytes, Vec<Bytes>)>;

/// What is known after so many steps.
fn known_after(tenant: u8, steps: u64) -> Known {
    let mut known = BTreeMap::new();
    // Eight names, and one step in eleven deletes: older steps do not count.
    for number in steps.saturating_sub(40)..steps {
        match step(tenant, number) {
            (name, Some(record)) => known.insert(name, (record.body, record.blobs)),
            (name, None) => known.remove(&name),
        };
    }
    known
}

async fn known(store: &FileStore, number: u8) -> Known {
    all(store, number).await.into_iter().map(|(name, body, prompts)| (name, (body, prompts))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_of_its_own_writes_until_it_is_killed() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    println!("{BEGINS}");
    let store = Arc::new(open(Path::new(&folder)).await);
    let done: Vec<u64> = std::env::var(DONE).unwrap().split(',').map(|done| done.parse().unwrap()).collect();
    let hands_over = std::env::var(HANDS_OVER).is_ok();
    let writers = (0..TENANTS).map(|number| {
        let (store, first) = (Arc::clone(&store), done[usize::from(number)]);
        tokio::spawn(async move {
            for step in first.. {
                store.write(tenant(number), vec![change(number, step)]).await.unwrap();
                println!("confirmed {number} {}", step + 1);
                if hands_over && number == 0 && step == first + 3 {
                    store.hand_over().await;
                }
            }
        })
    });
    futures_util::future::join_all(writers.collect::<Vec<_>>()).await;
}

/// When a process is killed: some time after it begins to open the folder, or after it has written something.
enum Kill {
    Opening(Duration),
    Writing(Duration),
}

/// Lets a process write and kills it. Updates the steps of each tenant that it had confirmed.
fn write_and_kill(folder: &Path, done: &mut [u64], hands_over: bool, kill: Kill) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let name = "store::file::tests::crash::a_process_of_its_own_writes_until_it_is_killed";
    command.args([name, "--exact", "--nocapture"]).stdout(Stdio::piped()).stderr(Stdio::null());
    let text: Vec<String> = done.iter().map(u64::to_string).collect();
    command.env(FOLDER, folder).env(DONE, text.join(","));
    if hands_over {
        command.env(HANDS_OVER, "1");
    }
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut note = |line: String| {
        let mut words = line.split_once("confirmed ").map_or("", |(_, rest)| rest).split(' ');
        if let (Some(Ok(tenant)), Some(Ok(steps))) =
            (words.next().map(str::parse::<usize>), words.next().map(str::parse))
        {
            done[tenant] = steps;
            return true;
        }
        false
    };
    let mut said = lines.by_ref().map_while(Result::ok);
    let after = match kill {
        Kill::Opening(after) => {
            assert!(said.any(|line| line.contains(BEGINS)), "it never began");
            after
        }
        Kill::Writing(after) => {
            assert!(said.any(&mut note), "it never wrote anything");
            after
        }
    };
    std::thread::sleep(after);
    child.kill().unwrap();
    child.wait().unwrap();
    lines.map_while(Result::ok).for_each(|line| {
        note(line);
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_confirmed_outlives_fifty_kills_at_random_moments() {
    let folder = TempDir::new().unwrap();
    let mut done = [0; TENANTS as usize];
    let mut unconfirmed = 0;
    for round in 0..ROUNDS {
        let random = RandomState::new().hash_one(round);
        let after = Duration::from_micros(random % 80_000);
        write_and_kill(folder.path(), &mut done, round % 3 == 2, Kill::Writing(after));
        if round % 5 == 2 {
            // While it opens the database, collects what the one before has left, or takes in its journal.
            write_and_kill(folder.path(), &mut done, false, Kill::Opening(after / 4));
        }
        let store = open(folder.path()).await;
        for number in 0..TENANTS {
            let steps = &mut done[usize::from(number)];
            let found = known(&store, number).await;
            if found != known_after(number, *steps) {
                // The step that was under way may have been written.
                *steps += 1;
                unconfirmed += 1;
                assert!(
                    found == known_after(number, *steps),
                    "round {round}, killed after {after:?}: tenant {number}"
                );
            }
        }
        assert_eq!(store.damaged(), 0);
        store.close().await;
        whole::check(folder.path(), Seal::new(None));
    }
    println!("{done:?} steps, {unconfirmed} of them written and not confirmed");
}

/// How often a copy of a database is repaired while it is opened.
fn repairs(database: &Path) -> usize {
    let copy = database.with_extension("copy");
    fs::copy(database, &copy).unwrap();
    let repairs = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = Arc::clone(&repairs);
    let count = move |_: &mut redb::RepairSession| {
        counted.fetch_add(1, Relaxed);
    };
    redb::Builder::new().set_repair_callback(count).open(copy).unwrap();
    repairs.load(Relaxed)
}

#[tokio::test]
async fn a_database_whose_process_was_killed_needs_no_repair() {
    let folder = TempDir::new().unwrap();
    let store = open(folder.path()).await;
    for number in 0..50 {
        store.write(tenant(1), vec![put(&format!("{number:x}"), "1", &[b"a prompt"])]).await.unwrap();
    }
    // While it is open, the file is what a kill leaves.
    assert_eq!(repairs(&folder.path().join("records.redb")), 0);
    let plain = folder.path().join("plain.redb");
    let database = redb::Database::create(&plain).unwrap();
    let transaction = database.begin_write().unwrap();
    let table = redb::TableDefinition::<u64, u64>::new("a table");
    transaction.open_table(table).unwrap().insert(1, 1).unwrap();
    transaction.commit().unwrap();
    assert!(repairs(&plain) > 0, "another database does need it");
}
