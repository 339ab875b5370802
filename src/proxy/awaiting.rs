//! Children that wait for the end of their parent's answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::engine::family::fanout::{ForkId, ForkPoint};
use crate::engine::words::Moment;
use crate::store::Tenant;

/// Who waits, for what, and until when. The hold limits bound how many.
#[derive(Default)]
pub struct Awaiting {
    waits: Mutex<Waits>,
}

#[derive(Default)]
struct Waits {
    next: u64,
    known: HashMap<u64, Wait>,
}

struct Wait {
    tenant: Arc<Tenant>,
    fork: ForkId,
    until: Moment,
}

/// A child that waits, until this is dropped: its client may leave.
pub struct Waiting<'a> {
    awaiting: &'a Awaiting,
    number: u64,
}

impl Awaiting {
    pub fn begin(&self, tenant: &Arc<Tenant>, fork: ForkId, until: Moment) -> Waiting<'_> {
        let mut waits = self.waits();
        let number = waits.next;
        waits.next += 1;
        waits.known.insert(number, Wait { tenant: Arc::clone(tenant), fork, until });
        Waiting { awaiting: self, number }
    }

    pub fn count(&self) -> usize {
        self.waits().known.len()
    }

    /// How many of them have to wait on: neither is the answer at its end, nor has their time come.
    pub fn pending(&self, now: Moment) -> usize {
        let pends = |wait: &&Wait| {
            let is_pending = |fork: &Arc<ForkPoint>| !fork.is_sealed();
            wait.until > now
                && wait
                    .tenant
                    .with_fan_outs(|fan_outs| fan_outs.points().get(wait.fork).is_some_and(is_pending))
        };
        self.waits().known.values().filter(pends).count()
    }

    /// Until when the first of them waits.
    pub fn next_due(&self) -> Option<Moment> {
        self.waits().known.values().map(|wait| wait.until).min()
    }

    fn waits(&self) -> MutexGuard<'_, Waits> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.awaiting.waits().known.remove(&self.number);
    }
}
