//! Leases: of several replicas one writes an entry of the provider's cache, and the others wait for it.
//!
//! The gate lets one request of this process go first, and that one asks the store that the replicas share before it is
//! sent. If another replica has the lease, it waits as a follower does, under the same deadline, and those that wait for
//! it here go on waiting. It goes when the other one's answer has begun; when it gets the lease itself, because the other
//! one came to nothing or its lease has ended; or at its deadline. The store is asked again and again: nobody has to be
//! told by a replica that may be dead, and of all that wait one gets the lease.
//!
//! An answer that comes as a whole shows nothing before its end. So what such a request writes is presumed to be there
//! after the time that the gate has learned, and a request that streams does not wait for it at all.
//!
//! A request that writes nothing large, or reads only what is known to be warm, does not ask. If the store fails, it
//! goes as it would without one.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::clock::{Clock, millis};
use super::exchange::Exchange;
use super::flight::InFlight;
use super::{Proxy, record};
use crate::engine::cache::entry::EntryKey;
use crate::engine::words::{GateOutcome, Hex, Moment, StoreError, StoreOp, TenantId};
use crate::store::records::{Lease, RecordStore};
use crate::store::{Listener, StoreEvent};

/// The least time between two questions if a lease is free. Jittered up to twice this.
const ASK_AGAIN_MS: u64 = 20;

/// How long nobody asks a store that has failed.
const QUIET_MS: u64 = 1_000;

/// The store that leases are taken from, if replicas share one.
#[derive(Default)]
pub struct Leases {
    shared: OnceLock<SharedLeases>,
    /// Until when nobody asks, in milliseconds of the clock.
    quiet_until: AtomicU64,
}

#[derive(Clone)]
struct SharedLeases {
    store: Arc<dyn RecordStore>,
    listener: Arc<Listener>,
}

/// How the answer to a request comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answers {
    Streamed,
    /// As a whole: what the request writes is presumed to be readable after this time.
    Whole {
        presumed_after_ms: u64,
    },
}

/// The leases of one request. They are given back when this is dropped.
pub struct HeldLeases {
    shared: SharedLeases,
    tenant: TenantId,
    owner: String,
    /// Those that it has, or may have.
    entries: Vec<EntryKey>,
    hold: Duration,
    /// Gives up those that it cannot use yet.
    gives_up: Option<JoinHandle<()>>,
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
        let listener = Arc::new(record::store_listener(Arc::clone(&self.metrics), store.name()));
        let _ = self.leases.shared.set(SharedLeases { store, listener });
    }

    /// Takes the leases of what a request is about to write, or waits until it need not write it, or until its deadline.
    /// Returns true if it has asked for them.
    pub(super) async fn lease(
        &self,
        flight: &mut InFlight,
        deadline: Moment,
        exchange: &mut Exchange,
    ) -> bool {
        let now = self.clock.now();
        let is_quiet = now.0 < self.leases.quiet_until.load(Relaxed);
        let Some(shared) = self.leases.shared.get().filter(|_| !is_quiet && now < deadline) else {
            return false;
        };
        let leads = |outcome| {
            use GateOutcome::{Led, Overtook, Released, Succeeded};
            matches!(outcome, Led | Succeeded | Released | Overtook)
        };
        let Some(mut hold) = exchange.facts.hold.filter(|hold| leads(hold.outcome)) else { return false };
        let (tenant, entries) = flight.large_writes();
        // Nothing of a tenant leaves the process before the upstream has accepted a request of it.
        if entries.is_empty() || self.store.known_tenant(&tenant).is_none() {
            return false;
        }
        let Some(answers) = flight.answers() else { return false };
        let max_hold = self.config.gate.max_hold;
        let Some(mut leases) = HeldLeases::none(shared.clone(), tenant, answers, max_hold) else {
            return false;
        };
        let began = self.clock.elapsed();
        exchange.waits_at_gate = true;
        let outcome = self.lease_by(&mut leases, entries, flight, deadline).await;
        exchange.waits_at_gate = false;
        hold.time += self.clock.elapsed() - began;
        hold.outcome = outcome.unwrap_or(hold.outcome);
        exchange.facts.hold = Some(hold);
        if let Answers::Whole { presumed_after_ms } = answers {
            leases.presume_written(Arc::clone(&self.clock), presumed_after_ms);
        }
        flight.leases = Some(leases);
        true
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
            // A store that is slow is not waited for beyond the deadline either.
            let asked = tokio::select! {
                biased;
                asked = leases.ask(&entries) => asked,
                () = self.clock.sleep_until(deadline) => return Some(GateOutcome::TimedOut),
            };
            match asked {
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
            let again = ASK_AGAIN_MS + u64::from(random::<1>()[0]) * ASK_AGAIN_MS / 256;
            self.clock.sleep_until(self.clock.now().after(again).min(deadline)).await;
            if self.clock.now() >= deadline {
                return Some(GateOutcome::TimedOut);
            }
        }
    }
}

impl SharedLeases {
    async fn take(
        &self,
        tenant: TenantId,
        names: &[String],
        owner: &str,
        hold: Duration,
    ) -> Result<Vec<Lease>, StoreError> {
        let began = Instant::now();
        let ask = names.iter().map(|name| self.store.lease(tenant, name, owner, hold));
        let answers: Result<Vec<_>, _> = join_all(ask).await.into_iter().collect();
        let outcome = match &answers {
            Ok(answers) if answers.contains(&Lease::Held) => "miss",
            Ok(answers) if answers.contains(&Lease::Written) => "hit",
            Ok(_) => "ok",
            Err(error) => error.as_str(),
        };
        self.count(outcome, began);
        answers
    }

    /// Gives leases back. One that could not be given back ends by itself.
    async fn release(&self, tenant: TenantId, names: Vec<String>, owner: &str, written: Option<Duration>) {
        let began = Instant::now();
        let release = names.iter().map(|name| self.store.release(tenant, name, owner, written));
        let released: Result<Vec<()>, _> = join_all(release).await.into_iter().collect();
        self.count(released.map_or_else(StoreError::as_str, |_| "ok"), began);
    }

    fn count(&self, outcome: &'static str, began: Instant) {
        (self.listener)(StoreEvent::Op { op: StoreOp::Lease, outcome, took: began.elapsed() });
    }
}

impl HeldLeases {
    fn none(shared: SharedLeases, tenant: TenantId, answers: Answers, hold: Duration) -> Option<HeldLeases> {
        let kind = if answers == Answers::Streamed { 's' } else { 'j' };
        let owner = format!("{kind}{}", Hex(&random::<16>()));
        let is_long_enough = millis(hold) > 0;
        let (entries, gives_up) = (Vec::new(), None);
        is_long_enough.then_some(HeldLeases { shared, tenant, owner, entries, hold, gives_up })
    }

    /// Asks for the leases of entries, the shortest first: whoever writes one of them writes all shorter ones. So of two
    /// that want the same, one gets the first of these, and keeps it, and the other one gives up those after it.
    async fn ask(&mut self, entries: &[EntryKey]) -> Result<Asked, StoreError> {
        if let Some(gives_up) = &mut self.gives_up {
            // What is asked for now is not to be given up by what was asked before.
            let _ = gives_up.await;
            self.gives_up = None;
        }
        // Also if nobody waits for the answer any more.
        self.entries = entries.to_vec();
        let names = names(entries);
        let answers = self.shared.take(self.tenant, &names, &self.owner, self.hold).await?;
        if let Some(first) = answers.iter().position(|answer| *answer == Lease::Held) {
            let after = names.into_iter().zip(&answers).skip(first);
            let taken = after.filter(|(_, answer)| **answer == Lease::Taken);
            let taken: Vec<String> = taken.map(|(name, _)| name).collect();
            if !taken.is_empty() {
                let (shared, tenant, owner) = (self.shared.clone(), self.tenant, self.owner.clone());
                let give_up = async move { shared.release(tenant, taken, &owner, None).await };
                self.gives_up = Some(tokio::spawn(give_up));
            }
            return Ok(Asked::Held);
        }
        let with_answers = entries.iter().zip(answers);
        let written = with_answers.filter_map(|(entry, answer)| (answer == Lease::Written).then_some(*entry));
        Ok(Asked::Free(written.collect()))
    }

    /// Announces to other replicas that the entries can be read.
    pub fn written(mut self) {
        let written = Some(self.hold);
        self.give_back(written);
    }

    /// Announces that after a time, unless the leases were given back before.
    fn presume_written(&self, clock: Arc<Clock>, after_ms: u64) {
        let (shared, tenant, owner, hold) = (self.shared.clone(), self.tenant, self.owner.clone(), self.hold);
        let (names, until) = (names(&self.entries), clock.now().after(after_ms));
        tokio::spawn(async move {
            clock.sleep_until(until).await;
            shared.release(tenant, names, &owner, Some(hold)).await;
        });
    }

    fn give_back(&mut self, written: Option<Duration>) {
        let entries = std::mem::take(&mut self.entries);
        let Ok(runtime) = Handle::try_current() else { return };
        let (shared, tenant, owner) = (self.shared.clone(), self.tenant, std::mem::take(&mut self.owner));
        if !entries.is_empty() {
            runtime.spawn(async move { shared.release(tenant, names(&entries), &owner, written).await });
        }
    }
}

impl Drop for HeldLeases {
    fn drop(&mut self) {
        self.give_back(None);
    }
}

/// The names of entries, as leases have them.
fn names(entries: &[EntryKey]) -> Vec<String> {
    entries.iter().map(EntryKey::to_string).collect()
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
