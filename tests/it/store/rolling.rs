//! One process takes over from another that still answers.

use std::net::SocketAddr;

use forkpoint::sim::{Sim, SimConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::restart::send;
use super::{SCRIPT, prefix_bytes, shared};
use crate::fork::children::{BOUND, FORKED, FREE, child, directives, extend, parent, plan};
use crate::harness::{Binary, until, within};

/// What an answer is held back after.
const BEGUN: &[u8] = b"content_block_start";

/// Stands before a simulator. While it holds, no answer comes further than to its first block.
struct Relay {
    address: SocketAddr,
    holds: watch::Sender<bool>,
    /// The number of answers that were held.
    held: watch::Receiver<usize>,
}

impl Relay {
    async fn before(sim: &Sim) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let upstream: SocketAddr = sim.url().strip_prefix("http://").unwrap().parse().unwrap();
        let (holds, count) = (watch::Sender::new(false), watch::Sender::new(0));
        let (holding, held) = (holds.subscribe(), count.subscribe());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(upstream).await.unwrap();
                tokio::spawn(pass(client, server, holding.clone(), count.clone()));
            }
        });
        Relay { address, holds, held }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    async fn has_held(&self) {
        let mut held = self.held.clone();
        within("an answer to be held", held.wait_for(|held| *held > 0)).await.unwrap();
    }
}

async fn pass(
    client: TcpStream,
    server: TcpStream,
    mut holding: watch::Receiver<bool>,
    count: watch::Sender<usize>,
) {
    let (mut requests, mut client) = client.into_split();
    let (mut answers, mut server) = server.into_split();
    tokio::spawn(async move { tokio::io::copy(&mut requests, &mut server).await });
    let mut chunk = vec![0; 1 << 16];
    let mut seen = Vec::new();
    while let Ok(read @ 1..) = answers.read(&mut chunk).await {
        let mut rest = &chunk[..read];
        if *holding.borrow() {
            seen.extend_from_slice(rest);
            if let Some(at) = seen.windows(BEGUN.len()).position(|window| window == BEGUN) {
                let (before, after) = rest.split_at(at + BEGUN.len() - (seen.len() - read));
                client.write_all(before).await.unwrap();
                rest = after;
                count.send_modify(|count| *count += 1);
                holding.wait_for(|holds| !holds).await.unwrap();
                seen.clear();
            }
        }
        if client.write_all(rest).await.is_err() {
            return;
        }
    }
}

fn settings(path: &str) -> Vec<(&str, &str)> {
    vec![
        ("FORKPOINT_STORE", "file"),
        ("STORE__PATH", path),
        // A test on a busy machine is about what is known, not about when.
        ("STORE__DEADLINE_MS", "10000"),
        ("STORE__LOCK_WAIT_MS", "25000"),
        ("FORK__MAX_COST_RATIO", "100"),
        ("FORK__CONTEXT_PREMIUM", "100"),
    ]
}

/// Lets a process take over between two turns of a child, the first of which is still being answered. With
/// `same_ports` it listens where the one before does.
async fn takes_over(model: &str, same_ports: bool) {
    let sim = Sim::start(SimConfig::default()).await.unwrap();
    let relay = Relay::before(&sim).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store").to_str().unwrap().to_owned();
    let settings = settings(&path);
    let mut old = Binary::serve(&relay.url(), &settings).await;
    let ports = [old.proxy, old.admin].map(|address| address.to_string());
    let mut next = settings.clone();
    if same_ports {
        next.extend([("--listen", &*ports[0]), ("--admin-listen", &*ports[1])]);
    }

    let told = directives(&send(&old, &sim, &parent(model, SCRIPT)).await);
    let mut body = child(model, &told[0]);
    let first = send(&old, &sim, &body).await;
    assert_eq!((first.status, plan(&first)), (200, FORKED), "{model} turn 1");
    extend(&mut body, &first);

    relay.holds.send_replace(true);
    let change = async {
        relay.has_held().await;
        let new = Binary::begin(&relay.url(), &next);
        if same_ports {
            new.line("the address is in use").await;
        }
        old.signal("TERM").await;
        let new = new.serving(&next).await;
        assert_eq!(new.admin("/readyz").await, (200, "ready\n".to_owned()));
        relay.holds.send_replace(false);
        new
    };
    let (second, new) = tokio::join!(send(&old, &sim, &body), change);
    assert_eq!((second.status, plan(&second)), (200, FORKED), "{model} turn 2");
    extend(&mut body, &second);

    let third = send(&new, &sim, &body).await;
    let said = String::from_utf8_lossy(&third.answer).into_owned();
    assert_eq!((third.status, plan(&third)), (200, FORKED), "{model} turn 3: {said}");
    for turn in [&second, &third] {
        assert_eq!(turn.said("prefix"), first.said("prefix"), "{model}");
        let same = shared(&turn.forwarded, &first.forwarded);
        assert!(same >= prefix_bytes(&first), "{model}: {same} of {}", prefix_bytes(&first));
    }
    assert_eq!(old.exit().await.code(), Some(0));
    let journals = folder.path().join("store/journals");
    until("the journal to be taken in", || std::fs::read_dir(&journals).unwrap().next().is_none()).await;
    assert_eq!(new.admin("/readyz").await, (200, "ready\n".to_owned()));
}

#[tokio::test]
async fn a_child_keeps_its_prefix_when_a_process_takes_over_in_the_middle_of_its_turn() {
    for model in [FREE, BOUND] {
        takes_over(model, false).await;
    }
}

#[tokio::test]
async fn a_process_takes_over_at_the_same_addresses() {
    takes_over(BOUND, true).await;
}

#[tokio::test]
async fn an_address_that_stays_in_use_is_named_after_the_wait() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store").to_str().unwrap().to_owned();
    let settings = [
        ("FORKPOINT_STORE", "file"),
        ("STORE__PATH", &*path),
        ("STORE__LOCK_WAIT_MS", "200"),
        ("--admin-listen", &*address),
    ];
    let mut binary = Binary::begin("http://127.0.0.1:9", &settings);
    assert_eq!(binary.exit().await.code(), Some(1));
    let said = binary.lines("", 1).await.join("\n");
    binary.line("hint: ").await;
    let all = binary.said().join("\n");
    assert_eq!(all.matches("the address is in use").count(), 1, "{said}");
    assert!(all.contains(&format!("cannot listen on {address} (server.admin_listen)")), "{all}");
    assert!(!folder.path().join("store").exists(), "it has not touched the store");
}

#[tokio::test]
async fn a_process_that_waits_for_an_address_ends_when_it_is_asked_to() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap().to_owned();
    let mut settings = settings(&path);
    settings.push(("--admin-listen", &address));
    settings.retain(|(name, _)| *name != "STORE__LOCK_WAIT_MS");
    settings.push(("STORE__LOCK_WAIT_MS", "600000"));
    let mut binary = Binary::begin("http://127.0.0.1:9", &settings);
    binary.line("the address is in use").await;
    binary.signal("TERM").await;
    assert_eq!(binary.exit().await.code(), Some(0));
}
