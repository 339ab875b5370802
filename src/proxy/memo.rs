//! One exchange as the store sees it: recalled before it goes out, remembered once it was accepted.

use std::mem::take;
use std::sync::Arc;

use crate::engine::align::{self, Aligned, Arrival, Rules};
use crate::engine::canonical::{Limits, News, Pins, Table};
use crate::engine::conversation::{Answer, Conversation, Trace};
use crate::engine::learned::Class;
use crate::engine::prices::ModelFacts;
use crate::engine::turn::Turn;
use crate::engine::types::{Moment, Reason, TenantId};
use crate::store::{Hint, Memory, View};

/// No model is known to cache a shorter prefix.
const MINIMUM_TOKENS: u64 = 512;

/// What the store will be told.
pub struct Memo {
    store: Arc<Memory>,
    tenant: TenantId,
    hint: Option<Hint>,
    model: String,
    pub arrival: Arrival,
    /// What the request leaves behind, once it is known how it goes out.
    pub trace: Option<Arc<Trace>>,
    interns: News,
    pins: Pins,
}

impl Memo {
    pub fn new(
        store: &Arc<Memory>,
        tenant: TenantId,
        hint: Option<Hint>,
        model: String,
        arrival: Arrival,
    ) -> Memo {
        let (trace, interns, pins) = Default::default();
        Memo { store: Arc::clone(store), tenant, hint, model, arrival, trace, interns, pins }
    }

    /// The conversation that this request is a turn of, once it is known how it goes out.
    pub fn conversation(&self) -> Option<&Arc<Conversation>> {
        self.trace.as_ref().map(|trace| &trace.conversation)
    }

    /// What would go out in mode `align`.
    pub fn plan(&self, rules: Rules, model: ModelFacts, now: Moment) -> Result<Aligned, Reason> {
        let tenant = self.store.tenant(&self.tenant);
        let view = View { tenant: tenant.as_deref(), hint: self.hint };
        let mut facts = align::Facts {
            bound_thinking: model.bound_thinking,
            minimum_tokens: Some(model.minimum_tokens.unwrap_or(MINIMUM_TOKENS)),
            ..align::Facts::default()
        };
        if let Some(tenant) = &tenant {
            let (received, learned) = (&self.arrival.received, tenant.learned());
            facts.tokens_per_byte = learned.tokens_per_byte(&self.model);
            facts.seen_before = self.arrival.kin().is_some() || learned.knows_prefix(received);
            facts.continues = learned.continues(received, now);
        }
        match &tenant {
            Some(tenant) => align::align(&self.arrival, &tenant.table(), &view, rules, facts, now),
            None => align::align(&self.arrival, &Table::new(Limits::NOTHING), &view, rules, facts, now),
        }
    }

    /// The request goes out so.
    pub fn aligned(&mut self, aligned: Aligned) {
        (self.trace, self.interns, self.pins) = (Some(aligned.trace), aligned.interns, aligned.pins);
    }

    /// The request goes out as it came; perhaps after something else was refused.
    pub fn untouched(&mut self, now: Moment) {
        let mut untouched = align::untouched(&self.arrival, now);
        if let Some(refused) = &self.trace {
            untouched.conversation = Arc::clone(&refused.conversation);
        }
        (self.trace, self.interns, self.pins) = (Some(Arc::new(untouched)), News::default(), Pins::default());
    }

    /// The upstream took the request: from here on it is known. Answers how each layer relates to what came
    /// before.
    pub fn accepted(&mut self) -> Option<[Class; 4]> {
        let trace = self.trace.clone()?;
        let tenant = self.store.admit(&self.tenant);
        tenant.learn(take(&mut self.interns));
        trace.conversation.pin(take(&mut self.pins));
        let predecessor = self.arrival.predecessor();
        if let Some(predecessor) = predecessor {
            predecessor.conversation.continues();
        }
        let mut learned = tenant.learned();
        let before = predecessor.map(|predecessor| &*predecessor.forwarded);
        let classes = learned.sight(&trace.forwarded, before);
        if self.arrival.conversation().is_none() {
            learned.started(&trace.forwarded, &trace.conversation, trace.sent);
        }
        drop(learned);
        tenant.remember(trace, self.hint, predecessor);
        self.store.shrink();
        Some(classes)
    }

    pub fn finished(&self, turn: &Turn) {
        if let Some(trace) = &self.trace {
            if let (Some(usage), Some(tenant)) = (&turn.usage, self.store.tenant(&self.tenant)) {
                tenant.learned().bill(&self.model, &trace.forwarded, usage);
            }
            trace.answered(Answer { message_id: turn.id.clone(), usage: turn.usage });
        }
    }
}
