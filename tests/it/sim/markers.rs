//! Which blocks can carry `cache_control`, one row of the fact sheet after the other.

use serde_json::{Value, json};

use super::harness::{assistant, bench, block, marked, request, text, tool, user, with};

/// A block of the assistant between two user messages.
fn said(block: Value) -> Value {
    request(json!([user("go"), assistant(json!([block, text("so")])), user("on")]))
}

#[tokio::test]
async fn redacted_thinking_and_fallback_blocks_cannot_carry_a_marker() {
    let bench = bench().await;
    for block in [
        json!({"type": "redacted_thinking", "data": "x"}),
        json!({"type": "fallback", "from": "claude-opus-5"}),
    ] {
        let kind = block["type"].as_str().unwrap().to_owned();
        assert_eq!(
            bench.invalid(&said(marked(block))).await,
            format!("messages.1.content.0.{kind}.cache_control: Extra inputs are not permitted")
        );
    }
}

#[tokio::test]
async fn every_other_block_of_a_user_can_carry_a_marker() {
    let bench = bench().await;
    let image = json!({"type": "base64", "media_type": "image/png", "data": "AAAA"});
    for block in [
        text("words"),
        json!({"type": "image", "source": image}),
        json!({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}}),
        json!({"type": "search_result", "source": "s", "title": "t", "content": [text("found")]}),
        json!({"type": "container_upload", "file_id": "file_1"}),
        json!({"type": "mid_conv_system", "content": [text("be brief")]}),
        json!({"type": "tool_addition", "tool": {"type": "tool_reference", "tool_name": "Rare"}}),
        json!({"type": "tool_reference", "tool_name": "Rare"}),
    ] {
        let body = request(json!([user(json!([text("go"), marked(block)]))]));
        bench.message(&body).await;
        assert_eq!(bench.last_record().breakpoints.len(), 1, "{body}");
    }
}

#[tokio::test]
async fn calls_results_and_compactions_can_carry_a_marker() {
    let bench = bench().await;
    let call = json!({"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {}});
    let search = json!({"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}});
    let found = json!({"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []});
    let result = json!({"type": "tool_result", "tool_use_id": "toolu_1", "content": "done"});
    let compaction = json!({"type": "compaction", "content": "so far"});
    let turn = assistant(json!([marked(compaction), marked(search), found, marked(call)]));
    let body = request(json!([user("go"), turn, user(json!([marked(result)]))]));
    bench.message_beta("compact-2026-01-12", &body).await;
    assert_eq!(bench.last_record().breakpoints.len(), 4);
}

#[tokio::test]
async fn a_toolset_can_carry_a_marker_like_any_tool() {
    let bench = bench().await;
    let toolset = marked(json!({"type": "mcp_toolset", "mcp_server_name": "files"}));
    bench.message(&with(request(json!([user("go")])), json!({"tools": [tool("Bash"), toolset]}))).await;
    assert_eq!(bench.last_record().breakpoints[0].position, 1);
}

#[tokio::test]
async fn automatic_caching_with_nothing_to_mark_is_skipped_in_silence() {
    let bench = bench().await;
    let body = with(
        request(json!([user(json!([{"type": "fallback", "from": "claude-opus-5"}]))])),
        json!({"cache_control": {"type": "ephemeral"}}),
    );
    bench.message(&body).await;
    assert!(bench.last_record().breakpoints.is_empty());
}

#[tokio::test]
async fn breakpoints_are_free_and_only_tokens_are_billed() {
    let (few, many) = (bench().await, bench().await);
    let ask = |marks: &[usize]| {
        let blocks = (0..4).map(|index| {
            let block = block(&format!("block {index} "), 600);
            if marks.contains(&index) { marked(block) } else { block }
        });
        request(json!([user(blocks.collect::<Vec<_>>())]))
    };
    few.message(&ask(&[3])).await;
    many.message(&ask(&[0, 1, 2, 3])).await;
    assert_eq!(few.last_record().cost_usd, many.last_record().cost_usd);
}
