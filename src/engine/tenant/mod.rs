//! Everything that is known of one tenant, as plain data.
//!
//! Its owner puts it behind one lock. A request looks into it for short moments, by a [`TenantAccess`], and
//! works on copies of what it has found there. Four transitions take a request through it:
//!
//! ```text
//! begin     a request goes out: claim, binding, place at the gate, entries in flight
//! progress  the upstream took it; its answer begins, or another replica's; a block of it has finished
//! settle    its answer has ended, and was billed
//! abandon   nothing comes of it
//! ```
//!
//! Beside them, a request begins and stops to wait, stores and other replicas bring what they know, and room is made.

mod access;
mod asked;
mod begin;
mod children;
mod flight;
mod predict;
mod progress;
mod read;
mod relation;
mod refused;
mod reread;
mod settle;
mod turns;
mod unsaved;

pub use access::TenantAccess;
pub use asked::UnknownContinue;
pub use children::{BoundChild, Fate, SavedChild, SavedDecision, SavedTurns, SharedPrefixes};
pub use flight::{Accepted, FirstPrefix, Flight, FlightPlan, Imagined, ReadRequest};
pub use progress::{accept, block, first_content};
pub use read::{ReadMode, View};
pub use refused::{Attempt, Fallback};
pub use relation::{FirstSeen, Kind, Relation, bound_child, kind_of, relate, tool_of};
pub use reread::Reread;
pub use settle::{Fanout, SettledChild, Settlement, Verdict, abandon, drift, settle};
pub use unsaved::{Unsaved, UnsavedThread, Urgency};

use std::collections::BTreeMap;

use asked::AskedWhole;

use crate::engine::cache::learned::Learned;
use crate::engine::cache::worlds::Worlds;
use crate::engine::family::fanout::{FanOuts, ForkId, Rules};
use crate::engine::family::recent::Recent;
use crate::engine::family::reread::DigestedParents;
use crate::engine::fork::experiment::ForkExperiment;
use crate::engine::gate::{Gate, GateArrival, GateSettings};
use crate::engine::words::{Moment, TenantId, Ticket};

/// Everything that is known of one tenant, but for how its tools and system prompts are spelt.
#[derive(Debug)]
pub struct TenantState {
    pub id: TenantId,
    /// The last request of each conversation.
    pub recent: Recent,
    recent_bytes_max: usize,
    /// Lessons of its traffic.
    pub learned: Learned,
    /// Its entries in the provider's cache, and those that it would have otherwise.
    pub worlds: Worlds,
    /// Requests that wait for those who write an entry.
    pub gate: Gate,
    /// Its fork points, snapshots and children.
    pub fan_outs: FanOuts<BoundChild>,
    /// The parents' prefixes that its children share.
    pub prefixes: SharedPrefixes,
    /// The tool results of parents, to know which of them children read again.
    digested_parents: DigestedParents,
    /// The fate of its children.
    pub experiment: ForkExperiment,
    /// Children that wait for the end of their parent's answer.
    seal_waits: BTreeMap<Ticket, SealWait>,
    asked_whole: AskedWhole,
    /// Requests that waited and have to look again.
    woken: Vec<Ticket>,
    /// The newest ticket that was seen.
    newest: Ticket,
    /// The changes that are not saved yet.
    pub(in crate::engine) unsaved: Unsaved,
}

/// The wait of a child for the end of its parent's answer.
#[derive(Clone, Copy, Debug)]
struct SealWait {
    fork: ForkId,
    until: Moment,
}

impl TenantState {
    /// `recent_bytes_max`: what its recent requests may take.
    pub fn new(id: TenantId, rules: Rules, gate: GateSettings, recent_bytes_max: usize) -> TenantState {
        TenantState {
            id,
            recent: Recent::default(),
            recent_bytes_max,
            learned: Learned::default(),
            worlds: Worlds::default(),
            gate: Gate::new(gate),
            fan_outs: FanOuts::new(id, rules),
            prefixes: SharedPrefixes::default(),
            digested_parents: DigestedParents::default(),
            experiment: ForkExperiment::default(),
            seal_waits: BTreeMap::new(),
            asked_whole: AskedWhole::default(),
            woken: Vec::new(),
            newest: Ticket(0),
            unsaved: Unsaved::default(),
        }
    }

    /// Forgets the oldest recent request; `false` if there is none.
    pub fn forget_oldest_body(&mut self) -> bool {
        self.recent.forget_oldest(self.recent_bytes_max)
    }

    /// Lets a child wait for the end of the answer of this fork point.
    pub fn await_seal(&mut self, ticket: Ticket, fork: ForkId, until: Moment) {
        self.seal_waits.insert(ticket, SealWait { fork, until });
    }

    pub fn stop_awaiting_seal(&mut self, ticket: Ticket) {
        self.seal_waits.remove(&ticket);
    }

    /// A request takes its place at the gate: it goes, or it waits.
    pub fn enter_gate(&mut self, arrival: GateArrival, now: Moment) {
        self.newest = self.newest.max(arrival.ticket);
        self.gate.arrive(arrival, &mut self.worlds.billed, now);
    }

    /// The answer of this fork point has ended.
    fn sealed(&mut self, fork: ForkId) {
        let waited = self.seal_waits.extract_if(.., |_, wait| wait.fork == fork);
        self.woken.extend(waited.map(|(ticket, _)| ticket));
    }

    /// Another process has reported this fork point: requests that wait for the end of its answer look again if that
    /// has come.
    pub fn seal_heard(&mut self, fork: ForkId) {
        if self.fan_outs.points().get(fork).is_none_or(|point| point.is_sealed()) {
            self.sealed(fork);
        }
    }

    /// A request waits no longer: its time has come, or its client has left. Requests that wait for it go next.
    pub fn stop_waiting(&mut self, ticket: Ticket, now: Moment) {
        self.seal_waits.remove(&ticket);
        self.woken.extend(self.gate.gone(ticket, &mut self.worlds.billed, now));
    }

    /// Until when a request waits, unless it has to look again before; none if it does not wait.
    pub fn waits_until(&self, ticket: Ticket) -> Option<Moment> {
        let seal = self.seal_waits.get(&ticket).map(|wait| wait.until);
        seal.or_else(|| self.gate.waits_until(ticket))
    }

    /// The number of children that wait for the end of their parent's answer, those aside whose time has come.
    pub fn awaiting_seal(&self, now: Moment) -> usize {
        self.seal_waits.values().filter(|wait| wait.until > now).count()
    }

    /// Until when the first of the requests waits that wait.
    pub fn next_due(&self) -> Option<Moment> {
        let seal = self.seal_waits.values().map(|wait| wait.until).min();
        [seal, self.gate.next_due()].into_iter().flatten().min()
    }

    /// Takes the requests that have to look again.
    pub fn take_woken(&mut self) -> impl Iterator<Item = Ticket> + use<> {
        std::mem::take(&mut self.woken).into_iter()
    }
}

#[cfg(test)]
pub(crate) mod tests;
