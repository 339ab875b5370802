//! The scripted model: fan-outs, tool turns, nested fan-outs, and that a run can be repeated.

use serde_json::{Value, json};

use super::harness::{Bench, agent_tool, assistant, bench, bench_with, request, text, tool, user, with};

fn calls(answer: &Value) -> Vec<Value> {
    let content = answer["content"].as_array().unwrap();
    content.iter().filter(|block| block["type"] == "tool_use").cloned().collect()
}

fn tools() -> Value {
    json!({"tools": [tool("Bash"), agent_tool()]})
}

async fn ask(bench: &Bench, words: &str) -> Value {
    bench.message(&with(request(json!([user(words)])), tools())).await
}

/// The conversation after an answer: its turn and a result for each call.
fn answered(mut messages: Vec<Value>, answer: &Value) -> Vec<Value> {
    let results: Vec<Value> = calls(answer)
        .iter()
        .map(|call| json!({"type": "tool_result", "tool_use_id": call["id"], "content": "done"}))
        .collect();
    messages.push(assistant(answer["content"].clone()));
    messages.push(user(results));
    messages
}

#[tokio::test]
async fn a_fan_out_calls_the_tool_once_per_child_with_a_title_and_a_directive() {
    let bench = bench().await;
    let answer = ask(&bench, "[[sim:fan_out n=5]]").await;
    assert_eq!((calls(&answer).len(), &answer["stop_reason"]), (5, &json!("tool_use")));
    let mut directives: Vec<String> = Vec::new();
    for call in calls(&answer) {
        assert_eq!(call["name"], "Agent");
        assert!(call["id"].as_str().unwrap().starts_with("toolu_"));
        assert!(call["input"]["description"].is_string());
        directives.push(call["input"]["prompt"].as_str().unwrap().to_owned());
    }
    assert!(directives.iter().all(|directive| directive.len() >= 60));
    directives.sort();
    directives.dedup();
    assert_eq!(directives.len(), 5);
}

#[tokio::test]
async fn directives_are_templated_alike_on_request_and_differ_from_the_first_word_otherwise() {
    let bench = bench().await;
    let directives = async |words: &str| {
        let answer = ask(&bench, words).await;
        let prompts =
            calls(&answer).into_iter().map(|call| call["input"]["prompt"].as_str().unwrap().to_owned());
        prompts.collect::<Vec<String>>()
    };
    let alike = directives("[[sim:fan_out n=2 alike=true words=80]]").await;
    let details = |directive: &str| directive.split_once("Details: ").unwrap().1.to_owned();
    assert_eq!(details(&alike[0]), details(&alike[1]));
    assert_ne!(alike[0], alike[1]);
    let own = directives("[[sim:fan_out n=2 words=80]]").await;
    assert_ne!(own[0].split(' ').next(), own[1].split(' ').next());
    let short = directives("[[sim:fan_out n=2 short=true]]").await;
    assert!(short.iter().all(|directive| directive.len() < 60) && short[0] != short[1]);
    let long = directives("[[sim:fan_out n=2 words=2000]]").await;
    assert!(long.iter().all(|directive| directive.split(' ').count() > 2000));
}

#[tokio::test]
async fn tool_field_and_type_of_a_fan_out_can_be_chosen() {
    let bench = bench().await;
    let spawn = json!({"name": "launch", "input_schema": {"type": "object",
        "properties": {"task": {"type": "string"}, "count": {"type": "integer"}}, "required": ["task", "count"]}});
    let words = "[[sim:fan_out n=2 tool=launch field=task type=Explore]]";
    let answer = bench.message(&with(request(json!([user(words)])), json!({"tools": [spawn]}))).await;
    let input = &calls(&answer)[0]["input"];
    assert!(input["task"].as_str().unwrap().len() >= 60);
    assert!(input["count"].is_u64(), "required properties are filled: {input}");
    assert_eq!(input["subagent_type"], "Explore");
    assert_eq!(input.get("description"), None, "the schema has no title");
}

#[tokio::test]
async fn only_declared_tools_are_called() {
    let bench = bench().await;
    for words in ["[[sim:fan_out n=3 tool=Nope]]", "[[sim:tools tool=Nope]]"] {
        let answer = ask(&bench, words).await;
        assert_eq!((calls(&answer).len(), &answer["stop_reason"]), (0, &json!("end_turn")), "{words}");
    }
    let without_tools = bench.message(&request(json!([user("[[sim:fan_out n=3]]")]))).await;
    assert_eq!(without_tools["content"][0]["type"], "text");
}

#[tokio::test]
async fn after_the_results_of_a_fan_out_the_script_reports() {
    let bench = bench().await;
    let start = vec![user("[[sim:fan_out n=3]]")];
    let fan_out = ask(&bench, "[[sim:fan_out n=3]]").await;
    let messages = answered(start, &fan_out);
    let report = bench.message(&with(request(json!(messages)), tools())).await;
    assert_eq!((calls(&report).len(), &report["stop_reason"]), (0, &json!("end_turn")));
}

#[tokio::test]
async fn tools_are_called_for_as_many_turns_as_asked() {
    let bench = bench().await;
    let mut messages = vec![user("[[sim:tools turns=3 calls=2]]")];
    let mut turns = Vec::new();
    for _ in 0..4 {
        let answer = bench.message(&with(request(json!(messages)), tools())).await;
        turns.push(calls(&answer).len());
        messages = answered(messages, &answer);
    }
    assert_eq!(turns, [2, 2, 2, 0]);
}

#[tokio::test]
async fn a_child_finds_its_own_instruction_in_its_directive() {
    let bench = bench().await;
    let parent = ask(&bench, "[[sim:fan_out n=2 | fan_out n=4 | tools turns=1]]").await;
    let directive = calls(&parent)[0]["input"]["prompt"].as_str().unwrap().to_owned();
    let child = ask(&bench, &directive).await;
    assert_eq!(calls(&child).len(), 4);
    let grandchild = ask(&bench, calls(&child)[0]["input"]["prompt"].as_str().unwrap()).await;
    assert_eq!(calls(&grandchild)[0]["name"], "Bash");
}

#[tokio::test]
async fn a_forked_child_follows_its_directive_and_not_its_parents_instruction() {
    let bench = bench().await;
    let start = vec![user("[[sim:fan_out n=2 | tools turns=1]]")];
    let parent = ask(&bench, "[[sim:fan_out n=2 | tools turns=1]]").await;
    let mut messages = answered(start, &parent);
    let directive = calls(&parent)[1]["input"]["prompt"].clone();
    messages[2]["content"].as_array_mut().unwrap().push(text(directive.as_str().unwrap()));
    let child = bench.message(&with(request(json!(messages)), tools())).await;
    assert_eq!(calls(&child)[0]["name"], "Bash");
}

#[tokio::test]
async fn a_run_can_be_repeated_from_its_seed() {
    let run = async |seed: u64| {
        let bench = bench_with(|config| config.seed = seed).await;
        ask(&bench, "[[sim:fan_out n=3]]").await
    };
    assert_eq!(run(7).await, run(7).await);
    assert_ne!(run(7).await["content"], run(8).await["content"]);
}

#[tokio::test]
async fn a_repeated_request_gets_the_same_words_under_new_ids() {
    let bench = bench().await;
    let (one, two) = (ask(&bench, "[[sim:fan_out n=2]]").await, ask(&bench, "[[sim:fan_out n=2]]").await);
    assert_eq!(calls(&one)[0]["input"], calls(&two)[0]["input"]);
    assert_ne!(one["id"], two["id"]);
    assert_ne!(calls(&one)[0]["id"], calls(&two)[0]["id"]);
}

#[tokio::test]
async fn without_an_instruction_the_answer_is_a_short_text() {
    let bench = bench().await;
    let answer = ask(&bench, "Hello.").await;
    assert_eq!(answer["content"].as_array().unwrap().len(), 1);
    assert!(answer["content"][0]["text"].as_str().unwrap().len() < 200);
}
