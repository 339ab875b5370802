//! Pieces on their way into an anatomy: walked, or taken over from where they were known.

use super::{Remembered, Seen};
use crate::engine::request::anatomy::{Marker, Message, Piece};
use crate::engine::request::prefix::Leaf;

#[derive(Default)]
pub(super) struct FoundPieces {
    pub pieces: Vec<Piece>,
    /// One per piece, if they are wanted.
    pub leaves: Vec<Leaf>,
}

impl FoundPieces {
    /// Room for about as much as an earlier request had.
    pub fn make_room(&mut self, old: &Remembered) {
        self.pieces.reserve(old.anatomy.pieces.len() + 8);
        self.leaves.reserve(old.anatomy.pieces.len() + 8);
    }

    /// Takes over a known piece that is at `start` now, and returns where it ends.
    pub fn take_piece(&mut self, seen: Seen<'_>, index: usize, start: usize) -> usize {
        let piece = seen.pieces[index].moved(seen.pieces[index].span.start, start);
        let end = piece.span.end;
        self.pieces.push(piece);
        self.leaves.push(seen.leaves[index]);
        end
    }

    /// Takes over all pieces of a layer whose value was at `from` and is at `start` now.
    pub fn take_all(&mut self, seen: Seen<'_>, from: usize, start: usize) {
        if from == start {
            self.pieces.extend_from_slice(seen.pieces);
        } else {
            self.pieces.extend(seen.pieces.iter().map(|piece| piece.moved(from, start)));
        }
        self.leaves.extend_from_slice(seen.leaves);
    }

    /// Takes over a message that has lost its marker, if `rest`, which begins at `start`, begins with what is left
    /// of it.
    pub fn take_unmarked(
        &mut self,
        old: &Remembered,
        index: usize,
        start: usize,
        rest: &[u8],
    ) -> Option<Message> {
        let message = old.anatomy.messages.get(index)?;
        let pieces = &old.anatomy.pieces[message.pieces.clone()];
        let mut markers = pieces.iter().filter_map(Piece::marker);
        // Clients move one marker along with the end of a conversation; of several only some may be gone.
        let (Some(Marker { cut, .. }), None) = (markers.next(), markers.next()) else { return None };
        let left = rest.strip_prefix(&old.body[message.span.start..cut.start])?;
        left.starts_with(&old.body[cut.end..message.span.end]).then_some(())?;
        let gone = |at: usize| if at >= cut.end { cut.len() } else { 0 };
        let place = |at: usize| at - gone(at) - message.span.start + start;
        let message_now = message.placed(place, self.pieces.len());
        for piece in pieces {
            self.pieces.push(piece.unmarked_at(place(piece.span.start)));
        }
        self.leaves.extend_from_slice(&old.leaves[message.pieces.clone()]);
        Some(message_now)
    }

    /// Takes over the first `run` messages at once; the first of them is at `start` now.
    pub fn take_run(&mut self, old: &Remembered, run: usize, start: usize) -> Vec<Message> {
        let taken = &old.anatomy.messages[..run];
        let mut messages = Vec::with_capacity(old.anatomy.messages.len() + 4);
        let (Some(first), Some(last)) = (taken.first(), taken.last()) else { return messages };
        let (from, pieces) = (first.span.start, first.pieces.start..last.pieces.end);
        messages.extend(taken.iter().map(|message| {
            message.moved(from, start, self.pieces.len() + message.pieces.start - pieces.start)
        }));
        self.take_all(old.pieces(pieces), from, start);
        messages
    }

    /// Takes over one message, which is at `start` now.
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
