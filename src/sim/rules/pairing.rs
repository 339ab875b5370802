//! Every call has its result in the next message, first and once; every result has its call.
//!
//! Consecutive messages of one role are one turn, so the rules hold between turns, and errors name messages.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::super::body::{Body, MessageRole, kind, text};
use super::super::error::ApiError;

/// Consecutive messages of one role.
struct MessageRun {
    role: MessageRole,
    first: usize,
    end: usize,
}

pub fn check(body: &Body<'_>) -> Result<(), ApiError> {
    let turns = turns(body);
    let mut seen_ids = HashSet::new();
    let mut open: Vec<&str> = Vec::new();
    for (index, turn) in turns.iter().enumerate() {
        match turn.role {
            MessageRole::Assistant => {
                let calls = check_calls(body, turn, &mut seen_ids)?;
                let answer = turns.get(index + 1).filter(|next| next.role == MessageRole::User);
                check_answered(body, turn, &calls, answer)?;
                check_server_tools(body, turn, answer)?;
                open = calls;
            }
            MessageRole::User => {
                check_results(body, turn, &open)?;
                open.clear();
            }
            MessageRole::System => {}
        }
    }
    Ok(())
}

fn turns(body: &Body<'_>) -> Vec<MessageRun> {
    let mut turns: Vec<MessageRun> = Vec::new();
    for (index, message) in body.messages.iter().enumerate() {
        match turns.last_mut() {
            Some(turn) if turn.role == message.role => turn.end = index + 1,
            _ => turns.push(MessageRun { role: message.role, first: index, end: index + 1 }),
        }
    }
    turns
}

impl MessageRun {
    fn blocks<'a>(&self, body: &Body<'a>) -> impl Iterator<Item = (usize, usize, &'a Value)> {
        let messages: Vec<_> =
            (self.first..self.end).map(|index| (index, body.messages[index].content)).collect();
        messages.into_iter().flat_map(|(message, content)| {
            content.blocks().iter().enumerate().map(move |(block, value)| (message, block, value))
        })
    }
}

/// The ids of the turn's client calls, each used once in the whole request.
fn check_calls<'a>(
    body: &Body<'a>,
    turn: &MessageRun,
    seen: &mut HashSet<&'a str>,
) -> Result<Vec<&'a str>, ApiError> {
    let mut calls = Vec::new();
    for (message, block, value) in turn.blocks(body).filter(|(_, _, value)| kind(value) == "tool_use") {
        let path = format!("messages.{message}.content.{block}");
        for member in ["id", "name", "input"] {
            if value.get(member).is_none() {
                return Err(ApiError::invalid(format!("{path}.tool_use.{member}: Field required")));
            }
        }
        if !value.get("input").is_some_and(Value::is_object) {
            return Err(ApiError::invalid(format!(
                "{path}.tool_use.input: Input should be a valid dictionary"
            )));
        }
        let id = text(value, "id").unwrap_or_default();
        if !is_tool_id(id) {
            return Err(ApiError::invalid(format!(
                "{path}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
            )));
        }
        if !seen.insert(id) {
            return Err(ApiError::invalid(format!("{path}: `tool_use` ids must be unique")));
        }
        calls.push(id);
    }
    Ok(calls)
}

fn is_tool_id(id: &str) -> bool {
    !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

/// Results come first: a result after other content does not count as "immediately after".
fn check_answered(
    body: &Body<'_>,
    turn: &MessageRun,
    calls: &[&str],
    answer: Option<&MessageRun>,
) -> Result<(), ApiError> {
    let leading: HashSet<&str> = match answer {
        None => HashSet::new(),
        Some(answer) if starts_with_text(body, answer) => HashSet::new(),
        Some(answer) => {
            let results = answer.blocks(body).take_while(|(_, _, value)| kind(value) == "tool_result");
            results.filter_map(|(_, _, value)| text(value, "tool_use_id")).collect()
        }
    };
    let missing: Vec<&str> = calls.iter().copied().filter(|id| !leading.contains(id)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid(format!(
        "messages.{}: `tool_use` ids were found without `tool_result` blocks immediately after: {}. Each \
         `tool_use` block must have a corresponding `tool_result` block in the next message.",
        turn.end - 1,
        missing.join(", ")
    )))
}

fn starts_with_text(body: &Body<'_>, turn: &MessageRun) -> bool {
    body.messages[turn.first].content.blocks().is_empty()
}

fn check_results(body: &Body<'_>, turn: &MessageRun, open: &[&str]) -> Result<(), ApiError> {
    let open: HashSet<&str> = open.iter().copied().collect();
    let mut answered = HashSet::new();
    for (message, block, value) in turn.blocks(body).filter(|(_, _, value)| kind(value) == "tool_result") {
        let path = format!("messages.{message}.content.{block}");
        let Some(id) = text(value, "tool_use_id") else {
            return Err(ApiError::invalid(format!("{path}.tool_result.tool_use_id: Field required")));
        };
        if !open.contains(id) {
            return Err(ApiError::invalid(format!(
                "{path}: unexpected `tool_use_id` found in `tool_result` blocks: {id}. Each `tool_result` block \
                 must have a corresponding `tool_use` block in the previous message."
            )));
        }
        if !answered.insert(id) {
            return Err(ApiError::invalid(format!(
                "{path}: each tool_use must have a single result. Found multiple `tool_result` blocks with id: {id}"
            )));
        }
    }
    Ok(())
}

/// A server tool's result is in the assistant turn itself. While it is missing, only results may follow.
fn check_server_tools(
    body: &Body<'_>,
    turn: &MessageRun,
    answer: Option<&MessageRun>,
) -> Result<(), ApiError> {
    let mut pending: HashMap<&str, ((usize, usize), &str)> = HashMap::new();
    for (message, block, value) in turn.blocks(body) {
        let kind = kind(value);
        if kind == "server_tool_use" {
            let name = text(value, "name").unwrap_or_default();
            pending.insert(text(value, "id").unwrap_or_default(), ((message, block), name));
        } else if kind.ends_with("_tool_result") && kind != "mcp_tool_result" {
            let id = text(value, "tool_use_id").unwrap_or_default();
            if pending.remove(id).is_none() {
                return Err(ApiError::invalid(format!(
                    "messages.{message}.content.{block}: unexpected `tool_use_id` found in `{kind}` blocks: {id}. \
                     Each `{kind}` block must have a corresponding `server_tool_use` block before it."
                )));
            }
        }
    }
    let first = pending.into_iter().min_by_key(|(_, (place, _))| *place);
    let (Some((id, (_, name))), Some(answer)) = (first, answer) else { return Ok(()) };
    let only_results = !starts_with_text(body, answer)
        && answer.blocks(body).all(|(_, _, value)| kind(value) == "tool_result");
    if only_results {
        return Ok(());
    }
    Err(ApiError::invalid(format!(
        "messages.{}: `{name}` tool use with id `{id}` was found without a corresponding `{name}_tool_result` block",
        turn.end - 1
    )))
}
