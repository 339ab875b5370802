//! Decides what is done with a request that was prepared. Nothing here takes time in proportion to a body: it only
//! looks up, and runs in one critical section with the transition that follows from it.
//!
//! ```text
//! prepare ─ proceed ─┬─ PrepareAgain   what the request was prepared by has changed
//!    ▲               ├─ Wait           for the end of the parent's answer, or at the gate; then proceed again
//!    └───────────────┘
//!                    └─ Send           a Flight: it is in the ledgers, and a forked child is bound
//! ```

use super::family::fanout::{Child, ForkId};
use super::fork::experiment::ChildKind;
use super::fork::{Bills, ChildHabits, ChildOutlook, FirstTurn, Forecast, OwnWarmth};
use super::gate::{GateArrival, GateVerdict, LetGo};
use super::outgoing::Outgoing;
use super::policy::Policy;
use super::prepare::{ForkOption, Prepared};
use super::tenant::{Flight, FlightPlan, Kind, ReadRequest, TenantState, kind_of, tool_of};
use super::words::{CostUnit, GateOutcome, Mode, Moment, Plan, Refusal, Role, Ticket, Why};

/// Facts about a request besides its content.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances {
    pub ticket: Ticket,
    /// The mode in force for it.
    pub mode: Mode,
    /// True unless its client asks for less than `fork`: then a child keeps a prefix that it has.
    pub keeps_prefix: bool,
    /// The end of all its waits, fixed when it came.
    pub deadline: Moment,
    /// True if there is room for the prefix of one child more; none until that was asked.
    pub has_room: Option<bool>,
    /// True if it is decided for the last time, whatever has changed.
    pub is_last_round: bool,
}

/// The decision on a request.
#[derive(Clone, Debug)]
pub enum Decision {
    /// It goes out.
    Send(Sending),
    /// It waits for the end of the answer of this fork point, until then at most.
    AwaitSeal(ForkId, Moment),
    /// It waits for another request, which writes an entry that it would write too.
    AwaitWriter { arrival: GateArrival, until: Moment, underway_tokens: u64 },
    /// It is a child that is forked if there is room for this many bytes more.
    NeedsRoom(usize),
    /// The state that it was prepared by has changed.
    PrepareAgain,
}

/// The plan by which a request goes out.
#[derive(Clone, Debug)]
pub struct Sending {
    pub plan: Plan,
    /// The predicted cost of a child on its first turn.
    pub forecast: Option<Forecast>,
    /// The reason why a child would not be forked in mode `fork`, or `none` if it would.
    pub would_fork: Option<&'static str>,
    /// None if the gate was not asked.
    pub gate: Option<GatePass>,
}

/// The gate's answer to a request that goes.
#[derive(Clone, Debug)]
pub struct GatePass {
    /// None if waiting for what it writes would take too long, so that it has no place at the gate.
    pub arrival: Option<GateArrival>,
    pub let_go: LetGo,
    /// Tokens that others are writing right now, and that this request would write once more.
    pub underway_tokens: u64,
}

/// The next step of a request that was decided.
#[derive(Debug)]
pub enum Next {
    Send(Box<Departure>),
    Wait(ReadRequest, Box<Prepared>, Wait),
    /// Room is to be made for the prefix of a child, if that is possible.
    NeedsRoom(ReadRequest, Box<Prepared>, usize),
    PrepareAgain(ReadRequest),
}

/// A wait of a request, and until when at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    pub until: Moment,
    /// None for the end of the parent's answer. At the gate, the tokens that others are writing.
    pub underway_tokens: Option<u64>,
}

/// A request that goes out now.
#[derive(Debug)]
pub struct Departure {
    pub flight: Box<Flight>,
    pub outgoing: Outgoing,
    pub would_fork: Option<&'static str>,
    pub gate: Option<GatePass>,
}

/// Decides what is done with a request, and makes the transition that follows from it.
pub fn proceed(
    request: ReadRequest,
    prepared: Box<Prepared>,
    state: &mut TenantState,
    policy: &Policy,
    facts: &Circumstances,
    now: Moment,
) -> Next {
    state.stop_awaiting_seal(facts.ticket);
    match decide(&request, &prepared, state, policy, facts, now) {
        Decision::PrepareAgain => {
            state.stop_waiting(facts.ticket, now);
            Next::PrepareAgain(request)
        }
        Decision::NeedsRoom(bytes) => Next::NeedsRoom(request, prepared, bytes),
        Decision::AwaitSeal(fork, until) => {
            state.await_seal(facts.ticket, fork, until);
            Next::Wait(request, prepared, Wait { until, underway_tokens: None })
        }
        Decision::AwaitWriter { arrival, until, underway_tokens } => {
            state.enter_gate(arrival, now);
            Next::Wait(request, prepared, Wait { until, underway_tokens: Some(underway_tokens) })
        }
        Decision::Send(Sending { plan, forecast, would_fork, mut gate }) => {
            if let Some(arrival) = gate.as_mut().and_then(|pass| pass.arrival.take()) {
                state.enter_gate(arrival, now);
            }
            let (plan, outgoing) = prepared.sent_as(plan, forecast);
            let lesson = gate.as_ref().and_then(|pass| pass.let_go.lesson.clone());
            let flight = state.begin(request, FlightPlan { lesson, ..plan }, facts.ticket, now);
            count_unforked(state, &flight, would_fork, now);
            Next::Send(Box::new(Departure { flight, outgoing, would_fork, gate }))
        }
    }
}

/// A request goes out as it came, and what would have been done with it is worked out.
pub fn observe(
    request: ReadRequest,
    prepared: Box<Prepared>,
    state: &mut TenantState,
    policy: &Policy,
    ticket: Ticket,
    now: Moment,
) -> Departure {
    let Sending { plan, forecast, would_fork, gate } = own_plan(&prepared, state, policy, now);
    let (plan, outgoing) = prepared.sent_as(plan, forecast);
    let flight = state.begin(request, plan, ticket, now);
    count_unforked(state, &flight, would_fork, now);
    Departure { flight, outgoing, would_fork, gate }
}

/// Counts a child that a lower mode has kept from being forked or refused; `begin` counts those of mode `fork`.
fn count_unforked(state: &mut TenantState, flight: &Flight, would_fork: Option<&'static str>, now: Moment) {
    let (Kind::Child(first), Some(word)) = (&flight.relation.kind, would_fork) else { return };
    let why = Refusal::named(word);
    if why.is_some() || word == "none" {
        let forecast = flight.forecast.as_ref();
        state.experiment.declined(tool_of(&first.child), why, forecast, now);
    }
}

/// Decides what is done with a request now.
pub fn decide(
    request: &ReadRequest,
    prepared: &Prepared,
    state: &TenantState,
    policy: &Policy,
    facts: &Circumstances,
    now: Moment,
) -> Decision {
    if !facts.is_last_round && !is_current(prepared, state) {
        return Decision::PrepareAgain;
    }
    let seal_deadline = request.came_at.after(policy.await_parent_ms).min(facts.deadline);
    if let Some(child) = waits_for_seal(prepared, state, policy, facts, now)
        && now < seal_deadline
    {
        return Decision::AwaitSeal(child.fork.id, seal_deadline);
    }
    let mut sending = plan(prepared, state, policy, facts, now);
    if sending.plan == Plan::Forked
        && facts.has_room.is_none()
        && let Some(bytes) = prepared.first_prefix_bytes()
    {
        return Decision::NeedsRoom(bytes);
    }
    match ask_gate(request, prepared, sending.plan, state, policy, facts, now) {
        None => {}
        Some((pass, None)) => sending.gate = Some(pass),
        Some((pass, Some(until))) => {
            let GatePass { arrival, underway_tokens, .. } = pass;
            if let Some(arrival) = arrival {
                return Decision::AwaitWriter { arrival, until, underway_tokens };
            }
        }
    }
    Decision::Send(sending)
}

/// Returns true if nothing has changed that the request was prepared by: the answer of a child's parent has not ended
/// meanwhile, its fork point takes children, no other child has started from its call, and what was decided for a child is
/// still known.
fn is_current(prepared: &Prepared, state: &TenantState) -> bool {
    match &prepared.relation.kind {
        Kind::Plain | Kind::Parent(_) => true,
        Kind::Child(first) | Kind::ClientFork(first) => {
            let (who, fork) = (&prepared.relation.who, &first.child.fork);
            if first.claim.is_some_and(|body| state.fan_outs.is_claimed(&first.child, who, body)) {
                return false;
            }
            if let ForkOption::First { is_stood_down: false, .. } = prepared.fork
                && state.prefixes.is_stood_down(fork.id)
            {
                return false;
            }
            match state.fan_outs.points().get(fork.id) {
                Some(known) => known.is_sealed() == fork.is_sealed(),
                None => fork.is_sealed(),
            }
        }
        Kind::Bound(binding, _) => state.fan_outs.children().get(*binding).is_some(),
    }
}

/// Returns true if the fork in a request's plan is acted upon, and not only worked out.
fn acts(prepared: &Prepared, facts: &Circumstances) -> bool {
    let has_prefix = prepared.relation.bound().is_some_and(|bound| bound.is_forked());
    facts.mode == Mode::Fork || (facts.keeps_prefix && has_prefix)
}

/// Returns the child that could be forked once its parent's answer has ended.
fn waits_for_seal<'a>(
    prepared: &'a Prepared,
    state: &TenantState,
    policy: &Policy,
    facts: &Circumstances,
    now: Moment,
) -> Option<&'a Child> {
    let (Kind::Child(first), Plan::Aligned(_)) = (&prepared.relation.kind, prepared.own.plan) else {
        return None;
    };
    // No request is woken by a seal that has come.
    let point = state.fan_outs.points().get(first.child.fork.id);
    let is_pending = point.is_some_and(|point| !point.is_sealed());
    let awaits_seal = is_pending && matches!(prepared.fork, ForkOption::First { awaits_seal: true, .. });
    let outlook = Outlook { prepared, state, policy, child: &first.child, now };
    (awaits_seal && acts(prepared, facts) && !outlook.is_stood_down()).then_some(&first.child)
}

/// Decides how a request goes out, the gate aside.
fn plan(
    prepared: &Prepared,
    state: &TenantState,
    policy: &Policy,
    facts: &Circumstances,
    now: Moment,
) -> Sending {
    let Prepared { own, fork, .. } = prepared;
    if !acts(prepared, facts) {
        return own_plan(prepared, state, policy, now);
    }
    let child = outlook(prepared, state, policy, now);
    let Plan::Aligned(marks) = own.plan else {
        return Sending { plan: own.plan, forecast: None, would_fork: None, gate: None };
    };
    let (verdict, forecast) =
        child.map_or_else(|| (later_verdict(fork), None), |outlook| verdict(prepared, &outlook));
    let is_first = matches!(fork, ForkOption::First { .. });
    let plan = match verdict {
        // A child keeps its prefix for life: those that work are not pushed out by those that come.
        Ok(()) if is_first && facts.has_room == Some(false) => {
            Plan::Aligned(Why::Refused(Refusal::StoreFull))
        }
        Ok(()) => Plan::Forked,
        Err(why) => Plan::Aligned(labelled(marks, why)),
    };
    Sending { plan, forecast, would_fork: None, gate: None }
}

/// A request that goes out in its own words, and what would have been done with it in mode `fork`.
fn own_plan(prepared: &Prepared, state: &TenantState, policy: &Policy, now: Moment) -> Sending {
    let decided = outlook(prepared, state, policy, now).map(|outlook| verdict(prepared, &outlook));
    let would_fork = decided.map(|(verdict, _)| verdict.err().map_or("none", Why::as_str));
    let forecast = decided.and_then(|(_, forecast)| forecast);
    Sending { plan: prepared.own.plan, forecast, would_fork, gate: None }
}

/// The outlook of a child on its first turn.
fn outlook<'a>(
    prepared: &'a Prepared,
    state: &'a TenantState,
    policy: &'a Policy,
    now: Moment,
) -> Option<Outlook<'a>> {
    match &prepared.relation.kind {
        Kind::Child(first) => Some(Outlook { prepared, state, policy, child: &first.child, now }),
        _ => None,
    }
}

/// Decides if a child on its first turn is forked.
fn verdict(prepared: &Prepared, outlook: &Outlook<'_>) -> (Result<(), Why>, Option<Forecast>) {
    match &prepared.fork {
        ForkOption::First { child, .. } => {
            let decided = child.decide(&outlook.policy.fork_rules(), outlook);
            (decided.verdict.map_err(Why::Refused), decided.forecast)
        }
        other => (later_verdict(other), None),
    }
}

/// Decides if one more child goes out on a parent's prefix. Those that have one keep it.
fn later_verdict(fork: &ForkOption) -> Result<(), Why> {
    match fork {
        ForkOption::Own(why) => Err(*why),
        ForkOption::First { .. } | ForkOption::Later(_) => Ok(()),
    }
}

/// The reason why a request is aligned and no more: where that says nothing, why nothing was marked.
fn labelled(marks: Why, why: Why) -> Why {
    match (why, marks) {
        (Why::NotAChild, Why::Skipped(_)) | (Why::Mode | Why::Skipped(_), _) => marks,
        _ => why,
    }
}

/// Asks the gate if the request may go. None if that is not its business; else its answer and, if the request waits,
/// until when.
fn ask_gate(
    request: &ReadRequest,
    prepared: &Prepared,
    plan: Plan,
    state: &TenantState,
    policy: &Policy,
    facts: &Circumstances,
    now: Moment,
) -> Option<(GatePass, Option<Moment>)> {
    if policy.holds_children_only && prepared.relation.role() != Role::Child {
        return None;
    }
    let (trace, model) = prepared.sent_trace(plan);
    let model = model.unwrap_or(&request.model);
    let prediction = state.predict_as(trace, Some(facts.ticket), now);
    let writes = state.gate_writes(model, &prediction);
    let is_known = state.gate.knows(facts.ticket);
    let most = writes.iter().map(|write| write.tokens).max();
    if most.is_none() && !is_known {
        return None;
    }
    let underway_tokens = state.underway_tokens(model, &prediction);
    let is_slow = |tokens: u64| tokens < u64::MAX && state.learned.is_slow(model, tokens);
    if !is_known && most.is_some_and(is_slow) {
        let let_go = GateOutcome::TooSlow.into();
        return Some((GatePass { arrival: None, let_go, underway_tokens: 0 }, None));
    }
    let arrival = GateArrival {
        ticket: facts.ticket,
        writes,
        streams: request.streams,
        deadline: facts.deadline,
        model: model.to_owned(),
    };
    let (let_go, until) = match state.gate.verdict(&arrival, &state.worlds.billed, now) {
        GateVerdict::Go(let_go) => (let_go, None),
        GateVerdict::Wait(wait) => (GateOutcome::Unneeded.into(), Some(wait.until)),
    };
    Some((GatePass { arrival: Some(arrival), let_go, underway_tokens }, until))
}

/// The tenant of a child that comes now.
#[derive(Clone, Copy)]
struct Outlook<'a> {
    prepared: &'a Prepared,
    state: &'a TenantState,
    policy: &'a Policy,
    child: &'a Child,
    now: Moment,
}

impl Outlook<'_> {
    fn kind(&self) -> ChildKind<'_> {
        kind_of(self.child, &self.prepared.words)
    }
}

impl ChildOutlook for Outlook<'_> {
    fn is_stood_down(&self) -> bool {
        let fork = self.child.fork.id;
        let verdict = self.state.experiment.verdict(tool_of(self.child), fork, self.now);
        verdict.is_some() || self.state.prefixes.is_stood_down(fork)
    }

    fn decided(&self) -> Option<Forecast> {
        self.state.prefixes.decided(self.child, self.now)
    }

    fn habits(&self) -> ChildHabits {
        self.state.experiment.habits(self.kind(), self.policy.fork.horizon_turns)
    }

    fn so_far(&self, unit: CostUnit) -> Bills {
        self.state.experiment.bills(self.kind(), unit)
    }

    fn read_bytes(&self, first: &FirstTurn) -> Option<u64> {
        let FirstTurn { composed, model, parents, .. } = first;
        let found = self.state.predict_fork(model, &composed.trace, parents, self.now);
        found.read.map(|read| read.bytes)
    }

    fn gate_tokens(&self) -> u64 {
        self.state.gate.settings().min_tokens
    }

    fn own_warmth(&self) -> OwnWarmth {
        let Prepared { own, as_sent, imagined, .. } = self.prepared;
        let as_sent = as_sent.as_ref().unwrap_or(&own.trace);
        let aligned = imagined.as_ref().map_or(&own.trace, |imagined| &imagined.trace);
        let worlds = &self.state.worlds;
        OwnWarmth {
            sent: self.state.predict_in(&worlds.sent, as_sent, self.now).tokens(),
            aligned: self.state.predict_in(&worlds.aligned, aligned, self.now).tokens(),
            now: self.state.predict(aligned, self.now).tokens(),
        }
    }
}

#[cfg(test)]
mod tests;
