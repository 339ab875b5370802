//! Pieces on their way into an anatomy: walked, or taken over from where they were known.

use super::{Remembered, Seen};
use crate::engine::anatomy::{Message, Piece};
use crate::engine::prefix::Leaf;

#[derive(Default)]
pub(super) struct Found {
    pub pieces: Vec<Piece>,
    /// One per piece, if they are wanted.
    pub leaves: Vec<Leaf>,
}

impl Found {
    /// Room for about as much as an earlier request had.
    pub fn make_room(&mut self, old: &Remembered) {
        self.pieces.reserve(old.anatomy.pieces.len() + 8);
        self.leaves.reserve(old.anatomy.pieces.len() + 8);
    }

    /// Takes over a known piece that stands at `start` now, and answers where it ends.
    pub fn take_piece(&mut self, seen: Seen<'_>, index: usize, start: usize) -> usize {
        let piece = seen.pieces[index].moved(seen.pieces[index].span.start, start);
        let end = piece.span.end;
        self.pieces.push(piece);
        self.leaves.push(seen.leaves[index]);
        end
    }

    /// The same for all pieces of a layer, whose value stood at `from`.
    pub fn take_all(&mut self, seen: Seen<'_>, from: usize, start: usize) {
        self.pieces.extend(seen.pieces.iter().map(|piece| piece.moved(from, start)));
        self.leaves.extend_from_slice(seen.leaves);
    }

    /// The same for a whole message.
    pub fn take_message(&mut self, old: &Remembered, index: usize, start: usize) -> Message {
        let message = &old.anatomy.messages[index];
        let from = message.span.start;
        let moved = message.moved(from, start, self.pieces.len());
        let pieces = &old.anatomy.pieces[message.pieces.clone()];
        self.pieces.extend(pieces.iter().map(|piece| piece.moved(from, start)));
        self.leaves.extend_from_slice(&old.leaves[message.pieces.clone()]);
        moved
    }
}
