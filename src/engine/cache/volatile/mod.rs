//! Volatile text: what in system and tool text changes from request to request, and what that costs.
//!
//! A date in a system prompt costs the whole conversation behind it once a day; a clock, once a request. This names
//! such texts, so that somebody can move them behind the last breakpoint: it changes nothing itself. It answers with
//! kinds and places and never with text.
//!
//! Two versions of one piece are compared line by line and then word by word, in linear time, up to a number of bytes
//! ([`COMPARED_BYTES_MAX`]) and with few enough answers to be read ([`CHANGES_MAX`]). What changed is named by its look and, for dates and git, by the words
//! around it.

mod regions;
mod classify;

use super::divergence::{Divergence, compare};
use super::entry::{is_position, prefix_bytes};
use crate::engine::request::anatomy::{Anatomy, Piece};
use crate::engine::request::json::Span;
use crate::engine::request::prefix::Subject;
use crate::engine::words::{DivergenceKind, Layer, VolatileKind};
use regions::{Region, regions};

/// Changes reported for one request: the first ones cost the most, and the rest repeats them.
pub const CHANGES_MAX: usize = 32;

/// The bytes that are compared word by word for one request, in each version. Far more than any system prompt that a
/// person wrote; in others the first changes say enough.
const COMPARED_BYTES_MAX: usize = 128 << 10;

/// Changes of one kind that are at most this many bytes apart are one: a weekday and the day after it.
const MERGE_BYTES: usize = 16;

/// A text that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volatile {
    pub kind: VolatileKind,
    pub layer: Layer,
    /// The path of its piece.
    pub path: String,
    /// The change, in each body; empty where one has nothing.
    pub spans: [Span; 2],
    /// The tokens that are paid again because of it: everything from here to the last breakpoint.
    pub tokens: u64,
}

/// Returns the changes in the tools and the system of the second request since the first, in the order of the cache.
/// `divergence` is where they part, if that was found out before, and `cached_to` the piece of the second that has its last
/// breakpoint.
pub fn volatile(
    first: &Subject<'_>,
    second: &Subject<'_>,
    divergence: Option<&Divergence>,
    cached_to: usize,
    tokens_per_byte: f64,
) -> Vec<Volatile> {
    let cached = prefix_bytes(second.anatomy, cached_to);
    let mut found = Vec::new();
    let mut room = COMPARED_BYTES_MAX;
    for (index, piece) in second.anatomy.pieces.iter().enumerate() {
        let is_over = found.len() >= CHANGES_MAX || room == 0;
        if is_over || second.anatomy.layer(index) == Layer::Messages {
            break;
        }
        let Some(old) = counterpart(first, second, index) else { continue };
        let known = divergence.filter(|known| known.is_of(old, piece)).map(|known| known.kind);
        if !is_changed(first, old, second, piece, known) || !is_position(second.chain, index) {
            continue;
        }
        let before = prefix_bytes(second.anatomy, index);
        let (layer, path) = (second.anatomy.layer(index), second.anatomy.path(index));
        let changed = changes([first.body, second.body], [old, piece], room);
        room = room.saturating_sub(old.span.len().max(piece.span.len()));
        for (kind, spans) in changed {
            let left = piece.span.end.saturating_sub(spans[1].start) as u64;
            let paid = cached.saturating_sub(before.saturating_sub(left));
            let tokens = (paid as f64 * tokens_per_byte) as u64;
            found.push(Volatile { kind, layer, path: path.clone(), spans, tokens });
        }
    }
    found.truncate(CHANGES_MAX);
    found
}

/// The piece at the same path in the first request; of a tool, with the same name.
fn counterpart<'a>(first: &Subject<'a>, second: &Subject<'_>, index: usize) -> Option<&'a Piece> {
    let (one, two): (&Anatomy, &Anatomy) = (first.anatomy, second.anatomy);
    match index.checked_sub(two.tools) {
        None => one.pieces[..one.tools]
            .get(index)
            .filter(|old| old.kind_in(first.body) == two.pieces[index].kind_in(second.body)),
        Some(number) => one.pieces[one.tools..one.tools + one.system].get(number),
    }
}

/// `known`: how they differ, if that was found out before.
fn is_changed(
    first: &Subject<'_>,
    old: &Piece,
    second: &Subject<'_>,
    new: &Piece,
    known: Option<DivergenceKind>,
) -> bool {
    old.form == new.form
        && old.unmarked(first.body) != new.unmarked(second.body)
        && known.unwrap_or_else(|| compare(first, old, second, new)) == DivergenceKind::Meaning
}

/// The changes within one piece, those that belong together as one. `room`: the bytes of each version to compare.
fn changes([one, two]: [&[u8]; 2], [old, new]: [&Piece; 2], room: usize) -> Vec<(VolatileKind, [Span; 2])> {
    let texts = match (old.text(), new.text()) {
        (Some(old), Some(new)) => [old, new],
        _ => [old.span.clone(), new.span.clone()],
    };
    let versions = [&one[texts[0].clone()], &two[texts[1].clone()]];
    let mut found: Vec<(VolatileKind, [Span; 2])> = Vec::new();
    for region in regions(versions, room) {
        let kind = classify::kind(versions, &region);
        let Region { spans, .. } = region;
        let spans =
            [0, 1].map(|side| texts[side].start + spans[side].start..texts[side].start + spans[side].end);
        if is_marker(old, &spans[0]) || is_marker(new, &spans[1]) {
            continue;
        }
        match found.last_mut() {
            Some((last, known)) if *last == kind && is_near(known, &spans) => {
                known[0].end = spans[0].end;
                known[1].end = spans[1].end;
            }
            _ => found.push((kind, spans)),
        }
    }
    found
}

fn is_near(known: &[Span; 2], next: &[Span; 2]) -> bool {
    known.iter().zip(next).all(|(known, next)| next.start.saturating_sub(known.end) <= MERGE_BYTES)
}

/// Returns true if a change is that of a marker, which is not text.
fn is_marker(piece: &Piece, span: &Span) -> bool {
    piece.marker().is_some_and(|marker| span.start < marker.cut.end && marker.cut.start < span.end)
}

#[cfg(test)]
mod tests;
