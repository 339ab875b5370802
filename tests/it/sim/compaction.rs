//! Compaction on demand.

use serde_json::{Value, json};

use super::harness::{
    BOUND, Bench, assistant, bench, bench_with, block, events, marked, request, text, tool, user, with,
};

const BETA: &str = "compact-2026-09-04";
const THRESHOLD: &str = "compact-2026-01-12";

fn summarize(messages: Value) -> Value {
    with(request(messages), json!({"compaction": {"type": "summarize"}}))
}

async fn summary(bench: &Bench) -> Value {
    let body = summarize(json!([user("go"), assistant("gone"), user("on")]));
    bench.message_beta(BETA, &body).await["content"][0].clone()
}

async fn code(bench: &Bench, body: &Value) -> String {
    let (status, error) = bench.refusal_beta(BETA, body).await;
    assert_eq!(status, 400);
    error["details"]["error_code"].as_str().unwrap_or_else(|| panic!("no code in {error}")).to_owned()
}

async fn uncoded(bench: &Bench, body: &Value) -> String {
    let (status, error) = bench.refusal_beta(BETA, body).await;
    assert_eq!((status, error.get("details")), (400, None), "{error}");
    error["message"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_summary_is_one_signed_block_billed_as_an_iteration_alone() {
    let bench = bench().await;
    let body = summarize(json!([user(json!([marked(block("a", 2000))])), assistant("gone"), user("on")]));
    let answer = bench.message_beta(BETA, &body).await;
    assert_eq!(answer["stop_reason"], "compaction");
    let content = answer["content"].as_array().unwrap();
    assert_eq!((content.len(), &content[0]["type"]), (1, &json!("compaction")));
    assert!(content[0]["signature"].is_string() && content[0]["content"].is_string());
    let usage = &answer["usage"];
    assert_eq!((&usage["input_tokens"], &usage["output_tokens"]), (&json!(0), &json!(0)));
    assert_eq!(
        (&usage["cache_creation_input_tokens"], &usage["cache_read_input_tokens"]),
        (&json!(0), &json!(0))
    );
    let iteration = &usage["iterations"][0];
    assert_eq!(
        (&iteration["type"], &iteration["cache_creation_input_tokens"]),
        (&json!("compaction"), &json!(2000))
    );
    assert!(iteration["output_tokens"].as_u64().unwrap() > 0);
    let again = bench.message_beta(BETA, &body).await;
    assert_eq!(again["usage"]["iterations"][0]["cache_read_input_tokens"], 2000, "it reads the cache");
    assert_eq!(bench.last_record().usage.unwrap().cache_read, 2000, "the journal has the real bill");
}

#[tokio::test]
async fn a_streamed_summary_comes_whole_with_the_start_of_its_block() {
    let bench = bench().await;
    let body = with(summarize(json!([user("go")])), json!({"stream": true}));
    let stream = bench.beta(BETA).json(&body).send().await.unwrap().text().await.unwrap();
    let events = events(&stream);
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    let expected = [
        "message_start",
        "content_block_start",
        "ping",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(names, expected);
    assert!(events[1].1["content_block"]["signature"].is_string());
    let (_, delta) = &events[4];
    assert_eq!(delta["usage"]["input_tokens"], 0);
    assert_eq!(delta["usage"]["iterations"][0]["type"], "compaction");
}

#[tokio::test]
async fn a_summary_that_does_not_fit_is_an_empty_answer() {
    let bench = bench().await;
    let body = with(summarize(json!([user("go")])), json!({"max_tokens": 5}));
    let answer = bench.message_beta(BETA, &body).await;
    assert_eq!((&answer["content"], &answer["stop_reason"]), (&json!([]), &json!("max_tokens")));
}

#[tokio::test]
async fn a_summary_stands_first_in_either_role_marked_or_not() {
    let bench = bench().await;
    let summary = summary(&bench).await;
    for messages in [
        json!([assistant(json!([summary])), user("on")]),
        json!([assistant(json!([summary])), assistant("kept"), user("on")]),
        json!([user(json!([marked(summary.clone()), text("on")]))]),
        json!([assistant(json!([summary]))]),
    ] {
        bench.message_beta(BETA, &request(messages)).await;
    }
}

#[tokio::test]
async fn the_parameter_and_the_block_need_the_beta() {
    let bench = bench().await;
    let asked = bench.invalid(&summarize(json!([user("go")]))).await;
    assert!(asked.ends_with("requires anthropic-beta: compact-2026-09-04"), "{asked}");
    let carried = request(json!([assistant(json!([summary(&bench).await])), user("on")]));
    let refused = bench.invalid(&carried).await;
    assert!(refused.starts_with("messages.0.content.0: Input tag 'compaction'"), "{refused}");
    let counted = bench.post("/v1/messages/count_tokens").json(&summarize(json!([user("go")])));
    assert_eq!(counted.send().await.unwrap().status(), 200, "count_tokens ignores the parameter");
}

#[tokio::test]
async fn a_parameter_of_a_wrong_shape_is_refused_with_its_path() {
    let bench = bench().await;
    for (compaction, path) in [
        (json!({}), "compaction.type: "),
        (json!({"type": "drop"}), "compaction.type: "),
        (json!({"type": "summarize", "instructions": 5}), "compaction.instructions: "),
        (json!({"type": "summarize", "instructions": "x".repeat(16_385)}), "compaction.instructions: "),
    ] {
        let body = with(request(json!([user("go")])), json!({"compaction": compaction}));
        let message = uncoded(&bench, &body).await;
        assert!(message.starts_with(path), "{message}");
    }
    let longest = json!({"type": "summarize", "instructions": "x".repeat(16_384)});
    bench.message_beta(BETA, &with(request(json!([user("go")])), json!({"compaction": longest}))).await;
}

#[tokio::test]
async fn options_that_make_no_sense_beside_a_summary_are_refused_without_a_code() {
    let bench = bench().await;
    let format = json!({"type": "json_schema", "schema": {"type": "object"}});
    for members in [
        json!({"context_management": {"edits": []}}),
        json!({"stop_sequences": ["x"]}),
        json!({"output_config": {"format": format}}),
        json!({"tools": [tool("Bash")], "tool_choice": {"type": "any"}}),
        json!({"output_config": {"task_budget": {"type": "tokens", "total": 9, "remaining": 5}}}),
    ] {
        uncoded(&bench, &with(summarize(json!([user("go")])), members)).await;
    }
    let carried = request(json!([assistant(json!([summary(&bench).await])), user("on")]));
    for members in [
        json!({"context_management": {"edits": [{"type": "compact_20260112"}]}}),
        json!({"output_config": {"task_budget": {"type": "tokens", "total": 9, "remaining": 5}}}),
    ] {
        uncoded(&bench, &with(carried.clone(), members)).await;
    }
}

#[tokio::test]
async fn there_must_be_something_to_summarize() {
    let bench = bench().await;
    let body = summarize(json!([assistant(json!([summary(&bench).await]))]));
    assert_eq!(code(&bench, &body).await, "compaction_nothing_to_summarize");
}

#[tokio::test]
async fn a_turn_that_waits_for_results_cannot_be_summarized() {
    let bench = bench().await;
    let call = json!({"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {}});
    let body = summarize(json!([user("go"), assistant(json!([call]))]));
    assert_eq!(code(&bench, &body).await, "compaction_incomplete_turn");
}

#[tokio::test]
async fn a_second_summary_is_ambiguous_and_one_that_is_not_first_misplaced() {
    let bench = bench().await;
    let summary = summary(&bench).await;
    let two = request(json!([assistant(json!([summary, summary])), user("on")]));
    assert_eq!(code(&bench, &two).await, "compaction_block_ambiguous");
    for messages in [
        json!([user("before"), assistant(json!([summary])), user("on")]),
        json!([user(json!([text("before"), summary]))]),
        json!([user("before"), {"role": "system", "content": [summary]}]),
    ] {
        let (_, error) = bench.refusal_beta(BETA, &request(messages)).await;
        assert_eq!(error["details"]["error_code"], "compaction_block_misplaced");
        let message = error["message"].as_str().unwrap();
        assert!(
            message.contains("`compaction` block must be sent first, in place of the messages"),
            "{message}"
        );
    }
}

#[tokio::test]
async fn an_edited_summary_is_refused_by_what_was_edited() {
    let bench = bench().await;
    let summary = summary(&bench).await;
    for (members, expected) in [
        (json!({"signature": "forged"}), "compaction_signature_invalid"),
        (json!({"signature": null}), "compaction_signature_invalid"),
        (json!({"content": "other"}), "compaction_content_mismatch"),
        (json!({"tool_changes": [{"type": "tool_removal"}]}), "compaction_tool_changes_mismatch"),
    ] {
        let edited = with(summary.clone(), members);
        let body = request(json!([assistant(json!([edited])), user("on")]));
        assert_eq!(code(&bench, &body).await, expected);
    }
    let longer = with(summary, json!({"note": 1}));
    let message = uncoded(&bench, &request(json!([assistant(json!([longer])), user("on")]))).await;
    assert_eq!(message, "messages.0.content.0.compaction.note: Extra inputs are not permitted");
    let lax = bench_with(|config| config.rules.set("signatures", "ignored").unwrap()).await;
    let unsigned = json!({"type": "compaction", "content": "so far"});
    lax.message_beta(BETA, &request(json!([assistant(json!([unsigned])), user("on")]))).await;
}

#[tokio::test]
async fn a_summary_names_the_tools_that_came_or_went() {
    let bench = bench().await;
    let removal = json!({"type": "tool_removal", "tool": {"type": "tool_reference", "name": "Bash"}});
    let body = summarize(json!([user("go"), {"role": "system", "content": [removal]}]));
    let answer = bench.message_beta(BETA, &body).await;
    assert_eq!(answer["content"][0]["tool_changes"], json!([removal]));
    bench.message_beta(BETA, &request(json!([assistant(answer["content"].clone()), user("on")]))).await;
}

#[tokio::test]
async fn a_block_without_content_does_nothing() {
    let bench = bench().await;
    let nothing = json!({"type": "compaction", "content": null});
    let without = bench.message_beta(BETA, &request(json!([user("go"), assistant("so"), user("on")]))).await;
    let body = request(json!([user("go"), assistant(json!([nothing, text("so")])), user("on")]));
    let with_it = bench.message_beta(BETA, &body).await;
    assert_eq!(with_it["usage"]["input_tokens"], without["usage"]["input_tokens"]);
}

#[tokio::test]
async fn a_block_of_compaction_by_threshold_stands_behind_what_it_summarizes() {
    let bench = bench().await;
    let unsigned = json!({"type": "compaction", "content": "so far"});
    let body = request(json!([user("go"), assistant(json!([unsigned, text("so")])), user("on")]));
    bench.message_beta(THRESHOLD, &body).await;
    assert_eq!(code(&bench, &body).await, "compaction_block_misplaced");
}

#[tokio::test]
async fn bound_thinking_behind_a_summary_stays_valid_under_the_same_system_prompt() {
    let bench = bench().await;
    let bound = |messages: Value| with(request(messages), json!({"model": BOUND, "system": "Be brief."}));
    let opening = json!([user("one"), assistant("two"), user("[[sim:thinking]] three")]);
    let thought = bench.message_beta(BETA, &bound(opening)).await;
    assert_eq!(thought["content"][0]["type"], "thinking");
    let asked = with(
        bound(json!([user("one"), assistant("two"), user("x")])),
        json!({"compaction": {"type": "summarize"}}),
    );
    let summary = bench.message_beta(BETA, &asked).await["content"].clone();
    let kept = bound(json!([
        assistant(summary),
        user("[[sim:thinking]] three"),
        assistant(thought["content"].clone()),
        user("on")
    ]));
    bench.message_beta(BETA, &kept).await;
    let other = with(kept, json!({"system": "Be long."}));
    let (_, error) = bench.refusal_beta(BETA, &other).await;
    assert!(error["message"].as_str().unwrap().contains("bound to a different conversation"), "{error}");
}

#[tokio::test]
async fn a_thread_goes_on_from_its_summary() {
    let bench = bench().await;
    let betas = format!("message-threads-2026-08-12,{BETA}");
    let body = summarize(json!([user(json!([block("a", 2000)])), assistant("gone"), user("on")]));
    let first = bench.message_beta(&betas, &with(body, json!({"thread": {"type": "create"}}))).await;
    assert_eq!(bench.sim.threads()[0].messages, 1, "the summary stands in place of what it summarizes");
    let thread = json!({"thread": {"type": "continue", "previous_message_id": first["id"]}});
    let second = bench.message_beta(&betas, &with(request(json!([])), thread)).await;
    assert!(second["usage"]["input_tokens"].as_u64().unwrap() < 2000, "{second}");
}

#[tokio::test]
async fn by_setting_every_answer_has_its_iteration() {
    let bench = bench_with(|config| config.rules.set("iterations", "always").unwrap()).await;
    let usage = bench.message(&request(json!([user("go")]))).await["usage"].take();
    let entry = &usage["iterations"][0];
    assert_eq!((&entry["type"], &entry["input_tokens"]), (&json!("message"), &usage["input_tokens"]));
    assert_eq!(entry["output_tokens"], usage["output_tokens"]);
}
