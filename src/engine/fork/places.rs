//! The turn that children go on from, and where the prompt up to it may be marked.

use bytes::Bytes;

use crate::engine::answer::turn::MESSAGE_OPENING;
use crate::engine::cache::breakpoints::{self, Breakpoint, LOOKBACK, room_alone, room_when_cut};
use crate::engine::family::fanout::{Call, ForkPoint};
use crate::engine::request::json::Span;
use crate::engine::request::marker;
use crate::engine::request::recall::Remembered;
use crate::engine::words::Ttl;

/// The turn that children go on from.
pub struct Turn {
    pub message: Bytes,
    pub blocks: usize,
    /// The span of each block in the message.
    spans: Vec<Span>,
    pub calls: Vec<Call>,
}

impl Turn {
    pub fn of(fork: &ForkPoint, own_call: Option<usize>) -> Option<Turn> {
        let (message, blocks) = match &fork.message {
            Some(message) => (message.clone(), fork.blocks.len()),
            None => (fork.up_to(own_call?)?, fork.calls.get(own_call?)?.block + 1),
        };
        let mut from = MESSAGE_OPENING.len();
        let spans = fork.blocks.iter().take(blocks).map(|block| {
            let span = from..from + block.len();
            from = span.end + 1;
            span
        });
        let spans = spans.collect();
        let calls = fork.calls.iter().filter(|call| call.block < blocks).cloned().collect();
        Some(Turn { message, blocks, spans, calls })
    }
}

/// A place where a marker may be inserted.
pub struct Place {
    pub piece: usize,
    /// In the parent's body or, for a piece of its turn, in that message.
    pub at: usize,
    pub in_turn: bool,
}

/// The place of breakpoint a: the block where the parent's entry ends or, where that cannot be marked, the next that can
/// and still finds it. If no entry is known, the parent's last block, so that its next turn finds one.
pub fn entry_place(request: &Remembered, turn: &Turn, written: Option<usize>) -> Option<Place> {
    let (body, anatomy) = (request.body(), request.anatomy());
    let own =
        |piece: usize| room_when_cut(body, anatomy, piece).map(|at| Place { piece, at, in_turn: false });
    let Some(written) = written else {
        let first = anatomy.tools + anatomy.system;
        return (first..anatomy.pieces.len()).rev().find_map(own);
    };
    let in_turn = |piece: usize| {
        let span = turn.spans.get(piece - anatomy.pieces.len())?;
        let at = room_alone(turn.message.get(span.clone())?)?;
        Some(Place { piece, at: span.start + at, in_turn: true })
    };
    (written..=written.saturating_add(LOOKBACK))
        .find_map(|piece| if piece < anatomy.pieces.len() { own(piece) } else { in_turn(piece) })
}

/// The end of the system prompt, or of the tools where none of that can be marked.
pub fn fixed_place(request: &Remembered) -> Option<Place> {
    let (body, anatomy) = (request.body(), request.anatomy());
    let place = |piece| Some(Place { piece, at: room_when_cut(body, anatomy, piece)?, in_turn: false });
    (0..anatomy.tools + anatomy.system).rev().find_map(place)
}

/// The marker of this lifetime for a piece, to be put behind its last member: the one that the client has put there, whole,
/// since it may say more than we know.
pub fn marker(request: &Remembered, piece: usize, ttl: Ttl) -> Bytes {
    let (body, anatomy) = (request.body(), request.anatomy());
    let mut marked = breakpoints::of_client(body, anatomy).into_iter();
    let is_same = |point: Breakpoint| point.piece == piece && point.ttl == ttl;
    let own = anatomy.pieces.get(piece).and_then(|piece| piece.marker());
    match own {
        Some(own) if marked.any(is_same) => [marker::AFTER_MEMBER, &body[own.value]].concat().into(),
        _ => marker::as_last_member(ttl),
    }
}

/// The lifetime of an entry that a parent has at this piece, never shorter than that of its last one: those of its
/// children may follow.
pub fn tier(parent: &Remembered, piece: usize, last: Ttl) -> Ttl {
    let own = breakpoints::of_client(parent.body(), parent.anatomy());
    let is_hour = |point: &Breakpoint| point.ttl == Ttl::OneHour && point.piece >= piece;
    if own.iter().any(is_hour) { Ttl::OneHour } else { last }
}
