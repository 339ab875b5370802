//! The gate: one writer per cache entry.
//!
//! An entry can be read only after its writer's answer begins, so siblings fired together would all miss and
//! all pay for the same write. Here the first one leads, and the others follow once its answer begins.
//!
//! The rule: a request waits while another is writing an entry that it would write too, and never past its
//! deadline. Only those wait that have not gone, and only for those that have, so there is no circle of waits.
//! If a leader comes to nothing, the next one leads: in order of arrival, streaming ones first.
//!
//! A leader that does not stream shows nothing before its whole answer, hence a streaming sibling takes the
//! lead over it: the one waited for is always a streaming one if there is any. Of two that wait, the
//! streaming one leads; and where the other has gone already, the streaming one goes at once beside it. That
//! is one write more, against everybody's waiting for a whole answer. Where nobody streams, followers wait
//! for that answer, but only as long as was learned to be enough, counted from when the leader went.
//!
//! So there is one writer per cold entry, but for those that overtook, ran out of time, or found no room.
//!
//! Each tenant has a gate of its own, beside the ledger of what is billed. The ledger knows who writes an entry,
//! and the gate only who waits. A request that is let go is a writer in the ledger from that moment, and one that never
//! asked is a writer once it is sent: it is waited for like any other.
//!
//! ```
//! use forkpoint::engine::cache::entry::{EntryKey, Parameters};
//! use forkpoint::engine::cache::ledger::{CacheLedger, EntryWrite};
//! use forkpoint::engine::gate::{Gate, GateArrival, GateSettings, GateVerdict, GateWrite};
//! use forkpoint::engine::request::anatomy::Anatomy;
//! use forkpoint::engine::request::prefix::{Attribution, Chain};
//! use forkpoint::engine::words::{GateOutcome, Layer, Moment, TenantId, Ticket, Ttl};
//!
//! let body = br#"{"model":"m","system":"the parent's prefix"}"#;
//! let anatomy = Anatomy::read(body).unwrap();
//! let chain = Chain::of(body, &anatomy, Attribution::Counted);
//! let parameters = Parameters::read(TenantId([0; 32]), body, &anatomy, [].into_iter());
//! let key = EntryKey::of(parameters.scope(), &chain, 0, Layer::System).unwrap();
//! let write = EntryWrite { key, piece: 0, bytes: 160_000, ttl: Ttl::FiveMinutes };
//! let sibling = |ticket| GateArrival {
//!     ticket,
//!     writes: vec![GateWrite { write, tokens: 40_000 }],
//!     streams: true,
//!     deadline: Moment(5_000),
//!     model: "m".to_owned(),
//! };
//! let (mut gate, mut ledger) = (Gate::new(GateSettings::default()), CacheLedger::default());
//! let (leader, follower) = (Ticket(1), Ticket(2));
//! let _goes = gate.arrive(sibling(leader), &mut ledger, Moment(0));
//! let _waits = gate.arrive(sibling(follower), &mut ledger, Moment(10));
//! ledger.readable(leader, Moment(900), None);
//! assert_eq!(gate.begun(leader, &mut ledger, Moment(900)), [follower]);
//! let GateVerdict::Go(let_go) = gate.arrive(sibling(follower), &mut ledger, Moment(900)) else { panic!("held on") };
//! assert_eq!((let_go.outcome, let_go.leader), (GateOutcome::Released, Some(leader)));
//! ```

mod queue;
mod holds;

pub use holds::{Lesson, SavedHolds};
pub use queue::Gate;

use super::cache::ledger::EntryWrite;
use super::words::{GateOutcome, Moment, Ticket};

/// The keys `gate.*` of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateSettings {
    /// A write of fewer tokens is not waited for.
    pub min_tokens: u64,
    /// From a request's arrival to its deadline, and no wait is longer.
    pub max_hold_ms: u64,
    /// The time for which a leader that does not stream is waited for, until more is known.
    pub json_hold_ms: u64,
    pub limits: GateLimits,
}

impl Default for GateSettings {
    fn default() -> GateSettings {
        let limits = GateLimits::default();
        GateSettings { min_tokens: 1_024, max_hold_ms: 5_000, json_hold_ms: 2_500, limits }
    }
}

/// The limits of what the gate of one tenant may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateLimits {
    /// Requests that wait, or have gone and not begun.
    pub requests: usize,
    /// Requests that wait for one entry.
    pub followers: usize,
    /// Models whose hold was learned.
    pub models: usize,
}

impl Default for GateLimits {
    /// As many requests as there may be connections, and no more followers than one turn may have calls: a
    /// huge fan-out leaves room for the others.
    fn default() -> GateLimits {
        GateLimits { requests: 4_096, followers: 256, models: 1_024 }
    }
}

/// A request before the gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateArrival {
    /// The lower, the earlier it came.
    pub ticket: Ticket,
    /// The entries it would write, deepest first; those known warm are left out.
    pub writes: Vec<GateWrite>,
    pub streams: bool,
    /// The request's one deadline, fixed when it came.
    pub deadline: Moment,
    /// The model, for which holds are learned. Requests that share an entry share the model.
    pub model: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateWrite {
    pub write: EntryWrite,
    /// The number of tokens to be written, as far as is known before.
    pub tokens: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GateVerdict {
    Go(LetGo),
    Wait(GateWait),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LetGo {
    pub outcome: GateOutcome,
    /// The one it waited for, or would have.
    pub leader: Option<Ticket>,
    /// The lesson, if its usage is to tell whether it waited long enough.
    pub lesson: Option<Lesson>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateWait {
    /// The moment to look again, if nothing else happens.
    pub until: Moment,
    pub leader: Ticket,
}

#[cfg(test)]
mod tests;
