//! When something is written, and until when others are heard.

use super::*;

/// Nothing but the writing itself comes between a change that a child depends on and its record: what is promised within a
/// tenth of a second is left to the store alone.
#[tokio::test(start_paused = true)]
async fn what_a_child_depends_on_is_written_without_a_pause() {
    let records = Faulty::new();
    let process = Process::start(&records);
    let began = tokio::time::Instant::now();
    process.is_taught(TENANT).await;
    stored(&records, TENANT).await;
    assert!(began.elapsed() < Duration::from_millis(100), "it waited for {:?}", began.elapsed());
}

#[tokio::test]
async fn what_others_write_last_is_heard_of_every_tenant() {
    let records = Faulty::shared();
    let [one, other] = [Process::start(&records), Process::start(&records)];
    let there = other.meet(TENANT).await;
    other.store.admit(&TENANT, &there);
    let before = records.reads.load(SeqCst);
    until("a round after its last use", || async { records.reads.load(SeqCst) > before }).await;
    one.is_taught(TENANT).await;
    stored(&records, TENANT).await;
    assert!(!is_known(&there));
    records.is_shared.store(false, SeqCst);
    until("nobody else writes", || async { !other.store.is_shared() }).await;
    assert!(is_known(&there));
}
