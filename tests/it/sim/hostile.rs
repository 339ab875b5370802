//! Nothing crashes it: whatever arrives, the answer is a refusal, and the next request is served.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::harness::{Bench, bench, bench_with, request, user, with};

async fn raw(bench: &Bench, body: impl Into<reqwest::Body>) -> (u16, String) {
    let response = bench.post("/v1/messages").body(body).send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

async fn still_serves(bench: &Bench) {
    assert_eq!(bench.message(&request(json!([user("still there?")]))).await["type"], "message");
}

#[tokio::test]
async fn what_is_not_json_is_refused_with_its_place() {
    let bench = bench().await;
    for body in ["", "{", "nonsense", "{\"model\":}", "[1,2", "{\"a\":1}x", "\u{0}"] {
        let (status, text) = raw(&bench, body).await;
        assert_eq!(status, 400, "{body}");
        assert!(text.contains("The request body is not valid JSON"), "{text}");
    }
    let (_, text) = raw(&bench, "{\n  \"a\": nope}").await;
    assert!(text.contains("line 2 column"), "{text}");
    still_serves(&bench).await;
}

#[tokio::test]
async fn json_that_is_not_an_object_is_refused() {
    let bench = bench().await;
    for body in ["[]", "7", "null", "\"text\""] {
        assert_eq!(raw(&bench, body).await.0, 400, "{body}");
    }
}

#[tokio::test]
async fn a_lone_surrogate_is_refused_in_the_apis_words() {
    let bench = bench().await;
    let (status, text) =
        raw(&bench, r#"{"model":"x","messages":[{"role":"user","content":"\ud83d"}]}"#).await;
    assert_eq!(status, 400);
    assert!(text.contains("no low surrogate in string: line 1 column"), "{text}");
}

#[tokio::test]
async fn invalid_utf_8_is_refused_and_recorded_as_base64() {
    let bench = bench().await;
    assert_eq!(raw(&bench, b"{\"model\":\"\xff\xfe\"}".to_vec()).await.0, 400);
    let listed: Value = bench.get("/sim/requests").send().await.unwrap().json().await.unwrap();
    assert!(listed["requests"][0]["body_base64"].is_string());
}

#[tokio::test]
async fn hostile_depth_is_refused() {
    let bench = bench().await;
    for open in ["[", "{\"a\":"] {
        let (status, text) = raw(&bench, open.repeat(500_000)).await;
        assert_eq!(status, 400);
        assert!(text.contains("recursion"), "{text}");
    }
    still_serves(&bench).await;
}

#[tokio::test]
async fn of_duplicate_keys_the_last_one_counts() {
    let bench = bench().await;
    let body = r#"{"model":"nobody","model":"claude-opus-4-8","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}"#;
    assert_eq!(raw(&bench, body).await.0, 200);
}

#[tokio::test]
async fn huge_numbers_are_refused_or_read_but_never_fatal() {
    let bench = bench().await;
    for (number, status) in [
        ("18446744073709551615", 400),
        ("1e999", 400),
        ("-1", 400),
        ("1.5", 400),
        ("99999999999999999999999", 400),
        ("7", 200),
    ] {
        let body = format!(
            r#"{{"model":"claude-opus-4-8","max_tokens":{number},"messages":[{{"role":"user","content":"hi"}}]}}"#
        );
        assert_eq!(raw(&bench, body).await.0, status, "{number}");
    }
}

#[tokio::test]
async fn a_body_over_the_limit_is_too_large() {
    let bench = bench_with(|config| config.limits.body_bytes = 1_000).await;
    let (status, text) = raw(&bench, "x".repeat(1_001)).await;
    assert_eq!(status, 413);
    assert!(text.contains("request_too_large"), "{text}");
    still_serves(&bench).await;
}

#[tokio::test]
async fn too_many_messages_are_refused() {
    let bench = bench_with(|config| config.limits.messages = 3).await;
    let body = request(json!([user("1"), user("2"), user("3"), user("4")]));
    assert!(bench.invalid(&body).await.contains("at most 3 items"));
}

#[tokio::test]
async fn ten_thousand_blocks_with_calls_are_answered() {
    let bench = bench().await;
    let calls: Vec<Value> = (0..5_000)
        .map(|index| json!({"type": "tool_use", "id": format!("toolu_{index}"), "name": "Bash", "input": {}}))
        .collect();
    let results: Vec<Value> = (0..5_000)
        .map(|index| json!({"type": "tool_result", "tool_use_id": format!("toolu_{index}"), "content": "x"}))
        .collect();
    let messages = json!([user("go"), {"role": "assistant", "content": calls}, user(results)]);
    assert_eq!(bench.message(&request(messages)).await["type"], "message");
}

#[tokio::test]
async fn a_hundred_thousand_messages_are_answered() {
    let bench = bench().await;
    let pair =
        r#"{"role":"user","content":"u"},{"role":"assistant","content":[{"type":"text","text":"a"}]},"#;
    let messages = format!(r#"{}{{"role":"user","content":"u"}}"#, pair.repeat(49_999));
    let body = format!(r#"{{"model":"claude-opus-4-8","max_tokens":9,"messages":[{messages}]}}"#);
    assert_eq!(raw(&bench, body).await.0, 200);
}

#[tokio::test]
async fn ten_thousand_tools_are_answered_and_the_last_can_be_called() {
    let bench = bench().await;
    let tools: Vec<Value> = (0..10_000).map(|index| super::harness::tool(&format!("Tool{index}"))).collect();
    let body = with(request(json!([user("[[sim:tools tool=Tool9999]]")])), json!({"tools": tools}));
    assert_eq!(bench.message(&body).await["content"][1]["name"], "Tool9999");
}

/// Each call would fill a schema of a megabyte; the first that does not fit the answer ends it.
#[tokio::test]
async fn a_schema_of_a_megabyte_is_not_filled_once_per_child() {
    let bench = bench().await;
    let names = vec!["prompt"; 100_000];
    let huge = "v".repeat(1_000_000);
    let schema = json!({"type": "object", "required": names, "properties": {"prompt": {"enum": [huge]}}});
    let tool = json!({"name": "Agent", "input_schema": schema, "defer_loading": true});
    let body = with(request(json!([user("[[sim:fan_out n=64 field=other]]")])), json!({"tools": [tool]}));
    let answer = bench.message(&body).await;
    assert_eq!(answer["stop_reason"], "max_tokens");
    assert_eq!(answer["content"].as_array().unwrap().len(), 1, "only the text before the calls");
}

#[tokio::test]
async fn strings_of_a_megabyte_are_taken_anywhere() {
    let bench = bench().await;
    let long = "[[sim:".repeat(170_000);
    let forged =
        json!([{"type": "thinking", "thinking": "", "signature": long}, {"type": "text", "text": "a"}]);
    let messages = json!([user("go"), {"role": "assistant", "content": forged}, user("on")]);
    assert!(bench.invalid(&request(messages)).await.contains("Invalid `signature`"));
    let bar = "|".repeat(1_000_000);
    for text in
        [long.clone(), format!("[[sim:fan_out n=64 {bar}]]"), format!("[[sim:{}]]", "a=b ".repeat(250_000))]
    {
        assert_eq!(bench.message(&request(json!([user(text)]))).await["type"], "message");
    }
    let sequences = vec![long; 2];
    let body = with(request(json!([user("go")])), json!({"stop_sequences": sequences}));
    assert_eq!(bench.message(&body).await["type"], "message");
}

#[tokio::test]
async fn statuses_that_cannot_end_an_exchange_are_server_errors() {
    let bench = bench().await;
    for status in ["0", "99", "100", "101", "199", "1000", "65535"] {
        let request = bench.post("/v1/messages").header("x-sim-status", status);
        let response = request.json(&request_of_one()).send().await.unwrap();
        assert_eq!(response.status(), 500, "{status}");
    }
    for status in ["204", "304", "999"] {
        let request = bench.post("/v1/messages").header("x-sim-status", status);
        let response = request.json(&request_of_one()).send().await.unwrap();
        assert_eq!(response.status().as_str(), status);
    }
    still_serves(&bench).await;
}

fn request_of_one() -> Value {
    request(json!([user("go")]))
}

#[tokio::test]
async fn settings_at_their_extremes_overflow_nothing() {
    let most = u64::MAX.to_string();
    for name in ["image_tokens", "bytes_per_token", "five_minutes_s", "one_hour_s", "lookback_positions"] {
        for value in ["0", most.as_str()] {
            let bench = bench_with(|config| config.rules.set(name, value).unwrap()).await;
            let source = json!({"type": "base64", "media_type": "image/png", "data": "AAAA"});
            let image = json!({"type": "image", "source": source, "cache_control": {"type": "ephemeral"}});
            let status = bench.send(&request(json!([user(json!([image, image]))]))).await.status();
            assert!(status == 200 || status == 400, "{name}={value}: {status}");
        }
    }
}

#[tokio::test]
async fn the_cache_holds_no_more_entries_than_it_may() {
    let bench = bench_with(|config| config.limits.cache_entries = 8).await;
    for index in 0..40 {
        let marked = json!({"type": "text", "text": format!("{index}").repeat(3_000), "cache_control": {"type": "ephemeral"}});
        bench.usage(&request(json!([user(json!([marked]))]))).await;
        assert!(bench.sim.cache_entries().len() <= 8);
    }
}

/// Odd values in the places a body can have.
fn odd_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        any::<i64>().prop_map(Value::from),
        "[a-z_]{0,12}".prop_map(Value::String),
        Just(json!("text")),
        Just(json!("tool_use")),
        Just(json!("tool_result")),
        Just(json!("thinking")),
        Just(json!("ephemeral")),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        let key = prop_oneof![
            Just("type"),
            Just("content"),
            Just("role"),
            Just("text"),
            Just("id"),
            Just("input"),
            Just("name"),
            Just("tool_use_id"),
            Just("cache_control"),
            Just("thinking"),
            Just("signature"),
            Just("source"),
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::Array),
            prop::collection::vec((key, inner), 0..5)
                .prop_map(|pairs| pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
        ]
    })
}

#[test]
fn any_json_in_any_field_gets_an_answer() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let bench = runtime.block_on(bench());
    let fields = [
        "messages",
        "system",
        "tools",
        "tool_choice",
        "thinking",
        "output_config",
        "cache_control",
        "diagnostics",
    ];
    let strategy = (prop::sample::select(fields.to_vec()), odd_value());
    proptest!(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) }, |((field, value) in strategy)| {
        let body = with(request(json!([user("hi")])), json!({field: value}));
        let status = runtime.block_on(async { bench.send(&body).await.status().as_u16() });
        prop_assert!(matches!(status, 200 | 400 | 404), "{status} for {body}");
    });
}
