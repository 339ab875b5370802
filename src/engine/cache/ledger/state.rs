//! One entry of the ledger: being written, and by whom, or warm.

use super::{EntryTokens, EntryWrite};
use crate::engine::words::{Moment, Ticket, Ttl};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum EntryState {
    /// By at least one request, in the order in which others wait for them.
    Writing(Vec<Writer>),
    Warm {
        ttl: Ttl,
        from: Moment,
        until: Moment,
        tokens: EntryTokens,
    },
}

/// A request that is writing an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writer {
    pub ticket: Ticket,
    pub streams: bool,
    /// The moment when it went.
    pub since: Moment,
    ttl: Ttl,
}

impl Writer {
    pub(super) fn new(ticket: Ticket, streams: bool, since: Moment, write: &EntryWrite) -> Writer {
        Writer { ticket, streams, since, ttl: write.ttl }
    }

    /// Those that stream come first, since the answers of the others show nothing before they are whole; then whoever
    /// went first.
    fn order(&self) -> impl Ord + use<> {
        (!self.streams, self.since, self.ticket)
    }
}

impl EntryState {
    /// Adds a writer, unless the entry is warm.
    pub fn add(&mut self, writer: Writer) {
        if let EntryState::Writing(writers) = self {
            let at = writers.partition_point(|other| other.order() < writer.order());
            writers.insert(at, writer);
        }
    }

    /// Takes a writer out. Returns true if the entry is neither being written any more nor warm.
    pub fn remove(&mut self, ticket: Ticket) -> bool {
        let EntryState::Writing(writers) = self else { return false };
        writers.retain(|writer| writer.ticket != ticket);
        writers.is_empty()
    }

    pub fn writers(&self) -> &[Writer] {
        match self {
            EntryState::Writing(writers) => writers,
            EntryState::Warm { .. } => &[],
        }
    }

    pub fn until(&self) -> Moment {
        match self {
            EntryState::Writing(writers) => {
                let ends = writers.iter().map(|writer| writer.since.after(writer.ttl.ms()));
                ends.max().unwrap_or_default()
            }
            EntryState::Warm { until, .. } => *until,
        }
    }

    pub fn is_live(&self, now: Moment) -> bool {
        now < self.until()
    }
}
