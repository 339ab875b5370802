//! The breakpoints a request has: the client's as they came, then ours.

use std::ops::RangeInclusive;

use memchr::memmem;

use super::block::{automatic_target, is_barred};
use crate::engine::request::anatomy::{Anatomy, Piece};
use crate::engine::request::json::{self, Span, is_key, skip_space, value_end};
use crate::engine::request::marker;
use crate::engine::words::{Carrier, Origin, Skip, Ttl};

/// The number of breakpoints that the API takes per request, the top-level one included.
pub const BREAKPOINTS_MAX: usize = 4;

/// A place where the forwarded request asks for a cache entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Breakpoint {
    /// Index into [`Anatomy::pieces`].
    pub piece: usize,
    pub ttl: Ttl,
    pub origin: Origin,
    pub carrier: Carrier,
}

/// The client's `cache_control` at the top level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopLevel {
    Absent,
    /// There, and marks nothing; a second one would make readers disagree.
    Null,
    Marked,
}

/// Everything that uses one of the four, in the order of the cache.
#[derive(Debug)]
pub struct RequestMarks {
    list: Vec<(Breakpoint, Depth)>,
    pub top_level: TopLevel,
    /// May exceed the list: a top-level marker counts wherever it ends up.
    pub used: usize,
}

/// The object a marker is on: the piece itself, or a block inside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Depth {
    Own,
    /// On a block inside a result or a document: counted by the upstream, perhaps without effect.
    Nested,
}

impl RequestMarks {
    /// The client's markers, or why nothing may be added to them. Keeps at most one more than is allowed.
    pub fn read(body: &[u8], anatomy: &Anatomy) -> Result<RequestMarks, Skip> {
        let mut marks =
            RequestMarks { list: Vec::with_capacity(BREAKPOINTS_MAX), top_level: TopLevel::Absent, used: 0 };
        for (index, piece) in anatomy.pieces.iter().enumerate() {
            let layer = anatomy.layer(index);
            if let Some(marker) = piece.marker()
                && let Some(ttl) = ttl(body, &marker.value)?
            {
                if is_barred(body, layer, piece) {
                    return Err(Skip::IllegalMarkers);
                }
                marks.client(index, ttl, Depth::Own)?;
            }
            if piece.nests_markers {
                marks.nested(body, index, piece)?;
            }
        }
        marks.read_top_level(body, anatomy)?;
        if marks.is_in_order() { Ok(marks) } else { Err(Skip::IllegalMarkers) }
    }

    /// Finds keys by their bytes: content strings cannot hold an unescaped quote, so what is found is a key.
    fn nested(&mut self, body: &[u8], index: usize, piece: &Piece) -> Result<(), Skip> {
        for found in memmem::find_iter(&body[piece.span.clone()], marker::KEY) {
            let colon = skip_space(body, piece.span.start + found + marker::KEY.len());
            if body.get(colon) != Some(&b':') {
                continue;
            }
            let start = skip_space(body, colon + 1);
            if piece.marker().is_some_and(|marker| marker.value.start == start) {
                continue;
            }
            let end = value_end(body, start).map_err(|_| Skip::MalformedMarker)?;
            if let Some(ttl) = ttl(body, &(start..end))? {
                self.client(index, ttl, Depth::Nested)?;
            }
        }
        Ok(())
    }

    fn read_top_level(&mut self, body: &[u8], anatomy: &Anatomy) -> Result<(), Skip> {
        let mut members = anatomy.members.iter().filter(|member| is_key(body, &member.key, marker::NAME));
        let Some(member) = members.next() else { return Ok(()) };
        if members.next().is_some() {
            return Err(Skip::Ambiguous);
        }
        let Some(ttl) = ttl(body, &member.value)? else {
            self.top_level = TopLevel::Null;
            return Ok(());
        };
        self.top_level = TopLevel::Marked;
        let Some(piece) = automatic_target(body, anatomy) else { return self.count() };
        let own = self.list.iter().find(|(mark, depth)| mark.piece == piece && *depth == Depth::Own);
        match own {
            None => {
                let breakpoint =
                    Breakpoint { piece, ttl, origin: Origin::Client, carrier: Carrier::TopLevel };
                self.insert(breakpoint);
                self.check_count()
            }
            // The same again does nothing, but may be counted.
            Some((mark, _)) if mark.ttl == ttl => self.count(),
            Some(_) => Err(Skip::IllegalMarkers),
        }
    }

    fn client(&mut self, piece: usize, ttl: Ttl, depth: Depth) -> Result<(), Skip> {
        let mark = Breakpoint { piece, ttl, origin: Origin::Client, carrier: Carrier::Block };
        self.list.push((mark, depth));
        self.count()
    }

    fn count(&mut self) -> Result<(), Skip> {
        self.used += 1;
        self.check_count()
    }

    fn check_count(&self) -> Result<(), Skip> {
        if self.used > BREAKPOINTS_MAX { Err(Skip::IllegalMarkers) } else { Ok(()) }
    }

    fn is_in_order(&self) -> bool {
        let is_short = |(mark, _): &(Breakpoint, Depth)| mark.ttl == Ttl::FiveMinutes;
        self.list.is_sorted_by_key(is_short)
    }

    pub fn insert(&mut self, mark: Breakpoint) {
        let index = self.list.partition_point(|(known, _)| known.piece <= mark.piece);
        self.list.insert(index, (mark, Depth::Own));
        self.used += 1;
    }

    /// The lifetime of a new breakpoint: five minutes, or an hour before one of the client's, since five minutes there
    /// are refused. That hour writes nothing which the client's own does not; where its own may do nothing, no
    /// breakpoint is worth that price.
    pub fn tier(&self, piece: usize) -> Result<Ttl, Skip> {
        let is_later = |mark: &Breakpoint| mark.ttl == Ttl::OneHour && mark.piece >= piece;
        if self.own().any(is_later) {
            return Ok(Ttl::OneHour);
        }
        let is_nested = self.list.iter().any(|(mark, _)| is_later(mark));
        if is_nested { Err(Skip::Hour) } else { Ok(Ttl::FiveMinutes) }
    }

    pub fn has_breakpoint(&self, pieces: RangeInclusive<usize>) -> bool {
        self.own().any(|mark| pieces.contains(&mark.piece))
    }

    pub fn last_breakpoint(&self) -> Option<usize> {
        self.own().last().map(|mark| mark.piece)
    }

    pub fn breakpoints(&self) -> Vec<Breakpoint> {
        self.own().copied().collect()
    }

    fn own(&self) -> impl Iterator<Item = &Breakpoint> {
        self.list.iter().filter(|(_, depth)| *depth == Depth::Own).map(|(mark, _)| mark)
    }
}

/// The lifetime that a marker asks for; `None` for `null`, which marks nothing.
fn ttl(body: &[u8], value: &Span) -> Result<Option<Ttl>, Skip> {
    if &body[value.clone()] == b"null" {
        return Ok(None);
    }
    let member = |name| json::member(body, value.start, name);
    let kind = member("type").and_then(|span| json::text(body, &span));
    if kind.as_deref() != Some("ephemeral") {
        return Err(Skip::MalformedMarker);
    }
    let Some(span) = member("ttl").filter(|span| &body[span.clone()] != b"null") else {
        return Ok(Some(Ttl::FiveMinutes));
    };
    match json::text(body, &span).as_deref() {
        Some("5m") => Ok(Some(Ttl::FiveMinutes)),
        Some("1h") => Ok(Some(Ttl::OneHour)),
        _ => Err(Skip::MalformedMarker),
    }
}
