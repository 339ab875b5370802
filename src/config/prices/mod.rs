//! Reads a price table from TOML into [`Prices`], and reports every mistake with its line.
//!
//! Rule: a figure is used as it is written, or refused; a missing one is unknown. A section without `source` and
//! `as_of` is refused too: a price that nobody can check is a guess.
//!
//! ```toml
//! [claude-haiku-5-5]
//! input = 0.10
//! tiers = [{ above_tokens = 100_000, input = 0.50 }]
//! source = "…"
//! as_of = 2026-11-16
//! ```

use std::ops::RangeInclusive;
use std::path::Path;

use toml_edit::{Item, TableLike};

use crate::engine::cache::prices::{
    Model, ModelFacts, Multiplier, Multipliers, Price, Prices, Rate, Rates, Tier,
};

use super::file;
use super::hint::nearest;
use super::problem::{Complaint, Problem, Problems, ValueOrigin, named};

const BUILT_IN: &str = include_str!("../../../config/prices.toml");
const BUILT_IN_NAME: &str = "config/prices.toml";

/// The most models. Each request searches all of them; vendors have dozens.
const MODELS_MAX: usize = 1024;
/// The greatest length of an id, which is also a metric label.
const ID_BYTES_MAX: usize = 128;
const TIERS_MAX: usize = 16;

const KEYS: [&str; 13] = [
    "input",
    "output",
    "read",
    "write_5m",
    "write_1h",
    "tiers",
    "minimum_tokens",
    "window_tokens",
    "bound_thinking",
    "string_is_block",
    "current",
    "source",
    "as_of",
];
const TIER_KEYS: [&str; 3] = ["above_tokens", "input", "output"];
const REQUIRED: [&str; 3] = ["source", "as_of", "above_tokens"];

/// Reads a price table from this file, or the built-in one; `named_by` says who asked for the file.
pub fn load_prices(file: Option<&Path>, named_by: &ValueOrigin) -> Result<Prices, Problems> {
    read(file, named_by).or_else(|problems| match Problems::from_list(problems) {
        Some(problems) => Err(problems),
        None => Ok(Prices::default()),
    })
}

/// Does what [`load_prices`] does, for a caller with its own list of problems.
pub(super) fn read(file: Option<&Path>, named_by: &ValueOrigin) -> Result<Prices, Vec<Problem>> {
    let Some(path) = file else { return parse(BUILT_IN.as_bytes(), BUILT_IN_NAME) };
    let shown = named(&path.to_string_lossy());
    let bytes = file::read_bytes(path).map_err(|complaint| vec![complaint.at(named_by.clone(), &shown)])?;
    parse(&bytes, &shown)
}

fn parse(bytes: &[u8], name: &str) -> Result<Prices, Vec<Problem>> {
    let document = file::document(bytes, name).map_err(|problem| vec![problem])?;
    let mut reading = PriceReader { name, text: document.raw(), problems: Vec::new() };
    let models = reading.models(document.as_table());
    if reading.problems.is_empty() { Ok(Prices::new(models)) } else { Err(reading.problems) }
}

/// Reads one table, and collects its problems.
struct PriceReader<'a> {
    name: &'a str,
    text: &'a str,
    problems: Vec<Problem>,
}

impl PriceReader<'_> {
    fn models(&mut self, root: &dyn TableLike) -> Vec<Model> {
        let mut models = Vec::new();
        for (id, item) in root.iter() {
            let origin = file::origin(self.name, self.text, root, id, item);
            let complaint = match item.as_table_like() {
                _ if models.len() == MODELS_MAX => Complaint::new(
                    format!("more than {MODELS_MAX} models"),
                    "keep the models that are in use",
                ),
                _ if !is_id(id) => Complaint::new(
                    "not the name of a model",
                    format!("names have letters, digits and ._:@/- only, and at most {ID_BYTES_MAX} of them"),
                ),
                Some(table) => {
                    let section =
                        PriceSection { reading: self, path: named(id), table, origin: origin.clone() };
                    let model = section.model(id);
                    let is_second = model.is_current && models.iter().any(|model: &Model| model.is_current);
                    models.push(model);
                    if !is_second {
                        continue;
                    }
                    Complaint::new("another model is current", "leave current = true with one of them")
                }
                None => Complaint::new(
                    "no section of a model",
                    "write the name of a model in brackets, such as [claude-opus-5-5], and its keys below it",
                ),
            };
            self.problems.push(complaint.at(origin, named(id)));
            if models.len() == MODELS_MAX {
                break;
            }
        }
        models
    }
}

fn is_id(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:@/-".contains(&byte);
    (1..=ID_BYTES_MAX).contains(&text.len()) && text.bytes().all(allowed)
}

/// One section: a model, or a tier of one.
struct PriceSection<'r, 'a> {
    reading: &'r mut PriceReader<'a>,
    /// Its name in messages.
    path: String,
    table: &'r dyn TableLike,
    origin: ValueOrigin,
}

const USD: RangeInclusive<f64> = 0.0..=10_000.0;
const USD_TAKES: &str = "a number of USD per million tokens from 0 to 10000";
const MULTIPLIERS: RangeInclusive<f64> = 0.0..=100.0;
const MULTIPLIER_TAKES: &str = "a multiple of the input price from 0 to 100";
const TOKENS: RangeInclusive<i64> = 1..=1_000_000_000;
const TOKENS_TAKES: &str = "a whole number of tokens from 1 to 1000000000";

impl<'r> PriceSection<'r, '_> {
    /// Reads the section. Wrong values are reported and left out.
    fn model(mut self, id: &str) -> Model {
        self.refuse_unknown_keys(&KEYS);
        let multipliers = Multipliers {
            read: self.multiplier("read"),
            write_5m: self.multiplier("write_5m"),
            write_1h: self.multiplier("write_1h"),
        };
        let facts = ModelFacts {
            minimum_tokens: self.tokens("minimum_tokens"),
            window_tokens: self.tokens("window_tokens"),
            bound_thinking: self
                .take("bound_thinking", "true or false", |item| item.as_bool())
                .unwrap_or(ModelFacts::UNKNOWN.bound_thinking),
            string_is_block: self
                .take("string_is_block", "true or false", |item| item.as_bool())
                .unwrap_or(ModelFacts::UNKNOWN.string_is_block),
        };
        Model {
            id: id.to_owned(),
            facts,
            multipliers,
            price: self.price(multipliers),
            is_current: self.take("current", "true or false", |item| item.as_bool()).unwrap_or(false),
            source: self.required("source", "a text in quotes, such as \"vendor.example/pricing\"", |item| {
                item.as_str().filter(|text| !text.trim().is_empty()).map(str::to_owned)
            }),
            as_of: self.required("as_of", "a date such as 2026-11-16, without quotes", date),
        }
    }

    fn price(&mut self, multipliers: Multipliers) -> Option<Price> {
        let input = self.rate("input");
        let output = self.rate("output");
        if !self.table.contains_key("input") {
            for key in ["output", "tiers"].into_iter().filter(|key| self.table.contains_key(key)) {
                self.complain(key, Complaint::new("a price without input", "add input, or leave this out"));
            }
            return None;
        }
        let rates = Rates { input: input?, output };
        Some(Price { rates, multipliers, tiers: self.tiers(rates) })
    }

    fn tiers(&mut self, mut rates: Rates) -> Vec<Tier> {
        let takes = format!(
            "a list of at most {TIERS_MAX} tiers, such as [{{ above_tokens = 200_000, input = 6.0 }}]"
        );
        let tables = self.take("tiers", &takes, tables).unwrap_or_default();
        let mut tiers: Vec<Tier> = Vec::new();
        for (index, table) in tables.into_iter().enumerate() {
            let (path, origin) = (format!("{}.tiers[{index}]", self.path), self.place("tiers"));
            let mut section = PriceSection { reading: &mut *self.reading, path, table, origin };
            section.refuse_unknown_keys(&TIER_KEYS);
            let above_tokens = section.required("above_tokens", TOKENS_TAKES, whole_tokens);
            if tiers.last().is_some_and(|last| above_tokens <= last.above_tokens && above_tokens > 0) {
                let hint = "put the tier with the smaller above_tokens first";
                section.complain("above_tokens", Complaint::new("not above the tier before it", hint));
            }
            // A figure that a tier leaves out is that of the tier below.
            rates = Rates {
                input: section.rate("input").unwrap_or(rates.input),
                output: section.rate("output").or(rates.output),
            };
            tiers.push(Tier { above_tokens, rates });
        }
        tiers
    }

    fn rate(&mut self, key: &str) -> Option<Rate> {
        self.take(key, USD_TAKES, |item| number(item, &USD)).map(Rate::per_million)
    }

    fn multiplier(&mut self, key: &str) -> Option<Multiplier> {
        self.take(key, MULTIPLIER_TAKES, |item| number(item, &MULTIPLIERS)).map(Multiplier::new)
    }

    fn tokens(&mut self, key: &str) -> Option<u64> {
        self.take(key, TOKENS_TAKES, whole_tokens)
    }

    /// Returns the value of one of the [`REQUIRED`] keys, or a default after a problem.
    fn required<T: Default>(
        &mut self,
        key: &str,
        takes: &str,
        read: impl FnOnce(&'r Item) -> Option<T>,
    ) -> T {
        if !self.table.contains_key(key) {
            let complaint = Complaint::new(format!("no {key}"), format!("add {key}, {takes}"));
            self.reading.problems.push(complaint.at(self.origin.clone(), &self.path));
        }
        self.take(key, takes, read).unwrap_or_default()
    }

    /// Returns the value of a key, if it is present and valid.
    fn take<T>(&mut self, key: &str, takes: &str, read: impl FnOnce(&'r Item) -> Option<T>) -> Option<T> {
        let value = read(self.table.get(key)?);
        if value.is_none() {
            let hint = if REQUIRED.contains(&key) {
                "correct it; this key may not be left out"
            } else {
                "correct it, or leave the key out if it is not known"
            };
            self.complain(key, Complaint::new(format!("not {takes}"), hint));
        }
        value
    }

    fn refuse_unknown_keys(&mut self, known: &[&str]) {
        let keys: Vec<String> = self.table.iter().map(|(key, _)| key.to_owned()).collect();
        for key in keys.iter().filter(|key| !known.contains(&key.as_str())) {
            let hint = match nearest(&key.to_lowercase().replace('-', "_"), known.iter().copied()) {
                Some(suggestion) => format!("did you mean {suggestion}?"),
                None => format!("the keys are {}", known.join(", ")),
            };
            let problem = Complaint::new("unknown key", hint);
            let subject = format!("{}.{}", self.path, named(key));
            let origin = self.place(key);
            self.reading.problems.push(problem.at(origin, subject));
        }
    }

    fn complain(&mut self, key: &str, complaint: Complaint) {
        let value = self.table.get(key).map(|item| file::given(item).quote()).unwrap_or_default();
        let subject = format!("{}.{key} = {value}", self.path);
        let origin = self.place(key);
        self.reading.problems.push(complaint.at(origin, subject));
    }

    fn place(&self, key: &str) -> ValueOrigin {
        match self.table.get(key) {
            Some(item) => file::origin(self.reading.name, self.reading.text, self.table, key, item),
            None => self.origin.clone(),
        }
    }
}

fn number(item: &Item, range: &RangeInclusive<f64>) -> Option<f64> {
    let number = item.as_float().or_else(|| item.as_integer().map(|whole| whole as f64))?;
    range.contains(&number).then_some(number)
}

fn whole_tokens(item: &Item) -> Option<u64> {
    let number = item.as_integer().filter(|number| TOKENS.contains(number))?;
    u64::try_from(number).ok()
}

fn date(item: &Item) -> Option<String> {
    let datetime = item.as_datetime()?;
    match (datetime.date, datetime.time) {
        (Some(date), None) => Some(date.to_string()),
        _ => None,
    }
}

/// Returns a list of tables, in either of its two spellings.
fn tables(item: &Item) -> Option<Vec<&dyn TableLike>> {
    let tables: Vec<&dyn TableLike> = match item.as_array_of_tables() {
        Some(tables) => tables.iter().map(|table| table as &dyn TableLike).collect(),
        None => {
            let values = item.as_array()?.iter();
            let inline = values.map(|value| value.as_inline_table().map(|table| table as &dyn TableLike));
            inline.collect::<Option<_>>()?
        }
    };
    (tables.len() <= TIERS_MAX).then_some(tables)
}

#[cfg(test)]
mod tests;
