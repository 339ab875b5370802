//! Reading a request by what is known already.
//!
//! A conversation resends its history on every turn: of 200 KB perhaps 2 KB are new. Walking and hashing the
//! rest again would be nearly the whole cost of the proxy, so what was read once is remembered, compared, and
//! taken over.
//!
//! The rule: the result is always what [`Anatomy::read`] and [`Chain::of`] say about the body. What is known
//! only saves work, and wrong or unrelated knowledge saves none.
//!
//! ```
//! use std::sync::Arc;
//! use forkpoint::engine::request::prefix::Attribution;
//! use forkpoint::engine::request::recall::{Known, Nothing, Remembered};
//!
//! struct Last(Arc<Remembered>);
//! impl Known for Last {
//!     fn hinted(&self) -> Option<Arc<Remembered>> {
//!         Some(Arc::clone(&self.0))
//!     }
//! }
//!
//! let read = |body: &'static str, known: &dyn Known| Remembered::read(body.into(), known, Attribution::Counted);
//! let first = read(r#"{"messages":[{"role":"user","content":"a"}]}"#, &Nothing).unwrap();
//! let longer = r#"{"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}"#;
//! let second = read(longer, &Last(Arc::new(first))).unwrap();
//! assert_eq!(&second, &read(longer, &Nothing).unwrap());
//! ```

mod choose;
mod found;
mod hidden;
mod known;
mod messages;
mod opening;
mod parts;
mod place;
mod reader;
mod shared_parts;

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;

pub use choose::CANDIDATES_MAX;
pub use known::{Known, Last, Nothing};
pub use opening::{FirstAnswer, Opening};
pub use parts::{InParts, Shared};
pub(in crate::engine) use reader::Reader;
pub use shared_parts::{Like, SharedParts};

use super::anatomy::{Anatomy, Form, Member, Message, Piece};
use super::json::{self, Malformed};
use super::prefix::{self, Attribution, Chain, DigestedRequest, Leaf, Subject};
use crate::engine::words::{BodyDigest, Layer};

/// A request that was read, with all that helps to read the next one.
///
/// The parts belong together, so they can be looked at and not changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered {
    body: Bytes,
    reading: Arc<Reading>,
}

/// Everything that was read of a request, without its bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct Reading {
    anatomy: Anatomy,
    chain: Chain,
    leaves: Vec<Leaf>,
    opening: Option<Opening>,
    attribution: Attribution,
}

impl Deref for Remembered {
    type Target = Reading;

    fn deref(&self) -> &Reading {
        &self.reading
    }
}

impl Reading {
    pub fn anatomy(&self) -> &Anatomy {
        &self.anatomy
    }

    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    /// Returns the treatment of the attribution line that the upstream was taken to give it.
    pub fn attribution(&self) -> Attribution {
        self.attribution
    }

    /// Returns the number of leading pieces of the other that both have in common, as the cache compares them.
    pub fn shared_pieces(&self, other: &Reading) -> usize {
        self.chain.shared(&other.chain)[1]
    }

    /// Returns this request for a comparison that does not look at bytes.
    pub fn without_bytes(&self) -> Subject<'_> {
        Subject { body: &[], anatomy: &self.anatomy, chain: &self.chain }
    }

    /// The key to find this request by, if it has a first message.
    pub fn opening(&self) -> Option<Opening> {
        self.opening
    }

    /// About how much memory this takes.
    pub fn memory_bytes(&self) -> usize {
        let extra: usize = self.anatomy.messages.iter().map(|message| message.extra.len()).sum();
        size_of::<Reading>()
            + self.anatomy.pieces.len() * (size_of::<Piece>() + 2 * size_of::<Leaf>())
            + self.anatomy.messages.len() * size_of::<Message>()
            + (self.anatomy.members.len() + extra) * size_of::<Member>()
    }

    /// In an ambiguous request a part may be read otherwise than it would be elsewhere.
    fn is_usable(&self) -> bool {
        !self.anatomy.ambiguous
    }
}

impl Remembered {
    /// Reads a request; equal to the full computation, whatever is known.
    pub fn read(body: Bytes, known: &dyn Known, attribution: Attribution) -> Result<Remembered, Malformed> {
        Remembered::recall(body, known, attribution).map(|(request, _)| request)
    }

    /// Reads a request, and returns it with the known request that it was compared with.
    pub fn recall(
        body: Bytes,
        known: &dyn Known,
        attribution: Attribution,
    ) -> Result<(Remembered, Option<Like>), Malformed> {
        let read = Reader::with_leaves(&body, known).read()?;
        let before = read.predecessor.as_ref().filter(|old| old.request.attribution == attribution);
        let before = before.map(|Like { request, same }| prefix::LinkedRequest {
            subject: request.subject(),
            chain: &request.chain,
            same: *same,
        });
        let subject = DigestedRequest { body: &body, anatomy: &read.anatomy, leaves: &read.leaves };
        let chain = Chain::linked(&subject, attribution, before.as_ref());
        let (anatomy, leaves, opening) = (read.anatomy, read.leaves, read.opening);
        let reading = Arc::new(Reading { anatomy, chain, leaves, opening, attribution });
        Ok((Remembered { body, reading }, read.predecessor))
    }

    /// Reads this request as it is in other bytes.
    pub fn reread(self: &Arc<Self>, body: Bytes) -> Result<Remembered, Malformed> {
        Remembered::read(body, &Last { request: self, repeated: SharedParts::default() }, self.attribution)
    }

    /// Returns the request with other hashes from this piece on: as if it had come in an unknown spelling.
    pub fn astray(&self, from: usize) -> Remembered {
        let Reading { anatomy, chain, leaves, opening, attribution } = &*self.reading;
        let (anatomy, leaves) = (anatomy.clone(), leaves.clone());
        let reading = Reading {
            anatomy,
            chain: chain.astray(from),
            leaves,
            opening: *opening,
            attribution: *attribution,
        };
        Remembered { body: self.body.clone(), reading: Arc::new(reading) }
    }

    /// Returns true if both open alike and were answered alike at first, as far as both were answered. Conversations
    /// that start with the same words differ in their first answer.
    pub fn starts_like(&self, other: &Remembered) -> bool {
        self.opening.is_some()
            && self.opening == other.opening
            && match (self.first_answer(), other.first_answer()) {
                (Some(one), Some(two)) => one.leaves == two.leaves || one.says(&two),
                _ => true,
            }
    }

    /// Returns true if the model said anything in it, or if a summary replaces what it said.
    pub fn is_answered(&self) -> bool {
        self.first_answer().is_some() || self.summary().is_some()
    }

    /// The block of a compaction that the conversation begins with, in place of all that was said before. The API takes
    /// it nowhere else.
    pub fn summary(&self) -> Option<&Piece> {
        let first = self.anatomy.messages.first()?.pieces.clone().next()?;
        let piece = self.anatomy.pieces.get(first)?;
        (piece.kind_in(&self.body) == b"\"compaction\"").then_some(piece)
    }

    /// The key that differs between conversations that open alike, once the model said anything in them.
    pub fn answer_key(&self) -> Option<FirstAnswer> {
        self.first_answer().map(|answer| FirstAnswer::of(&answer))
    }

    /// Returns true if the first answers of both are equal in every word: then so are their keys.
    pub fn is_answered_like(&self, other: &Remembered) -> bool {
        let answers = self.first_answer().zip(other.first_answer());
        answers.is_some_and(|(one, two)| one.leaves == two.leaves && !one.leaves.is_empty())
    }

    /// The first assistant turn.
    fn first_answer(&self) -> Option<Seen<'_>> {
        let mut messages = self.anatomy.messages.iter();
        let answer = messages.find(|message| message.has_role(&self.body, "assistant"))?;
        Some(self.pieces(answer.pieces.clone()))
    }

    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// Everything that was read of it, to be kept without its bytes.
    pub(in crate::engine) fn reading(&self) -> &Arc<Reading> {
        &self.reading
    }

    /// Names the request without a walk over its bytes: by its prompt, its other members, its markers and its length.
    /// Equal bytes have equal names, and so have spellings of one length that say the same.
    pub fn digest(&self) -> BodyDigest {
        let is_layer = |member: &&Member| {
            matches!(&self.body[member.key.clone()], b"\"tools\"" | b"\"system\"" | b"\"messages\"")
        };
        let others = self.anatomy.members.iter().filter(|member| !is_layer(member));
        let mut name = Vec::with_capacity(512);
        name.extend_from_slice(self.chain.tip().as_bytes());
        name.extend_from_slice(&self.body.len().to_le_bytes());
        for member in others {
            name.extend_from_slice(&self.body[member.key.start..member.value.end]);
        }
        for (index, _) in self.anatomy.pieces.iter().enumerate().filter(|(_, piece)| piece.is_marked()) {
            name.extend_from_slice(&index.to_le_bytes());
        }
        BodyDigest::of(&name)
    }

    /// This request, to be compared with another.
    pub fn as_subject(&self) -> Subject<'_> {
        Subject { body: &self.body, anatomy: &self.anatomy, chain: &self.chain }
    }

    /// The digest of each piece, by its number.
    pub(in crate::engine) fn leaves(&self) -> &[Leaf] {
        &self.reading.leaves
    }

    /// The value of `tools` or `system`, to be known apart from this request.
    pub fn layer(&self, layer: Layer) -> Option<KnownLayer> {
        if !self.is_usable() {
            return None;
        }
        let (value, seen) = self.seen(layer)?;
        let start = self.anatomy.member(&self.body, layer.as_str())?.start;
        let pieces = seen.pieces.iter().map(|piece| piece.moved(start, 0)).collect();
        let value = Bytes::copy_from_slice(value);
        Some(KnownLayer { layer, value, pieces, leaves: seen.leaves.to_vec() })
    }

    /// About how much memory this takes, the body included.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Remembered>() + body_bytes(self.body.len()) + self.reading.memory_bytes()
    }

    fn subject(&self) -> DigestedRequest<'_> {
        DigestedRequest { body: &self.body, anatomy: &self.anatomy, leaves: &self.leaves }
    }

    /// The value of `tools` or `system`, and its pieces.
    fn seen(&self, layer: Layer) -> Option<(&[u8], Seen<'_>)> {
        let Anatomy { tools, system, .. } = self.anatomy;
        let range = match layer {
            Layer::Tools => 0..tools,
            Layer::System => tools..tools + system,
            Layer::Model | Layer::Messages => return None,
        };
        let value = self.anatomy.member(&self.body, layer.as_str())?;
        Some((&self.body[value.clone()], self.pieces(range)))
    }

    /// The pieces of one message.
    fn message(&self, index: usize) -> Option<Seen<'_>> {
        self.anatomy.messages.get(index).map(|message| self.pieces(message.pieces.clone()))
    }

    fn message_bytes(&self, index: usize) -> Option<&[u8]> {
        self.anatomy.messages.get(index).map(|message| &self.body[message.span.clone()])
    }

    /// Returns how many messages, from the first on, `rest` begins with, the bytes between them included.
    fn run_at(&self, rest: &[u8]) -> usize {
        let messages = &self.anatomy.messages;
        let (Some(first), Some(last)) = (messages.first(), messages.last()) else { return 0 };
        let start = first.span.start;
        let shared = choose::shared(&self.body[start..last.span.end], rest);
        messages.partition_point(|message| message.span.end - start <= shared)
    }

    /// From the second message to the end of the last.
    fn later_messages(&self) -> &[u8] {
        match &self.anatomy.messages[..] {
            [_, second, ..] => {
                let end = self.anatomy.messages.last().map_or(second.span.end, |last| last.span.end);
                &self.body[second.span.start..end]
            }
            _ => &[],
        }
    }

    fn pieces(&self, range: std::ops::Range<usize>) -> Seen<'_> {
        Seen { body: &self.body, pieces: &self.anatomy.pieces[range.clone()], leaves: &self.leaves[range] }
    }
}

/// Memory for a body that is longer than two of these comes in steps of this size.
const STEP_BYTES: usize = 64 << 10;

/// Returns the memory that a body of this length takes.
fn body_bytes(length: usize) -> usize {
    if length > 2 * STEP_BYTES { length.next_multiple_of(STEP_BYTES) } else { length }
}

/// A value of `tools` or `system` that was read before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownLayer {
    layer: Layer,
    value: Bytes,
    pieces: Vec<Piece>,
    leaves: Vec<Leaf>,
}

impl KnownLayer {
    pub fn value(&self) -> &Bytes {
        &self.value
    }

    /// About how much memory this takes.
    pub fn memory_bytes(&self) -> usize {
        let piece = size_of::<Piece>() + size_of::<Leaf>();
        size_of::<KnownLayer>() + self.value.len() + self.pieces.len() * piece
    }

    fn seen(&self) -> Seen<'_> {
        Seen { body: &self.value, pieces: &self.pieces, leaves: &self.leaves }
    }
}

/// A known value that a layer is compared with.
enum LayerSource {
    Request(Arc<Remembered>),
    Layer(Arc<KnownLayer>),
}

impl LayerSource {
    /// Returns a value, its offset in the body that its pieces refer to, and the pieces.
    fn layer(&self, layer: Layer) -> Option<(&[u8], usize, Seen<'_>)> {
        match self {
            LayerSource::Request(request) => {
                let start = request.anatomy.member(&request.body, layer.as_str())?.start;
                request.seen(layer).map(|(value, seen)| (value, start, seen))
            }
            LayerSource::Layer(known) => Some((&known.value, 0, known.seen())),
        }
    }
}

/// Known pieces, the body that they are in, and their digests.
#[derive(Clone, Copy)]
struct Seen<'k> {
    body: &'k [u8],
    pieces: &'k [Piece],
    leaves: &'k [Leaf],
}

impl<'k> Seen<'k> {
    fn bytes(&self, index: usize, form: Form) -> Option<&'k [u8]> {
        let piece = self.pieces.get(index).filter(|piece| piece.form == form)?;
        Some(&self.body[piece.span.clone()])
    }

    /// The leaf of a piece that is this one, byte for byte, but for the marker that one of them has.
    fn leaf_but_for_marker(&self, index: usize, body: &[u8], piece: &Piece) -> Option<Leaf> {
        let old = self.pieces.get(index).filter(|old| old.form == Form::Block)?;
        let ((head, tail), (old_head, old_tail)) = (piece.unmarked(body), old.unmarked(self.body));
        let same = match (piece.is_marked(), old.is_marked()) {
            (false, true) => head.strip_prefix(old_head) == Some(old_tail),
            (true, false) => old_head.strip_prefix(head) == Some(tail),
            _ => false,
        };
        if same { self.leaves.get(index).copied() } else { None }
    }

    /// Returns true if both are one answer in two spellings: the same calls, by their ids, and the same texts.
    fn says(&self, other: &Seen<'_>) -> bool {
        let same = |(one, two): (&Piece, &Piece)| {
            one.kind_in(self.body) == two.kind_in(other.body) && said(self.body, one) == said(other.body, two)
        };
        self.pieces.len() == other.pieces.len() && self.pieces.iter().zip(other.pieces).all(same)
    }
}

/// Returns the text or the id by which blocks of answers differ, whatever their spelling.
fn said<'b>(body: &'b [u8], piece: &Piece) -> Option<Cow<'b, str>> {
    let span = match (piece.form, piece.id(), piece.text()) {
        (Form::Text, _, _) => piece.span.clone(),
        (_, Some(span), _) | (_, None, Some(span)) => span,
        _ => return None,
    };
    json::text(body, &span)
}

#[cfg(test)]
mod tests;
