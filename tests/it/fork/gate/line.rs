//! The log line of a gated child says all about the gate and its family, and nothing of what anybody said.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use forkpoint::config::LogFormat;
use forkpoint::report::LineFormat;
use serde_json::{Value, json};
use tracing_subscriber::fmt::MakeWriter;

use crate::harness::{Forkpoint, PATIENCE, Upstream, until};

use crate::fork::scene::{closing, request};
use crate::fork::talk::{
    Call, agent_call, directive, events, newcomer, parent, prompt_tokens, streamed, text, tool_use,
};

const CANARY: &str = "cAnArY-9b1e";

/// The log of this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(line)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Log;

    fn make_writer(&self) -> Log {
        self.clone()
    }
}

impl Log {
    fn lines(&self) -> Vec<Value> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The lines of requests, once there are so many.
    async fn records(&self, count: usize) -> Vec<Value> {
        let records = || -> Vec<Value> {
            self.lines().into_iter().filter(|line| line["target"] == "forkpoint::request").collect()
        };
        until(&format!("{count} records"), || records().len() >= count).await;
        records()
    }
}

fn hinted(call: Call) -> Call {
    call.with("x-claude-code-session-id", CANARY).and("metadata", json!({"user_id": CANARY}))
}

fn child(number: usize) -> Call {
    let told = directive(&format!("{CANARY} part {number}"));
    hinted(newcomer(told)).with("x-claude-code-agent-id", &format!("{CANARY}-{number}"))
}

fn is_digest(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.len() == 8 && text.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// A parent that fans out to two children.
async fn fan_out(forkpoint: &Forkpoint, upstream: &Upstream) {
    let lead = hinted(parent(CANARY));
    let call =
        |n: usize| agent_call(&format!("toolu_{CANARY}_{n}"), &directive(&format!("{CANARY} part {n}")));
    let mut client = forkpoint.client().await;
    client.send(&request(&lead)).await;
    let (mut peer, _) = upstream.asked().await;
    let events = events(&format!("msg_{CANARY}"), prompt_tokens(&lead.body), &[call(0), call(1)]);
    peer.send(&closing(&streamed(&events))).await;
    client.reply().await;
}

/// Two children, of which the second waits for the first and reads so many tokens.
async fn gated_children(forkpoint: &Forkpoint, upstream: &Upstream, read: u64) {
    let mut clients = [forkpoint.client().await, forkpoint.client().await];
    clients[0].send(&request(&child(0))).await;
    let (mut leader, _) = upstream.asked().await;
    clients[1].send(&request(&child(1))).await;
    until("both at the gate", || forkpoint.proxy.at_gate() == 2).await;
    let tokens = prompt_tokens(&child(0).body);
    let call = tool_use(&format!("toolu_{CANARY}"), "read_file", json!({"path": CANARY}));
    leader.send(&closing(&streamed(&events("msg_c0", tokens, &[text(CANARY), call])))).await;
    let (mut follower, _) = upstream.asked().await;
    let mut answer = events("msg_c1", tokens, &[text(CANARY)]);
    let billed = format!("\"cache_read_input_tokens\":{read}");
    answer[0] = answer[0].replace("\"cache_read_input_tokens\":0", &billed);
    follower.send(&closing(&streamed(&answer))).await;
    for client in &mut clients {
        assert_eq!(client.reply().await.status(), 200);
    }
}

// On one thread, which all of forkpoint runs on too: its log is that of this thread.
#[tokio::test]
async fn the_line_of_a_gated_child_names_its_family_and_its_wait() {
    let log = Log::default();
    let json = tracing_subscriber::fmt().json().flatten_event(true).with_current_span(false);
    let json = json.map_event_format(|others| LineFormat { format: LogFormat::Json, others });
    let subscriber = json.with_max_level(tracing::Level::TRACE).with_writer(log.clone()).finish();
    // With only one dispatcher, what other threads do not listen to is taken to be of interest to nobody.
    let _deaf = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::new());
    let _guard = tracing::subscriber::set_default(subscriber);
    let upstream = Upstream::bind().await;
    let forkpoint = Forkpoint::with(&upstream.url(), |config| config.gate.max_hold = PATIENCE).await;

    fan_out(&forkpoint, &upstream).await;
    let fanned_out = log.records(1).await.remove(0);
    assert_eq!((&fanned_out["role"], &fanned_out["kin"]), (&json!("plain"), &json!("no_fork_point")));
    assert!(is_digest(&fanned_out["fanned_out"]), "{fanned_out}");
    assert_eq!(fanned_out["fanned_out_children"], 2);

    gated_children(&forkpoint, &upstream, 1_500).await;
    let records = log.records(3).await;
    let of = |outcome: &str| records.iter().find(|record| record["gate"] == outcome).expect("a record");
    let (led, released) = (of("led"), of("released"));
    for record in [led, released] {
        assert_eq!((&record["role"], &record["kin"]), (&json!("child"), &json!("whole")), "{record}");
        assert_eq!((&record["fork"], &record["child_turn"]), (&fanned_out["fanned_out"], &json!(1)));
        for field in ["tenant", "session", "agent"] {
            assert!(is_digest(&record[field]), "{field} in {record}");
        }
    }
    assert_eq!((&led["gate_leader"], led["held_ms"].is_u64()), (&Value::Null, true));
    assert!(led["gate_ticket"].is_string() && led["gate_ticket"] == released["gate_leader"], "{released}");
    assert!(released["held_ms"].is_u64());
    assert_eq!(released["gate_saved_tokens"], 1_500);
    assert_eq!(released["gate_missed_tokens"], Value::Null);

    assert!(!forkpoint.metrics.render().unwrap().contains(CANARY));
    let lines = log.lines();
    assert!(lines.iter().any(|line| line["level"] == "TRACE"), "trace is on");
    for line in lines {
        assert!(!line.to_string().contains(CANARY), "{line}");
    }
}
