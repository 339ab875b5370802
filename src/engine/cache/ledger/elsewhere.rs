//! Entries that other replicas write.

use super::{CacheLedger, EntryWrite};
use crate::engine::cache::entry::EntryKey;
use crate::engine::words::{Moment, Ticket, Ttl};

impl CacheLedger {
    /// Another replica has written some of the entries that a request set out to write: they can be read from now on, for
    /// the shorter time, since the other one's is not known. `tokens_per_byte` as learned from bills.
    pub fn written_elsewhere(
        &mut self,
        ticket: Ticket,
        keys: &[EntryKey],
        now: Moment,
        tokens_per_byte: Option<f64>,
    ) {
        let Some(flight) = self.flights.get(&ticket) else { return };
        let sent = flight.sent;
        let of_flight = flight.writes().iter().filter(|write| keys.contains(&write.key));
        let known = |write: &EntryWrite| (*write, flight.expected_tokens(write, tokens_per_byte));
        let written: Vec<_> = of_flight.map(known).collect();
        for (write, tokens) in written {
            self.give_up(&write.key, ticket);
            self.warm(&EntryWrite { ttl: Ttl::FiveMinutes, ..write }, sent, now, tokens);
        }
    }
}
