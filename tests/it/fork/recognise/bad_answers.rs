//! Answers that are no fan-out, or cannot be replayed: no fork point, a reason, nothing held.

use forkpoint::sim::InjectedFault;
use serde_json::{Value, json};

use crate::harness::{post, samples};

use crate::fork::fan_out::{MODEL, Stage};
use crate::fork::talk::{
    Talk, agent_call, directive, event, events, newcomer, parent, prompt_tokens, streamed, text, tool_use,
    whole,
};

fn tasks() -> [String; 2] {
    ["the north", "the south"].map(directive)
}

fn fan_out() -> Vec<String> {
    let told = tasks();
    let calls = [agent_call("t0", &told[0]), agent_call("t1", &told[1])];
    events("msg_1", prompt_tokens(&parent("Survey it.").body), &calls)
}

/// That this answer of a parent leaves nothing behind but the reason.
async fn leaves_nothing(answer: Vec<u8>, reason: &str) {
    let talk = Talk::new().await;
    talk.answered(&parent("Survey it."), answer).await;
    talk.forkpoint.recorded(1).await;
    let outcomes = talk.forkpoint.metric("forkpoint_forks_total", &[]);
    assert_eq!((crate::fork::fan_out::forks(&talk.forkpoint, reason), outcomes), (1, 1.0), "{reason}");
    assert_eq!(talk.forkpoint.proxy.store().forks(), 0, "{reason}");
    for told in tasks() {
        talk.ask(&newcomer(told.as_str())).await.is_plain();
    }
    assert_eq!(talk.children(), 0);
    assert_eq!(talk.forkpoint.metric("forkpoint_gate_holds_total", &[]), 0.0, "nothing was held");
    assert_eq!(talk.forkpoint.proxy.at_gate(), 0);
}

#[tokio::test]
async fn an_answer_that_is_cut_midway() {
    let events = fan_out();
    // Within the second call; after it; and before the end that was promised.
    for kept in [5, events.len() - 2, events.len() - 1] {
        leaves_nothing(streamed(&events[..kept]), "unfinished").await;
    }
}

#[tokio::test]
async fn an_answer_whose_connection_breaks() {
    let stage = Stage::new(|_| ()).await;
    stage.sim.faults().order(InjectedFault::Cut { at_byte: 6_000 }).unwrap();
    let body = serde_json::to_vec(&crate::fork::fan_out::parent("[[sim:fan_out n=20]]")).unwrap();
    let headers = "x-api-key: sk-test\r\nanthropic-version: 2023-06-01\r\ncontent-type: application/json\r\n";
    let mut client = stage.forkpoint.client().await;
    client.send(&post("/v1/messages", headers, &body)).await;
    let (answer, _) = client.rest().await;
    assert!(String::from_utf8_lossy(&answer).contains("tool_use"), "it was cut after its first calls");
    stage.forkpoint.recorded(1).await;
    assert_eq!(crate::fork::fan_out::forks(&stage.forkpoint, "unfinished"), 1);
    assert_eq!(stage.forkpoint.proxy.store().forks(), 0);
}

#[tokio::test]
async fn an_answer_that_ends_at_max_tokens() {
    let cut: Vec<String> =
        fan_out().iter().map(|event| event.replace(r#""tool_use"}"#, r#""max_tokens"}"#)).collect();
    assert!(cut.concat().contains("max_tokens"));
    leaves_nothing(streamed(&cut), "stop_reason").await;
}

#[tokio::test]
async fn an_answer_with_an_error_after_its_calls() {
    let mut events = fan_out();
    let end = events.len() - 2;
    events.truncate(end);
    events.push(event(json!({"type": "error", "error": {"type": "overloaded_error", "message": "no"}})));
    leaves_nothing(streamed(&events), "unfinished").await;
}

#[tokio::test]
async fn malformed_tool_input() {
    for broken in [r#"{\"prompt\": \"Surv"#, "[1,]", r#"{\"a\":\"\\ud800"#] {
        let mut events = fan_out();
        events[2] = format!(
            "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":0,\"delta\":{{\"type\":\"input_json_delta\",\"partial_json\":\"{broken}\"}}}}\n\n"
        );
        leaves_nothing(streamed(&events), "unfaithful").await;
    }
}

#[tokio::test]
async fn a_delta_of_an_unknown_kind() {
    let events: Vec<String> =
        fan_out().iter().map(|event| event.replace("input_json_delta", "input_map_delta")).collect();
    leaves_nothing(streamed(&events), "unfaithful").await;
}

#[tokio::test]
async fn one_id_for_two_calls() {
    let events: Vec<String> = fan_out().iter().map(|event| event.replace("\"t1\"", "\"t0\"")).collect();
    leaves_nothing(streamed(&events), "reused_id").await;
}

#[tokio::test]
async fn calls_without_a_name() {
    let events: Vec<String> = fan_out().iter().map(|event| event.replace("\"Agent\"", "\"\"")).collect();
    leaves_nothing(streamed(&events), "bad_call").await;
}

#[tokio::test]
async fn an_answer_without_an_id() {
    let events: Vec<String> = fan_out().iter().map(|event| event.replace("\"id\":\"msg_1\",", "")).collect();
    leaves_nothing(streamed(&events), "no_message_id").await;
}

#[tokio::test]
async fn ten_thousand_calls() {
    let told = tasks();
    let calls: Vec<Value> = (0..10_000).map(|n| agent_call(&format!("t{n}"), &told[n % 2])).collect();
    leaves_nothing(streamed(&events("msg_1", 2_000, &calls)), "too_large").await;
    leaves_nothing(whole("msg_1", 2_000, &calls), "too_large").await;
}

#[tokio::test]
async fn directives_of_a_megabyte_or_of_three_characters() {
    let megabyte = "Survey it all, and then again. ".repeat(1 << 15);
    for directive in [megabyte.as_str(), "go!"] {
        let calls = [agent_call("t0", directive), agent_call("t1", directive)];
        leaves_nothing(streamed(&events("msg_1", 2_000, &calls)), "few_directives").await;
        leaves_nothing(whole("msg_1", 2_000, &calls), "few_directives").await;
    }
}

#[tokio::test]
async fn a_server_tool_that_has_not_answered() {
    let told = tasks();
    let search =
        json!({"type": "server_tool_use", "id": "srv", "name": "web_search", "input": {"query": "x"}});
    let calls = [search, agent_call("t0", &told[0]), agent_call("t1", &told[1])];
    leaves_nothing(whole("msg_1", 2_000, &calls), "server_tools").await;
}

/// Most answers are no fan-out, however they end, and nobody wants to read so.
#[tokio::test]
async fn of_what_was_never_a_fan_out_nothing_is_counted() {
    let talk = Talk::new().await;
    let call = parent("Survey it.");
    let words = events("msg_1", 2_000, &[text("Hello.")]);
    let one = [tool_use("t0", "read_file", json!({"path": "a.c"}))];
    let refusal =
        b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
    for answer in [
        streamed(&words),
        streamed(&words[..3]),
        streamed(&events("msg_2", 2_000, &one)),
        streamed(&events("msg_3", 2_000, &[agent_call("t1", &tasks()[0])])),
        whole("msg_4", 2_000, &one),
        samples::answer("content-type: text/plain\r\n", b"hello"),
        refusal.to_vec(),
    ] {
        talk.answered(&call, answer).await;
    }
    talk.forkpoint.recorded(7).await;
    assert_eq!(talk.forkpoint.metric("forkpoint_forks_total", &[]), 0.0);
    assert_eq!(talk.forkpoint.proxy.store().forks(), 0);
}

/// While it streams a fan-out counts; when it turns out to be none, its early children are left alone.
#[tokio::test]
async fn calls_of_an_earlier_turn_that_come_again_spoil_the_later_one() {
    let talk = Talk::new().await;
    talk.answered(&parent("Survey it."), streamed(&fan_out())).await;
    let again: Vec<String> = fan_out().iter().map(|event| event.replace("msg_1", "msg_2")).collect();
    talk.answered(&parent("Survey it once more."), streamed(&again)).await;
    talk.forkpoint.recorded(2).await;
    let outcomes =
        ["sealed", "reused_id"].map(|outcome| crate::fork::fan_out::forks(&talk.forkpoint, outcome));
    assert_eq!((outcomes, talk.forkpoint.proxy.store().forks()), ([1, 1], 1));
}

#[tokio::test]
async fn an_answer_that_another_model_took_over() {
    let told = tasks();
    let fallback = json!({"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}, "trigger": {}});
    let blocks = [text("I"), fallback, agent_call("t0", &told[0]), agent_call("t1", &told[1])];
    leaves_nothing(whole("msg_1", 900, &blocks), "unfaithful").await;
    let mut events = fan_out();
    let (start, stop) = (
        json!({"type": "content_block_start", "index": 5, "content_block": blocks[1]}),
        json!({"type": "content_block_stop", "index": 5}),
    );
    let end = events.len() - 2;
    events.splice(end..end, [event(start), event(stop)]);
    leaves_nothing(streamed(&events), "unfaithful").await;
}

#[tokio::test]
async fn runs_of_other_models_are_billed_as_theirs() {
    let priced = "claude-haiku-4-5";
    for (other, is_priced) in [(priced, true), ("claude-nobody-1", false)] {
        let talk = Talk::new().await;
        let usage = json!({"input_tokens": 900, "output_tokens": 9, "iterations": [
            {"type": "message", "input_tokens": 900, "output_tokens": 9, "model": null},
            {"type": "fallback_message", "input_tokens": 700, "output_tokens": 7, "model": other}]});
        let message = json!({"id": "msg_1", "type": "message", "role": "assistant", "model": MODEL,
            "content": [text("So.")], "stop_reason": "end_turn", "usage": usage});
        let answer = samples::answer("content-type: application/json\r\n", message.to_string().as_bytes());
        talk.answered(&parent("Survey it."), answer).await;
        talk.forkpoint.recorded(1).await;
        let tokens = |model: &str| {
            let labels = [format!("model=\"{model}\""), "kind=\"uncached\"".to_owned()];
            talk.forkpoint.metric("forkpoint_tokens_total", &[&labels[0], &labels[1]])
        };
        assert_eq!((tokens(MODEL), tokens(other)), (900.0, 700.0), "{other}");
        let usd =
            |model: &str| talk.forkpoint.metric("forkpoint_cost_usd_total", &[&format!("model=\"{model}\"")]);
        assert_eq!((usd(MODEL) > 0.0, usd(priced) > 0.0), (is_priced, is_priced), "{other}");
        let unpriced = talk.forkpoint.metric("forkpoint_uncompared_total", &["reason=\"no_price\""]);
        assert_eq!(unpriced > 0.0, !is_priced, "dollars of one model and not of the other say nothing");
    }
}
