//! The words of a child before its first answer, taken apart: instructions, other blocks, directive.

use std::collections::BTreeSet;

use super::blocks::Draft;
use super::fields::Fields;
use super::policy::ForkPolicy;
use super::said::{self, Said};
use super::{parent_prefix, words};
use crate::engine::family::fanout::Call;
use crate::engine::request::anatomy::{Form, Message, Piece};
use crate::engine::request::json;
use crate::engine::request::meaning::Meaning;
use crate::engine::request::recall::Remembered;
use crate::engine::words::Refusal;

/// A request's first message, and what belongs to it.
#[derive(Debug)]
pub struct Opening<'r> {
    request: &'r Remembered,
    first: &'r Message,
    /// Which piece of the first message is the directive.
    directive: usize,
    /// A system message directly after it.
    hoisted: Option<&'r Message>,
}

impl<'r> Opening<'r> {
    /// None if it cannot be taken apart without loss.
    pub fn read(
        request: &'r Remembered,
        parent: &Remembered,
        call: Option<&Call>,
        policy: &ForkPolicy,
    ) -> Result<Opening<'r>, Refusal> {
        let messages = &request.anatomy().messages;
        let first =
            messages.first().filter(|first| first.has_role(request.body(), "user") && first.extra.is_empty());
        let first = first.ok_or(Refusal::Shape)?;
        let directive = directive(request, first, call).ok_or(Refusal::Shape)?;
        // What is cited cannot be said by a user.
        if system(request).any(|piece| is_cited(request, piece)) {
            return Err(Refusal::Shape);
        }
        let next = messages.get(1).filter(|next| policy.hoist_system && is_system(request, next));
        let hoisted =
            next.filter(|next| next.extra.is_empty() || repeats(request, next, &Fields::of(parent)));
        Ok(Opening { request, first, directive, hoisted })
    }

    /// The pieces between the instructions and the directive, in their order.
    pub fn others(&self) -> impl Iterator<Item = &'r Piece> {
        let directive = self.directive;
        let pieces = &self.request.anatomy().pieces;
        let own = self.first.pieces.clone().filter(move |piece| *piece != directive);
        let hoisted = self.hoisted.map_or(0..0, |message| message.pieces.clone());
        own.chain(hoisted).map(|piece| &pieces[piece])
    }

    pub fn directive(&self) -> &'r Piece {
        &self.request.anatomy().pieces[self.directive]
    }

    pub fn is_hoisted(&self) -> bool {
        self.hoisted.is_some()
    }

    /// Returns what is needed to recognise it on a later turn.
    pub fn record(&self) -> Record {
        Record {
            first: Meaning::from_bytes(message(self.request, self.first)),
            hoisted: self.hoisted.map(|hoisted| {
                let members = extra(self.request, hoisted).into_iter().map(Meaning::from_bytes);
                (Meaning::from_bytes(message(self.request, hoisted)), members.collect())
            }),
        }
    }
}

/// Digests of a child's first message, by which it is recognised in another form.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Record {
    first: Meaning,
    /// The system message after it: its content, and its other members.
    hoisted: Option<(Meaning, Vec<Meaning>)>,
}

impl Record {
    /// Returns the number of messages of a later request that are those recorded; none if its client has replaced them.
    pub fn matches(&self, request: &Remembered) -> Option<usize> {
        let messages = &request.anatomy().messages;
        let first = messages
            .first()
            .filter(|first| first.has_role(request.body(), "user") && first.extra.is_empty())?;
        if message(request, first) != *self.first.as_bytes() {
            return None;
        }
        let Some((content, members)) = &self.hoisted else { return Some(1) };
        let next = messages.get(1).filter(|next| is_system(request, next))?;
        let is_known = |member: &Said| members.iter().any(|known| known.as_bytes() == member);
        let known = extra(request, next).iter().all(is_known);
        (known && message(request, next) == *content.as_bytes()).then_some(2)
    }
}

/// Lays the first message of a request that has none before it; how many messages that are. If it cannot be taken
/// apart, a note takes its place.
pub fn take_first(request: &Remembered, draft: &mut Draft) -> usize {
    let first = request.anatomy().messages.first();
    let plain = |first: &&Message| {
        first.has_role(request.body(), "user") && first.extra.is_empty() && !first.pieces.is_empty()
    };
    match first.filter(plain) {
        Some(first) => {
            let pieces = &request.anatomy().pieces[first.pieces.clone()];
            pieces.iter().for_each(|piece| draft.piece(request.body(), piece));
            1
        }
        None => {
            draft.text(&super::quoted(&words::aside()));
            0
        }
    }
}

/// A child's own system prompt: what its parent does not say, and the attribution line aside.
pub fn instructions<'r>(child: &'r Remembered, parent: &Remembered) -> Vec<&'r Piece> {
    // Most texts that differ are found by their lengths, and nothing needs to be read of them.
    let length = |piece: &Piece| piece.text().as_ref().unwrap_or(&piece.span).len();
    let lengths = |of: &Remembered| {
        let mut lengths: Vec<usize> = system(of).map(length).collect();
        lengths.sort_unstable();
        lengths
    };
    let [own, theirs] = [child, parent].map(lengths);
    let may_be_said = system(parent).filter(|piece| has_similar(&own, length(piece)));
    let said: BTreeSet<Said> = may_be_said.map(|piece| said::piece(parent.body(), piece)).collect();
    let repeats = |piece: &Piece| {
        has_similar(&theirs, length(piece)) && said.contains(&said::piece(child.body(), piece))
    };
    system(child).filter(|piece| !is_blank(child, piece) && !repeats(piece)).collect()
}

/// Returns true if one of these lengths, which are sorted, may be that of a text in another spelling: a letter is at
/// most six bytes in any.
fn has_similar(lengths: &[usize], length: usize) -> bool {
    let first = lengths.partition_point(|other| 6 * other < length);
    lengths.get(first).is_some_and(|other| *other <= 6 * length)
}

/// Returns a digest of its system prompt, without the attribution line.
pub fn instructions_said(request: &Remembered) -> Said {
    said::all(system(request).map(|piece| said::piece(request.body(), piece)))
}

fn system(request: &Remembered) -> impl Iterator<Item = &Piece> {
    let anatomy = request.anatomy();
    let line = parent_prefix::line_of(request);
    let pieces = &anatomy.pieces[anatomy.tools..anatomy.tools + anatomy.system];
    pieces.iter().filter(move |piece| Some(*piece) != line)
}

/// The piece that is the directive: whole before contained, the longest before others; without any, the last
/// text of the message.
fn directive(request: &Remembered, first: &Message, call: Option<&Call>) -> Option<usize> {
    let (body, pieces) = (request.body(), &request.anatomy().pieces);
    let texts = || first.pieces.clone().filter(|piece| is_text(request, &pieces[*piece]));
    let directives = call.map_or(&[][..], |call| &call.directives);
    let fit = |piece: usize| {
        let text = json::text(body, &text_of(&pieces[piece])).unwrap_or_default();
        let text = text.trim();
        let found = directives.iter().filter(|directive| text.contains(&***directive));
        found.map(|directive| (directive.len() == text.len(), directive.len())).max()
    };
    texts().max_by_key(|piece| fit(*piece))
}

/// Returns a digest of the content of a message.
fn message(request: &Remembered, message: &Message) -> Said {
    let pieces = &request.anatomy().pieces[message.pieces.clone()];
    said::all(pieces.iter().map(|piece| said::piece(request.body(), piece)))
}

/// Returns true if the other members of a message are fields of the parent's, with the same values.
fn repeats(request: &Remembered, message: &Message, parent: &Fields<'_>) -> bool {
    let body = request.body();
    message.extra.iter().all(|member| {
        let parents = json::text(body, &member.key).and_then(|name| parent.get(&name));
        parents.is_some_and(|value| said::same(value, &body[member.value.clone()]))
    })
}

/// The other members of a message, each by key and value.
fn extra(request: &Remembered, message: &Message) -> BTreeSet<Said> {
    let body = request.body();
    let members = message.extra.iter();
    members
        .map(|member| {
            said::all([said::value(&body[member.key.clone()]), said::value(&body[member.value.clone()])])
        })
        .collect()
}

/// A system message of texts only.
fn is_system(request: &Remembered, message: &Message) -> bool {
    let pieces = &request.anatomy().pieces[message.pieces.clone()];
    message.has_role(request.body(), "system")
        && !pieces.is_empty()
        && pieces
            .iter()
            .all(|piece| is_text(request, piece) && !is_blank(request, piece) && !is_cited(request, piece))
}

/// Returns true for a text with citations; the API takes none in a user message.
fn is_cited(request: &Remembered, piece: &Piece) -> bool {
    let body = request.body();
    let citations = || json::member(body, piece.span.start, "citations");
    piece.form == Form::Block && citations().is_some_and(|citations| &body[citations] != b"null")
}

fn is_text(request: &Remembered, piece: &Piece) -> bool {
    let kind = piece.kind_in(request.body());
    match piece.form {
        Form::Text => true,
        Form::Block => kind == b"\"text\"" && piece.text().is_some(),
        Form::Other => false,
    }
}

fn text_of(piece: &Piece) -> json::Span {
    let text = if piece.form == Form::Block { piece.text() } else { None };
    text.unwrap_or_else(|| piece.span.clone())
}

/// Returns true for a text of white space; the API refuses such blocks.
fn is_blank(request: &Remembered, piece: &Piece) -> bool {
    is_text(request, piece) && json::is_blank(request.body(), &text_of(piece))
}
