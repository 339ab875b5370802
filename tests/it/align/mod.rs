//! `align`: every client gets a stable prefix and its breakpoints, and the model reads what it always read.

mod clients;
mod thirty_turns;
mod never_dearer;
mod series;
mod fan_outs;
mod string_system;
mod unrepairable;
mod fallback;
mod untouched;
mod habits;
mod imagined;
mod forgotten;
pub mod wire;

use forkpoint::config::{self, Mode, Overrides};
use forkpoint::sim::{Latency, Sim, SimConfig, SimRules};
use serde_json::Value;

use super::harness::Forkpoint;
use super::workload::{Exchange, Letter, Line};

/// A simulator, and forkpoint in front of it.
struct Stage {
    sim: Sim,
    forkpoint: Forkpoint,
}

impl Stage {
    async fn aligned() -> Stage {
        Stage::aligned_under(|_| ()).await
    }

    async fn aligned_under(change: impl FnOnce(&mut SimRules)) -> Stage {
        let sim = simulator(change).await;
        let forkpoint = Forkpoint::with(&sim.url(), |config| config.server.mode = mode("align")).await;
        Stage { sim, forkpoint }
    }

    fn line(&self) -> Line<'_> {
        let url = format!("http://{}", self.forkpoint.address);
        Line::through(url, self.forkpoint.proxy.clone(), &self.sim)
    }
}

async fn simulator(change: impl FnOnce(&mut SimRules)) -> Sim {
    let mut config = SimConfig { latency: Latency::none(), ..SimConfig::default() };
    change(&mut config.rules);
    Sim::start(config).await.unwrap()
}

/// The mode with this name, as a configuration gives it.
fn mode(name: &str) -> Mode {
    let overrides = Overrides { mode: Some(name.to_owned()), ..Overrides::default() };
    match config::load(&overrides, [("", ""); 0]) {
        Ok(loaded) => loaded.config.server.mode,
        Err(problems) => panic!("no mode {name}: {problems}"),
    }
}

/// The letters again, as they were sent.
fn as_sent(exchanges: &[Exchange]) -> Vec<Letter> {
    exchanges.iter().map(|exchange| exchange.sent.clone()).collect()
}

/// The letters again, with the bodies that arrived.
fn as_forwarded(exchanges: &[Exchange]) -> Vec<Letter> {
    let forwarded =
        |exchange: &Exchange| Letter { body: exchange.forwarded.to_vec(), ..exchange.sent.clone() };
    exchanges.iter().map(forwarded).collect()
}

/// What the model reads of a body: markers gone, tools by name. Key order, white space and escapes do not count
/// when two of these are compared, strings against blocks do.
fn reading(body: &[u8]) -> Value {
    let mut body: Value = serde_json::from_slice(body).unwrap();
    unmark(&mut body);
    for list in ["tools", "system"] {
        body[list].as_array_mut().into_iter().flatten().for_each(unmark);
    }
    for message in body["messages"].as_array_mut().into_iter().flatten() {
        for block in message["content"].as_array_mut().into_iter().flatten() {
            unmark(block);
        }
    }
    if let Some(tools) = body["tools"].as_array_mut() {
        tools.sort_by_key(|tool| tool["name"].as_str().unwrap_or_default().to_owned());
    }
    body
}

fn unmark(value: &mut Value) {
    if let Some(object) = value.as_object_mut() {
        object.shift_remove("cache_control");
    }
}

/// How many markers were added, if that is all that was done.
fn markers_added(sent: &[u8], forwarded: &[u8]) -> Option<usize> {
    const MARKERS: [&str; 3] = [
        r#""cache_control":{"type":"ephemeral"}"#,
        r#""cache_control":{"type":"ephemeral","ttl":"5m"}"#,
        r#""cache_control":{"type":"ephemeral","ttl":"1h"}"#,
    ];
    let forms: Vec<Vec<u8>> = MARKERS
        .iter()
        .flat_map(|marker| [format!(",{marker}"), format!("{marker},"), (*marker).to_owned()])
        .map(String::into_bytes)
        .collect();
    let (mut at, mut from, mut added) = (0, 0, 0);
    while from < forwarded.len() {
        let begins = matches!(forwarded[from], b',' | b'"');
        let is_new = |form: &&Vec<u8>| forwarded[from..].starts_with(form) && !sent[at..].starts_with(form);
        let inserted = if begins { forms.iter().find(is_new) } else { None };
        match inserted {
            Some(form) => {
                from += form.len();
                added += 1;
            }
            None if sent.get(at) == Some(&forwarded[from]) => {
                at += 1;
                from += 1;
            }
            None => return None,
        }
    }
    (at == sent.len()).then_some(added)
}

#[test]
fn added_markers_are_told_from_other_changes() {
    let sent = br#"{"a":[{"cache_control":{"type":"ephemeral"}},{"t":1}]}"#;
    let forwarded = br#"{"cache_control":{"type":"ephemeral"},"a":[{"cache_control":{"type":"ephemeral"}},{"t":1,"cache_control":{"type":"ephemeral","ttl":"1h"}}]}"#;
    assert_eq!(markers_added(sent, sent), Some(0));
    assert_eq!(markers_added(sent, forwarded), Some(2));
    assert_eq!(markers_added(sent, br#"{"a":[{"cache_control":{"type":"ephemeral"}},{"t":2}]}"#), None);
    assert_eq!(markers_added(sent, br#"{"a":[{},{"t":1}]}"#), None);
}
