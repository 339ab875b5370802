//! One request between being sent and being billed.

use super::{EntryTokens, EntryWrite, Prediction, WarmEntry};
use crate::engine::answer::usage::Usage;
use crate::engine::cache::entry::EntryKey;
use crate::engine::words::Moment;

/// Until usage says better: prose has about four bytes to a token.
const TOKENS_PER_BYTE: f64 = 0.25;

/// The upstream's bill for one request.
#[derive(Clone, Copy, Debug)]
pub struct LedgerBill {
    pub usage: Usage,
    /// The shortest prefix that the model caches, where known.
    pub minimum_tokens: Option<u64>,
    /// The prompt holds an image or a document, whose bytes say nothing about the tokens of the rest.
    pub has_payload: bool,
}

impl LedgerBill {
    /// Tokens of the prompt up to the last breakpoint, if anything was cached.
    pub fn cached(&self) -> u64 {
        self.usage.cached()
    }
}

#[derive(Clone, Debug)]
pub(super) struct InFlight {
    /// The moment when it was first known to write: before it was sent, if it was claimed for then.
    pub since: Moment,
    pub sent: Moment,
    pub begun: bool,
    /// Entries that it is taken to read, though the answers of their writers have not begun.
    pub presumed: Vec<EntryKey>,
    pub read: Option<WarmEntry>,
    /// Deepest first.
    pub breakpoints: Vec<EntryWrite>,
    writes: usize,
}

impl InFlight {
    pub fn new(prediction: &Prediction, sent: Moment) -> InFlight {
        InFlight {
            since: sent,
            sent,
            begun: false,
            presumed: Vec::new(),
            read: prediction.read,
            breakpoints: prediction.breakpoints.clone(),
            writes: prediction.writes().len(),
        }
    }

    pub fn writes(&self) -> &[EntryWrite] {
        &self.breakpoints[..self.writes]
    }

    /// Returns the expected tokens of an entry before this request is billed: those read, and the bytes after them.
    pub fn expected_tokens(&self, write: &EntryWrite, tokens_per_byte: Option<f64>) -> EntryTokens {
        let (bytes, tokens) = self.read.map_or((0, 0), |read| (read.bytes, read.tokens.count));
        let more = write.bytes.saturating_sub(bytes) as f64;
        let count = tokens as f64 + more * tokens_per_byte.unwrap_or(TOKENS_PER_BYTE);
        if tokens_per_byte.is_some() { EntryTokens::estimated(count) } else { EntryTokens::guessed(count) }
    }

    /// Returns the tokens of an entry by the bill: exact for the deepest breakpoint, by bytes between what is known for
    /// the others.
    pub fn billed_tokens(&self, write: &EntryWrite, bill: &LedgerBill) -> EntryTokens {
        let Some(deepest) = self.breakpoints.first().filter(|deepest| deepest.key != write.key) else {
            return EntryTokens::billed(bill.cached());
        };
        let read = bill.usage.cache_read;
        let is_read = |warm: &WarmEntry| {
            let (least, most) = warm.tokens.bounds();
            (least..=most).contains(&read)
        };
        let middle = self.read.filter(is_read).map_or((0, 0), |warm| (warm.bytes, read));
        let (from, to) =
            if write.bytes <= middle.0 { ((0, 0), middle) } else { (middle, (deepest.bytes, bill.cached())) };
        let share = write.bytes.saturating_sub(from.0) as f64 / to.0.saturating_sub(from.0).max(1) as f64;
        let count = from.1 as f64 + share * to.1.saturating_sub(from.1) as f64;
        if bill.has_payload { EntryTokens::guessed(count) } else { EntryTokens::estimated(count) }
    }
}
