//! A request is taken by the upstream, and its answer arrives.

use std::borrow::Cow;
use std::sync::Arc;

use super::children::{BoundChild, Fate};
use super::flight::{Accepted, Flight};
use super::{TenantAccess, TenantState};
use crate::engine::answer::turn::Block;
use crate::engine::answer::usage::Usage;
use crate::engine::cache::entry::EntryKey;
use crate::engine::cache::learned::text_bytes;
use crate::engine::cache::ledger::LedgerBill;
use crate::engine::cache::prices::MINIMUM_TOKENS;
use crate::engine::cache::worlds::{Lead, Play, Weights, WorldGate, WorldPrompts};
use crate::engine::family::arrival::Predecessor;
use crate::engine::family::conversation::Outcome;
use crate::engine::family::fanout::{Child, Draft, ForkId, Parent, summary_name};
use crate::engine::family::recent::{AcceptedRequest, RecentId};
use crate::engine::policy::Policy;
use crate::engine::request::recall::KnownLayer;
use crate::engine::respell::canonical::FirstSpellings;
use crate::engine::respell::echo::Spelling;
use crate::engine::words::{Layer, Moment, Plan, Role, Why};

/// Parts of a request that was accepted, worked out before the tenant's lock is taken.
struct Keepsakes {
    first_spellings: Option<FirstSpellings>,
    layers: Vec<(Layer, KnownLayer)>,
    spelling: Option<Spelling>,
    draft: Draft,
    keeps_snapshots: bool,
    prompts: WorldPrompts,
}

/// The upstream took a request: from here on it is known. `keeps_snapshots`: the newest turn of every conversation is
/// kept.
pub fn accept<T: TenantAccess>(
    tenant: &T,
    mut flight: Box<Flight>,
    keeps_snapshots: bool,
    now: Moment,
) -> Accepted {
    let first_spellings = flight.interns.first_spellings();
    tenant.learn(std::mem::take(&mut flight.interns));
    let (layers, spelling) = (layers(&flight), spelling(tenant, &flight));
    let draft = draft(&flight);
    let prompts = flight.prompts();
    let keepsakes = Keepsakes { first_spellings, layers, spelling, draft, keeps_snapshots, prompts };
    tenant.look(|state| state.accept(flight, keepsakes, now))
}

/// The answer has begun: what the request wrote can be read. A stream brings its bill along, so that others know at
/// once how much there is.
pub fn first_content<T: TenantAccess>(
    tenant: &T,
    accepted: &mut Accepted,
    usage: Option<Usage>,
    policy: &Policy,
    now: Moment,
) {
    let usage = if accepted.played.is_none() { usage } else { None };
    let weights = usage.map(|usage| learn(tenant, accepted, usage, policy, now));
    let text = usage.and_then(|_| text_bytes(accepted.flight.trace.reading()));
    tenant.look(|state| {
        state.first_content(accepted, usage, text, policy, now);
        if let (Some(usage), Some(weights)) = (usage, weights) {
            state.play(accepted, usage, policy, weights, now);
        }
    });
}

/// Learns from the bill of a request how many tokens its prompt has. Returns what is known of its model then.
pub(super) fn learn<T: TenantAccess>(
    tenant: &T,
    accepted: &Accepted,
    usage: Usage,
    policy: &Policy,
    now: Moment,
) -> Weights {
    let model = &accepted.flight.request.model;
    let weights = tenant.weights(model);
    let segments = tenant.look(|state| {
        let play = state.play_of(accepted, usage, policy, weights, now);
        state.worlds.learn(&play)
    });
    tenant.weigh(model, &segments);
    tenant.weights(model)
}

/// Begins to collect the answer to a request, which may be a fan-out.
fn draft(flight: &Flight) -> Draft {
    if flight.relation.role() == Role::Child {
        // No agent is put on a child's prompt. Its own words are enough to know its children by.
        let own = Parent::new(Arc::clone(&flight.own), flight.relation.who);
        return Draft::begin(Parent { is_forwarded: false, ..own }, true);
    }
    Draft::begin(forwarded(flight), false)
}

/// The request of a flight as it went out.
pub(super) fn forwarded(flight: &Flight) -> Parent {
    Parent {
        betas: flight.request.betas.clone(),
        version: flight.request.version.clone(),
        written: flight.trace.breakpoints.last().copied(),
        ..Parent::new(flight.trace.forwarded(), flight.relation.who)
    }
}

/// Tools and system prompt that other requests may bring too. A request on another's prefix has that one's, and one
/// that repeats its predecessor's brings nothing new.
fn layers(flight: &Flight) -> Vec<(Layer, KnownLayer)> {
    let read = flight.trace.reading();
    let repeats = flight.request.arrival.predecessor().is_some_and(|last| {
        let statics = read.anatomy().tools + read.anatomy().system;
        last.trace.reading().shared_pieces(read) >= statics
    });
    let whole = if repeats { None } else { flight.trace.whole() };
    let layer = |layer| Some((layer, whole?.layer(layer)?));
    [Layer::Tools, Layer::System].into_iter().filter_map(layer).collect()
}

/// The spelling in which the tools and inputs of a request went out, if not as they came.
fn spelling<T: TenantAccess>(tenant: &T, flight: &Flight) -> Option<Spelling> {
    if flight.trace.is_as_it_came() {
        return None;
    }
    let sent = flight.trace.whole()?;
    let known = tenant.look(|state| state.recent.take_spelling(flight.conversation.id));
    let known = known.filter(|spelling| spelling.is_of(sent));
    Some(known.unwrap_or_else(|| Spelling::of(sent)))
}

impl TenantState {
    fn accept(&mut self, mut flight: Box<Flight>, keepsakes: Keepsakes, now: Moment) -> Accepted {
        self.unsaved.spelt(keepsakes.first_spellings);
        self.unsaved.learned();
        let arrival = &flight.request.arrival;
        let last = arrival.predecessor();
        if let Some(last) = last.filter(|last| last.is_read_by(flight.sent_at)) {
            self.learned.habits.continued(last.trace.reading());
        }
        if let Some(last) = last.filter(|last| last.outcome.resumes)
            && last.is_followed_in_time(flight.sent_at)
            && !flight.loses_messages()
        {
            self.learned.habits.resumed_for_long(last.trace.reading());
        }
        let reading = flight.trace.reading();
        let before = last.map(|last| last.trace.reading());
        // Aligned, one that went out at once as it came would have been held for what another was writing.
        let is_observed = matches!(flight.plan, Plan::Passthrough(_));
        let readable = if is_observed { flight.sent_at } else { now };
        let classes = self.learned.sight(reading, before, flight.starts(), flight.sent_at, readable);
        let outcome = Outcome {
            sent: flight.sent_at,
            resumes: flight.resumes(),
            would_be_as_it_came: flight.would_be_as_it_came,
            drops_lost: flight.drops_lost,
            ..Outcome::default()
        };
        let request = AcceptedRequest {
            trace: Arc::clone(&flight.trace),
            resumes: arrival.delta.is_some(),
            outcome,
            conversation: flight.conversation.clone(),
            pins: std::mem::take(&mut flight.pins),
            hint: flight.request.hint,
            spelling: keepsakes.spelling,
            layers: keepsakes.layers,
            faded: arrival.faded.as_ref().map(|faded| faded.id),
        };
        let pause = last.map(|last| flight.sent_at.since(last.outcome.sent));
        if let Some(went_on) = last.and_then(|last| self.recent.held_name(last)) {
            self.unsaved.held(&went_on);
        }
        let recent = self.remember(request, last);
        let child_turn = self.accept_child(&mut flight, now);
        let child = flight.binding.and_then(|binding| self.fan_outs.child_name(binding));
        if let Some(outcome) = self.recent.outcome_mut(recent) {
            outcome.child = child;
        }
        let is_asked_for = flight.request.arrival.is_asked_for;
        if let Some(conversation) = self.recent.conversation_of(recent) {
            if let Some(pause) = pause {
                conversation.paused(pause);
            }
            if flight.is_forked() {
                conversation.forked();
            }
            if flight.is_changed() || flight.drops_lost {
                conversation.changed();
            }
            if is_asked_for {
                conversation.ask_whole();
            }
        }
        Accepted {
            flight,
            recent,
            classes,
            child_turn,
            keeps_snapshot: keepsakes.keeps_snapshots,
            draft: Some(keepsakes.draft),
            has_begun: false,
            is_billed: false,
            prompts: keepsakes.prompts,
            played: None,
        }
    }

    /// Remembers a request that was accepted, in the place of the one that it continues.
    pub fn remember(&mut self, request: AcceptedRequest, continued: Option<&Predecessor>) -> RecentId {
        let recent = self.recent.insert(request, continued);
        let room = self.recent_bytes_max;
        while self.recent.bytes() > room && self.recent.forget_oldest(room) {}
        recent
    }

    /// Binds a child that was not bound before, and counts its turn.
    fn accept_child(&mut self, flight: &mut Flight, now: Moment) -> Option<u64> {
        if let Some(Child { fork, call: Some(call), .. }) =
            flight.relation.newcomer().map(|first| &first.child)
        {
            self.fan_outs.accepted(fork.id, *call);
        }
        // A forked child was bound when it went out. If that was in a state that was forgotten, so is its prefix.
        if !flight.is_forked()
            && let (None, Some(child)) = (flight.binding, flight.relation.newcomer())
        {
            let why = match flight.plan {
                Plan::Aligned(why) => why,
                Plan::Passthrough(_) | Plan::Forked => Why::Mode,
            };
            let bound = BoundChild::new(child, Fate::Own(why), flight.forecast, flight.request.came_at);
            flight.binding = Some(self.bind(child, flight.relation.who, bound, now));
        }
        let bound = self.fan_outs.child_mut(flight.binding?)?;
        if flight.plan == Plan::Forked {
            bound.tail = flight.trace.breakpoints.last().map_or(bound.tail, |tail| Some(tail.piece));
        } else if bound.is_forked() {
            bound.has_strayed = true;
        }
        Some(bound.next_turn())
    }

    /// The answer has begun. `text`: the bytes of the prompt, if it is text throughout.
    fn first_content(
        &mut self,
        accepted: &mut Accepted,
        usage: Option<Usage>,
        text: Option<usize>,
        policy: &Policy,
        now: Moment,
    ) {
        if std::mem::replace(&mut accepted.has_begun, true) {
            return;
        }
        let Flight { request, trace, sent_at, ticket, .. } = &*accepted.flight;
        let facts = policy.prices.facts(&request.model);
        if let Some(outcome) = self.recent.outcome_mut(accepted.recent) {
            outcome.begun = Some(now);
        }
        self.unsaved.learned();
        let ratio = self.learned.tokens_per_byte(&request.model);
        self.worlds.billed.readable(*ticket, now, ratio);
        // What is warm now is known before those who wait for it look again.
        self.woken.extend(self.gate.begun(*ticket, &mut self.worlds.billed, now));
        let Some(usage) = usage else { return };
        let has_payload = trace.parameters.has_image() || text.is_none();
        let bill = LedgerBill { usage, minimum_tokens: facts.minimum_tokens, has_payload };
        self.worlds.billed.settle(*ticket, &bill, now);
        self.learned.bill(&request.model, text, &usage);
        let written = usage.cache_write_5m + usage.cache_write_1h;
        // Whatever made the answer to a smaller write slow, nobody would have waited for that.
        if written >= self.gate.settings().min_tokens {
            self.learned.began(&request.model, written, now.since(*sent_at) <= policy.max_hold_ms);
        }
        accepted.is_billed = true;
    }

    /// Returns the entries that a request on its way writes and that others would wait for, the shortest first.
    pub fn large_writes(&self, flight: &Flight) -> Vec<EntryKey> {
        let least = self.gate.settings().min_tokens;
        let writes = self.gate_writes(&flight.request.model, flight.prediction());
        writes.iter().rev().filter(|write| write.tokens >= least).map(|write| write.write.key).collect()
    }

    /// How long others wait for what a request on its way writes if its answer comes as a whole; none if they do not.
    pub fn whole_hold_ms(&self, flight: &Flight) -> Option<u64> {
        self.gate.hold_ms(&flight.request.model)
    }

    /// Another replica has written these entries, which a request on its way set out to write. Requests that
    /// wait for them here go.
    pub fn written_elsewhere(&mut self, flight: &Flight, entries: &[EntryKey], now: Moment) {
        let ratio = self.learned.tokens_per_byte(&flight.request.model);
        self.worlds.billed.written_elsewhere(flight.ticket, entries, now, ratio);
        self.woken.extend(self.gate.written(flight.ticket, entries, &mut self.worlds.billed, now));
    }

    /// Plays a request in the worlds where it goes out otherwise.
    pub(super) fn play(
        &mut self,
        accepted: &mut Accepted,
        usage: Usage,
        policy: &Policy,
        weights: Weights,
        now: Moment,
    ) {
        let play = self.play_of(accepted, usage, policy, weights, now);
        let played = self.worlds.play(&play);
        if let Some(outcome) = self.recent.outcome_mut(accepted.recent) {
            outcome.lead = played.lead;
        }
        let child = accepted.flight.binding.and_then(|binding| self.fan_outs.children().get(binding));
        if let Some(fork) = child.map(|child| child.fork) {
            self.prefixes.led(fork, played.lead);
        }
        accepted.played = Some(Box::new(played));
    }

    /// How much sooner a request would have come in the other worlds: what it goes on from was answered sooner there, and
    /// so were the children that it waited for.
    fn lead(&self, flight: &Flight) -> Lead {
        let Some(last) = flight.request.arrival.predecessor() else { return Lead::default() };
        let message = last.outcome.answer.as_ref().and_then(|answer| answer.message_id.as_deref());
        let children = message.map(|message| self.prefixes.lead(ForkId::of(self.id, message)));
        last.outcome.lead.and(children.unwrap_or_default())
    }

    fn play_of<'a>(
        &mut self,
        accepted: &'a Accepted,
        usage: Usage,
        policy: &Policy,
        weights: Weights,
        now: Moment,
    ) -> Play<'a> {
        let flight = &*accepted.flight;
        let Flight { request, relation, prediction, sent_at, trial, .. } = flight;
        let settings = self.gate.settings();
        let gate = WorldGate { min_tokens: settings.min_tokens, max_hold_ms: settings.max_hold_ms };
        let is_held = !policy.holds_children_only || relation.role() == Role::Child;
        let facts = policy.prices.facts(&request.model);
        let begun = self.recent.outcome_mut(accepted.recent).and_then(|outcome| outcome.begun);
        Play {
            prompts: &accepted.prompts,
            model: &request.model,
            prediction,
            usage,
            is_forked: flight.is_forked(),
            came_at: request.came_at,
            lead: self.lead(flight),
            sent_at: *sent_at,
            begun_at: begun.unwrap_or(now),
            streams: request.streams,
            gate: is_held.then_some(gate),
            minimum_tokens: facts.minimum_tokens.unwrap_or(MINIMUM_TOKENS),
            weights,
            is_harmless_read: trial.and_then(|trial| trial.shows(usage.cache_read)) == Some(true),
        }
    }
}

/// Returns the name in a block of its answer by which a child is known on its later turns.
pub(super) fn name_in(block: &Block) -> Option<Cow<'_, str>> {
    block.call_id().or_else(|| summary_name(&block.json).map(Cow::Owned))
}

/// A block of the answer has finished.
pub fn block<T: TenantAccess>(
    tenant: &T,
    accepted: &mut Accepted,
    message_id: Option<&str>,
    block: Block,
    now: Moment,
) {
    let name = accepted.flight.binding.and_then(|child| Some((child, name_in(&block)?)));
    let rules = tenant.look(|state| {
        if let Some((child, name)) = &name {
            state.fan_outs.called(*child, name);
        }
        Arc::clone(state.fan_outs.points().rules())
    });
    let Some(draft) = &mut accepted.draft else { return };
    if draft.push(block, &rules)
        && let Some(message_id) = message_id
    {
        // A refusal is said again by the seal, which every draft comes to.
        let _ = tenant.look(|state| state.fan_outs.pending(message_id, draft, now));
    }
}
