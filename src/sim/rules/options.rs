//! Top-level parameters: output length, thinking, sampling, output formats, pre-warming.

use serde_json::Value;

use super::super::body::{Body, MessageRole, ThinkingParameter, is_thinking, kind, missing, text, wrong};
use super::super::error::ApiError;
use super::super::models::ThinkingBinding;
use super::RequestBetas;

/// The beta that lets a request say what a mismatched thinking block meets.
pub const BINDING_BETA: &str = "thinking-binding-controls-2026-08-01";

/// The API's least `budget_tokens`.
const LEAST_BUDGET: u64 = 1024;

pub fn check(body: &Body<'_>, betas: &RequestBetas<'_>) -> Result<(), ApiError> {
    check_max_tokens(body)?;
    check_sampling(body)?;
    check_thinking(body, betas)?;
    check_formats(body)?;
    check_diagnostics(body)
}

fn check_max_tokens(body: &Body<'_>) -> Result<(), ApiError> {
    let (Some(max_tokens), most) = (body.max_tokens, body.model.max_output_tokens) else { return Ok(()) };
    if max_tokens > most {
        let model = body.model_name;
        return Err(ApiError::invalid(format!(
            "max_tokens: {max_tokens} > {most}, which is the maximum allowed number of output tokens for {model}"
        )));
    }
    if max_tokens > 0 {
        return Ok(());
    }
    let forced = body.member("tool_choice").is_some_and(|choice| matches!(kind(choice), "any" | "tool"));
    let refused = [
        (body.stream, "`stream: true`"),
        (matches!(body.thinking(), ThinkingParameter::Enabled { .. }), "`thinking.type: enabled`"),
        (format_of(body).is_some(), "`output_config.format`"),
        (forced, "`tool_choice` of type `any` or `tool`"),
    ];
    match refused.into_iter().find(|(is_set, _)| *is_set) {
        None => Ok(()),
        Some((_, name)) => Err(ApiError::invalid(format!("max_tokens: 0 cannot be combined with {name}"))),
    }
}

fn check_sampling(body: &Body<'_>) -> Result<(), ApiError> {
    for name in ["temperature", "top_p"] {
        let Some(value) = body.member(name) else { continue };
        let number = value.as_f64().ok_or_else(|| wrong(name, "number"))?;
        if !(0.0..=1.0).contains(&number) {
            return Err(ApiError::invalid(format!("{name}: range: 0..1")));
        }
    }
    let temperature = body.member("temperature").and_then(Value::as_f64);
    let is_manual = matches!(body.thinking(), ThinkingParameter::Enabled { .. });
    if is_manual && temperature.is_some_and(|temperature| temperature != 1.0) {
        return Err(ApiError::invalid(
            "`temperature` may only be set to 1 when thinking is enabled. Please consult our documentation at \
             https://docs.claude.com/en/docs/build-with-claude/extended-thinking",
        ));
    }
    if let Some(sequences) = body.member("stop_sequences") {
        let list = sequences.as_array().ok_or_else(|| wrong("stop_sequences", "list"))?;
        if let Some(index) = list.iter().position(|sequence| !sequence.is_string()) {
            return Err(wrong(&format!("stop_sequences.{index}"), "string"));
        }
        if list.iter().any(|sequence| sequence.as_str().is_some_and(|text| text.trim().is_empty())) {
            return Err(ApiError::invalid("stop_sequences: each stop sequence must contain non-whitespace"));
        }
    }
    Ok(())
}

fn check_thinking(body: &Body<'_>, betas: &RequestBetas<'_>) -> Result<(), ApiError> {
    let Some(thinking) = body.member("thinking") else { return Ok(()) };
    let thinking_kind = kind(thinking);
    if !matches!(thinking_kind, "enabled" | "disabled" | "adaptive" | "between_tools") {
        return Err(ApiError::invalid(format!(
            "thinking: Input tag '{thinking_kind}' found using 'type' does not match any of the expected tags: \
             'adaptive', 'disabled', 'enabled'"
        )));
    }
    if thinking_kind == "disabled" && body.model.binding == ThinkingBinding::Bound {
        return Err(ApiError::invalid("thinking.type: 'disabled' is not supported on this model"));
    }
    if thinking.get("block_binding").is_some() && !betas.contains(&BINDING_BETA) {
        return Err(ApiError::invalid("thinking.block_binding: Extra inputs are not permitted"));
    }
    match body.thinking() {
        ThinkingParameter::Enabled { budget } => check_manual(body, budget),
        _ => Ok(()),
    }
}

fn check_manual(body: &Body<'_>, budget: Option<&Value>) -> Result<(), ApiError> {
    let budget = budget.ok_or_else(|| missing("thinking.enabled.budget_tokens"))?;
    let budget = budget.as_u64().ok_or_else(|| wrong("thinking.enabled.budget_tokens", "integer"))?;
    if budget < LEAST_BUDGET {
        return Err(ApiError::invalid(format!(
            "thinking.enabled.budget_tokens: Input should be greater than or equal to {LEAST_BUDGET}"
        )));
    }
    if body.max_tokens.is_some_and(|max_tokens| max_tokens <= budget) {
        return Err(ApiError::invalid(
            "`max_tokens` must be greater than `thinking.budget_tokens`. Please consult our documentation at \
             https://docs.claude.com/en/docs/build-with-claude/extended-thinking#max-tokens-and-context-window-size",
        ));
    }
    check_final_turn(body)
}

/// In manual mode the assistant turn of an open tool loop starts with its thinking.
fn check_final_turn(body: &Body<'_>) -> Result<(), ApiError> {
    let Some(index) = body.messages.iter().rposition(|message| message.role == MessageRole::Assistant) else {
        return Ok(());
    };
    let blocks = body.messages[index].content.blocks();
    let calls_tools = blocks.iter().any(|block| kind(block) == "tool_use");
    match blocks.first() {
        Some(first) if calls_tools && !is_thinking(first) => {
            let found = kind(first);
            Err(ApiError::invalid(format!(
                "messages.{index}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{found}`. \
                 When `thinking` is enabled, a final `assistant` message must start with a thinking block \
                 (preceeding the lastmost set of `tool_use` and `tool_result` blocks). We recommend you include \
                 thinking blocks from previous turns. To avoid this requirement, disable `thinking`. Please consult \
                 our documentation at https://docs.claude.com/en/docs/build-with-claude/extended-thinking"
            )))
        }
        _ => Ok(()),
    }
}

fn format_of<'a>(body: &Body<'a>) -> Option<&'a Value> {
    let nested = body.member("output_config").and_then(|config| config.get("format"));
    nested.or_else(|| body.member("output_format")).filter(|format| !format.is_null())
}

fn check_formats(body: &Body<'_>) -> Result<(), ApiError> {
    if let Some(config) = body.member("output_config") {
        if !config.is_object() {
            return Err(wrong("output_config", "dictionary"));
        }
        let effort = config.get("effort").filter(|effort| !effort.is_null());
        let known = ["low", "medium", "high", "xhigh", "max"];
        if effort.is_some_and(|effort| !effort.as_str().is_some_and(|effort| known.contains(&effort))) {
            return Err(ApiError::invalid(
                "output_config.effort: Input should be 'low', 'medium', 'high', 'xhigh' or 'max'",
            ));
        }
        if config.get("format").is_some_and(|format| !format.is_null())
            && body.member("output_format").is_some()
        {
            return Err(ApiError::invalid(
                "output_format: cannot be set together with `output_config.format`",
            ));
        }
    }
    let Some(format) = format_of(body) else { return Ok(()) };
    let path = if body.member("output_format").is_some() { "output_format" } else { "output_config.format" };
    match text(format, "type") {
        Some("json_schema") => {}
        Some(_) => return Err(ApiError::invalid(format!("{path}.type: Input should be 'json_schema'"))),
        None => return Err(missing(&format!("{path}.type"))),
    }
    match format.get("schema") {
        None => Err(missing(&format!("{path}.schema"))),
        Some(schema) if schema.is_object() => Ok(()),
        Some(_) => Err(wrong(&format!("{path}.schema"), "dictionary")),
    }
}

fn check_diagnostics(body: &Body<'_>) -> Result<(), ApiError> {
    let Some(diagnostics) = body.member("diagnostics") else { return Ok(()) };
    match diagnostics.get("previous_message_id") {
        None => Err(missing("diagnostics.previous_message_id")),
        Some(Value::Null | Value::String(_)) => Ok(()),
        Some(_) => Err(wrong("diagnostics.previous_message_id", "string")),
    }
}
