//! Predicts what a request finds in the cache, by the ledger of its tenant.

use super::Memo;
use crate::engine::cache::entry::{EntryKey, Parameters, Probes, Scope, prefix_bytes};
use crate::engine::cache::ledger::{BetaTrial, CacheLedger, Prediction};
use crate::engine::family::conversation::Trace;
use crate::engine::request::recall::Reading;
use crate::engine::words::Moment;
use crate::store::Tenant;

/// Pieces that are searched for the last entry of a conversation: it mostly ends where the request before did.
const ENTRY_SEARCH_MAX: usize = 512;

/// The places where the cache looks for entries of a request; put together before a ledger is locked.
pub(super) struct Lookup<'a> {
    scope: &'a Scope,
    reading: &'a Reading,
    probes: Probes<'a>,
}

impl<'a> Lookup<'a> {
    /// The lookup of a request, under these parameters.
    pub fn of(trace: &'a Trace, by: &'a Parameters) -> Lookup<'a> {
        Lookup { scope: by.scope(), reading: trace.reading(), probes: trace.probes() }
    }

    /// Predicts what the request would find.
    pub fn predict(self, ledger: &CacheLedger, now: Moment) -> Prediction {
        let (chain, anatomy) = (self.reading.chain(), self.reading.anatomy());
        let key = |piece: usize| EntryKey::of(self.scope, chain, piece, anatomy.layer(piece));
        ledger.predict(self.probes, key, now)
    }
}

impl Memo {
    /// Predicts what the request would find in the cache.
    pub fn predict(&self, tenant: &Tenant, now: Moment) -> Option<Prediction> {
        Some(self.predict_for(self.trace.as_ref()?, tenant, now))
    }

    /// Predicts what it would find if it went out so.
    pub fn predict_for(&self, trace: &Trace, tenant: &Tenant, now: Moment) -> Prediction {
        Lookup::of(trace, &trace.parameters).predict(&tenant.worlds().billed, now)
    }

    /// Predicts what it would find on its parent's prefix. Betas of its own count until a bill has shown otherwise.
    pub fn predict_fork(
        &self,
        model: &str,
        trace: &Trace,
        parents: &Parameters,
        tenant: &Tenant,
        now: Moment,
    ) -> Prediction {
        let own = self.predict_for(trace, tenant, now);
        let change = trace.parameters.beta_change(parents);
        if !change.is_some_and(|change| tenant.learned().betas.knows(model, change)) {
            return own;
        }
        let other = Lookup::of(trace, parents).predict(&tenant.worlds().billed, now);
        let bytes = |found: &Prediction| found.read.map_or(0, |read| read.bytes);
        if bytes(&other) > bytes(&own) { other } else { own }
    }

    /// The deepest piece of a request that ends a live entry, among those that the request before it had too.
    /// `imagined`: in the aligned world.
    pub(super) fn last_written(
        &self,
        request: &Reading,
        imagined: bool,
        tenant: &Tenant,
        now: Moment,
    ) -> Option<usize> {
        let before = &self.arrival.before.as_ref()?.trace;
        let (own, chain) = (&self.arrival.parameters, request.chain());
        // How the request before would have been spelt is not kept.
        let shared = if imagined { chain.pieces.len() } else { before.reading().shared_pieces(request) };
        // An entry under other betas may be readable all the same: only its bill will tell.
        let others = own.beta_change(&before.parameters).map(|_| before.parameters.scope());
        let scopes = [Some(own.scope()), others];
        let worlds = tenant.worlds();
        let ledger = if imagined { &worlds.aligned } else { &worlds.billed };
        (0..shared).rev().take(ENTRY_SEARCH_MAX).find(|piece| {
            let key = |scope| EntryKey::of(scope, chain, *piece, request.anatomy().layer(*piece));
            scopes.into_iter().flatten().filter_map(key).any(|key| ledger.holds(&key, now))
        })
    }

    /// How many tokens so many bytes of a prompt make, as far as was learned.
    pub fn tokens(&self, tenant: &Tenant, bytes: u64) -> Option<u64> {
        let ratio = tenant.learned().tokens_per_byte(&self.owner.model)?;
        Some((bytes as f64 * ratio) as u64)
    }

    /// Returns the test that its bill makes of betas that its parent or its last turn did not have.
    pub(super) fn trial(&self, own: &Prediction, tenant: &Tenant, now: Moment) -> Option<BetaTrial> {
        let trace = self.trace.as_ref()?;
        let parents = if self.is_forked { self.parents.as_ref() } else { None };
        let before = parents.or_else(|| Some(&self.arrival.predecessor()?.parameters))?;
        let change = trace.parameters.beta_change(before)?;
        let other = Lookup::of(trace, before).predict(&tenant.worlds().billed, now);
        let anatomy = trace.reading().anatomy();
        let statics = (anatomy.tools + anatomy.system).checked_sub(1);
        BetaTrial::of(change, own, &other, statics.map_or(0, |last| prefix_bytes(anatomy, last)))
    }
}
