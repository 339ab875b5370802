//! A request body as the simulator reads it: the JSON tree, and typed views into it.
//!
//! Reading checks shapes (is `messages` a list, is `max_tokens` there) with the API's field errors; what the fields
//! mean together is checked by [`super::rules`]. Nothing is copied: every view borrows from the parsed tree.

use serde_json::{Map, Value};

use super::error::ApiError;
use super::models::{ModelSpec, find};

/// The top-level fields documented today. Others are accepted unless the configuration says otherwise.
const KNOWN_FIELDS: [&str; 28] = [
    "model",
    "messages",
    "max_tokens",
    "system",
    "tools",
    "tool_choice",
    "stream",
    "temperature",
    "top_p",
    "top_k",
    "stop_sequences",
    "metadata",
    "service_tier",
    "thinking",
    "output_config",
    "output_format",
    "context_management",
    "speed",
    "mcp_servers",
    "container",
    "inference_geo",
    "cache_control",
    "diagnostics",
    "betas",
    "thread",
    "compaction",
    "fallbacks",
    "anthropic_version",
];

#[derive(Debug)]
pub struct Body<'a> {
    pub root: &'a Map<String, Value>,
    pub model: &'a ModelSpec,
    /// The name as the client wrote it; answers repeat it.
    pub model_name: &'a str,
    pub tools: &'a [Value],
    pub system: Option<Content<'a>>,
    pub messages: Vec<BodyMessage<'a>>,
    /// Absent only for `count_tokens`.
    pub max_tokens: Option<u64>,
    pub stream: bool,
    /// `compaction` asks for a summary instead of an answer; `count_tokens` ignores it.
    pub asks_summary: bool,
    /// A continue of a thread that brings nothing new: the model goes on with its own answer.
    pub is_resumption: bool,
}

#[derive(Debug, Clone, Copy)]
pub struct BodyMessage<'a> {
    pub role: MessageRole,
    pub content: Content<'a>,
    pub object: &'a Map<String, Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageRole {
    User,
    Assistant,
    System,
}

#[derive(Debug, Clone, Copy)]
pub enum Content<'a> {
    Text(&'a str),
    Blocks(&'a [Value]),
}

impl<'a> Content<'a> {
    pub fn blocks(self) -> &'a [Value] {
        match self {
            Content::Text(_) => &[],
            Content::Blocks(blocks) => blocks,
        }
    }

    /// Every text in it, in order.
    pub fn texts(self) -> impl Iterator<Item = &'a str> {
        let single = match self {
            Content::Text(text) => Some(text),
            Content::Blocks(_) => None,
        };
        let of_blocks = self.blocks().iter().filter(|block| kind(block) == "text");
        single.into_iter().chain(of_blocks.filter_map(|block| text(block, "text")))
    }
}

/// Which endpoint reads the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptEndpoint {
    Messages,
    CountTokens,
}

/// The JSON tree, or the API's words for what is wrong with it. Depth is bounded by the parser.
pub fn parse(bytes: &[u8]) -> Result<Value, ApiError> {
    let value: Value = serde_json::from_slice(bytes).map_err(|error| not_json(bytes, &error))?;
    if value.is_object() { Ok(value) } else { Err(ApiError::invalid("Input should be a valid dictionary")) }
}

fn not_json(bytes: &[u8], error: &serde_json::Error) -> ApiError {
    let line_start: usize = bytes
        .split_inclusive(|&byte| byte == b'\n')
        .take(error.line().saturating_sub(1))
        .map(<[u8]>::len)
        .sum();
    let offset = line_start + error.column().saturating_sub(1);
    let text = error.to_string();
    let reason = match text.split(" at line ").next().unwrap_or_default() {
        lone if lone.contains("surrogate") || lone.contains("hex escape") => "no low surrogate in string",
        deep if deep.contains("recursion") => "maximum recursion depth exceeded",
        other => other,
    };
    let place = format!("line {} column {} (char {offset})", error.line(), error.column());
    ApiError::invalid(format!("The request body is not valid JSON: {reason}: {place}"))
}

impl<'a> Body<'a> {
    pub fn read(
        value: &'a Value,
        models: &'a [ModelSpec],
        endpoint: PromptEndpoint,
        most_messages: usize,
    ) -> Result<Body<'a>, ApiError> {
        let Some(root) = value.as_object() else {
            return Err(ApiError::invalid("Input should be a valid dictionary"));
        };
        let model_name = required(root, "model")?.as_str().ok_or_else(|| wrong("model", "string"))?;
        let messages = read_messages(required(root, "messages")?, most_messages)?;
        let max_tokens = match (endpoint, root.get("max_tokens")) {
            (PromptEndpoint::CountTokens, None) => None,
            (PromptEndpoint::Messages, None) => return Err(missing("max_tokens")),
            (_, Some(value)) => Some(read_max_tokens(value)?),
        };
        let model =
            find(models, model_name).ok_or_else(|| ApiError::new(404, format!("model: {model_name}")))?;
        let tools = match root.get("tools") {
            None | Some(Value::Null) => &[][..],
            Some(value) => value.as_array().ok_or_else(|| wrong("tools", "list"))?.as_slice(),
        };
        let system = match root.get("system") {
            None | Some(Value::Null) => None,
            Some(value) => Some(read_content(value, "system")?),
        };
        let stream = match root.get("stream") {
            None | Some(Value::Null) => false,
            Some(value) => value.as_bool().ok_or_else(|| wrong("stream", "boolean"))?,
        };
        let asks_summary = endpoint == PromptEndpoint::Messages
            && root.get("compaction").is_some_and(|compaction| !compaction.is_null());
        Ok(Body {
            root,
            model,
            model_name,
            tools,
            system,
            messages,
            max_tokens,
            stream,
            asks_summary,
            is_resumption: false,
        })
    }

    pub fn unknown_field(&self) -> Option<&str> {
        self.root.keys().map(String::as_str).find(|key| !KNOWN_FIELDS.contains(key))
    }

    /// A top-level member that is present and not null.
    pub fn member(&self, name: &str) -> Option<&'a Value> {
        self.root.get(name).filter(|value| !value.is_null())
    }

    pub fn thinking(&self) -> ThinkingParameter<'a> {
        match self.member("thinking") {
            None => ThinkingParameter::Unset,
            Some(value) => match text(value, "type").unwrap_or_default() {
                "enabled" => ThinkingParameter::Enabled { budget: value.get("budget_tokens") },
                "disabled" => ThinkingParameter::Disabled,
                _ => ThinkingParameter::Adaptive,
            },
        }
    }

    pub fn tool(&self, name: &str) -> Option<&'a Value> {
        self.tools.iter().find(|tool| text(tool, "name") == Some(name))
    }
}

/// The `thinking` parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ThinkingParameter<'a> {
    Unset,
    Disabled,
    Adaptive,
    /// Manual, with its `budget_tokens` as sent.
    Enabled {
        budget: Option<&'a Value>,
    },
}

fn read_messages(value: &Value, most: usize) -> Result<Vec<BodyMessage<'_>>, ApiError> {
    let list = value.as_array().ok_or_else(|| wrong("messages", "list"))?;
    if list.is_empty() {
        return Err(ApiError::invalid("messages: at least one message is required"));
    }
    if list.len() > most {
        let found = list.len();
        return Err(ApiError::invalid(format!(
            "messages: List should have at most {most} items after validation, not {found}"
        )));
    }
    list.iter().enumerate().map(|(index, message)| read_message(index, message)).collect()
}

fn read_message(index: usize, value: &Value) -> Result<BodyMessage<'_>, ApiError> {
    let path = format!("messages.{index}");
    let object = value
        .as_object()
        .ok_or_else(|| ApiError::invalid(format!("{path}: Input should be a valid dictionary")))?;
    let role = object.get("role").ok_or_else(|| missing(&format!("{path}.role")))?;
    let role = match role.as_str() {
        Some("user") => MessageRole::User,
        Some("assistant") => MessageRole::Assistant,
        Some("system") => MessageRole::System,
        _ => return Err(ApiError::invalid(format!("{path}.role: Input should be 'user' or 'assistant'"))),
    };
    let content = object.get("content").ok_or_else(|| missing(&format!("{path}.content")))?;
    Ok(BodyMessage { role, content: read_content(content, &format!("{path}.content"))?, object })
}

fn read_content<'a>(value: &'a Value, path: &str) -> Result<Content<'a>, ApiError> {
    let blocks = match value {
        Value::String(text) => return Ok(Content::Text(text)),
        Value::Array(blocks) => blocks,
        _ => return Err(wrong(path, "list")),
    };
    for (index, block) in blocks.iter().enumerate() {
        let Some(object) = block.as_object() else {
            return Err(ApiError::invalid(format!("{path}.{index}: Input should be a valid dictionary")));
        };
        match object.get("type").map(Value::as_str) {
            Some(Some("text")) if !object.get("text").is_some_and(Value::is_string) => {
                return Err(missing(&format!("{path}.{index}.text.text")));
            }
            Some(Some(_)) => {}
            Some(None) => return Err(wrong(&format!("{path}.{index}.type"), "string")),
            None => return Err(missing(&format!("{path}.{index}.type"))),
        }
    }
    Ok(Content::Blocks(blocks))
}

fn read_max_tokens(value: &Value) -> Result<u64, ApiError> {
    match (value.as_u64(), value.as_i64()) {
        (Some(tokens), _) => Ok(tokens),
        (None, Some(_)) => Err(ApiError::invalid("max_tokens: Input should be greater than or equal to 0")),
        (None, None) => Err(wrong("max_tokens", "integer")),
    }
}

fn required<'a>(root: &'a Map<String, Value>, name: &str) -> Result<&'a Value, ApiError> {
    root.get(name).ok_or_else(|| missing(name))
}

pub fn missing(path: &str) -> ApiError {
    ApiError::invalid(format!("{path}: Field required"))
}

pub fn wrong(path: &str, kind: &str) -> ApiError {
    ApiError::invalid(format!("{path}: Input should be a valid {kind}"))
}

/// A string member of an object; `None` for anything else.
pub fn text<'a>(value: &'a Value, member: &str) -> Option<&'a str> {
    value.get(member).and_then(Value::as_str)
}

/// A block's `type`.
pub fn kind(block: &Value) -> &str {
    text(block, "type").unwrap_or_default()
}

/// Thinking blocks are the ones that carry signatures and cannot be marked.
pub fn is_thinking(block: &Value) -> bool {
    matches!(kind(block), "thinking" | "redacted_thinking")
}
