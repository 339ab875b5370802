//! Messages that are known, and where to look for the next one among them.

use std::sync::Arc;

use super::found::FoundPieces;
use super::place::ListPosition;
use super::{Known, Remembered};
use crate::engine::request::anatomy::Message;

/// The requests whose messages a new one may repeat, and how far its walk has come in each of them.
pub(super) struct KnownMessages<'a> {
    /// The request that the new one continues.
    pub continued: Option<Arc<Remembered>>,
    /// A request whose messages may come behind those of the continued one.
    following: Option<&'a Remembered>,
    /// The progress of the walk in the continued request, and in the following one.
    pub place: ListPosition,
    following_place: ListPosition,
}

/// A known message that may be the one that is read.
#[derive(Clone, Copy)]
pub(super) struct KnownMessage<'k> {
    pub request: &'k Remembered,
    pub index: usize,
    /// Its bytes are those of the message that is read. Otherwise it is the one that was at this place before, and
    /// may have lost a marker since.
    pub is_equal: bool,
    /// It belongs to the request that is continued.
    pub is_continued: bool,
}

impl<'a> KnownMessages<'a> {
    pub fn new(continued: Option<Arc<Remembered>>, known: Option<&'a dyn Known>) -> KnownMessages<'a> {
        KnownMessages {
            continued,
            following: known.and_then(|known| known.following()).filter(|next| next.is_usable()),
            place: ListPosition::default(),
            following_place: ListPosition::default(),
        }
    }

    /// Looks for the message that `rest` begins with.
    pub fn candidate(&mut self, rest: &[u8]) -> Option<KnownMessage<'_>> {
        let continued = self.continued.as_deref();
        let is_continued = |request: &Remembered| continued.is_some_and(|old| std::ptr::eq(old, request));
        let candidate = |request, index, is_equal| {
            Some(KnownMessage { request, index, is_equal, is_continued: is_continued(request) })
        };
        let mut last = None;
        if let Some(old) = continued {
            if let Some(index) = self.place.find(rest, |index| old.message_bytes(index)) {
                return candidate(old, index, true);
            }
            last = candidate(old, self.place.passed(), false);
        }
        let is_past = continued.is_none_or(|old| self.place.passed() >= old.anatomy.messages.len());
        // The messages of the following request are expected behind all of the continued one's.
        let Some(next) = self.following else { return last };
        if !is_past {
            return last;
        }
        match self.following_place.find(rest, |index| next.message_bytes(index)) {
            Some(index) => candidate(next, index, true),
            None => candidate(next, self.following_place.passed(), false),
        }
    }
}

impl KnownMessage<'_> {
    /// Takes the message over, if it is in `rest`, which begins at `start`: as it was, or without its marker.
    pub fn take(&self, found: &mut FoundPieces, start: usize, rest: &[u8]) -> Option<Message> {
        if self.is_equal {
            return Some(found.take_message(self.request, self.index, start));
        }
        found.take_unmarked(self.request, self.index, start, rest)
    }
}
