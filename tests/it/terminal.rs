//! The log as a person at a terminal sees it, and as a collector does.

use crate::harness::samples::message;
use crate::harness::terminal::Terminal;
use crate::harness::{Binary, Peer, Upstream, get, post};

const KEY: &str = "x-api-key: key\r\nanthropic-version: 2023-06-01\r\n";
const BODY: &[u8] =
    br#"{"model":"claude-opus-5-5","max_tokens":9,"messages":[{"role":"user","content":"Hi."}]}"#;

/// Serves in a terminal, and returns the address of the proxy.
async fn serve(upstream: &str, variables: &[(&str, &str)], columns: usize) -> (Terminal, String) {
    let words = format!("serve --listen 127.0.0.1:0 --admin-listen 127.0.0.1:0 --upstream {upstream}");
    let mut terminal = Terminal::start(&words, variables, columns, 30);
    terminal.shows("  off ").await;
    let text = terminal.screen.text();
    let proxy = text.lines().find_map(|line| line.strip_prefix("  proxy     http://")).unwrap();
    (terminal, proxy.to_owned())
}

async fn ask(proxy: &str, request: &[u8]) -> u16 {
    Peer::connect(proxy.parse().unwrap()).await.ask(request).await.status()
}

#[tokio::test]
async fn a_request_is_one_short_line_and_a_failure_says_its_cause() {
    let upstream = Upstream::answering(&message()).await;
    let (mut terminal, proxy) = serve(&upstream.url(), &[], 120).await;
    assert_eq!(ask(&proxy, &post("/v1/messages", KEY, BODY)).await, 200);
    terminal.shows("✓ plain aligned opus-5-5 read 2 write 7 $0.0002 (as sent $0.0002)").await;
    assert_eq!(ask(&proxy, &post("/v1/messages", "", BODY)).await, 200);
    terminal.shows("· it brings no credential").await;
    assert!(terminal.screen.raw.contains("\u{1b}[32m✓\u{1b}[0m plain"), "{}", terminal.screen.raw);
    assert!(terminal.screen.text().lines().all(|line| line.chars().count() <= 120));

    let variables = [("NO_COLOR", "1"), ("FORKPOINT_LOG__LEVEL", "warn")];
    let (mut terminal, proxy) = serve("http://127.0.0.1:1", &variables, 80).await;
    assert_eq!(ask(&proxy, &get("/v1/models")).await, 502);
    terminal.shows("✗ models left alone the upstream could not be reached").await;
    assert!(!terminal.screen.raw.contains('\u{1b}'), "{}", terminal.screen.raw);
}

#[tokio::test]
async fn every_line_of_a_log_in_json_is_json_the_first_one_too() {
    let upstream = Upstream::answering(&message()).await;
    let binary = Binary::serve(&upstream.url(), &[("LOG__FORMAT", "json")]).await;
    assert_eq!(binary.client().await.ask(&post("/v1/messages", KEY, BODY)).await.status(), 200);
    binary.records(1).await;
    binary.signal("TERM").await;
    binary.line("drained").await;
    let lines: Vec<serde_json::Value> =
        binary.said().iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines[0]["message"], "serving");
    for field in ["version", "proxy", "admin", "metrics", "upstream", "mode", "store", "off"] {
        assert!(lines[0][field].is_string(), "{field} in {}", lines[0]);
    }
    assert!(lines.len() >= 4, "{lines:?}");
}

#[tokio::test]
async fn a_failure_is_a_warning() {
    let binary = Binary::serve("http://127.0.0.1:1", &[("LOG__FORMAT", "json")]).await;
    assert_eq!(binary.client().await.ask(&post("/v1/messages", KEY, BODY)).await.status(), 502);
    let record = binary.records(1).await.remove(0);
    assert_eq!((&record["level"], &record["reason"]), (&"WARN".into(), &"upstream_unreachable".into()));
}

/// Two turns of one conversation: the second has its tools in another order, and another system prompt.
fn turns() -> [String; 2] {
    let tool = |name: &str| format!(r#"{{"name":"{name}","input_schema":{{"type":"object"}}}}"#);
    let body = |tools: [&str; 2], system: &str| {
        let tools = tools.map(tool).join(",");
        format!(
            r#"{{"model":"claude-opus-5-5","tools":[{tools}],"system":[{{"type":"text","text":"{system}","cache_control":{{"type":"ephemeral"}}}}],"messages":[{{"role":"user","content":"Look around."}}]}}"#
        )
    };
    let long = "Rules that all follow. ".repeat(800);
    [body(["grep", "read"], &long), body(["read", "grep"], &format!("{long}And one more."))]
}

#[tokio::test]
async fn explain_is_that_of_the_goldens_at_80_and_120_columns_with_and_without_colour() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["a.json", "b.json"].map(|name| folder.path().join(name).display().to_string());
    for (path, body) in paths.iter().zip(turns()) {
        std::fs::write(path, body).unwrap();
    }
    let words = format!("explain {} {}", paths[0], paths[1]);
    for columns in [80, 120] {
        for (suffix, variables) in [("", &[("NO_COLOR", "1")][..]), ("-colour", &[])] {
            let mut terminal = Terminal::start(&words, variables, columns, 60);
            assert!(terminal.ended().await.success());
            let shown =
                terminal.screen.raw.replace('\r', "").replace(&format!("{}/", folder.path().display()), "");
            assert_eq!(shown.contains('\u{1b}'), !suffix.is_empty(), "{shown}");
            let path =
                format!("{}/tests/golden/terminal/explain-{columns}{suffix}.txt", env!("CARGO_MANIFEST_DIR"));
            if std::env::var_os("UPDATE").is_some() {
                std::fs::write(&path, &shown).unwrap();
            }
            assert_eq!(shown, std::fs::read_to_string(&path).unwrap_or_default(), "{path}");
        }
    }
}
