//! The prompt cache, rule by rule. Usage is the evidence; the record says where the hit was.

use std::time::Duration;

use forkpoint::sim::SimConfig;
use forkpoint::sim::cache::{BreakpointOutcome, EntryTtl};
use serde_json::{Value, json};

use super::harness::{
    BOUND, Bench, Tokens, assistant, bench, bench_with, block, marked, marked_1h, request, text, tool, user,
    with,
};

/// Blocks of 100 tokens each in one user message, breakpoints at the given indexes.
fn blocks(count: usize, breakpoints: &[usize]) -> Value {
    let blocks: Vec<Value> = (0..count)
        .map(|index| {
            let block = block(&format!("block {index} "), 100);
            if breakpoints.contains(&index) { marked(block) } else { block }
        })
        .collect();
    request(json!([user(blocks)]))
}

/// Tools, a marked system block above every minimum, and one message.
fn layered() -> Value {
    let members =
        json!({"tools": [tool("Bash"), marked(tool("Read"))], "system": [marked(block("system", 5000))]});
    with(request(json!([user(json!([marked(block("question", 600))]))])), members)
}

/// The tokens that a request reads after another one has written.
async fn read_after(bench: &Bench, first: &Value, second: &Value) -> u64 {
    bench.usage(first).await;
    bench.usage(second).await.read
}

async fn turned(name: &str, value: &str) -> Bench {
    bench_with(|config: &mut SimConfig| config.rules.set(name, value).unwrap()).await
}

#[tokio::test]
async fn a_prefix_written_at_a_breakpoint_is_read_by_the_next_request() {
    let bench = bench().await;
    let first = bench.usage(&blocks(12, &[10])).await;
    assert_eq!(first, Tokens { read: 0, write_5m: 1100, write_1h: 0, uncached: 100 });
    let second = bench.usage(&blocks(12, &[10])).await;
    assert_eq!(second, Tokens { read: 1100, write_5m: 0, write_1h: 0, uncached: 100 });
}

#[tokio::test]
async fn writes_happen_only_at_breakpoints() {
    let bench = bench().await;
    bench.usage(&blocks(30, &[29])).await;
    let shorter = bench.usage(&blocks(20, &[19])).await;
    assert_eq!(shorter.read, 0, "block 19 was inside the first prompt, but nothing was written there");
    assert_eq!(bench.sim.cache_entries().iter().map(|entry| entry.position).collect::<Vec<_>>(), [29, 19]);
}

#[tokio::test]
async fn without_a_breakpoint_nothing_is_written_or_read() {
    let bench = bench().await;
    bench.usage(&blocks(12, &[10])).await;
    let plain = bench.usage(&blocks(12, &[])).await;
    assert_eq!(plain, Tokens { read: 0, write_5m: 0, write_1h: 0, uncached: 1200 });
}

/// The worked example of the documentation: entry at block 15, breakpoint at 35, positions 35…16 checked.
#[tokio::test]
async fn lookback_misses_by_one_when_the_entry_is_the_twenty_first_position() {
    let bench = bench().await;
    bench.usage(&blocks(16, &[15])).await;
    let missed = bench.usage(&blocks(36, &[35])).await;
    assert_eq!(missed, Tokens { read: 0, write_5m: 3600, write_1h: 0, uncached: 0 });
}

#[tokio::test]
async fn lookback_hits_the_twentieth_position_counting_the_breakpoint_as_the_first() {
    let bench = bench().await;
    bench.usage(&blocks(16, &[15])).await;
    let hit = bench.usage(&blocks(35, &[34])).await;
    assert_eq!(hit, Tokens { read: 1600, write_5m: 1900, write_1h: 0, uncached: 0 });
    assert_eq!(bench.last_record().hit.unwrap().position, 15);
}

#[tokio::test]
async fn a_second_breakpoint_starts_a_second_window() {
    let bench = bench().await;
    bench.usage(&blocks(16, &[15])).await;
    let hit = bench.usage(&blocks(36, &[15, 35])).await;
    assert_eq!(hit, Tokens { read: 1600, write_5m: 2000, write_1h: 0, uncached: 0 });
}

#[tokio::test]
async fn the_lookback_window_is_a_setting() {
    let bench = turned("lookback_positions", "21").await;
    assert_eq!(read_after(&bench, &blocks(16, &[15]), &blocks(36, &[35])).await, 1600);
}

/// The worked example of mixed lifetimes: A the highest hit, B the highest 1h marker after it, C the last marker.
#[tokio::test]
async fn mixed_lifetimes_bill_a_read_b_minus_a_for_an_hour_and_c_minus_b_for_five_minutes() {
    let bench = bench().await;
    let a = marked_1h(block("a", 1100));
    bench.usage(&request(json!([user(json!([a]))]))).await;
    let body = request(json!([user(json!([
        a,
        marked_1h(block("b", 300)),
        marked(block("c", 200)),
        block("d", 50)
    ]))]));
    let usage = bench.usage(&body).await;
    assert_eq!(usage, Tokens { read: 1100, write_1h: 300, write_5m: 200, uncached: 50 });
    let outcomes: Vec<_> =
        bench.last_record().breakpoints.iter().map(|point| (point.ttl, point.outcome)).collect();
    assert_eq!(
        outcomes,
        [
            (EntryTtl::OneHour, BreakpointOutcome::Read),
            (EntryTtl::OneHour, BreakpointOutcome::Written),
            (EntryTtl::FiveMinutes, BreakpointOutcome::Written)
        ]
    );
}

#[tokio::test]
async fn the_cost_of_a_request_follows_its_usage() {
    let bench = bench().await;
    bench.message(&blocks(12, &[10])).await;
    let record = bench.last_record();
    let usage = record.usage.unwrap();
    let expected = (100.0 + 1100.0 * 1.25) * 5.0 / 1e6 + usage.output as f64 * 25.0 / 1e6;
    assert!((record.cost_usd.unwrap() - expected).abs() < 1e-12, "{record:?}");
}

#[tokio::test]
async fn a_prefix_below_the_models_minimum_is_silently_not_cached() {
    let bench = bench().await;
    let below = request(json!([user(json!([marked(block("small", 1023)), text("go")]))]));
    assert_eq!(bench.usage(&below).await.writes(), 0);
    assert_eq!(bench.usage(&below).await.read, 0);
    assert_eq!(bench.last_record().breakpoints[0].outcome, BreakpointOutcome::BelowMinimum);
    let enough = request(json!([user(json!([marked(block("enough", 1024)), text("go")]))]));
    assert_eq!(bench.usage(&enough).await.write_5m, 1024);
}

#[tokio::test]
async fn five_minutes_are_counted_from_the_start_of_the_request() {
    let bench = bench().await;
    let body = blocks(12, &[11]);
    bench.usage(&body).await;
    bench.sim.clock().advance(Duration::from_millis(299_999));
    assert_eq!(bench.usage(&body).await.read, 1200);
    bench.sim.clock().advance(Duration::from_secs(300));
    assert_eq!(bench.usage(&body).await.read, 0);
}

#[tokio::test]
async fn a_read_refreshes_the_entry() {
    let bench = bench().await;
    let body = blocks(12, &[11]);
    bench.usage(&body).await;
    for _ in 0..4 {
        bench.sim.clock().advance(Duration::from_secs(200));
        assert_eq!(bench.usage(&body).await.read, 1200);
    }
}

#[tokio::test]
async fn an_hour_entry_outlives_five_minutes_and_not_an_hour() {
    let bench = bench().await;
    let body = request(json!([user(json!([marked_1h(block("long", 1200)), text("go")]))]));
    assert_eq!(bench.usage(&body).await.write_1h, 1200);
    bench.sim.clock().advance(Duration::from_secs(3_599));
    assert_eq!(bench.usage(&body).await.read, 1200);
    bench.sim.clock().advance(Duration::from_secs(3_600));
    assert_eq!(bench.usage(&body).await.read, 0);
}

#[tokio::test]
async fn a_read_refreshes_shorter_prefixes_too_unless_the_setting_says_otherwise() {
    for (setting, read) in [("whole_prefix", 1200), ("hit_only", 0)] {
        let bench = turned("refresh", setting).await;
        bench.usage(&blocks(20, &[11, 19])).await;
        bench.sim.clock().advance(Duration::from_secs(200));
        bench.usage(&blocks(20, &[19])).await;
        bench.sim.clock().advance(Duration::from_secs(200));
        assert_eq!(bench.usage(&blocks(12, &[11])).await.read, read, "{setting}");
    }
}

#[tokio::test]
async fn a_breakpoint_below_the_hit_writes_nothing_unless_the_setting_says_otherwise() {
    for (setting, entries) in [("skip", 1), ("write", 2)] {
        let bench = turned("below_hit", setting).await;
        bench.usage(&blocks(20, &[19])).await;
        let usage = bench.usage(&blocks(20, &[11, 19])).await;
        assert_eq!((usage.read, usage.writes()), (2000, 0));
        assert_eq!(bench.sim.cache_entries().len(), entries, "{setting}");
    }
}

#[tokio::test]
async fn markers_are_not_hashed() {
    let bench = bench().await;
    assert_eq!(read_after(&bench, &blocks(12, &[3, 11]), &blocks(14, &[11, 13])).await, 1200);
}

#[tokio::test]
async fn white_space_between_tokens_is_not_hashed() {
    let bench = bench().await;
    let body = blocks(12, &[11]);
    bench.usage(&body).await;
    let pretty = serde_json::to_string_pretty(&body).unwrap();
    let response = bench.post("/v1/messages").body(pretty).send().await.unwrap();
    assert_eq!(Tokens::of(&response.json::<Value>().await.unwrap()["usage"]).read, 1200);
}

#[tokio::test]
async fn key_order_inside_tool_inputs_and_schemas_is_hashed() {
    let bench = bench().await;
    let conversation = |input: &str| {
        let call: Value = serde_json::from_str(&format!(
            r#"{{"type":"tool_use","id":"toolu_1","name":"Bash","input":{input}}}"#
        ))
        .unwrap();
        let result =
            json!({"type": "tool_result", "tool_use_id": "toolu_1", "content": [block("out", 1200)]});
        request(json!([user("go"), assistant(json!([call])), user(json!([marked(result)]))]))
    };
    let (one, other) = (conversation(r#"{"a":1,"b":2}"#), conversation(r#"{"b":2,"a":1}"#));
    assert_eq!(read_after(&bench, &one, &other).await, 0);
    assert!(bench.usage(&one).await.read > 1200);
}

#[tokio::test]
async fn key_order_among_a_blocks_own_members_is_a_setting() {
    for (setting, read) in [("everywhere", 0), ("inside_values", 1200)] {
        let bench = turned("key_order", setting).await;
        let content = "y".repeat(1200 * 4 - r#"{"type":"text","text":""}"#.len());
        let control = json!({"type": "ephemeral"});
        let one =
            request(json!([user(json!([{"type": "text", "text": content, "cache_control": control}]))]));
        let other =
            request(json!([user(json!([{"text": content, "type": "text", "cache_control": control}]))]));
        assert_eq!(read_after(&bench, &one, &other).await, read, "{setting}");
    }
}

#[tokio::test]
async fn a_string_and_one_text_block_share_an_entry_except_on_models_with_bound_thinking() {
    for (model, is_shared) in [("claude-opus-4-8", true), (BOUND, false)] {
        let bench = bench().await;
        let long = "z".repeat(8_000);
        let ask = |content: Value| {
            let messages = json!([user(content), assistant("yes"), user(json!([marked(text("go"))]))]);
            with(request(messages), json!({"model": model}))
        };
        let read = read_after(&bench, &ask(json!(long)), &ask(json!([text(&long)]))).await;
        assert_eq!(read > 0, is_shared, "{model}: {read}");
    }
}

#[tokio::test]
async fn consecutive_messages_of_one_role_are_one_turn_unless_the_setting_says_otherwise() {
    for (setting, is_shared) in [("one_turn", true), ("separate", false)] {
        let bench = turned("merging", setting).await;
        let (a, b) = (block("a", 700), marked(block("b", 700)));
        let together = request(json!([user(json!([a, b]))]));
        let apart = request(json!([user(json!([a])), user(json!([b]))]));
        assert_eq!(read_after(&bench, &together, &apart).await > 0, is_shared, "{setting}");
    }
}

#[tokio::test]
async fn the_attribution_line_is_stripped_when_it_stands_alone_and_first() {
    let line = |build: &str| text(&format!("x-anthropic-billing-header: cc_version=2.1.{build};"));
    let ask = |system: Value| with(request(json!([user("go")])), json!({"system": system}));
    let prompt = || marked(block("prompt", 1200));
    let bench = bench().await;
    let read =
        read_after(&bench, &ask(json!([line("1"), prompt()])), &ask(json!([line("2"), prompt()]))).await;
    assert_eq!(read, 1200);
    let not_first = |build| ask(json!([text("hello"), line(build), prompt()]));
    assert_eq!(read_after(&bench, &not_first("1"), &not_first("2")).await, 0);
    let other_upstream = turned("attribution", "prompt").await;
    let first = |build| ask(json!([line(build), prompt()]));
    assert_eq!(read_after(&other_upstream, &first("1"), &first("2")).await, 0);
}

#[tokio::test]
async fn deferred_tools_are_not_in_the_prefix() {
    let bench = bench().await;
    let deferred = with(tool("Rare"), json!({"defer_loading": true}));
    let without = layered();
    let mut more = layered();
    more["tools"].as_array_mut().unwrap().push(deferred);
    assert!(read_after(&bench, &without, &more).await > 5_000);
}

/// Which layers survive a change: the tokens read afterwards say.
async fn surviving(change: impl Fn(&mut Value)) -> &'static str {
    let bench = bench().await;
    // A tool description above the minimum, so that the tools layer can be read alone.
    let mut first = layered();
    first["tools"][1]["description"] = json!("t".repeat(8_000));
    let mut second = first.clone();
    change(&mut second);
    bench.usage(&first).await;
    bench.message(&second).await;
    match bench.last_record().hit.map(|hit| hit.position) {
        None => "nothing",
        Some(0 | 1) => "tools",
        Some(2) => "system",
        Some(_) => "messages",
    }
}

#[tokio::test]
async fn the_invalidation_table_holds() {
    let set = |key: &'static str, value: Value| move |body: &mut Value| body[key] = value.clone();
    let image =
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}});
    let document =
        json!({"type": "document", "source": {"type": "text", "data": "x"}, "citations": {"enabled": true}});
    let push = |block: Value| {
        move |body: &mut Value| body["messages"][0]["content"].as_array_mut().unwrap().push(block.clone())
    };

    assert_eq!(surviving(|_| {}).await, "messages");
    assert_eq!(surviving(|body| body["tools"][0]["description"] = json!("other")).await, "nothing");
    assert_eq!(surviving(|body| body["tools"].as_array_mut().unwrap().swap(0, 1)).await, "nothing");
    assert_eq!(surviving(set("model", json!("claude-opus-5"))).await, "nothing");
    assert_eq!(surviving(set("system", json!([marked(block("other", 5000))]))).await, "tools");
    assert_eq!(surviving(set("speed", json!("fast"))).await, "tools");
    assert_eq!(surviving(push(document)).await, "tools");
    let web = json!({"type": "web_search_20250305", "name": "web_search"});
    assert_eq!(surviving(|body| body["tools"].as_array_mut().unwrap().push(web.clone())).await, "tools");
    assert_eq!(
        surviving(set("tool_choice", json!({"type": "auto", "disable_parallel_tool_use": true}))).await,
        "system"
    );
    assert_eq!(surviving(push(image)).await, "system");
    assert_eq!(surviving(set("thinking", json!({"type": "adaptive"}))).await, "system");
    assert_eq!(surviving(set("output_config", json!({"effort": "low"}))).await, "system");
    assert_eq!(
        surviving(set("output_config", json!({"effort": "high"}))).await,
        "messages",
        "the default, said"
    );
    assert_eq!(surviving(set("context_management", json!({"edits": []}))).await, "system");
    for (key, value) in [
        ("max_tokens", json!(77)),
        ("metadata", json!({"user_id": "u"})),
        ("stop_sequences", json!(["STOP"])),
        ("service_tier", json!("auto")),
        ("temperature", json!(0.5)),
    ] {
        assert_eq!(surviving(set(key, value)).await, "messages", "{key} changes no prompt");
    }
}

#[tokio::test]
async fn the_set_of_betas_is_part_of_the_messages_key() {
    let bench = bench().await;
    let body = layered();
    let read = async |betas: &str| {
        let response =
            bench.post("/v1/messages").header("anthropic-beta", betas).json(&body).send().await.unwrap();
        Tokens::of(&response.json::<Value>().await.unwrap()["usage"])
    };
    read("a-1,b-2").await;
    assert_eq!(read("b-2, a-1").await.writes(), 0, "a set has no order");
    let other = read("a-1").await;
    assert!(other.read >= 5_000 && other.writes() >= 600, "{other:?}");
}

#[tokio::test]
async fn an_invalidating_parameter_can_be_moved_to_another_layer() {
    let bench = turned("invalidation.thinking", "nothing").await;
    let thinking = with(layered(), json!({"thinking": {"type": "adaptive"}}));
    assert!(read_after(&bench, &layered(), &thinking).await >= 5_600);
}

#[tokio::test]
async fn automatic_caching_marks_the_last_block_that_can_be_marked() {
    let bench = bench().await;
    let automatic = json!({"cache_control": {"type": "ephemeral"}});
    let body = with(request(json!([user("w".repeat(6_000))])), automatic.clone());
    let usage = bench.usage(&body).await;
    assert_eq!((usage.uncached, usage.read), (0, 0));
    assert_eq!(bench.usage(&body).await.read, usage.write_5m);
    let already = with(request(json!([user(json!([marked(block("same", 1200))]))])), automatic);
    assert_eq!(bench.usage(&already).await.write_5m, 1200, "same lifetime already there: nothing to add");
    assert_eq!(bench.last_record().breakpoints.len(), 1);
}

#[tokio::test]
async fn automatic_caching_skips_blocks_that_cannot_be_marked() {
    let bench = bench().await;
    let body = with(
        request(json!([
            user(json!([block("a", 1200)])),
            assistant(json!([{"type": "fallback", "x": 1}])),
            user("on")
        ])),
        json!({"cache_control": {"type": "ephemeral"}}),
    );
    bench.usage(&body).await;
    assert_eq!(bench.last_record().breakpoints[0].position, 2);
    let prefilled = with(
        request(json!([user(json!([block("a", 1200)])), assistant(json!([{"type": "fallback", "x": 1}]))])),
        json!({"cache_control": {"type": "ephemeral"}, "model": "claude-sonnet-4-5"}),
    );
    bench.usage(&prefilled).await;
    assert_eq!(bench.last_record().breakpoints[0].position, 0);
}

#[tokio::test]
async fn a_marker_inside_a_tool_result_is_ignored_unless_the_setting_says_otherwise() {
    for (setting, entries) in [("ignored", 0), ("mark_outer", 1)] {
        let bench = turned("nested_markers", setting).await;
        let call = json!({"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {}});
        let result =
            json!({"type": "tool_result", "tool_use_id": "toolu_1", "content": [marked(block("out", 1200))]});
        bench.usage(&request(json!([user("go"), assistant(json!([call])), user(json!([result]))]))).await;
        assert_eq!(bench.sim.cache_entries().len(), entries, "{setting}");
    }
}

#[tokio::test]
async fn caches_are_isolated_by_workspace_and_not_by_key() {
    let bench = bench().await;
    let body = blocks(12, &[11]);
    let ask = async |bench: &Bench, key: &str| {
        let request = bench.client.post(format!("{}/v1/messages", bench.sim.url()));
        let request = request.bearer_auth(key).header("anthropic-version", "2023-06-01").json(&body);
        Tokens::of(&request.send().await.unwrap().json::<Value>().await.unwrap()["usage"]).read
    };
    assert_eq!(ask(&bench, "sk-one@blue").await, 0);
    assert_eq!(ask(&bench, "sk-two@blue").await, 1200);
    assert_eq!(ask(&bench, "sk-one@green").await, 0);
    let organization = turned("isolation", "organization").await;
    assert_eq!(ask(&organization, "sk-one@blue").await, 0);
    assert_eq!(ask(&organization, "sk-one@green").await, 1200);
}

#[tokio::test]
async fn pre_warming_writes_the_entry_and_says_nothing() {
    let bench = bench().await;
    let cold = with(blocks(12, &[11]), json!({"max_tokens": 0}));
    let answer = bench.message(&cold).await;
    assert_eq!((&answer["content"], &answer["stop_reason"]), (&json!([]), &json!("max_tokens")));
    assert_eq!(Tokens::of(&answer["usage"]).write_5m, 1200);
    assert_eq!(bench.usage(&blocks(12, &[11])).await.read, 1200);
}

#[tokio::test]
async fn an_image_counts_the_same_whatever_its_bytes() {
    let bench = bench().await;
    let image = |data: String| {
        let source = json!({"type": "base64", "media_type": "image/png", "data": data});
        request(json!([user(json!([{"type": "image", "source": source}]))]))
    };
    let small = bench.usage(&image("A".repeat(40))).await.uncached;
    assert_eq!(small, bench.usage(&image("A".repeat(40_000))).await.uncached);
    assert!(small > 1_600);
}

#[tokio::test]
async fn old_thinking_is_stripped_by_a_new_user_turn_only_on_models_that_keep_the_last_turn() {
    for (model, is_kept) in [("claude-sonnet-4-5", false), ("claude-opus-4-8", true)] {
        let bench = bench().await;
        let ask = |messages: Value| {
            with(
                request(messages),
                json!({"model": model, "thinking": {"type": "enabled", "budget_tokens": 1024}}),
            )
        };
        let start = user(json!([block("start", 1100), text("[[sim:thinking]]")]));
        let first = bench.message(&ask(json!([start]))).await;
        let turn = assistant(first["content"].clone());
        let with_follow_up = ask(json!([start, turn, user(json!([marked(text("more"))]))]));
        let all = bench.usage(&with_follow_up).await;
        let without_thinking = assistant(json!([first["content"][1]]));
        let stripped =
            bench.usage(&ask(json!([start, without_thinking, user(json!([marked(text("more"))]))]))).await;
        assert_eq!(all.writes() > stripped.writes() + stripped.read, is_kept, "{model} {all:?} {stripped:?}");
        assert_eq!(stripped.read > 0, !is_kept, "the stripped prompt is the same prompt");
    }
}

#[tokio::test]
async fn whether_a_mixed_message_opens_a_new_turn_is_a_setting() {
    for (setting, is_stripped) in [("new_turn", true), ("same_turn", false)] {
        let bench = turned("mixed_messages", setting).await;
        let ask = |messages: Value| {
            let thinking = json!({"type": "enabled", "budget_tokens": 1024});
            let members =
                json!({"model": "claude-sonnet-4-5", "thinking": thinking, "tools": [tool("Bash")]});
            with(request(messages), members)
        };
        let start = user("[[sim:tools turns=1 thinking=200]]");
        let first = bench.message(&ask(json!([start]))).await;
        let id = first["content"][2]["id"].clone();
        let result = json!({"type": "tool_result", "tool_use_id": id, "content": "ok"});
        let turn = assistant(first["content"].clone());
        let only_result = bench.usage(&ask(json!([start, turn, user(json!([result]))]))).await.uncached;
        let mixed = bench.usage(&ask(json!([start, turn, user(json!([result, text("x")]))]))).await.uncached;
        assert_eq!(mixed < only_result, is_stripped, "{setting}: {mixed} {only_result}");
    }
}
