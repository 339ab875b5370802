//! The questions that the admin port answers, and to whom.

use std::sync::Arc;

use forkpoint::admin::api;
use forkpoint::proxy::live::Live;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::fork::scene::Scene;
use crate::harness::{Binary, Forkpoint, Peer, binary, within};

const TOKEN: &str = "cAnArY-0123456789-token";

fn token_file(text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

/// The status of a page for one who brings these headers.
async fn status(binary: &Binary, path: &str, headers: &str) -> u16 {
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n");
    Peer::connect(binary.admin).await.ask(request.as_bytes()).await.status()
}

#[tokio::test]
async fn beyond_loopback_it_does_not_start_without_a_token() {
    let (_folder, short) = token_file("short\n");
    for (token, said) in
        [("", "server.admin_listen"), (short.as_str(), "admin.token_file"), ("/none", "/none")]
    {
        let mut command = binary::command();
        command.args(["serve", "--admin-listen", "0.0.0.0:0", "--listen", "127.0.0.1:0"]);
        let output = command.env("FORKPOINT_ADMIN__TOKEN_FILE", token).output();
        let output = within("the process to end", output).await.unwrap();
        let complained = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{complained}");
        assert!(complained.contains(said) && complained.contains("hint: "), "{complained}");
        assert!(!complained.contains("short\""), "the token is nobody's to read: {complained}");
    }
}

#[tokio::test]
async fn with_a_token_only_health_and_files_without_data_are_for_everybody() {
    let (_folder, file) = token_file(&format!("{TOKEN}\n"));
    let right = format!("authorization: Bearer {TOKEN}\r\n");
    let wrong = format!("authorization: Bearer {TOKEN}x\r\n");
    for (open, metrics) in [("false", 401), ("true", 200)] {
        let settings = [
            ("ADMIN__TOKEN_FILE", file.as_str()),
            ("ADMIN__OPEN_METRICS", open),
            ("LOG__LEVEL", "trace"),
            ("--admin-listen", "0.0.0.0:0"),
        ];
        let binary = Binary::serve("http://127.0.0.1:1", &settings).await;
        for (path, without) in [
            ("/healthz", 200),
            ("/readyz", 200),
            ("/metrics", metrics),
            ("/api/config", 401),
            ("/api/forks", 401),
            ("/", 200),
            ("/page/page.css", 200),
            ("/nothing", 401),
        ] {
            assert_eq!(status(&binary, path, "").await, without, "{path}");
            assert_eq!(status(&binary, path, &wrong).await, without, "{path}");
            let with = if path == "/nothing" { 404 } else { 200 };
            assert_eq!(status(&binary, path, &right).await, with, "{path}");
        }
        for (headers, expected) in [("", 401), (&*wrong, 401), (&*right, 200)] {
            let request = format!("GET /events HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n");
            let mut reader = Peer::connect(binary.admin).await;
            reader.send(request.as_bytes()).await;
            assert_eq!(reader.head().await.status(), expected);
        }
        let (_, config) = binary.admin("/healthz").await;
        let said = binary.said().join("\n") + &config;
        assert!(!said.contains(TOKEN), "{said}");
    }
}

/// The API of a forkpoint in this process.
async fn api(forkpoint: &Forkpoint) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let live = Live::from(Arc::clone(&forkpoint.proxy));
    let pages = api::router(live.clone(), forkpoint.metrics.clone());
    let hosts = forkpoint::admin::Hosts::OfThisMachine;
    tokio::spawn(forkpoint::admin::serve(listener, pages, hosts, live, "admin"));
    address
}

async fn ask(address: std::net::SocketAddr, method: &str, path: &str) -> (u16, Value) {
    let request = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let reply = Peer::connect(address).await.ask(request.as_bytes()).await;
    (reply.status(), serde_json::from_slice(&reply.body).unwrap_or_default())
}

#[tokio::test]
async fn fan_outs_and_prefixes_are_shown_in_figures_and_a_tenant_can_be_forgotten() {
    let scene = Scene::fanned_out(3, |_| ()).await;
    let address = api(&scene.forkpoint).await;
    let (status, forks) = ask(address, "GET", "/api/forks").await;
    assert_eq!((status, &forks["live"], &forks["rereads"]), (200, &json!(1), &json!([])));
    let fork = &forks["forks"][0];
    assert_eq!(
        (&fork["state"], &fork["calls"], &fork["children_seen"]),
        (&json!("sealed"), &json!(3), &json!(0))
    );
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let (id, tenant) = (text(&fork["id"]), text(&fork["tenant"]));
    let (status, fork) = ask(address, "GET", &format!("/api/forks/{id}")).await;
    assert_eq!(status, 200);
    let call = json!({"tool": "listed", "directives": 1, "child_seen": false, "result_returned": false});
    assert_eq!(fork["calls"], json!([call, call, call]));
    assert_eq!(ask(address, "GET", "/api/forks/00000000").await.0, 404);
    let (_, prefixes) = ask(address, "GET", "/api/prefixes").await;
    assert_eq!(prefixes["layers"], json!({"model": 1, "tools": 1, "system": 1, "messages": 1}));
    assert_eq!(prefixes["tenants"][0]["tenant"], json!(tenant));
    assert_eq!(ask(address, "GET", "/api/breaks").await, (200, json!({"breaks": []})));

    assert_eq!(ask(address, "DELETE", "/api/tenants/ffffffff").await.0, 404);
    assert_eq!(ask(address, "DELETE", "/api/tenants/everybody").await.0, 400);
    assert_eq!(ask(address, "DELETE", &format!("/api/tenants/{}", &tenant[..7])).await.0, 400);
    let gone = ask(address, "DELETE", &format!("/api/tenants/{tenant}")).await;
    assert_eq!(gone, (200, json!({"tenant": tenant, "forgotten": true})));
    assert_eq!(ask(address, "GET", "/api/forks").await.1["live"], 0);
    assert_eq!(scene.forkpoint.proxy.store().bytes(), 0);
}

#[tokio::test]
async fn pages_for_which_every_tenant_is_locked_are_shared_by_those_who_ask_often() {
    let scene = Scene::fanned_out(3, |_| ()).await;
    let address = api(&scene.forkpoint).await;
    for path in ["/api/forks", "/api/prefixes"] {
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        let mut shared = 0;
        for _ in 0..60 {
            let reply = Peer::connect(address).await.ask(request.as_bytes()).await;
            shared += usize::from(reply.head.get("x-forkpoint-age-ms").as_deref() != Some("0"));
        }
        assert!(shared > 0, "{path} was rendered for each of them");
    }
}
