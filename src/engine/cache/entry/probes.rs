//! Where the upstream looks for an entry: at each breakpoint and at a few positions before it.
//!
//! A position is a piece that the model reads. A tool whose loading is deferred is not one, and neither is an
//! attribution line that the upstream strips.

use crate::engine::cache::breakpoints::{Breakpoint, LOOKBACK};
use crate::engine::request::anatomy::{Anatomy, Piece};
use crate::engine::request::prefix::Chain;
use crate::engine::words::Ttl;

/// The number of positions that are looked at per breakpoint; the breakpoint itself is the first.
pub const LOOKBACK_POSITIONS: usize = LOOKBACK + 1;

/// One position that is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    pub piece: usize,
    /// Of the prompt up to and including this piece.
    pub bytes: u64,
    /// The lifetime that a breakpoint here asks for.
    pub marker: Option<Ttl>,
}

/// The positions that are looked at, the deepest first, each once.
#[derive(Clone, Debug)]
pub struct Probes<'a> {
    anatomy: &'a Anatomy,
    chain: &'a Chain,
    /// In the order of the cache; what is left of them.
    breakpoints: &'a [Breakpoint],
    /// The piece to come, plus one.
    next: usize,
    /// Of the prompt up to and including the piece to come.
    bytes: u64,
    /// The number of positions that the breakpoints seen so far still reach.
    reach: usize,
}

impl<'a> Probes<'a> {
    /// `breakpoints` come in the order of the cache.
    pub fn of(anatomy: &'a Anatomy, chain: &'a Chain, breakpoints: &'a [Breakpoint]) -> Probes<'a> {
        let count = anatomy.pieces.len();
        let next = breakpoints.last().map_or(0, |last| last.piece.saturating_add(1)).min(count);
        let bytes = next.checked_sub(1).map_or(0, |last| prefix_bytes(anatomy, last));
        Probes { anatomy, chain, breakpoints, next, bytes, reach: 0 }
    }

    /// Leaves out the pieces behind this one, which no breakpoint reaches.
    fn skip_to(&mut self, piece: usize) {
        let next = self.next.min(piece.saturating_add(1));
        self.bytes -= self.anatomy.pieces[next..self.next].iter().map(Piece::prompt_bytes).sum::<u64>();
        self.next = next;
    }

    /// The breakpoint on this piece, if there is one. Several markers can end up on one piece.
    fn marker(&mut self, piece: usize) -> Option<Ttl> {
        let mut marker = None;
        while let Some((last, rest)) = self.breakpoints.split_last()
            && last.piece >= piece
        {
            self.breakpoints = rest;
            marker = (last.piece == piece).then_some(last.ttl).or(marker);
        }
        marker
    }
}

impl Iterator for Probes<'_> {
    type Item = Probe;

    fn next(&mut self) -> Option<Probe> {
        loop {
            if self.reach == 0 {
                self.skip_to(self.breakpoints.last()?.piece);
            }
            let piece = self.next.checked_sub(1)?;
            let bytes = self.bytes;
            self.next = piece;
            self.bytes -= self.anatomy.pieces[piece].prompt_bytes();
            let marker = self.marker(piece);
            if marker.is_some() {
                self.reach = LOOKBACK_POSITIONS;
            }
            if self.reach > 0 && (marker.is_some() || is_position(self.chain, piece)) {
                self.reach -= 1;
                return Some(Probe { piece, bytes, marker });
            }
        }
    }
}

/// Returns true if an entry can end at this piece.
pub fn is_position(chain: &Chain, piece: usize) -> bool {
    // Only what adds nothing to the prompt leaves the hash as it was.
    let before = piece.checked_sub(1).map_or(Some(&chain.model), |before| chain.pieces.get(before));
    before != chain.pieces.get(piece)
}

/// The bytes of the prompt up to and including a piece, markers left out.
pub fn prefix_bytes(anatomy: &Anatomy, piece: usize) -> u64 {
    anatomy.pieces.iter().take(piece.saturating_add(1)).map(Piece::prompt_bytes).sum()
}
