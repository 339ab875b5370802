//! The plan of a child: if it is forked, the request that is sent then, and its cost.
//!
//! The proxy and `forkpoint explain` call the same functions: [`prepare_child`] works on the request, and
//! [`PreparedChild::decide`] only looks up what the cache holds and what was learned.

use std::borrow::Cow;
use std::sync::Arc;

use super::economics::{Bills, ChildHabits, Forecast, OwnWarmth, PricedCache};
use super::eligible::{eligible, is_snapshot};
use super::layout::{self, ChildPrefix, Composed, Turn, betas};
use super::parent_prefix::ParentPrefix;
use super::policy::ForkPolicy;
use super::sizes::{PromptSizes, fits};
use crate::engine::cache::breakpoints::{Breakpoint, Profile, room_when_cut};
use crate::engine::cache::entry::Parameters;
use crate::engine::cache::prices::Prices;
use crate::engine::cache::worlds::Weights;
use crate::engine::family::arrival::Arrival;
use crate::engine::family::conversation::{Forwarded, Trace};
use crate::engine::family::fanout::{Child, ForkPoint, Rules, Who};
use crate::engine::family::thread::Delta;
use crate::engine::request::edit::Edit;
use crate::engine::request::marker;
use crate::engine::request::prefix::Attribution;
use crate::engine::request::recall::{InParts, Known, Remembered, Shared};
use crate::engine::words::{Carrier, CostUnit, ForkNote, Refusal, Ttl};

/// The settings that children are planned by.
#[derive(Clone, Copy, Debug)]
pub struct ForkRules<'a> {
    pub policy: &'a ForkPolicy,
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
    /// The betas that it came with.
    pub betas: &'a str,
    /// If the server holds its conversation, the breakpoints of what came, and the insertions that make them.
    pub marks: &'a [Breakpoint],
    pub edits: &'a [Edit],
    /// The version of the API that it asks for.
    pub version: &'a str,
}

impl ChildRequest<'_> {
    /// Returns true if the API takes a parent's history as it takes this request: versions differ in what they refuse.
    pub fn has_version_of(&self, fork: &ForkPoint) -> bool {
        self.version == fork.parent.version
    }
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

/// The prefix of a child on a later turn: that of its first.
#[derive(Clone, Copy, Debug)]
pub struct BoundPrefix<'a> {
    pub prefix: &'a Arc<ChildPrefix>,
    pub fork: &'a ForkPoint,
    /// The piece where the turn before wrote its tail, if that is known.
    pub tail: Option<usize>,
}

/// The part of a child's preparation that its tenant knows.
pub trait ChildSources {
    /// The tokens that a byte of a prompt makes, if a bill has shown it.
    fn tokens_per_byte(&self, model: &str) -> Option<f64>;

    /// The tokens that a byte of each kind of block makes, if bills have shown it.
    fn weights(&self, model: &str) -> Option<Weights>;

    /// Returns the one prefix that all children of a sealed fork point share, made now if there is none yet.
    fn shared_prefix(
        &self,
        fork: &ForkPoint,
        make: impl FnOnce() -> Result<ParentPrefix, Refusal>,
    ) -> Result<Arc<ParentPrefix>, Refusal>;
}

/// The part of the decision about a child that its tenant knows: its cache entries, and what was learned from its
/// other children.
pub trait ChildOutlook {
    /// Returns true if forking was stopped for this child's tool or fan-out.
    fn is_stood_down(&self) -> bool;

    /// Returns the decision for its fan-out, if a sibling came before.
    fn decided(&self) -> Option<Forecast>;

    /// The habits of the children of this child's tool.
    fn habits(&self) -> ChildHabits;

    /// Returns the bill so far, and what they would have cost.
    fn so_far(&self, unit: CostUnit) -> Bills;

    /// The bytes of the composed request that are read from the cache.
    fn read_bytes(&self, first: &FirstTurn) -> Option<u64>;

    /// The tokens of the child in its own words that are warm.
    fn own_warmth(&self) -> OwnWarmth;

    /// The fewest tokens of a write that siblings wait for.
    fn gate_tokens(&self) -> u64;
}

/// A child on its first turn, composed on its parent's prefix as far as that can be done. Nothing in it depends on
/// what the cache holds.
#[derive(Debug)]
pub struct PreparedChild {
    /// The reason why it may not be forked, whatever it costs.
    eligible: Result<(), Refusal>,
    /// None if it is not composed, since it is not eligible.
    first: Option<Result<FirstTurn, Refusal>>,
    is_snapshot: bool,
}

/// The first turn of a child on its parent's prefix.
#[derive(Debug)]
pub struct FirstTurn {
    pub composed: ComposedChild,
    pub sizes: Option<PromptSizes>,
    /// The model that it goes to.
    pub model: String,
    /// Its parameters under the betas of its parent.
    pub parents: Parameters,
    /// The reason why upstream or model would refuse it.
    fits: Result<(), Refusal>,
}

/// The decision about a child on its first turn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChildDecision {
    /// `Ok` if the child is forked; otherwise the reason why not.
    pub verdict: Result<(), Refusal>,
    pub forecast: Option<Forecast>,
}

/// A child on its parent's prefix, ready to be sent.
#[derive(Debug)]
pub struct ComposedChild {
    pub prefix: Arc<ChildPrefix>,
    pub request: Composed,
    /// The request as the cache reads it.
    pub trace: Arc<Trace>,
    /// Its parent's betas and its own.
    pub betas: String,
    pub notes: Vec<ForkNote>,
}

/// Prepares a child on its first turn: decides if it is eligible, and composes it.
///
/// A child that only the experiment or a stand-down keeps from being forked is composed as well: its forecast is
/// compared with its bill.
pub fn prepare_child(
    new: &NewChild<'_>,
    rules: &ForkRules<'_>,
    sources: &impl ChildSources,
) -> PreparedChild {
    let NewChild { child, request, who, .. } = *new;
    let eligible = match eligible(request.own, child, who, rules.policy, rules.fan_out) {
        Ok(()) | Err(Refusal::Holdout) if !request.has_version_of(&child.fork) => Err(Refusal::Version),
        eligible => eligible,
    };
    let composes = matches!(eligible, Ok(()) | Err(Refusal::Holdout)) || rules.composes_refused;
    let first = composes.then(|| compose_first(new, rules, sources));
    PreparedChild { eligible, first, is_snapshot: is_snapshot(request.own, child) }
}

/// Composes the first turn of a child.
fn compose_first(
    new: &NewChild<'_>,
    rules: &ForkRules<'_>,
    sources: &impl ChildSources,
) -> Result<FirstTurn, Refusal> {
    let NewChild { child, request, .. } = *new;
    let (own, policy, parent) = (request.own, rules.policy, &child.fork.parent.request);
    let model = model_of(new.model, parent);
    let parent_prefix = parent_prefix(child, rules, sources)?;
    let (prefix, notes) = ChildPrefix::of(&parent_prefix, own, child, policy)?;
    let composed = prefix.compose(own, Turn::First, rules.profile);
    let (received, ratio) = (&request.arrival.received, sources.tokens_per_byte(&model));
    let sizes =
        PromptSizes::of(&parent_prefix, &child.fork, &composed, received, ratio, sources.weights(&model));
    let facts = rules.prices.facts(&model);
    let fits = fits(&composed, sizes.as_ref(), own, parent, facts, rules.body_bytes, policy);
    if !rules.composes_refused {
        fits?;
    }
    let like = Arc::clone(parent);
    let mut composed =
        read_composed(Arc::new(prefix), composed, &child.fork, like, &request, rules.attribution)?;
    composed.notes.extend(notes);
    let parents = composed.trace.parameters.with_betas(std::iter::once(&*child.fork.parent.betas));
    Ok(FirstTurn { composed, sizes, model: model.into_owned(), parents, fits })
}

impl PreparedChild {
    /// The first turn, if it could be composed.
    pub fn first(&self) -> Option<&FirstTurn> {
        self.first.as_ref().and_then(|first| first.as_ref().ok())
    }

    /// Takes the first turn, if it could be composed.
    pub fn into_first(self) -> Option<FirstTurn> {
        self.first.and_then(Result::ok)
    }

    /// Decides if the child is forked. This only looks up.
    pub fn decide(&self, rules: &ForkRules<'_>, outlook: &impl ChildOutlook) -> ChildDecision {
        let eligible = match self.eligible {
            Ok(()) | Err(Refusal::Holdout) if outlook.is_stood_down() => Err(Refusal::StoodDown),
            eligible => eligible,
        };
        let Some(first) = &self.first else { return ChildDecision { verdict: eligible, forecast: None } };
        let (pays, forecast) = match first {
            Ok(first) => self.pays(first, rules, outlook),
            Err(refusal) => (Err(*refusal), None),
        };
        let verdict = match eligible {
            // Any other reason says more about the child.
            Ok(()) | Err(Refusal::StoodDown | Refusal::Holdout) => pays.and(eligible),
            Err(_) => eligible,
        };
        ChildDecision { verdict, forecast }
    }

    fn pays(
        &self,
        first: &FirstTurn,
        rules: &ForkRules<'_>,
        outlook: &impl ChildOutlook,
    ) -> (Result<(), Refusal>, Option<Forecast>) {
        let forecast = outlook.decided().or_else(|| {
            let cache = priced_cache(rules.prices, first, outlook);
            let so_far = |unit| outlook.so_far(unit);
            Forecast::of(first.sizes.as_ref()?, &outlook.habits(), &cache, so_far, rules.policy)
        });
        // A snapshot means nothing without its parent's context, so that there is no other plan to compare with.
        let pays = if self.is_snapshot {
            Ok(())
        } else {
            forecast.map_or(Err(Refusal::CostUnknown), |forecast| forecast.verdict)
        };
        (first.fits.and(pays), forecast)
    }
}

/// Composes a later turn of a forked child.
pub fn compose_later(
    bound: &BoundPrefix<'_>,
    request: &ChildRequest<'_>,
    rules: &ForkRules<'_>,
) -> Result<ComposedChild, Refusal> {
    let BoundPrefix { prefix, fork, tail } = *bound;
    if request.own.summary().is_some() {
        return Err(Refusal::Compaction);
    }
    let turn = if request.arrival.delta.is_some() { Turn::Held } else { Turn::Later(tail) };
    let composed = prefix.compose(request.own, turn, rules.profile);
    let like = match request.arrival.predecessor() {
        Some(last) => last.trace.forwarded(),
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
    sources: &impl ChildSources,
) -> Result<Arc<ParentPrefix>, Refusal> {
    let written = child.fork.parent.written;
    let make = || ParentPrefix::of(&child.fork, child.call, written, rules.attribution, rules.policy);
    if child.fork.is_sealed() { sources.shared_prefix(&child.fork, make) } else { make().map(Arc::new) }
}

/// Reads a composed request as the cache will. `like`: the request that most of it is in, its parent's or the child's
/// last.
fn read_composed(
    prefix: Arc<ChildPrefix>,
    mut composed: Composed,
    fork: &ForkPoint,
    like: Arc<Remembered>,
    request: &ChildRequest<'_>,
    attribution: Attribution,
) -> Result<ComposedChild, Refusal> {
    let ChildRequest { arrival, own, betas: own_betas, .. } = *request;
    let betas = betas(&fork.parent.betas, own_betas);
    let extent = prefix.parent_prefix().extent();
    let shared = Shared {
        request: Arc::clone(&fork.parent.request),
        bytes: composed.shared + extent.results as usize,
        answer: (extent.turn + extent.results) as usize,
    };
    let known = ComposedFrom { like, parent_prefix: prefix.parent_prefix() };
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
    if let Some(delta) = &arrival.delta {
        let HeldMarks { breakpoints, edits } = HeldMarks::of(request, delta, whole.anatomy().pieces.len());
        composed.body = layout::held(&whole, delta, &edits);
        composed.breakpoints = breakpoints;
    }
    let marks = composed.breakpoints.clone();
    let trace = Trace::with(arrival, forwarded, marks, parameters);
    let notes = composed.notes.clone();
    Ok(ComposedChild { prefix, request: composed, trace: Arc::new(trace), betas, notes })
}

/// The markers of the part of a request that came, as they go out on its parent's prefix.
struct HeldMarks {
    breakpoints: Vec<Breakpoint>,
    edits: Vec<Edit>,
}

impl HeldMarks {
    /// `pieces`: the number of pieces of the whole request on its parent's prefix. Both end alike.
    fn of(request: &ChildRequest<'_>, delta: &Delta, pieces: usize) -> HeldMarks {
        let (body, anatomy) = (request.own.body(), request.own.anatomy());
        let first = delta.first_piece(anatomy);
        let place = |piece: usize| (pieces + piece).saturating_sub(anatomy.pieces.len());
        let came = request.marks.iter().filter(|mark| mark.piece >= first);
        let mut breakpoints: Vec<Breakpoint> = came
            .filter(|mark| mark.carrier == Carrier::Block)
            .map(|mark| Breakpoint { piece: place(mark.piece), ..*mark })
            .collect();
        let mut edits = request.edits.to_vec();
        // A marker at the top level was left out when its conversation began. One on the last block does the same.
        let top_level = request.marks.iter().find(|mark| mark.carrier == Carrier::TopLevel);
        let room = |piece: usize| Some((piece, room_when_cut(body, anatomy, piece)?));
        if let Some(top_level) = top_level
            && let Some((piece, at)) = (first..anatomy.pieces.len()).rev().find_map(room)
            && !breakpoints.iter().any(|mark| mark.piece == place(piece))
        {
            edits.extend(delta.edits(&[Edit::inserting(at, marker::as_last_member(top_level.ttl))]));
            breakpoints.push(super::added(place(piece), top_level.ttl));
        }
        HeldMarks { breakpoints, edits }
    }
}

/// The prices of a child's model, and what the cache holds.
fn priced_cache<'a>(prices: &'a Prices, first: &FirstTurn, outlook: &impl ChildOutlook) -> PricedCache<'a> {
    let (composed, read) = (&first.composed, outlook.read_bytes(first));
    let facts = prices.facts(&first.model);
    let model = prices.model(&first.model);
    let parent_prefix = composed.prefix.parent_prefix();
    let entry = parent_prefix.extent().entry;
    PricedCache {
        price: model.and_then(|model| model.price.as_ref()),
        multipliers: model.map(|model| model.multipliers).unwrap_or_default(),
        facts,
        siblings: parent_prefix.siblings(),
        warm: read.is_some(),
        cold_messages: read.is_some_and(|bytes| bytes < entry),
        own: outlook.own_warmth(),
        gate_tokens: outlook.gate_tokens(),
        entry_ttl: parent_prefix.ttl(),
        ttl: composed.request.breakpoints.last().map_or(Ttl::FiveMinutes, |point| point.ttl),
    }
}

/// The requests that a composed one is made of.
struct ComposedFrom<'a> {
    like: Arc<Remembered>,
    parent_prefix: &'a ParentPrefix,
}

impl Known for ComposedFrom<'_> {
    fn hinted(&self) -> Option<Arc<Remembered>> {
        Some(Arc::clone(&self.like))
    }

    fn following(&self) -> Option<&Remembered> {
        self.parent_prefix.following()
    }
}
