//! The inputs of calls: the model wrote them, clients echo them, some with their keys in another order.

use std::sync::Arc;

use bytes::Bytes;

use super::Replacement;
use super::respeller::{Respeller, meaning_of};
use super::table::{CallInput, Spellings};
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
        let known = self.known.inputs(id);
        let fresh = self.fresh.inputs.get(id).map_or(&[][..], Vec::as_slice);
        let (count, same) =
            (known.len() + fresh.len(), known.iter().chain(fresh).find(|input| input.bytes == raw).cloned());
        if let Some(input) = same {
            return self.choose(id, input);
        }
        if count > 0 {
            let respelt =
                |input: &&Arc<CallInput>| input.meaning().is_some() && is_respelt(&input.bytes, raw);
            let mut first = known.iter().chain(fresh).find(respelt);
            if first.is_none() {
                let Some(meaning) = meaning_of(raw) else { return };
                first = known.iter().chain(fresh).find(|input| input.meaning() == Some(meaning));
            }
            if let Some(input) = first.cloned() {
                self.replacements.push(Replacement { span: span.clone(), with: vec![input.bytes.clone()] });
                return self.choose(id, input);
            }
        }
        if Spellings::room_for_input(count) {
            let input = Arc::new(CallInput::new(Bytes::copy_from_slice(raw)));
            self.fresh.add_input(id, input.clone());
            self.choose(id, input);
        }
    }

    fn choose(&mut self, id: &str, input: Arc<CallInput>) {
        if let Some(chosen) = &mut self.chosen {
            chosen.add_input(id, input);
        }
    }
}
