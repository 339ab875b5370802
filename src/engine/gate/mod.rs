//! The gate: one writer per cache entry.
//!
//! An entry can be read only after its writer's answer begins, so siblings fired together would all miss and
//! all pay for the same write. Here the first one leads, and the others follow once its answer begins.
//!
//! The rule: a request waits while another is writing an entry that it would write too, and never past its
//! deadline. Only those wait that have not gone, and only for those that have, so nobody waits in a circle.
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
//! ```
//! use forkpoint::engine::gate::{Arrival, Gatekeeper, Settings, Verdict, Write};
//! use forkpoint::engine::words::{GateOutcome, Moment};
//!
//! let sibling = || Arrival {
//!     writes: vec![Write { entry: "the parent's prefix", tokens: 40_000 }],
//!     streams: true,
//!     deadline: Moment(5_000),
//!     group: "tenant and model",
//! };
//! let mut gate = Gatekeeper::new(Settings::default());
//! let (leader, _goes) = gate.arrive(sibling(), Moment(0));
//! let (follower, _waits) = gate.arrive(sibling(), Moment(10));
//! assert_eq!(gate.begun(leader, Moment(900)), [follower]);
//! let Verdict::Go(let_go) = gate.look(follower, Moment(900)) else { panic!("held on") };
//! assert_eq!((let_go.outcome, let_go.leader), (GateOutcome::Released, Some(leader)));
//! ```

mod keeper;
mod holds;

use std::fmt;

pub use holds::Lesson;
pub use keeper::Gatekeeper;

use super::words::{GateOutcome, Moment};

/// The keys `gate.*` of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// A write of fewer tokens makes nobody wait.
    pub min_tokens: u64,
    /// From a request's arrival to its deadline, and no wait is longer.
    pub max_hold_ms: u64,
    /// How long a leader that does not stream is waited for, until more is known.
    pub json_hold_ms: u64,
    pub limits: Limits,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { min_tokens: 1_024, max_hold_ms: 5_000, json_hold_ms: 2_500, limits: Limits::default() }
    }
}

/// The limits of what the gate may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests that wait, or have gone and not begun.
    pub requests: usize,
    /// Requests that wait for one entry.
    pub followers: usize,
    /// Tenants and models whose hold was learned.
    pub groups: usize,
}

impl Default for Limits {
    /// As many requests as there may be connections, and no more followers than one turn may have calls: a
    /// huge fan-out leaves room for the others.
    fn default() -> Limits {
        Limits { requests: 4_096, followers: 256, groups: 1_024 }
    }
}

/// A request's number at the gate; the lower, the earlier it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A request before the gate. `G` is what holds are learned for: tenant and model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival<K, G> {
    /// The entries it would write; those known warm are left out.
    pub writes: Vec<Write<K>>,
    pub streams: bool,
    /// The request's one deadline, fixed when it came.
    pub deadline: Moment,
    pub group: G,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write<K> {
    pub entry: K,
    /// How many are to be written, as far as can be told before.
    pub tokens: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict<G> {
    Go(LetGo<G>),
    Wait(Wait),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LetGo<G> {
    pub outcome: GateOutcome,
    /// The one it waited for, or would have.
    pub leader: Option<Ticket>,
    /// The lesson, if its usage is to tell whether it waited long enough.
    pub lesson: Option<Lesson<G>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// When to look again, if nothing else happens.
    pub until: Moment,
    pub leader: Ticket,
}

#[cfg(test)]
mod tests;
