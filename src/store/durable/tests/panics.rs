//! Bugs of forkpoint.

use super::*;

#[tokio::test]
async fn a_panic_while_records_are_made_or_read_loses_nothing_and_holds_nobody_up() {
    let records = Faulty::new();
    let process = Process::start(&records);
    let tenant = process.is_taught(TENANT).await;
    stored(&records, TENANT).await;
    let spellings = || async {
        let kinds = records.kinds(TENANT).await;
        kinds.into_iter().filter(|kind| *kind == RecordKind::Spelling).count()
    };
    let before = spellings().await;
    process.panics.store(true, SeqCst);
    process.teach(&tenant);
    let has_dropped = || async { process.events.lock().unwrap().contains(&StoreEvent::Dropped(1)) };
    until("what was taken is counted", has_dropped).await;
    process.panics.store(false, SeqCst);
    until("it is written after all", || async { spellings().await > before }).await;
    let after = Process::start(&records);
    after.panics.store(true, SeqCst);
    let began = Instant::now();
    after.meet(TENANT).await;
    assert!(began.elapsed() < WAIT * 5 && after.store.durable.get().unwrap().loads.is_empty());
    after.panics.store(false, SeqCst);
    assert!(is_known(&*after.meet(TENANT).await));
}
