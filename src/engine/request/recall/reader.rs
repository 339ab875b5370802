//! The walk over a request body, which looks at known bytes only to compare them.
//!
//! Tools, system and messages are lists of elements that repeat from request to request. Before an element is
//! walked it is compared with the one that was at its place before; if that matches, its spans are taken
//! over, moved. An element that was inserted, removed or replaced costs its own walk, and the comparison falls
//! back into step after it. An element that is an object or a string says by itself where it ends, so equal
//! bytes from its start to its end are the same element, whatever follows.

mod piece;

use std::sync::Arc;

use super::found::FoundPieces;
use super::messages::KnownMessages;
use super::place::ListPosition;
use super::{Known, LayerSource, Like, Opening, Remembered, Seen, SharedParts, choose};
use crate::engine::request::anatomy::{Anatomy, Form, Member, Message};
use crate::engine::request::json::{self, Malformed, Span, is_key, skip_space, value_end};
use crate::engine::request::prefix::{Digester, Leaf};
use crate::engine::words::Layer;

/// The walk over one body, and everything that it has found so far.
pub(in crate::engine) struct Reader<'a> {
    body: &'a [u8],
    /// Nothing is asked, and nothing digested, where only spans are wanted.
    known: Option<&'a dyn Known>,
    digester: Digester,
    layers: [Option<FoundPieces>; 3],
    messages: Vec<Message>,
    predecessor: Option<Arc<Remembered>>,
    /// The parts that are known to be the predecessor's, as long as that is the hinted one.
    repeated: SharedParts,
    /// The requests whose tools and whose system prompt are byte for byte these.
    equal: [Option<Arc<Remembered>>; 2],
    /// The number of messages, from the first on, that are the predecessor's.
    same_messages: usize,
    opening: Option<Opening>,
    ambiguous: bool,
    parts_left: usize,
}

/// The result of a walk.
pub(in crate::engine) struct Read {
    pub anatomy: Anatomy,
    /// One per piece, if they were wanted.
    pub leaves: Vec<Leaf>,
    pub opening: Option<Opening>,
    pub predecessor: Option<Like>,
}

/// Members, messages and pieces of one request: room for the API's 100,000 messages, and about 40 MB at most.
pub(super) const PARTS_MAX: usize = 1 << 18;

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
            repeated: SharedParts::default(),
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

    /// Counts parts against [`PARTS_MAX`]: one takes far more memory than the two bytes that it needs in a body.
    fn spend(&mut self, parts: usize) -> Result<(), Malformed> {
        self.parts_left = self.parts_left.checked_sub(parts).ok_or(Malformed::TooMany)?;
        Ok(())
    }

    /// Reads one top-level member and returns where its value ends.
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
            Some(last) if is_repeated => Some((LayerSource::Request(Arc::clone(last)), true)),
            last => {
                self.known.and_then(|known| choose::layer(known, layer, last.as_ref(), &self.body[start..]))
            }
        };
        let mut found = FoundPieces::default();
        let end = match &source {
            // What has an end of its own ends where the equal bytes end.
            Some((source, true)) if matches!(self.body.get(start), Some(b'[' | b'"')) => {
                let (value, from, seen) = source.layer(layer).ok_or(Malformed::At(start))?;
                self.spend(seen.pieces.len())?;
                found.take_all(seen, from, start);
                if let LayerSource::Request(request) = source {
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
        let mut known = KnownMessages::new(self.predecessor.take(), self.known);
        let (mut messages, mut found) = (Vec::new(), FoundPieces::default());
        let end = json::walk_array(body, start, |start| {
            if body.get(start) != Some(&b'{') {
                self.ambiguous = true;
                return value_end(body, start);
            }
            if messages.is_empty() {
                messages = self.leading_messages(start, &mut known, &mut found)?;
                if let Some(last) = messages.last() {
                    return Ok(last.span.end);
                }
            }
            self.next_message(start, &mut known, &mut messages, &mut found)
        })?;
        self.predecessor = known.continued;
        self.messages = messages;
        self.ambiguous |= self.layers[MESSAGES].replace(found).is_some();
        Ok(end)
    }

    /// Finds the request that this one continues, by the first message, which starts at `start`, and takes over the
    /// messages that both begin with, in one run.
    fn leading_messages(
        &mut self,
        start: usize,
        known: &mut KnownMessages<'_>,
        found: &mut FoundPieces,
    ) -> Result<Vec<Message>, Malformed> {
        let (body, repeated) = (self.body, self.repeated.messages);
        let rest = &body[start..];
        let opens_like =
            |old: &Remembered| repeated > 0 || old.message_bytes(0).is_some_and(|it| rest.starts_with(it));
        if !known.continued.as_deref().is_some_and(opens_like) {
            self.repeated = SharedParts::default();
            known.continued = self.continued(start, known.continued.take())?;
        }
        let Some(old) = &known.continued else { return Ok(Vec::new()) };
        found.make_room(old);
        let run = if repeated > 0 { repeated } else { old.run_at(rest) };
        let messages = found.take_run(old, run, start);
        self.same_messages = run;
        known.place.next = run;
        if let Some(first) = messages.first() {
            let extra: usize = messages.iter().map(|message| message.extra.len()).sum();
            self.spend(messages.len() + found.pieces.len() + extra)?;
            let opening = self.opening.or(old.opening);
            self.opening = Some(opening.unwrap_or_else(|| Opening::of(body, first, &found.pieces)));
        }
        Ok(messages)
    }

    /// Reads the message at `start`, or takes it over from where it is known, and returns where it ends.
    fn next_message(
        &mut self,
        start: usize,
        known: &mut KnownMessages<'_>,
        messages: &mut Vec<Message>,
        found: &mut FoundPieces,
    ) -> Result<usize, Malformed> {
        let (body, number) = (self.body, messages.len());
        let candidate = known.candidate(&body[start..]);
        self.spend(1)?;
        let message = match candidate.and_then(|it| it.take(found, start, &body[start..])) {
            Some(message) => {
                self.spend(message.pieces.len() + message.extra.len())?;
                message
            }
            None => self.message(start, candidate.and_then(|it| it.request.message(it.index)), found)?,
        };
        let end = message.span.end;
        messages.push(message);
        if let Some(equal) = candidate.filter(|it| it.is_equal) {
            self.same_messages +=
                usize::from(equal.is_continued && equal.index == number && self.same_messages == number);
            if (number, equal.index) == (0, 0) && self.opening.is_none() {
                let opening = || Opening::of(body, &messages[0], &found.pieces);
                self.opening = Some(equal.request.opening.unwrap_or_else(opening));
            }
        }
        Ok(end)
    }

    /// Returns the request that is continued, by the words of the first message. If a known request has that message
    /// as it is, nothing of it needs to be digested.
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
        found: &mut FoundPieces,
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

    /// Reads a list of blocks, or a string in place of one.
    fn content(
        &mut self,
        layer: Layer,
        start: usize,
        seen: Option<Seen<'_>>,
        found: &mut FoundPieces,
    ) -> Result<usize, Malformed> {
        let body = self.body;
        let mut place = ListPosition::default();
        // A known piece that is here again, or the one that was here before.
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

    fn finish(self, members: Vec<Member>) -> Read {
        let [tools, system, found] = self.layers.map(Option::unwrap_or_default);
        let shift = tools.pieces.len() + system.pieces.len();
        let mut messages = self.messages;
        for message in &mut messages {
            message.pieces = message.pieces.start + shift..message.pieces.end + shift;
        }
        let (counts, FoundPieces { mut pieces, mut leaves }) =
            ((tools.pieces.len(), system.pieces.len()), found);
        // The cache reads tools and system first, wherever the body has them.
        pieces.splice(0..0, tools.pieces.into_iter().chain(system.pieces));
        leaves.splice(0..0, tools.leaves.into_iter().chain(system.leaves));
        let (tools, system) = counts;
        let anatomy = Anatomy { members, pieces, tools, system, messages, ambiguous: self.ambiguous };
        let predecessor = self.predecessor.map(|request| {
            // A layer that comes before the messages was read before the continued request was known.
            let [tools, system] = [(TOOLS, Layer::Tools), (SYSTEM, Layer::System)].map(|(slot, layer)| {
                let found = self.equal[slot].as_ref();
                let value =
                    || anatomy.member(self.body, layer.as_str()).map(|value| &self.body[value.clone()]);
                let is_equal = || value().is_some() && request.seen(layer).map(|(value, _)| value) == value();
                found.is_some_and(|found| Arc::ptr_eq(found, &request)) || is_equal()
            });
            Like { same: SharedParts { tools, system, messages: self.same_messages }, request }
        });
        Read { anatomy, leaves, opening: self.opening, predecessor }
    }
}
