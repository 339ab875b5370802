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
    HeldLeases::none(Arc::clone(table) as Arc<dyn RecordStore>, TENANT, HOLD).unwrap()
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
