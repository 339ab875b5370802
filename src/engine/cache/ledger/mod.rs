//! The cache entries that the provider holds for one tenant in one world, and until when.
//!
//! An entry is *being written* from the moment its request is sent, *warm* once that request's answer begins, and
//! gone when its lifetime ends, which counts from the **start** of the request that wrote or last read it. What the
//! upstream bills corrects the ledger: it knows better.
//!
//! ```text
//! predict ─ begin ─┬─ readable ─ settle      being written → warm → warm, with its tokens
//!                  └─ abandon                being written → by its other writers, or forgotten
//! ```
//!
//! The gate asks the ledger who is writing an entry, and [claims](CacheLedger::claim) entries for those that it lets
//! go: they are writers from then on, and not only when they are sent.
//!
//! The rule: in doubt an entry is not warm. A prediction that is too low hides a saving; one that is too high would
//! report a cache break that never was.

mod elsewhere;
mod in_flight;
mod other_worlds;
mod saved;
mod state;
mod tokens;
mod trial;

use std::collections::BTreeMap;

use crate::engine::cache::entry::{EntryKey, Probe};
use crate::engine::words::{DigestMap, Moment, Ticket, Ttl};
use in_flight::InFlight;
use state::EntryState;

pub use in_flight::LedgerBill;
pub use other_worlds::Reach;
pub use saved::{PARTS, Parts, SavedEntry};
pub use state::Writer;
pub use tokens::{EntryTokens, TokenSource};
pub use trial::{BetaTrial, Harmless};

/// Entries per tenant: some hundred conversations with a few entries each, in less than a megabyte.
pub const LEDGER_ENTRIES_MAX: usize = 4_096;
/// Requests of one tenant that are on their way, as many as may be at the gate; the oldest is given up first.
pub const IN_FLIGHT_MAX: usize = 4_096;
/// Less room than this is not worth giving back.
const SPARE_ENTRIES: usize = 64;
#[derive(Clone, Debug, Default)]
pub struct CacheLedger {
    entries: DigestMap<EntryKey, EntryState>,
    flights: BTreeMap<Ticket, InFlight>,
    /// The moment when an entry that still lived was last dropped for want of room.
    forgot_at: Option<Moment>,
    /// The warm entries that have changed since they were saved.
    changed: Parts,
}

/// The entries that a request would find if it were sent now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prediction {
    /// The deepest warm entry within reach.
    pub read: Option<WarmEntry>,
    /// The request's own, deepest first.
    pub breakpoints: Vec<EntryWrite>,
    /// Entries within reach and deeper than the warm one that others are writing right now, deepest first.
    pub underway: Vec<Underway>,
}

/// A warm entry that would be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WarmEntry {
    pub key: EntryKey,
    pub piece: usize,
    /// Of the prompt up to the entry's end.
    pub bytes: u64,
    pub tokens: EntryTokens,
}

/// A breakpoint of the request, which writes an entry unless the request reads beyond it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryWrite {
    pub key: EntryKey,
    pub piece: usize,
    pub bytes: u64,
    pub ttl: Ttl,
}

/// An entry that becomes warm when its writer's answer begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Underway {
    pub key: EntryKey,
    pub piece: usize,
    pub bytes: u64,
    pub ticket: Ticket,
    pub since: Moment,
}

/// An entry that others were writing when a request was sent, as it turned out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missed {
    pub piece: usize,
    /// As far as is known, and at the very least.
    pub tokens: u64,
    pub tokens_min: u64,
}

impl Prediction {
    /// The breakpoints that would write, deepest first.
    pub fn writes(&self) -> &[EntryWrite] {
        let end = match self.read {
            None => self.breakpoints.len(),
            Some(read) => self.breakpoints.partition_point(|point| point.piece > read.piece),
        };
        &self.breakpoints[..end]
    }

    /// The tokens that would be read, as far as is known.
    pub fn tokens(&self) -> u64 {
        self.read.map_or(0, |read| read.tokens.count)
    }

    /// The tokens that would be read at the very most.
    pub fn tokens_max(&self) -> u64 {
        self.read.map_or(0, |read| read.tokens.bounds().1)
    }

    /// The tokens that would be read at the very least: what an estimate may be off is left out.
    pub fn tokens_min(&self) -> u64 {
        self.read.map_or(0, |read| read.tokens.bounds().0)
    }
}

impl CacheLedger {
    /// Predicts what a request would find. The probes come deepest first, each position once; `key` names the entry
    /// that ends at a piece, and is asked only as far as needed. If entries were claimed for the request, `own` is its
    /// ticket: they are not underway for itself.
    pub fn predict(
        &self,
        probes: impl IntoIterator<Item = Probe>,
        key: impl Fn(usize) -> Option<EntryKey>,
        own: Option<Ticket>,
        now: Moment,
    ) -> Prediction {
        let mut prediction = Prediction::default();
        for Probe { piece, bytes, marker } in probes {
            // Beyond the deepest warm entry only the request's own breakpoints are of interest.
            if prediction.read.is_some() && marker.is_none() {
                continue;
            }
            let Some(key) = key(piece) else { continue };
            if let Some(ttl) = marker {
                prediction.breakpoints.push(EntryWrite { key, piece, bytes, ttl });
            }
            if prediction.read.is_some() {
                continue;
            }
            match self.entries.get(&key).filter(|entry| entry.is_live(now)) {
                Some(EntryState::Warm { from, tokens, .. }) if *from <= now => {
                    prediction.read = Some(WarmEntry { key, piece, bytes, tokens: *tokens });
                }
                Some(EntryState::Writing(writers)) => {
                    let other = writers.iter().find(|writer| Some(writer.ticket) != own);
                    prediction.underway.extend(other.map(|&Writer { ticket, since, .. }| Underway {
                        key,
                        piece,
                        bytes,
                        ticket,
                        since,
                    }));
                }
                _ => {}
            }
        }
        prediction
    }

    /// A request goes out, as it was predicted. It writes that instead of what was claimed for it, and counts as the
    /// writer since the claim.
    pub fn begin(&mut self, ticket: Ticket, prediction: &Prediction, streams: bool, now: Moment) {
        let mut flight = InFlight::new(prediction, now);
        if let Some(claimed) = self.take(ticket) {
            (flight.since, flight.presumed) = (claimed.since, claimed.presumed);
        }
        self.add(ticket, flight, streams, now);
    }

    /// A request may go, and is about to be sent: from now on it counts as the writer of these entries, deepest first.
    /// It never counts as the writer of those that it is presumed to read, unless no other request writes them.
    pub fn claim(
        &mut self,
        ticket: Ticket,
        writes: Vec<EntryWrite>,
        presumed: Vec<EntryKey>,
        streams: bool,
        now: Moment,
    ) {
        self.take(ticket);
        let prediction = Prediction { breakpoints: writes, ..Prediction::default() };
        let mut flight = InFlight::new(&prediction, now);
        flight.presumed = presumed;
        self.add(ticket, flight, streams, now);
    }

    /// Returns the request to wait for until an entry can be read, if any is writing it.
    pub fn leader(&self, key: &EntryKey) -> Option<&Writer> {
        self.entries.get(key)?.writers().first()
    }

    /// Returns the entries that a request on its way set out to write, deepest first.
    pub fn writes(&self, ticket: Ticket) -> &[EntryWrite] {
        self.flights.get(&ticket).map_or(&[], |flight| flight.writes())
    }

    /// The request's answer has begun: what it writes can be read from now on. `tokens_per_byte` as learned from bills.
    pub fn readable(&mut self, ticket: Ticket, now: Moment, tokens_per_byte: Option<f64>) {
        let Some(mut flight) = self.flights.remove(&ticket) else { return };
        if !std::mem::replace(&mut flight.begun, true) {
            for write in flight.writes() {
                self.give_up(&write.key, ticket);
                self.warm(write, flight.sent, now, flight.expected_tokens(write, tokens_per_byte));
            }
        }
        self.flights.insert(ticket, flight);
    }

    /// The request will not be answered. What it was writing is left to its other writers, or forgotten; what became
    /// readable before it failed stays so. Returns the entries that it was writing until now.
    pub fn abandon(&mut self, ticket: Ticket) -> Vec<EntryKey> {
        let flight = self.take(ticket).filter(|flight| !flight.begun);
        self.give_back_room();
        flight.map_or_else(Vec::new, |flight| flight.writes().iter().map(|write| write.key).collect())
    }

    /// The upstream billed the request, at the latest when its answer ended.
    pub fn settle(&mut self, ticket: Ticket, bill: &LedgerBill, now: Moment) {
        let Some(flight) = self.flights.remove(&ticket) else { return };
        let (cached, read) = (bill.cached(), bill.usage.cache_read);
        let Some(deepest) = flight.breakpoints.first() else { return };
        let confirmed = flight.read.filter(|warm| read >= warm.tokens.bounds().0);
        if let Some(missed) = flight.read
            && confirmed.is_none()
        {
            self.forget(&missed.key, ticket);
        }
        if cached == 0 {
            flight.breakpoints.iter().for_each(|write| self.forget(&write.key, ticket));
            return self.give_back_room();
        }
        if let Some(warm) = confirmed {
            let billed = (read <= warm.tokens.bounds().1).then(|| EntryTokens::billed(read));
            self.refresh(&warm.key, flight.sent, billed);
        }
        let was_written = cached > read;
        for write in &flight.breakpoints {
            let tokens = flight.billed_tokens(write, bill);
            let is_deepest = write.key == deepest.key;
            if confirmed.is_some_and(|warm| write.piece <= warm.piece)
                || (!is_deepest && tokens.count <= read)
            {
                self.give_up(&write.key, ticket);
                self.refresh(&write.key, flight.sent, None);
            } else if is_deepest && !was_written {
                // Somebody else wrote what was read here, and for how long is not known.
                self.forget(&write.key, ticket);
                self.warm(&EntryWrite { ttl: Ttl::FiveMinutes, ..*write }, flight.sent, now, tokens);
            } else if is_deepest || bill.minimum_tokens.is_none_or(|least| tokens.count >= least) {
                self.warm(write, flight.sent, now, tokens);
            } else {
                self.forget(&write.key, ticket);
            }
        }
    }

    /// The deepest entry that others were writing when this was predicted, if it is there now.
    pub fn missed(&self, prediction: &Prediction) -> Option<Missed> {
        prediction.underway.iter().find_map(|underway| match self.entries.get(&underway.key)? {
            EntryState::Warm { tokens, .. } => {
                let (piece, tokens_min) = (underway.piece, tokens.bounds().0);
                Some(Missed { piece, tokens: tokens.count, tokens_min })
            }
            EntryState::Writing(_) => None,
        })
    }

    /// Returns true if an entry exists or is being written.
    pub fn holds(&self, key: &EntryKey, now: Moment) -> bool {
        self.entries.get(key).is_some_and(|entry| entry.is_live(now))
    }

    /// Returns the number of entries that are kept, warm or not.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the number of entries that fit without more memory.
    pub fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// An entry is there. Of two that write it the longer promise counts, and a billed count before an estimate.
    fn warm(&mut self, write: &EntryWrite, sent: Moment, now: Moment, tokens: EntryTokens) {
        let (mut ttl, mut first, mut end) = (write.ttl, now, sent.after(write.ttl.ms()));
        let mut best = tokens;
        if let Some(EntryState::Warm { ttl: known_ttl, from, until, tokens: known }) =
            self.entries.get(&write.key).filter(|known| known.is_live(now))
        {
            if *known_ttl == Ttl::OneHour {
                ttl = *known_ttl;
            }
            (first, end) = (first.min(*from), end.max(*until));
            if known.source == TokenSource::Billed && tokens.source != TokenSource::Billed {
                best = *known;
            }
        }
        self.changed.add(&write.key);
        let merged = EntryState::Warm { ttl, from: first, until: end, tokens: best };
        if merged.is_live(now) {
            self.make_room(now);
            self.entries.insert(write.key, merged);
        } else if matches!(self.entries.get(&write.key), Some(EntryState::Warm { .. })) {
            self.entries.remove(&write.key);
        }
    }

    /// A read renews an entry for its own lifetime, counted from the start of the request that read it.
    fn refresh(&mut self, key: &EntryKey, sent: Moment, billed: Option<EntryTokens>) {
        let Some(EntryState::Warm { ttl, until, tokens, .. }) = self.entries.get_mut(key) else { return };
        // An entry that ended before the request started was not read.
        if *until > sent {
            self.changed.add(key);
            *until = (*until).max(sent.after(ttl.ms()));
            *tokens = billed.unwrap_or(*tokens);
        }
    }

    /// The upstream has no such entry. If another request is writing it, that one will tell.
    fn forget(&mut self, key: &EntryKey, ticket: Ticket) {
        match self.entries.get(key) {
            Some(EntryState::Warm { .. }) => self.lost(key),
            _ => self.give_up(key, ticket),
        }
    }

    /// Leaves what this request was writing to those that write it too.
    fn give_up(&mut self, key: &EntryKey, ticket: Ticket) {
        if self.entries.get_mut(key).is_some_and(|entry| entry.remove(ticket)) {
            self.entries.remove(key);
        }
    }

    /// Takes a request out, and from the writers of its entries.
    fn take(&mut self, ticket: Ticket) -> Option<InFlight> {
        let flight = self.flights.remove(&ticket)?;
        for write in flight.writes() {
            self.give_up(&write.key, ticket);
        }
        Some(flight)
    }

    /// Adds a request, also to the writers of its entries.
    fn add(&mut self, ticket: Ticket, flight: InFlight, streams: bool, now: Moment) {
        while self.flights.len() >= IN_FLIGHT_MAX {
            let Some(oldest) = self.flights.first_key_value().map(|(ticket, _)| *ticket) else { break };
            self.take(oldest);
        }
        for write in flight.writes() {
            let writer = Writer::new(ticket, streams, flight.since, write);
            match self.entries.get_mut(&write.key) {
                // A writer that takes longer than its entry would live is still one to wait for.
                Some(entry @ EntryState::Writing(_)) => {
                    if !flight.presumed.contains(&write.key) {
                        entry.add(writer);
                    }
                }
                Some(warm) if warm.is_live(now) => {}
                _ => {
                    self.make_room(now);
                    self.entries.insert(write.key, EntryState::Writing(vec![writer]));
                }
            }
        }
        self.flights.insert(ticket, flight);
    }

    fn give_back_room(&mut self) {
        if self.entries.capacity() > SPARE_ENTRIES.max(self.entries.len() * 4) {
            self.entries.shrink_to(self.entries.len() * 2);
        }
    }

    /// Drops what has ended, and if that is not enough the eighth that ends first: one scan per eighth.
    fn make_room(&mut self, now: Moment) {
        if self.entries.len() < LEDGER_ENTRIES_MAX {
            return;
        }
        self.entries.retain(|_, entry| entry.is_live(now));
        if self.entries.len() < LEDGER_ENTRIES_MAX {
            return;
        }
        self.forgot_at = Some(now);
        let mut ends: Vec<_> = self.entries.iter().map(|(key, entry)| (entry.until(), *key)).collect();
        ends.sort_unstable();
        for (_, key) in ends.iter().take(LEDGER_ENTRIES_MAX / 8) {
            self.entries.remove(key);
        }
    }
}

#[cfg(test)]
mod tests;
