//! The cost of a fan-out forked, as sent, and aligned: predicted once, at its first child, and decided for all of them.
//!
//! All three are played turn by turn over a child's expected life, for the sibling that writes first and for one that
//! reads: tokens read, written and uncached, then priced. Each is played from the cache of its own world.
//!
//! ```text
//!            first turn                                        each later turn
//! forked     read the parent's entry; the first sibling        read all of it, write what is new
//!            writes up to the directive, the others read that
//! as sent    siblings that come at once all write; one that    as its own markers have it
//!            comes later reads what is marked and shared
//! aligned    the first sibling writes tools and system, the    read all of it, write what is new
//!            others read them; everybody writes the rest
//! ```
//!
//! A child is forked if that costs, with all that was billed to the children of its kind so far,
//!
//! 1. at most `fork.max_cost_ratio` times what they cost as sent,
//! 2. at most 1 + `fork.context_premium` times what they cost aligned,
//! 3. and both over this fan-out and one more like it: a fork leaves no entry that the next child in its own words could
//!    read. Aligned, from the cache as it is.
//! 4. While it is not known how long children of its kind live, all that holds for a life of one turn and of eight times
//!    as many as expected. Each turn adds the same to every side, so that it holds for all lives between these, too.

use serde::{Deserialize, Deserializer, Serialize};

use super::life::{Costs, Life, TURNS_MAX};
use super::policy::ForkPolicy;
use super::sizes::PromptSizes;
use crate::engine::answer::usage::Usage;
use crate::engine::cache::prices::{ModelFacts, Multiplier, Multipliers, Price};
use crate::engine::words::{CostUnit, Refusal, Ttl};

/// The factor by which the children of an unknown tool may outlive what is expected, without costing more than they
/// may.
const UNKNOWN_LIVES: usize = 8;

/// The habits of children of one kind, as far as they were learned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChildHabits {
    /// Turns of a child; `fork.horizon_turns` until known. Those that only read again are not among them.
    pub turns: Option<f64>,
    /// Tokens that a turn adds to the prompt.
    pub growth: u64,
    /// Tokens that a turn answers.
    pub output: u64,
    /// Tokens that a child which is not forked reads again of what its parent had read, and the turns that it takes for
    /// that. They count against the aligned child alone: forked, it has read them.
    pub reread_tokens: f64,
    pub reread_turns: f64,
    /// The share of turns that come later than five minutes after the one before, and later than an hour.
    pub pauses: [f64; 2],
    /// The share of turns that come in time, and yet can read nothing of the messages: an image came.
    pub losses: f64,
    /// The share of siblings that come before the first of them is answered; all of them until known, as most clients
    /// start them at once.
    pub together: Option<f64>,
    /// The share of siblings with the first one's system prompt. Until known, all of them in their own words and none
    /// forked: both make forking dearer.
    pub alike: Option<f64>,
    /// Fan-outs after the first whose first child would have found its tools and system prompt warm, aligned, and all of
    /// them; none before a fan-out has come.
    pub starts: Option<[f64; 2]>,
}

impl Default for ChildHabits {
    fn default() -> ChildHabits {
        ChildHabits {
            turns: None,
            growth: 0,
            output: 0,
            reread_tokens: 0.0,
            reread_turns: 0.0,
            pauses: [0.0; 2],
            losses: 0.0,
            together: None,
            alike: None,
            starts: None,
        }
    }
}

/// The prices of tokens, and the state of the cache right now.
#[derive(Clone, Copy, Debug)]
pub struct PricedCache<'a> {
    pub price: Option<&'a Price>,
    pub multipliers: Multipliers,
    pub facts: ModelFacts,
    /// As [`siblings`](super::siblings) says, this one included.
    pub siblings: u64,
    /// True if the parent's entry is there to be read.
    pub warm: bool,
    /// True if betas or parameters differ from the parent's, so that its messages are not read.
    pub cold_messages: bool,
    /// Tokens of the child in its own words that are warm.
    pub own: OwnWarmth,
    /// Writes of fewer tokens are not waited for: siblings that come at once all write them.
    pub gate_tokens: u64,
    /// The tier of the parent's entry, which a forked child that finds it cold writes again.
    pub entry_ttl: Ttl,
    /// The tier of all other writes of a forked child.
    pub ttl: Ttl,
}

/// Tokens of a child in its own words that can be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnWarmth {
    /// As it came, in the world where every request goes out so.
    pub sent: u64,
    /// Aligned, in the world where every request is.
    pub aligned: u64,
    /// Aligned, in the cache as it is.
    pub now: u64,
}

impl OwnWarmth {
    /// Returns true if aligned most of the tools and system prompt is found.
    pub(super) fn is_warm(&self, sizes: &PromptSizes) -> bool {
        self.aligned > 0 && self.aligned >= sizes.sent_fixed / 2
    }
}

/// The bill of the children of one kind so far, and what they would have cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bills {
    pub billed: f64,
    pub sent: f64,
    pub aligned: f64,
}

/// The predicted cost of the children of a fan-out, and the decision.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    pub unit: CostUnit,
    pub turns: u32,
    /// Of one child over its life, the mean of all siblings.
    pub forked: f64,
    pub as_sent: f64,
    /// Aligned and gated.
    pub aligned: f64,
    /// The cost of reading again, aligned.
    pub reread: f64,
    pub limits: Limits,
    /// `Ok` if forking pays.
    pub verdict: Result<(), Refusal>,
    /// For how long it holds: the lifetime of the parent's entry.
    pub ttl: Ttl,
    /// True if aligned the first child would have found most of its tools and system prompt.
    pub starts_warm: bool,
}

/// The cost of a fork in parts of what it may cost: above one, it is not made.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// With what was billed so far, of what `fork.max_cost_ratio` allows beside as sent.
    #[serde(deserialize_with = "any_part")]
    pub sent: f64,
    /// With what was billed so far, of what `fork.context_premium` allows beside aligned.
    #[serde(deserialize_with = "any_part")]
    pub aligned: f64,
    /// The higher of these over this fan-out and one more like it, without what was billed so far; aligned, from the
    /// cache as it is.
    #[serde(deserialize_with = "any_part")]
    pub twice: f64,
    /// The highest of these for a life of one turn and of eight times as many as expected; none once it is known how long
    /// such children live.
    pub unknown: Option<f64>,
}

/// Reads a part of what a fork may cost. One that is beyond all bounds is written as none.
fn any_part<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::INFINITY))
}

impl Limits {
    fn highest(&self) -> f64 {
        self.sent.max(self.aligned).max(self.twice)
    }

    fn verdict(&self) -> Result<(), Refusal> {
        if self.highest() > 1.0 {
            Err(Refusal::Cost)
        } else if self.unknown.is_some_and(|unknown| unknown > 1.0) {
            Err(Refusal::Unlearned)
        } else {
            Ok(())
        }
    }
}

impl Forecast {
    /// `so_far`: what was billed in either unit. None if a rate that is needed is not known.
    pub fn of(
        sizes: &PromptSizes,
        habits: &ChildHabits,
        cache: &PricedCache<'_>,
        so_far: impl Fn(CostUnit) -> Bills,
        policy: &ForkPolicy,
    ) -> Option<Forecast> {
        let known = habits.turns.filter(|turns| turns.is_finite());
        let turns = known.unwrap_or(policy.horizon_turns as f64).clamp(1.0, TURNS_MAX as f64);
        let life = |turns: u32, unit: CostUnit| Life { turns, sizes, habits, cache, unit }.costs();
        let expect = |unit: CostUnit| {
            let (whole, part) = (turns as u32, turns.fract());
            let least = life(whole, unit)?;
            if part > 0.0 { Some(least.towards(&life(whole + 1, unit)?, part)) } else { Some(least) }
        };
        let (unit, expected) = match expect(CostUnit::Dollars) {
            Some(expected) => (CostUnit::Dollars, expected),
            None => (CostUnit::Tokens, expect(CostUnit::Tokens)?),
        };
        let (so_far, siblings) = (so_far(unit), cache.siblings.max(1) as f64);
        let mut limits = expected.limits(&so_far, siblings, policy);
        if known.is_none() {
            let longest = policy.horizon_turns.saturating_mul(UNKNOWN_LIVES).clamp(1, TURNS_MAX) as u32;
            let mut worst = 0.0_f64;
            for turns in [1, longest] {
                worst = worst.max(life(turns, unit)?.limits(&so_far, siblings, policy).highest());
            }
            limits.unknown = Some(worst);
        }
        let Costs { forked, as_sent, aligned, reread, .. } = expected;
        Some(Forecast {
            unit,
            turns: turns.round() as u32,
            forked,
            as_sent,
            aligned,
            reread,
            limits,
            verdict: limits.verdict(),
            ttl: cache.entry_ttl,
            starts_warm: cache.own.is_warm(sizes),
        })
    }
}

/// A prompt in uncached tokens; none if a rate that is needed is not known. Output is left out.
pub fn weighed(usage: &Usage, rates: Multipliers) -> Option<f64> {
    let times = |multiplier: Option<Multiplier>, tokens: u64| match tokens {
        0 => Some(0.0),
        _ => multiplier.map(|factor| factor.as_f64() * tokens as f64),
    };
    let read = times(rates.read, usage.cache_read)?;
    let short = times(rates.write_5m, usage.cache_write_5m)?;
    let long = times(rates.write_1h, usage.cache_write_1h)?;
    Some(usage.uncached as f64 + read + short + long)
}

impl Costs {
    fn limits(&self, so_far: &Bills, siblings: f64, policy: &ForkPolicy) -> Limits {
        let premium = 1.0 + policy.context_premium;
        let forked = so_far.billed + siblings * self.forked;
        let sent = so_far.sent + siblings * self.as_sent;
        let aligned = so_far.aligned + siblings * (self.aligned + self.reread);
        let twice = self.forked + self.forked_next;
        let sent_twice = self.as_sent + self.as_sent_next;
        let aligned_twice = self.aligned_now + self.aligned_next + 2.0 * self.reread;
        Limits {
            sent: part(forked, policy.max_cost_ratio * sent),
            aligned: part(forked, premium * aligned),
            twice: part(twice, premium * aligned_twice).max(part(twice, policy.max_cost_ratio * sent_twice)),
            unknown: None,
        }
    }
}

fn part(cost: f64, most: f64) -> f64 {
    if cost <= 0.0 {
        0.0
    } else if most > 0.0 {
        cost / most
    } else {
        f64::INFINITY
    }
}
