//! An answer on the wire: one JSON message, or the same message as a stream of events.
//!
//! ```text
//! message_start · content_block_start · ping · content_block_delta… · content_block_stop · … · message_delta · message_stop
//! ```

use serde_json::{Value, json};

use super::models::BilledUsage;
use super::script::{AnswerBlock, StopReason};

/// Bytes of text or JSON in one delta: a few tokens, as models send them.
const DELTA_BYTES: usize = 40;

/// A finished answer, ready to be written.
#[derive(Debug)]
pub struct FinishedAnswer {
    pub id: String,
    pub model: String,
    pub blocks: Vec<AnswerBlock>,
    pub stop_reason: StopReason,
    pub usage: BilledUsage,
    /// Present if the request asked: what kept it from the cache, or null.
    pub diagnostics: Option<Value>,
    /// Paths of thinking blocks that were dropped on request.
    pub dropped_thinking: Vec<String>,
    pub speed: Option<Value>,
    /// The one entry of `usage.iterations`, for answers that have it.
    pub iteration: Option<Iteration>,
}

/// What a message was billed for, in one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Iteration {
    Message,
    /// Not part of the sums at the top level of `usage`.
    Compaction,
    /// Another model wrote the answer.
    Fallback {
        model: String,
    },
}

/// One event of a stream.
#[derive(Debug)]
pub struct StreamEvent {
    pub name: &'static str,
    pub data: Value,
}

impl StreamEvent {
    pub fn new(name: &'static str, mut data: Value) -> Self {
        if let Some(object) = data.as_object_mut() {
            object.shift_insert(0, "type".to_owned(), Value::String(name.to_owned()));
        }
        StreamEvent { name, data }
    }

    pub fn bytes(&self) -> Vec<u8> {
        format!("event: {}\ndata: {}\n\n", self.name, self.data).into_bytes()
    }
}

impl FinishedAnswer {
    pub fn json(&self) -> Value {
        let mut message = self.message();
        message["content"] = self.content();
        message["stop_reason"] = json!(self.stop_reason.as_str());
        message["stop_sequence"] = self.stop_sequence();
        message["usage"] = self.usage_json(self.billed().output);
        self.add_iterations(&mut message["usage"]);
        message
    }

    /// The blocks as a client sends them back.
    pub fn content(&self) -> Value {
        self.blocks.iter().map(block_json).collect()
    }

    pub fn is_fallback(&self) -> bool {
        matches!(self.iteration, Some(Iteration::Fallback { .. }))
    }

    pub fn events(&self) -> Vec<StreamEvent> {
        let mut message = self.message();
        // At the start only a token or so exists; the final count comes with `message_delta`.
        message["usage"] = self.usage_json(self.billed().output.min(1));
        let mut events = vec![StreamEvent::new("message_start", json!({"message": message}))];
        for (index, block) in self.blocks.iter().enumerate() {
            let opened = json!({"index": index, "content_block": opening(block)});
            events.push(StreamEvent::new("content_block_start", opened));
            if index == 0 {
                events.push(StreamEvent::new("ping", json!({})));
            }
            deltas(block, |delta| {
                events.push(StreamEvent::new("content_block_delta", json!({"index": index, "delta": delta})));
            });
            events.push(StreamEvent::new("content_block_stop", json!({"index": index})));
        }
        let stop = json!({"stop_reason": self.stop_reason.as_str(), "stop_sequence": self.stop_sequence()});
        let billed = self.billed();
        let mut usage = json!({
            "input_tokens": billed.uncached,
            "cache_creation_input_tokens": billed.cache_write(),
            "cache_read_input_tokens": billed.cache_read,
            "output_tokens": billed.output,
        });
        self.add_iterations(&mut usage);
        events.push(StreamEvent::new("message_delta", json!({"delta": stop, "usage": usage})));
        events.push(StreamEvent::new("message_stop", json!({})));
        events
    }

    fn message(&self) -> Value {
        let mut message = json!({
            "model": self.model,
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "content": [],
            "stop_reason": null,
            "stop_sequence": null,
            "usage": null,
        });
        if let Some(diagnostics) = &self.diagnostics {
            message["diagnostics"] = diagnostics.clone();
        }
        if !self.dropped_thinking.is_empty() {
            let dropped = self
                .dropped_thinking
                .iter()
                .map(|path| json!({"type": "thinking_dropped", "path": path, "reason": "prefix_mismatch"}));
            message["input_transformations"] = dropped.collect();
        }
        message
    }

    fn stop_sequence(&self) -> Value {
        match &self.stop_reason {
            StopReason::StopSequence(sequence) => json!(sequence),
            _ => Value::Null,
        }
    }

    /// The sums at the top level of `usage`.
    fn billed(&self) -> BilledUsage {
        match self.iteration {
            Some(Iteration::Compaction) => BilledUsage::default(),
            _ => self.usage,
        }
    }

    fn add_iterations(&self, usage: &mut Value) {
        let Some(iteration) = &self.iteration else { return };
        let mut entry = counts(&self.usage, self.usage.output);
        entry["type"] = match iteration {
            Iteration::Message => json!("message"),
            Iteration::Compaction => json!("compaction"),
            Iteration::Fallback { .. } => json!("fallback_message"),
        };
        if let Iteration::Fallback { model } = iteration {
            entry["model"] = json!(model);
        }
        usage["iterations"] = json!([entry]);
    }

    fn usage_json(&self, output_tokens: u64) -> Value {
        let mut usage = counts(&self.billed(), output_tokens);
        usage["service_tier"] = json!("standard");
        if let Some(speed) = &self.speed {
            usage["speed"] = speed.clone();
        }
        usage
    }
}

fn counts(usage: &BilledUsage, output_tokens: u64) -> Value {
    json!({
        "input_tokens": usage.uncached,
        "cache_creation_input_tokens": usage.cache_write(),
        "cache_read_input_tokens": usage.cache_read,
        "cache_creation": {
            "ephemeral_5m_input_tokens": usage.cache_write_5m,
            "ephemeral_1h_input_tokens": usage.cache_write_1h,
        },
        "output_tokens": output_tokens,
    })
}

fn block_json(block: &AnswerBlock) -> Value {
    match block {
        AnswerBlock::Thinking { text, signature } => {
            json!({"type": "thinking", "thinking": text, "signature": signature})
        }
        AnswerBlock::Text(text) => json!({"type": "text", "text": text}),
        AnswerBlock::ToolUse { id, name, input } => {
            json!({"type": "tool_use", "id": id, "name": name, "input": input})
        }
        AnswerBlock::Other(block) => block.clone(),
    }
}

fn opening(block: &AnswerBlock) -> Value {
    match block {
        AnswerBlock::Thinking { .. } => json!({"type": "thinking", "thinking": "", "signature": ""}),
        AnswerBlock::Text(_) => json!({"type": "text", "text": ""}),
        AnswerBlock::ToolUse { id, name, .. } => {
            json!({"type": "tool_use", "id": id, "name": name, "input": {}})
        }
        AnswerBlock::Other(block) => block.clone(),
    }
}

fn deltas(block: &AnswerBlock, mut emit: impl FnMut(Value)) {
    match block {
        AnswerBlock::Thinking { text, signature } => {
            for piece in pieces(text) {
                emit(json!({"type": "thinking_delta", "thinking": piece}));
            }
            emit(json!({"type": "signature_delta", "signature": signature}));
        }
        AnswerBlock::Text(text) => {
            for piece in pieces(text) {
                emit(json!({"type": "text_delta", "text": piece}));
            }
        }
        AnswerBlock::ToolUse { input, .. } => {
            emit(json!({"type": "input_json_delta", "partial_json": ""}));
            // An input without members streams as nothing at all, which means `{}`.
            let text =
                if input.is_empty() { String::new() } else { Value::Object(input.clone()).to_string() };
            for piece in pieces(&text) {
                emit(json!({"type": "input_json_delta", "partial_json": piece}));
            }
        }
        AnswerBlock::Other(_) => {}
    }
}

/// The text in deltas, cut between characters but anywhere in words, escapes and numbers.
fn pieces(mut text: &str) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        if text.is_empty() {
            return None;
        }
        let (piece, rest) = text.split_at(text.ceil_char_boundary(DELTA_BYTES));
        text = rest;
        Some(piece)
    })
}
