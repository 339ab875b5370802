//! `rediss://`: the server's certificate is held to the roots of the system, or those in SSL_CERT_FILE.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use super::*;

/// Set in the process that connects, whose roots are its own.
const URL: &str = "FORKPOINT_TEST_REDISS_URL";

/// Writes a root, and a server's certificate and key that it vouches for.
fn write_certificates(folder: &Path) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let root = params.self_signed(&key).unwrap();
    let issuer = Issuer::new(params, key);
    let server_key = KeyPair::generate().unwrap();
    let server = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let server = server.signed_by(&server_key, &issuer).unwrap();
    std::fs::write(folder.join("root.pem"), root.pem()).unwrap();
    std::fs::write(folder.join("server.pem"), server.pem()).unwrap();
    std::fs::write(folder.join("server.key"), server_key.serialize_pem()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_behind_tls_is_trusted_by_its_root_and_by_no_other() {
    if let Ok(url) = std::env::var(URL) {
        let store = connected(&url, AMPLE).await;
        store.write(tenant(70), vec![put("a", record("1", &[b"a prompt"]))]).await.unwrap();
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    write_certificates(folder.path());
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let tls_port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let server = RedisServer::start_with(&[
        "--tls-port",
        &tls_port,
        "--tls-cert-file",
        &file("server.pem"),
        "--tls-key-file",
        &file("server.key"),
        "--tls-ca-cert-file",
        &file("root.pem"),
        "--tls-auth-clients",
        "no",
    ]);
    let url = format!("rediss://127.0.0.1:{tls_port}");
    // This process does not know the root.
    let stranger = store(&url, AMPLE);
    let (name, root) = (std::thread::current().name().unwrap().to_owned(), file("root.pem"));
    let connects = tokio::task::spawn_blocking(move || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &name]).env(URL, url).env("SSL_CERT_FILE", root).output().unwrap()
    });
    let connects = connects.await.unwrap();
    assert!(connects.status.success(), "{}", String::from_utf8_lossy(&connects.stdout));
    assert!(server.command(&["KEYS", "*"]).contains(":r:child:a"));
    assert_eq!(stranger.changes(tenant(70), 0).await, Err(StoreError::Down));
}
