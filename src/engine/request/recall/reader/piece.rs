//! Reading one piece that is not known.

use super::Reader;
use crate::engine::request::anatomy::{Form, Inside, Piece};
use crate::engine::request::images::{has_payload, shows_image};
use crate::engine::request::json::{self, Malformed, Span, is_key, value_end_noting};
use crate::engine::request::marker;
use crate::engine::request::recall::Seen;
use crate::engine::request::recall::found::FoundPieces;
use crate::engine::request::recall::hidden::{has_hidden_marker, nests_markers};
use crate::engine::words::Layer;

impl Reader<'_> {
    /// Reads a value that is not a block, and returns where it ends.
    pub(super) fn plain(
        &mut self,
        layer: Layer,
        start: usize,
        form: Form,
        found: &mut FoundPieces,
    ) -> Result<usize, Malformed> {
        let mut spaced = false;
        let end = value_end_noting(self.body, start, &mut spaced)?;
        if self.known.is_some() {
            found.leaves.push(self.digester.plain(self.body, layer, form, &(start..end), spaced));
        }
        found.pieces.push(Piece::plain(start..end, form));
        Ok(end)
    }

    /// Reads an element of a list of blocks, and returns where it ends. `before`: the known piece that was at its
    /// place.
    pub(super) fn piece(
        &mut self,
        layer: Layer,
        start: usize,
        before: Option<(Seen<'_>, usize)>,
        found: &mut FoundPieces,
    ) -> Result<usize, Malformed> {
        let body = self.body;
        if body.get(start) != Some(&b'{') {
            return self.plain(layer, start, Form::Other, found);
        }
        let mut piece = Piece::plain(start..start, Form::Block);
        self.block(layer, &mut piece)?;
        let end = piece.span.end;
        // The input of a call is data, whatever it looks like.
        let is_call = piece.kind_in(body).ends_with(b"_use\"");
        if layer == Layer::Messages && !is_call {
            self.ambiguous |= has_hidden_marker(body, start, end);
            piece.nests_markers = nests_markers(body, &piece);
            piece.shows_image = shows_image(body, &piece);
            piece.has_payload = has_payload(body, &piece);
        }
        if self.known.is_some() {
            // Clients mark the last block, and take the marker away when another block follows it.
            let leaf = before.and_then(|(seen, index)| seen.leaf_but_for_marker(index, body, &piece));
            found.leaves.push(match leaf {
                Some(leaf) => self.digester.known(leaf),
                None => self.digester.block(body, layer),
            });
        }
        found.pieces.push(piece);
        Ok(end)
    }

    /// Walks the block that `piece` starts with, and fills in its span, its marker and the members that matter.
    fn block(&mut self, layer: Layer, piece: &mut Piece) -> Result<(), Malformed> {
        let (body, start) = (self.body, piece.span.start);
        let marker_at = |cut: Span, value: &Span| -> Result<_, Malformed> {
            Ok(Some([Inside::of(start, &cut)?, Inside::of(start, value)?]))
        };
        let mut previous_end = None;
        // A marker goes with the comma before it. One that comes first goes with the comma after it, so that its cut
        // is known only when the second member is met.
        let mut pending_first = None;
        let end = json::walk_object(body, start, |key, value_start| {
            if let Some(value) = pending_first.take() {
                piece.marker = marker_at(start + 1..key.start, &value)?;
            }
            let mut spaced = false;
            let end = value_end_noting(body, value_start, &mut spaced)?;
            let value = value_start..end;
            if self.known.is_some() {
                self.digester.member(body, key.clone(), value.clone(), spaced);
            }
            if body[key.start + 1..key.end - 1] == *marker::NAME.as_bytes() {
                self.ambiguous |= piece.is_marked();
                piece.is_unusual |= piece.is_marked();
                match previous_end {
                    Some(from) => piece.marker = marker_at(from..end, &value)?,
                    None => pending_first = Some(value),
                }
            } else {
                self.block_member(layer, &key, &value, piece)?;
            }
            previous_end = Some(end);
            Ok(end)
        })?;
        if let Some(value) = pending_first {
            piece.marker = marker_at(start + 1..value.end, &value)?;
        }
        piece.span.end = end;
        Ok(())
    }

    /// Keeps where the value of a member is, if it is one that is asked for later.
    fn block_member(
        &mut self,
        layer: Layer,
        key: &Span,
        value: &Span,
        piece: &mut Piece,
    ) -> Result<(), Malformed> {
        let body = self.body;
        let inside = Inside::of(piece.span.start, value);
        match &body[key.start + 1..key.end - 1] {
            b"type" => {
                piece.is_unusual |= piece.type_name().is_some();
                piece.kind = Some(inside?);
            }
            b"name" => {
                piece.is_unusual |= piece.name.is_some();
                piece.name = Some(inside?);
                piece.kind = piece.kind.or(piece.name);
            }
            b"id" | b"tool_use_id" => piece.id = Some(inside?),
            b"input" => piece.input = Some(inside?),
            b"text" => {
                piece.is_unusual |= piece.text.is_some();
                piece.text = Some(inside?);
            }
            b"defer_loading" => {
                piece.deferred = layer == Layer::Tools && is_on(&body[value.clone()]);
            }
            // The upstream would count a marker that we do not see, and leave out a tool that we count.
            name if name.contains(&b'\\') => {
                let decides = |name: &&str| is_key(body, key, name);
                self.ambiguous |= [marker::NAME, "defer_loading"].iter().any(decides);
                piece.is_unusual = true;
            }
            _ => {}
        }
        Ok(())
    }
}

/// Returns true if the value of a switch turns it on.
fn is_on(value: &[u8]) -> bool {
    !matches!(value, b"false" | b"null")
}
