//! Drift and cache breaks: what a request lost of its conversation's cache, and the one reason.
//!
//! *Drift* is about what was said: a request extends the last of its conversation, or departs from it somewhere. A
//! *break* is about money: the upstream billed fewer cached tokens than the chain predicts. Drift often causes a
//! break, but not always (it may be behind the last breakpoint), and breaks have other causes too.
//!
//! The expected number is the larger of two: what the ledger knows to be warm for this very request, and what the
//! predecessor left behind at its last breakpoint. If the ledger's entry was not read, nothing that we know explains
//! it. If the predecessor's was not, the causes are tried in the order in which they would stop the upstream. And where
//! all that was read, an entry may still have been missed that somebody else was writing at that moment.

mod cause;

use super::breakpoints::Breakpoint;
use super::divergence::{Divergence, divergence};
use super::entry::{Parameters, Probes, prefix_bytes};
use super::prices::{Price, Usd};
use crate::engine::answer::usage::Usage;
use crate::engine::cache::ledger::{Missed, Prediction};
use crate::engine::request::prefix::Subject;
use crate::engine::words::{BreakCause, Layer, Moment, Parameter};

/// A request against the last one of its conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Drift {
    /// It says all that the last one said, and perhaps more.
    Extended,
    Drifted(Divergence),
}

impl Drift {
    pub fn of(last: &Subject<'_>, now: &Subject<'_>) -> Drift {
        divergence(last, now).map_or(Drift::Extended, Drift::Drifted)
    }

    pub fn as_str(&self) -> &'static str {
        match self {
            Drift::Extended => "extended",
            Drift::Drifted(_) => "drifted",
        }
    }

    /// The divergence, if it is at or before a piece: what is cached up to there is lost.
    fn before(&self, piece: usize) -> Option<&Divergence> {
        match self {
            Drift::Drifted(divergence) if divergence.layer == Layer::Model || divergence.piece <= piece => {
                Some(divergence)
            }
            _ => None,
        }
    }
}

/// A request as it was sent.
#[derive(Clone, Copy, Debug)]
pub struct Sent<'a> {
    pub subject: Subject<'a>,
    pub parameters: &'a Parameters,
    /// Those that were forwarded, in the order of the cache.
    pub breakpoints: &'a [Breakpoint],
    pub at: Moment,
}

/// An earlier request of the conversation, and how it went.
#[derive(Clone, Copy, Debug)]
pub struct Answered<'a> {
    pub sent: Sent<'a>,
    /// The moment when its answer began, if it did.
    pub begun: Option<Moment>,
    pub usage: Usage,
}

/// Everything that a verdict needs.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    pub last: Option<(&'a Answered<'a>, &'a Drift)>,
    pub now: &'a Sent<'a>,
    pub usage: &'a Usage,
    /// The ledger's prediction when the request was sent.
    pub prediction: &'a Prediction,
    /// The entry that others were writing then, as it turned out.
    pub missed: Option<Missed>,
    /// The shortest prefix that the model caches, where known.
    pub minimum_tokens: Option<u64>,
}

/// Fewer cached tokens than predicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Break {
    /// The first layer that was lost.
    pub layer: Layer,
    pub cause: BreakCause,
    /// The piece, member or header that changed; if nothing did, the piece where the lost entry ends.
    pub path: String,
    /// The first byte that differs in this request's body, or where the lost entry's last piece starts.
    pub offset: Option<usize>,
    pub tokens_lost: u64,
}

impl Break {
    /// The cost beyond that of a request which had read what this one lost; none if a price is not known.
    pub fn cost(&self, usage: &Usage, price: &Price) -> Option<Usd> {
        let without = price.cost(&usage.had_read(self.tokens_lost)).prompt()?;
        Some(price.cost(usage).prompt()?.above(without))
    }
}

/// The place and the cause, without the tokens.
struct BreakReason {
    layer: Layer,
    cause: BreakCause,
    path: String,
    offset: Option<usize>,
}

impl Case<'_> {
    /// The break, if there is one.
    pub fn judge(&self) -> Option<Break> {
        self.lost().or_else(|| self.too_early())
    }

    /// Something was there and was not read.
    fn lost(&self) -> Option<Break> {
        let left_behind = self.last.map_or(0, |(last, _)| last.usage.cached());
        let expected = left_behind.max(self.prediction.tokens_min());
        if expected == 0 {
            return self.never_cached();
        }
        let tokens_lost = expected.checked_sub(self.usage.cache_read).filter(|lost| *lost > 0)?;
        let reason = match self.last {
            Some((last, drift)) if left_behind > self.prediction.tokens_min() => self.explain(last, drift),
            _ => self
                .at_entry(self.prediction.read.map_or(0, |read| read.piece), self.small_or_unknown(expected)),
        };
        Some(reason.costing(tokens_lost))
    }

    /// Something was about to be there.
    fn too_early(&self) -> Option<Break> {
        let missed = self.missed.filter(|missed| self.usage.cache_read < missed.tokens_min)?;
        let tokens_lost = missed.tokens.saturating_sub(self.usage.cache_read);
        Some(self.at_entry(missed.piece, BreakCause::NotYetVisible).costing(tokens_lost))
    }

    /// Returns why the entry at the predecessor's last breakpoint was not read.
    fn explain(&self, last: &Answered<'_>, drift: &Drift) -> BreakReason {
        // An upstream that caches by itself may keep everything.
        let marked = last.sent.breakpoints.last();
        let whole = last.sent.subject.anatomy.pieces.len().saturating_sub(1);
        let entry = marked.map_or(whole, |point| point.piece);
        if let Some(divergence) = drift.before(entry) {
            return BreakReason::drifted(divergence);
        }
        let layer = last.sent.subject.anatomy.layer(entry);
        if let Some(parameter) = last.sent.parameters.differs(self.now.parameters, layer) {
            return self.changed(parameter);
        }
        let entry = last.sent.subject.chain.place_in(entry, self.now.subject.chain).unwrap_or(entry);
        let ends = marked.map(|point| last.sent.at.after(point.ttl.ms()));
        let cause = if ends.is_some_and(|end| end <= self.now.at) {
            BreakCause::TtlExpired
        } else if marked.is_some() && !self.reaches(entry) {
            BreakCause::Lookback
        } else if last.begun.is_none_or(|begun| begun > self.now.at) {
            BreakCause::NotYetVisible
        } else {
            self.small_or_unknown(last.usage.cached())
        };
        self.at_entry(entry, cause)
    }

    /// A conversation that marks its prompt and is never cached, turn after turn: it is too short.
    fn never_cached(&self) -> Option<Break> {
        let (last, drift) = self.last?;
        let point = last.sent.breakpoints.last()?;
        let subject = &last.sent.subject;
        let is_same = drift.before(point.piece).is_none()
            && last
                .sent
                .parameters
                .differs(self.now.parameters, subject.anatomy.layer(point.piece))
                .is_none();
        let is_alive = self.now.at < last.sent.at.after(point.ttl.ms());
        let tokens = share_of(subject, point.piece, last.usage.uncached);
        let is_small = self.minimum_tokens.is_some_and(|minimum| tokens < minimum);
        if !(is_same && is_alive && is_small && self.usage.cache_read == 0) {
            return None;
        }
        Some(self.at_entry(point.piece, BreakCause::BelowMinimum).costing(tokens))
    }

    fn small_or_unknown(&self, expected: u64) -> BreakCause {
        match self.minimum_tokens {
            Some(minimum) if expected < minimum => BreakCause::BelowMinimum,
            _ => BreakCause::Unknown,
        }
    }

    /// Returns true if a breakpoint of this request looks at the entry that ends with this piece.
    fn reaches(&self, entry: usize) -> bool {
        let probes = Probes::of(self.now.subject.anatomy, self.now.subject.chain, self.now.breakpoints);
        probes.take_while(|probe| probe.piece >= entry).any(|probe| probe.piece == entry)
    }

    fn at_entry(&self, piece: usize, cause: BreakCause) -> BreakReason {
        let anatomy = self.now.subject.anatomy;
        let offset = anatomy.pieces.get(piece).map(|piece| piece.span.start);
        let path = offset.map_or_else(String::new, |_| anatomy.path(piece));
        BreakReason { layer: anatomy.layer(piece), cause, path, offset }
    }

    fn changed(&self, parameter: Parameter) -> BreakReason {
        let Subject { body, anatomy, .. } = self.now.subject;
        let cause = BreakCause::of_parameter(parameter);
        match self.now.parameters.first_image() {
            Some(piece) if parameter == Parameter::Image => self.at_entry(piece, cause),
            _ => BreakReason {
                layer: parameter.layer(),
                cause,
                path: parameter.as_str().to_owned(),
                offset: anatomy.member(body, parameter.as_str()).map(|value| value.start),
            },
        }
    }
}

impl BreakReason {
    fn drifted(divergence: &Divergence) -> BreakReason {
        BreakReason {
            layer: divergence.layer,
            cause: BreakCause::of_divergence(divergence),
            path: divergence.path.clone(),
            offset: divergence.at.map(|[_, now]| now),
        }
    }

    fn costing(self, tokens_lost: u64) -> Break {
        let BreakReason { layer, cause, path, offset } = self;
        Break { layer, cause, path, offset, tokens_lost }
    }
}

/// The part of a prompt's tokens up to a piece, by bytes.
fn share_of(subject: &Subject<'_>, piece: usize, tokens: u64) -> u64 {
    let bytes = |piece| prefix_bytes(subject.anatomy, piece) as f64;
    let whole = bytes(subject.anatomy.pieces.len());
    (tokens as f64 * bytes(piece) / whole.max(1.0)) as u64
}

#[cfg(test)]
mod tests;
