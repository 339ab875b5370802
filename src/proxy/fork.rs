//! Children on their parent's prefix: when that is decided, and what is sent then.

use std::borrow::Cow;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};

use super::Proxy;
use super::clock::millis;
use super::drill::Step;
use super::family::Family;
use super::memo::Memo;
use super::record::{Facts, Recorder};
use crate::engine::align;
use crate::engine::conversation::{Forwarded, Trace};
use crate::engine::entry::Parameters;
use crate::engine::fanout::{Child, ForkPoint};
use crate::engine::fork::{self, Composed, Forecast, Late, Market, Policy, Prefix, Sizes, Trunk, Turn};
use crate::engine::prefix::Attribution;
use crate::engine::recall::{InParts, Known, Remembered, Shared};
use crate::engine::warmth::Warm;
use crate::engine::words::{ForkNote, Moment, Plan, Refusal, Ttl, Why};
use crate::store::{Fate, Tenant};

/// The header that names betas.
pub(super) const BETA: &str = "anthropic-beta";

/// A forked request, ready to be sent.
pub(super) struct Forked {
    pub pieces: Vec<Bytes>,
    pub betas: String,
}

impl Forked {
    /// The betas of a forked child are its parent's and its own. Nothing is touched if those are the child's.
    pub fn rewrite(&self, headers: &mut HeaderMap, own: &str) {
        if self.betas == own {
            return;
        }
        if let Ok(betas) = HeaderValue::try_from(&self.betas) {
            headers.insert(BETA, betas);
        }
    }
}

/// A child that is put on its parent's prefix.
struct Laid {
    prefix: Arc<Prefix>,
    composed: Composed,
    trace: Trace,
    betas: String,
    notes: Vec<ForkNote>,
    /// Of a first turn: what it depends on under its parent's betas.
    parents: Option<Parameters>,
}

/// Whom a composed request is of.
struct Laying<'a> {
    own: &'a Remembered,
    fork: &'a ForkPoint,
    /// What it is compared with: its parent's, or the child's last.
    like: Arc<Remembered>,
    betas: &'a str,
}

impl Proxy {
    /// Waits for the end of the parent's answer, if this child came before it.
    pub(super) async fn await_seal(&self, recorder: &mut Recorder, deadline: Moment) {
        let Recorder { memo, family, .. } = &*recorder;
        let (Some(memo), Some(family)) = (memo, family) else { return };
        let Some(Ok(child)) = family.newcomer().filter(|_| !is_sealed(family)) else { return };
        let (Some(tenant), fork) = (memo.tenant(), child.fork.id) else { return };
        if !self.may_be_forked(family, child, &tenant) {
            return;
        }
        let came = self.clock.now();
        let until = deadline.min(came.after(millis(self.config.fork.await_parent)));
        let sealed = async {
            loop {
                let mut woken = std::pin::pin!(tenant.sealed().notified());
                woken.as_mut().enable();
                let pends = tenant.with_forks(|forks| forks.get(fork).is_some_and(|fork| !fork.is_sealed()));
                if !pends {
                    return;
                }
                woken.await;
            }
        };
        let waiting = self.awaiting.begin(&tenant, fork, until);
        recorder.facts.waits_since.get_or_insert_with(Instant::now);
        // In time or not, what is known by then is looked at again.
        tokio::select! {
            () = sealed => {}
            () = self.clock.sleep_until(until) => {}
        }
        drop(waiting);
        self.meet(recorder);
        recorder.facts.awaited = Duration::from_millis(self.clock.now().since(came));
    }

    /// Puts a child on its parent's prefix, or says why not.
    pub(super) fn fork(&self, recorder: &mut Recorder) -> Option<Forked> {
        let Recorder { facts, memo, family, .. } = recorder;
        let (memo, family) = (memo.as_mut()?, family.as_mut()?);
        let tenant = memo.tenant().filter(|_| matches!(facts.plan, Plan::Aligned(_)))?;
        let started = Instant::now();
        let lay = AssertUnwindSafe(|| self.lay(memo, family, facts, &tenant));
        let laid = std::panic::catch_unwind(lay).unwrap_or(Err(Why::Refused(Refusal::Internal)));
        facts.fork_time = started.elapsed();
        // A child keeps its prefix for life: those that work are not pushed out by those that come.
        let has_room = |laid: &Laid| {
            let bytes = laid.prefix.memory_bytes();
            tenant.make_room(bytes) && memo.store().make_room(bytes)
        };
        let laid = match laid {
            Ok(laid) if family.bound().is_none() && !has_room(&laid) => Err(Why::Refused(Refusal::StoreFull)),
            laid => laid,
        };
        let laid = match laid {
            Ok(laid) => laid,
            Err(why) => {
                facts.plan = Plan::Aligned(match (why, facts.plan) {
                    // Why nothing was marked says more.
                    (Why::NotAChild | Why::Mode, Plan::Aligned(skipped @ Why::Skipped(_))) => skipped,
                    _ => why,
                });
                return None;
            }
        };
        if let (None, Some(fork)) = (family.bound(), family.fork.clone()) {
            family.bind(&tenant, Fate::Forked(laid.prefix, fork), facts.forecast, self.clock.now());
        }
        if facts.model.is_none() {
            facts.model = family.fork.as_ref().map(|fork| model_of(memo, &fork.parent.request).into_owned());
            memo.of_model(facts.model.clone().unwrap_or_default());
        }
        let pieces = laid.composed.body.pieces;
        facts.plan = Plan::Forked;
        let until = self.clock.now().after(millis(self.config.store.child_ttl));
        self.prefixes_until.fetch_max(until.0, Relaxed);
        facts.changed(laid.trace.reading(), &pieces);
        facts.shared_bytes = laid.composed.shared;
        facts.markers_added = laid.composed.breakpoints.len();
        facts.notes = laid.notes;
        memo.forked(laid.trace, laid.parents);
        Some(Forked { pieces, betas: laid.betas })
    }

    /// What a child would cost on its parent's prefix, where the mode does not put it there.
    pub(super) fn foresee(&self, recorder: &mut Recorder) {
        let Recorder { facts, memo, family, .. } = recorder;
        let (Some(memo), Some(family)) = (memo.as_ref(), family.as_ref()) else { return };
        let Some(tenant) = memo.tenant().filter(|_| matches!(family.newcomer(), Some(Ok(_)))) else { return };
        let lay = AssertUnwindSafe(|| self.lay(memo, family, facts, &tenant).map(drop));
        let laid = std::panic::catch_unwind(lay).unwrap_or(Err(Why::Refused(Refusal::Internal)));
        facts.would_fork = Some(laid.map_or_else(Why::as_str, |()| "none"));
    }

    fn lay(&self, memo: &Memo, family: &Family, facts: &mut Facts, tenant: &Tenant) -> Result<Laid, Why> {
        self.drill.begins(Step::Fork);
        let own = family.own().ok_or(Why::NotAChild)?;
        if let Some(bound) = family.bound() {
            let (prefix, fork) = match &bound.fate {
                Fate::Own(why) => return Err(*why),
                Fate::Forked(prefix, fork) => (Arc::clone(prefix), fork),
            };
            let composed = prefix.compose(own, Turn::Later(bound.tail()), self.rules.profile);
            let last = memo.arrival.predecessor().map(|last| last.forwarded());
            let like = last.unwrap_or_else(|| Arc::clone(&fork.parent.request));
            let child = Laying { own, fork, like, betas: &facts.betas };
            return self.laid(memo, prefix, composed, child).map_err(Why::Refused);
        }
        let child = match family.newcomer() {
            None => return Err(Why::NotAChild),
            Some(Err(_)) => return Err(Why::ClientFork),
            Some(Ok(child)) => child,
        };
        self.first(memo, family, child, own, facts, tenant).map_err(Why::Refused)
    }

    /// A child on its first turn.
    fn first(
        &self,
        memo: &Memo,
        family: &Family,
        child: &Child,
        own: &Remembered,
        facts: &mut Facts,
        tenant: &Tenant,
    ) -> Result<Laid, Refusal> {
        let policy = &self.config.fork.policy;
        // What those would cost that are left alone for the others' sake is worth knowing too.
        let left_alone = match self.eligible(own, family, child, policy, tenant) {
            Err(why @ (Refusal::StoodDown | Refusal::Holdout)) => Err(why),
            other => Ok(other?),
        };
        let habits = tenant.arms().habits(tool_of(child), policy.horizon_turns);
        let trunk = trunk(tenant, child, self.rules.attribution)?;
        let (prefix, notes) = Prefix::of(&trunk, own, child, policy)?;
        let composed = prefix.compose(own, Turn::First, self.rules.profile);
        let parent = &child.fork.parent.request;
        let model = model_of(memo, parent);
        let model_facts = self.prices.facts(&model);
        let ratio = tenant.learned().tokens_per_byte(&model);
        let sizes = Sizes::of(&trunk, &child.fork, &composed, &memo.arrival.received, ratio);
        let body_bytes = self.config.limits.body_bytes;
        fork::fits(&composed, sizes.as_ref(), own, parent, model_facts, body_bytes, policy)?;
        let like = Arc::clone(parent);
        let laying = Laying { own, fork: &child.fork, like, betas: &facts.betas };
        let mut laid = self.laid(memo, Arc::new(prefix), composed, laying)?;
        laid.notes.extend(notes);
        let parents = laid.trace.parameters.with_betas(std::iter::once(&*child.fork.parent.betas));
        let parents = laid.parents.insert(parents);
        let read = memo.predict_fork(&model, &laid.trace, parents, tenant, self.clock.now()).read;
        let market = self.market(memo, &model, tenant, &child.fork, &laid, read);
        facts.forecast = sizes.and_then(|sizes| Forecast::of(&sizes, &habits, &market, policy));
        // By itself a snapshot would know nothing of what it is about: what it costs is what its parent's context costs.
        if !fork::is_snapshot(own, child) {
            fork::decide(facts.forecast.as_ref(), policy)?;
        }
        left_alone.map(|()| laid)
    }

    fn eligible(
        &self,
        own: &Remembered,
        family: &Family,
        child: &Child,
        policy: &Policy,
        tenant: &Tenant,
    ) -> Result<(), Refusal> {
        let verdict = tenant.arms().verdict(tool_of(child), self.clock.now());
        let stood_down = verdict.is_some() || tenant.fanouts().is_stood_down(child.fork.id);
        let known = fork::Facts { rules: &self.fanout_rules, stood_down };
        fork::eligible(own, child, family.who(), policy, &known)
    }

    /// Whether a child could be forked once its parent's answer has ended; nobody else has to wait for that.
    fn may_be_forked(&self, family: &Family, child: &Child, tenant: &Tenant) -> bool {
        let Some(own) = family.own() else { return false };
        let policy = &self.config.fork.policy;
        let policy = match policy.late {
            Late::Partial => Cow::Borrowed(policy),
            Late::Passthrough => Cow::Owned(Policy { late: Late::Partial, ..policy.clone() }),
        };
        let asked = AssertUnwindSafe(|| self.eligible(own, family, child, &policy, tenant));
        // A child whose call has not finished is told by the seal which one it is.
        matches!(std::panic::catch_unwind(asked), Ok(Ok(()) | Err(Refusal::Unsealed)))
    }

    /// A composed request, read as the cache will.
    fn laid(
        &self,
        memo: &Memo,
        prefix: Arc<Prefix>,
        composed: Composed,
        child: Laying<'_>,
    ) -> Result<Laid, Refusal> {
        let Laying { own, fork, like, betas } = child;
        let betas = fork::betas(&fork.parent.betas, [betas]);
        let extent = prefix.trunk().extent();
        let shared = Shared {
            request: Arc::clone(&fork.parent.request),
            bytes: composed.shared + extent.results as usize,
            answer: (extent.turn + extent.results) as usize,
        };
        let (parts, received) = (composed.body.pieces.clone(), &memo.arrival.received);
        let read = InParts::read(
            parts,
            shared,
            received,
            own,
            &Like { like, trunk: prefix.trunk() },
            self.rules.attribution,
        );
        let (forwarded, whole) = read.map_err(Refusal::unreadable)?;
        let (body, anatomy) = (whole.body(), whole.anatomy());
        let parameters = Parameters::read(body, anatomy, std::iter::once(betas.as_str()));
        let conversation = memo.conversation().ok_or(Refusal::Internal)?;
        let marks = composed.breakpoints.clone();
        let forwarded = Forwarded::InParts(forwarded);
        let trace = Trace::with(&memo.arrival, forwarded, Arc::clone(conversation), marks, parameters);
        let notes = composed.notes.clone();
        Ok(Laid { prefix, composed, trace, betas, notes, parents: None })
    }

    /// What tokens cost, and what the cache holds right now: of a forked request `read`.
    fn market(
        &self,
        memo: &Memo,
        model: &str,
        tenant: &Tenant,
        fork: &ForkPoint,
        laid: &Laid,
        read: Option<Warm>,
    ) -> Market<'_> {
        let now = self.clock.now();
        let facts = self.prices.facts(model);
        let model = self.prices.model(model);
        let trunk = laid.prefix.trunk();
        let entry = trunk.extent().entry;
        let as_sent = memo.predict_for(&align::untouched(&memo.arrival), tenant, now);
        Market {
            price: model.and_then(|model| model.price.as_ref()),
            multipliers: model.map(|model| model.multipliers).unwrap_or_default(),
            facts,
            siblings: trunk.siblings(|| fork::siblings(fork, &self.config.fork.policy)),
            warm: read.is_some(),
            cold_messages: read.is_some_and(|read| read.bytes < entry),
            sent_warm: as_sent.tokens(),
            entry_ttl: trunk.ttl(),
            ttl: laid.composed.breakpoints.last().map_or(Ttl::FiveMinutes, |point| point.ttl),
        }
    }
}

/// The model of a forked request: its parent's, if it leaves that out.
fn model_of<'a>(memo: &'a Memo, parent: &'a Remembered) -> Cow<'a, str> {
    match memo.model() {
        "" => parent.anatomy().model(parent.body()).unwrap_or_default(),
        own => Cow::Borrowed(own),
    }
}

/// The tool that started a child; empty if it has named its parent itself.
pub(super) fn tool_of(child: &Child) -> &str {
    child.call.and_then(|call| child.fork.calls.get(call)).map_or("", |call| &call.name)
}

fn is_sealed(family: &Family) -> bool {
    family.fork.as_ref().is_none_or(|fork| fork.is_sealed())
}

/// What a child stands on: the same for all of a sealed fork point, its own before.
fn trunk(tenant: &Tenant, child: &Child, attribution: Attribution) -> Result<Arc<Trunk>, Refusal> {
    let grow = || Trunk::of(&child.fork, child.call, child.fork.parent.written, attribution);
    match child.fork.is_sealed() {
        true => tenant.fanouts().trunk(&child.fork, grow),
        false => grow().map(Arc::new),
    }
}

/// A composed request is compared with its parent's, or with the child's last.
struct Like<'a> {
    like: Arc<Remembered>,
    trunk: &'a Trunk,
}

impl Known for Like<'_> {
    fn hinted(&self) -> Option<Arc<Remembered>> {
        Some(Arc::clone(&self.like))
    }

    fn following(&self) -> Option<&Remembered> {
        self.trunk.following()
    }
}
