//! What a request finds in the cache, by the ledger of its tenant.

use super::Memo;
use crate::engine::align;
use crate::engine::breakpoints::of_client;
use crate::engine::conversation::Trace;
use crate::engine::entry::{EntryKey, Parameters, prefix_bytes};
use crate::engine::warmth::{Prediction, Trial, Warmth};
use crate::engine::words::Moment;
use crate::store::Tenant;

impl Memo {
    /// What the request would find in the cache.
    pub fn predict(&self, tenant: &Tenant, now: Moment) -> Option<Prediction> {
        Some(self.predict_for(self.trace.as_ref()?, tenant, now))
    }

    /// What it would find if it went out so.
    pub fn predict_for(&self, trace: &Trace, tenant: &Tenant, now: Moment) -> Prediction {
        self.predict_by(&tenant.warmth(), trace, &trace.parameters, now)
    }

    /// What it would find on its parent's prefix. Betas of its own count until a bill has shown that they do not.
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
        let other = self.predict_by(&tenant.warmth(), trace, parents, now);
        let bytes = |found: &Prediction| found.read.map_or(0, |read| read.bytes);
        if bytes(&other) > bytes(&own) { other } else { own }
    }

    pub(super) fn predict_by(
        &self,
        ledger: &Warmth,
        trace: &Trace,
        by: &Parameters,
        now: Moment,
    ) -> Prediction {
        let scope = by.scope(&self.owner.tenant);
        let (chain, anatomy) = (trace.reading().chain(), trace.reading().anatomy());
        let key = |piece: usize| EntryKey::of(&scope, chain, piece, anatomy.layer(piece));
        ledger.predict(trace.probes(), key, now)
    }

    /// How many tokens so many bytes of a prompt make, as far as was learned.
    pub fn tokens(&self, tenant: &Tenant, bytes: u64) -> Option<u64> {
        let ratio = tenant.learned().tokens_per_byte(&self.owner.model)?;
        Some((bytes as f64 * ratio) as u64)
    }

    /// Tokens that the request would find if it went out as it came. One without markers of its own reads nothing.
    pub fn own_read(&self, tenant: &Tenant, now: Moment) -> u64 {
        let received = &self.arrival.received;
        if of_client(received.body(), received.anatomy()).is_empty() {
            return 0;
        }
        self.predict_for(&align::untouched(&self.arrival), tenant, now).tokens()
    }

    /// What its bill will tell about betas that its parent or its last turn did not have.
    pub(super) fn trial(&self, own: &Prediction, tenant: &Tenant, now: Moment) -> Option<Trial> {
        let trace = self.trace.as_ref()?;
        let parents = self.parents.as_ref().filter(|_| self.is_forked);
        let before = parents.or_else(|| Some(&self.arrival.predecessor()?.parameters))?;
        let change = trace.parameters.beta_change(before)?;
        let other = self.predict_by(&tenant.warmth(), trace, before, now);
        let anatomy = trace.reading().anatomy();
        let statics = (anatomy.tools + anatomy.system).checked_sub(1);
        Trial::of(change, own, &other, statics.map_or(0, |last| prefix_bytes(anatomy, last)))
    }
}
