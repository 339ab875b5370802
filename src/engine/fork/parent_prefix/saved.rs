//! A parent prefix as it is kept beyond this process: the places of its parts in the parent's request and turn. So it
//! is restored to the byte as it was sent, whatever a later version would make of that request.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{ParentPrefix, PrefixExtent, PrefixMark, following};
use crate::engine::family::fanout::{ForkPoint, Parent};
use crate::engine::words::Ttl;

/// More tokens, pieces or bytes than any prompt has.
const COUNT_MAX: u64 = 1 << 40;

/// A parent prefix beside the bytes that it is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedParentPrefix {
    parts: Vec<SavedPrefixPart>,
    fields: Vec<(Range<usize>, Range<usize>)>,
    line: Option<usize>,
    own: usize,
    entry: Option<SavedMark>,
    fixed: Option<SavedMark>,
    ttl: Ttl,
    pieces: u32,
    has_results: bool,
    extent: PrefixExtent,
    /// True if what follows the parent's messages is the same in every child.
    is_followed: bool,
    siblings: u64,
}

/// Bytes, and what they are a stretch of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedPrefixPart(SavedSource, usize, usize);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum SavedSource {
    #[serde(rename = "parent")]
    Parent,
    #[serde(rename = "turn")]
    Turn,
    #[serde(rename = "own")]
    Own,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedMark {
    part: usize,
    piece: u32,
    ttl: Ttl,
    marker: SavedPrefixPart,
}

/// The bytes that parts are stretches of.
#[derive(Clone, Copy)]
pub struct Sources<'a> {
    pub parent: &'a Bytes,
    /// The turn as a message.
    pub turn: &'a Bytes,
    /// All other bytes.
    pub own: &'a Bytes,
}

impl ParentPrefix {
    /// Saves the places of its parts. What is nowhere else is appended to `own`.
    pub fn save(&self, point: &ForkPoint, own: &mut Vec<u8>) -> SavedParentPrefix {
        let turn = point.message.clone().unwrap_or_default();
        let mut save = |part: &Bytes| SavedPrefixPart::of(part, self.parent.request.body(), &turn, own);
        let parts = self.parts.iter().map(&mut save).collect();
        let mut entry = |entry: &Option<PrefixMark>| {
            let PrefixMark { part, piece, ttl, marker } = entry.as_ref()?;
            Some(SavedMark { part: *part, piece: *piece as u32, ttl: *ttl, marker: save(marker) })
        };
        let (saved_entry, fixed) = (entry(&self.entry), entry(&self.fixed));
        SavedParentPrefix {
            parts,
            fields: self.fields.clone(),
            line: self.line,
            own: self.own,
            entry: saved_entry,
            fixed,
            ttl: self.ttl,
            pieces: self.pieces as u32,
            has_results: self.has_results,
            extent: self.extent,
            is_followed: self.following.is_some(),
            siblings: self.siblings,
        }
    }

    /// Returns true if both are made of the same bytes for the same parent.
    pub fn is_like(&self, other: &ParentPrefix) -> bool {
        Arc::ptr_eq(&self.parent, &other.parent) && self.parts == other.parts
    }
}

impl SavedPrefixPart {
    fn of(part: &Bytes, parent: &Bytes, turn: &Bytes, own: &mut Vec<u8>) -> SavedPrefixPart {
        for (source, whole) in [(SavedSource::Parent, parent), (SavedSource::Turn, turn)] {
            let at = part.as_ptr().addr().checked_sub(whole.as_ptr().addr());
            if let Some(at) = at.filter(|at| whole.get(*at..at + part.len()) == Some(&part[..])) {
                return SavedPrefixPart(source, at, at + part.len());
            }
        }
        let start = own.len();
        own.extend_from_slice(part);
        SavedPrefixPart(SavedSource::Own, start, own.len())
    }

    fn restore(self, sources: &Sources<'_>) -> Option<Bytes> {
        let SavedPrefixPart(source, start, end) = self;
        let whole = match source {
            SavedSource::Parent => sources.parent,
            SavedSource::Turn => sources.turn,
            SavedSource::Own => sources.own,
        };
        (start <= end && end <= whole.len()).then(|| whole.slice(start..end))
    }
}

impl SavedParentPrefix {
    /// Restores it; none if its parts are not where they should be.
    pub fn restore(self, parent: &Arc<Parent>, sources: &Sources<'_>) -> Option<ParentPrefix> {
        let parts: Vec<Bytes> = self.parts.iter().map(|part| part.restore(sources)).collect::<Option<_>>()?;
        let count = parts.len();
        let entry = |saved: Option<SavedMark>| match saved {
            None => Some(None),
            Some(SavedMark { part, piece, ttl, marker }) if part < count => {
                Some(Some(PrefixMark { part, piece: piece as usize, ttl, marker: marker.restore(sources)? }))
            }
            Some(_) => None,
        };
        let (saved_entry, fixed) = (entry(self.entry)?, entry(self.fixed)?);
        let body = parent.request.body();
        let is_within = |(key, parts): &(Range<usize>, Range<usize>)| {
            body.get(key.clone()).is_some() && parts.start <= parts.end && parts.end <= count
        };
        let PrefixExtent { parent: bytes, fixed: fixed_bytes, entry: entry_bytes, turn, results } =
            self.extent;
        let counts = [bytes, fixed_bytes, entry_bytes, turn, results, self.siblings];
        let is_sound = self.fields.iter().all(is_within)
            && self.own < count
            && self.line.is_none_or(|line| line < count)
            && counts.into_iter().all(|count| count <= COUNT_MAX);
        if !is_sound {
            return None;
        }
        let followed = if self.is_followed { parts.last() } else { None };
        let following =
            followed.and_then(|results| following(sources.turn, results, parent.request.attribution()));
        Some(ParentPrefix {
            parent: Arc::clone(parent),
            parts,
            fields: self.fields,
            line: self.line,
            own: self.own,
            entry: saved_entry,
            fixed,
            ttl: self.ttl,
            pieces: self.pieces as usize,
            has_results: self.has_results,
            extent: self.extent,
            following,
            siblings: self.siblings,
        })
    }
}
