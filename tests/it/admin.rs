//! The port for operators.

use std::collections::BTreeSet;

use crate::harness::samples::{PROMPT, message};
use crate::harness::{Binary, Peer, Upstream, call};

#[tokio::test]
async fn health_and_readiness_do_not_depend_on_the_upstream() {
    let binary = Binary::serve("http://127.0.0.1:1", &[]).await;
    assert_eq!(binary.admin("/healthz").await, (200, "ok\n".into()));
    assert_eq!(binary.admin("/readyz").await, (200, "ready\n".into()));
    assert_eq!(binary.admin("/nothing").await.0, 404);
    binary.client().await.ask(&call(PROMPT)).await.is_refusal(502, "upstream_unreachable");
    assert_eq!(binary.admin("/readyz").await.0, 200);
}

#[tokio::test]
async fn every_metric_has_help_and_type_before_and_after_the_first_request() {
    let upstream = Upstream::answering(&message()).await;
    let binary = Binary::serve(&upstream.url(), &[("LOG__FORMAT", "json")]).await;
    let fresh = families(&binary.admin("/metrics").await.1);
    binary.client().await.ask(&call(PROMPT)).await;
    binary.records(1).await;
    let (status, used) = binary.admin("/metrics").await;
    assert_eq!(status, 200);
    assert_eq!(families(&used), fresh);
    assert!(fresh.len() > 5, "{fresh:?}");
    for line in used.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let family = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
        assert!(fresh.contains(name) || family.is_some_and(|family| fresh.contains(family)), "{line}");
    }
    assert_eq!(crate::harness::sum(&used, "forkpoint_tokens_total", &[]), 15.0);
    assert_eq!(crate::harness::sum(&used, "forkpoint_tenant_tokens_total", &[]), 15.0);
}

#[tokio::test]
async fn the_process_and_its_connections_are_shown() {
    let upstream = Upstream::bind().await;
    let binary = Binary::serve(&upstream.url(), &[]).await;
    let mut client = binary.client().await;
    client.send(&call(PROMPT)).await;
    let (_server, _) = upstream.asked().await;
    let shown = binary.admin("/metrics").await.1;
    let value = |name: &str, labels: &[&str]| crate::harness::sum(&shown, name, labels);
    for name in [
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_virtual_memory_bytes",
        "process_open_fds",
        "process_max_fds",
        "process_threads",
        "process_start_time_seconds",
    ] {
        assert!(value(name, &[]) > 0.0, "{name}");
    }
    assert!(value("process_open_fds", &[]) < value("process_max_fds", &[]));
    assert_eq!(value("forkpoint_connections", &["port=\"proxy\""]), 1.0);
    assert_eq!(value("forkpoint_connections", &["port=\"admin\""]), 1.0, "the one that asks");
    assert_eq!(value("forkpoint_exchanges", &[]), 1.0);
}

#[tokio::test]
async fn counters_of_known_kinds_begin_at_zero() {
    let binary = Binary::serve("http://127.0.0.1:1", &[]).await;
    let shown = binary.admin("/metrics").await.1;
    for sample in [
        "forkpoint_passthrough_total{reason=\"held_bytes\"} 0",
        "forkpoint_refused_total{reason=\"connections\"} 0",
        "forkpoint_fallbacks_total{reason=\"lost_prefix\"} 0",
        "forkpoint_cache_breaks_total{cause=\"system\",layer=\"system\"} 0",
        "forkpoint_forks_total{outcome=\"sealed\"} 0",
        "forkpoint_children_total{plan=\"forked\",reason=\"none\"} 0",
        "forkpoint_gate_holds_total{outcome=\"led\"} 0",
        "forkpoint_config_reloads_total{outcome=\"refused\"} 0",
    ] {
        assert!(shown.lines().any(|line| line == sample), "{sample}");
    }
}

/// The families of an exposition; each must have both lines, once.
fn families(exposition: &str) -> BTreeSet<String> {
    let named = |prefix: &str| -> Vec<String> {
        let lines = exposition.lines().filter_map(|line| line.strip_prefix(prefix));
        lines.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    };
    let (help, kind) = (named("# HELP "), named("# TYPE "));
    let set: BTreeSet<_> = help.iter().cloned().collect();
    assert_eq!(set, kind.iter().cloned().collect());
    assert_eq!((set.len(), set.len()), (help.len(), kind.len()), "a family is declared twice");
    set
}

#[tokio::test]
async fn a_name_that_somebody_else_pointed_here_is_not_answered() {
    let binary = Binary::serve("http://127.0.0.1:1", &[]).await;
    for (target, host, status) in [
        ("/metrics", "host: evil.example\r\n", 421),
        ("/metrics", "host: evil.example:8788\r\n", 421),
        ("/metrics", "host: localhost\r\nhost: evil.example\r\n", 421),
        ("/metrics", "host: \r\n", 421),
        ("http://evil.example/metrics", "host: localhost\r\n", 421),
        ("/metrics", "host: localhost:1\r\n", 200),
        ("/metrics", "host: 127.0.0.1\r\n", 200),
        ("/metrics", "host: [::1]:80\r\n", 200),
    ] {
        let request = format!("GET {target} HTTP/1.1\r\n{host}\r\n");
        let reply = Peer::connect(binary.admin).await.ask(request.as_bytes()).await;
        assert_eq!(reply.status(), status, "{target} {host:?}");
    }
}

#[tokio::test]
async fn every_spelling_of_an_address_has_the_same_door() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "0123456789abcdef").unwrap();
    let token = [("ADMIN__TOKEN_FILE", token.to_str().unwrap())];
    for (address, settings) in [("[::ffff:127.0.0.1]:0", &[][..]), ("0.0.0.0:0", &token)] {
        let settings = [&[("--admin-listen", address)], settings].concat();
        let binary = Binary::serve("http://127.0.0.1:1", &settings).await;
        for (host, status) in [("evil.example", 421), ("127.0.0.1", 200), ("[::ffff:127.0.0.1]:1", 200)] {
            let request = format!("GET /readyz HTTP/1.1\r\nhost: {host}\r\n\r\n");
            let reply = Peer::connect(binary.admin).await.ask(request.as_bytes()).await;
            assert_eq!(reply.status(), status, "{address} {host}");
        }
    }
}

#[tokio::test]
async fn the_door_of_scrapers_is_filtered_on_loopback_only() {
    for (address, status) in [("127.0.0.1:0", 421), ("[::ffff:127.0.0.1]:0", 421), ("0.0.0.0:0", 200)] {
        let binary = Binary::serve("http://127.0.0.1:1", &[("SERVER__METRICS_LISTEN", address)]).await;
        let metrics = binary.line("  metrics ").await;
        let metrics = metrics.rsplit("http://").next().unwrap().parse().unwrap();
        let reply = Peer::connect(metrics).await.ask(b"GET /metrics HTTP/1.1\r\nhost: by.name\r\n\r\n").await;
        assert_eq!(reply.status(), status, "{address}");
    }
}
