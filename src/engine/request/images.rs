//! Tells if a request shows an image: one anywhere, or none any more, is another messages layer. And if it
//! brings files in its own bytes, whose tokens have nothing to do with their length.

use memchr::memmem;

use super::anatomy::Piece;
use super::json::is_key;

const TYPE: &[u8] = b"\"type\"";

/// A shorter piece holds too little to matter.
pub const PAYLOAD_BYTES_MIN: usize = 4 * 1024;

/// Returns true if a block of a message is an image or holds one.
pub fn shows_image(body: &[u8], piece: &Piece) -> bool {
    let Some(kind) = piece.kind().filter(|kind| body[kind.start] == b'"') else { return false };
    piece.may_hold_blocks(body)
        && (is_key(body, &kind, "image") || has_type(&body[piece.span.clone()], b"\"image\""))
}

/// Returns true if it brings an image or a document of some size, or a summary: that may be encrypted, and the upstream
/// leaves out what comes before it.
pub fn has_payload(body: &[u8], piece: &Piece) -> bool {
    let Some(kind) = piece.kind() else { return false };
    if piece.span.len() < PAYLOAD_BYTES_MIN {
        return false;
    }
    is_key(body, &kind, "compaction")
        || (piece.may_hold_blocks(body) && has_type(&body[piece.span.clone()], b"\"base64\""))
}

/// Returns true if a member `type` inside has this value.
fn has_type(block: &[u8], value: &[u8]) -> bool {
    memmem::find_iter(block, value).any(|at| is_type(block, at))
}

/// Returns true if the value found at `at` is that of a member `type`. Within a string its quotes would be escaped.
fn is_type(block: &[u8], at: usize) -> bool {
    let before = block[..at].trim_ascii_end();
    let Some(before) = before.strip_suffix(b":") else { return false };
    let key = before.trim_ascii_end().strip_suffix(TYPE);
    key.is_some_and(|before| !before.ends_with(b"\\"))
}
