//! Processes of two versions on one server, while one takes the place of the other.

use super::super::form::VERSION;
use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn an_older_process_leaves_the_records_of_a_newer_one_alone_and_a_newer_one_reads_those_of_both() {
    let server = RedisServer::start();
    let older = connected(&server.url(), AMPLE).await;
    let newer = RedisStore { version: VERSION + 1, ..connected(&server.url(), AMPLE).await };
    let write = async |store: &RedisStore, name: &str| {
        store.write(tenant(73), vec![put(name, record("1", &[b"a prompt"]))]).await.unwrap()
    };
    write(&older, "a").await;
    write(&newer, "b").await;
    let version = write(&older, "c").await;
    let found = older.changes(tenant(73), 0).await.unwrap();
    assert_eq!((names_of(&found), found.damaged, found.version), (vec!["a", "c"], 0, version));
    assert_eq!(names_of(&newer.changes(tenant(73), 0).await.unwrap()), ["a", "b", "c"]);
    // News of it are none, and what comes after it is heard.
    write(&newer, "d").await;
    let last = write(&older, "e").await;
    let news = older.changes(tenant(73), version).await.unwrap();
    assert_eq!((names_of(&news), news.damaged, news.version), (vec!["e"], 0, last));
    // It is forgotten with the others.
    assert!(older.forget(tenant(73)).await.unwrap());
    assert_eq!(newer.changes(tenant(73), 0).await.unwrap().changes, []);
}
