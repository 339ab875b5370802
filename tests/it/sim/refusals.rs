//! The API's refusals, in its words. One test per rule of the fact sheet.

use serde_json::{Value, json};

use super::harness::{
    BOUND, agent_tool, assistant, bench, bench_with, block, marked, marked_1h, request, text, tool, user,
    with,
};
use forkpoint::sim::settings::{UnknownInput, VersionHeader};

fn call(id: &str) -> Value {
    json!({"type": "tool_use", "id": id, "name": "Bash", "input": {"command": "echo"}})
}

fn result(id: &str) -> Value {
    json!({"type": "tool_result", "tool_use_id": id, "content": "done"})
}

#[tokio::test]
async fn every_tool_use_is_answered_in_the_next_user_message() {
    let bench = bench().await;
    let body = request(json!([
        user("go"),
        assistant(json!([call("toolu_1"), call("toolu_2")])),
        user(json!([result("toolu_1"), text("more")])),
    ]));
    assert_eq!(
        bench.invalid(&body).await,
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: toolu_2. Each \
         `tool_use` block must have a corresponding `tool_result` block in the next message."
    );
}

#[tokio::test]
async fn tool_results_come_before_text() {
    let bench = bench().await;
    let body = request(json!([
        user("go"),
        assistant(json!([call("toolu_1")])),
        user(json!([text("so"), result("toolu_1")]))
    ]));
    let message = bench.invalid(&body).await;
    assert!(
        message.starts_with("messages.1: `tool_use` ids were found without `tool_result` blocks"),
        "{message}"
    );
}

#[tokio::test]
async fn text_after_tool_results_is_accepted_and_results_may_come_in_any_order() {
    let bench = bench().await;
    let body = request(json!([
        user("go"),
        assistant(json!([call("toolu_1"), call("toolu_2")])),
        user(json!([result("toolu_2"), result("toolu_1"), text("and now")])),
    ]));
    assert_eq!(bench.message(&body).await["type"], "message");
}

#[tokio::test]
async fn results_split_over_consecutive_user_messages_are_one_turn() {
    let bench = bench().await;
    let body = request(json!([
        user("go"),
        assistant(json!([call("toolu_1"), call("toolu_2")])),
        user(json!([result("toolu_1")])),
        user(json!([result("toolu_2")])),
    ]));
    assert_eq!(bench.message(&body).await["type"], "message");
}

#[tokio::test]
async fn every_tool_result_refers_to_the_previous_message() {
    let bench = bench().await;
    let body = request(json!([user("go"), assistant("hm"), user(json!([result("toolu_9")]))]));
    assert_eq!(
        bench.invalid(&body).await,
        "messages.2.content.0: unexpected `tool_use_id` found in `tool_result` blocks: toolu_9. Each `tool_result` \
         block must have a corresponding `tool_use` block in the previous message."
    );
}

#[tokio::test]
async fn a_server_tool_result_needs_its_call_before_it() {
    let bench = bench().await;
    let advice = json!({"type": "advisor_tool_result", "tool_use_id": "srvtoolu_1", "content": []});
    let body = request(json!([user("go"), assistant(json!([advice])), user("on")]));
    assert_eq!(
        bench.invalid(&body).await,
        "messages.1.content.0: unexpected `tool_use_id` found in `advisor_tool_result` blocks: srvtoolu_1. Each \
         `advisor_tool_result` block must have a corresponding `server_tool_use` block before it."
    );
}

#[tokio::test]
async fn an_unresolved_server_tool_allows_only_tool_results_behind_it() {
    let bench = bench().await;
    let search = json!({"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}});
    let turn = assistant(json!([search, call("toolu_1")]));
    let only_results = request(json!([user("go"), turn, user(json!([result("toolu_1")]))]));
    assert_eq!(bench.message(&only_results).await["type"], "message");
    let with_text = request(json!([user("go"), turn, user(json!([result("toolu_1"), text("and")]))]));
    assert!(bench.invalid(&with_text).await.contains("`web_search` tool use with id `srvtoolu_1`"));
}

#[tokio::test]
async fn tool_use_ids_are_unique_in_the_request() {
    let bench = bench().await;
    let body = request(json!([
        user("go"),
        assistant(json!([call("toolu_1")])),
        user(json!([result("toolu_1")])),
        assistant(json!([call("toolu_1")])),
        user(json!([result("toolu_1")])),
    ]));
    assert_eq!(bench.invalid(&body).await, "messages.3.content.0: `tool_use` ids must be unique");
}

#[tokio::test]
async fn one_call_has_one_result() {
    let bench = bench().await;
    let twice = json!([result("toolu_1"), result("toolu_1")]);
    let body = request(json!([user("go"), assistant(json!([call("toolu_1")])), user(twice)]));
    assert!(bench.invalid(&body).await.contains("each tool_use must have a single result"));
}

#[tokio::test]
async fn tool_names_are_unique() {
    let bench = bench().await;
    let body = with(request(json!([user("go")])), json!({"tools": [tool("Bash"), tool("Bash")]}));
    assert_eq!(bench.invalid(&body).await, "tools: Tool names must be unique.");
}

#[tokio::test]
async fn a_custom_tool_needs_a_name_and_an_object_schema() {
    let bench = bench().await;
    for (tool, message) in [
        (json!({"input_schema": {"type": "object"}}), "tools.0.custom.name: Field required"),
        (json!({"name": "x"}), "tools.0.custom.input_schema: Field required"),
        (json!({"name": "x", "input_schema": {}}), "tools.0.custom.input_schema.type: Field required"),
        (
            json!({"name": "a b", "input_schema": {"type": "object"}}),
            "tools.0.custom.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'",
        ),
    ] {
        let body = with(request(json!([user("go")])), json!({"tools": [tool]}));
        assert_eq!(bench.invalid(&body).await, message);
    }
}

#[tokio::test]
async fn a_chosen_tool_must_be_declared() {
    let bench = bench().await;
    let choice = json!({"tools": [tool("Bash")], "tool_choice": {"type": "tool", "name": "Nope"}});
    let body = with(request(json!([user("go")])), choice);
    assert_eq!(bench.invalid(&body).await, "Tool 'Nope' not found in provided tools");
}

#[tokio::test]
async fn at_most_four_breakpoints_counting_the_automatic_one() {
    let bench = bench().await;
    let five: Vec<Value> = (0..5).map(|index| marked(block(&index.to_string(), 20))).collect();
    let body = request(json!([user(five.clone())]));
    let message = "A maximum of 4 blocks with cache_control may be provided. Found 5.";
    assert_eq!(bench.invalid(&body).await, message);
    let mut four = five[..4].to_vec();
    four.push(text("tail"));
    let body = with(request(json!([user(four)])), json!({"cache_control": {"type": "ephemeral"}}));
    assert_eq!(bench.invalid(&body).await, message);
    assert_eq!(bench.message(&request(json!([user(five[..4].to_vec())]))).await["type"], "message");
}

#[tokio::test]
async fn breakpoints_are_counted_over_tools_system_messages_and_nested_content() {
    let bench = bench().await;
    let nested = json!({"type": "tool_result", "tool_use_id": "toolu_1", "content": [marked(text("in"))]});
    let body = with(
        request(json!([
            user(json!([marked(text("one"))])),
            assistant(json!([marked(call("toolu_1"))])),
            user(json!([nested]))
        ])),
        json!({"tools": [marked(tool("Bash"))], "system": [marked(text("be"))]}),
    );
    assert_eq!(
        bench.invalid(&body).await,
        "A maximum of 4 blocks with cache_control may be provided. Found 5."
    );
}

#[tokio::test]
async fn thinking_cannot_carry_a_marker() {
    let bench = bench().await;
    let thinking = marked(json!({"type": "thinking", "thinking": "hm", "signature": "x"}));
    let body = request(json!([user("go"), assistant(json!([thinking, text("so")])), user("on")]));
    assert_eq!(
        bench.invalid(&body).await,
        "messages.1.content.0.thinking.cache_control: Extra inputs are not permitted"
    );
}

#[tokio::test]
async fn empty_text_cannot_carry_a_marker() {
    let bench = bench().await;
    let body = request(json!([user(json!([text("a"), marked(text(""))]))]));
    assert_eq!(
        bench.invalid(&body).await,
        "messages.0.content.1.text: cache_control cannot be set for empty text blocks"
    );
}

#[tokio::test]
async fn a_deferred_tool_cannot_carry_a_marker() {
    let bench = bench().await;
    let deferred = with(marked(tool("Rare")), json!({"defer_loading": true}));
    let body = with(request(json!([user("go")])), json!({"tools": [tool("Bash"), deferred]}));
    assert!(bench.invalid(&body).await.contains("cannot have both defer_loading=true and cache_control"));
}

#[tokio::test]
async fn a_marker_is_ephemeral_for_five_minutes_or_an_hour() {
    let bench = bench().await;
    let bad_ttl = with(text("x"), json!({"cache_control": {"type": "ephemeral", "ttl": "2h"}}));
    assert!(bench.invalid(&request(json!([user(json!([bad_ttl]))]))).await.ends_with("'5m' or '1h'"));
    let bad_type = with(text("x"), json!({"cache_control": {"type": "eternal"}}));
    assert!(bench.invalid(&request(json!([user(json!([bad_type]))]))).await.ends_with("'ephemeral'"));
}

#[tokio::test]
async fn an_hour_must_not_come_after_five_minutes() {
    let bench = bench().await;
    let body = with(
        request(json!([user(json!([marked_1h(text("late"))]))])),
        json!({"system": [marked(text("early"))]}),
    );
    assert_eq!(
        bench.invalid(&body).await,
        "messages.0.content.0.cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m' \
         cache_control block. Note that blocks are processed in the following order: `tools`, `system`, `messages`."
    );
}

#[tokio::test]
async fn automatic_caching_with_another_ttl_than_its_target_is_refused() {
    let bench = bench().await;
    let body = with(
        request(json!([user(json!([marked_1h(text("last"))]))])),
        json!({"cache_control": {"type": "ephemeral"}}),
    );
    assert_eq!(
        bench.invalid(&body).await,
        "Top-level cache_control has ttl='5m' but the target block already has cache_control with ttl='1h'"
    );
}

#[tokio::test]
async fn texts_are_not_empty() {
    let bench = bench().await;
    let body = request(json!([user(json!([text("a"), text("")]))]));
    assert_eq!(bench.invalid(&body).await, "messages: text content blocks must be non-empty");
    let body = request(json!([user("")]));
    assert!(bench.invalid(&body).await.starts_with("messages.0: all messages must have non-empty content"));
}

#[tokio::test]
async fn newer_models_have_no_prefill_and_older_ones_do() {
    let bench = bench().await;
    let messages = json!([user("go"), assistant("Sure:")]);
    assert_eq!(
        bench.invalid(&request(messages.clone())).await,
        "This model does not support assistant message prefill. The conversation must end with a user message."
    );
    let older = with(request(messages), json!({"model": "claude-sonnet-4-5"}));
    assert_eq!(bench.message(&older).await["type"], "message");
}

#[tokio::test]
async fn a_system_message_stands_after_a_user_message_and_before_an_assistant_or_the_end() {
    let bench = bench().await;
    let system = json!({"role": "system", "content": "Be brief."});
    let accepted = [
        json!([user("go"), system]),
        json!([user("go"), system, assistant("yes"), user("on")]),
        json!([user("go"), assistant(json!([call("toolu_1")])), user(json!([result("toolu_1")])), system]),
    ];
    for messages in accepted {
        assert_eq!(bench.message(&request(messages)).await["type"], "message");
    }
    let refused = [
        json!([system, user("go")]),
        json!([user("go"), system, user("on")]),
        json!([user("go"), assistant("yes"), system]),
        json!([user("go"), assistant(json!([call("toolu_1")])), system, user(json!([result("toolu_1")]))]),
    ];
    for messages in refused {
        assert!(bench.invalid(&request(messages)).await.contains("role 'system'"));
    }
}

#[tokio::test]
async fn a_system_message_may_follow_an_assistant_turn_that_ends_with_a_server_tool() {
    let bench = bench().await;
    let search = json!({"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}});
    let found = json!({"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []});
    let system = json!({"role": "system", "content": "Be brief."});
    let body = request(json!([user("go"), assistant(json!([search, found])), system]));
    assert_eq!(bench.message(&body).await["type"], "message");
}

#[tokio::test]
async fn older_models_have_no_system_messages() {
    let bench = bench().await;
    let messages = json!([user("go"), {"role": "system", "content": "Be brief."}]);
    for model in ["claude-sonnet-4-6", "claude-sonnet-5"] {
        let body = with(request(messages.clone()), json!({"model": model}));
        assert_eq!(bench.invalid(&body).await, "role 'system' is not supported on this model");
    }
}

#[tokio::test]
async fn required_fields_are_named_when_missing() {
    let bench = bench().await;
    for field in ["model", "messages", "max_tokens"] {
        let mut body = request(json!([user("go")]));
        body.as_object_mut().unwrap().remove(field);
        assert_eq!(bench.invalid(&body).await, format!("{field}: Field required"));
    }
    for (message, expected) in [
        (json!({"content": "x"}), "messages.0.role: Field required"),
        (json!({"role": "user"}), "messages.0.content: Field required"),
        (json!({"role": "robot", "content": "x"}), "messages.0.role: Input should be 'user' or 'assistant'"),
    ] {
        assert_eq!(bench.invalid(&request(json!([message]))).await, expected);
    }
    assert_eq!(bench.invalid(&request(json!([]))).await, "messages: at least one message is required");
}

#[tokio::test]
async fn fields_of_the_wrong_type_are_named() {
    let bench = bench().await;
    for (members, expected) in [
        (json!({"max_tokens": "many"}), "max_tokens: Input should be a valid integer"),
        (json!({"messages": "hello"}), "messages: Input should be a valid list"),
        (json!({"model": 7}), "model: Input should be a valid string"),
        (json!({"stream": "yes"}), "stream: Input should be a valid boolean"),
        (json!({"system": 4}), "system: Input should be a valid list"),
        (json!({"tools": {}}), "tools: Input should be a valid list"),
        (json!({"temperature": 2}), "temperature: range: 0..1"),
    ] {
        let body = with(request(json!([user("go")])), members);
        assert_eq!(bench.invalid(&body).await, expected);
    }
}

#[tokio::test]
async fn an_unknown_model_is_not_found() {
    let bench = bench().await;
    let body = with(request(json!([user("go")])), json!({"model": "claude-nobody-9"}));
    assert_eq!(bench.refusal(&body).await, (404, "model: claude-nobody-9".to_owned()));
}

#[tokio::test]
async fn prompt_and_answer_must_fit_the_window() {
    let bench = bench().await;
    let old = json!({"model": "claude-haiku-4-5", "max_tokens": 64000});
    let body = with(request(json!([user(json!([block("big", 190_000)]))])), old);
    assert_eq!(
        bench.invalid(&body).await,
        "input length and `max_tokens` exceed context limit: 190000 + 64000 > 200000, decrease input length or \
         `max_tokens` and try again"
    );
    let body = with(
        request(json!([user(json!([block("big", 200_001)]))])),
        json!({"model": "claude-haiku-4-5", "max_tokens": 1}),
    );
    assert_eq!(bench.invalid(&body).await, "prompt is too long: 200001 tokens > 200000 maximum");
    let body = with(request(json!([user("go")])), json!({"model": "claude-haiku-4-5", "max_tokens": 64001}));
    assert_eq!(
        bench.invalid(&body).await,
        "max_tokens: 64001 > 64000, which is the maximum allowed number of output tokens for claude-haiku-4-5"
    );
}

#[tokio::test]
async fn manual_thinking_needs_a_budget_below_max_tokens() {
    let bench = bench().await;
    let body = |thinking: Value| with(request(json!([user("go")])), json!({"thinking": thinking}));
    let small = bench.invalid(&body(json!({"type": "enabled", "budget_tokens": 100}))).await;
    assert_eq!(small, "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024");
    let large = bench.invalid(&body(json!({"type": "enabled", "budget_tokens": 8000}))).await;
    assert!(large.starts_with("`max_tokens` must be greater than `thinking.budget_tokens`."), "{large}");
    let missing = bench.invalid(&body(json!({"type": "enabled"}))).await;
    assert_eq!(missing, "thinking.enabled.budget_tokens: Field required");
}

#[tokio::test]
async fn in_manual_mode_the_final_assistant_turn_starts_with_thinking_and_in_adaptive_mode_it_need_not() {
    let bench = bench().await;
    let messages = json!([
        user("go"),
        assistant(json!([text("so"), call("toolu_1")])),
        user(json!([result("toolu_1")]))
    ]);
    let manual = json!({"thinking": {"type": "enabled", "budget_tokens": 2000}});
    let message = bench.invalid(&with(request(messages.clone()), manual)).await;
    let expected = "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `text`.";
    assert!(message.starts_with(expected), "{message}");
    let adaptive = with(request(messages), json!({"thinking": {"type": "adaptive"}}));
    assert_eq!(bench.message(&adaptive).await["type"], "message");
}

#[tokio::test]
async fn models_with_bound_thinking_refuse_forced_tools_and_disabled_thinking() {
    let bench = bench().await;
    let body = with(request(json!([user("go")])), json!({"model": BOUND, "tools": [agent_tool()]}));
    let forced = with(body.clone(), json!({"tool_choice": {"type": "any"}}));
    assert!(bench.invalid(&forced).await.contains("tool_choice"));
    let disabled = with(body, json!({"thinking": {"type": "disabled"}}));
    assert!(bench.invalid(&disabled).await.contains("thinking"));
}

#[tokio::test]
async fn output_formats_need_a_type_and_a_schema() {
    let bench = bench().await;
    for (members, expected) in [
        (json!({"output_config": {"format": {}}}), "output_config.format.type: Field required"),
        (
            json!({"output_config": {"format": {"type": "yaml"}}}),
            "output_config.format.type: Input should be 'json_schema'",
        ),
        (json!({"output_format": {"type": "json_schema"}}), "output_format.schema: Field required"),
    ] {
        assert_eq!(bench.invalid(&with(request(json!([user("go")])), members)).await, expected);
    }
}

#[tokio::test]
async fn pre_warming_is_refused_with_streams_manual_thinking_formats_and_forced_tools() {
    let bench = bench().await;
    let cold = with(request(json!([user("go")])), json!({"max_tokens": 0, "tools": [tool("Bash")]}));
    for members in [
        json!({"stream": true}),
        json!({"thinking": {"type": "enabled", "budget_tokens": 2000}}),
        json!({"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}}),
        json!({"tool_choice": {"type": "any"}}),
    ] {
        let message = bench.invalid(&with(cold.clone(), members)).await;
        assert!(message.starts_with("max_tokens: 0 cannot be combined with"), "{message}");
    }
}

#[tokio::test]
async fn missing_credentials_are_an_authentication_error() {
    let bench = bench().await;
    let request = bench.client.post(format!("{}/v1/messages", bench.sim.url())).body("{}");
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 401);
    let answer: Value = response.json().await.unwrap();
    assert_eq!(answer["error"]["type"], "authentication_error");
    assert!(answer["request_id"].as_str().unwrap().starts_with("req_"));
}

#[tokio::test]
async fn the_version_header_is_required_unless_the_setting_says_otherwise() {
    let strict = bench().await;
    let body = request(json!([user("go")])).to_string();
    let post =
        |url: String, client: &reqwest::Client| client.post(url).header("x-api-key", "k").body(body.clone());
    let response = post(format!("{}/v1/messages", strict.sim.url()), &strict.client).send().await.unwrap();
    assert_eq!(response.status(), 400);
    assert!(response.text().await.unwrap().contains("anthropic-version: header is required"));
    let lax = bench_with(|config| config.rules.version_header = VersionHeader::Optional).await;
    let response = post(format!("{}/v1/messages", lax.sim.url()), &lax.client).send().await.unwrap();
    assert_eq!(response.status(), 200);
}

#[tokio::test]
async fn unknown_fields_and_blocks_are_accepted_unless_the_setting_says_otherwise() {
    let field = with(request(json!([user("go")])), json!({"novelty": {"deep": [1, 2]}}));
    let block = request(json!([user(json!([text("go"), {"type": "hologram", "data": 1}]))]));
    let tolerant = bench().await;
    assert_eq!(tolerant.message(&field).await["type"], "message");
    assert_eq!(tolerant.message(&block).await["type"], "message");
    let strict = bench_with(|config| config.rules.unknown_input = UnknownInput::Refuse).await;
    assert_eq!(strict.invalid(&field).await, "novelty: Extra inputs are not permitted");
    assert!(strict.invalid(&block).await.starts_with("messages.0.content.1: Input tag 'hologram' found"));
}

#[tokio::test]
async fn unknown_paths_are_not_found_and_wrong_methods_not_allowed() {
    let bench = bench().await;
    let response = bench.post("/v1/nothing").body("{}").send().await.unwrap();
    assert_eq!(response.status(), 404);
    assert_eq!(response.json::<Value>().await.unwrap()["error"]["type"], "not_found_error");
    assert_eq!(bench.get("/v1/messages").send().await.unwrap().status(), 405);
}
