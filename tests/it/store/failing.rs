//! A store that cannot be used costs nobody an answer, and a start neither.

use super::{House, SCRIPT};
use crate::fork::children::{FORKED, FREE, child, parent, plan};
use crate::harness::samples::{OK, PROMPT};
use crate::harness::{Binary, Upstream, call, until, within};

/// The settings of a process with this folder.
fn settings(path: &str) -> [(&str, &str); 4] {
    [
        ("FORKPOINT_STORE", "file"),
        ("STORE__PATH", path),
        ("STORE__LOCK_WAIT_MS", "100"),
        ("LOG__FORMAT", "json"),
    ]
}

async fn answers(binary: &Binary, upstream: &Upstream) {
    let mut client = binary.client().await;
    client.send(&call(PROMPT)).await;
    let (mut server, _) = upstream.asked().await;
    server.send(OK).await;
    assert_eq!(client.reply().await.status(), 200);
}

#[tokio::test]
async fn a_folder_that_cannot_be_one_is_said_and_left_alone() {
    let upstream = Upstream::bind().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap().to_owned();
    let binary = Binary::serve(&upstream.url(), &settings(&path)).await;
    binary.line("the store cannot be opened").await;
    let (status, text) = binary.admin("/readyz").await;
    assert_eq!(status, 200);
    assert!(text.starts_with("ready\ndegraded store=file error="), "{text}");
    let (_, metrics) = binary.admin("/metrics").await;
    assert!(metrics.contains("forkpoint_store_degraded{store=\"file\"} 1"), "{metrics}");
    answers(&binary, &upstream).await;
}

#[tokio::test]
async fn a_folder_of_another_process_is_left_alone() {
    let upstream = Upstream::bind().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store").to_str().unwrap().to_owned();
    let mut owner = Binary::serve(&upstream.url(), &settings(&path)).await;
    assert_eq!(owner.admin("/readyz").await, (200, "ready\n".to_owned()));
    let other = Binary::serve(&upstream.url(), &settings(&path)).await;
    let (status, text) = other.admin("/readyz").await;
    assert_eq!((status, &*text), (200, "ready\ndegraded store=file error=locked\n"));
    answers(&other, &upstream).await;
    owner.signal("TERM").await;
    assert_eq!(owner.exit().await.code(), Some(0));
    let next = Binary::serve(&upstream.url(), &settings(&path)).await;
    assert_eq!(next.admin("/readyz").await, (200, "ready\n".to_owned()));
}

#[tokio::test]
async fn a_store_that_goes_away_while_children_work_costs_them_nothing() {
    let house = House::new().await;
    let told = house.fan_out(&parent(FREE, SCRIPT)).await;
    assert_eq!(plan(&house.send(&child(FREE, &told[0])).await), FORKED);
    let store = house.folder.path().join("store");
    // Its writer may put a file there meanwhile.
    let removed = || std::fs::remove_dir_all(&store).is_ok() || !store.exists();
    until("the folder to go", removed).await;
    for directive in &told[1..] {
        let exchange = house.send(&child(FREE, directive)).await;
        assert_eq!((exchange.status, plan(&exchange)), (200, FORKED));
    }
    // Whatever was lost, the next process starts.
    let house = house.restart().await;
    assert_eq!(house.send(&child(FREE, "Look around, and say what there is.")).await.status, 200);
}

#[tokio::test]
async fn a_disk_that_is_full_costs_no_client_an_answer_and_is_used_again_with_room() {
    let upstream = Upstream::answering(OK).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store").to_str().unwrap().to_owned();
    // A process that writes more than it may is ended, unless it ignores that.
    let binary = Binary::serve_after("trap '' XFSZ", &upstream.url(), &settings(&path)).await;
    let asks = async || assert_eq!(binary.client().await.ask(&call(PROMPT)).await.status(), 200);
    asks().await;
    assert_eq!(binary.admin("/readyz").await, (200, "ready\n".to_owned()));
    binary.limit_files(Some(4096));
    within("a degraded store", async {
        loop {
            asks().await;
            let (status, text) = binary.admin("/readyz").await;
            assert_eq!(status, 200);
            if text == "ready\ndegraded store=file error=full\n" {
                break;
            }
        }
    })
    .await;
    asks().await;
    binary.limit_files(None);
    within("the store to work again", async {
        while binary.admin("/readyz").await.1 != "ready\n" {
            asks().await;
        }
    })
    .await;
}
