//! The summary that a compaction on demand is answered with.

use serde_json::{Value, json};

use super::body::{MessageRole, kind};
use super::rules::compaction;
use super::script::{AnswerBlock, Play, Scene, StopReason};

/// Words of a summary.
const SUMMARY_WORDS: usize = 60;

impl Scene<'_> {
    /// One signed block; nothing if it does not fit into `max_tokens`.
    pub fn summarize(&self) -> Play {
        let content = self.words("summary").prose(SUMMARY_WORDS);
        let changes = self.tool_changes();
        let changes = (!changes.is_empty()).then_some(Value::Array(changes));
        let signature = compaction::sign(self.signer, &content, changes.as_ref());
        let mut block = json!({"type": "compaction", "content": content, "signature": signature});
        if let Some(changes) = changes {
            block["tool_changes"] = changes;
        }
        let mut play = Play {
            blocks: vec![AnswerBlock::Other(block)],
            stop_reason: StopReason::Compaction,
            output_tokens: 0,
            pace_ms: None,
            first_ms: 0,
            is_compaction: true,
        };
        self.stop_at_max_tokens(&mut play);
        play
    }

    /// Tools that came or went in the summarized messages.
    fn tool_changes(&self) -> Vec<Value> {
        let system = self.body.messages.iter().filter(|message| message.role == MessageRole::System);
        let blocks = system.flat_map(|message| message.content.blocks());
        blocks.filter(|block| matches!(kind(block), "tool_addition" | "tool_removal")).cloned().collect()
    }
}
