//! The marks by which a later turn of a child is known again.
//!
//! They are read from the request itself, which takes time in proportion to it. So a mark is read only if somebody asks
//! for it, and never while the children are locked:
//!
//! ```text
//! find_child ─ ask(marks) ─┬─ Ok(child, or none)
//!      ▲                   └─ Err(UnreadMark)
//!      └──── marks.read(it) ──┘
//! ```

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::shape;
use crate::engine::request::prefix::PrefixHash;
use crate::engine::request::recall::Remembered;
use crate::engine::words::{Layer, digits};

/// Ids of one request that are looked up.
const LOOKUPS_MAX: usize = 256;

/// A digest of the first user message and the first assistant turn, as they are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StartMeaning(#[serde(with = "digits")] [u8; 32]);

impl StartMeaning {
    /// The start of the conversation whose request was answered with this assistant message.
    pub fn of_answered(request: &Remembered, message: &[u8]) -> Option<StartMeaning> {
        // A client's own fork starts with its parent's turns, and goes on with them.
        let start = shape::start_meaning(request).or_else(|| shape::start_meaning_with(request, message));
        start.map(StartMeaning)
    }
}

/// Model and tools of a child: as they were spelt, and as they are meant.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Toolset {
    pub(super) spelt: PrefixHash,
    #[serde(with = "digits")]
    meant: [u8; 32],
}

impl Toolset {
    /// The tools of a request. Their meaning is read if it is not `known` by their spelling.
    pub fn of(request: &Remembered, known: impl FnOnce(PrefixHash) -> Option<Toolset>) -> Toolset {
        let spelt = spelt(request);
        known(spelt).unwrap_or_else(|| Toolset { spelt, meant: shape::tools_meaning(request) })
    }
}

/// Marks that have to be read before a child can be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnreadMark {
    Calls,
    Start,
    Tools,
}

/// The marks of a request, as far as they were read.
#[derive(Debug)]
pub struct ChildMarks<'a> {
    request: &'a Remembered,
    is_first_turn: bool,
    spelt: PrefixHash,
    /// The newest first.
    calls: Option<Vec<Cow<'a, str>>>,
    start: Option<Option<StartMeaning>>,
    meant: Option<[u8; 32]>,
}

/// Finds the child that a request is a later turn of. `ask` looks it up, and what that takes is read between its calls.
pub fn find_child<'a, T>(
    request: &'a Remembered,
    mut ask: impl FnMut(&ChildMarks<'a>) -> Result<T, UnreadMark>,
) -> T {
    let mut marks = ChildMarks::of(request);
    loop {
        match ask(&marks) {
            Ok(found) => return found,
            Err(unread) => marks.read(unread),
        }
    }
}

impl<'a> ChildMarks<'a> {
    fn of(request: &'a Remembered) -> ChildMarks<'a> {
        let is_first_turn = shape::is_first_turn(request);
        ChildMarks { request, is_first_turn, spelt: spelt(request), calls: None, start: None, meant: None }
    }

    fn read(&mut self, mark: UnreadMark) {
        match mark {
            UnreadMark::Calls => self.calls = Some(shape::call_ids(self.request).take(LOOKUPS_MAX).collect()),
            UnreadMark::Start => self.start = Some(shape::start_meaning(self.request).map(StartMeaning)),
            UnreadMark::Tools => self.meant = Some(shape::tools_meaning(self.request)),
        }
    }

    pub(super) fn is_ambiguous(&self) -> bool {
        self.request.anatomy().ambiguous
    }

    pub(super) fn is_first_turn(&self) -> bool {
        self.is_first_turn
    }

    pub(super) fn calls(&self) -> Result<impl Iterator<Item = &str>, UnreadMark> {
        let calls = self.calls.as_ref().ok_or(UnreadMark::Calls)?;
        Ok(calls.iter().map(|id| &**id))
    }

    pub(super) fn start(&self) -> Result<Option<StartMeaning>, UnreadMark> {
        self.start.ok_or(UnreadMark::Start)
    }

    /// Returns true if these are the tools of the request. Those of most turns are spelt alike; what they say is read
    /// only if they are not.
    pub(super) fn agrees(&self, tools: &Toolset) -> Result<bool, UnreadMark> {
        if tools.spelt == self.spelt {
            return Ok(true);
        }
        self.meant.map(|meant| tools.meant == meant).ok_or(UnreadMark::Tools)
    }
}

fn spelt(request: &Remembered) -> PrefixHash {
    request.chain().layer(request.anatomy(), Layer::Tools)
}
