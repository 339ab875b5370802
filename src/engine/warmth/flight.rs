//! One request between being sent and being billed.

use super::{Prediction, Tokens, Warm, Write};
use crate::engine::usage::Usage;
use crate::engine::words::Moment;

/// Until usage says better: prose has about four bytes to a token.
const TOKENS_PER_BYTE: f64 = 0.25;

/// What the upstream billed for one request.
#[derive(Clone, Copy, Debug)]
pub struct Bill {
    pub usage: Usage,
    /// The shortest prefix that the model caches, where known.
    pub minimum_tokens: Option<u64>,
}

impl Bill {
    /// Tokens of the prompt up to the last breakpoint, if anything was cached.
    pub fn cached(&self) -> u64 {
        self.usage.cached()
    }
}

#[derive(Debug)]
pub(super) struct Flight {
    pub sent: Moment,
    pub begun: bool,
    pub read: Option<Warm>,
    /// Deepest first.
    pub breakpoints: Vec<Write>,
    writes: usize,
}

impl Flight {
    pub fn new(prediction: &Prediction, sent: Moment) -> Flight {
        Flight {
            sent,
            begun: false,
            read: prediction.read,
            breakpoints: prediction.breakpoints.clone(),
            writes: prediction.writes().len(),
        }
    }

    pub fn writes(&self) -> &[Write] {
        &self.breakpoints[..self.writes]
    }

    /// What an entry should count before this request is billed: what is read, and the bytes after it.
    pub fn expected_tokens(&self, write: &Write, tokens_per_byte: Option<f64>) -> Tokens {
        let (bytes, tokens) = self.read.map_or((0, 0), |read| (read.bytes, read.tokens.count));
        let more = write.bytes.saturating_sub(bytes) as f64;
        let count = tokens as f64 + more * tokens_per_byte.unwrap_or(TOKENS_PER_BYTE);
        if tokens_per_byte.is_some() { Tokens::estimated(count) } else { Tokens::guessed(count) }
    }

    /// What an entry counts by the bill: exact for the deepest breakpoint, by bytes between what is known for the
    /// others.
    pub fn billed_tokens(&self, write: &Write, bill: &Bill) -> Tokens {
        let Some(deepest) = self.breakpoints.first().filter(|deepest| deepest.key != write.key) else {
            return Tokens::billed(bill.cached());
        };
        let read = bill.usage.cache_read;
        let is_read = |warm: &Warm| {
            let (least, most) = warm.tokens.bounds();
            (least..=most).contains(&read)
        };
        let middle = self.read.filter(is_read).map_or((0, 0), |warm| (warm.bytes, read));
        let (from, to) = match write.bytes <= middle.0 {
            true => ((0, 0), middle),
            false => (middle, (deepest.bytes, bill.cached())),
        };
        let share = write.bytes.saturating_sub(from.0) as f64 / to.0.saturating_sub(from.0).max(1) as f64;
        Tokens::estimated(from.1 as f64 + share * to.1.saturating_sub(from.1) as f64)
    }
}
