//! When two prompts are the same prompt: spellings, defaults, and parameters that count.

use forkpoint::sim::SimConfig;
use serde_json::{Value, json};

use super::harness::{
    BOUND, Bench, Tokens, assistant, bench, bench_with, block, marked, request, text, tool, user, with,
};

async fn turned(name: &str, value: &str) -> Bench {
    bench_with(|config: &mut SimConfig| config.rules.set(name, value).unwrap()).await
}

async fn read_raw(bench: &Bench, body: String) -> Tokens {
    let response = bench.post("/v1/messages").body(body).send().await.unwrap();
    assert_eq!(response.status(), 200);
    Tokens::of(&response.json::<Value>().await.unwrap()["usage"])
}

/// A request above the minimum with one spelling in the middle of it.
fn spelt(spelling: &str) -> String {
    let filler = "e".repeat(6_000);
    format!(
        r#"{{"model":"claude-opus-4-8","max_tokens":90,"messages":[{{"role":"user","content":[
            {{"type":"text","text":"{spelling}{filler}","cache_control":{{"type":"ephemeral"}}}}]}}]}}"#
    )
}

#[tokio::test]
async fn escapes_are_decoded_before_hashing_unless_the_setting_says_otherwise() {
    let pairs = [("A", r"\u0041"), ("/", r"\/"), ("é", r"\u00e9"), (r"\n", r"\u000a"), (r#"\""#, r"\u0022")];
    for (setting, is_shared) in [("decoded", true), ("significant", false)] {
        for (plain, escaped) in pairs {
            let bench = turned("escapes", setting).await;
            let first = read_raw(&bench, spelt(plain)).await;
            let again = read_raw(&bench, spelt(plain)).await;
            assert_eq!(again.read, first.write_5m, "{setting}: the same spelling is the same prompt");
            let other = read_raw(&bench, spelt(escaped)).await;
            assert_eq!(other.read > 0, is_shared, "{setting}: {plain} and {escaped}");
            assert_eq!(other.read + other.writes(), first.write_5m, "tokens do not depend on the spelling");
        }
    }
}

#[tokio::test]
async fn where_escapes_count_only_the_blocks_behind_one_are_lost() {
    let bench = turned("escapes", "significant").await;
    let ask = |tail: &str| {
        let shared = "s".repeat(6_000);
        format!(
            r#"{{"model":"claude-opus-4-8","max_tokens":90,"messages":[{{"role":"user","content":[
                {{"type":"text","text":"{shared}\n","cache_control":{{"type":"ephemeral"}}}},
                {{"type":"text","text":"{tail}"}}]}}]}}"#
        )
    };
    let first = read_raw(&bench, ask("A")).await;
    assert_eq!(read_raw(&bench, ask(r"\u0041")).await.read, first.write_5m);
}

#[tokio::test]
async fn escaped_names_are_read_like_others_even_where_escapes_count() {
    let bench = turned("escapes", "significant").await;
    let body =
        r#"{"m\u006fdel":"claude-opus-4-8","max_tokens":9,"messages":[{"role":"us\u0065r","content":"hi"}]}"#;
    read_raw(&bench, body.to_owned()).await;
}

#[tokio::test]
async fn bound_thinking_is_bound_to_what_was_said_even_where_escapes_count() {
    let bench = turned("escapes", "significant").await;
    let first = with(request(json!([user("Think. [[sim:thinking]]")])), json!({"model": BOUND}));
    let content = bench.message(&first).await["content"].clone();
    let messages = json!([first["messages"][0], assistant(content), user("on")]);
    let raw = with(first, json!({"messages": messages})).to_string().replace("Think.", r"Th\u0069nk.");
    read_raw(&bench, raw).await;
}

/// Tools, a marked system block and a marked message, all above the minimum.
fn layered(members: Value) -> Value {
    let message = user(json!([marked(block("question", 600))]));
    let layers = json!({"tools": [tool("Bash")], "system": [marked(block("system", 5000))]});
    with(with(request(json!([message])), layers), members)
}

async fn reads_messages(bench: &Bench, first: Value, second: Value) -> bool {
    bench.usage(&layered(first)).await;
    let usage = bench.usage(&layered(second)).await;
    assert!(usage.read >= 5_000, "the system layer survives: {usage:?}");
    usage.writes() == 0
}

#[tokio::test]
async fn tool_choice_auto_differs_from_no_choice_unless_the_setting_says_otherwise() {
    let said = [
        json!({"tool_choice": {"type": "auto"}}),
        json!({"tool_choice": {"type": "auto", "disable_parallel_tool_use": false}}),
    ];
    for (setting, is_shared) in [("different", false), ("same_as_omitted", true)] {
        for said in &said {
            let bench = turned("invalidation.said_tool_choice", setting).await;
            assert_eq!(reads_messages(&bench, json!({}), said.clone()).await, is_shared, "{setting} {said}");
        }
        let bench = turned("invalidation.said_tool_choice", setting).await;
        let other = json!({"tool_choice": {"type": "auto", "disable_parallel_tool_use": true}});
        assert!(!reads_messages(&bench, json!({}), other).await, "another choice is another prompt");
    }
}

#[tokio::test]
async fn budgets_output_formats_and_kinds_of_tool_choice_are_part_of_the_messages_key() {
    let manual = |budget: u64| json!({"thinking": {"type": "enabled", "budget_tokens": budget}});
    let schema = |name: &str| json!({"type": "json_schema", "schema": {"type": "object", "title": name}});
    for (first, second) in [
        (manual(2_000), manual(3_000)),
        (json!({}), json!({"output_config": {"format": schema("a")}})),
        (json!({"output_format": schema("a")}), json!({"output_format": schema("b")})),
        (json!({"tool_choice": {"type": "any"}}), json!({"tool_choice": {"type": "none"}})),
        (json!({"context_management": {"edits": []}}), json!({})),
    ] {
        let bench = bench().await;
        assert!(!reads_messages(&bench, first.clone(), second.clone()).await, "{first} {second}");
        assert!(reads_messages(&bench, first.clone(), first).await, "a repetition is the same prompt");
    }
}

#[tokio::test]
async fn how_thinking_is_shown_is_no_part_of_any_key() {
    let bench = bench().await;
    let first = json!({"thinking": {"type": "adaptive"}});
    assert!(
        reads_messages(&bench, first, json!({"thinking": {"type": "adaptive", "display": "omitted"}})).await
    );
}

#[tokio::test]
async fn an_image_inside_a_tool_result_counts_as_an_image_anywhere() {
    let bench = bench().await;
    let source = json!({"type": "base64", "media_type": "image/png", "data": "AAAA"});
    let ask = |content: Value| {
        let call = json!({"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {}});
        let result = json!({"type": "tool_result", "tool_use_id": "toolu_1", "content": content});
        let start = user(json!([marked(block("start", 1200))]));
        request(json!([start, assistant(json!([call])), user(json!([result]))]))
    };
    bench.usage(&ask(json!([text("seen")]))).await;
    assert_eq!(bench.usage(&ask(json!([text("again")]))).await.read, 1200);
    assert_eq!(bench.usage(&ask(json!([{"type": "image", "source": source}]))).await.read, 0);
}
