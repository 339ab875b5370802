//! The part of one exchange in fan-outs: whose child it is, and which children its answer will have.

use std::sync::Arc;

use http::{HeaderMap, HeaderName};

use crate::engine::answer::turn::{Block, Turn};
use crate::engine::family::conversation::Trace;
use crate::engine::family::fanout::{
    Bindable, Binding, Child, Draft, Explicit, ForkId, ForkPoint, Newcomer, Parent, Recognised, Rules,
    Sought, StartMeaning, Toolset, Who, fans_out, find_child, recognise,
};
use crate::engine::fork::{Forecast, SnapshotScope, is_snapshot};
use crate::engine::request::identify::SESSION;
use crate::engine::request::recall::Remembered;
use crate::engine::words::{FanOutDropped, Moment, Plan, Role, Why, WhyPlain};
use crate::store::{Bound, Fate, Tenant};

static PARENT: HeaderName = HeaderName::from_static("x-forkpoint-parent");
static TOOL_USE: HeaderName = HeaderName::from_static("x-forkpoint-tool-use");

/// The claims that a request makes about itself in its headers.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    /// `x-forkpoint-parent` and `x-forkpoint-tool-use`.
    parent: Option<(String, Option<String>)>,
    /// True if this client puts an agent id on every request of a child.
    marks_agents: bool,
}

impl Claims {
    pub fn of(headers: &HeaderMap) -> Claims {
        let text =
            |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).map(String::from);
        Claims {
            parent: text(&PARENT).map(|parent| (parent, text(&TOOL_USE))),
            marks_agents: headers.contains_key(&SESSION),
        }
    }

    /// The sender of a request, as far as its family goes.
    pub fn who(&self, request: &Remembered, sender: &crate::engine::request::identify::Sender) -> Who {
        Who::of(request, sender.session, sender.agent, self.marks_agents)
    }

    /// The message and the call that the request names as its origin.
    pub fn parent(&self) -> Option<&(String, Option<String>)> {
        self.parent.as_ref()
    }

    pub fn marks_agents(&self) -> bool {
        self.marks_agents
    }

    fn explicit(&self) -> Option<Explicit<'_>> {
        let (message_id, tool_use) = self.parent.as_ref()?;
        Some(Explicit { message_id, tool_use: tool_use.as_deref() })
    }
}

/// A request among its relatives.
pub struct Family {
    who: Who,
    pub role: Role,
    /// Why it is nobody's, or how sure it is whose.
    pub why: &'static str,
    /// The fork point that it comes from, or brings results back to; none for a child that was left on its own.
    pub fork: Option<Arc<ForkPoint>>,
    /// The request in its own words and its one spelling.
    own: Option<Arc<Remembered>>,
    /// A child that was not seen before.
    newcomer: Option<Newcome>,
    /// A child that is bound, and what was decided for it, as far as this exchange knows.
    binding: Option<(Binding, Bound)>,
    draft: Option<Draft>,
    /// True if the newest turn of every conversation is kept.
    keeps_snapshots: bool,
    /// The id of the message that this turn follows.
    pub before: Option<String>,
}

/// A child on its first turn.
struct Newcome {
    child: Child,
    /// The client has put it on its parent's history itself.
    by_client: bool,
}

/// How the answer's fan-out ended.
pub type Fanout = Result<Arc<ForkPoint>, FanOutDropped>;

impl Family {
    /// Of a tenant that nothing is known of.
    pub fn none(who: Who, snapshots: SnapshotScope) -> Family {
        let (fork, own, newcomer, binding, draft, before) = Default::default();
        let (role, why) = (Role::Plain, "no_fork_point");
        let keeps_snapshots = snapshots == SnapshotScope::Latest;
        Family { who, role, why, fork, own, newcomer, binding, draft, keeps_snapshots, before }
    }

    pub fn recognise(
        tenant: &Tenant,
        request: &Arc<Remembered>,
        who: Who,
        claims: &Claims,
        snapshots: SnapshotScope,
        now: Moment,
    ) -> Family {
        let none = Family { own: Some(Arc::clone(request)), ..Family::none(who, snapshots) };
        if let Some((binding, bound)) = find(tenant, request, &who, now) {
            tenant.with_fan_outs(|fan_outs| fan_outs.rest(binding, None));
            let fork = bound.point().cloned();
            return Family { role: Role::Child, why: "bound", fork, binding: Some((binding, bound)), ..none };
        }
        let newcomer = Newcomer { request, who, explicit: claims.explicit() };
        let ask = |sought: &Sought<'_>| tenant.with_fan_outs(|fan_outs| fan_outs.recognise(sought, now));
        match recognise(&newcomer, ask) {
            Recognised::Plain(WhyPlain::UnknownParent | WhyPlain::NoForkPoint) if none.keeps_snapshots => {
                match tenant.with_fan_outs(|fan_outs| fan_outs.find_snapshot(&newcomer, now)) {
                    Ok(child) => none.with_child(child, false),
                    Err(why) => Family { why: why.as_str(), ..none },
                }
            }
            Recognised::Plain(why) => Family { why: why.as_str(), ..none },
            Recognised::Ambiguous => Family { why: "ambiguous", ..none },
            Recognised::Parent(fork) => {
                Family { role: Role::Parent, why: "results", fork: Some(fork), ..none }
            }
            Recognised::Child(child) => none.with_child(child, false),
            Recognised::ClientFork(child) => none.with_child(child, true),
        }
    }

    fn with_child(self, child: Child, by_client: bool) -> Family {
        Family {
            role: Role::Child,
            why: if by_client { "client_fork" } else { child.rank.as_str() },
            fork: Some(Arc::clone(&child.fork)),
            newcomer: Some(Newcome { child, by_client }),
            ..self
        }
    }

    pub fn fork_id(&self) -> Option<ForkId> {
        self.fork.as_ref().map(|fork| fork.id).or_else(|| self.bound().map(|bound| bound.fork))
    }

    pub fn who(&self) -> &Who {
        &self.who
    }

    /// A child on its first turn; `Err` if its client has forked it already.
    pub fn newcomer(&self) -> Option<Result<&Child, &Child>> {
        let Newcome { child, by_client } = self.newcomer.as_ref()?;
        Some(if *by_client { Err(child) } else { Ok(child) })
    }

    /// The binding of a child, and what was decided for it.
    pub fn binding(&self) -> Option<(Binding, &Bound)> {
        self.binding.as_ref().map(|(binding, bound)| (*binding, bound))
    }

    /// Returns the decision for a child that was seen before.
    pub fn bound(&self) -> Option<&Bound> {
        self.binding.as_ref().map(|(_, bound)| bound)
    }

    /// The request in its own words and its one spelling.
    pub fn own(&self) -> Option<&Arc<Remembered>> {
        self.own.as_ref()
    }

    /// Binds a child on its first turn, before it goes upstream.
    pub fn bind(&mut self, tenant: &Tenant, fate: Fate, forecast: Option<Forecast>, now: Moment) {
        let (Some(newcomer), Some(own)) = (&self.newcomer, &self.own) else { return };
        let is_snapshot = is_snapshot(own, &newcomer.child);
        let bound = Bound::new(&newcomer.child, is_snapshot, fate, forecast);
        let known = |spelt| tenant.with_fan_outs(|fan_outs| fan_outs.children().toolset(spelt));
        let child = Bindable {
            tools: Toolset::of(own, known),
            who: self.who,
            value: bound.clone(),
            bytes: bound.memory_bytes(),
            point: bound.point().cloned(),
        };
        let binding = tenant.with_fan_outs(|fan_outs| fan_outs.bind(child, now));
        self.binding = Some((binding, bound));
    }

    /// The first turn of a child came to nothing: what was decided for it is forgotten.
    pub fn release(&mut self, tenant: &Tenant) {
        if self.newcomer.is_some()
            && let Some((binding, _)) = self.binding.take()
        {
            tenant.with_fan_outs(|fan_outs| fan_outs.release(binding));
        }
    }

    /// The upstream took the request: a child is bound, anybody else may fan out. Answers which turn of the
    /// child this is.
    pub fn accepted(
        &mut self,
        tenant: &Tenant,
        trace: &Trace,
        betas: &str,
        plan: Plan,
        forecast: Option<Forecast>,
        now: Moment,
    ) -> Option<u64> {
        if self.role != Role::Child {
            let parent = Parent {
                betas: betas.to_owned(),
                written: trace.breakpoints.last().copied(),
                ..Parent::new(trace.forwarded(), self.who)
            };
            self.draft = Draft::begin(parent, false).ok();
            return None;
        }
        if self.binding.is_none() {
            let why = match plan {
                Plan::Aligned(why) => why,
                Plan::Passthrough(_) | Plan::Forked => Why::Mode,
            };
            self.bind(tenant, Fate::Own(why), forecast, now);
        }
        let tail = trace.breakpoints.last().map(|tail| tail.piece);
        let turn = self.change(tenant, |bound| {
            match plan {
                Plan::Forked => bound.tail = tail.or(bound.tail),
                _ => bound.has_strayed |= bound.is_forked(),
            }
            bound.next_turn()
        })?;
        if plan == Plan::Forked {
            trace.conversation.forked();
        }
        Some(turn)
    }

    /// Changes what is known of a child that is bound. One that was forgotten meanwhile is known to this exchange alone.
    fn change<T>(&mut self, tenant: &Tenant, change: impl FnOnce(&mut Bound) -> T) -> Option<T> {
        let (binding, own) = self.binding.as_mut()?;
        tenant.with_fan_outs(|fan_outs| match fan_outs.child_mut(*binding) {
            Some(bound) => {
                let out = change(bound);
                *own = bound.clone();
                Some(out)
            }
            None => Some(change(own)),
        })
    }

    /// Returns true if finished blocks are of interest.
    pub fn listens(&self) -> bool {
        self.draft.is_some() || self.binding.is_some()
    }

    /// A block of the answer has finished.
    pub fn block(&mut self, tenant: &Tenant, message_id: Option<&str>, block: Block, now: Moment) {
        if let Some((binding, _)) = &self.binding {
            if let Some(id) = block.call_id() {
                tenant.with_fan_outs(|fan_outs| fan_outs.called(*binding, &id));
            }
            return;
        }
        let Some(draft) = &mut self.draft else { return };
        if draft.push(block, &rules(tenant))
            && let Some(message_id) = message_id
        {
            // A refusal is said again by the seal, which every draft comes to.
            let _ = tenant.with_fan_outs(|fan_outs| fan_outs.pending(message_id, draft, now));
        }
    }

    /// The answer has ended; `turn` is empty if it broke off.
    pub fn ended(&mut self, tenant: &Tenant, turn: &Turn, now: Moment) -> Option<Fanout> {
        if let (Some((binding, _)), Some(own)) = (&self.binding, &self.own) {
            child_ended(tenant, *binding, own, turn);
        }
        let rules = rules(tenant);
        let Some(mut draft) = self.draft.take() else {
            return fans_out(turn, &rules).then_some(Err(FanOutDropped::Child));
        };
        // One that cannot be kept is not there to be named.
        if self.keeps_snapshots
            && let Ok(snapshot) = draft.snapshot(turn, &rules)
        {
            let before = self.before.take();
            let _ = tenant
                .with_fan_outs(|fan_outs| fan_outs.record(&mut draft, snapshot, before.as_deref(), now));
        }
        if fans_out(turn, &rules) {
            let bytes = draft.memory_bytes();
            tenant.with_fan_outs(|fan_outs| fan_outs.make_room(bytes));
        }
        let ended = draft.end(turn, &rules);
        let fanout = tenant.with_fan_outs(|fan_outs| fan_outs.seal(ended, now));
        tenant.sealed().notify_waiters();
        Some(fanout)
    }
}

/// Finds the child that a request is a later turn of, and what was decided for it.
pub(super) fn find(
    tenant: &Tenant,
    request: &Remembered,
    who: &Who,
    now: Moment,
) -> Option<(Binding, Bound)> {
    find_child(request, |marks| {
        tenant.with_fan_outs(|fan_outs| {
            let found = fan_outs.find(marks, who, now)?;
            Ok(found.and_then(|binding| Some((binding, fan_outs.children().get(binding)?.clone()))))
        })
    })
}

/// A turn of a child has ended; `turn` is empty if it broke off.
fn child_ended(tenant: &Tenant, binding: Binding, own: &Remembered, turn: &Turn) {
    let needs_start = tenant.with_fan_outs(|fan_outs| fan_outs.children().needs_start(binding, own));
    if needs_start && let Some(message) = turn.message() {
        let start = StartMeaning::of_answered(own, &message);
        tenant.with_fan_outs(|fan_outs| fan_outs.answered(binding, start));
    }
    tenant.with_fan_outs(|fan_outs| fan_outs.rest(binding, turn.stop_reason.as_deref()));
}

/// The rules of who is a child, for reading without a lock.
fn rules(tenant: &Tenant) -> Arc<Rules> {
    tenant.with_fan_outs(|fan_outs| Arc::clone(fan_outs.points().rules()))
}
