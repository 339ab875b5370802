//! The digest of one piece by itself.

use memchr::memmem;

use super::unmarked;
use crate::engine::request::anatomy::{Anatomy, Form, Piece};
use crate::engine::request::json::{self, Span, is_key, value_end_noting};
use crate::engine::request::marker;
use crate::engine::words::Layer;

/// The digest of one piece by itself: its layer, its form and what the model reads of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Leaf([u8; 32]);

impl Leaf {
    /// One per piece.
    pub fn all(body: &[u8], anatomy: &Anatomy) -> Vec<Leaf> {
        let mut digester = Digester::default();
        let pieces = anatomy.pieces.iter().enumerate();
        pieces.map(|(index, piece)| digester.piece(body, anatomy.layer(index), piece)).collect()
    }

    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Turns pieces into leaves. It gathers the bytes that count in one buffer, because hashing one run of
/// bytes is several times cheaper than hashing it in parts.
#[derive(Default)]
pub(in crate::engine) struct Digester {
    canonical: Vec<u8>,
    members: Vec<DigestMember>,
}

struct DigestMember {
    key: Span,
    value: Span,
    spaced: bool,
}

/// The name of the member that holds the blocks of a result.
pub(super) const CONTENT_KEY: &[u8] = b"\"content\"";

impl Digester {
    fn piece(&mut self, body: &[u8], layer: Layer, piece: &Piece) -> Leaf {
        if piece.form != Form::Block {
            return self.plain(body, layer, piece.form, &piece.span, true);
        }
        let _ = json::walk_object(body, piece.span.start, |key, start| {
            let mut spaced = false;
            let end = value_end_noting(body, start, &mut spaced)?;
            self.member(body, key, start..end, spaced);
            Ok(end)
        });
        self.block(body, layer)
    }

    /// Notes one member of the block that is being walked.
    pub fn member(&mut self, body: &[u8], key: Span, value: Span, spaced: bool) {
        // An escaped spelling of the marker's name is longer than the name.
        let is_marker = match key.len() {
            len if len < marker::KEY.len() => false,
            len if len == marker::KEY.len() => &body[key.clone()] == marker::KEY,
            _ => is_key(body, &key, marker::NAME),
        };
        if !is_marker {
            self.members.push(DigestMember { key, value, spaced });
        }
    }

    /// The leaf of the block whose members were noted: in the order of their names.
    pub fn block(&mut self, body: &[u8], layer: Layer) -> Leaf {
        self.begin(layer, Form::Block);
        self.members.sort_by(|a, b| body[a.key.clone()].cmp(&body[b.key.clone()]));
        for member in self.members.drain(..) {
            let holds_blocks = layer == Layer::Messages && &body[member.key.clone()] == CONTENT_KEY;
            self.canonical.extend_from_slice(&body[member.key]);
            let value = &body[member.value.clone()];
            if holds_blocks && value.starts_with(b"[") && memmem::find(value, marker::KEY).is_some() {
                unmarked::push_blocks(&mut self.canonical, body, member.value.start);
                continue;
            }
            if member.spaced {
                push_compact(&mut self.canonical, value);
            } else {
                self.canonical.extend_from_slice(value);
            }
        }
        self.finish()
    }

    /// The leaf of the block whose members were noted, where it is known otherwise.
    pub fn known(&mut self, leaf: Leaf) -> Leaf {
        self.members.clear();
        leaf
    }

    /// The leaf of a piece that is not a block.
    pub fn plain(&mut self, body: &[u8], layer: Layer, form: Form, span: &Span, spaced: bool) -> Leaf {
        self.begin(layer, form);
        if spaced {
            push_compact(&mut self.canonical, &body[span.clone()]);
        } else {
            self.canonical.extend_from_slice(&body[span.clone()]);
        }
        self.finish()
    }

    fn begin(&mut self, layer: Layer, form: Form) {
        self.canonical.clear();
        self.canonical.push(match layer {
            Layer::Model => b'm',
            Layer::Tools => b't',
            Layer::System => b's',
            Layer::Messages => b'c',
        });
        self.canonical.push(match form {
            Form::Block => b'b',
            Form::Text => b't',
            Form::Other => b'o',
        });
    }

    fn finish(&self) -> Leaf {
        Leaf(*blake3::hash(&self.canonical).as_bytes())
    }
}

/// Appends a value without the white space between its tokens.
pub(super) fn push_compact(out: &mut Vec<u8>, value: &[u8]) {
    let from = out.len();
    if json::compact_into(out, value).is_err() {
        // Only what was walked gets here, so this is never reached; raw bytes are a right answer too.
        out.truncate(from);
        out.extend_from_slice(value);
    }
}
