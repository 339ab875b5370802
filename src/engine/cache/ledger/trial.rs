//! Learns from bills if other betas cost the entries of a conversation, since this is not documented for each beta.
//!
//! A request whose betas are not those of the request before it (or, forked, not its parent's) is a trial. The ledger
//! knows what it reads if betas are a part of the key, and what if they are not; the bill tells which.
//!
//! ```text
//! betas a      [ tools | system | messages ]  writes an entry of 46,000 tokens
//! betas a, b   [ tools | system | messages | more ]   reads 12,000: b is in the key     reads 46,000: it is not
//! ```
//!
//! The rule: a difference counts until a bill has shown that it does not, and again once one shows the contrary.

use std::collections::VecDeque;

use super::Prediction;
use crate::engine::cache::entry::BetaChange;

/// Differences that are remembered not to count: a tenant has a few clients, and each a few sets of betas.
const HARMLESS_MAX: usize = 64;

/// A request whose bill will tell about a difference in betas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BetaTrial {
    pub change: BetaChange,
    /// A request that reads less has not read the entry of the other betas.
    least: u64,
    /// A request that reads no more has read what is there in any case.
    most: u64,
}

impl BetaTrial {
    /// `own` is what the request finds under its own betas, `other` under those that it is compared with; its tools
    /// and system have this many bytes. None if a bill cannot distinguish the two.
    pub fn of(
        change: BetaChange,
        own: &Prediction,
        other: &Prediction,
        static_bytes: u64,
    ) -> Option<BetaTrial> {
        // What another is writing under the same betas may be there by the time that this one reads.
        let read = other.read.filter(|read| own.underway.is_empty() && read.bytes > static_bytes)?;
        let statics = read.tokens.count as f64 * static_bytes as f64 / read.bytes as f64;
        // Tools are JSON and messages are prose: by bytes alone their tokens are known within a third.
        let statics = (statics * (1.0 + super::tokens::ESTIMATE_SLACK)) as u64;
        let (least, most) = (other.tokens_min(), statics.max(own.tokens_max()));
        (least > most).then_some(BetaTrial { change, least, most })
    }

    /// Returns true if the difference is harmless, given the tokens that were read; none if they do not tell.
    pub fn shows(&self, read: u64) -> Option<bool> {
        match read {
            read if read >= self.least => Some(true),
            read if read <= self.most => Some(false),
            _ => None,
        }
    }
}

/// Differences that were shown not to count, by model; the newest.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Harmless(VecDeque<(String, BetaChange)>);

impl Harmless {
    pub fn knows(&self, model: &str, change: BetaChange) -> bool {
        self.0.iter().any(|(of, known)| of == model && *known == change)
    }

    /// Takes over what another process has learned.
    pub fn restore(&mut self, saved: Harmless) {
        for (model, change) in saved.0 {
            if self.0.len() < HARMLESS_MAX && !self.knows(&model, change) {
                self.0.push_front((model, change));
            }
        }
    }

    /// A bill has shown whether a difference is harmless.
    pub fn learn(&mut self, model: &str, change: BetaChange, harmless: bool) {
        self.0.retain(|(of, known)| of != model || *known != change);
        if harmless {
            self.0.push_back((model.to_owned(), change));
        }
        if self.0.len() > HARMLESS_MAX {
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{EntryTokens, Underway, WarmEntry};
    use super::*;
    use crate::engine::cache::entry::{EntryKey, Parameters};
    use crate::engine::request::anatomy::Anatomy;
    use crate::engine::request::prefix::{Attribution, Chain};
    use crate::engine::words::{Layer, Moment, TenantId, Ticket};

    const BODY: &[u8] = br#"{"model":"m","messages":[{"role":"user","content":"hi"}]}"#;

    fn parameters(betas: &str) -> Parameters {
        Parameters::read(TenantId([0; 32]), BODY, &Anatomy::read(BODY).unwrap(), [betas].into_iter())
    }

    fn change(beta: &str) -> BetaChange {
        parameters("").beta_change(&parameters(beta)).unwrap()
    }

    fn key() -> EntryKey {
        let chain = Chain::of(BODY, &Anatomy::read(BODY).unwrap(), Attribution::Counted);
        EntryKey::of(parameters("").scope(), &chain, 0, Layer::Messages).unwrap()
    }

    /// Who finds so many bytes, with a token to each.
    fn finds(bytes: u64, tokens: EntryTokens) -> Prediction {
        let read = (bytes > 0).then(|| WarmEntry { key: key(), piece: 0, bytes, tokens });
        Prediction { read, ..Prediction::default() }
    }

    fn billed(tokens: u64) -> Prediction {
        finds(tokens, EntryTokens::billed(tokens))
    }

    #[test]
    fn a_bill_tells_whether_other_betas_cost_the_messages() {
        let trial = BetaTrial::of(change("b"), &billed(12_000), &billed(46_000), 12_000).unwrap();
        let shown = [0, 12_000, 16_000, 16_001, 45_999, 46_000, 50_000].map(|read| trial.shows(read));
        let (no, yes) = (Some(false), Some(true));
        assert_eq!(shown, [no, no, no, None, None, yes, yes]);
    }

    #[test]
    fn what_no_bill_can_tell_is_not_tried() {
        let tried = |own: &Prediction, other: &Prediction| BetaTrial::of(change("b"), own, other, 12_000);
        assert!(tried(&billed(0), &billed(46_000)).is_some());
        assert_eq!(tried(&billed(0), &billed(0)), None, "nothing is there");
        assert_eq!(tried(&billed(0), &billed(12_000)), None, "tools and system are there in any case");
        assert_eq!(tried(&billed(0), &billed(15_000)), None, "nor is little more than that");
        assert_eq!(tried(&billed(46_000), &billed(46_000)), None, "it has an entry of its own");
        let guess = finds(46_000, EntryTokens::guessed(46_000.0));
        assert_eq!(tried(&billed(0), &guess), None);
        let underway = Underway { key: key(), piece: 1, bytes: 46_500, ticket: Ticket(1), since: Moment(0) };
        let sibling = Prediction { underway: vec![underway], ..billed(12_000) };
        assert_eq!(tried(&sibling, &billed(46_000)), None, "a sibling's may be there by then");
    }

    #[test]
    fn what_was_shown_holds_for_its_model_until_the_contrary_is_shown() {
        let mut known = Harmless::default();
        known.learn("m", change("a"), false);
        assert!(!known.knows("m", change("a")));
        known.learn("m", change("a"), true);
        known.learn("m", change("a"), true);
        assert!(known.knows("m", change("a")) && !known.knows("n", change("a")) && known.0.len() == 1);
        known.learn("n", change("a"), false);
        assert!(known.knows("m", change("a")));
        known.learn("m", change("a"), false);
        assert!(!known.knows("m", change("a")));
        for number in 0..10 * HARMLESS_MAX {
            known.learn("m", change(&number.to_string()), true);
        }
        assert_eq!(known.0.len(), HARMLESS_MAX);
    }
}
