//! The blocks that messages are made of.

use serde_json::{Value, json};

use super::shape::prose;

pub fn mark_block(block: &mut Value) {
    block["cache_control"] = json!({"type": "ephemeral"});
}

pub fn mark_last(list: &mut Value) {
    list.as_array_mut().and_then(|list| list.last_mut()).map(mark_block).unwrap();
}

pub fn mark_message(body: &mut Value, index: usize) {
    mark_last(&mut body["messages"][index]["content"]);
}

/// A message of one unmarked text is sent as a string.
pub fn lone_text_to_string(message: &mut Value) {
    let Some([block]) = message["content"].as_array().map(Vec::as_slice) else { return };
    if block["type"] == "text" && block.get("cache_control").is_none() {
        message["content"] = block["text"].clone();
    }
}

pub fn as_echoed_by_python(block: &Value) -> Value {
    match block["type"].as_str() {
        Some("text") => json!({"text": block["text"], "type": "text"}),
        Some("tool_use") => {
            json!({"type": "tool_use", "name": block["name"], "input": block["input"], "id": block["id"]})
        }
        _ => block.clone(),
    }
}

pub fn picture(number: usize) -> Value {
    let data = format!("iVBORw0KGgo{number:04}").repeat(40);
    json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}})
}

pub fn document() -> Value {
    let text = prose("A report.", 400);
    json!({"type": "document", "title": "Report", "source": {"type": "text", "media_type": "text/plain", "data": text}})
}
