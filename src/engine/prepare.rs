//! Prepares a request: reads it, gives it its one spelling and breakpoints, recognises it, and composes it on its
//! parent's prefix.
//!
//! All that takes time in proportion to a body happens here, on copies of what the tenant knows. What is done with it
//! is decided afterwards, by [`decide`](super::decide::decide), which only looks up.
//!
//! A bug in here must not cost the client its answer: each step is guarded, and the request goes out with what the
//! steps before it have made of it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use bytes::Bytes;

use super::align::{self, Facts, Habits, Marked, Spelt};
use super::cache::breakpoints;
use super::cache::prices::MINIMUM_TOKENS;
use super::cache::worlds::Weights;
use super::family::arrival::Arrival;
use super::family::claims::Claims;
use super::family::conversation::{Conversation, Trace};
use super::family::fanout::{ForkPoint, Who};
use super::fork::{
    self, BoundPrefix, ChildRequest, ChildSources, ComposedChild, NewChild, ParentPrefix, PreparedChild,
};
use super::policy::Policy;
use super::request::edit::Edit;
use super::request::recall::Remembered;
use super::respell::canonical::{News, Pins};
use super::tenant::{Fate, Imagined, Kind, ReadRequest, Relation, TenantAccess, View, relate};
use super::words::{BreakpointPlace, Moment, Origin, Plan, Reason, Refusal, Role, Skip, Step, Why};

/// A request in every way in which it may go out.
#[derive(Debug)]
pub struct Prepared {
    /// The request in its one spelling.
    pub words: Arc<Remembered>,
    pub own: OwnRequest,
    pub relation: Relation,
    pub fork: ForkOption,
    /// The request as its client sent it, if its own plan sends it otherwise.
    pub as_sent: Option<Arc<Trace>>,
    /// The request as `align` would have sent it, if it goes out as it came.
    pub imagined: Option<Imagined>,
}

/// A request in its own words: aligned, or as it came.
#[derive(Debug)]
pub struct OwnRequest {
    pub plan: Plan,
    pub trace: Arc<Trace>,
    pub conversation: Conversation,
    /// The body to send instead of the received one, if it is another.
    pub pieces: Option<Vec<Bytes>>,
    pub markers_added: usize,
    /// The insertions into what came, if the server holds the rest.
    pub edits: Vec<Edit>,
    pub interns: News,
    pub pins: Pins,
}

/// A request on its parent's prefix, if it is a child.
#[derive(Debug)]
pub enum ForkOption {
    /// It keeps its own prompt, for this reason.
    Own(Why),
    /// A child on its first turn.
    First {
        child: Box<PreparedChild>,
        /// True if the parent's answer has not ended, and the child could be forked once it has.
        awaits_seal: bool,
        /// True if forking was stopped for its fan-out.
        is_stood_down: bool,
    },
    /// A later turn of a forked child.
    Later(Box<ComposedChild>),
}

/// The treatment of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// It goes out as it came, for this reason; what would have been done to it is worked out.
    Observed(Reason),
    /// It may be changed.
    Changed,
}

/// A request to prepare.
#[derive(Clone, Copy)]
pub struct Preparation<'a, T> {
    pub request: &'a ReadRequest,
    pub who: Who,
    pub claims: &'a Claims,
    pub tenant: &'a T,
    pub treatment: Treatment,
    pub policy: &'a Policy,
    /// Called when a step begins.
    pub step: &'a dyn Fn(Step),
    pub now: Moment,
}

impl<T: TenantAccess> Preparation<'_, T> {
    /// Prepares the request.
    pub fn prepare(&self) -> Prepared {
        let spelt = match self.treatment {
            Treatment::Observed(reason) => Err(reason),
            Treatment::Changed => self.spelt(),
        };
        let words = spelt.as_ref().map_or(&self.request.arrival.received, |spelt| &spelt.forwarded);
        let words = Arc::clone(words);
        let relation = self.related(&words);
        let mut imagined = None;
        let own = match spelt {
            Ok(_) if relation.names_unknown_parent() => self.as_it_came(Reason::UnknownParent),
            Ok(spelt) => self.marked(spelt, &relation),
            Err(reason) => {
                let mut own = self.as_it_came(reason);
                if let Treatment::Observed(_) = self.treatment {
                    // Its spellings are learned as well, so that the next one is compared with what would have been
                    // sent before it.
                    if let Some((would_be, interns)) = self.imagined(&relation) {
                        (imagined, own.interns) = (Some(would_be), interns);
                    }
                }
                own
            }
        };
        let composed = guarded(|| {
            (self.step)(Step::Fork);
            self.fork(&words, &relation, &own)
        });
        let fork = composed.unwrap_or(ForkOption::Own(Why::Refused(Refusal::Internal)));
        let as_sent = self.as_sent(&own.trace);
        Prepared { words, own, relation, fork, as_sent, imagined }
    }

    /// The request in its one spelling, or why it goes out as it came.
    fn spelt(&self) -> Result<Spelt, Reason> {
        let arrival = &self.request.arrival;
        if arrival.drops_lost() && arrival.is_asked_whole() {
            return Err(Reason::LostPrefix);
        }
        if arrival.is_asked_whole() || arrival.similar_conversation().is_some_and(Conversation::is_stood_down)
        {
            return Err(Reason::Refused);
        }
        guarded(|| {
            (self.step)(Step::Align);
            self.spell(false)
        })
        .unwrap_or(Err(Reason::Internal))
    }

    fn spell(&self, imagined: bool) -> Result<Spelt, Reason> {
        let (view, facts) = (self.view(), self.facts(imagined));
        let arrival = &self.request.arrival;
        self.tenant.spellings(|table| align::spell(arrival, table, &view, self.policy.align, &facts))
    }

    /// The relation of the request to the fan-outs of its tenant.
    fn related(&self, words: &Arc<Remembered>) -> Relation {
        let (snapshots, claims) = (self.policy.fork.snapshots, self.claims);
        let held = self.request.arrival.held_child();
        guarded(|| relate(self.tenant, words, held, self.who, claims, snapshots, self.now))
            .unwrap_or_else(|| Relation::plain(self.who, "no_fork_point"))
    }

    /// The request with breakpoints where they will be read.
    fn marked(&self, spelt: Spelt, relation: &Relation) -> OwnRequest {
        let marked = guarded(|| {
            let shared = match &relation.kind {
                Kind::ClientFork(first) => first.child.last_shared(&spelt.forwarded),
                _ => None,
            };
            // A child seldom comes alone.
            let has_siblings = relation.role() == Role::Child;
            self.mark(&spelt, &Facts { has_siblings, shared, ..self.facts(false) })
        });
        let Some(Marked { trace, body, plan }) = marked else { return self.as_it_came(Reason::Internal) };
        let Spelt { conversation, interns, pins, .. } = spelt;
        let received = self.request.arrival.body();
        let is_untouched =
            matches!(&body.pieces[..], [piece] if piece.as_ptr() == received.as_ptr() || piece == received);
        OwnRequest {
            plan: Plan::Aligned(why_unmarked(&plan).map_or(Why::Mode, Why::Skipped)),
            trace,
            conversation,
            pieces: if is_untouched { None } else { Some(body.pieces) },
            markers_added: plan.edits.len(),
            edits: self
                .request
                .arrival
                .delta
                .as_ref()
                .map_or_else(Vec::new, |delta| delta.edits(&plan.edits)),
            interns,
            pins,
        }
    }

    fn mark(&self, spelt: &Spelt, facts: &Facts) -> Marked {
        // The entries of a forked child in its own words are those of the aligned world.
        let arrival = &self.request.arrival;
        let was_forked = arrival.conversation().is_some_and(Conversation::was_forked);
        let habits = self.habits(&spelt.forwarded, facts, was_forked);
        align::mark(&self.request.arrival, spelt, self.policy.align, facts, &habits)
    }

    /// The request as it came.
    fn as_it_came(&self, reason: Reason) -> OwnRequest {
        let arrival = &self.request.arrival;
        OwnRequest {
            plan: Plan::Passthrough(reason),
            trace: Arc::new(align::untouched(arrival)),
            conversation: arrival.conversation().cloned().unwrap_or_else(|| arrival.start(None)),
            pieces: None,
            markers_added: 0,
            edits: Vec::new(),
            interns: News::default(),
            pins: Pins::default(),
        }
    }

    /// The request as mode `align` would have changed it, and what it tells about spellings.
    fn imagined(&self, relation: &Relation) -> Option<(Imagined, News)> {
        let aligned = guarded(|| {
            let spelt = self.spell(true).ok()?;
            let facts = Facts { has_siblings: relation.role() == Role::Child, ..self.facts(true) };
            let Marked { trace, plan, .. } = self.mark(&spelt, &facts);
            Some((trace, plan, spelt))
        });
        let (trace, plan, spelt) = aligned??;
        let is_as_it_came = Arc::ptr_eq(&spelt.forwarded, &self.request.arrival.received);
        let is_as_sent = plan.edits.is_empty() && is_as_it_came;
        Some((Imagined { trace, is_as_sent, is_as_it_came }, spelt.interns))
    }

    /// The request on its parent's prefix, or why not.
    fn fork(&self, words: &Arc<Remembered>, relation: &Relation, own: &OwnRequest) -> ForkOption {
        let (arrival, rules) = (&self.request.arrival, self.policy.fork_rules());
        let ReadRequest { betas, version, .. } = self.request;
        let (marks, edits) = (&own.trace.breakpoints, &own.edits);
        let request = ChildRequest { arrival, own: words, betas, version, marks, edits };
        match &relation.kind {
            Kind::Plain | Kind::Parent(_) => ForkOption::Own(Why::NotAChild),
            Kind::ClientFork(_) => ForkOption::Own(Why::ClientFork),
            Kind::Bound(_, bound) => match &bound.fate {
                Fate::Own(why) => ForkOption::Own(*why),
                // The server holds the turn before as its client sent it.
                Fate::Forked(..) if is_held_as_it_came(arrival) => {
                    ForkOption::Own(Why::Refused(Refusal::StoodDown))
                }
                Fate::Forked(prefix, fork) => {
                    let bound = BoundPrefix { prefix, fork, tail: bound.tail };
                    match fork::compose_later(&bound, &request, &rules) {
                        Ok(composed) => ForkOption::Later(Box::new(composed)),
                        Err(refusal) => ForkOption::Own(Why::Refused(refusal)),
                    }
                }
            },
            Kind::Child(first) => {
                let child = &first.child;
                let is_stood_down = self.tenant.look(|state| state.prefixes.is_stood_down(child.fork.id));
                let new = NewChild { child, request, who: &self.who, model: &self.request.model };
                let Policy { fork: policy, fan_out, .. } = self.policy;
                let awaits_seal = !child.fork.is_sealed()
                    && request.has_version_of(&child.fork)
                    && fork::may_be_forked_once_sealed(words, child, &self.who, policy, fan_out);
                let child = fork::prepare_child(&new, &rules, &TenantSources(self.tenant));
                ForkOption::First { child: Box::new(child), awaits_seal, is_stood_down }
            }
        }
    }

    /// The request as its client sent it, if it goes out otherwise.
    fn as_sent(&self, trace: &Trace) -> Option<Arc<Trace>> {
        let arrival = &self.request.arrival;
        let is_marked_as_it_came = trace.breakpoints.iter().all(|point| point.origin == Origin::Client);
        let is_as_sent = arrival.came.is_none() && trace.is_as_it_came() && is_marked_as_it_came;
        if is_as_sent {
            return None;
        }
        if arrival.came.is_none() && trace.is_as_it_came() {
            // Its own markers are known from planning.
            let own = trace.breakpoints.iter().filter(|point| point.origin == Origin::Client).copied();
            return Some(Arc::new(Trace::new(arrival, Arc::clone(&arrival.received), own.collect())));
        }
        Some(Arc::new(align::untouched(arrival)))
    }

    fn view(&self) -> View<'_, T> {
        View { tenant: self.tenant, hint: self.request.hint }
    }

    fn facts(&self, imagined: bool) -> Facts {
        let model = self.policy.prices.facts(&self.request.model);
        let ratio = self.tenant.look(|state| state.learned.tokens_per_byte(&self.request.model));
        Facts {
            bound_thinking: model.bound_thinking,
            string_is_block: model.string_is_block,
            minimum_tokens: Some(model.minimum_tokens.unwrap_or(MINIMUM_TOKENS)),
            tokens_per_byte: ratio,
            imagined,
            ..Facts::default()
        }
    }

    fn habits(&self, forwarded: &Remembered, facts: &Facts, was_forked: bool) -> Habits {
        let (arrival, imagined) = (&self.request.arrival, facts.imagined || was_forked);
        let comes_late = arrival.predecessor().is_some_and(|last| {
            let pause_ms = self.now.since(last.outcome.sent);
            last.conversation.pauses().with(pause_ms).are_mostly_long()
        });
        let statics = forwarded.anatomy().tools + forwarded.anatomy().system;
        self.tenant.look(|state| {
            let last_written = state.last_written(arrival, forwarded, imagined, self.now);
            let resumes = arrival.predecessor().is_some() && last_written.is_none_or(|piece| piece < statics);
            let habits = &state.learned.habits;
            Habits {
                seldom_continues: habits.seldom_continues(forwarded),
                is_read_late: comes_late || (resumes && habits.seldom_resumes_for_long(forwarded)),
                read_by_others: state.learned.read_by_others(forwarded, facts.has_siblings, self.now),
                last_written,
            }
        })
    }
}

/// The state of a tenant that its children are prepared by.
struct TenantSources<'a, T>(&'a T);

impl<T: TenantAccess> ChildSources for TenantSources<'_, T> {
    fn tokens_per_byte(&self, model: &str) -> Option<f64> {
        self.0.look(|state| state.learned.tokens_per_byte(model))
    }

    fn weights(&self, model: &str) -> Option<Weights> {
        self.tokens_per_byte(model).map(|_| self.0.weights(model))
    }

    fn shared_prefix(
        &self,
        fork: &ForkPoint,
        make: impl FnOnce() -> Result<ParentPrefix, Refusal>,
    ) -> Result<Arc<ParentPrefix>, Refusal> {
        if let Some(known) = self.0.look(|state| state.prefixes.get(fork)) {
            return Ok(known);
        }
        let made = make()?;
        Ok(self.0.look(|state| state.prefixes.keep(fork, made)))
    }
}

/// Runs a step; none if it panics.
fn guarded<R>(step: impl FnOnce() -> R) -> Option<R> {
    std::panic::catch_unwind(AssertUnwindSafe(step)).ok()
}

/// Returns true if a request goes on from a turn that the server holds, and that was not put on its parent's prefix.
fn is_held_as_it_came(arrival: &Arrival) -> bool {
    arrival.delta.is_some() && arrival.predecessor().is_some_and(|last| last.trace.is_as_it_came())
}

/// Returns why no breakpoint was added where the next request would read.
fn why_unmarked(plan: &breakpoints::Plan) -> Option<Skip> {
    let matters = |place| matches!(place, BreakpointPlace::Request | BreakpointPlace::Tail);
    plan.skipped.iter().find(|(place, _)| matters(*place)).map(|(_, skip)| *skip)
}

impl Prepared {
    /// The bytes of the prefix of a child that may be forked now.
    pub fn first_prefix_bytes(&self) -> Option<usize> {
        match &self.fork {
            ForkOption::First { child, .. } => {
                child.first().map(|first| first.composed.prefix.memory_bytes())
            }
            ForkOption::Own(_) | ForkOption::Later(_) => None,
        }
    }
}
