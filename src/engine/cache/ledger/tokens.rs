//! Tokens of the prompt up to an entry, and how sure they are.

/// The factor by which an estimate by billed bytes may be off: code, prose and JSON have different bytes to a token.
pub(super) const ESTIMATE_SLACK: f64 = 1.0 / 3.0;
/// The factor by which a guess may be off before anything was billed: an image has hundreds of bytes to a token.
const GUESS_SLACK: f64 = 0.9;

/// Tokens of the prompt up to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryTokens {
    pub count: u64,
    pub source: TokenSource,
}

/// The source of a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenSource {
    /// The upstream billed just this prefix.
    Billed,
    /// Scaled by bytes from what the upstream billed.
    Estimated,
    /// Nothing was billed yet.
    Guessed,
}

impl EntryTokens {
    pub(super) fn billed(count: u64) -> EntryTokens {
        EntryTokens { count, source: TokenSource::Billed }
    }

    pub(super) fn estimated(count: f64) -> EntryTokens {
        EntryTokens { count: count as u64, source: TokenSource::Estimated }
    }

    pub(super) fn guessed(count: f64) -> EntryTokens {
        EntryTokens { count: count as u64, source: TokenSource::Guessed }
    }

    /// The fewest and the most that a read of this entry can be billed as.
    pub(super) fn bounds(self) -> (u64, u64) {
        let slack = match self.source {
            TokenSource::Billed => 0.0,
            TokenSource::Estimated => ESTIMATE_SLACK,
            TokenSource::Guessed => GUESS_SLACK,
        };
        let slack = (self.count as f64 * slack) as u64;
        (self.count.saturating_sub(slack).max(1), self.count.saturating_add(slack))
    }
}
