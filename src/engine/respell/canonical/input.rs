//! The inputs of calls: the model wrote them, clients echo them, some with their keys in another order.

use bytes::Bytes;

use super::Replacement;
use super::respeller::{Respeller, meaning_of};
use super::table::Spellings;
use crate::engine::request::anatomy::Piece;
use crate::engine::request::json::{self, Span};
use crate::engine::request::meaning::is_respelt;

/// More calls than a window holds; the later ones of a hostile body stay as they are.
const CALLS_MAX: usize = 4096;

/// Longer than any id.
const ID_BYTES_MAX: usize = 256;

/// The blocks that echo what the model wrote as input.
const CALLS: [&[u8]; 3] = [b"\"tool_use\"", b"\"server_tool_use\"", b"\"mcp_tool_use\""];

/// Returns true if a piece is a call with an id of a reasonable length.
pub fn is_call(body: &[u8], piece: &Piece) -> bool {
    CALLS.contains(&piece.kind_in(body)) && piece.id().is_some_and(|id| id.len() <= ID_BYTES_MAX)
}

impl Respeller<'_> {
    pub fn inputs(&mut self, pieces: &[Piece]) {
        let body = self.body;
        let calls = pieces.iter().filter(|piece| is_call(body, piece));
        let calls = calls.filter_map(|piece| Some((piece.id()?, piece.input()?)));
        for (id, input) in calls.take(CALLS_MAX) {
            if let Some(id) = json::text(body, &id) {
                self.input(&id, &input);
            }
        }
    }

    /// A stable client pays one look-up and one comparison: a meaning is asked for only when bytes differ.
    fn input(&mut self, id: &str, span: &Span) {
        let raw = &self.body[span.clone()];
        let known = self.known.inputs(id, &mut self.new.used);
        let new = self.new.inputs.get(id).map_or(&[][..], Vec::as_slice);
        if let Some(input) = known.iter().chain(new).find(|input| *input == raw).cloned() {
            return self.choose(id, input);
        }
        let count = known.len() + new.len();
        if count > 0 {
            let inputs: Vec<Bytes> = known.iter().chain(new).cloned().collect();
            let mut first =
                inputs.iter().find(|input| self.input_meaning(input).is_some() && is_respelt(input, raw));
            if first.is_none() {
                let Some(meaning) = meaning_of(raw) else { return };
                first = inputs.iter().find(|input| self.input_meaning(input) == Some(meaning));
            }
            if let Some(first) = first {
                self.replacements.push(Replacement { span: span.clone(), with: vec![first.clone()] });
                return self.choose(id, first.clone());
            }
        }
        if Spellings::room_for_input(count) {
            let input = Bytes::copy_from_slice(raw);
            self.new.add_input(id, input.clone());
            self.choose(id, input);
        }
    }

    fn choose(&mut self, id: &str, input: Bytes) {
        if let Some(chosen) = &mut self.chosen {
            chosen.add_input(id, input);
        }
    }
}
