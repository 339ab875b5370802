//! Signs in an answer that a fork went wrong.

use std::collections::BTreeSet;

use super::words;
use crate::engine::answer::turn::{Block, Turn, Wholeness};
use crate::engine::request::json;
use crate::engine::request::recall::Remembered;

/// Returns true if a finished answer says nothing: no text, and no call of anything.
pub fn is_empty(turn: &Turn) -> bool {
    let pauses = turn.stop_reason.as_deref() == Some("pause_turn");
    turn.wholeness == Wholeness::Whole && !pauses && turn.blocks.iter().all(is_silent)
}

/// Returns the number of calls of tools that the child did not bring: its parent's, which the client may not run for
/// it. A child that brought no tools has been given its parent's.
pub fn foreign_calls(child: &Remembered, blocks: &[Block]) -> u64 {
    let own: BTreeSet<_> = words::tool_names(child).into_iter().collect();
    if own.is_empty() {
        return 0;
    }
    let is_foreign = |block: &&Block| {
        let member = |name: &str| json::member(&block.json, 0, name);
        let name = member("name").and_then(|name| json::text(&block.json, &name));
        // The tools of a set are not named in the request.
        block.kind == "tool_use"
            && member("toolset_name").is_none()
            && name.is_some_and(|name| !own.contains(&name))
    };
    blocks.iter().filter(is_foreign).count() as u64
}

/// Returns the number of new results in a request that report a failure.
pub fn tool_errors(request: &Remembered) -> u64 {
    let (body, anatomy) = (request.body(), request.anatomy());
    let messages = anatomy.messages.iter().rev();
    let new = messages.take_while(|message| !message.has_role(body, "assistant"));
    let pieces = new.flat_map(|message| &anatomy.pieces[message.pieces.clone()]);
    let failed = pieces.filter(|piece| {
        let is_result = piece.kind_in(body) == b"\"tool_result\"";
        let told = || json::member(body, piece.span.start, "is_error");
        is_result && told().is_some_and(|told| &body[told] == b"true")
    });
    failed.count() as u64
}

/// Thinking, or a text of nothing. What we do not know may say something.
fn is_silent(block: &Block) -> bool {
    match block.kind.as_str() {
        "thinking" | "redacted_thinking" => true,
        _ => block.is_blank_text(),
    }
}
