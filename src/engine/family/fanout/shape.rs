//! Facts that follow from the shape of a request: is it a first turn, which results does it bring, whose history does
//! it carry.

use std::borrow::Cow;
use std::collections::HashSet;

use super::point::ForkPoint;
use crate::engine::request::anatomy::{Form, Message, Piece};
use crate::engine::request::json::{self, Span};
use crate::engine::request::meaning::Meaning;
use crate::engine::request::prefix::Attribution;
use crate::engine::request::recall::{Nothing, Remembered};
use crate::engine::words::Layer;

/// The text of every result that takes the place of a forked child's.
pub const PLACEHOLDER: &str = "Fork started -- processing in background";

/// A result with the placeholder in it, escaped throughout, with its id and a marker.
const PLACEHOLDER_BLOCK_BYTES: usize = 1_024;

/// The start of the first text after the placeholders.
pub const CHILD_TAG: &str = "<forkpoint-child>";

/// A text this many times larger than what is searched can hold nothing that makes up half of it.
const TEXT_SHARE: usize = 4;

/// The results of one turn that are looked up, more than any client brings back.
const RESULTS_MAX: usize = 1_024;

/// Returns true if the request carries the layout of a forked child: a user message of placeholders, then a text that
/// starts with the tag. Quoting either of them does not count.
pub fn is_forked_by_shape(request: &Remembered) -> bool {
    let body = request.body();
    // The layout has the tag without escapes, so that looking for it costs next to nothing.
    let is_tagged = |piece: &Piece| {
        let text = text_span(request, piece).map(|span| &body[span]);
        text.and_then(|text| text.strip_prefix(b"\""))
            .is_some_and(|text| text.starts_with(CHILD_TAG.as_bytes()))
    };
    // A lone piece has no results before it, and a longer one than a placeholder is not one: most messages need no
    // look at the body.
    let may_be = |pieces: &[Piece]| {
        pieces.len() > 1 && pieces.first().is_some_and(|first| first.span.len() <= PLACEHOLDER_BLOCK_BYTES)
    };
    request.anatomy().messages.iter().any(|message| {
        let pieces = pieces(request, message);
        if !may_be(pieces) {
            return false;
        }
        let tagged = pieces.iter().position(is_tagged).filter(|results| *results > 0);
        tagged.is_some_and(|results| pieces[..results].iter().all(|piece| is_placeholder(request, piece)))
            && message.has_role(request.body(), "user")
    })
}

fn is_placeholder(request: &Remembered, piece: &Piece) -> bool {
    let body = request.body();
    // Most results are longer than the placeholder in any spelling, and need no reading.
    if piece.span.len() > PLACEHOLDER_BLOCK_BYTES {
        return false;
    }
    let says = |span: &Span| json::text(body, span).is_some_and(|text| text == PLACEHOLDER);
    let Some(content) = result_id(request, piece).and(json::member(body, piece.span.start, "content")) else {
        return false;
    };
    let mut texts = Vec::new();
    let walked = json::walk_array(body, content.start, |start| {
        let end = json::value_end(body, start)?;
        texts.push(json::member(body, start, "text"));
        Ok(end)
    });
    says(&content) || (walked.is_ok() && matches!(&texts[..], [Some(text)] if says(text)))
}

pub(super) fn is_first_turn(request: &Remembered) -> bool {
    !request.is_answered()
}

pub(super) fn has_tools(request: &Remembered) -> bool {
    request.anatomy().tools > 0
}

/// The texts of the first user message, of at most `bytes` each as a directive could fill.
pub(super) fn first_texts(request: &Remembered, bytes: usize) -> impl Iterator<Item = Cow<'_, str>> {
    let messages = &request.anatomy().messages;
    let first = messages.iter().find(|message| message.has_role(request.body(), "user"));
    texts(request, first.into_iter(), bytes)
}

/// The texts that the user added after the last assistant turn.
pub(super) fn new_texts(request: &Remembered, bytes: usize) -> impl Iterator<Item = Cow<'_, str>> {
    let users = news(request).iter().filter(|message| message.has_role(request.body(), "user"));
    texts(request, users, bytes)
}

/// The ids of the calls whose results come after the last assistant turn, each once: they are looked up while the state
/// of a tenant is locked.
pub fn new_results(request: &Remembered) -> impl Iterator<Item = Cow<'_, str>> {
    let mut seen = HashSet::new();
    news(request)
        .iter()
        .flat_map(|message| pieces(request, message))
        .filter_map(|piece| result_id(request, piece))
        .filter(move |id| seen.insert(id.clone()))
        .take(RESULTS_MAX)
}

/// The name of the summary that the conversation begins with, then the ids of calls and results, the newest first.
pub(super) fn call_ids(request: &Remembered) -> impl Iterator<Item = Cow<'_, str>> {
    let anatomy = request.anatomy();
    let messages = &anatomy.pieces[anatomy.tools + anatomy.system..];
    let summary = request.summary().and_then(|piece| summary_name(&request.body()[piece.span.clone()]));
    let calls = messages.iter().rev().filter_map(|piece| json::text(request.body(), &piece.id()?));
    summary.map(Cow::Owned).into_iter().chain(calls)
}

/// The name of a summary, by which the conversation is known that has replaced by it all that was said. No call has
/// such an id.
pub fn summary_name(block: &[u8]) -> Option<String> {
    let member = |name: &str| json::member(block, 0, name).filter(|value| &block[value.clone()] != b"null");
    if json::text(block, &member("type")?)? != "compaction" {
        return None;
    }
    let said = member("signature").or_else(|| member("content"))?;
    let digest = blake3::hash(json::text(block, &said)?.as_bytes());
    Some(format!("compaction {}", &digest.to_hex()[..32]))
}

/// The first user message and the first assistant turn as they are meant, for the life of a conversation.
pub(super) fn start_meaning(request: &Remembered) -> Option<[u8; 32]> {
    let messages = &request.anatomy().messages;
    let first = |role: &str| messages.iter().find(|message| message.has_role(request.body(), role));
    Some(started(&message_meaning(request, first("user")?), &message_meaning(request, first("assistant")?)))
}

/// Returns the [`start_meaning`] of a request that has no assistant turn yet, and of the turn that answers it.
pub(super) fn start_meaning_with(request: &Remembered, turn: &[u8]) -> Option<[u8; 32]> {
    let messages = &request.anatomy().messages;
    let user = messages.iter().find(|message| message.has_role(request.body(), "user"))?;
    let body = [&b"{\"messages\":["[..], turn, b"]}"].concat();
    let answer = Remembered::read(body.into(), &Nothing, Attribution::Counted).ok()?;
    let assistant = answer.anatomy().messages.first()?;
    Some(started(&message_meaning(request, user), &message_meaning(&answer, assistant)))
}

fn started(user: &[u8; 32], assistant: &[u8; 32]) -> [u8; 32] {
    blake3::derive_key("forkpoint start v1", &[&user[..], assistant].concat())
}

/// Returns a digest of the texts and calls of a message. Clients drop empty texts, and thinking, when they echo it.
fn message_meaning(request: &Remembered, message: &Message) -> [u8; 32] {
    let body = request.body();
    let mut hasher = blake3::Hasher::new();
    for piece in pieces(request, message) {
        match text_span(request, piece).and_then(|span| json::text(body, &span)) {
            Some(text) if text.trim().is_empty() => {}
            Some(text) => {
                hasher.update(b"t").update(blake3::hash(text.trim().as_bytes()).as_bytes());
            }
            None if kind(request, piece) == b"\"compaction\"" => {
                let name = summary_name(&body[piece.span.clone()]).unwrap_or_default();
                hasher.update(b"s").update(blake3::hash(name.as_bytes()).as_bytes());
            }
            None => {
                let id = piece.id().and_then(|id| json::text(body, &id));
                let input = piece.input().and_then(|input| Meaning::of(&body[input]));
                if let (Some(id), Some(input)) = (id, input) {
                    hasher
                        .update(b"c")
                        .update(blake3::hash(id.as_bytes()).as_bytes())
                        .update(input.as_bytes());
                }
            }
        }
    }
    *hasher.finalize().as_bytes()
}

/// Model and tools as they are meant, in whatever order: what a conversation keeps that is spelt anew.
pub(super) fn tools_meaning(request: &Remembered) -> [u8; 32] {
    let (body, anatomy) = (request.body(), request.anatomy());
    let meant = |tool: &Piece| {
        let value = &body[tool.span.clone()];
        Meaning::or_bytes(Meaning::of_block(value), value)
    };
    let mut tools: Vec<_> = anatomy.pieces[..anatomy.tools].iter().map(meant).collect();
    tools.sort_unstable();
    let model = anatomy.model(body).unwrap_or_default();
    blake3::derive_key("forkpoint toolset v1", &[tools.concat(), model.as_bytes().to_vec()].concat())
}

/// Returns true if the request goes on from where the parent's messages end, with the same model and tools. Markers
/// and "string or one text block" do not count: clients change both from turn to turn.
pub(super) fn continues(request: &Remembered, parent: &Remembered) -> bool {
    let tools = |of: &Remembered| of.chain().layer(of.anatomy(), Layer::Tools);
    let (ours, theirs) = (&request.anatomy().messages, &parent.anatomy().messages);
    tools(request) == tools(parent)
        && !theirs.is_empty()
        && theirs.iter().enumerate().all(|(number, message)| {
            let last = number + 1 == theirs.len();
            ours.get(number).is_some_and(|mine| same_message(request, mine, parent, message, last))
        })
}

/// Returns the last piece of a client's own fork that its siblings have too: the one before its directive if it carries
/// the whole turn, else the end of the parent's history. `None` if its history is another.
pub(super) fn last_shared(request: &Remembered, fork: &ForkPoint, call: Option<usize>) -> Option<usize> {
    let parent = &*fork.parent.request;
    let (ours, theirs) = (&request.anatomy().messages, &parent.anatomy().messages);
    if !continues(request, parent) {
        return None;
    }
    let last = theirs.last()?;
    let end = ours.get(theirs.len() - 1)?.pieces.start + last.pieces.len();
    let turn = ours.get(theirs.len()).filter(|turn| turn.has_role(request.body(), "assistant"));
    let called = turn.map_or(&[][..], |turn| pieces(request, turn));
    let called = called.iter().filter_map(|piece| json::text(request.body(), &piece.id()?));
    let whole = turn.is_none() || called.eq(fork.calls.iter().map(|call| &*call.id));
    let directives = call.and_then(|call| fork.calls.get(call)).map_or(&[][..], |call| &call.directives);
    let tells = |piece: &usize| {
        let span = text_span(request, &request.anatomy().pieces[*piece]);
        let text = span.and_then(|span| json::text(request.body(), &span)).unwrap_or_default();
        directives.iter().any(|directive| text.contains(&**directive))
    };
    let directive = if whole { (end..request.anatomy().pieces.len()).find(tells) } else { None };
    directive.unwrap_or(end).checked_sub(1)
}

/// `open`: blocks may follow.
fn same_message(ours: &Remembered, mine: &Message, theirs: &Remembered, other: &Message, open: bool) -> bool {
    let role = |of: &Remembered, message: &Message| {
        message.role.as_ref().and_then(|role| json::text(of.body(), role)).map(Cow::into_owned)
    };
    let (a, b) = (pieces(ours, mine), pieces(theirs, other));
    role(ours, mine) == role(theirs, other)
        && (a.len() == b.len() || (open && a.len() > b.len()))
        && a.iter().zip(b).all(|(a, b)| same_piece(ours, a, theirs, b))
}

fn same_piece(ours: &Remembered, mine: &Piece, theirs: &Remembered, other: &Piece) -> bool {
    let (a, b) = (ours.body(), theirs.body());
    match (text_span(ours, mine), text_span(theirs, other)) {
        (Some(x), Some(y)) => {
            a[x.clone()] == b[y.clone()] || {
                let text = json::text(a, &x);
                text.is_some() && text == json::text(b, &y)
            }
        }
        (None, None) => {
            mine.unmarked(a) == other.unmarked(b) || {
                let meaning = Meaning::of_block(&a[mine.span.clone()]);
                meaning.is_some() && meaning == Meaning::of_block(&b[other.span.clone()])
            }
        }
        _ => false,
    }
}

/// The messages behind the last assistant turn.
fn news(request: &Remembered) -> &[Message] {
    let messages = &request.anatomy().messages;
    let assistant = messages.iter().rposition(|message| message.has_role(request.body(), "assistant"));
    &messages[assistant.map_or(0, |last| last + 1)..]
}

fn texts<'r>(
    request: &'r Remembered,
    messages: impl Iterator<Item = &'r Message>,
    bytes: usize,
) -> impl Iterator<Item = Cow<'r, str>> {
    messages.flat_map(|message| pieces(request, message)).filter_map(move |piece| {
        let span = text_span(request, piece).filter(|span| span.len() <= bytes.saturating_mul(TEXT_SHARE))?;
        json::text(request.body(), &span)
    })
}

fn pieces<'r>(request: &'r Remembered, message: &Message) -> &'r [Piece] {
    &request.anatomy().pieces[message.pieces.clone()]
}

/// Returns the place of the text of a text block, or of a string in place of one.
fn text_span(request: &Remembered, piece: &Piece) -> Option<Span> {
    match piece.form {
        Form::Text => Some(piece.span.clone()),
        Form::Block if kind(request, piece) == b"\"text\"" => piece.text(),
        _ => None,
    }
}

fn result_id<'r>(request: &'r Remembered, piece: &Piece) -> Option<Cow<'r, str>> {
    if kind(request, piece) != b"\"tool_result\"" {
        return None;
    }
    json::text(request.body(), &piece.id()?)
}

fn kind<'r>(request: &'r Remembered, piece: &Piece) -> &'r [u8] {
    piece.kind_in(request.body())
}
