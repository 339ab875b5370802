//! The request in the ledgers of its tenant: as it goes out, as its client sent it, and as it would be aligned.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Memo;
use super::predict::Lookup;
use crate::engine::align;
use crate::engine::answer::usage::Usage;
use crate::engine::cache::counterfactual::AsSent;
use crate::engine::cache::ledger::{BetaTrial, CacheLedger, LedgerBill, LedgerTicket, Prediction};
use crate::engine::family::conversation::Trace;
use crate::engine::request::recall::Reading;
use crate::engine::words::{Moment, Origin};
use crate::store::Tenant;

/// The request in flight, as it goes out.
pub(super) struct MemoFlight {
    pub ticket: LedgerTicket,
    pub prediction: Prediction,
    /// The test of whether its betas cost it anything, if its bill can tell.
    pub trial: Option<BetaTrial>,
    /// True if the tenant has learned from its bill.
    pub billed: bool,
}

/// The request in a world where it may go out otherwise than it does.
pub(super) struct Elsewhere {
    trace: Arc<Trace>,
    /// It goes out there as it does here, and costs what it is billed.
    is_as_billed: bool,
    prediction: Prediction,
    /// Set while it is in flight there.
    ticket: Option<LedgerTicket>,
}

/// The bills of a request in the other worlds.
#[derive(Clone, Copy, Debug)]
pub struct OtherBills {
    /// As its client sent it.
    pub as_sent: Usage,
    /// As mode `align` would have sent it, if it went out as it came.
    pub aligned: Option<Usage>,
}

impl Elsewhere {
    pub fn new(trace: Arc<Trace>, is_as_billed: bool) -> Elsewhere {
        Elsewhere { trace, is_as_billed, prediction: Prediction::default(), ticket: None }
    }

    /// Returns what the request is billed there, given what was billed for what went out: an estimate.
    fn usage(&self, forwarded: &Reading, billed: &Usage, minimum_tokens: Option<u64>) -> Usage {
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

    /// Settles the request there, if it is in flight. Returns whether it was.
    fn settle(&mut self, ledger: &mut CacheLedger, usage: Usage, minimum: Option<u64>, now: Moment) -> bool {
        let Some(ticket) = self.ticket.take() else { return false };
        let bill = LedgerBill { usage, minimum_tokens: minimum, is_estimate: !self.is_as_billed };
        ledger.settle(ticket, &bill, now);
        true
    }
}

impl Memo {
    /// Enters the request into the ledgers: it goes out now.
    pub(super) fn begin(&mut self, tenant: &Tenant, now: Moment) {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let Some(prediction) = self.predict(tenant, now) else { return };
        let ticket = NEXT.fetch_add(1, Relaxed);
        let trial = self.trial(&prediction, tenant, now);
        let came_at = self.came_at.min(now);
        let mut sent = self.as_sent();
        let mut aligned = self.aligned_world.take();
        let sent_lookup = sent.as_ref().map(|sent| Lookup::of(&sent.trace, &sent.trace.parameters));
        let aligned_lookup = aligned.as_ref().map(|other| Lookup::of(&other.trace, &other.trace.parameters));
        let mut worlds = tenant.worlds();
        worlds.billed.begin(ticket, &prediction, now);
        let in_sent = sent_lookup.map(|lookup| lookup.predict(&worlds.sent, came_at));
        let in_aligned = aligned_lookup.map(|lookup| lookup.predict(&worlds.aligned, now));
        if let (Some(sent), Some(prediction)) = (&mut sent, in_sent) {
            worlds.sent.begin(ticket, &prediction, came_at);
            (sent.prediction, sent.ticket) = (prediction, Some(ticket));
        }
        if let (Some(aligned), Some(prediction)) = (&mut aligned, in_aligned) {
            worlds.aligned.begin(ticket, &prediction, now);
            (aligned.prediction, aligned.ticket) = (prediction, Some(ticket));
        }
        drop(worlds);
        (self.sent_world, self.aligned_world) = (sent, aligned);
        self.flight = Some(MemoFlight { ticket, prediction, trial, billed: false });
    }

    /// The request as its client sent it, once it is known how it goes out.
    fn as_sent(&self) -> Option<Elsewhere> {
        let trace = self.trace.as_ref()?;
        let is_marked_as_it_came = trace.breakpoints.iter().all(|point| point.origin == Origin::Client);
        let is_as_it_came = !self.is_forked && self.arrival.came.is_none() && trace.is_as_it_came(false);
        Some(if is_as_it_came && is_marked_as_it_came {
            Elsewhere::new(Arc::clone(trace), true)
        } else {
            Elsewhere::new(Arc::new(align::untouched(&self.arrival)), false)
        })
    }

    /// The answer has begun: what the request wrote can be read, in every world. As sent it was not held back, and
    /// its answer began sooner by that.
    pub(super) fn readable(&self, flight: &MemoFlight, tenant: &Tenant, ratio: Option<f64>, now: Moment) {
        let sent_at = self.trace.as_ref().map_or(now, |trace| trace.sent_at());
        let as_sent = self.came_at.min(sent_at).after(now.since(sent_at));
        let mut worlds = tenant.worlds();
        worlds.billed.readable(flight.ticket, now, ratio);
        if let Some(ticket) = self.sent_world.as_ref().and_then(|sent| sent.ticket) {
            worlds.sent.readable(ticket, as_sent, ratio);
        }
        if let Some(ticket) = self.aligned_world.as_ref().and_then(|aligned| aligned.ticket) {
            worlds.aligned.readable(ticket, now, ratio);
        }
    }

    /// Takes the request out of the ledgers: nothing will be read of what it was to write.
    pub fn abandon(&mut self) {
        let billed = self.flight.take().map(|flight| flight.ticket);
        let sent = self.sent_world.as_mut().and_then(|sent| sent.ticket.take());
        let aligned = self.aligned_world.as_mut().and_then(|aligned| aligned.ticket.take());
        if billed.is_none() && sent.is_none() && aligned.is_none() {
            return;
        }
        let Some(tenant) = self.tenant() else { return };
        let mut worlds = tenant.worlds();
        if let Some(ticket) = billed {
            worlds.billed.abandon(ticket);
        }
        if let Some(ticket) = sent {
            worlds.sent.abandon(ticket);
        }
        if let Some(ticket) = aligned {
            worlds.aligned.abandon(ticket);
        }
    }

    /// Settles the request in the other worlds, given what was billed. Returns its bills there.
    pub fn settle_elsewhere(&mut self, billed: &Usage, now: Moment) -> OtherBills {
        let mut bills = OtherBills { as_sent: *billed, aligned: None };
        let (Some(tenant), Some(trace)) = (self.tenant(), &self.trace) else { return bills };
        let minimum = self.owner.facts.minimum_tokens;
        let sent = self.sent_world.as_mut();
        let sent = sent.map(|sent| (sent.usage(trace.reading(), billed, minimum), sent));
        let aligned = self.aligned_world.as_mut();
        let aligned = aligned.map(|aligned| (aligned.usage(trace.reading(), billed, minimum), aligned));
        let mut worlds = tenant.worlds();
        if let Some((usage, sent)) = sent {
            sent.settle(&mut worlds.sent, usage, minimum, now);
            bills.as_sent = usage;
        }
        if let Some((usage, aligned)) = aligned
            && aligned.settle(&mut worlds.aligned, usage, minimum, now)
        {
            bills.aligned = Some(usage);
        }
        bills
    }
}
