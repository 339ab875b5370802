//! Nobody waits for another's bytes, on a machine with one core: forkpoint as a process that has no more than that.

use std::io::Write;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::bystanders::nobody_waits;
use crate::harness::samples::{PROMPT, message};
use crate::harness::{Binary, Upstream, post};

const MIB: usize = 1 << 20;
const GZIP: &str = "content-encoding: gzip\r\n";

fn keyed(key: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    post("/v1/messages", &format!("x-api-key: {key}\r\n{headers}"), body)
}

/// A body that has this many bytes in blocks of a kilobyte, and comes compressed.
fn compressed(bytes: usize) -> Vec<u8> {
    let blocks: Vec<String> =
        (0..bytes / 1024).map(|number| format!(r#"{{"type":"text","text":"{number:0>990}"}}"#)).collect();
    let body = format!(
        r#"{{"model":"claude-x","max_tokens":9,"messages":[{{"role":"user","content":[{}]}}]}}"#,
        blocks.join(",")
    );
    let mut coder = GzEncoder::new(Vec::new(), Compression::fast());
    coder.write_all(body.as_bytes()).unwrap();
    coder.finish().unwrap()
}

/// A turn of a conversation whose system prompt is one line of this many bytes.
fn one_line(word: &str, bytes: usize, further: &str) -> Vec<u8> {
    let line = format!("same {word} ").repeat(bytes / (word.len() + 6));
    let body = format!(
        r#"{{"model":"claude-x","max_tokens":9,"system":"{line}","messages":[{{"role":"user","content":"hello"}}{further}]}}"#
    );
    keyed("changing", "", body.as_bytes())
}

/// The longest that a probe, or a small request of somebody else, takes until `hostile` were answered.
async fn longest_wait(binary: &Binary, hostile: Vec<Vec<u8>>) -> Duration {
    let mut client = binary.client().await;
    let hostile = tokio::spawn(async move {
        for request in hostile {
            assert_eq!(client.ask(&request).await.status(), 200);
        }
    });
    let mut longest = Duration::ZERO;
    while !hostile.is_finished() {
        let started = Instant::now();
        assert_eq!(binary.admin("/healthz").await.0, 200);
        longest = longest.max(started.elapsed());
        let started = Instant::now();
        assert_eq!(binary.client().await.ask(&keyed("bystander", "", PROMPT)).await.status(), 200);
        longest = longest.max(started.elapsed());
    }
    hostile.await.unwrap();
    longest
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_a_large_body_on_one_core() {
    // Written before the clock starts: what a test does itself must delay nobody.
    let body = keyed("stranger", GZIP, &compressed(31 * MIB));
    nobody_waits("a large body", || async {
        let upstream = Upstream::answering(&message()).await;
        let binary = Binary::serve_on_one_core(&upstream.url(), &[]).await;
        longest_wait(&binary, vec![body.clone()]).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_waits_for_a_long_line_that_changed_on_one_core() {
    let next = r#",{"role":"assistant","content":"hi"},{"role":"user","content":"and now?"}"#;
    let turns = vec![one_line("one", 8 * MIB, ""), one_line("two", 8 * MIB, next)];
    nobody_waits("a long line", || async {
        let upstream = Upstream::answering(&message()).await;
        let binary = Binary::serve_on_one_core(&upstream.url(), &[]).await;
        longest_wait(&binary, turns.clone()).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_of_invented_tenants_are_not_before_those_of_a_known_one() {
    let body = compressed(31 * MIB);
    let known = {
        let text = "x".repeat(300 << 10);
        let body = format!(
            r#"{{"model":"claude-x","max_tokens":9,"messages":[{{"role":"user","content":"{text}"}}]}}"#
        );
        keyed("known", "", body.as_bytes())
    };
    nobody_waits("bodies of invented tenants", || async {
        let upstream = Upstream::answering(&message()).await;
        let binary = Binary::serve(&upstream.url(), &[]).await;
        assert_eq!(binary.client().await.ask(&known).await.status(), 200);
        let hostile: Vec<_> =
            (0..20).map(|number| keyed(&format!("invented-{number}"), GZIP, &body)).collect();
        let mut invented = tokio::task::JoinSet::new();
        for request in hostile {
            let mut client = binary.client().await;
            invented.spawn(async move { client.ask(&request).await.status() });
        }
        let mut longest = Duration::ZERO;
        while invented.try_join_next().is_none_or(|status| status.unwrap() == 200) && !invented.is_empty() {
            let started = Instant::now();
            assert_eq!(binary.client().await.ask(&known).await.status(), 200);
            longest = longest.max(started.elapsed());
        }
        longest
    })
    .await;
}
