//! The plan of a child: whether it is forked, what is sent then, and what that costs.
//!
//! The proxy and `forkpoint explain` call the same functions. They bring what they know as values and as a
//! [`TenantView`], which is asked only as far as the plan gets.

use std::borrow::Cow;
use std::sync::Arc;

use super::economics::{ChildHabits, Forecast, PricedCache, PromptSizes, decide, fits};
use super::eligible::{EligibilityFacts, eligible, is_snapshot};
use super::layout::{ChildPrefix, Composed, Turn, betas};
use super::parent_prefix::ParentPrefix;
use super::policy::Policy;
use crate::engine::cache::breakpoints::Profile;
use crate::engine::cache::entry::Parameters;
use crate::engine::cache::prices::Prices;
use crate::engine::family::arrival::Arrival;
use crate::engine::family::conversation::{Conversation, Forwarded, Trace};
use crate::engine::family::fanout::{Child, ForkPoint, Rules, Who};
use crate::engine::request::prefix::Attribution;
use crate::engine::request::recall::{InParts, Known, Remembered, Shared};
use crate::engine::words::{ForkNote, Refusal, Ttl};

/// The settings that children are planned by.
#[derive(Clone, Copy, Debug)]
pub struct ForkRules<'a> {
    pub policy: &'a Policy,
    /// Which tools start agents.
    pub fan_out: &'a Rules,
    pub attribution: Attribution,
    pub profile: Profile,
    pub prices: &'a Prices,
    /// The size of the largest body that is sent.
    pub body_bytes: usize,
    /// Compose and price refused children as well, as far as that can be done, to show what they would have been.
    pub composes_refused: bool,
}

/// A request of a child, and what it is a turn of.
#[derive(Clone, Copy, Debug)]
pub struct ChildRequest<'a> {
    pub arrival: &'a Arrival,
    /// The request in the spelling of its conversation.
    pub own: &'a Remembered,
    pub conversation: &'a Arc<Conversation>,
    /// The betas that it came with.
    pub betas: &'a str,
}

/// A child on its first turn.
#[derive(Clone, Copy, Debug)]
pub struct NewChild<'a> {
    pub child: &'a Child,
    pub request: ChildRequest<'a>,
    pub who: &'a Who,
    /// The model that it asks for; empty if it leaves that to its parent.
    pub model: &'a str,
}

/// A child on a later turn, which keeps the prefix of its first.
#[derive(Clone, Copy, Debug)]
pub struct BoundChild<'a> {
    pub prefix: &'a Arc<ChildPrefix>,
    pub fork: &'a ForkPoint,
    /// The piece where the turn before wrote its tail, if that is known.
    pub tail: Option<usize>,
}

/// Knowledge about the tenant of a child: its cache entries, and what was learned from its other children.
pub trait TenantView {
    /// Returns true if forking was stopped for this child's tool or fan-out.
    fn is_stood_down(&self) -> bool;

    /// The habits of the children of this child's tool.
    fn habits(&self) -> ChildHabits;

    /// The tokens that a byte of a prompt makes, if a bill has shown it.
    fn tokens_per_byte(&self, model: &str) -> Option<f64>;

    /// Returns the one prefix that all children of a sealed fork point share, made now if there is none yet.
    fn shared_prefix(
        &self,
        make: impl FnOnce() -> Result<ParentPrefix, Refusal>,
    ) -> Result<Arc<ParentPrefix>, Refusal>;

    /// The bytes of the composed request that are read from the cache. `parents`: its parameters under the betas of
    /// its parent.
    fn read_bytes(&self, model: &str, composed: &ComposedChild, parents: &Parameters) -> Option<u64>;

    /// The tokens of the child as it came that are warm.
    fn sent_warm(&self) -> u64;
}

/// The plan of a child on its first turn.
#[derive(Debug)]
pub struct ChildPlan {
    /// `Ok` if the child is forked; otherwise the reason why not.
    pub verdict: Result<(), Refusal>,
    /// The request that is sent or, if it is refused, would have been.
    pub composed: Option<ComposedChild>,
    pub sizes: Option<PromptSizes>,
    pub forecast: Option<Forecast>,
}

/// A child on its parent's prefix, ready to be sent.
#[derive(Debug)]
pub struct ComposedChild {
    pub prefix: Arc<ChildPrefix>,
    pub request: Composed,
    /// The request as the cache reads it.
    pub trace: Trace,
    /// Its parent's betas and its own.
    pub betas: String,
    pub notes: Vec<ForkNote>,
    /// On a first turn, its parameters under the betas of its parent.
    pub parents: Option<Parameters>,
}

impl ChildPlan {
    /// The request to send, or why the child is not forked.
    pub fn into_composed(self) -> Result<ComposedChild, Refusal> {
        self.verdict?;
        self.composed.ok_or(Refusal::Internal)
    }

    /// Composes the child and prices it, as far as either can be done.
    fn compose(
        &mut self,
        new: &NewChild<'_>,
        rules: &ForkRules<'_>,
        tenant: &impl TenantView,
    ) -> Result<(), Refusal> {
        let NewChild { child, request, .. } = *new;
        let (own, policy, parent) = (request.own, rules.policy, &child.fork.parent.request);
        let model = model_of(new.model, parent);
        let parent_prefix = parent_prefix(child, rules, tenant)?;
        let (prefix, notes) = ChildPrefix::of(&parent_prefix, own, child, policy)?;
        let composed = prefix.compose(own, Turn::First, rules.profile);
        let (received, ratio) = (&request.arrival.received, tenant.tokens_per_byte(&model));
        self.sizes = PromptSizes::of(&parent_prefix, &child.fork, &composed, received, ratio);
        let (facts, sizes) = (rules.prices.facts(&model), self.sizes.as_ref());
        let fits = fits(&composed, sizes, own, parent, facts, rules.body_bytes, policy);
        if !rules.composes_refused {
            fits?;
        }
        let like = Arc::clone(parent);
        let mut composed =
            read_composed(Arc::new(prefix), composed, &child.fork, like, &request, rules.attribution)?;
        composed.notes.extend(notes);
        let parents = composed.trace.parameters.with_betas(std::iter::once(&*child.fork.parent.betas));
        let read = tenant.read_bytes(&model, &composed, &parents);
        composed.parents = Some(parents);
        if let Some(sizes) = &self.sizes {
            let cache = priced_cache(rules.prices, &model, &composed, read, tenant.sent_warm());
            self.forecast = Forecast::of(sizes, &tenant.habits(), &cache, policy);
        }
        self.composed = Some(composed);
        fits?;
        // A snapshot means nothing without its parent's context, so that there is no other plan to compare with.
        if is_snapshot(own, child) { Ok(()) } else { decide(self.forecast.as_ref(), policy) }
    }
}

/// Plans a child on its first turn.
///
/// A child that only the experiment or a stand-down keeps from being forked is composed and priced as well: its
/// forecast is compared with its bill.
pub fn plan_child(new: &NewChild<'_>, rules: &ForkRules<'_>, tenant: &impl TenantView) -> ChildPlan {
    let facts = EligibilityFacts { rules: rules.fan_out, stood_down: tenant.is_stood_down() };
    let verdict = eligible(new.request.own, new.child, new.who, rules.policy, &facts);
    let mut plan = ChildPlan { verdict, composed: None, sizes: None, forecast: None };
    match verdict {
        Ok(()) => plan.verdict = plan.compose(new, rules, tenant),
        // Any other reason says more about the child.
        Err(Refusal::StoodDown | Refusal::Holdout) => {
            plan.verdict = plan.compose(new, rules, tenant).and(verdict);
        }
        Err(_) if rules.composes_refused => plan.verdict = verdict.and(plan.compose(new, rules, tenant)),
        Err(_) => {}
    }
    plan
}

/// Composes a later turn of a forked child.
pub fn compose_later(
    bound: &BoundChild<'_>,
    request: &ChildRequest<'_>,
    rules: &ForkRules<'_>,
) -> Result<ComposedChild, Refusal> {
    let BoundChild { prefix, fork, tail } = *bound;
    let composed = prefix.compose(request.own, Turn::Later(tail), rules.profile);
    let like = match request.arrival.predecessor() {
        Some(last) => last.forwarded(),
        None => Arc::clone(&fork.parent.request),
    };
    read_composed(Arc::clone(prefix), composed, fork, like, request, rules.attribution)
}

/// The model of a forked request: its own or, if it leaves that out, its parent's.
pub fn model_of<'a>(own: &'a str, parent: &'a Remembered) -> Cow<'a, str> {
    if own.is_empty() {
        return parent.anatomy().model(parent.body()).unwrap_or_default();
    }
    Cow::Borrowed(own)
}

/// The prefix of a child: the one of its fork point or, before that is sealed, one of its own.
fn parent_prefix(
    child: &Child,
    rules: &ForkRules<'_>,
    tenant: &impl TenantView,
) -> Result<Arc<ParentPrefix>, Refusal> {
    let written = child.fork.parent.written;
    let make = || ParentPrefix::of(&child.fork, child.call, written, rules.attribution, rules.policy);
    if child.fork.is_sealed() { tenant.shared_prefix(make) } else { make().map(Arc::new) }
}

/// Reads a composed request as the cache will. `like`: the request that most of it is in, its parent's or the child's
/// last.
fn read_composed(
    prefix: Arc<ChildPrefix>,
    composed: Composed,
    fork: &ForkPoint,
    like: Arc<Remembered>,
    request: &ChildRequest<'_>,
    attribution: Attribution,
) -> Result<ComposedChild, Refusal> {
    let ChildRequest { arrival, own, conversation, betas: own_betas } = *request;
    let betas = betas(&fork.parent.betas, [own_betas]);
    let extent = prefix.parent_prefix().extent();
    let shared = Shared {
        request: Arc::clone(&fork.parent.request),
        bytes: composed.shared + extent.results as usize,
        answer: (extent.turn + extent.results) as usize,
    };
    let known = Like { like, parent_prefix: prefix.parent_prefix() };
    let parts = composed.body.pieces.clone();
    let read = InParts::read(parts, shared, &arrival.received, own, &known, attribution);
    let (forwarded, whole) = read.map_err(Refusal::unreadable)?;
    let parameters = Parameters::read_after(
        &arrival.parameters,
        whole.body(),
        whole.anatomy(),
        std::iter::once(betas.as_str()),
    );
    let forwarded = Forwarded::InParts(forwarded);
    let marks = composed.breakpoints.clone();
    let trace = Trace::with(arrival, forwarded, Arc::clone(conversation), marks, parameters);
    let notes = composed.notes.clone();
    Ok(ComposedChild { prefix, request: composed, trace, betas, notes, parents: None })
}

/// The prices of a model, and what the cache holds of a child: of its composed request `read` bytes, and of the child
/// as it came `sent_warm` tokens.
fn priced_cache<'a>(
    prices: &'a Prices,
    model: &str,
    composed: &ComposedChild,
    read: Option<u64>,
    sent_warm: u64,
) -> PricedCache<'a> {
    let facts = prices.facts(model);
    let model = prices.model(model);
    let parent_prefix = composed.prefix.parent_prefix();
    let entry = parent_prefix.extent().entry;
    PricedCache {
        price: model.and_then(|model| model.price.as_ref()),
        multipliers: model.map(|model| model.multipliers).unwrap_or_default(),
        facts,
        siblings: parent_prefix.siblings(),
        warm: read.is_some(),
        cold_messages: read.is_some_and(|bytes| bytes < entry),
        sent_warm,
        entry_ttl: parent_prefix.ttl(),
        ttl: composed.request.breakpoints.last().map_or(Ttl::FiveMinutes, |point| point.ttl),
    }
}

/// The requests that a composed one is made of.
struct Like<'a> {
    like: Arc<Remembered>,
    parent_prefix: &'a ParentPrefix,
}

impl Known for Like<'_> {
    fn hinted(&self) -> Option<Arc<Remembered>> {
        Some(Arc::clone(&self.like))
    }

    fn following(&self) -> Option<&Remembered> {
        self.parent_prefix.following()
    }
}
