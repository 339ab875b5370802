//! Markers on blocks inside a block: blocks that may have some, and those that have one whose name is written with
//! escapes, which the upstream would count and a search for the name does not find.

use memchr::memmem;

use crate::engine::request::anatomy::Piece;
use crate::engine::request::json::{self, is_key, value_end};
use crate::engine::request::marker;

/// The start of a letter that is written as an escape.
const ESCAPE: &[u8] = b"\\u00";

/// Returns true if the name of a marker occurs in a block, apart from its own marker. Texts hold no blocks.
pub(super) fn nests_markers(body: &[u8], piece: &Piece) -> bool {
    let kind = piece.kind_in(body);
    let own = usize::from(piece.is_marked());
    !matches!(kind, b"\"text\"" | b"\"thinking\"")
        && memmem::find_iter(&body[piece.span.clone()], marker::KEY).nth(own).is_some()
}

/// The greatest depth of a block in others at which the upstream takes a marker on it: in the content of a document in
/// a result.
const DEPTH_MAX: usize = 8;

/// Returns true if the block at `start..end` hides a marker. Few blocks have an escape that needs a closer look.
pub(super) fn has_hidden_marker(body: &[u8], start: usize, end: usize) -> bool {
    may_be_escaped(&body[start..end]) && hides_marker(body, start, DEPTH_MAX)
}

/// Returns true if a letter of the name may be written as an escape somewhere.
fn may_be_escaped(block: &[u8]) -> bool {
    memmem::find_iter(block, ESCAPE).any(|at| matches!(block.get(at + 4), Some(b'5'..=b'7')))
}

fn hides_marker(body: &[u8], start: usize, depth: usize) -> bool {
    let mut hides = false;
    let inner = |start: usize| {
        let end = value_end(body, start)?;
        Ok((end, depth > 0 && hides_marker(body, start, depth.saturating_sub(1))))
    };
    let _ = match body.get(start) {
        Some(b'{') => json::walk_object(body, start, |key, start| {
            let (end, found) = inner(start)?;
            let is_escaped = body[key.clone()].contains(&b'\\') && is_key(body, &key, marker::NAME);
            hides |= found || is_escaped;
            Ok(end)
        }),
        Some(b'[') => json::walk_array(body, start, |start| {
            let (end, found) = inner(start)?;
            hides |= found;
            Ok(end)
        }),
        _ => return false,
    };
    hides
}
