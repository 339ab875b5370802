//! A request in the worlds where it may go out otherwise than it does.

use std::sync::Arc;

use crate::engine::answer::usage::Usage;
use crate::engine::cache::counterfactual::AsSent;
use crate::engine::cache::ledger::{CacheLedger, LedgerBill, Prediction};
use crate::engine::family::conversation::Trace;
use crate::engine::request::recall::Reading;
use crate::engine::words::{Moment, Ticket};

use super::predict::Lookup;

/// A request in a world where it may go out otherwise than it does.
#[derive(Debug)]
pub(super) struct Elsewhere {
    trace: Arc<Trace>,
    /// It goes out there as it does here, and costs what it is billed.
    is_as_billed: bool,
    prediction: Prediction,
}

impl Elsewhere {
    /// The request goes out there, at this moment.
    pub fn begin(
        trace: Arc<Trace>,
        is_as_billed: bool,
        ledger: &mut CacheLedger,
        ticket: Ticket,
        streams: bool,
        at: Moment,
    ) -> Elsewhere {
        let mut elsewhere = Elsewhere { trace, is_as_billed, prediction: Prediction::default() };
        elsewhere.begin_again(ledger, ticket, streams, at);
        elsewhere
    }

    /// The request goes out in the ledger of another tenant.
    pub fn begin_again(&mut self, ledger: &mut CacheLedger, ticket: Ticket, streams: bool, at: Moment) {
        let lookup = Lookup::of(&self.trace, &self.trace.parameters);
        self.prediction = lookup.predict(ledger, None, at);
        ledger.begin(ticket, &self.prediction, streams, at);
    }

    /// Returns what the request is billed there, given what was billed for what went out: an estimate.
    pub fn usage(&self, forwarded: &Reading, billed: &Usage, minimum_tokens: Option<u64>) -> Usage {
        if self.is_as_billed {
            return *billed;
        }
        let as_sent = AsSent {
            received: self.trace.reading(),
            breakpoints: &self.trace.breakpoints,
            read: self.prediction.tokens(),
            minimum_tokens: minimum_tokens.unwrap_or(0),
        };
        as_sent.usage(forwarded, billed)
    }

    /// Settles the request there.
    pub fn settle(
        &self,
        ledger: &mut CacheLedger,
        ticket: Ticket,
        usage: Usage,
        minimum_tokens: Option<u64>,
        now: Moment,
    ) {
        ledger.settle(ticket, &LedgerBill { usage, minimum_tokens, is_estimate: !self.is_as_billed }, now);
    }
}
