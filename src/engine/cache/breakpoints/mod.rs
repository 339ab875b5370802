//! Breakpoints: where the prompt cache should write, so that the next request finds it.
//!
//! An entry is written only at a marker, and found only from a marker at most 19 positions later. Many clients
//! send no markers, or mark where nothing will be read. The planner keeps every marker of the client and adds, while
//! fewer than four are used, what is missing, most worth first:
//!
//! 1. the newest end of the conversation, which its next turn reads;
//! 2. the end of what the siblings of a client's own fork share;
//! 3. a bridge to an entry that the lookback would miss, since this very request reads it;
//! 4. the end of the system prompt, which other conversations read, and this one when its messages are lost;
//! 5. the end of the tools, for conversations with another system prompt. Behind it is all of the above, so that
//!    it saves least.
//!
//! An entry inside of a prefix that is written anyway costs nothing: the last two are left out only where there is no
//! slot, or where nothing behind them is written and they are not known to be read.
//!
//! The rule: a plan only inserts. What the model reads stays as it came, a string stays a string, and a request
//! that the upstream accepts as received is accepted as planned. Planning a planned body adds nothing.
//!
//! ```
//! use bytes::Bytes;
//! use forkpoint::engine::{request::anatomy::Anatomy, cache::breakpoints::{Profile, Situation, plan}, request::edit::apply};
//! let body = Bytes::from_static(br#"{"tools":[{"name":"n"}],"messages":[{"role":"user","content":"hi"}]}"#);
//! let plan = plan(&body, &Anatomy::read(&body).unwrap(), &Situation::new(Profile::Anthropic));
//! let forwarded = apply(&body, &plan.edits).pieces.concat();
//! assert!(forwarded.starts_with(br#"{"cache_control":{"type":"ephemeral"},"tools":[{"name":"n","cache_"#));
//! ```

mod block;
mod marks;
#[cfg(test)]
mod tests;

pub(in crate::engine) use block::{room_alone, room_when_cut};
pub(in crate::engine) use marks::BREAKPOINTS_MAX;
pub use marks::Breakpoint;

use std::ops::Range;

use crate::engine::request::anatomy::{Anatomy, Form};
use crate::engine::request::edit::Edit;
use crate::engine::request::{json, marker};
use crate::engine::words::{BreakpointPlace, Carrier, Layer, Origin, Skip, Ttl};
use block::{has_unseen_size, is_empty_string, room};
use marks::{RequestMarks, TopLevel};

/// A breakpoint finds entries at its own position and this many before it.
pub(in crate::engine) const LOOKBACK: usize = 19;

/// The number of breakpoints that a conversation which the server holds may have.
pub(in crate::engine) const THREAD_BREAKPOINTS_MAX: usize = 3;

/// No text has more bytes to a token, so what is learned otherwise is wrong. A marker too many is harmless.
const TOKENS_PER_BYTE_MIN: f64 = 0.125;

/// Facts that the caller knows besides the request.
#[derive(Clone, Copy, Debug)]
pub struct Situation {
    pub profile: Profile,
    /// The shortest prefix that the model caches.
    pub minimum_tokens: Option<u64>,
    /// Learned from billed usage; without it no ratio is assumed.
    pub tokens_per_byte: Option<f64>,
    /// The piece where the newest known entry of this conversation ends.
    pub last_written: Option<usize>,
    /// The conversations of this tenant and tool set seldom continue. It says nothing about one that was answered:
    /// that has continued.
    pub seldom_continues: bool,
    /// What this turn writes would hardly be read in time, as far as turns of this conversation and of others tell.
    pub is_read_late: bool,
    /// The ends that other conversations are known to read.
    pub read_by_others: StaticEnds,
    /// The last piece that its siblings have too, of a fork that its client has made.
    pub shared: Option<usize>,
    /// The first layer that changes from turn to turn, so that nothing from there on is read again.
    pub unread_from: Option<Layer>,
    /// The number of pieces that the server holds already: nothing can be put there.
    pub held_pieces: usize,
}

impl Situation {
    /// Nothing known but the upstream.
    pub fn new(profile: Profile) -> Situation {
        Situation {
            profile,
            minimum_tokens: None,
            tokens_per_byte: None,
            last_written: None,
            seldom_continues: false,
            is_read_late: false,
            read_by_others: StaticEnds::default(),
            shared: None,
            unread_from: None,
            held_pieces: 0,
        }
    }
}

/// The ends of what comes before the messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StaticEnds {
    pub tools: bool,
    pub system: bool,
}

impl StaticEnds {
    pub const BOTH: StaticEnds = StaticEnds { tools: true, system: true };

    fn has(self, layer: Layer) -> bool {
        match layer {
            Layer::Tools => self.tools,
            Layer::System => self.system,
            Layer::Model | Layer::Messages => false,
        }
    }
}

/// The way in which the upstream learns what to cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Profile {
    /// Markers on blocks, and one at the top level that follows the end of the conversation.
    Anthropic,
    /// Markers on blocks only: the top-level one is refused.
    BlocksOnly,
    /// Caches by itself and has no markers (vLLM, SGLang, llama.cpp, DeepSeek).
    Automatic,
}

/// Insertions, the places that were left out and why, and the breakpoints of the forwarded request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// In the order of the body.
    pub edits: Vec<Edit>,
    pub skipped: Vec<(BreakpointPlace, Skip)>,
    /// In the order of the cache, the client's own included. Empty if the request was not understood.
    pub breakpoints: Vec<Breakpoint>,
}

/// Plans the breakpoints of one request. `anatomy` is that of `body`.
pub fn plan(body: &[u8], anatomy: &Anatomy, situation: &Situation) -> Plan {
    let marks = if anatomy.ambiguous { Err(Skip::Ambiguous) } else { RequestMarks::read(body, anatomy) };
    let marks = match marks {
        Ok(marks) => marks,
        Err(skip) => return Plan { skipped: vec![(BreakpointPlace::Request, skip)], ..Plan::default() },
    };
    let mut planner = Planner { body, anatomy, situation, marks, edits: Vec::new(), skipped: Vec::new() };
    planner.run();
    planner.finish()
}

/// Returns the breakpoints of a request as it came; empty if they cannot be read.
pub fn of_client(body: &[u8], anatomy: &Anatomy) -> Vec<Breakpoint> {
    RequestMarks::read(body, anatomy).map_or_else(|_| Vec::new(), |marks| marks.breakpoints())
}

/// Returns true if the upstream will refuse the request for its markers.
pub fn are_illegal(body: &[u8], anatomy: &Anatomy) -> bool {
    matches!(RequestMarks::read(body, anatomy), Err(Skip::IllegalMarkers))
}

struct Planner<'a> {
    body: &'a [u8],
    anatomy: &'a Anatomy,
    situation: &'a Situation,
    marks: RequestMarks,
    edits: Vec<Edit>,
    skipped: Vec<(BreakpointPlace, Skip)>,
}

/// `Ok` if a place has its breakpoint now, the client's or ours.
type Covered = Result<(), Skip>;

impl Planner<'_> {
    fn run(&mut self) {
        if self.situation.profile == Profile::Automatic {
            return self.skipped.push((BreakpointPlace::Request, Skip::AutomaticCache));
        }
        if let Some(skip) = self.end() {
            // A new tail would be written and never read.
            self.cover_static(|planner, layer| {
                planner.situation.read_by_others.has(layer) || planner.is_written(layer)
            });
            let place = if self.edits.is_empty() { BreakpointPlace::Request } else { BreakpointPlace::Tail };
            return self.skipped.push((place, skip));
        }
        let Situation { unread_from, last_written, .. } = *self.situation;
        // Behind what changes from turn to turn nothing is ever read again.
        if unread_from.is_some() {
            self.note(BreakpointPlace::Tail, Err(Skip::NeverRead));
            return self.cover_static(|_, layer| unread_from.is_none_or(|unread| layer < unread));
        }
        let covered = self.cover_tail();
        self.note(BreakpointPlace::Tail, covered);
        let covered = self.cover_shared();
        self.note(BreakpointPlace::Shared, covered);
        // The ends of the static part find what ends there themselves.
        let is_in_messages =
            last_written.is_some_and(|entry| entry >= self.anatomy.tools + self.anatomy.system);
        if is_in_messages {
            self.bridge();
        }
        self.cover_static(|_, _| true);
        if !is_in_messages {
            self.bridge();
        }
    }

    /// Returns why the conversation is taken to end with this request.
    fn end(&self) -> Option<Skip> {
        let Situation { seldom_continues, is_read_late, .. } = *self.situation;
        if is_read_late || (seldom_continues && !self.is_answered()) {
            return Some(Skip::SeldomContinues);
        }
        (!self.continues_by_shape()).then_some(Skip::OneShot)
    }

    /// Tools will be called, a conversation that was answered once goes on, and one that the server holds is meant to.
    fn continues_by_shape(&self) -> bool {
        let has_tools = self.anatomy.pieces[..self.anatomy.tools].iter().any(|tool| tool.form == Form::Block);
        has_tools || self.is_answered() || self.is_threaded()
    }

    fn is_answered(&self) -> bool {
        self.anatomy.messages.iter().any(|message| message.has_role(self.body, "assistant"))
    }

    /// Returns true if the server holds the conversation. It compares the fields of a later turn with those of the first,
    /// so that nothing is added but in the messages.
    fn is_threaded(&self) -> bool {
        self.anatomy.is_threaded(self.body)
    }

    /// The first piece that a marker may be put on.
    fn first_markable(&self) -> usize {
        let statics = self.anatomy.tools + self.anatomy.system;
        if self.is_threaded() { self.situation.held_pieces.max(statics) } else { 0 }
    }

    fn cover_tail(&mut self) -> Covered {
        if self.marks.top_level == TopLevel::Marked {
            return Ok(());
        }
        let automatic = self.situation.profile == Profile::Anthropic
            && self.marks.top_level == TopLevel::Absent
            && !self.is_threaded();
        let first = self.first_markable().max(self.anatomy.tools + self.anatomy.system);
        for index in (first..self.anatomy.pieces.len()).rev() {
            if self.marks.has_breakpoint(index..=index) {
                return Ok(());
            }
            let piece = &self.anatomy.pieces[index];
            if let Some(at) = room(self.body, self.anatomy, index) {
                return self.add(index, Carrier::Block, at);
            }
            if piece.form == Form::Text && automatic && !is_empty_string(self.body, &piece.span) {
                let at = json::skip_space(self.body, 0) + 1;
                return self.add(index, Carrier::TopLevel, at);
            }
        }
        Err(Skip::NoLegalBlock)
    }

    /// The first sibling writes here what the others read. What the parent has written is found from the tail, or
    /// by the bridge.
    fn cover_shared(&mut self) -> Covered {
        let shared = self.situation.shared.filter(|shared| *shared < self.anatomy.pieces.len());
        let Some(shared) = shared else { return Ok(()) };
        let is_written = self.situation.last_written.is_some_and(|entry| entry >= shared);
        if is_written || self.marks.has_breakpoint(shared..=shared) || shared < self.first_markable() {
            return Ok(());
        }
        let at = room(self.body, self.anatomy, shared).ok_or(Skip::NoLegalBlock)?;
        self.add(shared, Carrier::Block, at)
    }

    /// Covers the end of the system prompt and that of the tools, where they are read.
    fn cover_static(&mut self, is_read: impl Fn(&Self, Layer) -> bool) {
        if self.is_threaded() {
            return;
        }
        for (layer, place) in
            [(Layer::System, BreakpointPlace::System), (Layer::Tools, BreakpointPlace::Tools)]
        {
            if is_read(self, layer) {
                let covered = self.cover_end(layer);
                self.note(place, covered);
            }
        }
    }

    fn cover_end(&mut self, layer: Layer) -> Covered {
        let pieces = self.pieces(layer);
        if pieces.is_empty() {
            return Ok(());
        }
        for index in pieces.rev() {
            if self.marks.has_breakpoint(index..=index) {
                return Ok(());
            }
            if let Some(at) = room(self.body, self.anatomy, index) {
                return self.add(index, Carrier::Block, at);
            }
        }
        Err(Skip::NoLegalBlock)
    }

    /// Returns true if the end of a layer is inside of a prefix that is written anyway.
    fn is_written(&self, layer: Layer) -> bool {
        self.marks.last_breakpoint().is_some_and(|last| last >= self.pieces(layer).end)
    }

    /// The pieces of the tools, or of the system prompt.
    fn pieces(&self, layer: Layer) -> Range<usize> {
        let Anatomy { tools, system, .. } = *self.anatomy;
        if layer == Layer::Tools { 0..tools } else { tools..tools + system }
    }

    fn bridge(&mut self) {
        let covered = self.cover_bridge();
        self.note(BreakpointPlace::Bridge, covered);
    }

    /// Any breakpoint within the lookback of the entry finds it; best is one on the entry's own end, where
    /// nothing new is written. Pieces that are no positions (deferred tools) only make the bridge shorter.
    fn cover_bridge(&mut self) -> Covered {
        let Some(entry) = self.situation.last_written else { return Ok(()) };
        let reach = entry.saturating_add(LOOKBACK);
        let last = self.marks.last_breakpoint().unwrap_or_default();
        if last <= entry || self.marks.has_breakpoint(entry..=reach) {
            return Ok(());
        }
        for index in entry.max(self.first_markable())..=reach.min(last) {
            if let Some(at) = room(self.body, self.anatomy, index) {
                return self.add(index, Carrier::Block, at);
            }
        }
        Err(Skip::NoLegalBlock)
    }

    fn add(&mut self, piece: usize, carrier: Carrier, at: usize) -> Covered {
        if self.is_too_small(piece) {
            return Err(Skip::BelowMinimum);
        }
        let most = if self.is_threaded() { THREAD_BREAKPOINTS_MAX } else { BREAKPOINTS_MAX };
        if self.marks.used >= most {
            return Err(Skip::NoSlot);
        }
        let ttl = self.marks.tier(piece)?;
        self.marks.insert(Breakpoint { piece, ttl, origin: Origin::Added, carrier });
        self.edits.push(insertion(at, carrier, ttl));
        Ok(())
    }

    /// Returns true if the prefix that ends with this piece is certainly shorter than the model caches. A token is at
    /// least a byte; a piece that brings more than its bytes (an image behind a URL) is taken to be large enough.
    fn is_too_small(&self, piece: usize) -> bool {
        let Some(minimum) = self.situation.minimum_tokens else { return false };
        let ratio = self.situation.tokens_per_byte.filter(|ratio| ratio.is_finite() && *ratio > 0.0);
        let prefix = &self.anatomy.pieces[..=piece];
        let bytes: usize = prefix
            .iter()
            .filter(|piece| !piece.deferred)
            .map(|piece| piece.unmarked(self.body))
            .map(|(before, after)| before.len() + after.len())
            .sum();
        bytes as f64 * ratio.unwrap_or(1.0).max(TOKENS_PER_BYTE_MIN) < minimum as f64
            && !has_unseen_size(self.body, self.anatomy, piece)
    }

    fn note(&mut self, place: BreakpointPlace, covered: Covered) {
        self.skipped.extend(covered.err().map(|skip| (place, skip)));
    }

    fn finish(mut self) -> Plan {
        self.edits.sort_by_key(Edit::at);
        Plan { edits: self.edits, skipped: self.skipped, breakpoints: self.marks.breakpoints() }
    }
}

/// The marker of a breakpoint: a block takes it after its last member, the body before its first. Both have others.
fn insertion(at: usize, carrier: Carrier, ttl: Ttl) -> Edit {
    let insert = match carrier {
        Carrier::Block => marker::as_last_member(ttl),
        Carrier::TopLevel => marker::as_first_member(ttl),
    };
    Edit::inserting(at, insert)
}
