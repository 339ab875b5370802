//! Who speaks when, and that every text says something.

use super::super::body::{Body, BodyMessage, Content, MessageRole, kind, text};
use super::super::error::ApiError;
use super::super::models::Support;
use super::super::settings::{SimRules, UnknownInput};
use super::compaction;

/// Block types documented today, for the strict reading.
pub const KNOWN_BLOCKS: [&str; 26] = [
    "text",
    "image",
    "document",
    "search_result",
    "thinking",
    "redacted_thinking",
    "tool_use",
    "tool_result",
    "server_tool_use",
    "web_search_tool_result",
    "web_fetch_tool_result",
    "advisor_tool_result",
    "code_execution_tool_result",
    "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result",
    "tool_search_tool_result",
    "mcp_tool_use",
    "mcp_tool_result",
    "container_upload",
    "compaction",
    "fallback",
    "tool_reference",
    "mid_conv_system",
    "tool_addition",
    "tool_removal",
    "browser_state",
];

pub fn check(body: &Body<'_>, rules: &SimRules) -> Result<(), ApiError> {
    check_first(body)?;
    for index in 0..body.messages.len() {
        let message = &body.messages[index];
        if message.role == MessageRole::System {
            check_system_message(body, index)?;
        }
        check_content(body, index, message)?;
        if rules.unknown_input == UnknownInput::Refuse {
            check_known(index, message)?;
        }
    }
    check_system(body)?;
    check_last(body)
}

fn check_first(body: &Body<'_>) -> Result<(), ApiError> {
    match body.messages[0].role {
        MessageRole::User => Ok(()),
        MessageRole::Assistant if opens_with_summary(body) => Ok(()),
        MessageRole::Assistant => {
            Err(ApiError::invalid("messages: first message must use the \"user\" role"))
        }
        MessageRole::System => {
            require_system_messages(body)?;
            Err(ApiError::invalid("messages.0: role 'system' is not allowed in the first message"))
        }
    }
}

/// A summary may stand in either role.
fn opens_with_summary(body: &Body<'_>) -> bool {
    let first = body.messages[0].content.blocks().first();
    first.is_some_and(|block| kind(block) == "compaction" && !compaction::is_no_op(block))
}

fn require_system_messages(body: &Body<'_>) -> Result<(), ApiError> {
    match body.model.system_messages {
        Support::Yes => Ok(()),
        Support::No => Err(ApiError::invalid("role 'system' is not supported on this model")),
    }
}

/// After a user turn (or an assistant turn that ends with a server tool's result), and before an assistant or the end.
fn check_system_message(body: &Body<'_>, index: usize) -> Result<(), ApiError> {
    require_system_messages(body)?;
    let before = index.checked_sub(1).map(|before| &body.messages[before]);
    let follows_turn = before.is_some_and(|before| match before.role {
        MessageRole::User => true,
        MessageRole::Assistant => ends_with_server_tool(before),
        MessageRole::System => false,
    });
    if !follows_turn {
        return Err(ApiError::invalid(format!("messages.{index}: role 'system' must follow a user message")));
    }
    match body.messages.get(index + 1).map(|after| after.role) {
        None | Some(MessageRole::Assistant) => Ok(()),
        Some(_) => Err(ApiError::invalid(format!(
            "messages.{index}: role 'system' must be the last message or be followed by an assistant message"
        ))),
    }
}

fn ends_with_server_tool(message: &BodyMessage<'_>) -> bool {
    let last = message.content.blocks().last().map(kind).unwrap_or_default();
    last == "server_tool_use" || last.ends_with("_tool_result")
}

fn check_content(body: &Body<'_>, index: usize, message: &BodyMessage<'_>) -> Result<(), ApiError> {
    let is_final_assistant = index + 1 == body.messages.len() && message.role == MessageRole::Assistant;
    let is_empty = match message.content {
        Content::Text(text) => text.is_empty(),
        Content::Blocks(blocks) => blocks.is_empty(),
    };
    if is_empty && !is_final_assistant {
        return Err(ApiError::invalid(format!(
            "messages.{index}: all messages must have non-empty content except for the optional final assistant message"
        )));
    }
    // A marked empty text has its own error, reported with the markers.
    let is_unmarked_empty = |block: &&serde_json::Value| {
        kind(block) == "text"
            && text(block, "text").is_some_and(str::is_empty)
            && block.get("cache_control").is_none_or(serde_json::Value::is_null)
    };
    if message.content.blocks().iter().any(|block| is_unmarked_empty(&block)) {
        return Err(ApiError::invalid("messages: text content blocks must be non-empty"));
    }
    Ok(())
}

fn check_known(index: usize, message: &BodyMessage<'_>) -> Result<(), ApiError> {
    let mut blocks = message.content.blocks().iter().map(kind).enumerate();
    match blocks.find(|(_, kind)| !KNOWN_BLOCKS.contains(kind)) {
        None => Ok(()),
        Some((block, kind)) => Err(ApiError::invalid(format!(
            "messages.{index}.content.{block}: Input tag '{kind}' found using 'type' does not match any of the \
             expected tags: '{}'",
            KNOWN_BLOCKS.join("', '")
        ))),
    }
}

fn check_system(body: &Body<'_>) -> Result<(), ApiError> {
    let blocks = body.system.map_or(&[][..], Content::blocks);
    for (index, block) in blocks.iter().enumerate() {
        if kind(block) != "text" {
            return Err(ApiError::invalid(format!("system.{index}.type: Input should be 'text'")));
        }
        let is_marked = block.get("cache_control").is_some_and(|control| !control.is_null());
        if text(block, "text").is_some_and(str::is_empty) && !is_marked {
            return Err(ApiError::invalid("system: text content blocks must be non-empty"));
        }
    }
    Ok(())
}

fn check_last(body: &Body<'_>) -> Result<(), ApiError> {
    let is_summary_alone = body.messages.len() == 1 && opens_with_summary(body);
    if body.is_resumption || is_summary_alone {
        return Ok(());
    }
    let Some(last) = body.messages.last().filter(|last| last.role == MessageRole::Assistant) else {
        return Ok(());
    };
    if body.model.prefill == Support::No {
        return Err(ApiError::invalid(
            "This model does not support assistant message prefill. The conversation must end with a user message.",
        ));
    }
    if last.content.texts().last().is_some_and(|text| text.ends_with(char::is_whitespace)) {
        return Err(ApiError::invalid(
            "messages: final assistant content cannot end with trailing whitespace",
        ));
    }
    Ok(())
}
