//! The table of metrics is written from their declarations; labels stay within their bounds.

use std::collections::{BTreeMap, HashSet};

use forkpoint::config::Config;
use forkpoint::metrics::Metrics;
use forkpoint::sim::{Sim, SimConfig};
use serde_json::json;

use super::{DASHBOARDS, read, root};
use crate::harness::{Forkpoint, Log, Upstream, post, samples, until};

const START: &str = "<!-- metrics: written by `UPDATE=1 cargo test --test it readme` -->\n";
const END: &str = "<!-- /metrics -->";

/// One row per family, in the order of the declarations.
fn table() -> String {
    let mut rows = "| metric | type | meaning |\n|---|---|---|\n".to_owned();
    for family in Metrics::new().unwrap().families() {
        let labels =
            if family.labels.is_empty() { String::new() } else { format!("{{{}}}", family.labels.join(",")) };
        let meaning = family.help.trim_end_matches('.').replace('|', "\\|");
        rows += &format!("| `{}{labels}` | {} | {meaning} |\n", family.name, family.kind);
    }
    rows
}

#[test]
fn the_page_lists_every_metric_as_it_is_declared() {
    let text = read(DASHBOARDS);
    let (before, rest) = text.split_once(START).expect("where the table starts");
    let (written, after) = rest.split_once(END).expect("where the table ends");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(root().join(DASHBOARDS), [before, START, &table(), END, after].concat()).unwrap();
        return;
    }
    assert!(written == table(), "the table differs; run again with UPDATE=1 and look at the change");
}

#[test]
fn every_metric_is_named_for_its_unit_and_explained_in_a_sentence() {
    for family in Metrics::new().unwrap().families() {
        let (name, kind) = (&family.name, family.kind);
        assert!(name.starts_with("forkpoint_") || name.starts_with("process_"), "{name}");
        assert_eq!(name.ends_with("_total"), kind == "counter", "{name} is a {kind}");
        assert!(family.help.ends_with('.') && family.help.len() > 15, "{name}: {}", family.help);
    }
}

/// The values that a label has, in any family.
fn values(exposition: &str, label: &str) -> HashSet<String> {
    let start = format!("{label}=\"");
    let samples = exposition.lines().filter(|line| !line.starts_with('#'));
    let rest = samples.filter_map(|line| line.split_once(&*start).map(|(_, rest)| rest));
    rest.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())).collect()
}

#[tokio::test]
async fn three_hundred_models_clients_and_tenants_stay_within_the_bounds_of_their_labels() {
    let upstream = Upstream::answering(&samples::message()).await;
    let forkpoint = Forkpoint::before(&upstream.url()).await;
    let ask = async |number: usize, model: &str| {
        let headers = format!("x-api-key: key-{number}\r\nuser-agent: claude-cli/{number}.1.0\r\n");
        let body =
            json!({"model": model, "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]});
        let request = post("/v1/messages", &headers, body.to_string().as_bytes());
        assert_eq!(forkpoint.client().await.ask(&request).await.status(), 200);
    };
    for number in 0..300 {
        ask(number, &format!("claude-invented-{number}")).await;
    }
    ask(300, "claude-opus-5-5").await;
    ask(301, "no name {of a model}").await;
    forkpoint.recorded(302).await;
    let exposition = forkpoint.metrics.render().unwrap();
    let of = |label| values(&exposition, label);
    let models = of("model");
    assert!(
        models.contains("claude-invented-0") && models.contains("other") && models.len() <= 64,
        "{models:?}"
    );
    assert!(models.contains("claude-opus-5-5"), "a model with a price keeps its place: {models:?}");
    let harmless = |name: &String| name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:@/-".contains(&b));
    assert!(models.iter().all(harmless), "{models:?}");
    // Of 64 and of 50 places one is kept for `none`, which nobody was here.
    let (clients, tenants) = (of("client"), of("tenant"));
    assert_eq!((clients.len(), tenants.len()), (63, 49));
    assert!(clients.contains("other") && tenants.contains("other"), "{clients:?} {tenants:?}");
    let others = |name: &str| forkpoint.metric(name, &["\"other\""]);
    assert!(
        others("forkpoint_client_requests_total") > 200.0 && others("forkpoint_tenant_tokens_total") > 200.0
    );
    let counted = forkpoint.metric("forkpoint_requests_total", &["model=\"other\""]);
    assert_eq!(counted as usize, 302 - (models.len() - 1), "nobody is lost");
}

#[tokio::test]
async fn of_sixty_fan_outs_the_newest_fifty_are_shown() {
    let log = Log::start();
    let sim = Sim::start(SimConfig::default()).await.unwrap();
    let forkpoint = Forkpoint::before(&sim.url()).await;
    let tool = json!({"name": "Agent", "description": "Starts an agent.", "input_schema": {"type": "object",
        "properties": {"prompt": {"type": "string"}}, "required": ["prompt"]}});
    for number in 0..60 {
        let ask = format!("Survey part {number}. [[sim:fan_out n=2 tool=Agent field=prompt words=60]]");
        let body = json!({"model": "claude-sonnet-4-6", "max_tokens": 9000, "stream": true, "tools": [tool],
            "messages": [{"role": "user", "content": ask}]});
        let headers = "x-api-key: key\r\nanthropic-version: 2023-06-01\r\n";
        let request = post("/v1/messages", headers, body.to_string().as_bytes());
        assert_eq!(forkpoint.client().await.ask(&request).await.status(), 200);
        forkpoint.recorded(number + 1).await;
    }
    assert_eq!(forkpoint.metric("forkpoint_forks_total", &["outcome=\"sealed\""]), 60.0);
    until("all lines in the log", || log.count() == 60).await;
    let fan_outs = log.records();
    let newest = fan_outs[10..].iter().map(|line| line["fanned_out"].as_str().unwrap().to_owned());
    let exposition = forkpoint.metrics.render().unwrap();
    assert_eq!(values(&exposition, "fork"), newest.collect::<HashSet<_>>());
    assert_eq!(forkpoint.metric("forkpoint_prefix_info", &[]), 50.0, "each is 1");
    assert_eq!(values(&exposition, "prefix").len(), 50);
}

#[tokio::test]
async fn a_tenant_with_a_name_is_shown_by_it_and_keeps_its_place() {
    let upstream = Upstream::answering(&samples::message()).await;
    let ask = async |forkpoint: &Forkpoint, key: &str| {
        let body = br#"{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hello"}]}"#;
        let request = post("/v1/messages", &format!("x-api-key: {key}\r\n"), body);
        assert_eq!(forkpoint.client().await.ask(&request).await.status(), 200);
    };
    let tokens = |forkpoint: &Forkpoint, tenant: &str| {
        forkpoint.metric("forkpoint_tenant_tokens_total", &[&format!("tenant=\"{tenant}\"")])
    };
    let unnamed = Forkpoint::before(&upstream.url()).await;
    ask(&unnamed, "of the till").await;
    unnamed.recorded(1).await;
    let digits = values(&unnamed.metrics.render().unwrap(), "tenant").into_iter().next().unwrap();
    assert_eq!(digits.len(), 8);

    let names =
        |config: &mut Config| config.tenants = BTreeMap::from([(digits.clone(), "checkout".to_owned())]);
    let forkpoint = Forkpoint::with(&upstream.url(), names).await;
    for number in 0..60 {
        ask(&forkpoint, &format!("another {number}")).await;
    }
    ask(&forkpoint, "of the till").await;
    forkpoint.recorded(61).await;
    assert_eq!(tokens(&forkpoint, "checkout"), tokens(&unnamed, &digits));
    assert_eq!(tokens(&forkpoint, &digits), 0.0);
    assert_eq!(values(&forkpoint.metrics.render().unwrap(), "tenant").len(), 49);
}
