//! What one exchange has to do with fan-outs: whose child it is, and which children its answer will have.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use http::{HeaderMap, HeaderName};

use crate::engine::conversation::Trace;
use crate::engine::fanout::{
    Binding, Child, Draft, Dropped, Explicit, ForkId, ForkPoint, Newcomer, Parent, Recognised, Who,
};
use crate::engine::identify::SESSION;
use crate::engine::recall::Remembered;
use crate::engine::turn::{Block, Turn};
use crate::engine::types::{Moment, Role};
use crate::store::{Bound, Tenant};

static PARENT: HeaderName = HeaderName::from_static("x-forkpoint-parent");
static TOOL_USE: HeaderName = HeaderName::from_static("x-forkpoint-tool-use");

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
        let text =
            |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).map(String::from);
        Claims {
            parent: text(&PARENT).map(|parent| (parent, text(&TOOL_USE))),
            marks_agents: headers.contains_key(&SESSION),
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
    binding: Option<(Binding, Arc<Bound>)>,
    draft: Option<Draft>,
}

/// How the answer's fan-out ended.
pub type Fanout = Result<Arc<ForkPoint>, Dropped>;

impl Family {
    /// Of a tenant that nothing is known of.
    pub fn none(who: Who) -> Family {
        Family { who, role: Role::Plain, why: "no_fork_point", fork: None, binding: None, draft: None }
    }

    pub fn recognise(
        tenant: &Tenant,
        request: &Remembered,
        who: Who,
        claims: &Claims,
        now: Moment,
    ) -> Family {
        let none = Family::none(who);
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
        let child = |Child { fork, rank, .. }: Child| Family {
            role: Role::Child,
            why: rank.as_str(),
            fork: Some(fork),
            ..Family::none(who)
        };
        match recognised {
            Recognised::Plain(why) => Family { why: why.as_str(), ..none },
            Recognised::Ambiguous => Family { why: "ambiguous", ..none },
            Recognised::Parent(fork) => {
                Family { role: Role::Parent, why: "results", fork: Some(fork), ..none }
            }
            Recognised::Child(found) => child(found),
            Recognised::ClientFork(found) => Family { why: "client_fork", ..child(found) },
        }
    }

    pub fn fork_id(&self) -> Option<ForkId> {
        self.fork.as_ref().map(|fork| fork.id)
    }

    /// The upstream took the request: a child is bound, anybody else may fan out. Answers which turn of the
    /// child this is.
    pub fn accepted(&mut self, tenant: &Tenant, trace: &Trace, betas: &str, now: Moment) -> Option<u64> {
        if self.role != Role::Child {
            let request = Arc::clone(&trace.forwarded);
            let parent = Parent { request, betas: betas.to_owned(), who: self.who };
            self.draft = Draft::begin(parent, false).ok();
            return None;
        }
        if self.binding.is_none() {
            let fork = Arc::clone(self.fork.as_ref()?);
            let bound = Arc::new(Bound { fork, turns: AtomicU64::new(0) });
            let binding = tenant.children().bind(&trace.forwarded, self.who, Arc::clone(&bound), 0, now);
            self.binding = Some((binding, bound));
        }
        self.binding.as_ref().map(|(_, bound)| bound.turns.fetch_add(1, Relaxed) + 1)
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
    pub fn ended(
        &mut self,
        tenant: &Tenant,
        request: &Remembered,
        turn: &Turn,
        now: Moment,
    ) -> Option<Fanout> {
        if let (Some((binding, _)), Some(message)) = (&self.binding, turn.message()) {
            tenant.children().answered(*binding, request, &message);
        }
        let draft = self.draft.take()?;
        Some(tenant.with_forks(|forks| forks.seal(draft, turn, now)))
    }
}
