//! The stream that the live page reads, and the files of that page.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use forkpoint::admin::{self, Hosts, page};
use forkpoint::engine::words::{BreakCause, Ending, ForkNote, GateOutcome, Reason, Refusal, Skip, clauses};
use forkpoint::proxy::error::Fault;
use forkpoint::proxy::live::Live;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::fork::scene::Scene;
use crate::harness::{Binary, Forkpoint, Peer};

/// A reader of `/events`.
struct Reader {
    peer: Peer,
    /// Events that came and were not asked for.
    unread: VecDeque<(String, String, Value)>,
}

impl Reader {
    async fn connect(admin: SocketAddr, headers: &str) -> Reader {
        let mut peer = Peer::connect(admin).await;
        peer.send(format!("GET /events HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n").as_bytes()).await;
        let head = peer.head().await;
        assert_eq!((head.status(), head.get("content-type").as_deref()), (200, Some("text/event-stream")));
        Reader { peer, unread: VecDeque::new() }
    }

    /// The id, name and data of the next event.
    async fn next(&mut self) -> (String, String, Value) {
        while self.unread.is_empty() {
            let batch = String::from_utf8(self.peer.chunk().await.unwrap()).unwrap();
            for event in batch.split_terminator("\n\n") {
                let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
                // A comment has none.
                let Some(id) = field("id: ") else { continue };
                let data = serde_json::from_str(field("data: ").unwrap()).unwrap();
                self.unread.push_back((id.to_owned(), field("event: ").unwrap().to_owned(), data));
            }
        }
        self.unread.pop_front().unwrap()
    }

    /// The next event of this name, after any others.
    async fn next_of(&mut self, name: &str) -> Value {
        loop {
            let (_, event, data) = self.next().await;
            if event == name {
                return data;
            }
        }
    }
}

/// What is shown to somebody who comes now.
pub async fn snapshot(admin: SocketAddr) -> Value {
    Reader::connect(admin, "").await.next().await.2
}

pub async fn serve(forkpoint: &Forkpoint) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let live = Live::from(Arc::clone(&forkpoint.proxy));
    let pages = admin::pages(&live, forkpoint.metrics.clone(), admin::Readiness::default(), None);
    tokio::spawn(admin::serve(listener, pages, Hosts::OfThisMachine, live, "admin"));
    address
}

#[tokio::test]
async fn a_fan_out_is_shown_as_it_runs() {
    let scene = Scene::fanned_out(2, |_| ()).await;
    let admin = serve(&scene.forkpoint).await;
    let mut reader = Reader::connect(admin, "").await;
    let (_, name, first) = reader.next().await;
    assert_eq!((&*name, &first["mode"], &first["underway"]), ("snapshot", &json!("align"), &json!([])));
    let parent = &first["exchanges"][0];
    assert_eq!((&parent["role"], &parent["fanned_out_children"]), (&json!("plain"), &json!(2)));
    let fork = &parent["fanned_out"];

    let mut leader = scene.arrives(0, 1).await;
    let sent = reader.next_of("underway").await;
    assert_eq!((&sent["fork"], &sent["child"], &sent["tool"]), (fork, &json!(1), &json!("Agent")));
    assert!(sent["sent_ms"].is_u64() && sent["plan"] == "aligned", "{sent}");
    assert_eq!(sent["gate"], "led", "known while it runs");
    let mut follower = scene.arrives(1, 2).await;
    let held = reader.next_of("underway").await;
    assert!(held["waited_ms"].is_u64() && held["child"] == 2, "{held}");
    assert!(["sent_ms", "plan", "gate"].iter().all(|name| held.get(name).is_none()), "{held}");
    // Who comes now sees both.
    let underway = snapshot(admin).await["underway"].clone();
    assert_eq!(underway, json!([sent, held]));

    scene.answer(2).await;
    for client in [&mut leader, &mut follower] {
        assert_eq!(client.reply().await.status(), 200);
    }
    for number in [&sent["n"], &held["n"]] {
        let ended = reader.next_of("exchange").await;
        assert_eq!((&ended["n"], &ended["fork"], &ended["child_turn"]), (number, fork, &json!(1)));
        assert!(ended["first_byte_ms"].as_u64() >= ended["sent_ms"].as_u64(), "{ended}");
        assert_eq!(ended["layer_bytes"].as_array().unwrap().len(), 3);
    }
    let last = snapshot(admin).await;
    assert_eq!((&last["underway"], &last["total"]["requests"]), (&json!([]), &json!(3)));
}

#[tokio::test]
async fn its_sums_are_those_of_the_metrics() {
    let scene = Scene::fanned_out(2, |_| ()).await;
    let clients = [scene.arrives(0, 1).await, scene.arrives(1, 2).await];
    scene.answer(2).await;
    for mut client in clients {
        client.reply().await;
    }
    scene.forkpoint.recorded(3).await;
    let total = snapshot(serve(&scene.forkpoint).await).await["total"].clone();
    let metric = |name: &str, labels: &[&str]| scene.forkpoint.metric(&format!("forkpoint_{name}"), labels);
    for (figure, metric) in [
        ("billed_usd", metric("cost_usd_total", &[])),
        ("as_sent_usd", metric("counterfactual_usd_total", &["\"sent\""])),
        ("aligned_usd", metric("counterfactual_usd_total", &["\"aligned\""])),
        ("uncompared", metric("uncompared_total", &[])),
        ("cache_read", metric("tokens_total", &["\"cache_read\""])),
        ("cache_write", metric("tokens_total", &["\"cache_write"])),
    ] {
        let shown = total[figure].as_f64().unwrap();
        assert!((shown - metric).abs() < 1e-9, "{figure}: {shown} and {metric}");
    }
    assert!(total["billed_usd"].as_f64() > Some(0.0));
}

#[tokio::test]
async fn a_reader_goes_on_where_it_was_and_hears_of_settings() {
    let scene = Scene::with(|_| ()).await;
    let admin = serve(&scene.forkpoint).await;
    let (id, ..) = Reader::connect(admin, "").await.next().await;
    scene.forkpoint.reload(|config| config.server.mode = forkpoint::config::Mode::Observe);
    let mut back = Reader::connect(admin, &format!("last-event-id: {id}\r\n")).await;
    let (_, name, data) = back.next().await;
    assert_eq!((&*name, &data["mode"], &data["config"]), ("configured", &json!("observe"), &json!(2)));
    // An id of another process says nothing.
    let other = Reader::connect(admin, "last-event-id: 0-1\r\n").await.next().await;
    assert_eq!((&*other.1, &other.2["mode"]), ("snapshot", &json!("observe")));
}

#[tokio::test]
async fn readers_are_limited_and_whoever_leaves_makes_room() {
    let binary = Binary::serve("http://127.0.0.1:1", &[("ADMIN__SUBSCRIBERS", "1")]).await;
    let mut reader = Reader::connect(binary.admin, "").await;
    reader.next().await;
    let (status, said) = binary.admin("/events").await;
    assert!(status == 503 && said.contains("admin.subscribers"), "{status} {said}");
    drop(reader);
    crate::harness::within("a free place", async {
        loop {
            let mut peer = Peer::connect(binary.admin).await;
            peer.send(b"GET /events HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
            if peer.head().await.status() == 200 {
                return;
            }
        }
    })
    .await;
}

#[test]
fn the_page_has_words_for_every_reason_cause_and_outcome() {
    let (_, _, words) = page::FILES.iter().find(|(path, ..)| *path == "/page/words.js").unwrap();
    let has = |word: &str| words.contains(&format!("\n  {word}: \""));
    let (reasons, skips) = (Reason::ALL.map(Reason::as_str), Skip::ALL.map(Skip::as_str));
    let refusals = Refusal::ALL.map(Refusal::as_str);
    let gate = GateOutcome::ALL.map(GateOutcome::as_str);
    let causes = BreakCause::ALL.map(BreakCause::as_str);
    let (endings, notes) = (Ending::ALL.map(Ending::as_str), ForkNote::ALL.map(ForkNote::as_str));
    let all = [&reasons[..], &skips, &refusals, &gate, &causes, &endings, &notes].concat();
    let missing: Vec<_> = all.into_iter().filter(|word| !has(word)).collect();
    assert!(missing.is_empty(), "words.js lacks {missing:?}");
}

/// The words of one table of the page.
fn words_of(table: &str) -> BTreeMap<String, String> {
    let (_, _, words) = page::FILES.iter().find(|(path, ..)| *path == "/page/words.js").unwrap();
    let (_, body) = words.split_once(&format!("export const {table} = {{")).unwrap();
    let (body, _) = body.split_once("\n};").unwrap();
    let pairs = body.lines().filter_map(|line| line.trim().strip_suffix("\",")?.split_once(": \""));
    pairs.map(|(word, clause)| (word.to_owned(), clause.to_owned())).collect()
}

#[test]
fn page_and_terminal_say_the_same() {
    for (name, table) in [
        ("REASONS", clauses::REASONS),
        ("GATE", clauses::GATE),
        ("CAUSES", clauses::CAUSES),
        ("ENDINGS", clauses::ENDINGS),
    ] {
        let own = table.iter().map(|(word, clause)| ((*word).to_owned(), (*clause).to_owned()));
        assert_eq!(words_of(name), own.collect(), "{name}");
    }
    for reason in Fault::REASONS {
        assert!(clauses::clause(clauses::REASONS, reason).is_some(), "{reason}");
    }
}

#[tokio::test]
async fn the_page_loads_nothing_from_elsewhere_and_says_so() {
    let binary = Binary::serve("http://127.0.0.1:1", &[]).await;
    for (path, kind, text) in page::FILES {
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        let reply = Peer::connect(binary.admin).await.ask(request.as_bytes()).await;
        assert_eq!((reply.status(), reply.head.get("content-type").as_deref()), (200, Some(*kind)), "{path}");
        assert_eq!(reply.body, text.as_bytes(), "{path}");
        let policy = reply.head.get("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; ") && !policy.contains("unsafe"), "{policy}");
        let elsewhere = text.split("http").skip(1).filter(|rest| !rest.starts_with("://www.w3.org/"));
        assert_eq!(elsewhere.filter(|rest| rest.starts_with("://") || rest.starts_with("s://")).count(), 0);
        for sink in ["innerHTML", "insertAdjacentHTML", "eval(", "Function("] {
            assert!(!text.contains(sink), "{path} has {sink}");
        }
    }
}

#[tokio::test]
async fn the_manual_that_the_dashboard_links_to_is_shown_and_asks_for_no_token() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "0123456789abcdef").unwrap();
    let binary = Binary::serve("http://127.0.0.1:1", &[("ADMIN__TOKEN_FILE", token.to_str().unwrap())]).await;
    let reply =
        Peer::connect(binary.admin).await.ask(b"GET /manual HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let (_, kind, text) = page::MANUAL;
    assert_eq!((reply.status(), reply.head.get("content-type").as_deref()), (200, Some(kind)));
    assert_eq!(reply.body, text.as_bytes());
    assert!(text.contains("### ForkpointStoreDegraded"));
    let dashboard = std::fs::read_to_string("dashboards/forkpoint.json").unwrap();
    assert!(dashboard.contains("\"query\": \"http://127.0.0.1:8788/manual\""));
}
