//! Everything that is known of the fan-outs of one tenant, counted in one account.
//!
//! A child keeps its prefix for life. So when memory runs short, what goes first is what no child was put on: fork
//! points and snapshots, the oldest before the others. Then go the children whose last answer left them nothing to do.
//! Those that work stay, and no more are forked.

use std::sync::Arc;

use super::bindings::{Bindable, Binding, Bindings, ChildName, Life};
use super::forks::Forks;
use super::holdings::Holdings;
use super::marks::{ChildMarks, StartMeaning, UnreadMark};
use super::point::{Draft, EndedDraft, FinishedTurn, ForkId, ForkPoint};
use super::recognise::{Child, Newcomer, Recognised};
use super::rules::{Rules, Who};
use super::saved::ChangedFanOuts;
use super::snapshots::Snapshots;
use super::sought::{Sought, UnreadPart};
use crate::engine::words::{BodyDigest, FanOutDropped, Moment, TenantId, WhyPlain};

/// The fork points, snapshots and children of one tenant. `B` is the decision for a child. It is a parameter, since such
/// a decision is made of what the folder `fork` knows, which builds on this one.
#[derive(Debug)]
pub struct FanOuts<B> {
    pub(super) points: Forks,
    pub(super) snapshots: Snapshots,
    pub(super) children: Bindings<B>,
    pub(super) holdings: Holdings,
    pub(super) changed: ChangedFanOuts,
}

impl<B> FanOuts<B> {
    pub fn new(tenant: TenantId, rules: Rules) -> FanOuts<B> {
        FanOuts {
            snapshots: Snapshots::new(tenant, rules.clone()),
            children: Bindings::new(Life::of(&rules)),
            holdings: Holdings::new(rules.bytes),
            points: Forks::new(tenant, rules),
            changed: ChangedFanOuts::default(),
        }
    }

    pub fn points(&self) -> &Forks {
        &self.points
    }

    pub fn snapshots(&self) -> &Snapshots {
        &self.snapshots
    }

    pub fn children(&self) -> &Bindings<B> {
        &self.children
    }

    /// Sets other rules of who is a child, for whatever comes from now on.
    pub fn configure(&mut self, rules: Rules) {
        self.points.configure(rules);
    }

    /// Returns the bytes held by fork points, snapshots and children, the parents' requests included.
    pub fn bytes(&self) -> usize {
        self.holdings.bytes()
    }

    /// Returns the bytes that they may hold.
    pub fn limit(&self) -> usize {
        self.holdings.limit()
    }

    /// Makes known what a draft holds so far, so that children that come before the seal are recognised.
    pub fn pending(
        &mut self,
        message_id: &str,
        draft: &mut Draft,
        now: Moment,
    ) -> Result<ForkId, FanOutDropped> {
        let known = self.points.pending(message_id, draft, now, &mut self.holdings);
        draft.pending().into_iter().for_each(|id| self.changed.point(id));
        known
    }

    /// Seals the fork point of an answer that has ended, or forgets it and says why. Every draft ends here, whether it
    /// was pending or not.
    pub fn seal(&mut self, ended: EndedDraft, now: Moment) -> Result<Arc<ForkPoint>, FanOutDropped> {
        let pending = ended.draft.pending;
        let sealed = self.points.seal(ended, now, &mut self.holdings);
        let id = sealed.as_ref().ok().map(|point| point.id).or(pending);
        id.into_iter().for_each(|id| self.changed.point(id));
        sealed
    }

    /// Keeps the finished turn of a conversation in the place of the one before it, whose message id is `before`.
    pub fn record(
        &mut self,
        draft: &mut Draft,
        turn: FinishedTurn,
        before: Option<&str>,
        now: Moment,
    ) -> Result<Arc<ForkPoint>, FanOutDropped> {
        self.snapshots.record(draft, turn, before, now, &mut self.holdings)
    }

    /// Forgets the fork points that have outlived `fork.ttl_s`.
    pub fn expire(&mut self, now: Moment) {
        self.points.expire(now, &mut self.holdings);
    }

    /// Says what a request is. Asked again for the same request (after a wait, or a retry of the client) it
    /// gives the same answer, as long as nothing new is known. `Err`: more of the request is to be read first, by
    /// [`recognise`](super::recognise()).
    pub fn recognise(&mut self, sought: &Sought<'_>, now: Moment) -> Result<Recognised, UnreadPart> {
        self.expire(now);
        self.points.recognise(sought, now)
    }

    /// Notes that the client of a session names its agents, if this request shows it.
    pub fn note_agent(&mut self, who: &Who) {
        let is_news = self.points.note_agent(who);
        self.changed.habits(is_news);
    }

    /// Returns true if another request has started from the call of a child on its first turn.
    pub fn is_claimed(&self, child: &Child, who: &Who, body: BodyDigest) -> bool {
        self.points.is_claimed(child, who, body)
    }

    /// A child starts from its call.
    pub fn claim(&mut self, child: &Child, who: &Who, body: BodyDigest) {
        let learned = self.points.learned.len();
        self.points.claim(child, who, body);
        self.changed.claims(child.fork.id);
        self.changed.habits(self.points.learned.len() > learned);
    }

    /// The upstream took the request of a child that has started from this call.
    pub fn accepted(&mut self, fork: ForkId, call: usize) {
        self.points.accepted(fork, call);
        self.changed.claims(fork);
    }

    /// A request has brought the results of these calls back.
    pub fn returned<I: AsRef<str>>(&mut self, ids: impl IntoIterator<Item = I>) {
        let changed = self.points.returned(ids);
        changed.into_iter().for_each(|id| self.changed.claims(id));
    }

    /// Returns the turn that a request names as its parent; vetoes hold as for any other child.
    pub fn find_snapshot(&mut self, newcomer: &Newcomer<'_>, now: Moment) -> Result<Child, WhyPlain> {
        self.snapshots.expire(now, &mut self.holdings);
        self.snapshots.find(newcomer, now)
    }

    /// Finds the child that these marks are of, if they are of a later turn of one. `Err`: more of the request is to be
    /// read first, by [`find_child`](super::find_child).
    pub fn find(
        &mut self,
        marks: &ChildMarks<'_>,
        who: &Who,
        now: Moment,
    ) -> Result<Option<Binding>, UnreadMark> {
        self.children.make_room(now, &mut self.holdings);
        self.children.find(marks, who, now)
    }

    /// Finds the child whose turn the server holds that a request goes on from.
    pub fn find_held(&mut self, name: ChildName, now: Moment) -> Option<Binding> {
        self.children.make_room(now, &mut self.holdings);
        let found = self.children.by_name(name)?;
        self.children.used(found, now);
        Some(found)
    }

    /// The name of a child in every process that knows it.
    pub fn child_name(&self, binding: Binding) -> Option<ChildName> {
        self.children.name(binding)
    }

    /// Binds a conversation from its first request on.
    pub fn bind(&mut self, child: Bindable<B>, now: Moment) -> Binding {
        let binding = self.children.bind(child, now, self.changed.writer(), &mut self.holdings);
        self.changed.child(self.children.name(binding), true);
        binding
    }

    /// Returns the decision for a child, as long as it is bound.
    pub fn child_mut(&mut self, binding: Binding) -> Option<&mut B> {
        self.changed.child(self.children.name(binding), false);
        self.children.get_mut(binding)
    }

    /// Forgets a child whose first request came to nothing: its next attempt is bound anew.
    pub fn release(&mut self, binding: Binding) {
        self.changed.child(self.children.name(binding), false);
        self.children.forget(binding, &mut self.holdings);
    }

    /// Remembers a call that streamed to this child.
    pub fn called(&mut self, binding: Binding, id: &str) {
        self.changed.child(self.children.name(binding), false);
        self.children.called(binding, id, &mut self.holdings);
    }

    /// From now on this child is known by this start; to be called where it [is needed](Bindings::needs_start).
    pub fn answered(&mut self, binding: Binding, start: Option<StartMeaning>) {
        self.changed.child(self.children.name(binding), false);
        self.children.answered(binding, start);
    }

    /// A turn of this child begins, or has ended for this reason.
    pub fn rest(&mut self, binding: Binding, stop_reason: Option<&str>) {
        self.changed.child(self.children.name(binding), false);
        self.children.rest(binding, stop_reason);
    }

    /// Makes room for this many bytes, of a fork point or a child; `false` if there is none.
    pub fn make_room(&mut self, bytes: usize) -> bool {
        while !self.holdings.has_room_for(bytes) {
            if !self.forget_oldest_point() && !self.forget_resting_child() {
                return false;
            }
        }
        true
    }

    /// Forgets the oldest of the fork points that nobody holds, and of the snapshots; `false` if there is none.
    pub fn forget_oldest_point(&mut self) -> bool {
        match (self.points.oldest(), self.snapshots.oldest()) {
            (Some(point), Some(snapshot)) if snapshot < point => self.snapshots.evict(&mut self.holdings),
            (Some(_), _) => self.points.evict(&mut self.holdings),
            (None, _) => self.snapshots.evict(&mut self.holdings),
        }
    }

    /// Forgets the longest unused of the forked children whose last answer left them nothing to do; `false` if there is
    /// none.
    pub fn forget_resting_child(&mut self) -> bool {
        self.children.evict(&mut self.holdings)
    }

    /// Returns true if a child was put on its parent's prefix.
    pub fn has_forked_children(&self) -> bool {
        self.children.has_forked()
    }
}
