//! Sampling, forced tools, endings: rules about single parameters.

use serde_json::{Value, json};

use super::harness::{OPUS, agent_tool, assistant, bench, request, text, tool, user, with};

const BOUND_MODELS: [&str; 7] = [
    "claude-fable-5-1",
    "claude-fable-5-2",
    "claude-mythos-5-1",
    "claude-mythos-5-2",
    "claude-opus-5-5",
    "claude-sonnet-5-5",
    "claude-haiku-5-5",
];

fn go(members: Value) -> Value {
    with(request(json!([user("go")])), members)
}

#[tokio::test]
async fn a_prefill_cannot_end_with_white_space() {
    let bench = bench().await;
    let prefilled = |content: Value| {
        with(request(json!([user("go"), assistant(content)])), json!({"model": "claude-sonnet-4-5"}))
    };
    for content in [json!("Sure: "), json!([text("Sure:\n")])] {
        assert_eq!(
            bench.invalid(&prefilled(content)).await,
            "messages: final assistant content cannot end with trailing whitespace"
        );
    }
    bench.message(&prefilled(json!("Sure:"))).await;
}

#[tokio::test]
async fn no_model_since_4_6_takes_a_prefill() {
    let bench = bench().await;
    let later = ["claude-mythos-preview", "claude-opus-4-6", "claude-sonnet-4-6", "claude-opus-4-7"];
    for model in later.into_iter().chain([OPUS, "claude-sonnet-5", "claude-opus-5"]).chain(BOUND_MODELS) {
        let body = with(request(json!([user("go"), assistant("Sure:")])), json!({"model": model}));
        let message = bench.invalid(&body).await;
        assert!(message.starts_with("This model does not support assistant message prefill."), "{model}");
    }
}

#[tokio::test]
async fn stop_sequences_are_strings_that_are_not_blank() {
    let bench = bench().await;
    for blank in ["", " ", "\n\t"] {
        let message = bench.invalid(&go(json!({"stop_sequences": ["END", blank]}))).await;
        assert_eq!(message, "stop_sequences: each stop sequence must contain non-whitespace");
    }
    let message = bench.invalid(&go(json!({"stop_sequences": ["END", 7]}))).await;
    assert_eq!(message, "stop_sequences.1: Input should be a valid string");
}

#[tokio::test]
async fn with_manual_thinking_the_temperature_is_one() {
    let bench = bench().await;
    let manual = json!({"type": "enabled", "budget_tokens": 2000});
    let message = bench.invalid(&go(json!({"thinking": manual, "temperature": 0.5}))).await;
    assert!(message.starts_with("`temperature` may only be set to 1 when thinking is enabled."), "{message}");
    bench.message(&go(json!({"thinking": manual, "temperature": 1}))).await;
    bench.message(&go(json!({"temperature": 0.5}))).await;
}

#[tokio::test]
async fn thinking_excludes_forced_tools() {
    let bench = bench().await;
    for thinking in [json!({"type": "enabled", "budget_tokens": 2000}), json!({"type": "adaptive"})] {
        for choice in [json!({"type": "any"}), json!({"type": "tool", "name": "Bash"})] {
            let members = json!({"tools": [tool("Bash")], "thinking": thinking, "tool_choice": choice});
            assert_eq!(
                bench.invalid(&go(members)).await,
                "Thinking may not be enabled when tool_choice forces tool use."
            );
        }
    }
    let free =
        json!({"tools": [tool("Bash")], "thinking": {"type": "adaptive"}, "tool_choice": {"type": "auto"}});
    bench.message(&go(free)).await;
}

#[tokio::test]
async fn every_model_with_bound_thinking_refuses_forced_tools_and_takes_the_other_choices() {
    let bench = bench().await;
    for model in BOUND_MODELS {
        let ask = |choice: Value| go(json!({"model": model, "tools": [tool("Bash")], "tool_choice": choice}));
        for (choice, kind) in
            [(json!({"type": "any"}), "any"), (json!({"type": "tool", "name": "Bash"}), "tool")]
        {
            let expected = format!("tool_choice.type: '{kind}' is not supported on this model");
            assert_eq!(bench.invalid(&ask(choice)).await, expected, "{model}");
        }
        for kind in ["auto", "none"] {
            bench.message(&ask(json!({"type": kind}))).await;
        }
    }
}

#[tokio::test]
async fn every_model_with_bound_thinking_refuses_to_disable_it() {
    let bench = bench().await;
    for model in BOUND_MODELS {
        assert_eq!(
            bench.invalid(&go(json!({"model": model, "thinking": {"type": "disabled"}}))).await,
            "thinking.type: 'disabled' is not supported on this model"
        );
        bench.message(&go(json!({"model": model, "thinking": {"type": "between_tools"}}))).await;
    }
}

#[tokio::test]
async fn a_tool_choice_needs_a_known_type_a_name_and_tools() {
    let bench = bench().await;
    let tools = json!([tool("Bash")]);
    for (members, expected) in [
        (
            json!({"tools": tools, "tool_choice": {"type": "maybe"}}),
            "tool_choice: Input tag 'maybe' found using 'type' does not match any of the expected tags: 'auto', \
             'any', 'tool', 'none'",
        ),
        (json!({"tools": tools, "tool_choice": {"type": "tool"}}), "tool_choice.tool.name: Field required"),
        (
            json!({"tool_choice": {"type": "auto"}}),
            "tool_choice: tool_choice may only be specified while providing tools",
        ),
    ] {
        assert_eq!(bench.invalid(&go(members)).await, expected);
    }
}

#[tokio::test]
async fn a_forced_tool_is_called_and_a_forbidden_one_is_not() {
    let bench = bench().await;
    let ask = async |words: &str, choice: Value| {
        let members = json!({"tools": [agent_tool(), tool("Bash"), tool("Read")], "tool_choice": choice});
        let answer = bench.message(&with(request(json!([user(words)])), members)).await;
        let content = answer["content"].as_array().unwrap().clone();
        let names = content.iter().filter_map(|block| block["name"].as_str()).map(str::to_owned);
        names.collect::<Vec<_>>()
    };
    assert_eq!(ask("go", json!({"type": "tool", "name": "Read"})).await, ["Read"]);
    assert_eq!(ask("[[sim:fan_out n=3]]", json!({"type": "tool", "name": "Read"})).await, ["Read"]);
    assert_eq!(ask("go", json!({"type": "any"})).await, ["Bash"]);
    assert!(ask("[[sim:fan_out n=3]]", json!({"type": "none"})).await.is_empty());
    assert!(ask("[[sim:tools]]", json!({"type": "none"})).await.is_empty());
    let single = json!({"type": "auto", "disable_parallel_tool_use": true});
    assert_eq!(ask("[[sim:fan_out n=3]]", single).await, ["Agent"]);
}

#[tokio::test]
async fn the_first_message_is_the_users() {
    let bench = bench().await;
    let body = request(json!([assistant("hello"), user("go")]));
    assert_eq!(bench.invalid(&body).await, "messages: first message must use the \"user\" role");
}

#[tokio::test]
async fn a_tool_result_may_be_empty_a_string_or_a_list_and_may_say_that_it_failed() {
    let bench = bench().await;
    let call = json!({"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {}});
    for members in [
        json!({}),
        json!({"content": ""}),
        json!({"content": "done"}),
        json!({"content": []}),
        json!({"content": [text("done")]}),
        json!({"content": "failed", "is_error": true}),
    ] {
        let result = with(json!({"type": "tool_result", "tool_use_id": "toolu_1"}), members);
        bench.message(&request(json!([user("go"), assistant(json!([call])), user(json!([result]))]))).await;
    }
}

#[tokio::test]
async fn pre_warming_goes_with_adaptive_thinking() {
    let bench = bench().await;
    let answer = bench.message(&go(json!({"max_tokens": 0, "thinking": {"type": "adaptive"}}))).await;
    assert_eq!(answer["content"], json!([]));
}

#[tokio::test]
async fn a_page_of_models_has_a_whole_number_of_rows() {
    let bench = bench().await;
    let response = bench.get("/v1/models?limit=many").send().await.unwrap();
    assert_eq!(response.status(), 400);
    let answer: Value = response.json().await.unwrap();
    assert_eq!(answer["error"]["message"], "limit: Input should be a valid integer");
}
