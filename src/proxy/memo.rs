//! One exchange as the store sees it: recalled before it goes out, remembered once it was accepted.

use std::mem::take;
use std::sync::Arc;

use crate::engine::align::{self, Aligned, Arrival, Rules};
use crate::engine::canonical::{Limits, News, Pins, Table};
use crate::engine::conversation::{Answer, Conversation, Trace};
use crate::engine::turn::Turn;
use crate::engine::types::{Moment, Reason, TenantId};
use crate::store::{Hint, Memory, View};

/// What the store will be told.
pub struct Memo {
    store: Arc<Memory>,
    tenant: TenantId,
    hint: Option<Hint>,
    pub arrival: Arrival,
    /// What the request leaves behind, once it is known how it goes out.
    pub trace: Option<Arc<Trace>>,
    interns: News,
    pins: Pins,
}

impl Memo {
    pub fn new(store: &Arc<Memory>, tenant: TenantId, hint: Option<Hint>, arrival: Arrival) -> Memo {
        let (trace, interns, pins) = Default::default();
        Memo { store: Arc::clone(store), tenant, hint, arrival, trace, interns, pins }
    }

    /// The conversation that this request is a turn of, once it is known how it goes out.
    pub fn conversation(&self) -> Option<&Arc<Conversation>> {
        self.trace.as_ref().map(|trace| &trace.conversation)
    }

    /// What would go out in mode `align`.
    pub fn plan(&self, rules: Rules, facts: align::Facts, now: Moment) -> Result<Aligned, Reason> {
        let tenant = self.store.tenant(&self.tenant);
        let view = View { tenant: tenant.as_deref(), hint: self.hint };
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

    /// The upstream took the request: from here on it is known.
    pub fn accepted(&mut self) {
        let Some(trace) = self.trace.clone() else { return };
        let tenant = self.store.admit(&self.tenant);
        tenant.learn(take(&mut self.interns));
        trace.conversation.pin(take(&mut self.pins));
        let predecessor = self.arrival.predecessor();
        if let Some(predecessor) = predecessor {
            predecessor.conversation.continues();
        }
        tenant.remember(trace, self.hint, predecessor);
        self.store.shrink();
    }

    pub fn finished(&self, turn: &Turn) {
        if let Some(trace) = &self.trace {
            trace.answered(Answer { message_id: turn.id.clone(), usage: turn.usage });
        }
    }
}
