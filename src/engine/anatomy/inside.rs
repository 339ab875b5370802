//! What a piece holds deep inside. It is found by searching bytes, once, when the piece is walked: a piece that comes
//! again brings it along.

use memchr::memmem;

use super::{Form, Layer, Piece};
use crate::engine::json::{self, is_key};

/// What was found inside a piece.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inside {
    /// The name of a marker, perhaps on a block within this one; its own marker aside.
    pub marker: bool,
    /// It is an image, or holds one. Only messages can.
    pub image: bool,
    /// It is a tool whose loading is deferred.
    pub deferred: bool,
}

const MARKER: &[u8] = b"\"cache_control\"";
const IMAGE: &[u8] = b"\"image\"";
const TYPE: &[u8] = b"\"type\"";
const DEFERRED: &[u8] = b"\"defer_loading\"";

impl Inside {
    pub fn of(body: &[u8], layer: Layer, piece: &Piece) -> Inside {
        match layer {
            _ if piece.form != Form::Block => Inside::default(),
            Layer::Tools => Inside { deferred: is_deferred(body, piece), ..Inside::default() },
            Layer::Messages => Inside {
                marker: can_nest(body, piece) && names_marker(body, piece),
                image: shows_image(body, piece),
                deferred: false,
            },
            Layer::Model | Layer::System => Inside::default(),
        }
    }
}

/// Whether a block holds blocks that may carry markers of their own. What a call brings is data.
fn can_nest(body: &[u8], piece: &Piece) -> bool {
    let kind = piece.kind.as_ref().map_or(&b""[..], |kind| &body[kind.clone()]);
    !matches!(kind, b"\"text\"" | b"\"thinking\"") && !kind.ends_with(b"_use\"")
}

fn names_marker(body: &[u8], piece: &Piece) -> bool {
    let (before, after) = piece.unmarked(body);
    [before, after].iter().any(|part| memmem::find(part, MARKER).is_some())
}

fn shows_image(body: &[u8], piece: &Piece) -> bool {
    let Some(kind) = &piece.kind else { return false };
    if body[kind.start] != b'"' || !may_hold_blocks(&body[kind.clone()]) {
        return false;
    }
    is_key(body, kind, "image") || {
        let block = &body[piece.span.clone()];
        memmem::find_iter(block, IMAGE).any(|at| is_type(block, at))
    }
}

/// What people and models write is no block, and what a call brings is data.
fn may_hold_blocks(kind: &[u8]) -> bool {
    !matches!(kind, b"\"text\"" | b"\"thinking\"" | b"\"redacted_thinking\"") && !kind.ends_with(b"_use\"")
}

/// Whether what was found at `at` is the value of a member `type`. Within a string its quotes would be escaped.
fn is_type(block: &[u8], at: usize) -> bool {
    let before = block[..at].trim_ascii_end();
    let Some(before) = before.strip_suffix(b":") else { return false };
    let key = before.trim_ascii_end().strip_suffix(TYPE);
    key.is_some_and(|before| !before.ends_with(b"\\"))
}

/// Most tools do not name the member at all, and searching for it is far cheaper than a walk.
fn is_deferred(body: &[u8], tool: &Piece) -> bool {
    if memmem::find(&body[tool.span.clone()], DEFERRED).is_none() {
        return false;
    }
    let value = json::member(body, tool.span.start, "defer_loading");
    value.is_some_and(|value| !matches!(&body[value], b"false" | b"null"))
}
