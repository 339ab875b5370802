//! Bodies that come compressed, and calls in the form of Vertex.

use std::io::Write;

use serde_json::{Value, json};

use super::harness::{Bench, bench, bench_with};

const VERTEX: &str = "/v1/projects/p/locations/l/publishers/anthropic/models";

fn body() -> Value {
    json!({"model": "claude-sonnet-4-6", "max_tokens": 50, "messages": [{"role": "user", "content": "Hello."}]})
}

fn gzip(body: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

async fn sent(bench: &Bench, path: &str, coding: Option<&str>, body: Vec<u8>) -> (u16, Value) {
    let request = bench.post(path).body(body);
    let request = coding.iter().fold(request, |request, coding| request.header("content-encoding", *coding));
    let response = request.send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

#[tokio::test]
async fn compressed_bodies_are_read_and_their_faults_named() {
    let bench = bench_with(|config| config.limits.body_bytes = 10_000).await;
    let plain = body().to_string().into_bytes();
    let zstd = zstd::encode_all(&plain[..], 1).unwrap();
    for (coding, body) in [("gzip", gzip(&plain)), ("zstd", zstd.clone()), ("zstd, gzip", gzip(&zstd))] {
        let (status, answer) = sent(&bench, "/v1/messages", Some(coding), body.clone()).await;
        assert_eq!(status, 200, "{coding}: {answer}");
        assert_eq!(bench.last_record().body, body, "the journal has what came");
    }
    let bomb = gzip(&[b' '; 10_001]);
    for (coding, body, status, code) in [
        ("gzip", plain.clone(), 400, "request_body_encoding_invalid"),
        ("br", vec![0xff; 9], 400, "request_body_encoding_invalid"),
        ("rot13", plain.clone(), 415, "request_body_encoding_unsupported"),
        ("gzip", bomb, 413, "request_body_too_large_after_decoding"),
    ] {
        let (found, answer) = sent(&bench, "/v1/messages", Some(coding), body).await;
        assert_eq!((found, &answer["error"]["details"]["error_code"]), (status, &json!(code)), "{answer}");
    }
}

#[tokio::test]
async fn calls_of_vertex_name_their_model_in_the_path() {
    let bench = bench().await;
    let mut vertex = body();
    vertex.as_object_mut().unwrap().remove("model");
    let without_version = vertex.clone();
    vertex["anthropic_version"] = json!("vertex-2023-10-16");
    let ask = async |call: &str, body: &Value| {
        sent(&bench, &format!("{VERTEX}/{call}"), None, body.to_string().into_bytes()).await
    };
    for model in ["claude-sonnet-4-6", "claude-sonnet-4-6@20260201"] {
        let (status, answer) = ask(&format!("{model}:rawPredict"), &vertex).await;
        assert_eq!((status, &answer["model"]), (200, &json!(model)), "{answer}");
        assert_eq!(bench.last_record().model.as_deref(), Some("claude-sonnet-4-6"));
    }
    let mut counted = vertex.clone();
    counted["model"] = json!("claude-sonnet-4-6");
    let (status, answer) = ask("count-tokens:rawPredict", &counted).await;
    assert_eq!(status, 200, "{answer}");
    assert!(answer["input_tokens"].as_u64().unwrap() > 0);
    let mut marked = vertex.clone();
    marked["cache_control"] = json!({"type": "ephemeral"});
    for (call, body, status, about) in [
        ("claude-sonnet-4-6:rawPredict", &without_version, 400, "anthropic_version"),
        ("claude-sonnet-4-6:rawPredict", &counted, 400, "model"),
        ("claude-sonnet-4-6:streamRawPredict", &marked, 400, "cache_control"),
        ("claude-x:rawPredict", &vertex, 404, "model: claude-x"),
        ("claude-sonnet-4-6:predict", &vertex, 404, "Not Found"),
    ] {
        let (found, answer) = ask(call, body).await;
        assert_eq!(found, status, "{answer}");
        assert!(answer["error"]["message"].as_str().unwrap().starts_with(about), "{answer}");
    }
}
