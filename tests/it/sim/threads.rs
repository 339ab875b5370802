//! Conversations that the server holds.

use std::time::Duration;

use forkpoint::sim::{Recital, SimConfig};
use serde_json::{Value, json};
use std::sync::Arc;

use super::harness::{
    Bench, Tokens, bench, bench_with, block, marked, read_until, request, text, tool, until, user, with,
};

const BETA: &str = "message-threads-2026-08-12";

fn create(messages: Value) -> Value {
    with(request(messages), json!({"thread": {"type": "create"}}))
}

fn resume(answer: &Value, messages: Value) -> Value {
    with(request(messages), json!({"thread": {"type": "continue", "previous_message_id": answer["id"]}}))
}

impl Bench {
    async fn threaded(&self, body: &Value) -> Value {
        self.message_beta(BETA, body).await
    }

    /// The code of a refusal.
    async fn code(&self, body: &Value) -> String {
        let (_, error) = self.refusal_beta(BETA, body).await;
        error["details"]["error_code"].as_str().unwrap_or_else(|| panic!("no code in {error}")).to_owned()
    }
}

async fn bench_rule(name: &str, value: &str) -> Bench {
    bench_with(|config: &mut SimConfig| config.rules.set(name, value).unwrap()).await
}

/// An answer to be asked for by name.
fn recite(bench: &Bench, name: &str, content: Value, stop_reason: &str) {
    let content = content.as_array().unwrap().clone();
    let recital = Recital::new(None, content, Some(stop_reason.to_owned()), 5);
    recital.give(forkpoint::sim::Cue::End);
    assert!(bench.sim.recitals().put(name.to_owned(), Arc::new(recital)));
}

async fn recited(bench: &Bench, name: &str, body: &Value) -> Value {
    let response = bench.beta(BETA).header("x-sim-answer", name).json(body).send().await.unwrap();
    assert_eq!(response.status(), 200);
    response.json().await.unwrap()
}

#[tokio::test]
async fn a_continue_is_answered_as_the_whole_conversation_would_be() {
    let bench = bench().await;
    let first = bench.threaded(&create(json!([user("[[sim:text words=5]] one")]))).await;
    let second = bench.threaded(&resume(&first, json!([user("[[sim:text words=9]] two")]))).await;
    let whole = request(json!([
        user("[[sim:text words=5]] one"),
        {"role": "assistant", "content": first["content"]},
        user("[[sim:text words=9]] two"),
    ]));
    let replayed = bench.message_beta(BETA, &whole).await;
    assert_eq!(second["content"], replayed["content"]);
    assert_eq!(second["usage"]["input_tokens"], replayed["usage"]["input_tokens"]);
    let third = bench.threaded(&resume(&second, json!([user("three")]))).await;
    assert_eq!(third["stop_reason"], "end_turn");
}

#[tokio::test]
async fn a_leading_result_pairs_with_the_held_call() {
    let bench = bench().await;
    let tools = json!({"tools": [tool("Bash")]});
    let first = bench.threaded(&with(create(json!([user("[[sim:tools turns=1]]")])), tools)).await;
    assert_eq!(first["stop_reason"], "tool_use");
    let id = &first["content"].as_array().unwrap().last().unwrap()["id"];
    let result = json!({"type": "tool_result", "tool_use_id": id, "content": "done"});
    let wrong = json!({"type": "tool_result", "tool_use_id": "toolu_other", "content": "done"});
    let (status, error) = bench.refusal_beta(BETA, &resume(&first, json!([user(json!([wrong]))]))).await;
    assert_eq!((status, error.get("details")), (400, None), "{error}");
    let second = bench.threaded(&resume(&first, json!([user(json!([result]))]))).await;
    assert_eq!(second["stop_reason"], "end_turn", "a refused continue leaves the answer free");
}

#[tokio::test]
async fn a_thread_without_its_beta_or_to_be_counted_is_an_unknown_field() {
    let bench = bench().await;
    let body = create(json!([user("go")]));
    assert_eq!(bench.invalid(&body).await, "thread: Extra inputs are not permitted");
    let counted = bench.post("/v1/messages/count_tokens").header("anthropic-beta", BETA).json(&body);
    assert_eq!(counted.send().await.unwrap().status(), 400);
    bench.message(&with(request(json!([user("go")])), json!({"thread": null}))).await;
}

#[tokio::test]
async fn a_thread_of_a_wrong_shape_is_refused_with_its_path() {
    let bench = bench().await;
    for (thread, path) in [
        (json!("create"), "thread: "),
        (json!({}), "thread.type: "),
        (json!({"type": "fork"}), "thread: "),
        (json!({"type": 5}), "thread: "),
        (json!({"type": "continue"}), "thread.continue.previous_message_id: "),
        (json!({"type": "continue", "previous_message_id": 5}), "thread.continue.previous_message_id: "),
    ] {
        let body = with(request(json!([user("go")])), json!({"thread": thread}));
        let (status, error) = bench.refusal_beta(BETA, &body).await;
        assert_eq!(status, 400);
        assert!(error["message"].as_str().unwrap().starts_with(path), "{error}");
        assert!(error.get("details").is_none(), "{error}");
    }
}

fn marks(count: usize) -> Value {
    let blocks = (0..count).map(|index| marked(text(&format!("block {index}"))));
    create(json!([user(blocks.collect::<Value>())]))
}

#[tokio::test]
async fn a_thread_has_three_markers_the_top_level_one_included_or_four_by_setting() {
    let three = bench().await;
    three.threaded(&marks(3)).await;
    let automatic = json!({"cache_control": {"type": "ephemeral"}});
    for body in [marks(4), with(marks(3), automatic)] {
        let (status, error) = three.refusal_beta(BETA, &body).await;
        assert_eq!(status, 400);
        assert_eq!(error["details"]["error_code"], "thread_unsupported_request");
        assert_eq!(error["details"]["unsupported"], json!(["cache_control"]));
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with("thread: a maximum of 3 blocks with cache_control"), "{message}");
        assert!(message.ends_with("Found 4."), "{message}");
    }
    let four = bench_rule("threads.markers", "4").await;
    four.threaded(&marks(4)).await;
    assert_eq!(four.code(&marks(5)).await, "thread_unsupported_request");
}

#[tokio::test]
async fn markers_of_the_held_part_do_not_count_again() {
    let bench = bench().await;
    let first = bench.threaded(&marks(3)).await;
    let news = json!([marked(text("a")), marked(text("b")), marked(text("c"))]);
    bench.threaded(&resume(&first, json!([user(news)]))).await;
    assert_eq!(bench.last_record().breakpoints.len(), 3);
}

#[tokio::test]
async fn fallbacks_and_edits_that_rewrite_the_history_cannot_be_beside_a_thread() {
    let (strict, lax) = (bench().await, bench_rule("threads.unsupported_options", "accepted").await);
    let edit = |kind: &str| json!({"context_management": {"edits": [{"type": kind}]}});
    for (members, unsupported) in [
        (json!({"fallbacks": [{"model": "claude-haiku-4-5"}]}), "fallbacks"),
        (edit("compact_20260112"), "context_management"),
        (edit("clear_tool_uses_20250919"), "context_management"),
    ] {
        let body = with(create(json!([user("go")])), members);
        let (_, error) = strict.refusal_beta(BETA, &body).await;
        assert_eq!(error["details"]["error_code"], "thread_unsupported_request", "{body}");
        assert_eq!(error["details"]["unsupported"], json!([unsupported]));
        lax.threaded(&body).await;
    }
    for members in [json!({"fallbacks": "default"}), edit("clear_thinking_20251015")] {
        strict.threaded(&with(create(json!([user("go")])), members)).await;
    }
}

#[tokio::test]
async fn an_unknown_id_is_not_found() {
    let bench = bench().await;
    let body = resume(&json!({"id": "msg_unknown"}), json!([user("on")]));
    let (status, error) = bench.refusal_beta(BETA, &body).await;
    assert_eq!((status, &error["type"]), (404, &json!("not_found_error")));
    assert_eq!(error["details"], json!({"error_code": "thread_not_found"}));
    assert!(error["message"].as_str().unwrap().starts_with("No thread state was found"), "{error}");
    let plain = bench.message_beta(BETA, &request(json!([user("go")]))).await;
    assert_eq!(bench.code(&resume(&plain, json!([user("on")]))).await, "thread_not_found");
}

#[tokio::test]
async fn a_thread_expires_five_minutes_after_its_last_request_ended() {
    let bench = bench().await;
    let five_minutes = Duration::from_secs(300);
    let first = bench.threaded(&create(json!([user("go")]))).await;
    bench.sim.clock().advance(five_minutes);
    let second = bench.threaded(&resume(&first, json!([user("on")]))).await;
    bench.sim.clock().advance(five_minutes + Duration::from_millis(1));
    assert_eq!(bench.code(&resume(&second, json!([user("on")]))).await, "thread_not_found");
}

#[tokio::test]
async fn a_thread_belongs_to_the_credential_that_created_it_in_either_header() {
    let bench = bench().await;
    let first = bench.threaded(&create(json!([user("go")]))).await;
    let url = format!("{}/v1/messages", bench.sim.url());
    let send = async |name: &str, value: &str| {
        let request = bench.client.post(&url).header(name, value).header("anthropic-version", "2023-06-01");
        let body = resume(&first, json!([user("on")]));
        request.header("anthropic-beta", BETA).json(&body).send().await.unwrap().status().as_u16()
    };
    assert_eq!(send("x-api-key", "sk-other").await, 404);
    assert_eq!(send("authorization", "Bearer sk-test").await, 200);
}

#[tokio::test]
async fn a_part_of_the_threads_is_lost_by_the_seed() {
    let bench = bench_rule("threads.loss_percent", "50").await;
    let mut lost = 0;
    for index in 0..40 {
        let first = bench.threaded(&create(json!([user(format!("go {index}"))]))).await;
        let body = resume(&first, json!([user("on")]));
        let response = bench.beta(BETA).json(&body).send().await.unwrap();
        lost += usize::from(response.status() == 404);
    }
    assert!((5..35).contains(&lost), "{lost} of 40");
    let all = bench_rule("threads.loss_percent", "100").await;
    let first = all.threaded(&create(json!([user("go")]))).await;
    assert_eq!(all.code(&resume(&first, json!([user("on")]))).await, "thread_not_found");
}

#[tokio::test]
async fn a_part_of_the_continues_is_refused_by_the_seed_and_what_is_lost_is_lost_first() {
    let bench = bench_rule("threads.refusal_percent", "50").await;
    let mut codes = std::collections::BTreeMap::new();
    for index in 0..40 {
        let first = bench.threaded(&create(json!([user(format!("go {index}"))]))).await;
        let body = resume(&first, json!([user("on")]));
        let answer: Value = bench.beta(BETA).json(&body).send().await.unwrap().json().await.unwrap();
        let code = answer["error"]["details"]["error_code"].as_str().unwrap_or("none").to_owned();
        if code != "none" {
            assert_eq!(bench.code(&body).await, code, "refused once, it stays refused");
        }
        *codes.entry(code).or_insert(0) += 1;
    }
    let names: Vec<_> = codes.keys().map(String::as_str).collect();
    assert_eq!(names, ["none", "thread_already_continued", "thread_continue_in_flight"], "{codes:?}");
    let both = bench_with(|config: &mut SimConfig| {
        config.rules.threads.refusal_percent = 100;
        config.rules.threads.loss_percent = 100;
    });
    let both = both.await;
    let first = both.threaded(&create(json!([user("go")]))).await;
    assert_eq!(both.code(&resume(&first, json!([user("on")]))).await, "thread_not_found");
}

#[tokio::test]
async fn an_answer_is_continued_once() {
    let bench = bench().await;
    let first = bench.threaded(&create(json!([user("go")]))).await;
    let body = resume(&first, json!([user("on")]));
    bench.threaded(&body).await;
    let (status, error) = bench.refusal_beta(BETA, &body).await;
    assert_eq!((status, &error["details"]["error_code"]), (400, &json!("thread_already_continued")));
    assert!(error["message"].as_str().unwrap().contains("already been continued"), "{error}");
}

#[tokio::test]
async fn of_two_continues_at_once_the_second_hears_of_the_first() {
    let bench = bench().await;
    let first = bench.threaded(&create(json!([user("go")]))).await;
    let slow = with(resume(&first, json!([user("[[sim:text pace_ms=60000]]")])), json!({"stream": true}));
    let mut running = bench.beta(BETA).json(&slow).send().await.unwrap();
    read_until(&mut running, "message_start").await;
    let other = resume(&first, json!([user("on")]));
    assert_eq!(bench.code(&other).await, "thread_continue_in_flight");
    drop(running);
    until("the answer is spent", || bench.sim.threads()[0].state == "spent").await;
    assert_eq!(bench.code(&other).await, "thread_already_continued");
}

#[tokio::test]
async fn every_fixed_field_that_differs_is_named() {
    let bench = bench().await;
    let fixed = json!({
        "tools": [tool("Bash")],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "low"},
        "context_management": {"edits": []},
        "cache_control": {"type": "ephemeral"},
        "system": "Be brief.",
    });
    let first = bench.threaded(&with(create(json!([user("go")])), fixed.clone())).await;
    let same = with(resume(&first, json!([user("on")])), fixed);
    for (name, other) in [
        ("model", json!("claude-sonnet-4-6")),
        ("thinking", json!(null)),
        ("tool_choice", json!({"type": "none"})),
        ("output_config", json!({"effort": "high"})),
        ("context_management", json!(null)),
        ("cache_control", json!(null)),
        ("system", json!("Be long.")),
        ("tools", json!([tool("Read")])),
    ] {
        let mut body = same.clone();
        body[name] = other;
        let (status, error) = bench.refusal_beta(BETA, &body).await;
        assert_eq!((status, &error["details"]["error_code"]), (400, &json!("thread_fingerprint_mismatch")));
        let message = error["message"].as_str().unwrap();
        assert!(message.ends_with(&format!("differing field(s): {name}")), "{message}");
    }
    let mut body = same.clone();
    body["system"] = json!("Be long.");
    body["tools"] = json!([tool("Read")]);
    let (_, error) = bench.refusal_beta(BETA, &body).await;
    assert!(error["message"].as_str().unwrap().ends_with("differing field(s): system, tools"), "{error}");
    let (_, error) = bench.refusal_beta(&format!("{BETA},other-2026-01-01"), &same).await;
    assert!(error["message"].as_str().unwrap().ends_with("differing field(s): anthropic-beta"), "{error}");
    let mut body = same;
    body.as_object_mut().unwrap().retain(|name, _| name != "system" && name != "tools");
    body["max_tokens"] = json!(77);
    body["metadata"] = json!({"user_id": "u"});
    bench.threaded(&body).await;
}

#[tokio::test]
async fn betas_are_a_set() {
    let bench = bench().await;
    let first = bench.message_beta(&format!("{BETA},a-1"), &create(json!([user("go")]))).await;
    bench.message_beta(&format!("a-1, {BETA}"), &resume(&first, json!([user("on")]))).await;
}

#[tokio::test]
async fn the_attribution_block_may_change_or_come_alone() {
    let bench = bench().await;
    let attributed = |turn: &str| text(&format!("x-anthropic-billing-header: {turn}"));
    let system = |turn: &str| json!({"system": [attributed(turn), text("Be brief.")]});
    let first = bench.threaded(&with(create(json!([user("go")])), system("1"))).await;
    let second = bench.threaded(&with(resume(&first, json!([user("on")])), system("2"))).await;
    let alone = json!({"system": [attributed("3")]});
    let third = bench.threaded(&with(resume(&second, json!([user("on")])), alone)).await;
    let tokens = |answer: &Value| answer["usage"]["input_tokens"].as_u64().unwrap();
    assert!(tokens(&third) > tokens(&second), "the held system prompt is still there");
}

#[tokio::test]
async fn by_setting_even_equal_tools_are_refused_on_a_continue() {
    let bench = bench_rule("threads.repeated_fields", "refused").await;
    let tools = json!({"tools": [tool("Bash")]});
    let first = bench.threaded(&with(create(json!([user("go")])), tools.clone())).await;
    let body = resume(&first, json!([user("on")]));
    assert_eq!(bench.code(&with(body.clone(), tools)).await, "thread_fingerprint_mismatch");
    bench.threaded(&body).await;
}

#[tokio::test]
async fn a_continue_is_cached_and_billed_over_the_whole_prompt() {
    let bench = bench().await;
    let first = bench.threaded(&create(json!([user(json!([marked(block("a", 2000))]))]))).await;
    assert_eq!(Tokens::of(&first["usage"]).write_5m, 2000);
    let second = bench.threaded(&resume(&first, json!([user(json!([marked(block("b", 500))]))]))).await;
    let tokens = Tokens::of(&second["usage"]);
    assert_eq!((tokens.read, tokens.uncached), (2000, 0));
    assert!(tokens.write_5m > 500, "{tokens:?}");
    let third = bench.threaded(&resume(&second, json!([user("no marker")]))).await;
    let tokens = Tokens::of(&third["usage"]);
    assert_eq!(tokens.read, 0, "caching is asked for on every turn");
    assert!(tokens.uncached > 2500, "{tokens:?}");
}

#[tokio::test]
async fn whole_requests_read_what_a_thread_wrote_unless_set_otherwise() {
    let body = create(json!([user(json!([marked(block("a", 2000))]))]));
    let whole = with(body.clone(), json!({"thread": null}));
    for (cache, read) in [("shared", 2000), ("separate", 0)] {
        let bench = bench_rule("threads.cache", cache).await;
        bench.threaded(&body).await;
        assert_eq!(Tokens::of(&bench.message_beta(BETA, &whole).await["usage"]).read, read, "{cache}");
    }
}

#[tokio::test]
async fn of_a_broken_stream_nothing_is_held_or_by_setting_all() {
    for (rule, code) in [("forgotten", Some("thread_not_found")), ("held", None)] {
        for fault in [("x-sim-cut-at", "600"), ("x-sim-error-after", "4")] {
            let bench = bench_rule("threads.broken_answers", rule).await;
            let body = with(create(json!([user("[[sim:text words=200]]")])), json!({"stream": true}));
            let response = bench.beta(BETA).header(fault.0, fault.1).json(&body).send().await.unwrap();
            let _ = response.text().await;
            until("it has ended", || bench.last_record().ended_us.is_some()).await;
            let first = json!({"id": bench.last_record().message_id});
            let body = resume(&first, json!([user("on")]));
            match code {
                Some(code) => assert_eq!(bench.code(&body).await, code, "{fault:?}"),
                None => drop(bench.threaded(&body).await),
            }
        }
    }
}

#[tokio::test]
async fn a_continue_that_breaks_off_has_spent_its_answer() {
    let bench = bench().await;
    let first = bench.threaded(&create(json!([user("go")]))).await;
    let body = resume(&first, json!([user("on")]));
    let response = bench.beta(BETA).header("x-sim-cut-at", "20").json(&body).send().await.unwrap();
    assert!(response.text().await.is_err());
    until("it has ended", || bench.last_record().ended_us.is_some()).await;
    assert_eq!(bench.code(&body).await, "thread_already_continued");
}

#[tokio::test]
async fn an_ordered_failure_leaves_the_answer_free() {
    let bench = bench().await;
    let first = bench.threaded(&create(json!([user("go")]))).await;
    let body = resume(&first, json!([user("on")]));
    let failed = bench.beta(BETA).header("x-sim-status", "529").json(&body).send().await.unwrap();
    assert_eq!(failed.status(), 529);
    bench.threaded(&body).await;
}

#[tokio::test]
async fn a_continue_may_bring_nothing_only_after_a_pause() {
    let bench = bench().await;
    recite(&bench, "pause", json!([text("working on it")]), "pause_turn");
    let paused = recited(&bench, "pause", &create(json!([user("go")]))).await;
    let second = bench.threaded(&resume(&paused, json!([]))).await;
    let (status, error) = bench.refusal_beta(BETA, &resume(&second, json!([]))).await;
    assert_eq!((status, &error["message"]), (400, &json!("messages: at least one message is required")));
}

#[tokio::test]
async fn replies_of_a_fallback_model_and_refusals_are_not_held() {
    let bench = bench().await;
    let fallback =
        json!({"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}, "trigger": "refusal"});
    recite(&bench, "fallback", json!([fallback, text("well")]), "end_turn");
    recite(&bench, "refusal", json!([text("no")]), "refusal");
    let fell_back = recited(&bench, "fallback", &create(json!([user("go")]))).await;
    let entry = &fell_back["usage"]["iterations"][0];
    assert_eq!((&entry["type"], &entry["model"]), (&json!("fallback_message"), &json!("b")));
    assert_eq!(entry["input_tokens"], fell_back["usage"]["input_tokens"]);
    assert_eq!(bench.code(&resume(&fell_back, json!([user("on")]))).await, "thread_not_found");
    let refused = recited(&bench, "refusal", &create(json!([user("go")]))).await;
    assert_eq!(bench.code(&resume(&refused, json!([user("on")]))).await, "thread_not_found");
    let held = bench_rule("threads.refusals", "held").await;
    recite(&held, "refusal", json!([text("no")]), "refusal");
    let refused = recited(&held, "refusal", &create(json!([user("go")]))).await;
    held.threaded(&resume(&refused, json!([user("on")]))).await;
}

#[tokio::test]
async fn held_threads_are_bounded_in_number_and_bytes_and_the_oldest_go_first() {
    let few = bench_with(|config| config.limits.threads = 2).await;
    let small = bench_with(|config| config.limits.thread_bytes = 5_000).await;
    for bench in [few, small] {
        let mut answers = Vec::new();
        for name in ["a", "b", "c"] {
            answers.push(bench.threaded(&create(json!([user(json!([block(name, 500)]))]))).await);
        }
        assert_eq!(bench.sim.threads().len(), 2);
        assert_eq!(bench.code(&resume(&answers[0], json!([user("on")]))).await, "thread_not_found");
        bench.threaded(&resume(&answers[2], json!([user("on")]))).await;
    }
}

#[tokio::test]
async fn the_held_threads_are_shown_and_can_be_lost() {
    let bench = bench().await;
    let first = bench.threaded(&create(json!([user("go")]))).await;
    let shown: Value = bench.get("/sim/threads").send().await.unwrap().json().await.unwrap();
    let thread = &shown["threads"][0];
    assert_eq!((&thread["message_id"], &thread["state"]), (&first["id"], &json!("open")));
    assert_eq!(thread["messages"], 2);
    bench.client.delete(format!("{}/sim/threads", bench.sim.url())).send().await.unwrap();
    assert_eq!(bench.code(&resume(&first, json!([user("on")]))).await, "thread_not_found");
}
