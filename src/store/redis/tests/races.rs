//! A tenant that one process forgets while another writes of it.

use super::super::write::Written;
use super::*;

fn chunk_keys(server: &RedisServer) -> usize {
    server.command(&["KEYS", "*:c:*"]).lines().count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_whose_tenant_is_forgotten_while_it_is_written_does_not_outlive_that() {
    let server = RedisServer::start();
    let (one, other) = (connected(&server.url(), AMPLE).await, connected(&server.url(), AMPLE).await);
    let large = prompt(1, 300_000);
    for depends in [true, false] {
        let known = one.write(tenant(71), vec![put("a", record("1", &[b"a prompt"]))]).await.unwrap();
        let (known, refused) = if depends { (known, Written::Forgotten) } else { (0, Written::Over) };
        let late = one.prepared(tenant(71), known, vec![put("b", record("2", &[&large]))]).await.unwrap();
        let generation = one.generation(&late).await.unwrap().unwrap();
        assert!(other.forget(tenant(71)).await.unwrap());
        assert_eq!(one.write_in(&late, generation).await, Ok(refused));
        assert_eq!((chunk_keys(&server), one.changes(tenant(71), 0).await.unwrap().changes), (0, Vec::new()));
    }
    // What depends on nothing is written in the generation that has begun since.
    one.write(tenant(71), vec![put("b", record("2", &[&large]))]).await.unwrap();
    let found = connected(&server.url(), AMPLE).await.changes(tenant(71), 0).await.unwrap();
    assert_eq!(as_written(found), [put("b", record("2", &[&large]))]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_is_written_while_its_tenant_is_being_forgotten_keeps_its_prompt() {
    let server = RedisServer::start();
    let (one, other) = (connected(&server.url(), AMPLE).await, connected(&server.url(), AMPLE).await);
    let large = prompt(1, 300_000);
    one.write(tenant(72), vec![put("a", record("1", &[&large]))]).await.unwrap();
    let before = chunk_keys(&server);
    assert!(other.forget_records(tenant(72)).await.unwrap());
    one.write(tenant(72), vec![put("b", record("2", &[&large]))]).await.unwrap();
    other.sweep(&other.names.of(tenant(72))).await.unwrap();
    assert_eq!(chunk_keys(&server), before, "the old ones are gone, and the new ones are not");
    let found = connected(&server.url(), AMPLE).await.changes(tenant(72), 0).await.unwrap();
    assert_eq!(found.damaged, 0);
    assert_eq!(as_written(found), [put("b", record("2", &[&large]))]);
}
