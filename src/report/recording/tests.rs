use std::sync::atomic::AtomicU64;

use super::*;
use crate::config::Selector;

fn start(config: &config::Config, metrics: &Arc<Metrics>) -> Result<Arc<Recording>, OpenError> {
    Recording::start(config, metrics, Arc::new(Moment::default)).map(Option::unwrap)
}

fn entry(body: &str) -> Entry {
    Entry {
        record: ExchangeRecord {
            v: VERSION,
            id: 7,
            model: "claude-x".into(),
            tenant: Some("0123abcd".into()),
            ..ExchangeRecord::default()
        },
        request: Some(Bytes::from(body.to_owned())),
        forwarded: Some(vec![Bytes::from_static(b"{\"messages\":"), Bytes::from_static(b"[]}")]),
        answer: Some(br#"{"role":"assistant","content":[]}"#.to_vec()),
        ..Entry::default()
    }
}

fn config(folder: &tempfile::TempDir, change: impl FnOnce(&mut config::Record)) -> config::Config {
    let mut config = config::Config::default();
    config.record.file = Some(folder.path().join("r.jsonl"));
    change(&mut config.record);
    config
}

fn lines(path: &std::path::Path) -> Vec<ExchangeRecord> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn bodies_are_kept_as_asked_and_in_full_for_whom_matches() {
    let body = r#"{"model":"claude-x","messages":[{"role":"user","content":"secret words"}]}"#;
    for (bodies, kept) in [(Bodies::Off, false), (Bodies::Redacted, true), (Bodies::Full, true)] {
        let folder = tempfile::tempdir().unwrap();
        let metrics = Arc::new(Metrics::new().unwrap());
        let config = config(&folder, |record| {
            record.bodies = bodies;
            record.matching = Some(Selector::Tenant("0123abcd".into()));
        });
        let recording = start(&config, &metrics).unwrap();
        recording.take(entry(body));
        recording.take(Entry {
            record: ExchangeRecord { tenant: Some("ffffffff".into()), ..ExchangeRecord::default() },
            ..entry(body)
        });
        recording.flush();
        let all = lines(&folder.path().join("r.jsonl"));
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].id, all[0].bodies.as_str()), (7, bodies.as_str()));
        let request = all[0].request.as_deref();
        assert_eq!(request.is_some(), kept);
        assert_eq!(request == Some(body), bodies == Bodies::Full);
        assert!(request.is_none_or(|request| request.len() == body.len()));
        assert_eq!(all[0].answer.is_some(), kept);
        let matched = lines(&folder.path().join("r.jsonl.match"));
        assert_eq!(matched.len(), 1);
        assert_eq!(matched[0].request.as_deref(), Some(body));
        assert_eq!(matched[0].forwarded.as_deref(), Some(r#"{"messages":[]}"#));
        assert_eq!(metrics.record_lines_total.with_label_values::<&str>(&[]).get(), 3);
    }
}

#[test]
fn whoever_is_named_while_it_runs_is_kept_from_then_on_and_no_credential_is() {
    let body = r#"{"model":"claude-x","mcp_servers":[{"authorization_token":"s3cret"}],"messages":[]}"#;
    let folder = tempfile::tempdir().unwrap();
    let config = config(&folder, |_| ());
    let clock = Arc::new(AtomicU64::default());
    let now = Arc::clone(&clock);
    let metrics = Arc::new(Metrics::new().unwrap());
    let now = Arc::new(move || Moment(now.load(Relaxed)));
    let recording = Recording::start(&config, &metrics, now).unwrap().unwrap();
    let kept = || {
        recording.take(entry(body));
        recording.flush();
        lines(&folder.path().join("r.jsonl.match")).len()
    };
    let select = |matching: Option<Selector>| {
        recording.match_from(&config::Record { matching, ..config.record.clone() });
        kept()
    };
    let tenant = || Some(Selector::Tenant("0123abcd".into()));
    assert_eq!(select(None), 0);
    assert_eq!(select(tenant()), 1);
    assert_eq!(kept(), 2);
    clock.fetch_add(60_000 * config.record.match_minutes as u64, Relaxed);
    assert_eq!(kept(), 2, "its time has run out");
    assert!(!recording.keeps_bodies(), "of nobody");
    assert_eq!(select(tenant()), 3, "from here on");
    assert_eq!(select(None), 3);
    let text = std::fs::read_to_string(folder.path().join("r.jsonl.match")).unwrap();
    assert!(text.contains("authorization_token") && !text.contains("s3cret"), "{text}");
}

#[test]
fn a_full_queue_and_bodies_beyond_the_budget_cost_lines_and_nobody_waits() {
    let metrics = Arc::new(Metrics::new().unwrap());
    let (recording, entries) = Recording::to_memory(&metrics, 2);
    for _ in 0..5 {
        recording.take(entry("{}"));
    }
    let dropped = |reason: &str| metrics.record_dropped_total.with_label_values(&[reason]).get();
    assert_eq!((entries.take().len(), dropped("queue")), (2, 3));

    let (recording, jobs) = Recording::queue(Bodies::Full, &metrics, Arc::new(Moment::default), 100);
    let body = "x".repeat(QUEUE_BYTES / 2);
    for _ in 0..3 {
        recording.take(entry(&body));
    }
    assert_eq!((jobs.try_iter().count(), dropped("memory")), (1, 2));
}

#[test]
fn a_line_longer_than_a_file_is_dropped_and_counted() {
    let folder = tempfile::tempdir().unwrap();
    let metrics = Arc::new(Metrics::new().unwrap());
    let config = config(&folder, |record| (record.bodies, record.max_bytes) = (Bodies::Full, 4096));
    let recording = start(&config, &metrics).unwrap();
    recording.take(entry(&format!("{{\"model\":\"{}\"}}", "x".repeat(5000))));
    recording.take(entry("{}"));
    recording.flush();
    assert_eq!(lines(&folder.path().join("r.jsonl")).len(), 1);
    assert_eq!(metrics.record_dropped_total.with_label_values(&["too_long"]).get(), 1);
}

#[test]
fn a_place_that_cannot_be_written_is_named() {
    let mut config = config::Config::default();
    config.record.file = Some("/nowhere/r.jsonl".into());
    let error = start(&config, &Arc::new(Metrics::new().unwrap())).err().unwrap().to_string();
    assert!(error.starts_with("cannot record to /nowhere/r.jsonl (record.file): "), "{error}");
}

#[test]
fn the_filler_agrees_between_processes_only_with_a_pepper() {
    assert_eq!(key("p"), key("p"));
    assert_ne!(key(""), key(""));
}
