//! Prices of models, and how their caches behave: facts that are not in a request.
//!
//! They age, and some are only reported, so they come from a table that names a source and a date for each
//! model (`config/prices.toml`). The rule: a figure that the table lacks stays unknown. Such a model has tokens
//! and no dollars, and where a fact is missing, the answer is the one that does no harm.
//!
//! Money is counted in whole picodollars. One dollar per million tokens is a million of them per token, so that
//! listed prices and their multiples are exact, parts add up to their total in any order, and two bills can be
//! compared with `==`. It becomes a floating-point number only where it leaves the engine.
//!
//! ```text
//! 46,000 tokens read at $4 × 0.05 per million  =  46,000 × 200,000 pico$  =  $0.0092
//! ```

mod name;

use std::fmt;
use std::iter::Sum;
use std::ops::Add;

use crate::engine::answer::usage::{Bill, Usage};

/// No model is known to cache a shorter prefix.
pub const MINIMUM_TOKENS: u64 = 512;

/// Every model that something is known about.
#[derive(Clone, Debug, Default)]
pub struct Prices {
    models: Vec<Model>,
}

/// One row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// As the vendor names it, without the date of a release.
    pub id: String,
    /// As its vendor serves it; a cloud may differ, so ask [`Prices::facts`].
    pub facts: ModelFacts,
    /// Known for more models than the price is: two plans can be compared without dollars.
    pub multipliers: Multipliers,
    pub price: Option<Price>,
    /// True for the one model that is used where none is named.
    pub is_current: bool,
    /// The source of the price.
    pub source: String,
    /// The date of the source: `2026-11-16`.
    pub as_of: String,
}

/// The behaviour of a model's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelFacts {
    /// The shortest prefix that is cached; a shorter one is ignored in silence.
    pub minimum_tokens: Option<u64>,
    /// The longest prompt and answer together.
    pub window_tokens: Option<u64>,
    /// Thinking blocks are refused behind any other prefix than their own.
    pub bound_thinking: bool,
    /// A string `system` and one text block of the same are read as one prompt.
    pub string_is_block: bool,
}

impl ModelFacts {
    /// A model that is not described. Its thinking counts as bound: to be wrong about that costs some sharing,
    /// to be wrong about the opposite costs the client an error.
    pub const UNKNOWN: ModelFacts = ModelFacts {
        minimum_tokens: None,
        window_tokens: None,
        bound_thinking: true,
        string_is_block: false,
    };
}

impl Prices {
    pub fn new(models: Vec<Model>) -> Prices {
        Prices { models }
    }

    pub fn models(&self) -> impl ExactSizeIterator<Item = &Model> {
        self.models.iter()
    }

    /// The row of a model by the name that a request gives it: the longest id that the name is a release of.
    /// Its id is the better metric label, as there are many names for one row.
    pub fn model(&self, name: &str) -> Option<&Model> {
        if let Some(model) = self.models.iter().find(|model| model.id == name) {
            return Some(model);
        }
        let own = name::without_provider(name);
        let named =
            |model: &&Model| name::is_release_of(name, &model.id) || name::is_release_of(own, &model.id);
        self.models.iter().filter(named).max_by_key(|model| model.id.len())
    }

    /// The model that the table marks as current.
    pub fn current(&self) -> Option<&Model> {
        self.models.iter().find(|model| model.is_current)
    }

    pub fn price(&self, name: &str) -> Option<&Price> {
        self.model(name)?.price.as_ref()
    }

    /// The bill of an answer of this model, each run at the price of its own model; none if one of them has no price.
    pub fn cost(&self, bill: &Bill, model: &str) -> Option<Cost> {
        self.cost_as(bill, model, |usage| usage)
    }

    /// That bill, had each run been billed otherwise.
    pub fn cost_as(&self, bill: &Bill, model: &str, as_if: impl Fn(Usage) -> Usage) -> Option<Cost> {
        let costs =
            bill.runs().map(|(own, usage)| Some(self.price(own.unwrap_or(model))?.cost(&as_if(usage))));
        costs.reduce(|sum, cost| Some(sum?.plus(&cost?))).flatten()
    }

    pub fn facts(&self, name: &str) -> ModelFacts {
        match self.model(name) {
            None => ModelFacts::UNKNOWN,
            Some(model) if name.starts_with(&model.id) => model.facts,
            // Bedrock has minimums of its own; a row with the Bedrock name may give them.
            Some(model) => ModelFacts { minimum_tokens: None, ..model.facts },
        }
    }
}

/// The price of each use of the cache, in multiples of an uncached token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Multipliers {
    pub read: Option<Multiplier>,
    pub write_5m: Option<Multiplier>,
    pub write_1h: Option<Multiplier>,
}

/// A factor in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Multiplier(u32);

impl Multiplier {
    pub fn new(factor: f64) -> Multiplier {
        Multiplier((factor * MILLION as f64).round() as u32)
    }

    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / MILLION as f64
    }
}

/// The price of one model's tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Price {
    pub rates: Rates,
    pub multipliers: Multipliers,
    /// Other rates for longer prompts, the shortest first.
    pub tiers: Vec<Tier>,
}

/// Rates for every token of a request whose prompt is longer than this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tier {
    pub above_tokens: u64,
    pub rates: Rates,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    pub input: Rate,
    pub output: Option<Rate>,
}

/// Picodollars per token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u64);

const MILLION: u128 = 1_000_000;

impl Rate {
    /// From dollars per million tokens, as prices are listed.
    pub fn per_million(usd: f64) -> Rate {
        Rate((usd * MILLION as f64).round() as u64)
    }

    /// In dollars per million tokens.
    pub fn usd_per_million(self) -> f64 {
        self.0 as f64 / MILLION as f64
    }

    fn times(self, multiplier: Multiplier) -> Rate {
        let product = u128::from(self.0) * u128::from(multiplier.0);
        Rate(u64::try_from((product + MILLION / 2) / MILLION).unwrap_or(u64::MAX))
    }

    fn of(self, tokens: u64) -> Usd {
        Usd(u128::from(self.0) * u128::from(tokens))
    }
}

impl Price {
    /// The bill for these tokens. What is billed at an unknown rate costs an unknown amount; what is
    /// not billed costs nothing.
    pub fn cost(&self, usage: &Usage) -> Cost {
        let Rates { input, output } = self.rates_for(prompt_tokens(usage));
        let cached = |multiplier: Option<Multiplier>| multiplier.map(|multiplier| input.times(multiplier));
        Cost {
            uncached: bill(Some(input), usage.uncached),
            cache_read: bill(cached(self.multipliers.read), usage.cache_read),
            cache_write_5m: bill(cached(self.multipliers.write_5m), usage.cache_write_5m),
            cache_write_1h: bill(cached(self.multipliers.write_1h), usage.cache_write_1h),
            output: bill(output, usage.output),
        }
    }

    fn rates_for(&self, prompt_tokens: u64) -> Rates {
        let tier = self.tiers.iter().rev().find(|tier| prompt_tokens > tier.above_tokens);
        tier.map_or(self.rates, |tier| tier.rates)
    }
}

fn prompt_tokens(usage: &Usage) -> u64 {
    let parts = [usage.uncached, usage.cache_read, usage.cache_write_5m, usage.cache_write_1h];
    parts.into_iter().fold(0, u64::saturating_add)
}

fn bill(rate: Option<Rate>, tokens: u64) -> Option<Usd> {
    match tokens {
        0 => Some(Usd::default()),
        _ => rate.map(|rate| rate.of(tokens)),
    }
}

/// The cost of one request, by kind of token; `None` where the rate is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    pub uncached: Option<Usd>,
    pub cache_read: Option<Usd>,
    pub cache_write_5m: Option<Usd>,
    pub cache_write_1h: Option<Usd>,
    pub output: Option<Usd>,
}

impl Cost {
    /// Each kind with the spelling it has in metrics and logs, as in [`Usage::kinds`].
    pub fn kinds(&self) -> [(&'static str, Option<Usd>); 5] {
        [
            ("uncached", self.uncached),
            ("cache_read", self.cache_read),
            ("cache_write_5m", self.cache_write_5m),
            ("cache_write_1h", self.cache_write_1h),
            ("output", self.output),
        ]
    }

    /// Both together; a kind that is not known in one of them is not known.
    fn plus(&self, other: &Cost) -> Cost {
        self.with(other, Usd::add)
    }

    /// The cost without that of one run.
    pub fn minus(&self, other: &Cost) -> Cost {
        self.with(other, Usd::above)
    }

    fn with(&self, other: &Cost, of: fn(Usd, Usd) -> Usd) -> Cost {
        let of = |one: Option<Usd>, two: Option<Usd>| Some(of(one?, two?));
        Cost {
            uncached: of(self.uncached, other.uncached),
            cache_read: of(self.cache_read, other.cache_read),
            cache_write_5m: of(self.cache_write_5m, other.cache_write_5m),
            cache_write_1h: of(self.cache_write_1h, other.cache_write_1h),
            output: of(self.output, other.output),
        }
    }

    /// The four kinds that the cache decides about; none if one of them is not known.
    pub fn prompt(&self) -> Option<Usd> {
        [self.uncached, self.cache_read, self.cache_write_5m, self.cache_write_1h].into_iter().sum()
    }

    /// None if any kind is not known: a part would look like the whole.
    pub fn total(&self) -> Option<Usd> {
        [self.prompt(), self.output].into_iter().sum()
    }
}

/// An amount in picodollars. Any number of tokens at any rate fits, so that no answer can make it overflow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Usd(u128);

impl Usd {
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / 1e12
    }

    /// Returns the excess over the other; nothing if it is less.
    pub fn above(self, other: Usd) -> Usd {
        Usd(self.0.saturating_sub(other.0))
    }
}

impl Add for Usd {
    type Output = Usd;

    fn add(self, other: Usd) -> Usd {
        Usd(self.0.saturating_add(other.0))
    }
}

impl Sum for Usd {
    fn sum<I: Iterator<Item = Usd>>(amounts: I) -> Usd {
        amounts.fold(Usd::default(), Usd::add)
    }
}

/// With as many digits as a reader needs: `$12.35`, `$0.0092`, `$0.000120`.
impl fmt::Display for Usd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.as_f64() {
            usd if usd >= 1.0 => write!(f, "${usd:.2}"),
            usd if usd >= 0.001 => write!(f, "${usd:.4}"),
            usd => write!(f, "${usd:.6}"),
        }
    }
}

#[cfg(test)]
mod tests;
