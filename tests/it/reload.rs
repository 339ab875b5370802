//! Another configuration while requests run: whole or not at all, and no stream notices.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::harness::samples::{EVENT_STREAM, OK, PROMPT, message};
use crate::harness::{Binary, Peer, Upstream, call, get, sum};

/// Enough that a mistake in one in a hundred shows.
const STREAMS: usize = 200;

struct File {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl File {
    fn with(text: &str) -> File {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("forkpoint.toml");
        let file = File { _folder: folder, path };
        file.write(text);
        file
    }

    /// As editors do: another file takes the place of the old one.
    fn write(&self, text: &str) {
        let next = self.path.with_extension("next");
        std::fs::write(&next, text).unwrap();
        std::fs::rename(next, &self.path).unwrap();
    }

    async fn serve(&self, upstream: &str) -> Binary {
        Binary::serve(upstream, &[("FORKPOINT_CONFIG", path(&self.path)), ("LOG__FORMAT", "json")]).await
    }
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

async fn config(binary: &Binary) -> Value {
    let (status, text) = binary.admin("/api/config").await;
    assert_eq!(status, 200, "{text}");
    serde_json::from_str(&text).unwrap()
}

async fn metric(binary: &Binary, name: &str, labels: &[&str]) -> f64 {
    sum(&binary.admin("/metrics").await.1, name, labels)
}

const LOADED: &str = "configuration loaded";
const REFUSED: &str = "configuration refused as a whole";

#[tokio::test]
async fn a_hangup_loads_the_file_and_what_is_open_is_named_and_left() {
    let upstream = Upstream::answering(&message()).await;
    let file = File::with("[identity]\npepper = 'cAnArY'\n");
    let binary = file.serve(&upstream.url()).await;
    let before = config(&binary).await;
    assert_eq!((&before["generation"], &before["needs_restart"]), (&1.into(), &Value::Array(vec![])));
    assert_eq!(before["config"]["identity"]["pepper"], "MASKED");
    assert!(binary.client().await.ask(&call(PROMPT)).await.reason().is_some());
    file.write(
        "[identity]\npepper = 'dUcK'\n[server]\nresponse_headers = false\nlisten = '127.0.0.1:9'\n\
         [gate]\nmax_hold_ms = 7\n[store]\nrecent_bytes = 0\n",
    );
    binary.signal("HUP").await;
    let said: Value = serde_json::from_str(&binary.line(LOADED).await).unwrap();
    assert_eq!(said["changed"], "server.response_headers,gate.max_hold_ms");
    // What a flag says is stronger than the file, before and after.
    assert_eq!(said["needs_restart"], "identity.pepper,store.recent_bytes");
    assert_eq!(binary.client().await.ask(&call(PROMPT)).await.reason(), None);
    let after = config(&binary).await;
    assert_eq!(after["generation"], 2);
    assert_eq!(after["needs_restart"], serde_json::json!(["identity.pepper", "store.recent_bytes"]));
    assert_eq!(after["config"]["gate"]["max_hold_ms"], 7);
    assert_eq!(metric(&binary, "forkpoint_config_generation", &[]).await, 2.0);
    assert_eq!(metric(&binary, "forkpoint_config_reloads_total", &["loaded"]).await, 1.0);
    let generations: Vec<_> = binary.records(2).await.iter().map(|record| record["config"].clone()).collect();
    assert_eq!(generations, [1, 2]);
    let everything = binary.said().join("\n") + &after.to_string();
    assert!(!everything.contains("cAnArY") && !everything.contains("dUcK"), "{everything}");
}

#[tokio::test]
async fn a_hangup_turns_the_keeping_of_bodies_on_and_off() {
    let upstream = Upstream::answering(&message()).await;
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("r.jsonl");
    let record = format!("[record]\nfile = '{}'\n", path(&recording));
    let file = File::with(&record);
    let mut binary = file.serve(&upstream.url()).await;
    binary.client().await.ask(&call(PROMPT)).await;
    let tenant = binary.records(1).await[0]["tenant"].as_str().unwrap().to_owned();
    for (loaded, settings) in [format!("match = 'tenant:{tenant}'\n"), String::new()].iter().enumerate() {
        file.write(&format!("{record}{settings}"));
        binary.signal("HUP").await;
        let said: Value = serde_json::from_str(&binary.lines(LOADED, loaded + 1).await[loaded]).unwrap();
        assert_eq!(
            (&said["changed"], &said["needs_restart"]),
            (&"record.match".into(), &"".into()),
            "{said}"
        );
        binary.client().await.ask(&call(PROMPT)).await;
    }
    binary.signal("TERM").await;
    assert!(binary.exit().await.success());
    let lines = crate::recording::lines(&recording);
    assert!(lines.len() == 3 && lines.iter().all(|line| line.request.is_none()), "{lines:?}");
    let matched = crate::recording::lines(&recording.with_extension("jsonl.match"));
    assert_eq!(matched.iter().map(|line| line.id).collect::<Vec<_>>(), [lines[1].id]);
    assert_eq!(matched[0].request.as_deref().map(str::as_bytes), Some(PROMPT));
}

#[tokio::test]
async fn a_file_that_changes_is_loaded_without_being_told() {
    let upstream = Upstream::answering(OK).await;
    let file = File::with("");
    let binary = file.serve(&upstream.url()).await;
    let prices = file.path.with_extension("prices");
    std::fs::write(&prices, include_str!("../../config/prices.toml")).unwrap();
    file.write(&format!("[prices]\nfile = '{}'\n[limits]\nbody_bytes = 1000\n", path(&prices)));
    binary.line(LOADED).await;
    assert_eq!(config(&binary).await["config"]["limits"]["body_bytes"], 1000);
    // The table that it names is looked at too.
    std::fs::write(&prices, "nonsense").unwrap();
    assert!(binary.line(REFUSED).await.contains("prices"));
    assert_eq!(config(&binary).await["generation"], 2);
}

#[tokio::test]
async fn an_invalid_file_is_refused_whole_and_the_old_one_stays() {
    let upstream = Upstream::answering(&message()).await;
    let file = File::with("[limits]\nbody_bytes = 2000\n");
    let binary = file.serve(&upstream.url()).await;
    file.write(
        "[server]\nresponse_headers = false\n[limits]\nbody_bytes = 3000\nstall_s = 'no'\n[[policy]]\n",
    );
    binary.signal("HUP").await;
    let said = binary.line(REFUSED).await;
    assert!(said.contains("limits.stall_s") && said.contains("forkpoint.toml:5"), "{said}");
    assert!(said.contains("[[policy]]: known, but not built"), "{said}");
    let stays = config(&binary).await;
    assert_eq!((&stays["generation"], &stays["config"]["limits"]["body_bytes"]), (&1.into(), &2000.into()));
    assert!(binary.client().await.ask(&call(PROMPT)).await.reason().is_some());
    assert_eq!(metric(&binary, "forkpoint_config_reloads_total", &["refused"]).await, 1.0);
    assert_eq!(metric(&binary, "forkpoint_config_generation", &[]).await, 1.0);
    // Mended, it is taken.
    file.write("[limits]\nbody_bytes = 3000\n");
    binary.signal("HUP").await;
    binary.line(LOADED).await;
    assert_eq!(config(&binary).await["config"]["limits"]["body_bytes"], 3000);
}

#[tokio::test]
async fn a_request_keeps_the_settings_that_it_began_with() {
    let upstream = Upstream::bind().await;
    let file = File::with("");
    let binary = file.serve(&upstream.url()).await;
    let mut client = binary.client().await;
    let request = call(PROMPT);
    let (begins, ends) = request.split_at(request.len() - 5);
    client.send(begins).await;
    // Collected so far, so that it has begun.
    while metric(&binary, "forkpoint_held", &["bytes"]).await < (PROMPT.len() - 5) as f64 {
        tokio::task::yield_now().await;
    }
    file.write("[limits]\nbody_bytes = 10\n");
    binary.signal("HUP").await;
    binary.line(LOADED).await;
    client.send(ends).await;
    let (mut server, _) = upstream.asked().await;
    server.send(&message()).await;
    let reply = client.reply().await;
    assert_ne!(reply.reason().as_deref(), Some("body_too_large"));
    client.send(&call(PROMPT)).await;
    server.request().await;
    server.send(&message()).await;
    assert_eq!(client.reply().await.reason().as_deref(), Some("body_too_large"));
    let generations: Vec<_> = binary.records(2).await.iter().map(|record| record["config"].clone()).collect();
    assert_eq!(generations, [1, 2]);
}

#[tokio::test]
async fn two_hundred_streams_survive_a_reload_and_a_drain() {
    let upstream = Upstream::bind().await;
    let file = File::with("");
    let mut binary = file.serve(&upstream.url()).await;
    let mut streams: Vec<(Peer, Peer)> = Vec::new();
    for _ in 0..STREAMS {
        let mut client = binary.client().await;
        client.send(&call(PROMPT)).await;
        let (mut server, _) = upstream.asked().await;
        server.send(EVENT_STREAM).await;
        streams.push((client, server));
    }
    everywhere(&mut streams, "before").await;
    file.write("[limits]\nconnections = 1\nstall_s = 120\n[drain]\ndeadline_s = 600\n");
    binary.signal("HUP").await;
    binary.line(LOADED).await;
    everywhere(&mut streams, "after the reload").await;
    binary.client().await.ask(&get("/")).await.is_refusal(503, "connections");
    binary.signal("TERM").await;
    binary.line("draining").await;
    // Told while it drains, it goes on draining.
    binary.signal("HUP").await;
    everywhere(&mut streams, "while it drains").await;
    for (client, server) in &mut streams {
        server.send(b"0\r\n\r\n").await;
        client.through(b"0\r\n\r\n").await;
    }
    assert_eq!(binary.exit().await.code(), Some(0));
    binary.line("\"drained\"").await;
    let records = binary.records(STREAMS + 1).await;
    let whole = records.iter().filter(|record| record["ending"] == "complete" && record["config"] == 1);
    assert_eq!(whole.count(), STREAMS);
}

/// One event on every stream, at its client.
async fn everywhere(streams: &mut [(Peer, Peer)], when: &str) {
    let event = format!("data: {{\"type\":\"ping\",\"when\":\"{when}\"}}\n\n");
    for (_, server) in streams.iter_mut() {
        server.send_chunk(event.as_bytes()).await;
    }
    for (client, _) in streams {
        client.through(event.as_bytes()).await;
    }
}
