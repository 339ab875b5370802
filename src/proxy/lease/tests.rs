use std::collections::BTreeMap;
use std::sync::Mutex;

use futures_util::future::BoxFuture;

use super::*;
use crate::engine::records::Change;
use crate::store::records::Changes;

const TENANT: TenantId = TenantId([1; 32]);
const HOLD: Duration = Duration::from_secs(5);

/// Leases by entry: their owner, or none if the entry was written.
#[derive(Default)]
struct LeaseTable(Mutex<BTreeMap<String, Option<String>>>);

impl RecordStore for LeaseTable {
    fn name(&self) -> &'static str {
        "test"
    }

    fn changes(&self, _: TenantId, _: u64) -> BoxFuture<'_, Result<Changes, StoreError>> {
        Box::pin(async { Err(StoreError::Down) })
    }

    fn write(&self, _: TenantId, _: Vec<Change>) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async { Err(StoreError::Down) })
    }

    fn forget(&self, _: TenantId) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async { Err(StoreError::Down) })
    }

    fn lease(
        &self,
        _: TenantId,
        entry: &str,
        owner: &str,
        _: Duration,
    ) -> BoxFuture<'_, Result<Lease, StoreError>> {
        let mut leases = self.0.lock().unwrap();
        let held = leases.entry(entry.to_owned()).or_insert_with(|| Some(owner.to_owned()));
        let lease = match held {
            None => Lease::Written,
            Some(held) if held == owner => Lease::Taken,
            Some(held) if held.starts_with('j') && !owner.starts_with('j') => {
                *held = owner.to_owned();
                Lease::Taken
            }
            Some(_) => Lease::Held,
        };
        Box::pin(async move { Ok(lease) })
    }

    fn release(
        &self,
        _: TenantId,
        entry: &str,
        owner: &str,
        written: Option<Duration>,
    ) -> BoxFuture<'_, Result<(), StoreError>> {
        let mut leases = self.0.lock().unwrap();
        if leases.get(entry).is_some_and(|held| held.as_deref() == Some(owner)) {
            match written {
                Some(_) => drop(leases.insert(entry.to_owned(), None)),
                None => drop(leases.remove(entry)),
            }
        }
        Box::pin(async { Ok(()) })
    }
}

fn leases(table: &Arc<LeaseTable>) -> HeldLeases {
    leases_of(table, Answers::Streamed)
}

fn leases_of(table: &Arc<LeaseTable>, answers: Answers) -> HeldLeases {
    let store = Arc::clone(table) as Arc<dyn RecordStore>;
    let shared = SharedLeases { store, listener: Arc::new(Box::new(|_| {})) };
    HeldLeases::none(shared, TENANT, answers, HOLD).unwrap()
}

fn entries<const N: usize>(numbers: [u64; N]) -> [EntryKey; N] {
    numbers.map(EntryKey::numbered)
}

fn free() -> Result<Asked, StoreError> {
    Ok(Asked::Free(Vec::new()))
}

/// Lets the tasks run that give leases back.
async fn given_back() {
    tokio::task::yield_now().await;
}

#[tokio::test]
async fn whoever_waits_for_a_short_entry_holds_no_longer_one() {
    let table = Arc::default();
    let (mut one, mut two, mut three) = (leases(&table), leases(&table), leases(&table));
    assert_eq!(one.ask(&entries([1])).await, free());
    assert_eq!(two.ask(&entries([1, 2])).await, Ok(Asked::Held));
    given_back().await;
    assert_eq!(three.ask(&entries([2])).await, free(), "two has not kept it");
    drop(one);
    given_back().await;
    assert_eq!(two.ask(&entries([1, 2])).await, Ok(Asked::Held), "now for three");
    let mut four = leases(&table);
    assert_eq!(four.ask(&entries([1, 2])).await, Ok(Asked::Held), "two has kept the short one");
    drop(three);
    given_back().await;
    assert_eq!(two.ask(&entries([1, 2])).await, free());
}

#[tokio::test]
async fn entries_that_were_written_are_told_and_the_others_are_leased() {
    let table = Arc::default();
    let (mut one, mut two) = (leases(&table), leases(&table));
    assert_eq!(one.ask(&entries([1, 2])).await, free());
    one.written();
    given_back().await;
    let written = entries([1, 2]).to_vec();
    assert_eq!(two.ask(&entries([1, 2, 3])).await, Ok(Asked::Free(written)));
    assert_eq!(leases(&table).ask(&entries([3])).await, Ok(Asked::Held));
}

#[tokio::test]
async fn whoever_leaves_gives_back_its_own_leases_alone() {
    let table = Arc::default();
    let mut one = leases(&table);
    assert_eq!(one.ask(&entries([1])).await, free());
    let mut two = leases(&table);
    assert_eq!(two.ask(&entries([1])).await, Ok(Asked::Held));
    drop(two);
    given_back().await;
    assert_eq!(leases(&table).ask(&entries([1])).await, Ok(Asked::Held));
}

#[tokio::test]
async fn whoever_streams_does_not_wait_for_an_answer_that_comes_as_a_whole() {
    const WHOLE: Answers = Answers::Whole { presumed_after_ms: 2_500 };
    let table = Arc::default();
    let (mut whole, mut streams) = (leases_of(&table, WHOLE), leases(&table));
    assert_eq!(whole.ask(&entries([1])).await, free());
    assert_eq!(leases_of(&table, WHOLE).ask(&entries([1])).await, Ok(Asked::Held));
    assert_eq!(streams.ask(&entries([1])).await, free());
    assert_eq!(leases(&table).ask(&entries([1])).await, Ok(Asked::Held), "it leads now");
    drop(whole);
    given_back().await;
    assert_eq!(leases(&table).ask(&entries([1])).await, Ok(Asked::Held), "nobody gives back another's");
}

#[tokio::test(start_paused = true)]
async fn what_a_whole_answer_writes_is_presumed_to_be_there_after_a_time() {
    const AFTER_MS: u64 = 2_500;
    let table = Arc::default();
    let whole = || leases_of(&table, Answers::Whole { presumed_after_ms: AFTER_MS });
    let clock = Arc::new(Clock::new());
    let (mut leads, mut follows) = (whole(), whole());
    assert_eq!(leads.ask(&entries([1])).await, free());
    leads.presume_written(Arc::clone(&clock), AFTER_MS);
    tokio::time::sleep(Duration::from_millis(AFTER_MS / 2)).await;
    assert_eq!(follows.ask(&entries([1])).await, Ok(Asked::Held));
    tokio::time::sleep(Duration::from_millis(AFTER_MS)).await;
    assert_eq!(follows.ask(&entries([1])).await, Ok(Asked::Free(entries([1]).to_vec())));
    // One that came to nothing before is no such thing.
    let mut fails = whole();
    assert_eq!(fails.ask(&entries([2])).await, free());
    fails.presume_written(clock, AFTER_MS);
    drop(fails);
    tokio::time::sleep(Duration::from_millis(2 * AFTER_MS)).await;
    assert_eq!(follows.ask(&entries([2])).await, free());
}
