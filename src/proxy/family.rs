//! What one exchange has to do with fan-outs: whose child it is, and which children its answer will have.

use std::sync::Arc;

use http::HeaderMap;

use crate::engine::conversation::Trace;
use crate::engine::fanout::{
    Binding, Child, Draft, Dropped, Explicit, ForkId, ForkPoint, Newcomer, Parent, Recognised, Who,
};
use crate::engine::recall::Remembered;
use crate::engine::turn::{Block, Turn};
use crate::engine::types::{Moment, Role, Why};
use crate::store::{Bound, Fate, Tenant};

/// What a request says about itself in its headers.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    /// `x-forkpoint-parent` and `x-forkpoint-tool-use`.
    parent: Option<(String, Option<String>)>,
    /// Whether this client puts an agent id on every request of a child.
    marks_agents: bool,
}

impl Claims {
    pub fn of(headers: &HeaderMap) -> Claims {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(String::from);
        Claims {
            parent: text("x-forkpoint-parent").map(|parent| (parent, text("x-forkpoint-tool-use"))),
            marks_agents: headers.contains_key("x-claude-code-session-id"),
        }
    }

    /// The sender of a request, as far as its family goes.
    pub fn who(&self, request: &Remembered, sender: &crate::engine::identify::Sender) -> Who {
        Who::of(request, sender.session, sender.agent, self.marks_agents)
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
    /// The fork point that it comes from, or brings results back to.
    pub fork: Option<Arc<ForkPoint>>,
    /// The request in its own words and its one spelling.
    own: Option<Arc<Remembered>>,
    /// A child that was not seen before.
    newcomer: Option<Newcome>,
    binding: Option<(Binding, Arc<Bound>)>,
    draft: Option<Draft>,
}

/// A child on its first turn.
struct Newcome {
    child: Child,
    /// The client has put it on its parent's history itself.
    by_client: bool,
}

/// How the answer's fan-out ended.
pub type Fanout = Result<Arc<ForkPoint>, Dropped>;

impl Family {
    /// Of a tenant that nothing is known of.
    pub fn none(who: Who) -> Family {
        let (fork, own, newcomer, binding, draft) = Default::default();
        Family { who, role: Role::Plain, why: "no_fork_point", fork, own, newcomer, binding, draft }
    }

    pub fn recognise(
        tenant: &Tenant,
        request: &Arc<Remembered>,
        who: Who,
        claims: &Claims,
        now: Moment,
    ) -> Family {
        let none = Family { own: Some(Arc::clone(request)), ..Family::none(who) };
        let bound = tenant.children().find(request, &who, now);
        if let Some((binding, bound)) = bound {
            let fork = Some(Arc::clone(&bound.fork));
            return Family { role: Role::Child, why: "bound", fork, binding: Some((binding, bound)), ..none };
        }
        let newcomer = Newcomer { request, who, explicit: claims.explicit() };
        let recognised = tenant.with_forks(|forks| {
            forks.expire(now);
            forks.recognise(&newcomer, now)
        });
        match recognised {
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
        self.fork.as_ref().map(|fork| fork.id)
    }

    pub fn who(&self) -> &Who {
        &self.who
    }

    /// A child on its first turn; `Err` if its client has forked it already.
    pub fn newcomer(&self) -> Option<Result<&Child, &Child>> {
        let Newcome { child, by_client } = self.newcomer.as_ref()?;
        Some(if *by_client { Err(child) } else { Ok(child) })
    }

    /// What was decided for a child that was seen before.
    pub fn bound(&self) -> Option<&Arc<Bound>> {
        self.binding.as_ref().map(|(_, bound)| bound)
    }

    /// The request in its own words and its one spelling.
    pub fn own(&self) -> Option<&Arc<Remembered>> {
        self.own.as_ref()
    }

    /// Binds a child on its first turn, before it goes upstream.
    pub fn bind(&mut self, tenant: &Tenant, fate: Fate, now: Moment) {
        let (Some(fork), Some(own)) = (&self.fork, &self.own) else { return };
        let bound = Arc::new(Bound::new(Arc::clone(fork), fate));
        let bytes = bound.memory_bytes();
        let binding = tenant.children().bind(own, self.who, Arc::clone(&bound), bytes, now);
        self.binding = Some((binding, bound));
    }

    /// The first turn of a child came to nothing: what was decided for it is forgotten.
    pub fn release(&mut self, tenant: &Tenant) {
        if self.newcomer.is_some()
            && let Some((binding, _)) = self.binding.take()
        {
            tenant.children().release(binding);
        }
    }

    /// The upstream took the request: a child is bound, anybody else may fan out. Answers which turn of the
    /// child this is.
    pub fn accepted(
        &mut self,
        tenant: &Tenant,
        trace: &Trace,
        betas: &str,
        why: Why,
        now: Moment,
    ) -> Option<u64> {
        if self.role != Role::Child {
            let parent = Parent {
                request: Arc::clone(&trace.forwarded),
                betas: betas.to_owned(),
                who: self.who,
                written: trace.breakpoints.last().copied(),
            };
            self.draft = Draft::begin(parent, false).ok();
            return None;
        }
        if self.binding.is_none() {
            self.bind(tenant, Fate::Own(why), now);
        }
        self.binding.as_ref().map(|(_, bound)| bound.next_turn())
    }

    /// Whether finished blocks are of interest.
    pub fn listens(&self) -> bool {
        self.draft.is_some() || self.binding.is_some()
    }

    /// A block of the answer has finished.
    pub fn block(&mut self, tenant: &Tenant, message_id: Option<&str>, block: Block, now: Moment) {
        if let Some((binding, _)) = &self.binding {
            if let Some(id) = block.call_id() {
                tenant.children().called(*binding, &id);
            }
            return;
        }
        let Some(draft) = &mut self.draft else { return };
        tenant.with_forks(|forks| {
            if draft.push(block, forks.rules())
                && let Some(message_id) = message_id
            {
                // A refusal is said again by the seal, which every draft comes to.
                let _ = forks.pending(message_id, draft, now);
            }
        });
    }

    /// The answer has ended; `turn` is empty if it broke off.
    pub fn ended(&mut self, tenant: &Tenant, turn: &Turn, now: Moment) -> Option<Fanout> {
        if let (Some((binding, _)), Some(own), Some(message)) = (&self.binding, &self.own, turn.message()) {
            tenant.children().answered(*binding, own, &message);
        }
        let draft = self.draft.take()?;
        let fanout = tenant.with_forks(|forks| forks.seal(draft, turn, now));
        tenant.sealed().notify_waiters();
        Some(fanout)
    }
}
