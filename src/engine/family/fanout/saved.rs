//! Fork points and children, as they are kept beyond this process.
//!
//! The parent's request and the turn are bytes of their own. Everything that follows from them is read anew.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::bindings::{Bindable, Binding, ChildName};
use super::directive::Call;
use super::fan_outs::FanOuts;
use super::forks::Claim;
use super::holdings::HoldingNumber;
use super::marks::{StartMeaning, Toolset};
use super::point::{ForkId, ForkPoint, Parent, share};
use super::rules::{Rules, Who};
use crate::engine::answer::turn::assistant_message;
use crate::engine::answer::usage::Usage;
use crate::engine::cache::breakpoints::Breakpoint;
use crate::engine::records::Writer;
use crate::engine::request::json;
use crate::engine::request::prefix::Attribution;
use crate::engine::request::recall::{Nothing, Remembered};
use crate::engine::words::{IdDigest, Layer, Moment, Spawning};

/// Changes that are noted; beyond it, everything is written anew.
const CHANGES_MAX: usize = 8_192;

/// A fork point beside the bytes of its parent's request and of its turn.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SavedPoint {
    id: ForkId,
    is_nested: bool,
    is_sealed: bool,
    betas: String,
    version: String,
    who: Who,
    written: Option<Breakpoint>,
    is_forwarded: bool,
    strips_attribution: bool,
    /// The length of each block of the turn.
    blocks: Vec<usize>,
    usage: Option<Usage>,
    /// The evidence that the tool of each call starts agents.
    spawning: Vec<Spawning>,
}

/// The children that have started from the calls of a fork point, and the results that have come back.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SavedClaims {
    claims: BTreeMap<usize, Claim>,
    returned: BTreeSet<usize>,
}

/// The marks by which a child is known on its later turns.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SavedMarks {
    pub(super) calls: Vec<String>,
    pub(super) start: Option<StartMeaning>,
    pub(super) rests: bool,
    pub(super) used: Moment,
    #[serde(default)]
    pub(super) revision: u64,
}

impl ForkPoint {
    /// Returns it beside its bytes, the parent's request, and the turn as a message.
    pub fn save(&self) -> (SavedPoint, Bytes, Bytes) {
        let Parent { request, betas, version, who, written, is_forwarded } = &*self.parent;
        let saved = SavedPoint {
            id: self.id,
            is_nested: self.is_nested,
            is_sealed: self.is_sealed(),
            betas: betas.clone(),
            version: version.clone(),
            who: *who,
            written: *written,
            is_forwarded: *is_forwarded,
            strips_attribution: request.attribution() == Attribution::Stripped,
            blocks: self.blocks.iter().map(Bytes::len).collect(),
            usage: self.usage,
            spawning: self.calls.iter().map(|call| call.spawning).collect(),
        };
        let said = || assistant_message(self.blocks.iter().map(|block| &block[..])).into();
        (saved, request.body().clone(), self.message.clone().unwrap_or_else(said))
    }
}

impl SavedPoint {
    pub fn id(&self) -> ForkId {
        self.id
    }

    /// Returns true if this parent is the one that it was saved with, its request aside.
    pub fn has_parent(&self, parent: &Parent) -> bool {
        parent.betas == self.betas && parent.version == self.version && parent.who == self.who
    }

    /// Reads its parent.
    pub fn parent(&self, body: Bytes) -> Option<Parent> {
        let attribution = if self.strips_attribution { Attribution::Stripped } else { Attribution::Counted };
        let request = Remembered::read(body, &Nothing, attribution).ok()?;
        let pieces = request.anatomy().pieces.len();
        Some(Parent {
            request: Arc::new(request),
            betas: self.betas.clone(),
            version: self.version.clone(),
            who: self.who,
            written: self.written.filter(|point| point.piece < pieces),
            is_forwarded: self.is_forwarded,
        })
    }

    /// Reads the fork point, which has yet to be counted; none if the turn is not the one that it was saved with.
    pub fn point(&self, parent: Arc<Parent>, message: &Bytes, rules: &Rules) -> Option<ForkPoint> {
        let total = self.blocks.iter().try_fold(0usize, |sum, length| sum.checked_add(*length))?;
        if total > message.len() || self.blocks.is_empty() {
            return None;
        }
        let mut blocks: Vec<Bytes> = Vec::with_capacity(self.blocks.len().min(message.len()));
        blocks.extend(self.blocks.iter().map(|length| message.slice(..*length)));
        share(&mut blocks, message);
        let is_object =
            |block: &Bytes| block.starts_with(b"{") && json::value_end(block, 0) == Ok(block.len());
        let is_turn = blocks.iter().all(is_object)
            && assistant_message(blocks.iter().map(|block| &block[..])) == *message;
        let calls = if is_turn { self.calls(&blocks, rules)? } else { return None };
        let request = &parent.request;
        Some(ForkPoint {
            id: self.id,
            is_nested: self.is_nested,
            prefix: request.chain().layer(request.anatomy(), Layer::Messages),
            parent,
            blocks,
            calls,
            message: self.is_sealed.then(|| message.clone()),
            usage: self.usage,
            number: HoldingNumber::default(),
            parent_number: HoldingNumber::default(),
        })
    }

    fn calls(&self, blocks: &[Bytes], rules: &Rules) -> Option<Vec<Call>> {
        let is_call = |block: &Bytes| {
            let kind = json::member(block, 0, "type").and_then(|kind| json::text(block, &kind));
            kind.is_some_and(|kind| kind == "tool_use")
        };
        let called = blocks.iter().enumerate().filter(|(_, block)| is_call(block));
        let mut calls: Vec<Call> =
            called.map(|(number, block)| Call::read(block, number, rules)).collect::<Option<_>>()?;
        if calls.len() != self.spawning.len() {
            return None;
        }
        calls.iter_mut().zip(&self.spawning).for_each(|(call, spawning)| call.spawning = *spawning);
        Some(calls)
    }
}

/// The fork points and children that have changed since they were taken.
#[derive(Debug, Default)]
pub(super) struct ChangedFanOuts {
    /// None if nothing of them outlives this process.
    writer: Option<Writer>,
    points: BTreeSet<ForkId>,
    claims: BTreeSet<ForkId>,
    /// True for those whose prefix is to be written too.
    children: BTreeMap<ChildName, bool>,
    /// The sessions or tools that are known to name or start agents.
    habits: bool,
    /// True once more has changed than is noted.
    overflows: bool,
}

impl ChangedFanOuts {
    pub fn writer(&self) -> Writer {
        self.writer.unwrap_or_default()
    }

    pub fn point(&mut self, id: ForkId) {
        if self.writer.is_some() {
            self.points.insert(id);
            self.claims.insert(id);
            self.bound();
        }
    }

    pub fn claims(&mut self, id: ForkId) {
        if self.writer.is_some() {
            self.claims.insert(id);
            self.bound();
        }
    }

    pub fn child(&mut self, name: Option<ChildName>, is_new: bool) {
        if let (Some(name), Some(_)) = (name, self.writer) {
            *self.children.entry(name).or_default() |= is_new;
            self.bound();
        }
    }

    pub fn habits(&mut self, changed: bool) {
        self.habits |= changed && self.writer.is_some();
    }

    fn bound(&mut self) {
        if self.points.len() + self.claims.len() + self.children.len() > CHANGES_MAX {
            *self = ChangedFanOuts { writer: self.writer, overflows: true, ..ChangedFanOuts::default() };
        }
    }
}

/// A fork point to be written, since when it is there, and the milliseconds that it still lives.
pub type UnsavedPoint = (Arc<ForkPoint>, Moment, u64);

/// Fork points and children to be written. What is gone has no value.
#[derive(Debug)]
pub struct UnsavedFanOuts<B> {
    pub points: Vec<(ForkId, Option<UnsavedPoint>)>,
    pub claims: Vec<(ForkId, SavedClaims, u64)>,
    pub children: Vec<(ChildName, Option<UnsavedChild<B>>)>,
}

impl<B> Default for UnsavedFanOuts<B> {
    fn default() -> UnsavedFanOuts<B> {
        UnsavedFanOuts { points: Vec::new(), claims: Vec::new(), children: Vec::new() }
    }
}

/// A child to be written.
#[derive(Debug)]
pub struct UnsavedChild<B> {
    pub value: B,
    pub who: Who,
    pub tools: Toolset,
    pub marks: SavedMarks,
    /// True if its prefix is to be written too.
    pub is_new: bool,
    pub ttl_ms: u64,
}

impl<B: Clone> FanOuts<B> {
    /// Takes what has changed. `all`: everything that is known.
    pub fn take_unsaved(&mut self, all: bool, now: Moment) -> UnsavedFanOuts<B> {
        let ChangedFanOuts { writer, habits, .. } = self.changed;
        let left = ChangedFanOuts { writer, habits, ..ChangedFanOuts::default() };
        let taken = std::mem::replace(&mut self.changed, left);
        let ChangedFanOuts { mut points, mut claims, mut children, .. } = taken;
        if all {
            points.extend(self.points.slots.keys());
            claims.extend(self.points.slots.keys());
            children.extend(self.children.names().map(|name| (name, true)));
        }
        let ttl_ms = self.points.rules.ttl_s.saturating_mul(1_000);
        let lives = |since: Moment| ttl_ms.saturating_sub(now.since(since)).max(1);
        let slot = |id: &ForkId| self.points.slots.get(id);
        let point =
            |id: ForkId| (id, slot(&id).map(|slot| (Arc::clone(&slot.point), slot.since, lives(slot.since))));
        let claim = |id: ForkId| {
            let slot = slot(&id)?;
            let saved = SavedClaims { claims: slot.claims.clone(), returned: slot.returned.clone() };
            Some((id, saved, lives(slot.since)))
        };
        UnsavedFanOuts {
            points: points.into_iter().map(point).collect(),
            claims: claims.into_iter().filter_map(claim).collect(),
            children: children
                .into_iter()
                .map(|(name, is_new)| (name, self.children.unsaved(name, is_new, now)))
                .collect(),
        }
    }
}

impl<B> FanOuts<B> {
    /// From now on changes are noted, and children are named after this writer.
    pub fn save_as(&mut self, writer: Writer) {
        self.changed.writer = Some(writer);
    }

    /// Returns true if a fork point or a child has changed.
    pub fn has_unsaved(&self) -> bool {
        let ChangedFanOuts { points, claims, children, .. } = &self.changed;
        self.changed.overflows || !points.is_empty() || !claims.is_empty() || !children.is_empty()
    }

    /// Takes whether more has changed than was noted.
    pub fn take_overflow(&mut self) -> bool {
        std::mem::take(&mut self.changed.overflows)
    }

    /// The fork point of this id, also if only a child of it still holds it.
    pub fn known_point(&self, id: ForkId) -> Option<&Arc<ForkPoint>> {
        self.points.get(id).or_else(|| self.children.points().find(|point| point.id == id))
    }

    /// Takes over a fork point that another process has known, unless as much is known of it here.
    pub fn restore_point(&mut self, point: ForkPoint, since: Moment, now: Moment) -> bool {
        if let Some(known) = self.points.get(point.id)
            && (known.is_sealed() || (!point.is_sealed() && known.blocks.len() >= point.blocks.len()))
        {
            return false;
        }
        let point = self.counted(point);
        let is_kept = self.points.restore(point, since, &mut self.holdings).is_ok();
        self.expire(now);
        is_kept
    }

    /// Takes over what another process knows of a fork point's calls. All processes write one record: whoever knows more
    /// than it says writes it again.
    pub fn restore_claims(&mut self, id: ForkId, saved: SavedClaims) -> bool {
        let Some(slot) = self.points.slots.get_mut(&id) else { return false };
        let is_said = |(call, claim): (&usize, &Claim)| {
            saved.claims.get(call).is_some_and(|said| said.is_accepted || !claim.is_accepted)
        };
        let knows_more = !slot.claims.iter().all(is_said) || !slot.returned.is_subset(&saved.returned);
        for (call, claim) in saved.claims.into_iter().filter(|(call, _)| *call < slot.point.calls.len()) {
            slot.claims.entry(call).or_insert(claim).is_accepted |= claim.is_accepted;
        }
        slot.returned.extend(saved.returned.into_iter().filter(|call| *call < slot.point.calls.len()));
        if knows_more {
            self.changed.claims(id);
        }
        true
    }

    /// Another process has taken a fork point back whose answer came to nothing.
    pub fn drop_pending(&mut self, id: ForkId) -> bool {
        let is_pending = self.points.get(id).is_some_and(|point| !point.is_sealed());
        is_pending && self.points.forget(id, &mut self.holdings)
    }

    /// Returns the one fork point that a child of it holds: the known one, or this one from now on.
    pub fn shared_point(&mut self, point: ForkPoint) -> Arc<ForkPoint> {
        let is_same = |known: &&Arc<ForkPoint>| {
            Arc::ptr_eq(&known.parent, &point.parent) && known.message == point.message
        };
        let known = self.known_point(point.id).filter(is_same).cloned();
        known.unwrap_or_else(|| Arc::new(self.counted(point)))
    }

    /// Takes over a child that another process has bound, and whose record lives for `left_ms`; none if it is known here.
    pub fn restore_child(
        &mut self,
        name: ChildName,
        child: Bindable<B>,
        left_ms: u64,
        now: Moment,
    ) -> Option<Binding> {
        self.children.restore(name, child, left_ms, now, &mut self.holdings)
    }

    /// Takes over the marks that another process knows of a child: all of its calls and, if they are later or the child
    /// `is_first` read now, its start and rest. Returns true if those were taken.
    pub fn restore_marks(&mut self, binding: Binding, saved: &SavedMarks, is_first: bool) -> bool {
        self.children.restore_marks(binding, saved, is_first, &mut self.holdings)
    }

    /// A child whose record is merged: that is no change to be written.
    pub fn restored_child_mut(&mut self, binding: Binding) -> Option<&mut B> {
        self.children.get_mut(binding)
    }

    /// The child of this name.
    pub fn named_child(&self, name: ChildName) -> Option<Binding> {
        self.children.by_name(name)
    }

    /// Forgets children that have outlived their time.
    pub fn expire_children(&mut self, now: Moment) {
        self.children.make_room(now, &mut self.holdings);
    }

    /// Numbers a fork point, so that its memory and that of its parent are counted.
    fn counted(&mut self, mut point: ForkPoint) -> ForkPoint {
        let known = self.known_point(point.id).filter(|known| Arc::ptr_eq(&known.parent, &point.parent));
        let parent_number = known.map(|known| known.parent_number);
        point.number = self.holdings.number();
        point.parent_number = parent_number.unwrap_or_else(|| self.holdings.number());
        point
    }

    /// The habits that recognition has learned: tools that start agents, and sessions that name theirs.
    pub fn habits(&self) -> (Vec<Arc<str>>, Vec<IdDigest>) {
        self.points.habits()
    }

    pub fn restore_habits(&mut self, tools: Vec<String>, sessions: Vec<IdDigest>) {
        self.points.restore_habits(tools, sessions);
    }

    /// Takes whether these have changed.
    pub fn take_changed_habits(&mut self) -> bool {
        std::mem::take(&mut self.changed.habits)
    }

    pub fn has_changed_habits(&self) -> bool {
        self.changed.habits
    }
}
