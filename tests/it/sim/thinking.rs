//! Thinking blocks: signatures, and what a block is bound to.

use serde_json::{Value, json};

use super::harness::{BOUND, Bench, assistant, bench, bench_with, request, text, tool, user, with};

const BINDING_BETA: &str = "thinking-binding-controls-2026-08-01";

/// The first request of a thinking conversation.
fn first(model: &str) -> Value {
    let members = json!({"model": model, "thinking": {"type": "adaptive"}, "system": "Be exact.", "tools": [tool("Bash")]});
    with(request(json!([user("Think. [[sim:thinking]]")])), members)
}

/// The request that continues it with the given assistant content.
fn next(first: &Value, content: &Value) -> Value {
    let mut body = first.clone();
    let messages = body["messages"].as_array_mut().unwrap();
    messages.push(assistant(content.clone()));
    messages.push(user("Go on."));
    body
}

async fn started(bench: &Bench, model: &str) -> (Value, Value) {
    let first = first(model);
    let content = bench.message(&first).await["content"].clone();
    assert_eq!(content[0]["type"], "thinking");
    (first, content)
}

const MISMATCH: &str = "messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a different \
                        conversation. Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to \
                        \"drop_block\".";

#[tokio::test]
async fn an_unchanged_conversation_passes_the_prefix_check() {
    let bench = bench().await;
    let (first, content) = started(&bench, BOUND).await;
    let second = next(&first, &content);
    let more = bench.message(&second).await["content"].clone();
    assert_eq!(bench.message(&next(&second, &more)).await["type"], "message");
}

#[tokio::test]
async fn bound_thinking_behind_another_system_prompt_is_refused() {
    let bench = bench().await;
    let (first, content) = started(&bench, BOUND).await;
    let body = with(next(&first, &content), json!({"system": "Be vague."}));
    let expected =
        format!("{MISMATCH} The `system` prompt differs from the one this block was created with.");
    assert_eq!(bench.invalid(&body).await, expected);
}

#[tokio::test]
async fn bound_thinking_behind_one_more_tool_is_refused() {
    let bench = bench().await;
    let (first, content) = started(&bench, BOUND).await;
    let body = with(next(&first, &content), json!({"tools": [tool("Bash"), tool("Read")]}));
    assert!(bench.invalid(&body).await.starts_with(MISMATCH));
}

#[tokio::test]
async fn bound_thinking_behind_another_message_is_refused() {
    let bench = bench().await;
    let (first, content) = started(&bench, BOUND).await;
    let mut body = next(&first, &content);
    body["messages"][0] = user("Think differently.");
    assert_eq!(bench.invalid(&body).await, MISMATCH);
}

#[tokio::test]
async fn thinking_may_be_left_out_of_the_history() {
    let bench = bench().await;
    let (first, content) = started(&bench, BOUND).await;
    assert_eq!(bench.message(&next(&first, &json!([content[1]]))).await["type"], "message");
}

#[tokio::test]
async fn leaving_out_an_earlier_thinking_block_invalidates_the_later_ones() {
    let bench = bench().await;
    let (first, content) = started(&bench, BOUND).await;
    let mut second = next(&first, &content);
    second["messages"][2] = user("Again. [[sim:thinking]]");
    let later = bench.message(&second).await["content"].clone();
    let mut third = next(&second, &later);
    assert_eq!(bench.message(&third).await["type"], "message");
    third["messages"][1]["content"] = json!([content[1]]);
    assert!(bench.invalid(&third).await.starts_with("messages.3.content.0: Invalid `signature`"));
}

#[tokio::test]
async fn markers_and_string_content_do_not_trip_the_prefix_check() {
    let bench = bench().await;
    let (first, content) = started(&bench, BOUND).await;
    let mut body = next(&first, &content);
    body["messages"][0]["content"] = json!([with(
        text(first["messages"][0]["content"].as_str().unwrap()),
        json!({"cache_control": {"type": "ephemeral"}})
    )]);
    assert_eq!(bench.message(&body).await["type"], "message");
}

#[tokio::test]
async fn the_prefix_check_does_not_compare_parameters_or_workspaces() {
    let bench = bench().await;
    let (first, content) = started(&bench, BOUND).await;
    let body = with(next(&first, &content), json!({"max_tokens": 50, "metadata": {"user_id": "other"}}));
    let request = bench.client.post(format!("{}/v1/messages", bench.sim.url()));
    let request = request.bearer_auth("sk@elsewhere").header("anthropic-version", "2023-06-01").json(&body);
    assert_eq!(request.send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn free_thinking_may_stand_behind_anything() {
    let bench = bench().await;
    let (first, content) = started(&bench, "claude-opus-4-8").await;
    let body = with(next(&first, &content), json!({"system": "Be vague."}));
    assert_eq!(bench.message(&body).await["type"], "message");
}

#[tokio::test]
async fn drop_block_drops_and_reports_instead_of_refusing() {
    let bench = bench().await;
    let (first, content) = started(&bench, BOUND).await;
    let dropping = json!({"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}});
    let body = with(next(&first, &content), json!({"system": "Be vague.", "thinking": dropping}));
    assert_eq!(bench.invalid(&body).await, "thinking.block_binding: Extra inputs are not permitted");
    let request = bench.post("/v1/messages").header("anthropic-beta", BINDING_BETA).json(&body);
    let answer: Value = request.send().await.unwrap().json().await.unwrap();
    let dropped =
        json!([{"type": "thinking_dropped", "path": "messages.1.content.0", "reason": "prefix_mismatch"}]);
    assert_eq!(answer["input_transformations"], dropped);
    let streamed = with(body, json!({"stream": true}));
    let request = bench.post("/v1/messages").header("anthropic-beta", BINDING_BETA).json(&streamed);
    let stream = request.send().await.unwrap().text().await.unwrap();
    let start = &super::harness::events(&stream)[0].1;
    assert_eq!(start["message"]["input_transformations"], dropped);
}

#[tokio::test]
async fn older_accounts_drop_mismatched_blocks_in_silence() {
    let bench = bench_with(|config| config.rules.set("mismatch", "drop_silently").unwrap()).await;
    let (first, content) = started(&bench, BOUND).await;
    let answer = bench.message(&with(next(&first, &content), json!({"system": "Be vague."}))).await;
    assert_eq!(answer.get("input_transformations"), None);
    let demanding = json!({"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "error"}});
    let body = with(next(&first, &content), json!({"system": "Be vague.", "thinking": demanding}));
    let request = bench.post("/v1/messages").header("anthropic-beta", BINDING_BETA).json(&body);
    assert_eq!(request.send().await.unwrap().status(), 400);
}

#[tokio::test]
async fn another_models_thinking_is_dropped_in_silence() {
    let bench = bench().await;
    let (first, content) = started(&bench, BOUND).await;
    let elsewhere = with(next(&first, &content), json!({"model": "claude-opus-4-8"}));
    let with_thinking = bench.usage(&elsewhere).await;
    let mut without = elsewhere;
    without["messages"][1]["content"] = json!([content[1]]);
    assert_eq!(with_thinking, bench.usage(&without).await);
}

#[tokio::test]
async fn the_latest_thinking_must_be_as_it_was() {
    let bench = bench().await;
    let (first, mut content) = started(&bench, "claude-opus-4-8").await;
    content[0]["thinking"] = json!("I thought something else.");
    assert_eq!(
        bench.invalid(&next(&first, &content)).await,
        "messages.1.content.0: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be \
         modified. These blocks must remain as they were in the original response."
    );
}

#[tokio::test]
async fn a_forged_signature_is_refused_unless_the_setting_says_otherwise() {
    let forged = json!([{"type": "thinking", "thinking": "hm", "signature": "Zm9yZ2Vk"}, text("so")]);
    let strict = bench().await;
    let expected = "messages.1.content.0: Invalid `signature` in `thinking` block";
    assert_eq!(strict.invalid(&next(&first(BOUND), &forged)).await, expected);
    let lax = bench_with(|config| config.rules.set("signatures", "ignored").unwrap()).await;
    assert_eq!(lax.message(&next(&first(BOUND), &forged)).await["type"], "message");
}

#[tokio::test]
async fn omitted_thinking_streams_a_signature_and_no_text() {
    let bench = bench().await;
    let omitted = json!({"thinking": {"type": "adaptive", "display": "omitted"}, "stream": true});
    let stream = bench.send(&with(first(BOUND), omitted)).await.text().await.unwrap();
    let events = super::harness::events(&stream);
    let of_first: Vec<_> = events.iter().filter(|(_, data)| data["index"] == 0).collect();
    let names: Vec<&str> = of_first.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["content_block_start", "content_block_delta", "content_block_stop"]);
    assert_eq!(of_first[1].1["delta"]["type"], "signature_delta");
}

#[tokio::test]
async fn thinking_counts_as_input_when_it_comes_back() {
    let bench = bench().await;
    let first = with(first("claude-opus-4-8"), json!({"messages": [user("[[sim:thinking thinking=400]]")]}));
    let content = bench.message(&first).await["content"].clone();
    let with_it = bench.usage(&next(&first, &content)).await.uncached;
    let without = bench.usage(&next(&first, &json!([content[1]]))).await.uncached;
    assert!(with_it > without + 400, "{with_it} {without}");
}

#[tokio::test]
async fn redacted_thinking_needs_its_data_as_it_was() {
    let bench = bench().await;
    let ask = |block: Value| next(&first(BOUND), &json!([block, text("so")]));
    assert_eq!(
        bench.invalid(&ask(json!({"type": "redacted_thinking"}))).await,
        "messages.1.content.0.redacted_thinking.data: Field required"
    );
    assert_eq!(
        bench.invalid(&ask(json!({"type": "redacted_thinking", "data": "Zm9yZ2Vk"}))).await,
        "messages.1.content.0: Invalid `data` in `redacted_thinking` block"
    );
}

/// The signature of thinking that is not shown is all that a redacted block says.
#[tokio::test]
async fn redacted_thinking_is_bound_to_its_prompt_like_any_other() {
    let bench = bench().await;
    let first = with(first(BOUND), json!({"thinking": {"type": "adaptive", "display": "omitted"}}));
    let content = bench.message(&first).await["content"].clone();
    let redacted = json!({"type": "redacted_thinking", "data": content[0]["signature"]});
    let body = next(&first, &json!([redacted, content[1]]));
    assert_eq!(bench.message(&body).await["type"], "message");
    let message = bench.invalid(&with(body, json!({"system": "Be vague."}))).await;
    let expected = "messages.1.content.0: Invalid `data` in `redacted_thinking` block. The block is bound";
    assert!(message.starts_with(expected), "{message}");
}

#[tokio::test]
async fn a_missing_signature_is_a_missing_field() {
    let bench = bench().await;
    let body = next(&first(BOUND), &json!([{"type": "thinking", "thinking": "hm"}, text("so")]));
    assert_eq!(bench.invalid(&body).await, "messages.1.content.0.thinking.signature: Field required");
}

async fn dropped_places(bench: &Bench, body: &Value) -> (Vec<String>, Value) {
    let binding = json!({"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}});
    let body = with(body.clone(), json!({"thinking": binding}));
    let request = bench.post("/v1/messages").header("anthropic-beta", BINDING_BETA).json(&body);
    let answer: Value = request.send().await.unwrap().json().await.unwrap();
    let reported = answer["input_transformations"].as_array().cloned().unwrap_or_default();
    let paths = reported.iter().map(|entry| entry["path"].as_str().unwrap().to_owned());
    (paths.collect(), answer["content"].clone())
}

#[tokio::test]
async fn a_change_invalidates_every_later_thinking_block_and_none_before_it() {
    let bench = bench().await;
    let mut body = first(BOUND);
    for _ in 0..3 {
        let content = bench.message(&body).await["content"].clone();
        body = next(&body, &content);
        let last = body["messages"].as_array().unwrap().len() - 1;
        body["messages"][last] = user("Again. [[sim:thinking]]");
    }
    assert!(dropped_places(&bench, &body).await.0.is_empty(), "nothing was changed yet");
    body["messages"][2] = user("Differently. [[sim:thinking]]");
    let (dropped, _) = dropped_places(&bench, &body).await;
    assert_eq!(dropped, ["messages.3.content.0", "messages.5.content.0"]);
}

#[tokio::test]
async fn thinking_produced_after_a_change_stays_valid() {
    let bench = bench().await;
    let (first, content) = started(&bench, BOUND).await;
    let mut changed = with(next(&first, &content), json!({"system": "Be vague."}));
    changed["messages"][2] = user("Again. [[sim:thinking]]");
    let (dropped, later) = dropped_places(&bench, &changed).await;
    assert_eq!(dropped, ["messages.1.content.0"]);
    assert_eq!(later[0]["type"], "thinking");
    let (dropped, _) = dropped_places(&bench, &next(&changed, &later)).await;
    assert_eq!(dropped, ["messages.1.content.0"], "the old block is still reported, the new one is not");
}

#[tokio::test]
async fn moving_a_thinking_block_between_others_breaks_its_bond() {
    let bench = bench().await;
    let (first, content) = started(&bench, BOUND).await;
    let mut second = next(&first, &content);
    second["messages"][2] = user("Again. [[sim:thinking]]");
    let later = bench.message(&second).await["content"].clone();
    let mut third = next(&second, &later);
    third["messages"][1]["content"] = json!([later[0], content[0], content[1]]);
    assert!(bench.invalid(&third).await.starts_with("messages.1.content.0: Invalid `signature`"));
}
