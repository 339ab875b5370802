//! Failures of one tenant, of one write, and of those who do not wait.

use super::*;

#[tokio::test]
async fn records_of_one_tenant_that_make_no_sense_are_no_failure_of_the_store() {
    for fault in [Fault::Error(StoreError::Garbage), Fault::NoEnd] {
        let records = Faulty::new();
        let [bad, other, next] = [1, 2, 3].map(|number| TenantId([number; 32]));
        records.own.lock().unwrap().push((bad, fault));
        let process = Process::start(&records);
        for _ in 0..20 {
            process.is_taught(bad).await;
        }
        assert_eq!(process.error(), None, "{fault:?}");
        assert!(records.reads.load(SeqCst) < 5, "it is asked {} times", records.reads.load(SeqCst));
        process.is_taught(other).await;
        stored(&records, other).await;
        // Of several it is.
        records.own.lock().unwrap().push((next, fault));
        records.fails(fault);
        for number in 4..20 {
            process.meet(TenantId([number; 32])).await;
        }
        assert_eq!(process.error(), Some(StoreError::Garbage), "{fault:?}");
    }
}

#[tokio::test]
async fn a_store_without_room_for_all_takes_what_it_has_room_for() {
    const ROOM: usize = 100_000;
    let records = Arc::new(Faulty { room: Some(ROOM), ..Faulty::default() });
    let process = Process::start(&records);
    let tenant = process.is_taught(TENANT).await;
    process.teach_at_length(&tenant, 2 * ROOM);
    (0..5).for_each(|_| process.teach(&tenant));
    let dropped = || {
        let events = process.events.lock().unwrap();
        events
            .iter()
            .map(|event| if let StoreEvent::Dropped(some) = event { *some } else { 0 })
            .sum::<usize>()
    };
    until("what is too large is dropped", || async { dropped() == 1 }).await;
    process.store.close(PATIENCE).await;
    let found = records.records.changes(TENANT, 0).await.unwrap().changes;
    let spellings = found.iter().filter(|change| change.key().kind == RecordKind::Spelling).count();
    assert!(spellings >= 6, "{spellings} spellings");
    assert_eq!((process.error(), dropped()), (None, 1));
}

#[tokio::test]
async fn news_that_are_not_waited_for_are_merged_when_they_come_and_end_a_trial() {
    let records = Arc::new(Faulty { is_shared: true.into(), pause: Some(3 * WAIT), ..Faulty::default() });
    let [one, other] = [Process::start(&records), Process::start(&records)];
    let there = other.meet(TENANT).await;
    until("it is loaded", || async { there.link().is_some_and(Link::is_loaded) }).await;
    one.is_taught(TENANT).await;
    stored(&records, TENANT).await;
    let waited = other.outcomes(StoreOp::Wait).len();
    assert!(!other.store.news(&there).await);
    assert_eq!(other.outcomes(StoreOp::Wait).len(), waited + 1);
    until("the news are merged", || async { is_known(&there) }).await;
    // Also where they are the trial of a store that has failed.
    for _ in 0..3 {
        other.calls_fail();
    }
    assert_eq!(other.error(), Some(StoreError::Down));
    let is_trial_due = || async { other.durable().calls.reads_pause().is_none() };
    until("a trial is due", is_trial_due).await;
    assert!(!other.store.news(&there).await);
    until("the trial has an end", || async { other.error().is_none() }).await;
}
