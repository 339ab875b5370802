//! The answer of a request has ended, or nothing came of the request.

use std::borrow::Cow;
use std::sync::Arc;

use super::flight::{Accepted, Flight};
use super::progress::{forwarded, learn, name_in};
use super::reread::{Reread, reread};
use super::turns::{LastTurn, Turns};
use super::{TenantAccess, TenantState};
use crate::engine::answer::turn::{Turn, Wholeness, assistant_message};
use crate::engine::answer::usage::{Bill, Usage};
use crate::engine::cache::breaks::{Break, Case, Drift};
use crate::engine::cache::divergence::Divergence;
use crate::engine::cache::learned::text_bytes;
use crate::engine::cache::ledger::{LedgerBill, Missed};
use crate::engine::cache::prices::{MINIMUM_TOKENS, ModelFacts, Prices};
use crate::engine::cache::volatile::{Volatile, volatile};
use crate::engine::cache::worlds::OtherBills;
use crate::engine::family::conversation::Answer;
use crate::engine::family::fanout::{Draft, ForkPoint, StartMeaning, fans_out};
use crate::engine::family::thread::HeldAnswer;
use crate::engine::fork::answers::{self, is_empty, tool_errors};
use crate::engine::fork::experiment::{Answered, Measured};
use crate::engine::fork::weighed;
use crate::engine::policy::Policy;
use crate::engine::words::{
    Arm, CostUnit, FanOutDropped, Layer, Moment, Plan, StandDown, StopReason, Ticket,
};

/// The end of the answer's fan-out.
pub type Fanout = Result<Arc<ForkPoint>, FanOutDropped>;

/// The findings of an answer that has ended.
#[derive(Debug, Default)]
pub struct Settlement {
    /// None if nothing was collected of it.
    pub fanout: Option<Fanout>,
    pub verdict: Verdict,
    /// None if nothing was billed.
    pub bills: Option<OtherBills>,
    /// The turn of a child that was billed.
    pub child: Option<SettledChild>,
    /// Calls of tools that a forked child does not have.
    pub foreign_tool_calls: Option<u64>,
}

/// The findings of a bill about the cache.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Against the request that this one continues.
    pub drift: Option<Drift>,
    /// Texts in tools and system that changed since then.
    pub volatile: Vec<Volatile>,
    pub cache_break: Option<Break>,
}

/// A turn of a child that takes part in the comparison of forked and other children.
#[derive(Debug)]
pub struct SettledChild {
    pub arm: Arm,
    pub is_first: bool,
    pub stop: StopReason,
    pub is_empty: bool,
    pub tool_errors: u64,
    pub reread: Reread,
    pub output_tokens: u64,
    pub wall_ms: u64,
    pub cost: Option<Measured>,
    /// Dollars that a forked child was billed more than it would have cost aligned, as far as they were not counted yet.
    pub context_usd: f64,
    /// The tools that forking stands down for from now on.
    pub stood_down: Vec<(Arc<str>, StandDown)>,
}

/// The answer to a request has ended; `turn` is its content, as far as that was understood.
pub fn settle<T: TenantAccess>(
    tenant: &T,
    accepted: &mut Accepted,
    turn: Option<&Turn>,
    policy: &Policy,
    now: Moment,
) -> Settlement {
    let nothing = Turn::default();
    let fanout = end_turn(tenant, accepted, turn.unwrap_or(&nothing), now);
    let Some(turn) = turn else {
        tenant.look(|state| state.leave_ledger(&accepted.flight, now));
        return Settlement { fanout, ..Settlement::default() };
    };
    hold(tenant, accepted, turn);
    let turns = Turns::of(&accepted.flight);
    let drift = turns.as_ref().map(Turns::drift);
    let foreign_tool_calls = foreign_calls(accepted, turn);
    let Some(bill) = &turn.bill else {
        tenant.look(|state| state.leave_ledger(&accepted.flight, now));
        let verdict = Verdict { drift, ..Verdict::default() };
        return Settlement { fanout, verdict, foreign_tool_calls, ..Settlement::default() };
    };
    // The run that read the prompt shows what the cache held of it; all of them together, what was paid.
    let usage = bill.prompt();
    let facts = policy.prices.facts(&accepted.flight.request.model);
    let tells_reads = bill.tells_reads();
    let bills = if tells_reads || accepted.played.is_some() {
        other_bills(tenant, accepted, usage, policy, now)
    } else {
        OtherBills { billed: usage, ..OtherBills::default() }
    };
    let verdict = if accepted.has_begun && tells_reads {
        let text = (!accepted.is_billed).then(|| text_bytes(accepted.flight.trace.reading())).flatten();
        let missed = tenant.look(|state| state.settle(accepted, &usage, text, facts, now));
        let lost = judge(accepted, turns.as_ref().zip(drift.as_ref()), &usage, missed, facts);
        tenant.look(|state| state.learn_outcome(accepted, turn, drift.as_ref(), lost.as_ref()));
        let volatile = match (&turns, &drift) {
            (Some(turns), Some(Drift::Drifted(divergence))) if policy.reports_volatile => {
                volatile_texts(tenant, &accepted.flight, turns, divergence)
            }
            _ => Vec::new(),
        };
        Verdict { drift, volatile, cache_break: lost }
    } else {
        // Whatever was billed: an answer without content has written nothing that anybody can read. And a bill that does
        // not say what was read shows no break.
        tenant.look(|state| state.leave_ledger(&accepted.flight, now));
        Verdict { drift, ..Verdict::default() }
    };
    let child = settle_child(tenant, accepted, turn, bill, bills, policy, now);
    Settlement { fanout, verdict, bills: Some(bills), child, foreign_tool_calls }
}

/// Keeps an answer that the server holds, so that what goes on from it can be made whole. It holds no refusals, and
/// nothing of another model that took over, which is never whole.
fn hold<T: TenantAccess>(tenant: &T, accepted: &Accepted, turn: &Turn) {
    let is_held = accepted.flight.request.arrival.is_threaded()
        && turn.wholeness == Wholeness::Whole
        && turn.stop_reason.as_deref() != Some("refusal");
    let (true, Some(id)) = (is_held, &turn.id) else { return };
    let said: Vec<&[u8]> =
        turn.blocks.iter().filter(|block| !block.is_blank_text()).map(|block| &block.json[..]).collect();
    let message = (!said.is_empty()).then(|| assistant_message(said).into());
    let is_summary = turn.stop_reason.as_deref() == Some("compaction") && message.is_some();
    let answer = HeldAnswer { message, is_summary };
    tenant.look(|state| {
        state.recent.hold(accepted.recent, id, answer);
        state.unsaved.held(id);
    });
}

/// Nothing came of a request: it was refused, it failed, or its client left before the answer.
pub fn abandon<T: TenantAccess>(tenant: &T, flight: &Flight, now: Moment) {
    tenant.look(|state| {
        state.leave_ledger(flight, now);
        state.uncount_start(flight);
        if let (Some(binding), Some(_)) = (flight.binding, flight.relation.newcomer()) {
            // What was decided for a child on its first turn is forgotten.
            state.fan_outs.release(binding);
        }
    });
}

/// Compares a request with the one that it continues.
pub fn drift(flight: &Flight) -> Option<Drift> {
    Turns::of(flight).as_ref().map(Turns::drift)
}

/// The bills of a request in the other worlds. One without content has written nothing that anybody can read, and
/// plays nowhere: it is billed alike wherever it goes out as it did.
fn other_bills<T: TenantAccess>(
    tenant: &T,
    accepted: &mut Accepted,
    usage: Usage,
    policy: &Policy,
    now: Moment,
) -> OtherBills {
    if !accepted.has_begun {
        let alike = (!accepted.flight.is_forked()).then_some(usage);
        return OtherBills { sent: alike, aligned: alike, billed: usage };
    }
    let weights = accepted.played.is_none().then(|| learn(tenant, accepted, usage, policy, now));
    tenant.look(|state| {
        if let Some(weights) = weights {
            state.play(accepted, usage, policy, weights, now);
        }
        if let Some(played) = &accepted.played {
            state.worlds.ended(played, now);
        }
    });
    let Some(played) = &accepted.played else { return OtherBills::default() };
    // The answer costs the same in every world.
    let answered = |bill: Usage| Usage { output: usage.output, ..bill };
    let OtherBills { sent, aligned, billed } = played.bills;
    OtherBills { sent: sent.map(answered), aligned: aligned.map(answered), billed: answered(billed) }
}

/// Judges if the request lost anything of its conversation's cache.
fn judge(
    accepted: &Accepted,
    turns: Option<(&Turns, &Drift)>,
    usage: &Usage,
    missed: Option<Missed>,
    facts: ModelFacts,
) -> Option<Break> {
    let Flight { request, trace, prediction, sent_at, .. } = &*accepted.flight;
    let answered = turns.and_then(|(turns, _)| match &turns.last {
        LastTurn::Kept(whole) => {
            let last = request.arrival.predecessor()?;
            last.trace.as_answered(whole, &last.outcome)
        }
        LastTurn::Faded(faded) => faded.outline.as_answered(&faded.outcome),
    });
    // Bytes are only compared with those of an earlier turn.
    let subject = turns.map_or(trace.reading().without_bytes(), |(turns, _)| turns.now.as_subject());
    let case = Case {
        last: answered.as_ref().zip(turns.map(|(_, drift)| drift)),
        now: &trace.as_sent(subject, *sent_at),
        usage,
        prediction,
        missed,
        minimum_tokens: facts.minimum_tokens,
    };
    case.judge()
}

/// The texts that made the request drift where it did, before its messages.
fn volatile_texts<T: TenantAccess>(
    tenant: &T,
    flight: &Flight,
    turns: &Turns,
    divergence: &Divergence,
) -> Vec<Volatile> {
    let (LastTurn::Kept(last), Layer::Tools | Layer::System) = (&turns.last, divergence.layer) else {
        return Vec::new();
    };
    let ratio = tenant.look(|state| state.learned.tokens_per_byte(&flight.request.model));
    let Some(ratio) = ratio else { return Vec::new() };
    let cached_to = flight.trace.breakpoints.last().map_or(usize::MAX, |point| point.piece);
    volatile(&last.as_subject(), &turns.now.as_subject(), Some(divergence), cached_to, ratio)
}

/// The calls in the answer to a forked child of tools that the child does not have.
fn foreign_calls(accepted: &Accepted, turn: &Turn) -> Option<u64> {
    let flight = &accepted.flight;
    let is_child = flight.plan == Plan::Forked && flight.binding.is_some();
    is_child.then(|| answers::foreign_calls(&flight.own, &turn.blocks))
}

/// Records how a turn of a child went.
fn settle_child<T: TenantAccess>(
    tenant: &T,
    accepted: &Accepted,
    turn: &Turn,
    bill: &Bill,
    bills: OtherBills,
    policy: &Policy,
    now: Moment,
) -> Option<SettledChild> {
    let flight = &accepted.flight;
    let child = flight.binding?;
    let (is_empty, tool_errors) = (is_empty(turn), tool_errors(&flight.own));
    let cost = measured(bill, bills, &policy.prices, &flight.request.model);
    let reread = reread(tenant, flight, child);
    let [tools, prompt] =
        [Layer::Tools, Layer::System].map(|layer| flight.own.chain().layer(flight.own.anatomy(), layer));
    tenant.look(|state| {
        let begun_at = state.recent.outcome_mut(accepted.recent).and_then(|outcome| outcome.begun);
        let bound = state.fan_outs.child_mut(child)?;
        let wall_ms = bound.grows(now);
        if bound.is_snapshot {
            return None;
        }
        let dearer = cost.filter(|cost| cost.unit == CostUnit::Dollars && bound.is_forked());
        let dearer = dearer.and_then(|cost| Some(cost.billed - cost.aligned?));
        let context_usd = dearer.map_or(0.0, |usd| bound.context_cost(usd));
        let answered = Answered {
            child,
            fork: bound.fork,
            tool: &Arc::clone(&bound.tool),
            arm: bound.arm(),
            first: accepted.child_turn == Some(1),
            stop: StopReason::of(turn.stop_reason.as_deref()),
            is_cut: turn.stop_reason.is_none(),
            is_empty,
            prompt_tokens: bill.context().prompt(),
            output_tokens: bill.total().output,
            reread_tokens: (reread.results > 0).then_some(reread.tokens),
            tools,
            prompt,
            loses_messages: flight.loses_messages(),
            siblings: bound.siblings,
            came_at: flight.request.came_at,
            begun_at: begun_at.unwrap_or(now),
            cost,
        };
        Some(SettledChild {
            arm: answered.arm,
            is_first: answered.first,
            stop: answered.stop,
            is_empty,
            tool_errors,
            reread,
            output_tokens: answered.output_tokens,
            wall_ms,
            cost,
            context_usd,
            stood_down: state.experiment.record(&answered, policy.fork.max_cost_ratio, now),
        })
    })
}

/// A bill and what it would have been otherwise, in the unit that forecasts of its model are in.
fn measured(bill: &Bill, bills: OtherBills, prices: &Prices, model: &str) -> Option<Measured> {
    let own = bill.model().unwrap_or(model);
    let weigh = |model: &str, usage: &Usage| {
        weighed(usage, prices.model(model).map(|model| model.multipliers).unwrap_or_default())
    };
    let dollars = |usage: &Usage| Some(prices.price(own)?.cost(usage).total()?.as_f64());
    let (unit, billed) = match prices.cost(bill, model).and_then(|cost| cost.total()) {
        Some(billed) => (CostUnit::Dollars, billed.as_f64()),
        None => {
            let runs = bill.runs().map(|(own, usage)| weigh(own.unwrap_or(model), &usage));
            (CostUnit::Tokens, runs.sum::<Option<f64>>()?)
        }
    };
    let of = |usage: &Usage| match unit {
        CostUnit::Dollars => dollars(usage),
        CostUnit::Tokens => weigh(own, usage),
    };
    let beside = of(&bills.billed).map(|of_prompt| (billed - of_prompt).max(0.0));
    let [sent, aligned] = [bills.sent, bills.aligned].map(|bill| Some(of(&bill?)? + beside?));
    Some(Measured { unit, billed, sent, aligned })
}

/// The answer has ended: a fan-out is sealed, or was none. `turn` is empty if it broke off.
fn end_turn<T: TenantAccess>(
    tenant: &T,
    accepted: &mut Accepted,
    turn: &Turn,
    now: Moment,
) -> Option<Fanout> {
    let Flight { binding, own, request, .. } = &*accepted.flight;
    let (needs_start, rules) = tenant.look(|state| {
        let needs_start = |child| state.fan_outs.children().needs_start(child, own);
        (binding.is_some_and(needs_start), Arc::clone(state.fan_outs.points().rules()))
    });
    if let Some(binding) = *binding {
        let message = if needs_start { turn.message() } else { None };
        let start = message.map(|message| StartMeaning::of_answered(own, &message));
        // One JSON body comes all at once.
        let names: Vec<Cow<'_, str>> = turn.blocks.iter().filter_map(name_in).collect();
        tenant.look(|state| {
            if let Some(start) = start {
                state.fan_outs.answered(binding, start);
            }
            names.iter().for_each(|name| state.fan_outs.called(binding, name));
            state.fan_outs.rest(binding, turn.stop_reason.as_deref());
        });
    }
    let mut draft = accepted.draft.take()?;
    let fans_out = fans_out(turn, &rules);
    // A nested fan-out never evicts a fork point that others use.
    let makes_room = !draft.is_nested() && fans_out;
    if accepted.keeps_snapshot || (fans_out && !draft.is_forwarded()) {
        let last = request.arrival.predecessor();
        let before = last.and_then(|last| last.outcome.answer.as_ref()?.message_id.as_deref());
        // A question to a child's turn is put on that as it went out.
        let mut childs = (!draft.is_forwarded()).then(|| Draft::begin(forwarded(&accepted.flight), true));
        let draft = childs.as_mut().unwrap_or(&mut draft);
        // One that cannot be kept is not there to be named.
        if let Ok(snapshot) = draft.snapshot(turn, &rules) {
            let _ = tenant.look(|state| state.fan_outs.record(draft, snapshot, before, now));
        }
    }
    let (bytes, pending) = (draft.memory_bytes(), draft.pending());
    let ended = draft.end(turn, &rules);
    tenant.look(|state| {
        if makes_room {
            state.fan_outs.make_room(bytes);
        }
        let fanout = state.fan_outs.seal(ended, now);
        if let Some(fork) = pending {
            state.sealed(fork);
        }
        Some(fanout)
    })
}

impl TenantState {
    /// The upstream billed a request. `text`: the bytes of its prompt, if that is text throughout. Returns the entry that
    /// others were writing when it was sent, as it turned out.
    fn settle(
        &mut self,
        accepted: &Accepted,
        usage: &Usage,
        text: Option<usize>,
        facts: ModelFacts,
        now: Moment,
    ) -> Option<Missed> {
        let flight = &*accepted.flight;
        let Flight { request, trace, ticket, prediction, trial, lesson, .. } = flight;
        let (model, least) = (&request.model, facts.minimum_tokens);
        self.unsaved.learned();
        if !accepted.is_billed {
            self.learned.bill(model, text, usage);
        }
        if let Some((trial, harmless)) = trial.and_then(|trial| Some((trial, trial.shows(usage.cache_read)?)))
        {
            self.learned.betas.learn(model, trial.change, harmless);
        }
        if let Some(lesson) = lesson.clone() {
            self.gate.learned(lesson, usage.cache_read > 0, Ticket(self.newest.0 + 1));
        }
        if flight.resumes() && usage.prompt() < least.unwrap_or(MINIMUM_TOKENS) {
            // It could write nothing, and says nothing about those that can.
            self.learned.habits.resumed_in_vain(trace.reading());
            if let Some(outcome) = self.recent.outcome_mut(accepted.recent) {
                outcome.resumes = false;
            }
        }
        let has_payload = trace.parameters.has_image() || trace.reading().anatomy().has_payload();
        let bill = LedgerBill { usage: *usage, minimum_tokens: least, has_payload };
        self.worlds.billed.settle(*ticket, &bill, now);
        self.worlds.billed.missed(prediction)
    }

    /// Keeps what the next request of the conversation is compared with.
    fn learn_outcome(
        &mut self,
        accepted: &Accepted,
        turn: &Turn,
        drift: Option<&Drift>,
        lost: Option<&Break>,
    ) {
        if let Some(conversation) = self.recent.conversation_of(accepted.recent) {
            match (drift, lost) {
                (Some(Drift::Drifted(_)), Some(lost)) => conversation.lost(lost.layer),
                (Some(Drift::Extended), _) => conversation.extended(),
                _ => {}
            }
        }
        if let Some(outcome) = self.recent.outcome_mut(accepted.recent) {
            outcome.answer = Some(Answer { message_id: turn.id.clone(), usage: turn.usage() });
        }
    }

    /// Takes a request out of the ledger of what is billed: nothing will be read of what it was to write, and whoever
    /// waits for it goes.
    fn leave_ledger(&mut self, flight: &Flight, now: Moment) {
        self.woken.extend(self.gate.gone(flight.ticket, &mut self.worlds.billed, now));
    }
}
