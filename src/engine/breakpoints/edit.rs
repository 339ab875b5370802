//! Insertions, and the body they make: slices of the received bytes with constants between them.

use bytes::Bytes;

use super::marks::{Carrier, Ttl};

/// One insertion into a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    at: usize,
    insert: Bytes,
}

impl Edit {
    /// A block takes the member after its last one, the body before its first: both have others.
    pub(super) fn new(at: usize, carrier: Carrier, ttl: Ttl) -> Edit {
        let insert = match carrier {
            Carrier::Block => marker(ttl),
            Carrier::TopLevel => Bytes::from_static(&between_members(ttl)[1..]),
        };
        Edit { at, insert }
    }

    /// Something else to be put in, before the byte `at`.
    pub fn inserting(at: usize, insert: Bytes) -> Edit {
        Edit { at, insert }
    }

    /// The byte of the received body before which the insertion goes.
    pub fn at(&self) -> usize {
        self.at
    }

    pub fn insert(&self) -> &[u8] {
        &self.insert
    }
}

/// A marker as the last member of a block.
pub fn marker(ttl: Ttl) -> Bytes {
    let member = between_members(ttl);
    Bytes::from_static(&member[..member.len() - 1])
}

/// A marker with a comma on either side; where it is put only one of them is needed.
fn between_members(ttl: Ttl) -> &'static [u8] {
    match ttl {
        Ttl::FiveMinutes => br#","cache_control":{"type":"ephemeral"},"#,
        Ttl::OneHour => br#","cache_control":{"type":"ephemeral","ttl":"1h"},"#,
    }
}

/// A body as pieces that share the received bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forwarded {
    pub pieces: Vec<Bytes>,
    /// The sum of the pieces.
    pub length: usize,
}

/// The body with its insertions, which come in the order of the body. Without any it is the body itself.
pub fn apply(body: &Bytes, edits: &[Edit]) -> Forwarded {
    let mut pieces = Vec::with_capacity(2 * edits.len() + 1);
    let mut from = 0;
    for edit in edits {
        // Holds for edits of another body too: bytes are never lost or repeated.
        let at = edit.at.clamp(from, body.len());
        pieces.push(body.slice(from..at));
        pieces.push(edit.insert.clone());
        from = at;
    }
    pieces.push(body.slice(from..));
    Forwarded { length: pieces.iter().map(Bytes::len).sum(), pieces }
}
