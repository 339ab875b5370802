//! The ledger of one tenant: which cache entries exist, and until when.
//!
//! An entry is *being written* from the moment its request is sent, *warm* once that request's answer begins, and
//! gone when its lifetime ends, which counts from the **start** of the request that wrote or last read it. What the
//! upstream bills corrects the ledger: it knows better.
//!
//! ```text
//! predict ─ sent ─┬─ begun ─ billed      being written → warm → warm, with its tokens
//!                 └─ failed              being written → the next writer's, or forgotten
//! ```
//!
//! The rule: in doubt an entry is not warm. A prediction that is too low hides a saving; one that is too high would
//! report a cache break that never was.

mod flight;
mod trial;

use std::collections::{BTreeMap, HashMap};

use super::entry::{EntryKey, Probe};
use super::words::{Moment, Ttl};
use flight::Flight;

pub use flight::Bill;
pub use trial::{Harmless, Trial};

/// Entries per tenant: some hundred conversations with a few entries each, in less than a megabyte.
pub const ENTRIES_MAX: usize = 4_096;
/// Requests of one tenant that are on their way; the oldest is given up first.
pub const FLIGHTS_MAX: usize = 1_024;
/// How far an estimate by billed bytes may be off: code, prose and JSON have different bytes to a token.
const ESTIMATE_SLACK: f64 = 1.0 / 3.0;
/// How far a guess may be off before anything was billed: an image has hundreds of bytes to a token.
const GUESS_SLACK: f64 = 0.9;

/// Names one request on its way, chosen by the caller and rising.
pub type Ticket = u64;

#[derive(Debug, Default)]
pub struct Warmth {
    entries: HashMap<EntryKey, Entry>,
    flights: BTreeMap<Ticket, Flight>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    ttl: Ttl,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Writing { ticket: Ticket, since: Moment },
    Warm { from: Moment, until: Moment, tokens: Tokens },
}

/// Tokens of the prompt up to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    pub count: u64,
    pub source: Source,
}

/// Where a count comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The upstream billed just this prefix.
    Billed,
    /// Scaled by bytes from what the upstream billed.
    Estimated,
    /// Nothing was billed yet.
    Guessed,
}

impl Tokens {
    fn billed(count: u64) -> Tokens {
        Tokens { count, source: Source::Billed }
    }

    fn estimated(count: f64) -> Tokens {
        Tokens { count: count as u64, source: Source::Estimated }
    }

    fn guessed(count: f64) -> Tokens {
        Tokens { count: count as u64, source: Source::Guessed }
    }

    /// The fewest and the most that a read of this entry can be billed as.
    fn bounds(self) -> (u64, u64) {
        let slack = match self.source {
            Source::Billed => 0.0,
            Source::Estimated => ESTIMATE_SLACK,
            Source::Guessed => GUESS_SLACK,
        };
        let slack = (self.count as f64 * slack) as u64;
        (self.count.saturating_sub(slack).max(1), self.count.saturating_add(slack))
    }
}

/// What a request would find if it were sent now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prediction {
    /// The deepest warm entry within reach.
    pub read: Option<Warm>,
    /// The request's own, deepest first.
    pub breakpoints: Vec<Write>,
    /// Entries within reach and deeper than the warm one that others are writing right now, deepest first.
    pub underway: Vec<Underway>,
}

/// A warm entry that would be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Warm {
    pub key: EntryKey,
    pub piece: usize,
    /// Of the prompt up to the entry's end.
    pub bytes: u64,
    pub tokens: Tokens,
}

/// A breakpoint of the request, which writes an entry unless the request reads beyond it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
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
    pub fn writes(&self) -> &[Write] {
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

impl Warmth {
    /// What a request would find. The probes come deepest first, each position once; `key` names the entry that
    /// ends at a piece, and is asked only as far as needed.
    pub fn predict(
        &self,
        probes: impl IntoIterator<Item = Probe>,
        key: impl Fn(usize) -> Option<EntryKey>,
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
                prediction.breakpoints.push(Write { key, piece, bytes, ttl });
            }
            if prediction.read.is_some() {
                continue;
            }
            match self.entries.get(&key).filter(|entry| entry.is_live(now)).map(|entry| entry.state) {
                Some(State::Warm { from, tokens, .. }) if from <= now => {
                    prediction.read = Some(Warm { key, piece, bytes, tokens });
                }
                Some(State::Writing { ticket, since }) => {
                    prediction.underway.push(Underway { key, piece, bytes, ticket, since });
                }
                _ => {}
            }
        }
        prediction
    }

    /// A request goes out, as it was predicted.
    pub fn sent(&mut self, ticket: Ticket, prediction: &Prediction, now: Moment) {
        self.failed(ticket);
        while self.flights.len() >= FLIGHTS_MAX {
            let Some(oldest) = self.flights.first_key_value().map(|(ticket, _)| *ticket) else { break };
            self.failed(oldest);
        }
        for write in prediction.writes() {
            let is_live = self.entries.get(&write.key).is_some_and(|entry| entry.is_live(now));
            if !is_live {
                self.make_room(now);
                let state = State::Writing { ticket, since: now };
                self.entries.insert(write.key, Entry { ttl: write.ttl, state });
            }
        }
        self.flights.insert(ticket, Flight::new(prediction, now));
    }

    /// The request's answer has begun: what it writes can be read from now on. `tokens_per_byte` as learned from bills.
    pub fn begun(&mut self, ticket: Ticket, now: Moment, tokens_per_byte: Option<f64>) {
        let Some(mut flight) = self.flights.remove(&ticket) else { return };
        if !std::mem::replace(&mut flight.begun, true) {
            for write in flight.writes() {
                self.warm(write, flight.sent, now, flight.expected_tokens(write, tokens_per_byte));
            }
        }
        self.flights.insert(ticket, flight);
    }

    /// The request will not be answered. What it was writing is the next writer's, or nobody's; what became
    /// readable before it failed stays so.
    pub fn failed(&mut self, ticket: Ticket) {
        let Some(flight) = self.flights.remove(&ticket) else { return };
        for write in flight.writes() {
            self.give_up(&write.key, ticket);
        }
    }

    /// The upstream billed the request, at the latest when its answer ended.
    pub fn billed(&mut self, ticket: Ticket, bill: &Bill, now: Moment) {
        let Some(flight) = self.flights.remove(&ticket) else { return };
        let (cached, read) = (bill.cached(), bill.usage.cache_read);
        let Some(deepest) = flight.breakpoints.first() else { return };
        let confirmed = flight.read.filter(|warm| read >= warm.tokens.bounds().0);
        if let Some(missed) = flight.read.filter(|_| confirmed.is_none()) {
            self.entries.remove(&missed.key);
        }
        if cached == 0 {
            flight.breakpoints.iter().for_each(|write| self.forget(&write.key, ticket));
            return;
        }
        if let Some(warm) = confirmed {
            self.refresh(&warm.key, flight.sent, (read <= warm.tokens.bounds().1).then_some(read));
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
                self.warm(&Write { ttl: Ttl::FiveMinutes, ..*write }, flight.sent, now, tokens);
            } else if is_deepest || bill.minimum_tokens.is_none_or(|least| tokens.count >= least) {
                self.warm(write, flight.sent, now, tokens);
            } else {
                self.forget(&write.key, ticket);
            }
        }
    }

    /// The deepest entry that others were writing when this was predicted, if it is there now.
    pub fn missed(&self, prediction: &Prediction) -> Option<Missed> {
        prediction.underway.iter().find_map(|underway| match self.entries.get(&underway.key)?.state {
            State::Warm { tokens, .. } => {
                let (piece, tokens_min) = (underway.piece, tokens.bounds().0);
                Some(Missed { piece, tokens: tokens.count, tokens_min })
            }
            State::Writing { .. } => None,
        })
    }

    /// How many entries are kept, warm or not.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// An entry is there. Of two that write it the longer promise stands, and a billed count before an estimate.
    fn warm(&mut self, write: &Write, sent: Moment, now: Moment, tokens: Tokens) {
        let fresh = Entry {
            ttl: write.ttl,
            state: State::Warm { from: now, until: sent.after(write.ttl.ms()), tokens },
        };
        let merged = match self.entries.get(&write.key).filter(|known| known.is_live(now)) {
            Some(Entry { ttl, state: State::Warm { from, until, tokens: known } }) => Entry {
                ttl: if *ttl == Ttl::OneHour { *ttl } else { write.ttl },
                state: State::Warm {
                    from: (*from).min(now),
                    until: (*until).max(sent.after(write.ttl.ms())),
                    tokens: if known.source == Source::Billed && tokens.source != Source::Billed {
                        *known
                    } else {
                        tokens
                    },
                },
            },
            _ => fresh,
        };
        if merged.is_live(now) {
            self.make_room(now);
            self.entries.insert(write.key, merged);
        } else {
            self.entries.remove(&write.key);
        }
    }

    /// A read renews an entry for its own lifetime, counted from the start of the request that read it.
    fn refresh(&mut self, key: &EntryKey, sent: Moment, billed: Option<u64>) {
        let Some(Entry { ttl, state: State::Warm { until, tokens, .. } }) = self.entries.get_mut(key) else {
            return;
        };
        // An entry that ended before the request started was not read.
        if *until > sent {
            *until = (*until).max(sent.after(ttl.ms()));
            *tokens = billed.map_or(*tokens, Tokens::billed);
        }
    }

    /// The upstream has no such entry. If another request is writing it, that one will tell.
    fn forget(&mut self, key: &EntryKey, ticket: Ticket) {
        match self.entries.get(key).map(|entry| entry.state) {
            Some(State::Warm { .. }) => drop(self.entries.remove(key)),
            _ => self.give_up(key, ticket),
        }
    }

    /// Hands what this request was writing to another that writes it too.
    fn give_up(&mut self, key: &EntryKey, ticket: Ticket) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        if !matches!(entry.state, State::Writing { ticket: writer, .. } if writer == ticket) {
            return;
        }
        let next = self.flights.iter().find_map(|(other, flight)| {
            let write = flight.writes().iter().find(|write| write.key == *key && *other != ticket)?;
            Some((*other, flight.sent, write.ttl))
        });
        match next {
            Some((ticket, since, ttl)) => *entry = Entry { ttl, state: State::Writing { ticket, since } },
            None => drop(self.entries.remove(key)),
        }
    }

    /// Drops what has ended, and if that is not enough the eighth that ends first: one scan per eighth.
    fn make_room(&mut self, now: Moment) {
        if self.entries.len() < ENTRIES_MAX {
            return;
        }
        self.entries.retain(|_, entry| entry.is_live(now));
        if self.entries.len() < ENTRIES_MAX {
            return;
        }
        let mut ends: Vec<_> = self.entries.iter().map(|(key, entry)| (entry.until(), *key)).collect();
        ends.sort_unstable();
        for (_, key) in ends.iter().take(ENTRIES_MAX / 8) {
            self.entries.remove(key);
        }
    }
}

impl Entry {
    fn until(&self) -> Moment {
        match self.state {
            State::Writing { since, .. } => since.after(self.ttl.ms()),
            State::Warm { until, .. } => until,
        }
    }

    fn is_live(&self, now: Moment) -> bool {
        now < self.until()
    }
}

#[cfg(test)]
mod tests;
