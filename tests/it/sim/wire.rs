//! Streams, JSON, headers and the smaller endpoints.

use forkpoint::sim::ExchangeEnding;
use serde_json::{Value, json};

use super::harness::{
    Tokens, agent_tool, assistant, bench, block, events, marked, request, text, tool, user, with,
};

/// Rebuilds the message a stream describes, as SDKs do.
fn accumulate(events: &[(String, Value)]) -> Value {
    let mut message = Value::Null;
    let mut partial = String::new();
    for (name, data) in events {
        let index = data["index"].as_u64().unwrap_or_default() as usize;
        match name.as_str() {
            "message_start" => message = data["message"].clone(),
            "content_block_start" => {
                message["content"].as_array_mut().unwrap().push(data["content_block"].clone());
                partial.clear();
            }
            "content_block_delta" => {
                let (block, delta) = (&mut message["content"][index], &data["delta"]);
                match delta["type"].as_str().unwrap() {
                    "text_delta" => append(&mut block["text"], &delta["text"]),
                    "thinking_delta" => append(&mut block["thinking"], &delta["thinking"]),
                    "signature_delta" => block["signature"] = delta["signature"].clone(),
                    "input_json_delta" => partial.push_str(delta["partial_json"].as_str().unwrap()),
                    other => panic!("unknown delta {other}"),
                }
            }
            "content_block_stop"
                if message["content"][index]["type"] == "tool_use" && !partial.is_empty() =>
            {
                message["content"][index]["input"] = serde_json::from_str(&partial).unwrap();
            }
            "message_delta" => {
                for (key, value) in data["delta"].as_object().unwrap() {
                    message[key] = value.clone();
                }
                for (key, value) in data["usage"].as_object().unwrap() {
                    message["usage"][key] = value.clone();
                }
            }
            _ => {}
        }
    }
    message
}

fn append(text: &mut Value, more: &Value) {
    *text = json!(format!("{}{}", text.as_str().unwrap(), more.as_str().unwrap()));
}

#[tokio::test]
async fn a_stream_and_a_json_answer_to_the_same_request_are_the_same_message() {
    let bodies = [
        "[[sim:text words=90]]",
        "[[sim:fan_out n=3]]",
        "[[sim:tools]]",
        "[[sim:thinking]]",
        "[[sim:empty]]",
        "hi",
    ];
    for words in bodies {
        // Two simulators, so that both requests are the first of their kind and get the same ids.
        let members = json!({"tools": [tool("Bash"), agent_tool()], "thinking": {"type": "adaptive"}});
        let body = with(request(json!([user(words)])), members);
        let whole = bench().await.message(&body).await;
        let stream = bench().await.send(&with(body, json!({"stream": true}))).await.text().await.unwrap();
        assert_eq!(accumulate(&events(&stream)), whole, "{words}");
    }
}

#[tokio::test]
async fn events_come_in_the_documented_order_with_a_ping() {
    let bench = bench().await;
    let body = with(request(json!([user("[[sim:text words=30]]")])), json!({"stream": true}));
    let response = bench.send(&body).await;
    assert_eq!(response.headers()["content-type"], "text/event-stream; charset=utf-8");
    let mut names: Vec<String> =
        events(&response.text().await.unwrap()).into_iter().map(|(name, _)| name).collect();
    names.dedup();
    let expected = [
        "message_start",
        "content_block_start",
        "ping",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(names, expected);
}

#[tokio::test]
async fn a_stream_starts_with_the_full_usage_and_ends_with_cumulative_counts_without_the_split() {
    let bench = bench().await;
    let body =
        with(request(json!([user(json!([marked(block("a", 1200)), text("go")]))])), json!({"stream": true}));
    let events = events(&bench.send(&body).await.text().await.unwrap());
    let start = &events[0].1["message"];
    assert_eq!(start["content"], json!([]));
    assert_eq!(Tokens::of(&start["usage"]).write_5m, 1200);
    let last = &events[events.len() - 2].1["usage"];
    assert_eq!(last["cache_creation_input_tokens"], 1200);
    assert!(last["output_tokens"].as_u64().unwrap() > start["usage"]["output_tokens"].as_u64().unwrap());
    assert_eq!(last.get("cache_creation"), None);
}

#[tokio::test]
async fn answers_carry_the_apis_headers() {
    let bench = bench().await;
    let response = bench.send(&request(json!([user("go")]))).await;
    let headers = response.headers();
    assert!(headers["request-id"].to_str().unwrap().starts_with("req_"));
    assert!(headers["anthropic-workspace-id"].to_str().unwrap().starts_with("wrkspc_"));
    assert!(headers.contains_key("anthropic-organization-id"));
    for kind in ["requests", "tokens", "input-tokens", "output-tokens"] {
        for figure in ["limit", "remaining", "reset"] {
            assert!(headers.contains_key(format!("anthropic-ratelimit-{kind}-{figure}")), "{kind} {figure}");
        }
    }
    assert!(headers["anthropic-ratelimit-tokens-reset"].to_str().unwrap().ends_with('Z'));
}

#[tokio::test]
async fn a_named_workspace_comes_back_in_the_answer() {
    let bench = bench().await;
    let request = bench.post("/v1/messages").header("anthropic-workspace-id", "wrkspc_mine");
    let response = request.json(&request_body()).send().await.unwrap();
    assert_eq!(response.headers()["anthropic-workspace-id"], "wrkspc_mine");
}

fn request_body() -> Value {
    request(json!([user("go")]))
}

#[tokio::test]
async fn the_query_does_not_matter_and_is_recorded() {
    let bench = bench().await;
    let response = bench.post("/v1/messages?beta=true").json(&request_body()).send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(bench.last_record().target, "/v1/messages?beta=true");
}

#[tokio::test]
async fn count_tokens_needs_no_max_tokens_and_agrees_with_usage() {
    let bench = bench().await;
    let mut body =
        with(request(json!([user("How many?")])), json!({"system": "Count.", "tools": [tool("Bash")]}));
    let usage = bench.usage(&body).await;
    body.as_object_mut().unwrap().remove("max_tokens");
    let response = bench.post("/v1/messages/count_tokens").json(&body).send().await.unwrap();
    assert_eq!(response.json::<Value>().await.unwrap(), json!({"input_tokens": usage.uncached}));
}

#[tokio::test]
async fn models_are_listed_paged_and_shown() {
    let bench = bench().await;
    let get = async |path: &str| bench.get(path).send().await.unwrap().json::<Value>().await.unwrap();
    let page = get("/v1/models?limit=2").await;
    assert_eq!((page["data"].as_array().unwrap().len(), &page["has_more"]), (2, &json!(true)));
    let last = page["last_id"].as_str().unwrap();
    let next = get(&format!("/v1/models?limit=1000&after_id={last}")).await;
    assert_eq!(next["has_more"], false);
    assert_ne!(next["first_id"], page["first_id"]);
    let back = get(&format!("/v1/models?before_id={}", next["first_id"].as_str().unwrap())).await;
    assert_eq!(back["data"], page["data"]);
    let model = get("/v1/models/claude-opus-5-5").await;
    assert_eq!((&model["type"], &model["display_name"]), (&json!("model"), &json!("Claude Opus 5.5")));
    assert_eq!(bench.get("/v1/models/nobody").send().await.unwrap().status(), 404);
}

#[tokio::test]
async fn health_and_the_root_answer_without_a_key() {
    let bench = bench().await;
    let url = bench.sim.url();
    assert_eq!(bench.client.get(format!("{url}/health")).send().await.unwrap().status(), 200);
    for path in ["/", "/api/hello"] {
        assert_eq!(bench.client.head(format!("{url}{path}")).send().await.unwrap().status(), 200);
    }
}

#[tokio::test]
async fn an_answer_ends_at_max_tokens_and_at_stop_sequences() {
    let bench = bench().await;
    let body = with(request(json!([user("[[sim:text words=300]]")])), json!({"max_tokens": 10}));
    let cut = bench.message(&body).await;
    assert_eq!((&cut["stop_reason"], &cut["usage"]["output_tokens"]), (&json!("max_tokens"), &json!(10)));
    let whole = bench.message(&request(json!([user("[[sim:text words=300]]")]))).await;
    let words = whole["content"][0]["text"].as_str().unwrap();
    let tenth = words.split_whitespace().nth(10).unwrap();
    let body = with(request(json!([user("[[sim:text words=300]]")])), json!({"stop_sequences": [tenth]}));
    let stopped = bench.message(&body).await;
    assert_eq!(
        (&stopped["stop_reason"], &stopped["stop_sequence"]),
        (&json!("stop_sequence"), &json!(tenth))
    );
    assert!(words.starts_with(stopped["content"][0]["text"].as_str().unwrap()));
}

#[tokio::test]
async fn a_fan_out_that_does_not_fit_max_tokens_makes_only_the_calls_that_do() {
    let bench = bench().await;
    let members = json!({"max_tokens": 300, "tools": [agent_tool()]});
    let answer = bench.message(&with(request(json!([user("[[sim:fan_out n=9]]")])), members)).await;
    assert_eq!(answer["stop_reason"], "max_tokens");
    assert!(answer["content"].as_array().unwrap().len() < 10);
}

#[tokio::test]
async fn a_structured_output_is_json_that_fills_the_schema() {
    let bench = bench().await;
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    let members = json!({"output_config": {"format": {"type": "json_schema", "schema": schema}}});
    let answer = bench.message(&with(request_body(), members)).await;
    let output: Value = serde_json::from_str(answer["content"][0]["text"].as_str().unwrap()).unwrap();
    assert!(output["n"].is_u64());
}

#[tokio::test]
async fn diagnostics_name_the_first_layer_that_differs() {
    let bench = bench().await;
    let ask = |previous: Value, members: Value| {
        let base = json!({"system": "Be kind.", "tools": [tool("Bash")], "diagnostics": {"previous_message_id": previous}});
        with(with(request(json!([user("one"), assistant("two"), user("three")])), base), members)
    };
    let first = bench.message(&ask(Value::Null, json!({}))).await;
    assert_eq!(first["diagnostics"], Value::Null);
    let id = first["id"].clone();
    let reason = async |members: Value| {
        let answer = bench.message(&ask(id.clone(), members)).await;
        answer["diagnostics"]["cache_miss_reason"].clone()
    };
    let longer =
        json!({"messages": [user("one"), assistant("two"), user("three"), assistant("four"), user("five")]});
    assert_eq!(reason(longer).await, Value::Null, "an extension diverges nowhere");
    assert_eq!(reason(json!({"model": "claude-opus-5"})).await["type"], "model_changed");
    assert_eq!(reason(json!({"tools": [tool("Bash"), tool("Read")]})).await["type"], "tools_changed");
    assert_eq!(reason(json!({"system": "Be rude."})).await["type"], "system_changed");
    let changed = reason(json!({"messages": [user("one"), assistant("2"), user("three")]})).await;
    assert_eq!(changed["type"], "messages_changed");
    assert!(changed["cache_missed_input_tokens"].as_u64().unwrap() > 0);
    let unknown = bench.message(&ask(json!("msg_unknown"), json!({}))).await;
    assert_eq!(unknown["diagnostics"]["cache_miss_reason"]["type"], "previous_message_not_found");
    assert_eq!(bench.message(&request_body()).await.get("diagnostics"), None, "only those who ask are told");
}

#[tokio::test]
async fn diagnostics_know_no_message_of_another_workspace() {
    let bench = bench().await;
    let ask = async |key: &str, previous: Value| {
        let body = with(request_body(), json!({"diagnostics": {"previous_message_id": previous}}));
        let request = bench.client.post(format!("{}/v1/messages", bench.sim.url())).bearer_auth(key);
        let response = request.header("anthropic-version", "2023-06-01").json(&body).send().await.unwrap();
        response.json::<Value>().await.unwrap()
    };
    let first = ask("sk@blue", Value::Null).await;
    assert_eq!(ask("sk@blue", first["id"].clone()).await["diagnostics"], Value::Null);
    let elsewhere = ask("sk@green", first["id"].clone()).await;
    assert_eq!(elsewhere["diagnostics"]["cache_miss_reason"]["type"], "previous_message_not_found");
}

#[tokio::test]
async fn a_record_holds_the_bytes_as_they_came_and_no_credential() {
    let bench = bench().await;
    let raw = format!("{}\n ", serde_json::to_string_pretty(&request_body()).unwrap());
    let response =
        bench.post("/v1/messages").header("x-claude-code-session-id", "s-1").body(raw.clone()).send().await;
    let id = response.unwrap().json::<Value>().await.unwrap()["id"].clone();
    let listed: Value = bench.get("/sim/requests").send().await.unwrap().json().await.unwrap();
    let record = &listed["requests"][0];
    assert_eq!((&record["body"], &record["message_id"], &record["status"]), (&json!(raw), &id, &json!(200)));
    assert!(!listed.to_string().contains("sk-test"));
    let headers = record["headers"].as_array().unwrap();
    assert!(headers.contains(&json!(["x-claude-code-session-id", "s-1"])));
    assert!(record["arrived_us"].as_u64() <= record["first_byte_us"].as_u64());
    assert!(record["first_byte_us"].as_u64() <= record["ended_us"].as_u64());
    assert_eq!(bench.last_record().ending, ExchangeEnding::Complete);
    bench.client.delete(format!("{}/sim/requests", bench.sim.url())).send().await.unwrap();
    assert!(bench.sim.requests().is_empty());
}

#[tokio::test]
async fn http_2_is_spoken_to_clients_that_know_it_is() {
    let bench = bench().await;
    let executor = hyper_util::rt::TokioExecutor::new();
    let client = hyper_util::client::legacy::Client::builder(executor).http2_only(true).build_http();
    let request = http::Request::post(format!("{}/v1/messages", bench.sim.url()))
        .header("x-api-key", "k")
        .header("anthropic-version", "2023-06-01")
        .body(http_body_util::Full::new(bytes::Bytes::from(request_body().to_string())))
        .unwrap();
    let response = client.request(request).await.unwrap();
    assert_eq!((response.version(), response.status().as_u16()), (http::Version::HTTP_2, 200));
}
