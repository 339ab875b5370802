//! Whether a request shows an image: one anywhere, or none any more, is another messages layer. And whether it
//! brings files in its own bytes, whose tokens have nothing to do with their length.

use memchr::memmem;

use crate::engine::anatomy::{Anatomy, Form, Piece};
use crate::engine::json::is_key;

const IMAGE: &[u8] = b"\"image\"";
const TYPE: &[u8] = b"\"type\"";
const BASE64: &[u8] = b"\"base64\"";

/// A shorter piece holds too little to matter.
const PAYLOAD_BYTES_MIN: usize = 4 * 1024;

/// The first piece at or after `from` that is an image or holds one. Only messages can.
pub fn first_image(body: &[u8], anatomy: &Anatomy, from: usize) -> Option<usize> {
    let from = from.max(anatomy.tools + anatomy.system);
    let finder = memmem::Finder::new(IMAGE);
    (from..anatomy.pieces.len()).find(|index| shows_image(body, &anatomy.pieces[*index], &finder))
}

/// Whether an image or a document of some size is part of the body.
pub fn has_payload(body: &[u8], anatomy: &Anatomy) -> bool {
    let finder = memmem::Finder::new(BASE64);
    let holds = |piece: &Piece| {
        let is_large = piece.span.len() >= PAYLOAD_BYTES_MIN;
        let kind = piece.kind.as_ref().filter(|_| is_large && piece.form == Form::Block);
        kind.is_some_and(|kind| may_hold_blocks(&body[kind.clone()]))
            && finder.find_iter(&body[piece.span.clone()]).any(|at| is_type(&body[piece.span.clone()], at))
    };
    anatomy.pieces[anatomy.tools + anatomy.system..].iter().any(holds)
}

fn shows_image(body: &[u8], piece: &Piece, finder: &memmem::Finder<'_>) -> bool {
    let Some(kind) = piece.kind.as_ref().filter(|_| piece.form == Form::Block) else { return false };
    if body[kind.start] != b'"' || !may_hold_blocks(&body[kind.clone()]) {
        return false;
    }
    is_key(body, kind, "image") || {
        let block = &body[piece.span.clone()];
        finder.find_iter(block).any(|at| is_type(block, at))
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
