//! Streams, JSON and headers.

use serde_json::{Value, json};

use super::harness::{agent_tool, bench, events, request, user, with};

#[tokio::test]
async fn a_fan_out_streams_text_and_one_tool_use_per_child() {
    let bench = bench().await;
    let body = request(json!([user("Survey. [[sim:fan_out n=5 tool=Agent alike=true]]")]));
    let body = with(body, json!({"stream": true, "tools": [agent_tool()]}));
    let stream = bench.send(&body).await.text().await.unwrap();
    let events = events(&stream);
    let started = events.iter().filter(|(name, _)| name == "content_block_start");
    let kinds: Vec<&str> = started.map(|(_, data)| data["content_block"]["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["text", "tool_use", "tool_use", "tool_use", "tool_use", "tool_use"]);
    let mut directives = Vec::new();
    for index in 1..=5 {
        let json: String = events
            .iter()
            .filter(|(name, data)| name == "content_block_delta" && data["index"] == index)
            .map(|(_, data)| data["delta"]["partial_json"].as_str().unwrap())
            .collect();
        let input: Value = serde_json::from_str(&json).unwrap();
        assert!(input["description"].is_string());
        directives.push(input["prompt"].as_str().unwrap().to_owned());
    }
    assert!(directives.iter().all(|directive| directive.len() >= 60));
    directives.dedup();
    assert_eq!(directives.len(), 5);
    let (last, before) = (&events[events.len() - 1], &events[events.len() - 2]);
    assert_eq!(last.0, "message_stop");
    assert_eq!(before.1["delta"]["stop_reason"], "tool_use");
}
