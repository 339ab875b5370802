//! One exchange as the store sees it: recalled before it goes out, remembered once it was accepted, judged when
//! it was billed.

mod predict;
mod worlds;

pub use worlds::OtherBills;

use std::mem::take;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};

use crate::engine::align::{self, Aligned, Habits, Rules};
use crate::engine::answer::turn::Turn;
use crate::engine::answer::usage::Usage;
use crate::engine::cache::breaks::{Break, Case, Drift};
use crate::engine::cache::entry::Parameters;
use crate::engine::cache::ledger::{LedgerBill, Prediction};
use crate::engine::cache::prices::{ModelFacts, Multipliers, Price, Prices, Usd};
use crate::engine::cache::volatile::{Volatile, volatile};
use crate::engine::family::arrival::Arrival;
use crate::engine::family::conversation::{Answer, Conversation, Trace};
use crate::engine::request::prefix::Subject;
use crate::engine::request::recall::Remembered;
use crate::engine::respell::canonical::{Limits, News, Pins, Table};
use crate::engine::words::{Layer, Moment, Reason, SightingClass, TenantId};
use crate::store::{Hint, Store, Tenant, View};
use worlds::{Elsewhere, MemoFlight};

/// No model is known to cache a shorter prefix.
pub const MINIMUM_TOKENS: u64 = 512;

/// Whose request it is, and of which model.
#[derive(Clone, Debug)]
pub struct Owner {
    pub tenant: TenantId,
    pub hint: Option<Hint>,
    pub model: String,
    pub facts: ModelFacts,
    /// Who waits for it waits no longer.
    pub max_hold_ms: u64,
    pub prices: Arc<Prices>,
    /// True if volatile text is to be named.
    pub reports_volatile: bool,
}

/// The record of one exchange for the store.
pub struct Memo {
    store: Arc<dyn Store>,
    /// Whose it is, once anything is known of them: looked up once.
    tenant: OnceLock<Arc<Tenant>>,
    owner: Owner,
    pub arrival: Arrival,
    came_at: Moment,
    /// The trace that the request leaves behind, once it is known how it goes out.
    pub trace: Option<Arc<Trace>>,
    /// True if it goes out on its parent's prefix.
    is_forked: bool,
    /// Its parameters under the betas of that parent, if it is put there now.
    parents: Option<Parameters>,
    /// True if it is a child, which seldom comes alone.
    pub has_siblings: bool,
    /// Up to which piece the siblings of a client's own fork are alike.
    pub shared: Option<usize>,
    interns: News,
    pins: Pins,
    flight: Option<MemoFlight>,
    /// As its client sent it.
    sent_world: Option<Elsewhere>,
    /// As mode `align` would have sent it, where it went out as it came.
    aligned_world: Option<Elsewhere>,
}

/// The findings of a bill about the cache.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Against the request that this one continues.
    pub drift: Option<Drift>,
    /// Texts in tools and system that changed since then.
    pub volatile: Vec<Volatile>,
    pub cache_break: Option<Break>,
    /// An estimate, where the model has a price.
    pub break_cost: Option<Usd>,
}

impl Memo {
    pub fn new(store: &Arc<dyn Store>, owner: Owner, arrival: Arrival, came_at: Moment) -> Memo {
        let (trace, interns, pins) = Default::default();
        let (store, tenant) = (Arc::clone(store), OnceLock::new());
        Memo {
            store,
            tenant,
            owner,
            arrival,
            came_at,
            trace,
            is_forked: false,
            parents: None,
            has_siblings: false,
            shared: None,
            interns,
            pins,
            flight: None,
            sent_world: None,
            aligned_world: None,
        }
    }

    /// The conversation that this request is a turn of, once it is known how it goes out.
    pub fn conversation(&self) -> Option<&Arc<Conversation>> {
        self.trace.as_ref().map(|trace| &trace.conversation)
    }

    /// Returns the request that would go out in mode `align`.
    pub fn plan(&self, rules: Rules, now: Moment) -> Result<Aligned, Reason> {
        self.plan_as(false, rules, now)
    }

    fn plan_as(&self, imagined: bool, rules: Rules, now: Moment) -> Result<Aligned, Reason> {
        let tenant = self.tenant();
        let view = View { id: self.owner.tenant, tenant: tenant.as_deref(), hint: self.owner.hint };
        let model = self.owner.facts;
        let mut facts = align::Facts {
            bound_thinking: model.bound_thinking,
            minimum_tokens: Some(model.minimum_tokens.unwrap_or(MINIMUM_TOKENS)),
            has_siblings: self.has_siblings,
            shared: self.shared,
            imagined,
            ..align::Facts::default()
        };
        let Some(tenant) = &tenant else {
            let (table, habits) = (Table::new(Limits::NOTHING), |_: &Remembered| Habits::default());
            return align::align(&self.arrival, &table, &view, rules, facts, habits);
        };
        facts.tokens_per_byte = tenant.learned().tokens_per_byte(&self.owner.model);
        let habits = |forwarded: &Remembered| {
            let learned = tenant.learned();
            let seen_before =
                self.arrival.similar_conversation().is_some() || learned.knows_prefix(forwarded);
            let continues = learned.continues(forwarded, now);
            drop(learned);
            Habits {
                seen_before,
                continues,
                last_written: self.last_written(forwarded, imagined, tenant, now),
            }
        };
        align::align(&self.arrival, &tenant.table(), &view, rules, facts, habits)
    }

    /// The request goes out so.
    pub fn aligned(&mut self, aligned: Aligned) {
        self.abandon();
        self.is_forked = false;
        (self.trace, self.interns, self.pins) = (Some(aligned.trace), aligned.interns, aligned.pins);
    }

    /// The request goes out on its parent's prefix. What was learned of its own spelling stays.
    pub fn forked(&mut self, trace: Trace, parents: Option<Parameters>) {
        self.abandon();
        (self.is_forked, self.parents) = (true, parents);
        self.trace = Some(Arc::new(trace));
    }

    /// The request goes out as it came; perhaps after something else was refused.
    pub fn untouched(&mut self) {
        self.abandon();
        self.is_forked = false;
        self.arrival.take_as_it_came();
        let mut untouched = align::untouched(&self.arrival);
        if let Some(refused) = &self.trace {
            untouched.conversation = Arc::clone(&refused.conversation);
        }
        (self.trace, self.interns, self.pins) = (Some(Arc::new(untouched)), News::default(), Pins::default());
    }

    /// Works out how mode `align` would have changed a request that goes out as it came. Its spellings are learned as
    /// well, so that the next one is compared with what would have been sent before it.
    pub fn imagine(&mut self, rules: Rules, now: Moment) {
        let plan = || self.plan_as(true, rules, now);
        let Ok(Ok(aligned)) = std::panic::catch_unwind(AssertUnwindSafe(plan)) else { return };
        let as_it_came = Arc::ptr_eq(&aligned.trace.forwarded(), &self.arrival.received);
        let is_as_sent = aligned.plan.edits.is_empty() && as_it_came;
        self.interns = aligned.interns;
        if let Some(sent) = &self.trace {
            sent.imagine(as_it_came);
        }
        self.aligned_world = Some(Elsewhere::new(aligned.trace, is_as_sent));
    }

    /// The request goes out now: enters it into the ledger, if the tenant has one.
    pub fn sent(&mut self, now: Moment) {
        if let Some(trace) = &self.trace {
            trace.sent(now);
        }
        if let Some(tenant) = self.tenant() {
            self.begin(&tenant, now);
        }
    }

    /// Returns the ledger's prediction at the time the request was sent.
    pub fn prediction(&self) -> Option<&Prediction> {
        self.flight.as_ref().map(|flight| &flight.prediction)
    }

    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// The request goes to this model: it has named none itself.
    pub fn of_model(&mut self, model: String) {
        self.owner.facts = self.owner.prices.facts(&model);
        self.owner.model = model;
    }

    pub fn model(&self) -> &str {
        &self.owner.model
    }

    pub fn price(&self) -> Option<&Price> {
        self.owner.prices.price(&self.owner.model)
    }

    pub fn multipliers(&self) -> Multipliers {
        self.owner.prices.model(&self.owner.model).map(|model| model.multipliers).unwrap_or_default()
    }

    pub fn model_facts(&self) -> ModelFacts {
        self.owner.facts
    }

    pub fn tenant_id(&self) -> TenantId {
        self.owner.tenant
    }

    /// The upstream took the request: from here on it is known. Answers how each layer relates to what came
    /// before.
    pub fn accepted(&mut self) -> Option<[SightingClass; 4]> {
        let trace = self.trace.clone()?;
        let tenant = self.store.admit(&self.owner.tenant);
        self.tenant = OnceLock::from(Arc::clone(&tenant));
        if self.flight.is_none() {
            self.begin(&tenant, trace.sent_at());
        }
        tenant.learn(take(&mut self.interns));
        trace.conversation.pin(take(&mut self.pins));
        let predecessor = self.arrival.predecessor();
        if let Some(predecessor) = predecessor {
            tenant.learned().continued(predecessor.reading());
        }
        let classes = tenant.sight(trace.reading(), predecessor.map(|predecessor| predecessor.reading()));
        if self.starts() {
            tenant.learned().started(trace.reading(), trace.sent_at());
        }
        tenant.remember(trace, self.owner.hint, predecessor);
        self.store.shrink();
        Some(classes)
    }

    /// Returns true if a conversation begins with this request. A forked child has its parent's tools, and says
    /// nothing about how the conversations of those go on.
    fn starts(&self) -> bool {
        !self.is_forked && self.arrival.predecessor().is_none() && !self.arrival.received.is_answered()
    }

    /// The answer has begun: what the request wrote can be read. A stream brings its bill along, so that others
    /// know at once how much there is.
    pub fn begun(&mut self, usage: Option<Usage>, now: Moment) {
        let (Some(trace), Some(flight)) = (&self.trace, &self.flight) else { return };
        trace.begun(now);
        let Some(tenant) = self.tenant() else { return };
        let ratio = tenant.learned().tokens_per_byte(&self.owner.model);
        self.readable(flight, &tenant, ratio, now);
        let Some(usage) = usage else { return };
        tenant.worlds().billed.settle(flight.ticket, &self.bill(usage), now);
        let mut learned = tenant.learned();
        learned.bill(&self.owner.model, trace.reading(), &usage);
        let written = usage.cache_write_5m + usage.cache_write_1h;
        let in_time = now.since(trace.sent_at()) <= self.owner.max_hold_ms;
        learned.began(&self.owner.model, written, in_time);
        drop(learned);
        if let Some(flight) = &mut self.flight {
            flight.billed = true;
        }
    }

    /// The answer has ended, one way or another.
    pub fn finished(&mut self, turn: Option<&Turn>, now: Moment) -> Verdict {
        let (Some(trace), Some(tenant), Some(turn)) = (self.trace.clone(), self.tenant(), turn) else {
            self.abandon();
            return Verdict::default();
        };
        let last = self.arrival.predecessor().map(|last| (last, last.forwarded()));
        // Bytes are only compared with those of an earlier turn.
        let forwarded = last.as_ref().map(|_| trace.forwarded());
        let subject = forwarded.as_ref().map_or(trace.reading().without_bytes(), |whole| whole.as_subject());
        let drift = last.as_ref().map(|(_, last)| Drift::of(&last.as_subject(), &subject));
        let Some(usage) = turn.usage else {
            self.abandon();
            return Verdict { drift, ..Verdict::default() };
        };
        let Some(flight) = self.flight.take() else { return Verdict { drift, ..Verdict::default() } };
        if !flight.billed {
            tenant.learned().bill(&self.owner.model, trace.reading(), &usage);
        }
        if let Some((trial, harmless)) =
            flight.trial.and_then(|trial| Some((trial, trial.shows(usage.cache_read)?)))
        {
            tenant.learned().betas.learn(&self.owner.model, trial.change, harmless);
        }
        let mut worlds = tenant.worlds();
        worlds.billed.settle(flight.ticket, &self.bill(usage), now);
        let missed = worlds.billed.missed(&flight.prediction);
        drop(worlds);
        let answered = last.as_ref().and_then(|(last, forwarded)| last.as_answered(forwarded));
        let case = Case {
            last: answered.as_ref().zip(drift.as_ref()),
            now: &trace.as_sent(subject),
            usage: &usage,
            prediction: &flight.prediction,
            missed,
            minimum_tokens: self.owner.facts.minimum_tokens,
        };
        let cache_break = case.judge();
        match (&drift, &cache_break) {
            (Some(Drift::Drifted(_)), Some(lost)) => trace.conversation.lost(lost.layer),
            (Some(Drift::Extended), _) => trace.conversation.extended(),
            _ => {}
        }
        trace.answered(Answer { message_id: turn.id.clone(), usage: Some(usage) });
        let break_cost = cache_break.as_ref().and_then(|lost| lost.cost(&usage, self.price()?));
        let turns = last.as_ref().map(|(_, last)| [last.as_subject(), subject]);
        let volatile = self.volatile(turns, &trace, drift.as_ref(), &tenant);
        Verdict { volatile, drift, cache_break, break_cost }
    }

    /// The texts that made the request drift before its messages; `turns` are the last one and this.
    fn volatile(
        &self,
        turns: Option<[Subject<'_>; 2]>,
        trace: &Trace,
        drift: Option<&Drift>,
        tenant: &Tenant,
    ) -> Vec<Volatile> {
        if !self.owner.reports_volatile {
            return Vec::new();
        }
        let Some(Drift::Drifted(divergence)) = drift else { return Vec::new() };
        if !matches!(divergence.layer, Layer::Tools | Layer::System) {
            return Vec::new();
        }
        let ratio = tenant.learned().tokens_per_byte(&self.owner.model);
        let (Some([last, now]), Some(ratio)) = (turns, ratio) else { return Vec::new() };
        let cached_to = trace.breakpoints.last().map_or(usize::MAX, |point| point.piece);
        volatile(&last, &now, cached_to, ratio)
    }

    fn bill(&self, usage: Usage) -> LedgerBill {
        LedgerBill { usage, minimum_tokens: self.owner.facts.minimum_tokens, is_estimate: false }
    }

    pub fn tenant(&self) -> Option<Arc<Tenant>> {
        if self.tenant.get().is_none() {
            let _ = self.tenant.set(self.store.tenant(&self.owner.tenant)?);
        }
        self.tenant.get().cloned()
    }
}
