//! The versions of the API.

use serde_json::{Value, json};

use super::harness::{Bench, assistant, bench, bench_with, request, user, with};

const OLD: &str = "2023-06-01";
const NEW: &str = "2026-10-21";

async fn ask(bench: &Bench, version: &str, body: &Value) -> (u16, Value) {
    let url = format!("{}/v1/messages", bench.sim.url());
    let request = bench.client.post(url).header("x-api-key", "sk-test").header("anthropic-version", version);
    let response = request.json(body).send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

#[tokio::test]
async fn both_versions_answer_an_ordinary_request_alike() {
    let bench = bench().await;
    let body = request(json!([user("go")]));
    let (old, new) = (ask(&bench, OLD, &body).await, ask(&bench, NEW, &body).await);
    assert_eq!((old.0, new.0), (200, 200));
    assert_eq!(old.1["content"], new.1["content"]);
}

#[tokio::test]
async fn a_version_that_does_not_exist_is_refused() {
    let bench = bench().await;
    let (status, answer) = ask(&bench, "2024-01-01", &request(json!([user("go")]))).await;
    assert_eq!(status, 400);
    assert!(answer["error"]["message"].as_str().unwrap().starts_with("anthropic-version: "), "{answer}");
}

#[tokio::test]
async fn any_version_passes_if_the_header_is_optional() {
    let bench = bench_with(|config| config.rules.set("version_header", "optional").unwrap()).await;
    assert_eq!(ask(&bench, "2024-01-01", &request(json!([user("go")]))).await.0, 200);
}

#[tokio::test]
async fn the_newer_version_has_no_sampling_parameters() {
    let bench = bench().await;
    for (name, value) in [("temperature", json!(0.5)), ("top_p", json!(0.5)), ("top_k", json!(5))] {
        let mut body = request(json!([user("go")]));
        body[name] = value;
        assert_eq!(ask(&bench, OLD, &body).await.0, 200, "{name}");
        let (status, answer) = ask(&bench, NEW, &body).await;
        assert_eq!(status, 400, "{name}");
        assert_eq!(answer["error"]["message"], format!("{name}: Extra inputs are not permitted"));
    }
}

#[tokio::test]
async fn the_newer_version_refuses_documents_of_the_assistant_and_citations_of_the_user() {
    let bench = bench().await;
    let document =
        json!({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}});
    let cited = with(json!({"type": "text", "text": "so"}), json!({"citations": []}));
    for messages in
        [json!([user("go"), assistant(json!([document])), user("on")]), json!([user(json!([cited]))])]
    {
        let body = request(messages);
        assert_eq!(ask(&bench, OLD, &body).await.0, 200, "{body}");
        assert_eq!(ask(&bench, NEW, &body).await.0, 400, "{body}");
    }
    let allowed = request(json!([user(json!([document])), assistant(json!([cited])), user("on")]));
    assert_eq!(ask(&bench, NEW, &allowed).await.0, 200);
}
