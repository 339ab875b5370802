//! The prefix of all children of a fork point: one list of slices, shared by all of them.

mod saved;

pub use saved::{SavedParentPrefix, Sources};

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::fields;
use super::places::{self, Place, Turn, entry_place, fixed_place, tier};
use super::policy::ForkPolicy;
use super::sizes::siblings;
use crate::engine::cache::breakpoints::{self, Breakpoint, LOOKBACK};
use crate::engine::family::fanout::{Call, ForkPoint, PLACEHOLDER, Parent};
use crate::engine::request::anatomy::{Anatomy, Message, Piece};
use crate::engine::request::json::{self, Span};
use crate::engine::request::prefix::Attribution;
use crate::engine::request::recall::{Nothing, Remembered};
use crate::engine::request::strip;
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
    /// The place of breakpoint a, the end of the parent's entry. `marks.rs` lists all breakpoints.
    entry: Option<PrefixMark>,
    /// The end of the system prompt, or of the tools where that cannot be marked.
    fixed: Option<PrefixMark>,
    /// Never exceeded by a child's own markers.
    pub(super) ttl: Ttl,
    /// Pieces of the prompt up to and including b.
    pub(super) pieces: usize,
    /// True if there is a placeholder to mark: a turn without calls has none.
    pub(super) has_results: bool,
    extent: PrefixExtent,
    /// The turn and the placeholders as they are read in every child, once they are the same for all.
    following: Option<Remembered>,
    /// The number of children that share the first writes, as [`siblings`] counted them.
    siblings: u64,
}

#[derive(Clone, Debug)]
struct PrefixMark {
    /// The marker goes before this part.
    part: usize,
    piece: usize,
    ttl: Ttl,
    marker: Bytes,
}

/// Which breakpoint of its parent's a child has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ParentMark {
    /// a: where the parent's last entry was written.
    Entry,
    /// The end of its system prompt, which is found when the messages are lost.
    Fixed,
}

/// The bytes of the prompt by their place; markers are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
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
        let fixed_place = fixed_place(request);
        let line = if attribution == Attribution::Stripped { line_of(request) } else { None };
        let line = line.map(|line| line.span.clone());
        let mut builder = Builder {
            body,
            cuts: &cuts,
            parts: vec![Bytes::from_static(b"{")],
            line: None,
            marks: Vec::new(),
        };
        let mut places: Vec<&Place> = fixed_place.iter().chain(&place).collect();
        places.sort_by_key(|place| place.piece);
        let fields = builder.fields(anatomy, line.as_ref(), &places);
        let own = builder.parts.len();
        builder.messages(&anatomy.messages, &places);
        builder.turn(&turn, place.as_ref());
        builder.parts.push(placeholders(fork, &turn.calls));
        let Builder { parts, line, marks, .. } = builder;
        let pieces = anatomy.pieces.len() + turn.blocks + turn.calls.len();
        let ttl = written.map_or(Ttl::FiveMinutes, |point| point.ttl);
        let marked = |place: Option<Place>, ttl: Ttl| {
            let piece = place?.piece;
            let (_, part) = marks.iter().find(|(marked, _)| *marked == piece)?;
            Some(PrefixMark { part: *part, piece, ttl, marker: places::marker(request, piece, ttl) })
        };
        let fixed_ttl = fixed_place.as_ref().map_or(ttl, |place| tier(request, place.piece, ttl));
        let fixed = marked(fixed_place, fixed_ttl);
        let entry = marked(place, ttl);
        let extent = PrefixExtent::of(request, &turn, written, parts.last());
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
            fixed,
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

    /// Returns the bytes of the prompt by their place.
    pub fn extent(&self) -> PrefixExtent {
        self.extent
    }

    /// Appends the parent prefix for one child, up to the inside of the last placeholder: its marker, if it gets one, and
    /// its brace are still to come. Returns the breakpoint that is `marked` in it.
    pub(super) fn append_to(
        &self,
        out: &mut Vec<Bytes>,
        child: &Branch<'_>,
        marked: Option<ParentMark>,
    ) -> Option<Breakpoint> {
        let entry = marked.and_then(|marked| match marked {
            ParentMark::Entry => self.entry.as_ref(),
            ParentMark::Fixed => self.fixed.as_ref(),
        });
        let skipped = self.skipped(child.changed);
        let mut skipped = skipped.iter().peekable();
        for (index, part) in self.parts.iter().enumerate() {
            if index == self.own {
                child.own(out);
                if let Some(limit) = child.answer_limit(&self.parent.request) {
                    out.extend(limit);
                }
            }
            if let Some(entry) = entry.filter(|entry| entry.part == index) {
                out.push(entry.marker.clone());
            }
            let line = if self.line == Some(index) { child.line.as_ref() } else { None };
            while skipped.next_if(|range| range.end <= index).is_some() {}
            if !skipped.peek().is_some_and(|range| range.contains(&index)) {
                out.push(line.unwrap_or(part).clone());
            }
        }
        entry.map(|entry| super::added(entry.piece, entry.ttl))
    }

    /// The parts of fields that a child has changed since, in their order.
    fn skipped(&self, changed: &BTreeSet<Cow<'_, str>>) -> Vec<Range<usize>> {
        let body = self.parent.request.body();
        let fields = self.fields.iter().filter(|(key, _)| fields::is_in(body, key, changed));
        fields.map(|(_, parts)| parts.clone()).collect()
    }

    /// Returns true if the entry of breakpoint a is found from b.
    pub(super) fn is_entry_near(&self) -> bool {
        let last = self.pieces.saturating_sub(1);
        self.has_results && self.entry.as_ref().is_some_and(|entry| entry.piece + LOOKBACK >= last)
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
    pub changed: &'a BTreeSet<Cow<'a, str>>,
    /// True if it takes the limit of its answer from its parent where it leaves that out.
    pub limits: bool,
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
        if brings || !self.limits {
            return None;
        }
        let limit = fields::value(parent, ANSWER_LIMIT)?;
        let key = Bytes::from_static(b"\"max_tokens\":");
        Some([key, parent.body().slice_ref(limit), Bytes::from_static(b",")])
    }
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
    /// Pieces that may be marked, and before which part.
    marks: Vec<(usize, usize)>,
}

impl Builder<'_> {
    /// The fields that children inherit. Returns the parts of each.
    fn fields(
        &mut self,
        anatomy: &Anatomy,
        line: Option<&Span>,
        places: &[&Place],
    ) -> Vec<(Span, Range<usize>)> {
        let body = self.body;
        let mut fields = Vec::new();
        for member in fields::inherited(body, anatomy) {
            let first = self.parts.len();
            self.stretch(member.key.start..member.value.end, line, places);
            self.parts.push(Bytes::from_static(b","));
            fields.push((member.key.clone(), first..self.parts.len()));
        }
        fields
    }

    /// The start of the messages, and all that were said before the turn.
    fn messages(&mut self, messages: &[Message], places: &[&Place]) {
        self.parts.push(Bytes::from_static(b"\"messages\":["));
        if let (Some(first), Some(last)) = (messages.first(), messages.last()) {
            self.stretch(first.span.start..last.span.end, None, places);
            self.parts.push(Bytes::from_static(b","));
        }
    }

    /// A stretch of the parent's body, taken apart at the line and where it may be marked. `places` are in order.
    fn stretch(&mut self, span: Span, line: Option<&Span>, places: &[&Place]) {
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
        for place in places.iter().filter(|place| !place.in_turn && within(place.at)) {
            if place.at > from {
                self.push(from..place.at);
            }
            self.marks.push((place.piece, self.parts.len()));
            from = place.at;
        }
        self.push(from..span.end);
    }

    fn turn(&mut self, turn: &Turn, place: Option<&Place>) {
        match place.filter(|place| place.in_turn) {
            None => self.parts.push(turn.message.clone()),
            Some(place) => {
                self.parts.push(turn.message.slice(..place.at));
                self.marks.push((place.piece, self.parts.len()));
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
