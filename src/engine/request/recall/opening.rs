//! Keys by which the earlier requests of a conversation are found: its first message, and its first answer.

use xxhash_rust::xxh3::xxh3_128;

use super::found::FoundPieces;
use super::reader::Reader;
use super::{Seen, said};
use crate::engine::request::anatomy::{Form, Message, Piece};
use crate::engine::request::json::{self, Malformed};

/// A key for the first answer, the same for all its spellings: it differs between conversations that open alike. Equal
/// keys are a hint to compare, never a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FirstAnswer([u8; 16]);

impl FirstAnswer {
    pub(super) fn of(answer: &Seen<'_>) -> FirstAnswer {
        let mut key = KeyBytes(Vec::new());
        for piece in answer.pieces {
            key.add(piece.kind_in(answer.body));
            key.add(said(answer.body, piece).as_deref().unwrap_or_default().as_bytes());
        }
        FirstAnswer(xxh3_128(&key.0).to_be_bytes())
    }
}

/// The opening of a conversation: a key to find its earlier requests by.
///
/// It holds through what clients do to their first message from turn to turn (a marker goes, a lone text
/// block becomes a string). It samples long texts, so equal keys are a hint to compare, never a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Opening([u8; 16]);

impl Opening {
    /// A longer text counts with its start and its end only.
    const WHOLE_BYTES: usize = 2 * 1024;
    const SAMPLE_BYTES: usize = 1024;
    /// More blocks than any client puts into a first message count by their number only.
    const BLOCKS_MAX: usize = 32;

    /// Returns the opening of a request that was not read yet. It is looked for where it nearly always is, and not
    /// found elsewhere.
    pub fn glimpse(body: &[u8]) -> Option<Opening> {
        const KEY: &[u8] = b"\"messages\"";
        let colon = json::skip_space(body, memchr::memmem::find(body, KEY)? + KEY.len());
        let list = json::skip_space(body, body.get(colon).filter(|it| **it == b':').map(|_| colon + 1)?);
        let start = json::skip_space(body, body.get(list).filter(|it| **it == b'[').map(|_| list + 1)?);
        Opening::read(body, start).ok().map(|(opening, _)| opening)
    }

    /// The opening of a request whose first message starts here, and that message.
    pub(super) fn read(body: &[u8], start: usize) -> Result<(Opening, Message), Malformed> {
        let mut found = FoundPieces::default();
        let first = Reader::of_spans(body).message(start, None, &mut found)?;
        Ok((Opening::of(body, &first, &found.pieces), first))
    }

    pub(super) fn of(body: &[u8], message: &Message, pieces: &[Piece]) -> Opening {
        let mut key = KeyBytes(Vec::with_capacity(Opening::WHOLE_BYTES + 256));
        key.add(message.role.as_ref().map_or(&b""[..], |role| &body[role.clone()]));
        let pieces = &pieces[message.pieces.clone()];
        key.add(&pieces.len().to_le_bytes());
        for piece in pieces.iter().take(Opening::BLOCKS_MAX) {
            let kind = piece.kind_in(body);
            match (piece.text(), piece.form) {
                (Some(text), _) if kind == b"\"text\"" => key.text(body, &text),
                (_, Form::Text) => key.text(body, &piece.span),
                _ => {
                    key.add(kind);
                    source(body, piece).into_iter().for_each(|source| key.text(body, &source));
                }
            }
        }
        Opening(xxh3_128(&key.0).to_be_bytes())
    }
}

/// The source of an image or a document: its data, its address or its file.
fn source(body: &[u8], piece: &Piece) -> Option<json::Span> {
    let source =
        json::member(body, piece.span.start, "source").filter(|source| body[source.start] == b'{')?;
    ["data", "url", "file_id"].iter().find_map(|name| json::member(body, source.start, name))
}

/// The words of a first message, however they are spelt.
struct KeyBytes(Vec<u8>);

impl KeyBytes {
    fn add(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, body: &[u8], span: &json::Span) {
        let raw = &body[span.clone()];
        match raw.len() {
            0..=Opening::WHOLE_BYTES => match respelt(body, span) {
                Some(text) => self.add(text.as_bytes()),
                None => self.add(raw),
            },
            len => {
                self.add(&raw[..Opening::SAMPLE_BYTES]);
                self.add(&raw[len - Opening::SAMPLE_BYTES..]);
            }
        }
    }
}

/// The usual spelling of a text that has another; none for most. Only these two escapes have a choice.
fn respelt(body: &[u8], span: &json::Span) -> Option<String> {
    let raw = &body[span.clone()];
    memchr::memmem::find(raw, b"\\u").or_else(|| memchr::memmem::find(raw, b"\\/"))?;
    serde_json::to_string(&json::text(body, span)?).ok()
}
