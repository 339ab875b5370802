//! Tool definitions and the choice among them.

use std::collections::HashSet;

use serde_json::Value;

use super::super::body::{Body, ThinkingParameter, kind, text};
use super::super::error::ApiError;
use super::super::models::ThinkingBinding;

/// The API's own limit for a tool's name.
const NAME_CHARS: usize = 128;

pub fn check(body: &Body<'_>) -> Result<(), ApiError> {
    let mut names = HashSet::new();
    for (index, tool) in body.tools.iter().enumerate() {
        if !tool.is_object() {
            return Err(ApiError::invalid(format!("tools.{index}: Input should be a valid dictionary")));
        }
        if matches!(kind(tool), "" | "custom") {
            check_custom(index, tool)?;
        }
        if let Some(name) = text(tool, "name")
            && !names.insert(name)
        {
            return Err(ApiError::invalid("tools: Tool names must be unique."));
        }
    }
    check_choice(body)
}

fn check_custom(index: usize, tool: &Value) -> Result<(), ApiError> {
    let path = format!("tools.{index}.custom");
    let Some(name) = text(tool, "name") else {
        return Err(ApiError::invalid(format!("{path}.name: Field required")));
    };
    let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if name.is_empty() || name.len() > NAME_CHARS || !name.bytes().all(is_name_byte) {
        return Err(ApiError::invalid(format!(
            "{path}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,{NAME_CHARS}}}$'"
        )));
    }
    let Some(schema) = tool.get("input_schema") else {
        return Err(ApiError::invalid(format!("{path}.input_schema: Field required")));
    };
    match text(schema, "type") {
        Some("object") => Ok(()),
        Some(_) => Err(ApiError::invalid(format!("{path}.input_schema.type: Input should be 'object'"))),
        None => Err(ApiError::invalid(format!("{path}.input_schema.type: Field required"))),
    }
}

fn check_choice(body: &Body<'_>) -> Result<(), ApiError> {
    let Some(choice) = body.member("tool_choice") else { return Ok(()) };
    let choice_kind = kind(choice);
    if !matches!(choice_kind, "auto" | "any" | "tool" | "none") {
        return Err(ApiError::invalid(format!(
            "tool_choice: Input tag '{choice_kind}' found using 'type' does not match any of the expected tags: \
             'auto', 'any', 'tool', 'none'"
        )));
    }
    if body.tools.is_empty() && choice_kind != "none" {
        return Err(ApiError::invalid(
            "tool_choice: tool_choice may only be specified while providing tools",
        ));
    }
    if !matches!(choice_kind, "any" | "tool") {
        return Ok(());
    }
    if body.model.binding == ThinkingBinding::Bound {
        return Err(ApiError::invalid(format!(
            "tool_choice.type: '{choice_kind}' is not supported on this model"
        )));
    }
    if matches!(body.thinking(), ThinkingParameter::Enabled { .. } | ThinkingParameter::Adaptive) {
        return Err(ApiError::invalid("Thinking may not be enabled when tool_choice forces tool use."));
    }
    match text(choice, "name") {
        None if choice_kind == "tool" => Err(ApiError::invalid("tool_choice.tool.name: Field required")),
        Some(name) if choice_kind == "tool" && body.tool(name).is_none() => {
            Err(ApiError::invalid(format!("Tool '{name}' not found in provided tools")))
        }
        _ => Ok(()),
    }
}
