//! Predicts what a request finds in the cache, by the ledgers of its tenant.

use super::TenantState;
use crate::engine::cache::entry::{EntryKey, Parameters, Probes, Scope, prefix_bytes};
use crate::engine::cache::ledger::{BetaTrial, CacheLedger, EntryWrite, Prediction};
use crate::engine::family::arrival::Arrival;
use crate::engine::family::conversation::Trace;
use crate::engine::gate::GateWrite;
use crate::engine::request::recall::Reading;
use crate::engine::words::{Moment, Ticket};

/// Pieces that are searched for the last entry of a conversation: it mostly ends where the request before did.
const ENTRY_SEARCH_MAX: usize = 512;

/// The places where the cache looks for entries of a request.
pub(super) struct Lookup<'a> {
    scope: &'a Scope,
    reading: &'a Reading,
    probes: Probes<'a>,
}

impl<'a> Lookup<'a> {
    /// A request under these parameters.
    pub fn of(trace: &'a Trace, by: &'a Parameters) -> Lookup<'a> {
        Lookup { scope: by.scope(), reading: trace.reading(), probes: trace.probes() }
    }

    /// Predicts what the request would find. `own`: its ticket, if entries may be claimed for it.
    pub fn predict(self, ledger: &CacheLedger, own: Option<Ticket>, now: Moment) -> Prediction {
        let (chain, anatomy) = (self.reading.chain(), self.reading.anatomy());
        let key = |piece: usize| EntryKey::of(self.scope, chain, piece, anatomy.layer(piece));
        ledger.predict(self.probes, key, own, now)
    }
}

impl TenantState {
    /// Predicts what a request would find in the cache if it went out so.
    pub fn predict(&self, trace: &Trace, now: Moment) -> Prediction {
        self.predict_as(trace, None, now)
    }

    /// Predicts what the request of this ticket would find, for which entries may be claimed.
    pub fn predict_as(&self, trace: &Trace, own: Option<Ticket>, now: Moment) -> Prediction {
        Lookup::of(trace, &trace.parameters).predict(&self.worlds.billed, own, now)
    }

    /// Predicts what a request would find in one of the tenant's worlds.
    pub fn predict_in(&self, world: &CacheLedger, trace: &Trace, now: Moment) -> Prediction {
        Lookup::of(trace, &trace.parameters).predict(world, None, now)
    }

    fn predict_under(&self, trace: &Trace, parameters: &Parameters, now: Moment) -> Prediction {
        Lookup::of(trace, parameters).predict(&self.worlds.billed, None, now)
    }

    /// Predicts what a child would find on its parent's prefix. Betas of its own count until a bill has shown otherwise.
    /// `parents`: its parameters under the betas of its parent.
    pub fn predict_fork(&self, model: &str, trace: &Trace, parents: &Parameters, now: Moment) -> Prediction {
        let own = self.predict(trace, now);
        let change = trace.parameters.beta_change(parents);
        if !change.is_some_and(|change| self.learned.betas.knows(model, change)) {
            return own;
        }
        let other = self.predict_under(trace, parents, now);
        let bytes = |found: &Prediction| found.read.map_or(0, |read| read.bytes);
        if bytes(&other) > bytes(&own) { other } else { own }
    }

    /// The deepest piece of a request that ends a live entry, among those that the request before it had too.
    /// `imagined`: in the aligned world.
    pub fn last_written(
        &self,
        arrival: &Arrival,
        request: &Reading,
        imagined: bool,
        now: Moment,
    ) -> Option<usize> {
        let before = &arrival.before.as_ref()?.trace;
        let (own, chain) = (&arrival.parameters, request.chain());
        // How the request before would have been spelt is not kept.
        let shared = if imagined { chain.pieces.len() } else { before.reading().shared_pieces(request) };
        // An entry under other betas may be readable all the same: only its bill will tell.
        let others = own.beta_change(&before.parameters).map(|_| before.parameters.scope());
        let scopes = [Some(own.scope()), others];
        let ledger = if imagined { &self.worlds.aligned } else { &self.worlds.billed };
        (0..shared).rev().take(ENTRY_SEARCH_MAX).find(|piece| {
            let key = |scope| EntryKey::of(scope, chain, *piece, request.anatomy().layer(*piece));
            scopes.into_iter().flatten().filter_map(key).any(|key| ledger.holds(&key, now))
        })
    }

    /// The number of tokens that these bytes of a prompt make, as far as was learned.
    pub fn tokens(&self, model: &str, bytes: u64) -> Option<u64> {
        let ratio = self.learned.tokens_per_byte(model)?;
        Some((bytes as f64 * ratio) as u64)
    }

    /// Returns the entries that a request of which this is predicted writes, with the tokens of each. Before anything was
    /// billed their number is not known; then a write counts as large, so that it is waited for.
    pub fn gate_writes(&self, model: &str, prediction: &Prediction) -> Vec<GateWrite> {
        let read = prediction.read.map_or(0, |read| read.bytes);
        let tokens = |write: &EntryWrite| self.tokens(model, write.bytes.saturating_sub(read));
        let writes = prediction.writes().iter();
        writes.map(|write| GateWrite { write: *write, tokens: tokens(write).unwrap_or(u64::MAX) }).collect()
    }

    /// Tokens that others are writing, and that a request of which this is predicted writes once more.
    pub fn underway_tokens(&self, model: &str, prediction: &Prediction) -> u64 {
        let read = prediction.read.map_or(0, |read| read.bytes);
        let deepest = prediction.underway.first().map_or(0, |underway| underway.bytes);
        self.tokens(model, deepest.saturating_sub(read)).unwrap_or_default()
    }

    /// Returns the test that the bill of a request makes of betas that its parent or its last turn did not have.
    /// `before`: the parameters under those betas.
    pub(super) fn trial(
        &self,
        trace: &Trace,
        before: &Parameters,
        own: &Prediction,
        now: Moment,
    ) -> Option<BetaTrial> {
        let change = trace.parameters.beta_change(before)?;
        let other = self.predict_under(trace, before, now);
        let anatomy = trace.reading().anatomy();
        let statics = (anatomy.tools + anatomy.system).checked_sub(1);
        BetaTrial::of(change, own, &other, statics.map_or(0, |last| prefix_bytes(anatomy, last)))
    }
}
