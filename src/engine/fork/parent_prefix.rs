//! The prefix of all children of a fork point: one list of slices, shared by all of them.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::policy::ForkPolicy;
use super::sizes::siblings;
use super::{fields, strip};
use crate::engine::answer::turn::MESSAGE_OPENING;
use crate::engine::cache::breakpoints::{self, Breakpoint, LOOKBACK, room_alone, room_when_cut};
use crate::engine::family::fanout::{Call, ForkPoint, PLACEHOLDER, Parent};
use crate::engine::request::anatomy::{Message, Piece};
use crate::engine::request::json::{self, Span, is_key};
use crate::engine::request::marker;
use crate::engine::request::prefix::Attribution;
use crate::engine::request::recall::{Nothing, Remembered};
use crate::engine::words::{Refusal, Ttl};

const ANSWER_LIMIT: &str = "max_tokens";

/// The parent's bytes less every marker, its turn, and the placeholders: everything up to breakpoint b.
///
/// The slices are of the parent's own body and turn, so that however many children there are, and however long
/// they live, those exist once.
#[derive(Debug)]
pub struct ParentPrefix {
    pub(super) parent: Arc<Parent>,
    parts: Vec<Bytes>,
    /// The parent's fields, and which parts each of them is, its comma included.
    fields: Vec<(Span, Range<usize>)>,
    /// Which part is the attribution line that a child's own may replace.
    line: Option<usize>,
    /// Before which part a child's own fields go.
    own: usize,
    /// Where breakpoint a goes.
    entry: Option<Entry>,
    /// Never exceeded by a child's own markers.
    pub(super) ttl: Ttl,
    /// Pieces of the prompt up to and including b.
    pub(super) pieces: usize,
    /// True if there is a placeholder to mark: a turn that called nobody has none.
    pub(super) has_results: bool,
    extent: PrefixExtent,
    /// The turn and the placeholders as they are read in every child, once they are the same for all.
    following: Option<Remembered>,
    /// The number of children that share the first writes, as [`siblings`] counted them.
    siblings: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The marker goes before this part.
    part: usize,
    piece: usize,
}

/// How many bytes of the prompt stand where; markers are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixExtent {
    /// The parent's prompt: tools, system and messages.
    pub parent: u64,
    /// Its tools and system.
    pub fixed: u64,
    /// Up to where its last entry was written.
    pub entry: u64,
    /// The assistant turn.
    pub turn: u64,
    /// The placeholders.
    pub results: u64,
}

impl ParentPrefix {
    /// `own_call`: of a child that came before the seal, so that the turn ends with its call. `written`: where the
    /// parent's last entry ends; if that is not known, its own markers tell.
    pub fn of(
        fork: &ForkPoint,
        own_call: Option<usize>,
        written: Option<Breakpoint>,
        attribution: Attribution,
        policy: &ForkPolicy,
    ) -> Result<ParentPrefix, Refusal> {
        let request = &*fork.parent.request;
        let turn = Turn::of(fork, own_call).ok_or(Refusal::Unsealed)?;
        let (body, anatomy) = (request.body(), request.anatomy());
        let written = written.or_else(|| breakpoints::of_client(body, anatomy).pop());
        let cuts = strip::cuts(body, anatomy);
        let place = entry_place(request, &turn, written.map(|point| point.piece));
        let line = if attribution == Attribution::Stripped { line_of(request) } else { None };
        let line = line.map(|line| line.span.clone());
        let mut builder =
            Builder { body, cuts: &cuts, parts: vec![Bytes::from_static(b"{")], line: None, entry: None };
        let mut fields = Vec::new();
        for member in fields::inherited(body, anatomy) {
            let first = builder.parts.len();
            builder.stretch(member.key.start..member.value.end, line.as_ref(), place.as_ref());
            builder.parts.push(Bytes::from_static(b","));
            fields.push((member.key.clone(), first..builder.parts.len()));
        }
        let own = builder.parts.len();
        builder.parts.push(Bytes::from_static(b"\"messages\":["));
        if let Some(history) = history(&anatomy.messages) {
            builder.stretch(history, None, place.as_ref());
            builder.parts.push(Bytes::from_static(b","));
        }
        builder.turn(&turn, place.as_ref());
        builder.parts.push(placeholders(fork, &turn.calls));
        let Builder { parts, line, entry, .. } = builder;
        let pieces = anatomy.pieces.len() + turn.blocks + turn.calls.len();
        let entry = entry.zip(place).map(|(part, place)| Entry { part, piece: place.piece });
        let extent = PrefixExtent::of(request, &turn, written, parts.last());
        let ttl = written.map_or(Ttl::FiveMinutes, |point| point.ttl);
        let parent = Arc::clone(&fork.parent);
        let has_results = !turn.calls.is_empty();
        let shared = if fork.is_sealed() && has_results { parts.last() } else { None };
        let following = shared.and_then(|placeholders| following(&turn.message, placeholders, attribution));
        let siblings = siblings(fork, policy);
        Ok(ParentPrefix {
            parent,
            parts,
            fields,
            line,
            own,
            entry,
            ttl,
            pieces,
            has_results,
            extent,
            following,
            siblings,
        })
    }

    /// The tier of breakpoint a.
    pub fn ttl(&self) -> Ttl {
        self.ttl
    }

    /// Returns true if it is of this very turn: a message id, which names a fork point, may come twice.
    pub fn is_of(&self, fork: &ForkPoint) -> bool {
        Arc::ptr_eq(&self.parent, &fork.parent)
    }

    /// Returns the messages that follow the parent's in every child.
    pub fn following(&self) -> Option<&Remembered> {
        self.following.as_ref()
    }

    /// The number of children that share its first writes, by the policy that it was made under.
    pub fn siblings(&self) -> u64 {
        self.siblings
    }

    /// How many bytes stand where.
    pub fn extent(&self) -> PrefixExtent {
        self.extent
    }

    /// Appends the parent prefix for one child, up to the inside of the last placeholder: its marker, if it gets one, and
    /// its brace are still to come. Answers breakpoint a, if it is `marked`.
    pub(super) fn append_to(
        &self,
        out: &mut Vec<Bytes>,
        child: &Branch<'_>,
        marked: bool,
    ) -> Option<Breakpoint> {
        let entry = if marked { self.entry } else { None };
        let skipped = self.skipped(child.changed);
        for (index, part) in self.parts.iter().enumerate() {
            if index == self.own {
                child.own(out);
                if let Some(limit) = child.answer_limit(&self.parent.request) {
                    out.extend(limit);
                }
            }
            if entry.is_some_and(|entry| entry.part == index) {
                out.push(marker::as_last_member(self.ttl));
            }
            let line = if self.line == Some(index) { child.line.as_ref() } else { None };
            if !skipped.iter().any(|range| range.contains(&index)) {
                out.push(line.unwrap_or(part).clone());
            }
        }
        entry.map(|entry| super::added(entry.piece, self.ttl))
    }

    /// The parts of fields that a child has changed since.
    fn skipped(&self, changed: &[Cow<'_, str>]) -> Vec<Range<usize>> {
        let body = self.parent.request.body();
        let is_changed = |key: &Span| changed.iter().any(|name| is_key(body, key, name));
        self.fields.iter().filter(|(key, _)| is_changed(key)).map(|(_, parts)| parts.clone()).collect()
    }

    /// Returns true if a child's own attribution line has a place.
    pub(super) fn takes_line(&self) -> bool {
        self.line.is_some()
    }

    /// The bytes that are the parent's, its turn included.
    pub(super) fn shared_bytes(&self) -> usize {
        let last = self.parts.last().map_or(0, Bytes::len);
        self.parts.iter().map(Bytes::len).sum::<usize>() - last
    }
}

/// The parts that a child brings into the head of its body.
pub(super) struct Branch<'a> {
    pub request: &'a Remembered,
    /// Its own attribution line.
    pub line: Option<Bytes>,
    /// Prompt-shaping fields that it has changed since it was forked.
    pub changed: &'a [Cow<'a, str>],
    /// True if it takes from its parent what it leaves out.
    pub lenient: bool,
}

impl Branch<'_> {
    fn own(&self, out: &mut Vec<Bytes>) {
        let body = self.request.body();
        for member in fields::own(body, self.request.anatomy(), self.changed) {
            out.extend([body.slice(member.key.start..member.value.end), Bytes::from_static(b",")]);
        }
    }

    /// The parent's `max_tokens`, without which no request is taken, for a child that may leave it out and does.
    fn answer_limit(&self, parent: &Remembered) -> Option<[Bytes; 3]> {
        let brings = self.request.anatomy().member(self.request.body(), ANSWER_LIMIT).is_some();
        if brings || !self.lenient {
            return None;
        }
        let limit = fields::value(parent, ANSWER_LIMIT)?;
        let key = Bytes::from_static(b"\"max_tokens\":");
        Some([key, parent.body().slice_ref(limit), Bytes::from_static(b",")])
    }
}

/// The turn that children stand on.
struct Turn {
    message: Bytes,
    blocks: usize,
    /// Where each block stands in the message.
    spans: Vec<Span>,
    calls: Vec<Call>,
}

impl Turn {
    fn of(fork: &ForkPoint, own_call: Option<usize>) -> Option<Turn> {
        let (message, blocks) = match &fork.message {
            Some(message) => (message.clone(), fork.blocks.len()),
            None => (fork.up_to(own_call?)?, fork.calls.get(own_call?)?.block + 1),
        };
        let mut from = MESSAGE_OPENING.len();
        let spans = fork.blocks.iter().take(blocks).map(|block| {
            let span = from..from + block.len();
            from = span.end + 1;
            span
        });
        let spans = spans.collect();
        let calls = fork.calls.iter().filter(|call| call.block < blocks).cloned().collect();
        Some(Turn { message, blocks, spans, calls })
    }
}

/// Where breakpoint a goes.
struct Place {
    piece: usize,
    /// In the parent's body or, for a piece of its turn, in that message.
    at: usize,
    in_turn: bool,
}

/// The block where the entry ends or, where that cannot be marked, the next that can and still finds it. If no
/// entry is known, the parent's last block, so that its next turn finds one.
fn entry_place(request: &Remembered, turn: &Turn, written: Option<usize>) -> Option<Place> {
    let (body, anatomy) = (request.body(), request.anatomy());
    let own =
        |piece: usize| room_when_cut(body, anatomy, piece).map(|at| Place { piece, at, in_turn: false });
    let Some(written) = written else {
        let first = anatomy.tools + anatomy.system;
        return (first..anatomy.pieces.len()).rev().find_map(own);
    };
    let in_turn = |piece: usize| {
        let span = turn.spans.get(piece - anatomy.pieces.len())?;
        let at = room_alone(turn.message.get(span.clone())?)?;
        Some(Place { piece, at: span.start + at, in_turn: true })
    };
    (written..=written.saturating_add(LOOKBACK))
        .find_map(|piece| if piece < anatomy.pieces.len() { own(piece) } else { in_turn(piece) })
}

/// The attribution line of a request, where the upstream would strip it.
pub(super) fn line_of(request: &Remembered) -> Option<&Piece> {
    let anatomy = request.anatomy();
    if anatomy.system == 0 {
        return None;
    }
    let first = anatomy.pieces.get(anatomy.tools)?;
    Some(first).filter(|first| first.is_attribution(request.body()))
}

fn history(messages: &[Message]) -> Option<Span> {
    Some(messages.first()?.span.start..messages.last()?.span.end)
}

/// The turn and the placeholders, read as a request of their own.
fn following(turn: &[u8], placeholders: &[u8], attribution: Attribution) -> Option<Remembered> {
    let body = [br#"{"messages":["#, turn, placeholders, b"}]}]}"].concat();
    Remembered::read(body.into(), &Nothing, attribution).ok()
}

/// A result for each call, one text block each, in the order of the calls. The last lacks its brace.
fn placeholders(fork: &ForkPoint, calls: &[Call]) -> Bytes {
    let mut out = br#",{"role":"user","content":["#.to_vec();
    for (number, call) in calls.iter().enumerate() {
        if number > 0 {
            out.extend_from_slice(b"},");
        }
        out.extend_from_slice(br#"{"type":"tool_result","tool_use_id":"#);
        out.extend_from_slice(&super::quoted(&call.id));
        // A call of a toolset is answered under its name.
        let block = fork.blocks.get(call.block).map_or(&b""[..], |block| block);
        if let Some(name) = json::member(block, 0, "toolset_name") {
            out.extend_from_slice(br#","toolset_name":"#);
            out.extend_from_slice(&block[name]);
        }
        out.extend_from_slice(br#","content":[{"type":"text","text":"#);
        out.extend_from_slice(&super::quoted(PLACEHOLDER));
        out.extend_from_slice(b"}]");
    }
    out.into()
}

struct Builder<'a> {
    body: &'a Bytes,
    cuts: &'a [Span],
    parts: Vec<Bytes>,
    line: Option<usize>,
    entry: Option<usize>,
}

impl Builder<'_> {
    /// A stretch of the parent's body, taken apart at the line and at breakpoint a.
    fn stretch(&mut self, span: Span, line: Option<&Span>, place: Option<&Place>) {
        let within = |at: usize| span.start < at && at <= span.end;
        let mut from = span.start;
        if let Some(line) = line.filter(|line| within(line.start)) {
            self.push(from..line.start);
            self.line = Some(self.parts.len());
            let mut bytes = Vec::new();
            strip::append_unmarked(&mut bytes, self.body, line.clone(), self.cuts);
            self.parts.push(bytes.concat().into());
            from = line.end;
        }
        if let Some(place) = place.filter(|place| !place.in_turn && within(place.at)) {
            self.push(from..place.at);
            self.entry = Some(self.parts.len());
            from = place.at;
        }
        self.push(from..span.end);
    }

    fn turn(&mut self, turn: &Turn, place: Option<&Place>) {
        match place.filter(|place| place.in_turn) {
            None => self.parts.push(turn.message.clone()),
            Some(place) => {
                self.parts.push(turn.message.slice(..place.at));
                self.entry = Some(self.parts.len());
                self.parts.push(turn.message.slice(place.at..));
            }
        }
    }

    fn push(&mut self, span: Span) {
        strip::append_unmarked(&mut self.parts, self.body, span, self.cuts);
    }
}

impl PrefixExtent {
    fn of(
        request: &Remembered,
        turn: &Turn,
        written: Option<Breakpoint>,
        results: Option<&Bytes>,
    ) -> PrefixExtent {
        let (body, anatomy) = (request.body(), request.anatomy());
        let bytes = |until: usize| -> u64 {
            let pieces = anatomy.pieces.iter().take(until).map(|piece| piece.unmarked(body));
            pieces.map(|(before, after)| (before.len() + after.len()) as u64).sum()
        };
        let parent = bytes(anatomy.pieces.len());
        PrefixExtent {
            parent,
            fixed: bytes(anatomy.tools + anatomy.system),
            entry: written.map_or(0, |point| bytes(point.piece.saturating_add(1))),
            turn: turn.message.len() as u64,
            results: results.map_or(0, |results| results.len() as u64),
        }
    }
}

#[cfg(test)]
impl ParentPrefix {
    /// Returns true if a body holds the parent prefix's own bytes, and no copy of them.
    pub(super) fn is_shared_by(&self, pieces: &[Bytes]) -> bool {
        let own = self.parts.iter().max_by_key(|part| part.len());
        own.is_some_and(|own| pieces.iter().any(|piece| piece.as_ptr() == own.as_ptr()))
    }
}
