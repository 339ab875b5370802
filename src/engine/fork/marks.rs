//! The breakpoints of a forked child. This places all but the first, which [`places`] finds.
//!
//! ```text
//! every turn    a the end of the parent's entry, or the next block that can be marked and finds it
//! first turn    b the last placeholder · c before the directive · d the tail
//! later turns   c · the last d · a bridge, if the new d is too far from it · the new d
//! ```
//!
//! Where those are three on a later turn, the fourth is the end of the parent's system prompt.

use std::ops::Range;

use bytes::Bytes;

use super::blocks::Blocks;
use super::layout::Turn;
use super::places;
use crate::engine::cache::breakpoints::{LOOKBACK, room_when_cut};
use crate::engine::request::anatomy::Message;
use crate::engine::request::json::Span;
use crate::engine::request::recall::Remembered;
use crate::engine::request::strip;
use crate::engine::words::Ttl;

/// The messages of a child behind those that its own first message replaces.
pub struct Later<'r> {
    request: &'r Remembered,
    span: Span,
    /// Its pieces, by their numbers in the request.
    pieces: Range<usize>,
}

impl<'r> Later<'r> {
    pub fn of(request: &'r Remembered, skipped: usize) -> Later<'r> {
        let messages = request.anatomy().messages.get(skipped..).unwrap_or_default();
        let (span, pieces) = match messages {
            [] => (0..0, 0..0),
            [first, ..] => {
                let last: &Message = messages.last().unwrap_or(first);
                (first.span.start..last.span.end, first.pieces.start..last.pieces.end)
            }
        };
        Later { request, span, pieces }
    }

    fn len(&self) -> usize {
        self.pieces.len()
    }

    /// Returns the place of a marker in one of its pieces, counted from its first.
    fn room(&self, piece: usize) -> Option<usize> {
        if piece >= self.len() {
            return None;
        }
        room_when_cut(self.request.body(), self.request.anatomy(), self.pieces.start + piece)
    }

    /// The bytes of its pieces.
    pub fn bytes(&self) -> u64 {
        let body = self.request.body();
        let pieces = self.request.anatomy().pieces[self.pieces.clone()].iter();
        pieces.map(|piece| piece.unmarked(body)).map(|(a, b)| (a.len() + b.len()) as u64).sum()
    }

    /// Lays the messages out less their markers, with new ones on the pieces `marked`.
    pub fn append_to(&self, out: &mut Vec<Bytes>, marked: &[usize], ttl: Ttl) {
        if self.span.is_empty() {
            return;
        }
        let (body, anatomy) = (self.request.body(), self.request.anatomy());
        let cuts = strip::cuts(body, anatomy);
        out.push(Bytes::from_static(b","));
        let mut from = self.span.start;
        for (piece, at) in marked.iter().filter_map(|piece| Some((*piece, self.room(*piece)?))) {
            strip::append_unmarked(out, body, from..at, &cuts);
            out.push(places::marker(self.request, self.pieces.start + piece, ttl));
            from = at;
        }
        strip::append_unmarked(out, body, from..self.span.end, &cuts);
    }
}

/// The places that get a marker.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// b.
    pub results: bool,
    /// Blocks of the child's own message.
    pub blocks: Vec<usize>,
    /// Pieces of its later messages.
    pub later: Vec<usize>,
}

impl Marks {
    /// `parent_pieces`: the number of pieces before the blocks. `directive`: the number of its block.
    pub fn plan(
        parent_pieces: usize,
        blocks: &Blocks,
        directive: Option<usize>,
        later: &Later<'_>,
        turn: Turn,
    ) -> Marks {
        let places = MarkablePieces { parent_pieces, blocks, later };
        let end = places.end();
        let before =
            blocks.last_markable(0..directive.unwrap_or(blocks.len())).map(|block| parent_pieces + block);
        let tail = places.last_markable(before.map_or(parent_pieces, |before| before + 1)..end);
        let mut marked: Vec<usize> = before.into_iter().chain(tail).collect();
        if let (Turn::Later(Some(last)), Some(tail)) = (turn, tail) {
            let floor = before.map_or(parent_pieces, |before| before + 1);
            // Where the entry ends or, where that cannot be marked any more, soon after it.
            let found = (last.max(floor)..tail.min(last.saturating_add(LOOKBACK + 1)))
                .find(|piece| last >= floor && places.is_markable(*piece));
            let from = found.unwrap_or(last);
            marked.extend(found);
            if last >= floor && tail > from.saturating_add(LOOKBACK) {
                marked.extend(places.last_markable(from + 1..(from + LOOKBACK + 1).min(tail)));
            }
        }
        marked.sort_unstable();
        let of_blocks = marked
            .iter()
            .filter(|piece| **piece < parent_pieces + blocks.len())
            .map(|piece| piece - parent_pieces);
        let of_later = marked.iter().filter_map(|piece| piece.checked_sub(parent_pieces + blocks.len()));
        Marks { results: turn == Turn::First, blocks: of_blocks.collect(), later: of_later.collect() }
    }

    /// Keeps at most this many places, those nearest to the end.
    pub fn keep(&mut self, most: usize) {
        while self.len() > most {
            if self.results {
                self.results = false;
            } else if !self.blocks.is_empty() {
                self.blocks.remove(0);
            } else {
                self.later.remove(0);
            }
        }
    }

    /// The number of places.
    pub fn len(&self) -> usize {
        usize::from(self.results) + self.blocks.len() + self.later.len()
    }

    /// The pieces that are marked, in order, by their numbers in the body.
    pub fn pieces(&self, parent_pieces: usize, blocks: usize) -> impl Iterator<Item = usize> {
        let results = self.results.then(|| parent_pieces.saturating_sub(1));
        let own = self.blocks.iter().map(move |block| parent_pieces + block);
        results
            .into_iter()
            .chain(own)
            .chain(self.later.iter().map(move |piece| parent_pieces + blocks + piece))
    }
}

/// All that comes after the parent prefix, numbered as in the body.
struct MarkablePieces<'a> {
    parent_pieces: usize,
    blocks: &'a Blocks,
    later: &'a Later<'a>,
}

impl MarkablePieces<'_> {
    fn end(&self) -> usize {
        self.parent_pieces + self.blocks.len() + self.later.len()
    }

    fn is_markable(&self, piece: usize) -> bool {
        let Some(own) = piece.checked_sub(self.parent_pieces) else { return false };
        match own.checked_sub(self.blocks.len()) {
            None => self.blocks.last_markable(own..own + 1).is_some(),
            Some(later) => self.later.room(later).is_some(),
        }
    }

    fn last_markable(&self, pieces: Range<usize>) -> Option<usize> {
        pieces.rev().find(|piece| self.is_markable(*piece))
    }
}
