//! Blocks of the one message that is the child's own: their bytes, and where each of them takes a marker.

use std::ops::Range;

use bytes::Bytes;

use crate::engine::cache::breakpoints::room_alone;
use crate::engine::request::anatomy::{Form, Piece};
use crate::engine::request::json::Span;
use crate::engine::request::{marker, strip};
use crate::engine::words::Ttl;

/// Blocks with commas between them and without markers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocks {
    bytes: Bytes,
    list: Vec<LaidBlock>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct LaidBlock {
    span: Span,
    /// The place of a marker, if it can carry one.
    room: Option<usize>,
}

impl Blocks {
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns the bytes, and each block with where a marker goes in it.
    pub fn save(&self) -> (&[u8], Vec<(Span, Option<usize>)>) {
        (&self.bytes[..], self.list.iter().map(|laid| (laid.span.clone(), laid.room)).collect())
    }

    /// Restores blocks that were saved; none if they do not fit their bytes.
    pub fn restore(bytes: Bytes, list: Vec<(Span, Option<usize>)>) -> Option<Blocks> {
        let mut end = 0;
        let is_next = |(span, room): &(Span, Option<usize>)| {
            let follows = span.start >= end && span.start <= span.end && span.end <= bytes.len();
            end = span.end;
            follows && room.is_none_or(|room| span.contains(&room))
        };
        let is_sound = list.iter().all(is_next);
        let list = list.into_iter().map(|(span, room)| LaidBlock { span, room });
        is_sound.then(|| Blocks { bytes, list: list.collect() })
    }

    /// Returns the memory that this takes.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.len() + self.list.len() * size_of::<LaidBlock>()
    }

    /// Returns the number of bytes in the blocks of this range.
    pub fn bytes_of(&self, blocks: Range<usize>) -> u64 {
        self.list.get(blocks).unwrap_or_default().iter().map(|laid| laid.span.len() as u64).sum()
    }

    /// The last block of this range that can carry a marker.
    pub fn last_markable(&self, blocks: Range<usize>) -> Option<usize> {
        blocks.rev().find(|block| self.list.get(*block).is_some_and(|laid| laid.room.is_some()))
    }

    /// Lays the blocks out with a marker on each of `marked`, which are in order and can carry one.
    pub fn append_to(&self, out: &mut Vec<Bytes>, marked: &[usize], ttl: Ttl) {
        let mut from = 0;
        let rooms = marked.iter().filter_map(|block| self.list.get(*block)?.room);
        for at in rooms {
            out.extend([self.bytes.slice(from..at), marker::as_last_member(ttl)]);
            from = at;
        }
        out.push(self.bytes.slice(from..));
    }
}

/// Blocks in the making.
#[derive(Default)]
pub struct Draft {
    bytes: Vec<u8>,
    list: Vec<LaidBlock>,
}

impl Draft {
    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn block(&mut self, block: &[u8]) {
        if !self.list.is_empty() {
            self.bytes.push(b',');
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(block);
        let room = room_alone(block).map(|at| start + at);
        self.list.push(LaidBlock { span: start..self.bytes.len(), room });
    }

    /// A text block of a string as it is spelt.
    pub fn text(&mut self, string: &[u8]) {
        self.block(&[&br#"{"type":"text","text":"#[..], string, b"}"].concat());
    }

    /// Adds a piece of a request, less its markers; a string becomes a text block.
    pub fn piece(&mut self, body: &[u8], piece: &Piece) {
        match piece.form {
            Form::Text => self.text(&body[piece.span.clone()]),
            _ => {
                let mut block = Vec::with_capacity(piece.span.len());
                strip::copied(&mut block, body, piece);
                self.block(&block);
            }
        }
    }

    /// Blocks that were laid before.
    pub fn again(&mut self, blocks: &Blocks, range: Range<usize>) {
        for laid in blocks.list.get(range).unwrap_or_default() {
            self.block(&blocks.bytes[laid.span.clone()]);
        }
    }

    pub fn done(self) -> Blocks {
        Blocks { bytes: self.bytes.into(), list: self.list }
    }
}
