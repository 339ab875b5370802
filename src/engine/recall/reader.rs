//! The walk over a request body, which looks at known bytes only to compare them.
//!
//! Tools, system and messages are lists of elements that repeat from request to request. Before an element is
//! walked it is compared with the one that stood at its place before; if that matches, its spans are taken
//! over, moved. An element that was inserted, removed or replaced costs its own walk, and the comparison falls
//! back into step after it. An element that is an object or a string says by itself where it ends, so equal
//! bytes from its start to its end are the same element, whatever follows.

use std::sync::Arc;

use super::found::Found;
use super::hidden::{has_hidden_marker, nests_markers};
use super::place::Place;
use super::{Known, Like, Opening, Remembered, Same, Seen, Source, choose};
use crate::engine::anatomy::{Anatomy, Form, Inside, Layer, Member, Message, Piece};
use crate::engine::entry::{has_payload, shows_image};
use crate::engine::json::{self, Malformed, Span, is_key, skip_space, value_end, value_end_noting};
use crate::engine::marker;
use crate::engine::prefix::{Digester, Leaf};

/// The pieces of each layer, in the order the body brings them.
pub(in crate::engine) struct Reader<'a> {
    body: &'a [u8],
    /// Nothing is asked, and nothing digested, where only spans are wanted.
    known: Option<&'a dyn Known>,
    digester: Digester,
    layers: [Option<Found>; 3],
    messages: Vec<Message>,
    predecessor: Option<Arc<Remembered>>,
    /// What the predecessor is known to have too, as long as that is the hinted one.
    repeated: Same,
    /// Whose tools and whose system prompt are byte for byte these.
    equal: [Option<Arc<Remembered>>; 2],
    /// So many messages are those of the predecessor, from the first on.
    same_messages: usize,
    opening: Option<Opening>,
    ambiguous: bool,
    parts_left: usize,
}

/// What a walk brings home.
pub(in crate::engine) struct Read {
    pub anatomy: Anatomy,
    /// One per piece, if they were wanted.
    pub leaves: Vec<Leaf>,
    pub opening: Option<Opening>,
    pub predecessor: Option<Like>,
}

/// Members, messages and pieces of one request: room for the API's 100,000 messages, and about 40 MB at most.
pub(super) const PARTS_MAX: usize = 1 << 18;

const MARKER_NAME: &[u8] = marker::NAME.as_bytes();

const TOOLS: usize = 0;
const SYSTEM: usize = 1;
const MESSAGES: usize = 2;

impl<'a> Reader<'a> {
    pub fn of_spans(body: &'a [u8]) -> Reader<'a> {
        Reader {
            body,
            known: None,
            digester: Digester::default(),
            layers: Default::default(),
            messages: Vec::new(),
            parts_left: PARTS_MAX,
            predecessor: None,
            repeated: Same::default(),
            equal: [None, None],
            same_messages: 0,
            opening: None,
            ambiguous: false,
        }
    }

    pub fn with_leaves(body: &'a [u8], known: &'a dyn Known) -> Reader<'a> {
        let predecessor = known.hinted().filter(|hinted| hinted.is_usable());
        let repeated = predecessor.as_ref().map(|_| known.repeated()).unwrap_or_default();
        Reader { known: Some(known), predecessor, repeated, ..Reader::of_spans(body) }
    }

    pub fn read(mut self) -> Result<Read, Malformed> {
        let body = self.body;
        let mut members = Vec::with_capacity(16);
        let end = json::walk_object(body, 0, |key, start| {
            self.spend(1)?;
            let end = self.member(&key, start)?;
            members.push(Member { key, value: start..end });
            Ok(end)
        })?;
        match skip_space(body, end) {
            end if end == body.len() => Ok(self.finish(members)),
            end => Err(Malformed::At(end)),
        }
    }

    /// A part takes far more memory than the two bytes that can bring it about, so there is an end to them.
    fn spend(&mut self, parts: usize) -> Result<(), Malformed> {
        self.parts_left = self.parts_left.checked_sub(parts).ok_or(Malformed::TooMany)?;
        Ok(())
    }

    /// Reads one top-level member and answers where its value ends.
    fn member(&mut self, key: &Span, start: usize) -> Result<usize, Malformed> {
        match &self.body[key.start + 1..key.end - 1] {
            b"tools" => self.layer(TOOLS, Layer::Tools, start),
            b"system" => self.layer(SYSTEM, Layer::System, start),
            b"messages" => self.messages(start),
            // An escaped spelling of a layer's name would be read by the upstream and not by us.
            name if name.contains(&b'\\') => {
                self.ambiguous = true;
                value_end(self.body, start)
            }
            _ => value_end(self.body, start),
        }
    }

    fn layer(&mut self, slot: usize, layer: Layer, start: usize) -> Result<usize, Malformed> {
        let is_repeated = if slot == TOOLS { self.repeated.tools } else { self.repeated.system };
        let source = match &self.predecessor {
            Some(last) if is_repeated => Some((Source::Request(Arc::clone(last)), true)),
            last => {
                self.known.and_then(|known| choose::layer(known, layer, last.as_ref(), &self.body[start..]))
            }
        };
        let mut found = Found::default();
        let end = match &source {
            // What has an end of its own ends where the equal bytes end.
            Some((source, true)) if matches!(self.body.get(start), Some(b'[' | b'"')) => {
                let (value, from, seen) = source.layer(layer).ok_or(Malformed::At(start))?;
                self.spend(seen.pieces.len())?;
                found.take_all(seen, from, start);
                if let Source::Request(request) = source {
                    self.equal[slot] = Some(Arc::clone(request));
                }
                start + value.len()
            }
            source => {
                let seen = source.as_ref().and_then(|(source, _)| source.layer(layer));
                self.content(layer, start, seen.map(|(_, _, seen)| seen), &mut found)?
            }
        };
        self.ambiguous |= self.layers[slot].replace(found).is_some();
        Ok(end)
    }

    fn messages(&mut self, start: usize) -> Result<usize, Malformed> {
        let body = self.body;
        if body.get(start) != Some(&b'[') {
            self.ambiguous = true;
            return value_end(body, start);
        }
        let mut old = self.predecessor.take();
        let run = self.repeated.messages;
        let (mut messages, mut found) = (Vec::new(), Found::default());
        let following = self.known.and_then(|known| known.following()).filter(|next| next.is_usable());
        let copied = self.known.and_then(|known| known.copied());
        let (mut place, mut behind) = (Place::default(), Place::default());
        let end = json::walk_array(body, start, |start| {
            if body.get(start) != Some(&b'{') {
                self.ambiguous = true;
                return value_end(body, start);
            }
            let rest = &body[start..];
            if messages.is_empty() {
                let opens_like =
                    |old: &Remembered| run > 0 || old.message_bytes(0).is_some_and(|it| rest.starts_with(it));
                if !old.as_deref().is_some_and(opens_like) {
                    self.repeated = Same::default();
                    old = self.continued(start, old.take())?;
                }
                if let Some(old) = &old {
                    found.make_room(old);
                    // What was made of another has its messages from there, without a comparison.
                    let run = if run > 0 || copied.is_some() { run } else { old.run_at(rest) };
                    messages = found.take_run(old, run, start);
                    (self.same_messages, place.next) = (run, run);
                }
                if let (Some(old), Some(last)) = (&old, messages.last()) {
                    let extra: usize = messages.iter().map(|message| message.extra.len()).sum();
                    self.spend(messages.len() + found.pieces.len() + extra)?;
                    let opening = || Opening::of(body, &messages[0], &found.pieces);
                    let known = self.opening.or(old.opening);
                    self.opening = Some(known.unwrap_or_else(opening));
                    return Ok(last.span.end);
                }
            }
            let number = messages.len();
            let mut known = copied.filter(|it| (it.is_copy)(number, start)).map(|it| (it.request, number));
            if let (Some(old), None) = (old.as_deref(), known) {
                known = place.find(rest, |index| old.message_bytes(index)).map(|index| (old, index));
            } else {
                place.next = number + 1;
            }
            let is_behind = |old: &Arc<Remembered>| place.passed() >= old.anatomy.messages.len();
            let following = following.filter(|_| known.is_none() && old.as_ref().is_none_or(is_behind));
            if let Some(next) = following {
                known = behind.find(rest, |index| next.message_bytes(index)).map(|index| (next, index));
            }
            self.spend(1)?;
            let message = match known {
                Some((old, index)) => {
                    let message = found.take_message(old, index, start);
                    self.spend(message.pieces.len() + message.extra.len())?;
                    message
                }
                None => {
                    let before = match following {
                        Some(next) => Some((next, behind.passed())),
                        None => old.as_deref().map(|old| (old, place.passed())),
                    };
                    let unmarked =
                        before.and_then(|(old, index)| found.take_unmarked(old, index, start, rest));
                    match unmarked {
                        Some(message) => {
                            self.spend(message.pieces.len() + message.extra.len())?;
                            message
                        }
                        None => {
                            let seen = before.and_then(|(old, index)| old.message(index));
                            self.message(start, seen, &mut found)?
                        }
                    }
                }
            };
            let end = message.span.end;
            let is_same = known.is_some_and(|(from, index)| {
                index == number && old.as_deref().is_some_and(|old| std::ptr::eq(old, from))
            });
            self.same_messages += usize::from(is_same && self.same_messages == number);
            messages.push(message);
            if let (Some((old, 0)), [_], None) = (known, &messages[..], self.opening) {
                self.opening = old.opening.or_else(|| Some(Opening::of(body, &messages[0], &found.pieces)));
            }
            Ok(end)
        })?;
        self.predecessor = old;
        self.messages = messages;
        self.ambiguous |= self.layers[MESSAGES].replace(found).is_some();
        Ok(end)
    }

    /// Whom a request continues, by the words of its first message: if that is found there as it stands, nothing of it
    /// needs to be digested.
    fn continued(
        &mut self,
        start: usize,
        hinted: Option<Arc<Remembered>>,
    ) -> Result<Option<Arc<Remembered>>, Malformed> {
        let (body, Some(known)) = (self.body, self.known) else { return Ok(hinted) };
        let (opening, first) = Opening::read(body, start)?;
        self.opening = Some(opening);
        let rest = choose::after(body, first.span.end);
        let answer = || choose::first_answer(body, body.len() - rest.len());
        Ok(choose::predecessor(known, hinted, opening, rest, answer))
    }

    pub(super) fn message(
        &mut self,
        start: usize,
        seen: Option<Seen<'_>>,
        found: &mut Found,
    ) -> Result<Message, Malformed> {
        let body = self.body;
        let (mut role, mut extra, mut has_content) = (None, Vec::new(), false);
        let first = found.pieces.len();
        let end = json::walk_object(body, start, |key, start| {
            if is_key(body, &key, "content") {
                self.ambiguous |= std::mem::replace(&mut has_content, true);
                return self.content(Layer::Messages, start, seen, found);
            }
            let end = value_end(body, start)?;
            if is_key(body, &key, "role") {
                self.ambiguous |= role.replace(start..end).is_some();
            } else {
                self.spend(1)?;
                extra.push(Member { key, value: start..end });
            }
            Ok(end)
        })?;
        Ok(Message { span: start..end, role, pieces: first..found.pieces.len(), extra })
    }

    /// A list of blocks, or a string that stands for one.
    fn content(
        &mut self,
        layer: Layer,
        start: usize,
        seen: Option<Seen<'_>>,
        found: &mut Found,
    ) -> Result<usize, Malformed> {
        let body = self.body;
        let mut place = Place::default();
        // A known piece that stands here, or the one that stood here.
        let mut known = |start: usize, form: Form| {
            let Some(seen) = seen else { return Err(None) };
            match place.find(&body[start..], |index| seen.bytes(index, form)) {
                Some(index) => Ok((seen, index)),
                None => Err(Some((seen, place.passed()))),
            }
        };
        if body.get(start) == Some(&b'[') {
            return json::walk_array(body, start, |start| {
                self.spend(1)?;
                match known(start, Form::Block) {
                    Ok((seen, index)) => Ok(found.take_piece(seen, index, start)),
                    Err(before) => self.piece(layer, start, before, found),
                }
            });
        }
        self.spend(1)?;
        match known(start, Form::Text) {
            Ok((seen, index)) => Ok(found.take_piece(seen, index, start)),
            Err(_) => {
                let form = if body.get(start) == Some(&b'"') { Form::Text } else { Form::Other };
                self.plain(layer, start, form, found)
            }
        }
    }

    fn plain(
        &mut self,
        layer: Layer,
        start: usize,
        form: Form,
        found: &mut Found,
    ) -> Result<usize, Malformed> {
        let mut spaced = false;
        let end = value_end_noting(self.body, start, &mut spaced)?;
        if self.known.is_some() {
            found.leaves.push(self.digester.plain(self.body, layer, form, &(start..end), spaced));
        }
        found.pieces.push(Piece::plain(start..end, form));
        Ok(end)
    }

    fn piece(
        &mut self,
        layer: Layer,
        start: usize,
        before: Option<(Seen<'_>, usize)>,
        found: &mut Found,
    ) -> Result<usize, Malformed> {
        let body = self.body;
        if body.get(start) != Some(&b'{') {
            return self.plain(layer, start, Form::Other, found);
        }
        let mut piece = Piece::plain(start..start, Form::Block);
        let inside = |span: &Span| Inside::of(start, span);
        let marker_at = |cut: Span, value: &Span| Ok(Some([inside(&cut)?, inside(value)?]));
        let mut previous_end = None;
        let mut pending_first = None;
        let end = json::walk_object(body, start, |key, value_start| {
            if let Some(value) = pending_first.take() {
                piece.marker = marker_at((start + 1)..key.start, &value)?;
            }
            let mut spaced = false;
            let end = value_end_noting(body, value_start, &mut spaced)?;
            let value = value_start..end;
            let name = &body[key.start + 1..key.end - 1];
            if self.known.is_some() {
                self.digester.member(body, key.clone(), value.clone(), spaced);
            }
            match name {
                MARKER_NAME => {
                    self.ambiguous |= piece.is_marked();
                    match previous_end {
                        Some(from) => piece.marker = marker_at(from..end, &value)?,
                        None => pending_first = Some(value),
                    }
                }
                b"type" => piece.kind = Some(inside(&value)?),
                b"name" => {
                    piece.name = Some(inside(&value)?);
                    piece.kind = piece.kind.or(piece.name);
                }
                b"id" | b"tool_use_id" => piece.id = Some(inside(&value)?),
                b"input" => piece.input = Some(inside(&value)?),
                b"text" => piece.text = Some(inside(&value)?),
                b"defer_loading" => piece.deferred = layer == Layer::Tools && is_on(&body[value]),
                // The upstream would count a marker that we do not see, and leave out a tool that we count.
                name if name.contains(&b'\\') => {
                    let decides = |name: &&str| is_key(body, &key, name);
                    self.ambiguous |= [marker::NAME, "defer_loading"].iter().any(decides);
                }
                _ => {}
            }
            previous_end = Some(end);
            Ok(end)
        })?;
        if let Some(value) = pending_first {
            piece.marker = marker_at((start + 1)..value.end, &value)?;
        }
        piece.span = start..end;
        let is_call = piece.kind_in(body).ends_with(b"_use\"");
        // What a call brings is data.
        if layer == Layer::Messages && !is_call {
            self.ambiguous |= has_hidden_marker(body, start, end);
            piece.nests_markers = nests_markers(body, &piece);
            piece.shows_image = shows_image(body, &piece);
            piece.has_payload = has_payload(body, &piece);
        }
        if self.known.is_some() {
            // Clients mark the last block, and no more when it is the last no more.
            let leaf = before.and_then(|(seen, index)| seen.leaf_but_for_marker(index, body, &piece));
            found.leaves.push(match leaf {
                Some(leaf) => self.digester.known(leaf),
                None => self.digester.block(body, layer),
            });
        }
        found.pieces.push(piece);
        Ok(end)
    }

    fn finish(self, members: Vec<Member>) -> Read {
        let [tools, system, found] = self.layers.map(Option::unwrap_or_default);
        let shift = tools.pieces.len() + system.pieces.len();
        let mut messages = self.messages;
        for message in &mut messages {
            message.pieces = message.pieces.start + shift..message.pieces.end + shift;
        }
        let (counts, Found { mut pieces, mut leaves }) = ((tools.pieces.len(), system.pieces.len()), found);
        pieces.splice(0..0, tools.pieces.into_iter().chain(system.pieces));
        leaves.splice(0..0, tools.leaves.into_iter().chain(system.leaves));
        let (tools, system) = counts;
        let anatomy = Anatomy { members, pieces, tools, system, messages, ambiguous: self.ambiguous };
        let predecessor = self.predecessor.map(|request| {
            // A layer that came before the messages was read before it was known who is continued.
            let [tools, system] = [(TOOLS, Layer::Tools), (SYSTEM, Layer::System)].map(|(slot, layer)| {
                let found = self.equal[slot].as_ref();
                let value =
                    || anatomy.member(self.body, layer.as_str()).map(|value| &self.body[value.clone()]);
                let is_equal = || value().is_some() && request.seen(layer).map(|(value, _)| value) == value();
                found.is_some_and(|found| Arc::ptr_eq(found, &request)) || is_equal()
            });
            Like { same: Same { tools, system, messages: self.same_messages }, request }
        });
        Read { anatomy, leaves, opening: self.opening, predecessor }
    }
}

/// Whether a member asks for something.
fn is_on(value: &[u8]) -> bool {
    !matches!(value, b"false" | b"null")
}
