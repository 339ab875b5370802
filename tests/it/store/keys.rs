//! The key of a process that gets it in a file.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::harness::samples::{OK, PROMPT};
use crate::harness::{Binary, Upstream, binary, call, within};

const KEY: &str = "0123456789abcdef0123456789abcdef";

fn write(path: &Path, text: &str, mode: u32) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[tokio::test]
async fn a_key_in_a_file_is_the_key() {
    let upstream = Upstream::bind().await;
    let folder = tempfile::tempdir().unwrap();
    let (store, file) = (folder.path().join("store"), folder.path().join("key"));
    write(&file, &format!("{KEY}\n"), 0o600);
    let keys = [("STORE__KEY_FILE", file.to_str().unwrap()), ("STORE__KEY", KEY)];
    for (start, key) in keys.into_iter().enumerate() {
        let settings = [("FORKPOINT_STORE", "file"), ("STORE__PATH", store.to_str().unwrap()), key];
        let mut binary = Binary::serve(&upstream.url(), &settings).await;
        let mut client = binary.client().await;
        client.send(&call(PROMPT)).await;
        let (mut server, _) = upstream.asked().await;
        server.send(OK).await;
        assert_eq!(client.reply().await.status(), 200);
        binary.signal("TERM").await;
        assert_eq!(binary.exit().await.code(), Some(0));
        // With the white space around it, it is the same as the one that the configuration names.
        let said = binary.said().join("\n");
        assert!(!said.contains("another store.key"), "start {start}: {said}");
        assert!(!said.contains(KEY), "start {start}");
    }
    let other = [("FORKPOINT_STORE", "file"), ("STORE__PATH", store.to_str().unwrap())];
    Binary::serve(&upstream.url(), &other).await.line("another store.key").await;
}

#[tokio::test]
async fn a_file_that_cannot_hold_a_key_ends_the_start_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let (store, file) = (folder.path().join("store"), folder.path().join("key"));
    let cases: [(&str, Option<u32>, &str); 3] = [
        (KEY, Some(0o644), "others on this machine may read it (mode 644)"),
        ("", Some(0o600), "it must hold one key"),
        ("", None, "it cannot be read"),
    ];
    for (text, mode, why) in cases {
        let _ = std::fs::remove_file(&file);
        if let Some(mode) = mode {
            write(&file, text, mode);
        }
        let mut command = binary::command();
        command.args([
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--admin-listen",
            "127.0.0.1:0",
            "--store",
            "file",
        ]);
        command.env("FORKPOINT_STORE__PATH", &store).env("FORKPOINT_STORE__KEY_FILE", &file);
        let output = within("the process to end", command.output()).await.unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{said}");
        for part in ["store.key_file", file.to_str().unwrap(), why, "hint: "] {
            assert!(said.contains(part), "{part} is missing in\n{said}");
        }
        assert!(!said.contains(KEY) && !store.exists(), "{said}");
    }
}
