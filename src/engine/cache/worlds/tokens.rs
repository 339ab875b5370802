//! Tokens of a prefix: counted by a bill where one has ended there, else estimated by kind of block.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::prompt::{Sizes, WorldPrompt};
use crate::engine::cache::entry::EntryKey;
use crate::engine::cache::ledger::Parts;
use crate::engine::words::DigestMap;

/// Models whose weights are kept.
const MODELS_MAX: usize = 64;
/// Until bills say better: prose has about four bytes to a token.
const TOKENS_PER_BYTE: f64 = 0.25;
/// The pull on the weight of a kind that bills have shown little of, towards the weight of all.
const FAITH: f64 = 0.01;
/// Beyond this many tokens, older samples count half.
const TOKENS_MAX: f64 = 1e8;
/// Prefixes whose count is remembered twice over: when this many are new, the older half is forgotten.
const COUNTS_MAX: usize = 4_096;

/// Tokens to a byte of each kind of block, for one model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Weights([f64; 4]);

impl Default for Weights {
    fn default() -> Weights {
        Weights([TOKENS_PER_BYTE; 4])
    }
}

impl Weights {
    pub fn tokens(self, sizes: Sizes) -> f64 {
        self.0.iter().zip(sizes.0).map(|(weight, bytes)| weight * bytes).sum::<f64>().max(0.0)
    }
}

/// A stretch of a prompt whose tokens are known from a bill.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Segment {
    pub sizes: Sizes,
    pub tokens: f64,
}

/// The weights of all models, learned from the bills of all tenants: what a tokenizer does is no tenant's secret.
#[derive(Debug, Default)]
pub struct TokenWeights {
    models: HashMap<String, WeightFit>,
}

impl TokenWeights {
    pub fn of(&self, model: &str) -> Weights {
        self.models.get(model).map(|fit| fit.weights).unwrap_or_default()
    }

    pub fn learn(&mut self, model: &str, segments: &[Segment]) {
        if !self.models.contains_key(model) && self.models.len() >= MODELS_MAX {
            return;
        }
        let fit = self.models.entry(model.to_owned()).or_default();
        segments.iter().for_each(|segment| fit.add(segment));
        fit.solve();
        fit.is_changed = true;
    }

    /// Takes the weights that have changed.
    pub fn take_changed(&mut self) -> Vec<ModelWeights> {
        let changed = self.models.iter_mut().filter(|(_, fit)| fit.is_changed);
        changed
            .map(|(model, fit)| {
                fit.is_changed = false;
                ModelWeights { model: model.clone(), fit: fit.clone() }
            })
            .collect()
    }

    /// Takes over weights that more tokens have taught than those here.
    pub fn restore(&mut self, saved: ModelWeights) {
        let ModelWeights { model, mut fit } = saved;
        let is_more = self.models.get(&model).is_none_or(|known| known.tokens < fit.tokens);
        let has_room = self.models.contains_key(&model) || self.models.len() < MODELS_MAX;
        if is_more && has_room {
            // Weights are what the sums say, whatever was written.
            (fit.weights, fit.is_changed) = (Weights::default(), false);
            fit.solve();
            self.models.insert(model, fit);
        }
    }
}

/// The weights of one model, as they are kept beyond this process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ModelWeights {
    model: String,
    fit: WeightFit,
}

impl ModelWeights {
    pub fn model(&self) -> &str {
        &self.model
    }
}

/// Least squares of relative errors.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct WeightFit {
    tokens: f64,
    sums: [f64; 4],
    products: [[f64; 4]; 4],
    weights: Weights,
    /// True if it was not saved since.
    #[serde(skip)]
    is_changed: bool,
}

impl WeightFit {
    fn add(&mut self, Segment { sizes, tokens }: &Segment) {
        if *tokens < 1.0 || sizes.bytes() < 1.0 {
            return;
        }
        if self.tokens > TOKENS_MAX {
            self.tokens /= 2.0;
            let sums = self.sums.iter_mut().chain(self.products.iter_mut().flatten());
            sums.for_each(|sum| *sum /= 2.0);
        }
        self.tokens += tokens;
        for (row, one) in sizes.0.iter().enumerate() {
            self.sums[row] += one;
            for (column, other) in sizes.0.iter().enumerate() {
                self.products[row][column] += one * other / tokens;
            }
        }
    }

    fn solve(&mut self) {
        let bytes: f64 = self.sums.iter().sum();
        if bytes < 1.0 {
            return;
        }
        let of_all = self.tokens / bytes;
        let faith = FAITH * (0..4).map(|kind| self.products[kind][kind]).sum::<f64>();
        let rows: [[f64; 5]; 4] = std::array::from_fn(|row| {
            std::array::from_fn(|column| match column {
                4 => self.sums[row] + faith * of_all,
                _ if row == column => self.products[row][column] + faith,
                _ => self.products[row][column],
            })
        });
        let solved = eliminate(rows);
        if solved.iter().all(|weight| weight.is_finite()) {
            self.weights = Weights(solved.map(|weight| weight.max(0.0)));
        }
    }
}

/// Solves a small positive definite system, the right side in the last column.
fn eliminate(mut rows: [[f64; 5]; 4]) -> [f64; 4] {
    for pivot in 0..4 {
        let by = rows[pivot];
        for (number, row) in rows.iter_mut().enumerate() {
            if number != pivot {
                let factor = row[pivot] / by[pivot];
                row.iter_mut().zip(by).for_each(|(cell, other)| *cell -= factor * other);
            }
        }
    }
    std::array::from_fn(|row| rows[row][4] / rows[row][row])
}

/// Prefixes of one tenant whose tokens are known from a bill, by the key of the entry that would end there.
#[derive(Debug, Default)]
pub struct Counts {
    young: DigestMap<EntryKey, u64>,
    old: DigestMap<EntryKey, u64>,
    /// The counts that have changed since they were saved.
    changed: Parts,
}

impl Counts {
    pub fn insert(&mut self, key: EntryKey, tokens: u64) {
        if self.young.len() >= COUNTS_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.changed.add(&key);
        self.young.insert(key, tokens);
    }

    /// Every count, the older ones first.
    pub fn iter(&self) -> impl Iterator<Item = (EntryKey, u64)> {
        self.old.iter().chain(&self.young).map(|(key, count)| (*key, *count))
    }

    /// Takes over a count, unless it is known here.
    pub fn restore(&mut self, key: EntryKey, tokens: u64) {
        if self.get(&key).is_none() {
            let changed = self.changed;
            self.insert(key, tokens);
            self.changed = changed;
        }
    }

    pub fn changed(&self) -> Parts {
        self.changed
    }

    /// Takes where counts have changed.
    pub fn take_changed(&mut self) -> Parts {
        std::mem::take(&mut self.changed)
    }

    fn get(&self, key: &EntryKey) -> Option<u64> {
        self.young.get(key).or_else(|| self.old.get(key)).copied()
    }
}

/// The tokens of one prompt.
#[derive(Clone, Copy)]
pub struct PromptTokens<'a> {
    pub prompt: &'a WorldPrompt,
    pub counts: &'a Counts,
    pub weights: Weights,
    /// All tokens of the prompt, if it was billed as it is.
    pub billed: Option<u64>,
}

impl PromptTokens<'_> {
    pub fn all(&self) -> u64 {
        self.billed.unwrap_or_else(|| {
            let (known, from) = self.start(self.counted(0));
            known + self.weights.tokens(self.prompt.sizes.minus(from)).round() as u64
        })
    }

    /// Tokens up to the position of this number: from the deepest counted prefix on they are estimated. Where the whole
    /// was billed, the estimate of what follows that prefix is scaled to it.
    pub fn until(&self, position: usize) -> u64 {
        self.estimate(position, self.counted(position))
    }

    /// Tokens up to each position, the deepest first. Each prefix is looked up once.
    pub fn until_each(&self) -> impl Iterator<Item = u64> {
        let mut counted = self.counted(0);
        (0..self.prompt.positions.len()).map(move |position| {
            if counted.is_some_and(|(at, _)| at < position) {
                counted = self.counted(position);
            }
            self.estimate(position, counted)
        })
    }

    fn estimate(&self, position: usize, counted: Option<(usize, u64)>) -> u64 {
        let (known, from) = self.start(counted);
        let estimate = self.weights.tokens(self.prompt.positions[position].sizes.minus(from));
        let rest = self.prompt.sizes.minus(from);
        let Some(all) = self.billed else { return known + estimate.round() as u64 };
        let estimate_of_rest = self.weights.tokens(rest);
        let scale = if rest.has_images() || estimate_of_rest < 1.0 {
            1.0
        } else {
            all.saturating_sub(known) as f64 / estimate_of_rest
        };
        (known + (estimate * scale).round() as u64).min(all)
    }

    /// The deepest counted prefix at or before a position: its own position and its tokens.
    fn counted(&self, position: usize) -> Option<(usize, u64)> {
        let mut positions = self.prompt.positions.iter().enumerate().skip(position);
        positions.find_map(|(number, at)| Some((number, self.counts.get(&at.key)?)))
    }

    /// The tokens of a counted prefix and its sizes, from which on tokens are estimated.
    fn start(&self, counted: Option<(usize, u64)>) -> (u64, Sizes) {
        counted.map_or_else(Default::default, |(at, tokens)| (tokens, self.prompt.positions[at].sizes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_by_kind_follow_the_bills() {
        let mut weights = TokenWeights::default();
        assert_eq!(weights.of("m").tokens(Sizes([400.0, 0.0, 0.0, 0.0])), 100.0, "the prior");
        let truth = [0.5, 0.2, 0.3];
        for step in 0..60 {
            let mut sizes = [500.0, 800.0, 400.0, 0.0];
            sizes[step % 3] += 20_000.0;
            let tokens = sizes.iter().zip(truth).map(|(bytes, weight)| bytes * weight).sum();
            weights.learn("m", &[Segment { sizes: Sizes(sizes), tokens }]);
        }
        let learned = weights.of("m");
        let of = |sizes: [f64; 4]| learned.tokens(Sizes(sizes)) / 1_000.0;
        let figures = [of([1e3, 0.0, 0.0, 0.0]), of([0.0, 1e3, 0.0, 0.0]), of([0.0, 0.0, 1e3, 0.0])];
        for (learned, truth) in figures.into_iter().zip(truth) {
            assert!((learned - truth).abs() < 0.03, "{learned} for {truth}");
        }
        weights.learn("m", &[Segment { sizes: Sizes::default(), tokens: 1e9 }]);
        assert_eq!(weights.of("m"), learned, "a bill for nothing teaches nothing");
    }

    #[test]
    fn models_and_counts_are_bounded() {
        let mut weights = TokenWeights::default();
        for number in 0..3 * MODELS_MAX {
            let segment = Segment { sizes: Sizes([0.0, 10.0, 0.0, 0.0]), tokens: 10.0 };
            weights.learn(&number.to_string(), &[segment]);
        }
        assert_eq!(weights.models.len(), MODELS_MAX);
        let mut counts = Counts::default();
        for number in 0..5 * COUNTS_MAX as u64 {
            counts.insert(EntryKey::numbered(number), number);
            assert_eq!(counts.get(&EntryKey::numbered(number)), Some(number));
        }
        assert!(counts.young.len() + counts.old.len() <= 2 * COUNTS_MAX);
    }
}
