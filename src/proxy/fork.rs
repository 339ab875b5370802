//! Children on their parent's prefix: when that is decided, and what is sent then.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};

use super::Proxy;
use super::clock::millis;
use super::family::Family;
use super::memo::Memo;
use super::panic_injection::Step;
use super::record::{Facts, Recorder};
use crate::engine::align;
use crate::engine::cache::entry::Parameters;
use crate::engine::family::fanout::Child;
use crate::engine::fork::{
    self, BoundChild, ChildHabits, ChildRequest, ComposedChild, EligibilityFacts, ForkRules, NewChild,
    ParentPrefix, Policy, TenantView,
};
use crate::engine::words::{Moment, Plan, Refusal, Why};
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

impl Proxy {
    /// Waits for the end of the parent's answer, if this child came before it.
    pub(super) async fn await_seal(&self, recorder: &mut Recorder, deadline: Moment) {
        let Recorder { memo, family, .. } = &*recorder;
        let (Some(memo), Some(family)) = (memo, family) else { return };
        let (Some(Ok(child)), Some(tenant)) = (family.newcomer(), memo.tenant()) else { return };
        let fork = child.fork.id;
        if is_sealed(family) || !self.may_be_forked(family, child, &tenant) {
            return;
        }
        let came = self.clock.now();
        let until = deadline.min(came.after(millis(self.config.fork.await_parent)));
        let sealed = async {
            loop {
                let mut woken = std::pin::pin!(tenant.sealed().notified());
                woken.as_mut().enable();
                let pends = tenant.with_fan_outs(|fan_outs| {
                    fan_outs.points().get(fork).is_some_and(|fork| !fork.is_sealed())
                });
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
        self.recognise(recorder);
        recorder.facts.awaited = Duration::from_millis(self.clock.now().since(came));
    }

    /// Puts a child on its parent's prefix, or says why not.
    pub(super) fn fork(&self, recorder: &mut Recorder) -> Option<Forked> {
        let Recorder { facts, memo, family, .. } = recorder;
        let (memo, family) = (memo.as_mut()?, family.as_mut()?);
        if !matches!(facts.plan, Plan::Aligned(_)) {
            return None;
        }
        let tenant = memo.tenant()?;
        let started = Instant::now();
        let compose = AssertUnwindSafe(|| self.compose(memo, family, facts, &tenant));
        let composed = std::panic::catch_unwind(compose).unwrap_or(Err(Why::Refused(Refusal::Internal)));
        facts.fork_time = started.elapsed();
        // A child keeps its prefix for life: those that work are not pushed out by those that come.
        let has_room = |child: &ComposedChild| {
            let bytes = child.prefix.memory_bytes();
            tenant.with_fan_outs(|fan_outs| fan_outs.make_room(bytes)) && memo.store().make_room(bytes)
        };
        let composed = match composed {
            Ok(child) if family.bound().is_none() && !has_room(&child) => {
                Err(Why::Refused(Refusal::StoreFull))
            }
            other => other,
        };
        let composed = match composed {
            Ok(composed) => composed,
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
            family.bind(&tenant, Fate::Forked(composed.prefix, fork), facts.forecast, self.clock.now());
        }
        if facts.model.is_none() {
            let parent = family.fork.as_ref().map(|fork| &fork.parent.request);
            facts.model = parent.map(|parent| fork::model_of(memo.model(), parent).into_owned());
            memo.of_model(facts.model.clone().unwrap_or_default());
        }
        let pieces = composed.request.body.pieces;
        facts.plan = Plan::Forked;
        let until = self.clock.now().after(millis(self.config.store.child_ttl));
        self.prefixes_until.fetch_max(until.0, Relaxed);
        facts.changed(composed.trace.reading(), &pieces);
        facts.shared_bytes = composed.request.shared;
        facts.markers_added = composed.request.breakpoints.len();
        facts.notes = composed.notes;
        memo.forked(composed.trace, composed.parents);
        Some(Forked { pieces, betas: composed.betas })
    }

    /// Forecasts the cost of a child on its parent's prefix, where the mode does not put it there.
    pub(super) fn forecast_fork(&self, recorder: &mut Recorder) {
        let Recorder { facts, memo, family, .. } = recorder;
        let (Some(memo), Some(family)) = (memo.as_ref(), family.as_ref()) else { return };
        let (Some(Ok(_)), Some(tenant)) = (family.newcomer(), memo.tenant()) else { return };
        let compose = AssertUnwindSafe(|| self.compose(memo, family, facts, &tenant).map(drop));
        let composed = std::panic::catch_unwind(compose).unwrap_or(Err(Why::Refused(Refusal::Internal)));
        facts.would_fork = Some(composed.map_or_else(Why::as_str, |()| "none"));
    }

    /// Composes the request of a child on its parent's prefix, or says why it is not forked.
    fn compose(
        &self,
        memo: &Memo,
        family: &Family,
        facts: &mut Facts,
        tenant: &Tenant,
    ) -> Result<ComposedChild, Why> {
        self.panics.at(Step::Fork);
        let own = family.own().ok_or(Why::NotAChild)?;
        let rules = self.fork_rules();
        let conversation = memo.conversation().ok_or(Why::Refused(Refusal::Internal))?;
        let request = ChildRequest { arrival: &memo.arrival, own, conversation, betas: &facts.betas };
        if let Some(bound) = family.bound() {
            let (prefix, fork) = match &bound.fate {
                Fate::Own(why) => return Err(*why),
                Fate::Forked(prefix, fork) => (prefix, fork),
            };
            let bound = BoundChild { prefix, fork, tail: bound.tail };
            return fork::compose_later(&bound, &request, &rules).map_err(Why::Refused);
        }
        let child = match family.newcomer() {
            None => return Err(Why::NotAChild),
            Some(Err(_)) => return Err(Why::ClientFork),
            Some(Ok(child)) => child,
        };
        let new = NewChild { child, request, who: family.who(), model: memo.model() };
        let view = View { memo, tenant, child, policy: rules.policy, now: self.clock.now() };
        let plan = fork::plan_child(&new, &rules, &view);
        if plan.composed.is_some() {
            facts.forecast = plan.forecast;
        }
        plan.into_composed().map_err(Why::Refused)
    }

    fn fork_rules(&self) -> ForkRules<'_> {
        ForkRules {
            policy: &self.config.fork.policy,
            fan_out: &self.fanout_rules,
            attribution: self.rules.attribution,
            profile: self.rules.profile,
            prices: &self.prices,
            body_bytes: self.config.limits.body_bytes,
            composes_refused: false,
        }
    }

    /// Returns true if a child could be forked once its parent's answer has ended.
    fn may_be_forked(&self, family: &Family, child: &Child, tenant: &Tenant) -> bool {
        let Some(own) = family.own() else { return false };
        let stood_down = is_stood_down(tenant, child, self.clock.now());
        let facts = EligibilityFacts { rules: &self.fanout_rules, stood_down };
        let policy = &self.config.fork.policy;
        let asked =
            AssertUnwindSafe(|| fork::may_be_forked_once_sealed(own, child, family.who(), policy, &facts));
        std::panic::catch_unwind(asked).unwrap_or(false)
    }
}

/// The tenant of a child that comes now, as its plan sees it.
struct View<'a> {
    memo: &'a Memo,
    tenant: &'a Tenant,
    child: &'a Child,
    policy: &'a Policy,
    now: Moment,
}

impl TenantView for View<'_> {
    fn is_stood_down(&self) -> bool {
        is_stood_down(self.tenant, self.child, self.now)
    }

    fn habits(&self) -> ChildHabits {
        self.tenant.experiment().habits(tool_of(self.child), self.policy.horizon_turns)
    }

    fn tokens_per_byte(&self, model: &str) -> Option<f64> {
        self.tenant.learned().tokens_per_byte(model)
    }

    fn shared_prefix(
        &self,
        make: impl FnOnce() -> Result<ParentPrefix, Refusal>,
    ) -> Result<Arc<ParentPrefix>, Refusal> {
        let known = self.tenant.shared_facts().known_prefix(&self.child.fork);
        match known {
            Some(known) => Ok(known),
            None => {
                let made = Arc::new(make()?);
                Ok(self.tenant.shared_facts().keep_prefix(&self.child.fork, made))
            }
        }
    }

    fn read_bytes(&self, model: &str, composed: &ComposedChild, parents: &Parameters) -> Option<u64> {
        let found = self.memo.predict_fork(model, &composed.trace, parents, self.tenant, self.now);
        found.read.map(|read| read.bytes)
    }

    fn sent_warm(&self) -> u64 {
        let as_sent = align::untouched(&self.memo.arrival);
        self.memo.predict_for(&as_sent, self.tenant, self.now).tokens()
    }
}

fn is_stood_down(tenant: &Tenant, child: &Child, now: Moment) -> bool {
    let verdict = tenant.experiment().verdict(tool_of(child), now);
    verdict.is_some() || tenant.shared_facts().is_stood_down(child.fork.id)
}

/// The tool that started a child; empty if it has named its parent itself.
pub(super) fn tool_of(child: &Child) -> &str {
    child.call.and_then(|call| child.fork.calls.get(call)).map_or("", |call| &call.name)
}

fn is_sealed(family: &Family) -> bool {
    family.fork.as_ref().is_none_or(|fork| fork.is_sealed())
}
