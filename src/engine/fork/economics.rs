//! The cost of a child forked, as sent, and aligned: predicted before it is decided.
//!
//! All three are simulated turn by turn over the child's expected life, for the sibling that writes first and for
//! one that reads: tokens read, written and uncached, then priced. Tokens come from what the upstream billed for
//! the parent, the rest by bytes at the billed ratio; without a bill nothing is known, and nothing is assumed.
//!
//! ```text
//!            first turn                                        each later turn
//! forked     read the parent's entry; the first sibling        read all of it, write what is new
//!            writes up to the directive, the others read that
//! as sent    all siblings at once: everybody writes            as its own markers have it
//! aligned    the first sibling writes tools and system, the    read all of it, write what is new
//!            others read them; everybody writes the rest
//! ```

use super::eligible::check_kind;
use super::layout::Composed;
use super::parent_prefix::ParentPrefix;
use super::policy::ForkPolicy;
use crate::engine::answer::usage::Usage;
use crate::engine::cache::breakpoints::{self};
use crate::engine::cache::entry::prefix_bytes;
use crate::engine::cache::prices::{ModelFacts, Multiplier, Multipliers, Price};
use crate::engine::family::fanout::{Call, ForkPoint};
use crate::engine::request::anatomy::Anatomy;
use crate::engine::request::recall::Remembered;
use crate::engine::words::{CostUnit, Layer, Refusal, Spawning, Ttl};

/// A child lives at least one turn, and nobody plans for more than this.
const TURNS_MAX: usize = 256;

/// Tokens of a child's prompt, forked and as sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptSizes {
    /// The parent's tools and system.
    pub fixed: u64,
    /// Up to where the parent's last entry ends.
    pub entry: u64,
    /// Up to and including the placeholders.
    pub shared: u64,
    /// From there up to the directive.
    pub instructions: u64,
    /// The directive, and what follows it.
    pub rest: u64,
    /// The whole child as sent.
    pub sent: u64,
    /// Of that its tools and system, which siblings share.
    pub sent_fixed: u64,
    /// Of that all up to its own last breakpoint.
    pub sent_marked: u64,
    /// True if that breakpoint moves along with the conversation.
    pub sent_rolling: bool,
}

impl PromptSizes {
    /// `tokens_per_byte` as learned from bills; the parent's own bill is better, and stands in for it, unless the
    /// parent shows images or documents. None if nothing was billed yet.
    pub fn of(
        parent_prefix: &ParentPrefix,
        fork: &ForkPoint,
        composed: &Composed,
        child: &Remembered,
        tokens_per_byte: Option<f64>,
    ) -> Option<PromptSizes> {
        let extent = parent_prefix.extent();
        let billed = fork.usage.map(|usage| usage.uncached.saturating_add(usage.cached()));
        let billed = billed.filter(|tokens| *tokens > 0 && extent.parent > 0);
        let own_ratio = billed.map(|tokens| tokens as f64 / extent.parent as f64);
        let usable = |ratio: &f64| ratio.is_finite() && *ratio > 0.0;
        // The bytes of an image say nothing about those of text.
        let parent = &fork.parent.request;
        let ratio = if parent.anatomy().has_payload() {
            tokens_per_byte.filter(usable).or(own_ratio)
        } else {
            own_ratio.or(tokens_per_byte)
        };
        let ratio = ratio.filter(usable)?;
        let tokens = |bytes: u64| (bytes as f64 * ratio).ceil() as u64;
        let turn = if fork.is_sealed() { fork.usage.map(|usage| usage.output) } else { None };
        let turn = turn.filter(|tokens| *tokens > 0);
        let (body, anatomy) = (child.body(), child.anatomy());
        let until = |pieces: usize| pieces.checked_sub(1).map_or(0, |last| prefix_bytes(anatomy, last));
        let marked = breakpoints::of_client(body, anatomy).pop();
        let parent = billed.unwrap_or_else(|| tokens(extent.parent));
        Some(PromptSizes {
            fixed: tokens(extent.fixed).min(parent),
            entry: tokens(extent.entry).min(parent),
            shared: parent + turn.unwrap_or_else(|| tokens(extent.turn)) + tokens(extent.results),
            instructions: tokens(composed.extent.instructions),
            rest: tokens(composed.extent.rest),
            sent: tokens(until(anatomy.pieces.len())),
            sent_fixed: tokens(until(anatomy.tools + anatomy.system)),
            sent_marked: marked.map_or(0, |point| tokens(until(point.piece + 1))),
            sent_rolling: marked.is_some_and(|point| is_rolling(anatomy, point.piece)),
        })
    }

    /// The whole forked prompt.
    pub fn forked(&self) -> u64 {
        self.shared + self.instructions + self.rest
    }
}

fn is_rolling(anatomy: &Anatomy, piece: usize) -> bool {
    anatomy.layer(piece) == Layer::Messages
}

/// The habits of the children of a tool, as far as they were learned.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ChildHabits {
    /// Turns of a child; `fork.horizon_turns` until known.
    pub turns: Option<f64>,
    /// Tokens that a turn adds to the prompt.
    pub growth: u64,
    /// Tokens that a turn answers.
    pub output: u64,
    /// Tokens that a child which is not forked reads again of what its parent had read, and the turns that bring them.
    /// They belong into the forecast of the aligned child alone: forked, it has read them.
    pub rereads_tokens: f64,
    pub rereads_turns: f64,
}

/// The prices of tokens, and the state of the cache right now.
#[derive(Clone, Copy, Debug)]
pub struct PricedCache<'a> {
    pub price: Option<&'a Price>,
    pub multipliers: Multipliers,
    pub facts: ModelFacts,
    /// As [`siblings`] says, this one included.
    pub siblings: u64,
    /// True if the parent's entry is there to be read.
    pub warm: bool,
    /// True if betas or parameters differ from the parent's, so that its messages are read by nobody.
    pub cold_messages: bool,
    /// Tokens of the child as sent that are warm already.
    pub sent_warm: u64,
    /// The tier of the parent's entry, which a forked child that finds it cold writes again.
    pub entry_ttl: Ttl,
    /// The tier of all other writes.
    pub ttl: Ttl,
}

/// Children that share the first writes of this fork point: one per call with a directive that may be forked.
/// Before the seal each child stands on a turn of its own.
pub fn siblings(fork: &ForkPoint, policy: &ForkPolicy) -> u64 {
    let may_be_forked = |(number, call): &(usize, &Call)| {
        !call.directives.is_empty()
            && call.spawning != Spawning::Unknown
            && check_kind(fork, *number, policy).is_ok()
    };
    let children = fork.calls.iter().enumerate().filter(may_be_forked).count();
    if fork.is_sealed() { children.max(1) as u64 } else { 1 }
}

/// The predicted cost of one child over its life.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forecast {
    pub unit: CostUnit,
    pub turns: u32,
    pub forked: f64,
    pub as_sent: f64,
    /// Aligned and gated.
    pub aligned: f64,
}

impl Forecast {
    /// None if a rate that is needed is not known.
    pub fn of(
        sizes: &PromptSizes,
        habits: &ChildHabits,
        cache: &PricedCache<'_>,
        policy: &ForkPolicy,
    ) -> Option<Forecast> {
        let turns = habits
            .turns
            .filter(|turns| turns.is_finite())
            .map_or(policy.horizon_turns, |turns| turns.round() as usize);
        let turns = turns.clamp(1, TURNS_MAX) as u32;
        let life = Life { turns, habits, cache };
        let (unit, figures) = match life.figures(sizes, CostUnit::Dollars) {
            Some(figures) => (CostUnit::Dollars, figures),
            None => (CostUnit::Tokens, life.figures(sizes, CostUnit::Tokens)?),
        };
        let [forked, as_sent, aligned] = figures;
        Some(Forecast { unit, turns, forked, as_sent, aligned })
    }

    /// The most that the forked child may cost: no more than `fork.max_cost_ratio` allows beside the child as sent, and
    /// no more than `fork.context_premium` allows beside the aligned one.
    pub fn most(&self, policy: &ForkPolicy) -> f64 {
        (policy.max_cost_ratio * self.as_sent).min((1.0 + policy.context_premium) * self.aligned)
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

/// Refuses a child if forking it does not pay.
pub fn decide(forecast: Option<&Forecast>, policy: &ForkPolicy) -> Result<(), Refusal> {
    let forecast = forecast.ok_or(Refusal::CostUnknown)?;
    if forecast.forked <= forecast.most(policy) { Ok(()) } else { Err(Refusal::Cost) }
}

/// Checks that upstream and model take the forked request; what the child leaves out is its parent's.
/// `body_bytes`: what the upstream takes.
pub fn fits(
    composed: &Composed,
    sizes: Option<&PromptSizes>,
    child: &Remembered,
    parent: &Remembered,
    facts: ModelFacts,
    body_bytes: usize,
    policy: &ForkPolicy,
) -> Result<(), Refusal> {
    if composed.body.length > body_bytes {
        return Err(Refusal::TooLarge);
    }
    let (Some(sizes), Some(window)) = (sizes, facts.window_tokens) else { return Ok(()) };
    let prompt = sizes.forked();
    let answer = max_tokens(child).or_else(|| max_tokens(parent)).unwrap_or(0);
    if prompt.saturating_add(answer) > window {
        Err(Refusal::Window)
    } else if prompt as f64 > policy.max_context_share * window as f64 {
        Err(Refusal::ContextShare)
    } else {
        Ok(())
    }
}

fn max_tokens(request: &Remembered) -> Option<u64> {
    let span = request.anatomy().member(request.body(), "max_tokens")?;
    let number = std::str::from_utf8(&request.body()[span.clone()]).ok();
    // What is no number is refused, whatever it says.
    Some(number.and_then(|number| number.parse().ok()).unwrap_or(0))
}

/// A child's life, to be played under each plan.
struct Life<'a> {
    turns: u32,
    habits: &'a ChildHabits,
    cache: &'a PricedCache<'a>,
}

/// The tokens of one prompt, and those of them that are read and written.
#[derive(Clone, Copy)]
struct Prompt {
    tokens: u64,
    /// Up to its last breakpoint.
    marked: u64,
    read: u64,
    /// Up to its last breakpoint of the parent's tier.
    entry: u64,
}

impl Life<'_> {
    fn figures(&self, sizes: &PromptSizes, unit: CostUnit) -> Option<[f64; 3]> {
        Some([
            self.play(unit, |turn, first| self.forked(sizes, turn, first))?,
            self.play(unit, |turn, _| self.as_sent(sizes, turn))?,
            self.play(unit, |turn, first| self.aligned(sizes, turn, first))?,
        ])
    }

    /// The cost of all turns, averaged over the siblings: one of them writes first.
    fn play(&self, unit: CostUnit, prompt: impl Fn(u32, bool) -> Prompt) -> Option<f64> {
        let siblings = self.cache.siblings.max(1) as f64;
        let life = |first: bool| -> Option<f64> {
            (0..self.turns).map(|turn| self.cost(unit, prompt(turn, first))).sum()
        };
        Some((life(true)? + (siblings - 1.0) * life(false)?) / siblings)
    }

    fn forked(&self, sizes: &PromptSizes, turn: u32, first: bool) -> Prompt {
        let tokens = self.grown(sizes.forked(), turn);
        let warm = match (self.cache.warm, self.cache.cold_messages) {
            (false, _) => 0,
            (true, true) => sizes.fixed.min(sizes.entry),
            (true, false) => sizes.entry,
        };
        let read = match turn {
            0 if first => warm,
            0 => sizes.shared + sizes.instructions,
            _ => self.grown(sizes.forked(), turn - 1),
        };
        // The entry of the parent is asked for on the first turn only.
        let entry = if turn == 0 { sizes.entry } else { 0 };
        Prompt { tokens, marked: tokens, read, entry }
    }

    fn as_sent(&self, sizes: &PromptSizes, turn: u32) -> Prompt {
        let tokens = self.grown(sizes.sent, turn);
        let marked = |turn: u32| {
            if sizes.sent_rolling { self.grown(sizes.sent_marked, turn) } else { sizes.sent_marked }
        };
        let read = turn.checked_sub(1).map_or(self.cache.sent_warm, marked);
        Prompt { tokens, marked: marked(turn), read, entry: 0 }
    }

    fn aligned(&self, sizes: &PromptSizes, turn: u32, first: bool) -> Prompt {
        let tokens = self.grown(sizes.sent, turn);
        let read = match turn {
            0 if first => self.cache.sent_warm,
            0 => sizes.sent_fixed.max(self.cache.sent_warm),
            _ => self.grown(sizes.sent, turn - 1),
        };
        Prompt { tokens, marked: tokens, read, entry: 0 }
    }

    fn grown(&self, tokens: u64, turns: u32) -> u64 {
        tokens.saturating_add(self.habits.growth.saturating_mul(u64::from(turns)))
    }

    fn cost(&self, unit: CostUnit, prompt: Prompt) -> Option<f64> {
        let usage = self.usage(prompt);
        match unit {
            CostUnit::Dollars => self.cache.price?.cost(&usage).total().map(|usd| usd.as_f64()),
            CostUnit::Tokens => weighed(&usage, self.cache.multipliers),
        }
    }

    /// Returns the usage of a prompt. One that is shorter than the model caches is not cached, in silence.
    fn usage(&self, prompt: Prompt) -> Usage {
        let least = self.cache.facts.minimum_tokens.unwrap_or(0);
        let cacheable = |tokens: u64| if tokens < least { 0 } else { tokens };
        let marked = cacheable(prompt.marked.min(prompt.tokens));
        let read = cacheable(prompt.read.min(marked));
        let written = marked - read;
        let mut usage = Usage {
            uncached: prompt.tokens - marked,
            cache_read: read,
            output: self.habits.output,
            ..Usage::default()
        };
        let of_entry = prompt.entry.min(marked).saturating_sub(read);
        for (ttl, tokens) in [(self.cache.entry_ttl, of_entry), (self.cache.ttl, written - of_entry)] {
            match ttl {
                Ttl::FiveMinutes => usage.cache_write_5m += tokens,
                Ttl::OneHour => usage.cache_write_1h += tokens,
            }
        }
        usage
    }
}
