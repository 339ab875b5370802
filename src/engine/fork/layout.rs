//! The body of a forked child, from its first turn to its last.

mod saved;

pub use saved::SavedChildPrefix;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::blocks::{self, Blocks};
use super::eligible::is_snapshot;
use super::fields::{self, Comparison};
use super::marks::{Later, Marks};
use super::opening::{self, Opening, Record};
use super::parent_prefix::{self, Branch, ParentMark, ParentPrefix};
use super::policy::ForkPolicy;
use super::said::Said;
use super::words;
use crate::engine::cache::breakpoints::{self, BREAKPOINTS_MAX, Breakpoint, Profile, THREAD_BREAKPOINTS_MAX};
use crate::engine::family::fanout::Child;
use crate::engine::family::thread::Delta;
use crate::engine::request::edit::{Edit, Forwarded};
use crate::engine::request::identify::{each_beta, has_effect};
use crate::engine::request::json::{Span, is_key};
use crate::engine::request::marker;
use crate::engine::request::recall::Remembered;
use crate::engine::words::{ForkNote, Rank, Refusal, Ttl};

/// A shorter piece is copied rather than shared.
const SHORT_BYTES: usize = 1_024;

/// A forked request as it goes out.
#[derive(Clone, Debug)]
pub struct Composed {
    pub body: Forwarded,
    /// The bytes that are the parent's, its turn included.
    pub shared: usize,
    /// In the order of the cache, by the pieces of this body.
    pub breakpoints: Vec<Breakpoint>,
    pub extent: OwnExtent,
    pub notes: Vec<ForkNote>,
}

/// The number of the prompt's bytes that are the child's own; the rest is the parent prefix's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnExtent {
    /// From the placeholders up to the directive.
    pub instructions: u64,
    /// The directive, and what follows it.
    pub rest: u64,
}

/// The prefix of a child for its life: the bytes up to its directive, and how to know again what is in them.
#[derive(Clone, Debug)]
pub struct ChildPrefix {
    parent_prefix: Arc<ParentPrefix>,
    /// The note, if there is one, the instructions, the other blocks, the directive.
    blocks: Blocks,
    /// Which of the blocks are instructions; those after them are of the first message.
    instructions: Range<usize>,
    system: Said,
    record: Record,
    /// The child has named its parent, and takes from it what it leaves out.
    lenient: bool,
    /// `fork.inherit` as it was then: a setting that changes later changes no prompt.
    inherit: Vec<String>,
}

impl ChildPrefix {
    /// Makes the prefix of a child before its first turn. `child` is as it was recognised.
    pub fn of(
        parent_prefix: &Arc<ParentPrefix>,
        request: &Remembered,
        child: &Child,
        policy: &ForkPolicy,
    ) -> Result<(ChildPrefix, Vec<ForkNote>), Refusal> {
        let parent = &*parent_prefix.parent.request;
        let call = child.call.and_then(|call| child.fork.calls.get(call));
        let opening = Opening::read(request, parent, call, policy)?;
        let own = opening::instructions(request, parent);
        let kind = child.call.and_then(|call| words::kind(&child.fork, call, policy));
        let tools = words::tool_names(request);
        let brought: BTreeSet<_> = tools.iter().collect();
        let fewer = !tools.is_empty() && words::tool_names(parent).iter().any(|tool| !brought.contains(tool));
        let instructed = !own.is_empty() || opening.is_hoisted();
        let is_snapshot = is_snapshot(request, child);
        let notes = if is_snapshot {
            words::Notes::default()
        } else {
            words::Notes {
                called: child.call.is_some(),
                instructions: instructed,
                report: words::asks_report(policy, kind.as_deref(), instructed),
                tools: fewer.then_some(tools),
                worktree: words::worktree(request, parent, &child.fork, child.call),
            }
        };
        let said = [
            (!child.fork.is_sealed(), ForkNote::Partial),
            (is_snapshot, ForkNote::Snapshot),
            (!own.is_empty(), ForkNote::Instructions),
            (opening.is_hoisted(), ForkNote::Hoisted),
            (notes.tools.is_some(), ForkNote::Tools),
            (notes.report && policy.template.is_none(), ForkNote::Report),
            (notes.worktree.is_some(), ForkNote::Worktree),
        ];
        let mut draft = blocks::Draft::default();
        let note = if is_snapshot {
            // Behind a turn without calls a message needs no words around it.
            parent_prefix.has_results.then(words::aside)
        } else {
            Some(words::boilerplate(&notes, policy.template.as_deref()))
        };
        note.into_iter().for_each(|note| draft.text(&super::quoted(&note)));
        let first = draft.len();
        own.iter().for_each(|piece| draft.piece(request.body(), piece));
        let instructions = first..draft.len();
        opening.others().for_each(|piece| draft.piece(request.body(), piece));
        draft.piece(request.body(), opening.directive());
        let prefix = ChildPrefix {
            parent_prefix: Arc::clone(parent_prefix),
            blocks: draft.done(),
            instructions,
            system: opening::instructions_said(request),
            record: opening.record(),
            lenient: child.rank == Rank::Explicit,
            inherit: policy.inherit.clone(),
        };
        Ok((prefix, said.into_iter().filter_map(|(is, note)| is.then_some(note)).collect()))
    }

    /// The body of a turn of this child: the same bytes up to its directive on every turn, as long as it says the
    /// same itself. An upstream that caches by itself gets them without markers.
    pub fn compose(&self, request: &Remembered, turn: Turn, profile: Profile) -> Composed {
        self.composed(request, turn, profile, Purpose::Message)
    }

    /// The body that counts the tokens of the child's next turn. What a count leaves out is the parent's, but for fields
    /// that no count takes; it brings no markers.
    pub fn count(&self, request: &Remembered) -> Composed {
        self.composed(request, Turn::Later(None), Profile::Automatic, Purpose::Count)
    }

    fn composed(&self, request: &Remembered, turn: Turn, profile: Profile, purpose: Purpose) -> Composed {
        let parent = &*self.parent_prefix.parent.request;
        let ContinuedTurn { blocks, directive, messages, mut notes } = self.continued(request);
        // Beside a call for a summary the API refuses some of what a parent may have: it takes nothing over.
        let summarizes = purpose == Purpose::Message && fields::value(request, fields::COMPACTION).is_some();
        let lenient = !summarizes && (self.lenient || purpose == Purpose::Count);
        let inherit = if summarizes { &[][..] } else { &self.inherit };
        let changed = Comparison { child: request, parent, lenient, inherit };
        let mut changed = changed.changed();
        notes.extend((!changed.is_empty()).then_some(ForkNote::ChangedFields));
        if purpose == Purpose::Count {
            changed.extend(fields::uncounted(parent));
        }
        let (line, note) = self.line(request);
        notes.extend(note);
        let ttl = self.tier(request);
        let later = Later::of(request, messages);
        let takes_markers = profile != Profile::Automatic && turn != Turn::Held;
        let mut marks = if takes_markers {
            Marks::plan(self.parent_prefix.pieces, &blocks, directive, &later, turn)
        } else {
            Marks::default()
        };
        marks.results &= self.parent_prefix.has_results;
        let is_threaded = request.anatomy().is_threaded(request.body());
        let most = if is_threaded { THREAD_BREAKPOINTS_MAX } else { BREAKPOINTS_MAX };
        // Where there is no place for all, a is found from b unless it is too far from it.
        let marks_entry = marks.len() < most || !self.parent_prefix.is_entry_near();
        marks.keep(if turn == Turn::First && marks_entry { most - 1 } else { most });
        let branch =
            Branch { request, line, changed: &changed, limits: self.lenient && purpose == Purpose::Message };
        let mut out = Vec::new();
        let of_parent = match turn {
            _ if !takes_markers => None,
            Turn::First => marks_entry.then_some(ParentMark::Entry),
            // A changed field or an image costs the messages then, and not everything.
            Turn::Later(_) => (marks.len() < most).then_some(ParentMark::Fixed),
            Turn::Held => None,
        };
        let entry = self.parent_prefix.append_to(&mut out, &branch, of_parent);
        if self.parent_prefix.has_results {
            out.extend(marks.results.then(|| marker::as_last_member(ttl)));
            out.push(Bytes::from_static(b"},"));
        }
        blocks.append_to(&mut out, &marks.blocks, ttl);
        out.push(Bytes::from_static(b"]}"));
        later.append_to(&mut out, &marks.later, ttl);
        out.push(Bytes::from_static(b"]}"));
        let added = marks.pieces(self.parent_prefix.pieces, blocks.len());
        let breakpoints = entry.into_iter().chain(added.map(|piece| super::added(piece, ttl))).collect();
        let directive = directive.unwrap_or(blocks.len());
        let extent = OwnExtent {
            instructions: blocks.bytes_of(0..directive),
            rest: blocks.bytes_of(directive..blocks.len()) + later.bytes(),
        };
        let body = Forwarded { length: out.iter().map(Bytes::len).sum(), pieces: gathered(out) };
        Composed { body, shared: self.parent_prefix.shared_bytes(), breakpoints, extent, notes }
    }

    /// Returns the part of the first turn that a later one has kept, and what of it is new.
    fn continued(&self, request: &Remembered) -> ContinuedTurn {
        let (kept, parent) = (self.record.matches(request), &*self.parent_prefix.parent.request);
        let same_system = opening::instructions_said(request) == self.system;
        if let (Some(messages), true) = (kept, same_system) {
            let directive = Some(self.blocks.len() - 1);
            return ContinuedTurn { blocks: self.blocks.clone(), directive, messages, notes: Vec::new() };
        }
        let mut notes = Vec::new();
        let mut draft = blocks::Draft::default();
        draft.again(&self.blocks, 0..self.instructions.start);
        if same_system {
            draft.again(&self.blocks, self.instructions.clone());
        } else {
            notes.push(ForkNote::NewInstructions);
            let own = opening::instructions(request, parent);
            own.iter().for_each(|piece| draft.piece(request.body(), piece));
        }
        match kept {
            Some(_) => draft.again(&self.blocks, self.instructions.end..self.blocks.len()),
            None => notes.push(ForkNote::Compacted),
        }
        let directive = kept.map(|_| draft.len() - 1);
        // A message must say something: without a note it is what the client says first now.
        let mut taken = 0;
        if draft.len() == 0 && !self.parent_prefix.has_results {
            taken = opening::take_first(request, &mut draft);
        }
        ContinuedTurn { blocks: draft.done(), directive, messages: kept.unwrap_or(taken), notes }
    }

    /// The child's own attribution line, where it has a place, and what became of it.
    fn line(&self, request: &Remembered) -> (Option<Bytes>, Option<ForkNote>) {
        match parent_prefix::line_of(request) {
            None => (None, None),
            Some(_) if !self.parent_prefix.takes_line() => (None, Some(ForkNote::LineLeftOut)),
            Some(line) => {
                let (before, after) = line.unmarked(request.body());
                (Some([before, after].concat().into()), Some(ForkNote::OwnLine))
            }
        }
    }

    /// The lifetime that the child asks for, never longer than its parent's.
    fn tier(&self, request: &Remembered) -> Ttl {
        let own = breakpoints::of_client(request.body(), request.anatomy()).pop();
        match (own.map(|point| point.ttl), self.parent_prefix.ttl) {
            (Some(Ttl::OneHour), Ttl::OneHour) => Ttl::OneHour,
            _ => Ttl::FiveMinutes,
        }
    }

    pub fn parent_prefix(&self) -> &Arc<ParentPrefix> {
        &self.parent_prefix
    }

    /// Returns the bytes that this holds in memory beside the parent prefix.
    pub fn memory_bytes(&self) -> usize {
        size_of::<ChildPrefix>()
            + self.blocks.memory_bytes()
            + self.inherit.iter().map(String::len).sum::<usize>()
    }
}

/// The purpose for which a turn of a child is composed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Message,
    Count,
}

/// Which turn of a child is composed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    First,
    /// With the piece where the turn before wrote its tail, if that is known.
    Later(Option<usize>),
    /// The server holds what is before it: its markers are those of what came.
    Held,
}

/// The child's own message as it follows one turn.
struct ContinuedTurn {
    blocks: Blocks,
    /// Which block is the directive; none once the child has replaced its first message.
    directive: Option<usize>,
    /// The number of messages of the request that the blocks replace.
    messages: usize,
    notes: Vec<ForkNote>,
}

/// Returns what is sent of a forked request whose conversation the server holds: its fields, and the messages that
/// came. The server has tools and system as they went out with the first turn, and would compare others with those.
pub fn held(whole: &Remembered, delta: &Delta, edits: &[Edit]) -> Forwarded {
    let (body, anatomy) = (whole.body(), whole.anatomy());
    let is_left_out = |key: &Span| ["tools", "system", "messages"].iter().any(|name| is_key(body, key, name));
    let mut out = vec![Bytes::from_static(b"{")];
    for member in anatomy.members.iter().filter(|member| !is_left_out(&member.key)) {
        out.extend([body.slice(member.key.start..member.value.end), Bytes::from_static(b",")]);
    }
    out.push(Bytes::from_static(b"\"messages\":["));
    out.extend(delta.messages(edits));
    out.push(Bytes::from_static(b"]}"));
    Forwarded { length: out.iter().map(Bytes::len).sum(), pieces: gathered(out) }
}

/// The pieces with short neighbours joined: each is a write of its own, and copying them is cheaper.
fn gathered(pieces: Vec<Bytes>) -> Vec<Bytes> {
    let (mut out, mut short) = (Vec::new(), Vec::new());
    for piece in pieces {
        if piece.len() < SHORT_BYTES {
            short.extend_from_slice(&piece);
            continue;
        }
        if !short.is_empty() {
            out.push(std::mem::take(&mut short).into());
        }
        out.push(piece);
    }
    if !short.is_empty() {
        out.push(short.into());
    }
    out
}

/// The betas of a forked child: the parent's, then those of its own that are missing. What it sends itself is enough if
/// its parent's others have no effect.
pub fn betas(parent: &str, child: &str) -> String {
    let own: BTreeSet<&str> = each_beta(child).collect();
    let mut all: Vec<&str> =
        each_beta(parent).filter(|beta| own.contains(beta) || has_effect(beta)).collect();
    if all.iter().all(|beta| own.contains(beta)) {
        return each_beta(child).collect::<Vec<_>>().join(",");
    }
    let mut known: BTreeSet<&str> = all.iter().copied().collect();
    all.extend(each_beta(child).filter(|beta| known.insert(beta)));
    all.join(",")
}
