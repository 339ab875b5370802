//! Processes that share a store.

use super::*;

/// Waits until all records of a tenant are this process's.
async fn has_written(records: &Arc<Faulty>, tenant: &Tenant) {
    stored(records, tenant.id()).await;
    let is_all =
        || async { tenant.link().map(|link| link.known()) == Some(records.version(tenant.id()).await) };
    until("all is written", is_all).await;
}

#[tokio::test]
async fn what_one_process_writes_another_hears_and_nobody_hears_himself() {
    let records = Faulty::shared();
    let [one, other] = [Process::start(&records), Process::start(&records)];
    let there = other.meet(TENANT).await;
    let here = one.is_taught(TENANT).await;
    stored(&records, TENANT).await;
    assert!(!is_known(&there));
    assert!(other.store.news(&there).await);
    assert!(is_known(&there));
    assert!(!other.store.news(&there).await, "there is nothing new");
    let has_counted =
        || async { here.link().map(|link| link.version()) == Some(records.version(TENANT).await) };
    until("what it wrote is counted", has_counted).await;
    assert!(!one.store.news(&here).await, "it has written that itself");
    assert!(one.outcomes(StoreOp::News).iter().all(|outcome| *outcome == "miss"));
}

#[tokio::test]
async fn those_who_ask_for_news_at_once_share_the_answer() {
    let records = Arc::new(Faulty { is_shared: true.into(), pause: Some(WAIT / 10), ..Faulty::default() });
    let process = Process::start(&records);
    let tenant = process.meet(TENANT).await;
    let before = records.reads.load(SeqCst);
    futures_util::future::join_all((0..200).map(|_| process.store.news(&tenant))).await;
    assert!(records.reads.load(SeqCst) - before <= 3, "{} reads", records.reads.load(SeqCst) - before);
}

#[tokio::test]
async fn a_store_that_was_emptied_is_told_everything_again() {
    let records = Faulty::shared();
    let process = Process::start(&records);
    let tenant = process.is_taught(TENANT).await;
    stored(&records, TENANT).await;
    records.records.empty();
    process.store.news(&tenant).await;
    stored(&records, TENANT).await;
    assert!(is_known(&tenant));
}

#[tokio::test]
async fn a_tenant_that_one_process_forgets_is_forgotten_by_the_others_too() {
    let records = Faulty::shared();
    let [one, other] = [Process::start(&records), Process::start(&records)];
    let there = other.is_taught(TENANT).await;
    has_written(&records, &there).await;
    one.meet(TENANT).await;
    assert_eq!(one.store.forget_for_good(&TENANT).await.error, None);
    other.store.news(&there).await;
    assert!(other.store.known_tenant(&TENANT).is_none(), "it is known there");
    // A request that was under way ends now, and one comes that knows nothing of before.
    other.teach(&there);
    other.store.close(PATIENCE).await;
    assert_eq!(records.kinds(TENANT).await, []);
    assert!(!is_known(&*other.meet(TENANT).await));
}

#[tokio::test]
async fn what_depends_on_a_forgotten_tenant_is_not_written_though_nobody_has_heard_of_it_yet() {
    let records = Faulty::shared();
    let process = Process::start(&records);
    let tenant = process.is_taught(TENANT).await;
    has_written(&records, &tenant).await;
    records.records.forget(TENANT).await.unwrap();
    process.teach(&tenant);
    until("it is forgotten here", || async { process.store.known_tenant(&TENANT).is_none() }).await;
    assert_eq!(records.kinds(TENANT).await, []);
}
