//! The `thread` member of a request: its shape, and what cannot be beside it.

use serde_json::{Map, Value};

use super::super::body::{PromptEndpoint, kind, missing, text, wrong};
use super::super::error::ApiError;
use super::super::refusal::thread_unsupported;
use super::super::rules::RequestBetas;
use super::super::settings::SimRules;
use super::rules::UnsupportedOptions;

/// The beta without which `thread` is an unknown field.
pub const THREAD_BETA: &str = "message-threads-2026-08-12";

/// What a request asks of threads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ThreadRequest {
    Create,
    Continue { previous: String },
}

impl ThreadRequest {
    /// Reads `thread` and checks what needs no memory. `None` if there is none, or it is null.
    pub fn read(
        root: &Map<String, Value>,
        betas: &RequestBetas<'_>,
        endpoint: PromptEndpoint,
        rules: &SimRules,
    ) -> Result<Option<ThreadRequest>, ApiError> {
        let Some(thread) = root.get("thread").filter(|thread| !thread.is_null()) else { return Ok(None) };
        if endpoint == PromptEndpoint::CountTokens || !betas.contains(&THREAD_BETA) {
            return Err(ApiError::invalid("thread: Extra inputs are not permitted"));
        }
        let request = read_shape(thread)?;
        check_markers(root, rules)?;
        if rules.threads.unsupported_options == UnsupportedOptions::Refused {
            check_options(root)?;
        }
        Ok(Some(request))
    }
}

fn read_shape(thread: &Value) -> Result<ThreadRequest, ApiError> {
    if !thread.is_object() {
        return Err(wrong("thread", "dictionary"));
    }
    match thread.get("type").map(Value::as_str) {
        None => Err(missing("thread.type")),
        Some(Some("create")) => Ok(ThreadRequest::Create),
        Some(Some("continue")) => match thread.get("previous_message_id") {
            None => Err(missing("thread.continue.previous_message_id")),
            Some(Value::String(previous)) => Ok(ThreadRequest::Continue { previous: previous.clone() }),
            Some(_) => Err(wrong("thread.continue.previous_message_id", "string")),
        },
        Some(other) => Err(ApiError::invalid(format!(
            "thread: Input tag '{}' found using 'type' does not match any of the expected tags: 'create', 'continue'",
            other.unwrap_or_default()
        ))),
    }
}

/// Markers of this request; those of the held part were counted when it came.
fn check_markers(root: &Map<String, Value>, rules: &SimRules) -> Result<(), ApiError> {
    let list = |name: &str| root.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let contents = list("messages").iter().filter_map(|message| message.get("content")?.as_array());
    let blocks = list("tools").iter().chain(list("system")).chain(contents.flatten());
    let found = usize::from(is_marked(root)) + blocks.map(markers_in).sum::<usize>();
    let most = rules.threads.markers;
    if found <= most {
        return Ok(());
    }
    // The API gave this reason while it kept one of the markers for itself.
    let reason = if most < rules.breakpoints {
        " -- the fourth marker slot is reserved for the marker the server places on the conversation last \
         cache-eligible block"
    } else {
        ""
    };
    Err(thread_unsupported(
        format!(
            "thread: a maximum of {most} blocks with cache_control may be provided when thread is set{reason}. \
             Found {found}."
        ),
        "cache_control",
    ))
}

fn is_marked(object: &Map<String, Value>) -> bool {
    object.get("cache_control").is_some_and(|control| !control.is_null())
}

fn markers_in(block: &Value) -> usize {
    let own = usize::from(block.as_object().is_some_and(is_marked));
    if kind(block) != "tool_result" {
        return own;
    }
    let nested = block.get("content").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    own + nested.iter().filter_map(Value::as_object).filter(|block| is_marked(block)).count()
}

fn check_options(root: &Map<String, Value>) -> Result<(), ApiError> {
    if root.get("fallbacks").is_some_and(Value::is_array) {
        return Err(thread_unsupported("thread: `fallbacks` cannot be set when thread is set.", "fallbacks"));
    }
    let edits = root.get("context_management").and_then(|management| management.get("edits"));
    let edits = edits.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let rewrites = |edit: &&Value| {
        let kind = text(edit, "type").unwrap_or_default();
        kind == "compact_20260112" || kind.starts_with("clear_tool_uses")
    };
    match edits.iter().find(rewrites).map(kind) {
        None => Ok(()),
        Some(edit) => Err(thread_unsupported(
            format!("thread: the context edit `{edit}` cannot be used when thread is set."),
            "context_management",
        )),
    }
}
