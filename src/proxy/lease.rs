//! Leases: of several replicas one writes an entry of the provider's cache, and the others wait for it.
//!
//! The gate lets one request of this process go first, and that one asks the store that the replicas share before it is
//! sent. If another replica has the lease, it waits as a follower does, under the same deadline, and those that wait for
//! it here go on waiting. It goes when the other one's answer has begun; when it gets the lease itself, because the other
//! one came to nothing or its lease has ended; or at its deadline. The store is asked again and again: nobody has to be
//! told by a replica that may be dead, and of all that wait one gets the lease.
//!
//! Whoever writes nothing large, and whoever reads what is known to be warm, asks nobody. If the store fails, a request
//! goes as it would without one.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::runtime::Handle;

use super::Proxy;
use super::clock::millis;
use super::exchange::Exchange;
use super::flight::InFlight;
use crate::engine::cache::entry::EntryKey;
use crate::engine::words::{GateOutcome, Hex, Moment, StoreError, TenantId};
use crate::store::records::{Lease, RecordStore};

/// The least time between two questions if a lease is free. Jittered up to twice this.
const ASK_AGAIN_MS: u64 = 20;

/// How long nobody asks a store that has failed.
const QUIET_MS: u64 = 1_000;

/// The store that leases are taken from, if replicas share one.
#[derive(Default)]
pub struct Leases {
    store: OnceLock<Arc<dyn RecordStore>>,
    /// Until when nobody asks, in milliseconds of the clock.
    quiet_until: AtomicU64,
}

impl Leases {
    fn store(&self, now: Moment) -> Option<&Arc<dyn RecordStore>> {
        let store = self.store.get()?;
        (now.0 >= self.quiet_until.load(Relaxed)).then_some(store)
    }
}

/// The leases of one request. They are given back when this is dropped.
pub struct HeldLeases {
    store: Arc<dyn RecordStore>,
    tenant: TenantId,
    owner: String,
    /// Those that it has, or may have.
    entries: Vec<EntryKey>,
    hold: Duration,
}

/// The answer to a request for some leases.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    /// No other replica has one of them. These entries are written.
    Free(Vec<EntryKey>),
    /// Another replica is writing an entry.
    Held,
}

impl Proxy {
    /// Takes leases from a store that replicas share. Only the first call counts.
    pub fn share_leases(&self, store: Arc<dyn RecordStore>) {
        let _ = self.leases.store.set(store);
    }

    /// Takes the leases of what a request is about to write, or waits until it need not write it, or until its deadline.
    pub(super) async fn lease(&self, flight: &mut InFlight, deadline: Moment, exchange: &mut Exchange) {
        let Some(store) = self.leases.store(self.clock.now()) else { return };
        let leads =
            |outcome| matches!(outcome, GateOutcome::Led | GateOutcome::Succeeded | GateOutcome::Released);
        let Some(mut hold) = exchange.facts.hold.filter(|hold| leads(hold.outcome)) else { return };
        let (tenant, entries) = flight.large_writes();
        // Nothing of a tenant leaves the process before the upstream has accepted a request of it.
        if entries.is_empty() || self.store.known_tenant(&tenant).is_none() {
            return;
        }
        let Some(mut leases) = HeldLeases::none(Arc::clone(store), tenant, self.config.gate.max_hold) else {
            return;
        };
        let began = self.clock.elapsed();
        exchange.waits_at_gate = true;
        let outcome = self.lease_by(&mut leases, entries, flight, deadline).await;
        exchange.waits_at_gate = false;
        hold.time += self.clock.elapsed() - began;
        hold.outcome = outcome.unwrap_or(hold.outcome);
        exchange.facts.hold = Some(hold);
        flight.leases = Some(leases);
    }

    /// Asks until a request may go. Returns what became of its wait, if it waited or need not write.
    async fn lease_by(
        &self,
        leases: &mut HeldLeases,
        entries: Vec<EntryKey>,
        flight: &InFlight,
        deadline: Moment,
    ) -> Option<GateOutcome> {
        let mut outcome = None;
        loop {
            match leases.ask(&entries).await {
                Ok(Asked::Free(written)) if written.is_empty() => return outcome,
                Ok(Asked::Free(written)) => {
                    flight.written_elsewhere(&written);
                    return Some(GateOutcome::Released);
                }
                Ok(Asked::Held) => outcome = Some(GateOutcome::Succeeded),
                Err(_) => {
                    self.leases.quiet_until.store(self.clock.now().after(QUIET_MS).0, Relaxed);
                    return outcome;
                }
            }
            let now = self.clock.now();
            if now >= deadline {
                return Some(GateOutcome::TimedOut);
            }
            let again = now.after(ASK_AGAIN_MS + u64::from(random::<1>()[0]) * ASK_AGAIN_MS / 256);
            self.clock.sleep_until(again.min(deadline)).await;
        }
    }
}

impl HeldLeases {
    fn none(store: Arc<dyn RecordStore>, tenant: TenantId, hold: Duration) -> Option<HeldLeases> {
        let owner = Hex(&random::<16>()).to_string();
        let is_long_enough = millis(hold) > 0;
        is_long_enough.then_some(HeldLeases { store, tenant, owner, entries: Vec::new(), hold })
    }

    /// Asks for the leases of entries, the shortest first: whoever writes one of them writes all shorter ones. So of two
    /// that want the same, one gets the first of these, and keeps it, and the other one gives up those after it.
    async fn ask(&mut self, entries: &[EntryKey]) -> Result<Asked, StoreError> {
        // Also if nobody waits for the answer any more.
        self.entries = entries.to_vec();
        let names: Vec<String> = entries.iter().map(EntryKey::to_string).collect();
        let ask = names.iter().map(|name| self.store.lease(self.tenant, name, &self.owner, self.hold));
        let answers = join_all(ask).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        if let Some(first) = answers.iter().position(|answer| *answer == Lease::Held) {
            let after = names.iter().zip(&answers).skip(first);
            let taken = after.filter(|(_, answer)| **answer == Lease::Taken);
            let give_up = taken.map(|(name, _)| self.store.release(self.tenant, name, &self.owner, None));
            join_all(give_up).await.into_iter().collect::<Result<Vec<_>, _>>()?;
            return Ok(Asked::Held);
        }
        let with_answers = entries.iter().zip(answers);
        let written = with_answers.filter_map(|(entry, answer)| (answer == Lease::Written).then_some(*entry));
        Ok(Asked::Free(written.collect()))
    }

    /// The entries can be read: other replicas are told so.
    pub fn written(mut self) {
        let written = Some(self.hold);
        self.give_back(written);
    }

    fn give_back(&mut self, written: Option<Duration>) {
        let entries = std::mem::take(&mut self.entries);
        let Ok(runtime) = Handle::try_current() else { return };
        let (store, tenant, owner) = (Arc::clone(&self.store), self.tenant, std::mem::take(&mut self.owner));
        if !entries.is_empty() {
            runtime.spawn(async move {
                let names: Vec<String> = entries.iter().map(EntryKey::to_string).collect();
                let release = names.iter().map(|name| store.release(tenant, name, &owner, written));
                // One that could not be given back ends by itself.
                join_all(release).await;
            });
        }
    }
}

impl Drop for HeldLeases {
    fn drop(&mut self) {
        self.give_back(None);
    }
}

/// Bytes by chance.
fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // Without them leases of two replicas would have one owner, and both would go: as without a store.
    let _ = aws_lc_rs::rand::fill(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests;
