//! Holding a request back while another writes what it would write too.

use std::time::Duration;

use super::Proxy;
use super::clock::millis;
use super::gate;
use super::memo::Memo;
use crate::config;
use crate::engine::cache::entry::EntryKey;
use crate::engine::cache::ledger::Prediction;
use crate::engine::gate::{Arrival, LetGo, Limits, Settings, Ticket, Write};
use crate::engine::words::{GateOutcome, Moment, TenantId};
use crate::store::Tenant;

/// Tenant and model, for which the wait behind an answer that is not streamed is learned.
pub type Group = (TenantId, String);
pub type Gate = gate::Gate<EntryKey, Group>;
pub type Pass = gate::Pass<EntryKey, Group>;

/// The gate's treatment of a request, and what that was worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub outcome: GateOutcome,
    /// Its number at the gate, if that was asked.
    pub ticket: Option<Ticket>,
    pub leader: Option<Ticket>,
    pub time: Duration,
    /// Tokens of the entry that was waited for.
    pub tokens: u64,
}

pub fn settings(gate: &config::Gate) -> Settings {
    Settings {
        min_tokens: gate.min_tokens as u64,
        max_hold_ms: millis(gate.max_hold),
        json_hold_ms: millis(gate.json_hold),
        limits: Limits::default(),
    }
}

/// The entries that a request would write and has not found warm.
pub fn arrival(
    memo: &Memo,
    tenant: &Tenant,
    prediction: &Prediction,
    streams: bool,
    deadline: Moment,
) -> Arrival<EntryKey, Group> {
    let read = prediction.read.map_or(0, |read| read.bytes);
    // Before anything was billed nobody can tell how much it is; then it is taken to be worth the wait.
    let tokens = |bytes: u64| memo.tokens(tenant, bytes.saturating_sub(read)).unwrap_or(u64::MAX);
    let writes = prediction.writes().iter();
    let writes = writes.map(|write| Write { entry: write.key, tokens: tokens(write.bytes) }).collect();
    Arrival { writes, streams, deadline, group: (memo.tenant_id(), memo.model().to_owned()) }
}

/// Tokens that are being written by others right now, and that this request would write once more.
pub fn underway_tokens(memo: &Memo, tenant: &Tenant, prediction: &Prediction) -> u64 {
    let read = prediction.read.map_or(0, |read| read.bytes);
    let deepest = prediction.underway.first().map_or(0, |underway| underway.bytes);
    memo.tokens(tenant, deepest.saturating_sub(read)).unwrap_or_default()
}

impl Proxy {
    /// How many requests are held back, those aside that may go and have not noticed.
    pub fn waiting(&self) -> usize {
        self.gate.waiting() + self.awaiting.pending(self.clock.now())
    }

    /// In how many milliseconds the first of them has waited long enough.
    pub fn next_due_ms(&self) -> Option<u64> {
        let due = [self.gate.next_due(), self.awaiting.next_due()].into_iter().flatten().min()?;
        Some(due.since(self.clock.now()))
    }
}

impl Held {
    /// Nobody would wait so long.
    pub const TOO_SLOW: Held =
        Held { outcome: GateOutcome::TooSlow, ticket: None, leader: None, time: Duration::ZERO, tokens: 0 };

    pub fn of(pass: &Pass, tokens: u64) -> Held {
        let LetGo { outcome, leader, .. } = pass.let_go;
        Held { outcome, ticket: Some(pass.ticket), leader, time: pass.held, tokens }
    }

    /// Returns true if the wait was for an entry that should now be warm.
    pub fn follows(&self) -> bool {
        matches!(self.outcome, GateOutcome::Released | GateOutcome::Presumed)
    }
}
