//! Insertions, and the body they make: slices of the received bytes with constants between them.

use bytes::Bytes;

/// One insertion into a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    at: usize,
    insert: Bytes,
}

impl Edit {
    /// Puts bytes in before the byte `at`.
    pub fn inserting(at: usize, insert: Bytes) -> Edit {
        Edit { at, insert }
    }

    /// The byte of the received body before which the insertion goes.
    pub fn at(&self) -> usize {
        self.at
    }

    /// The same insertion at another place.
    pub fn moved(&self, at: usize) -> Edit {
        Edit { at, insert: self.insert.clone() }
    }

    pub fn insert(&self) -> &[u8] {
        &self.insert
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
