//! The model that is played, and its prices: the simulator bills by the table that forkpoint reads.

use serde_json::{Value, json};

use crate::engine::cache::prices::{Model, Multiplier, Prices};
use crate::sim::BilledUsage;
use crate::sim::models::{self, LongPrompt, ModelPrice, ModelSpec};

use super::super::Failure;

/// A model with all prices that a play needs.
#[derive(Clone, Debug)]
pub struct DemoModel {
    pub id: String,
    as_of: String,
    price: ModelPrice,
    minimum_tokens: u64,
}

impl DemoModel {
    /// The model with this name, or the one that the table marks as current.
    pub fn named(name: Option<&str>, prices: &Prices) -> Result<DemoModel, Failure> {
        let known: Vec<DemoModel> = prices.models().filter_map(DemoModel::of).collect();
        let ids: Vec<&str> = known.iter().map(|model| model.id.as_str()).collect();
        let hint = format!("models with all prices: {}", ids.join(", "));
        let row = match name {
            None => prices.current().ok_or_else(|| Failure::new("the price table marks no model as current")),
            Some(name) => prices
                .model(name)
                .ok_or_else(|| Failure::usage(format!("--model {name}: not in the price table"))),
        };
        row.and_then(|row| {
            let missing =
                || Failure::usage(format!("--model {}: the price table lacks some of its prices", row.id));
            DemoModel::of(row).ok_or_else(missing)
        })
        .map_err(|failure| failure.hint(hint))
    }

    fn of(row: &Model) -> Option<DemoModel> {
        let price = row.price.as_ref()?;
        let multiple = |multiplier: Option<Multiplier>| multiplier.map(Multiplier::as_f64);
        let long_prompt = match price.tiers.as_slice() {
            [] => None,
            [tier] => Some(LongPrompt {
                above_tokens: tier.above_tokens,
                input_usd: tier.rates.input.usd_per_million(),
                output_usd: tier.rates.output?.usd_per_million(),
            }),
            // The simulator has one tier.
            _ => return None,
        };
        Some(DemoModel {
            id: row.id.clone(),
            as_of: row.as_of.clone(),
            price: ModelPrice {
                input_usd: price.rates.input.usd_per_million(),
                output_usd: price.rates.output?.usd_per_million(),
                read_multiple: multiple(price.multipliers.read)?,
                write_5m_multiple: multiple(price.multipliers.write_5m)?,
                write_1h_multiple: multiple(price.multipliers.write_1h)?,
                long_prompt,
            },
            minimum_tokens: row.facts.minimum_tokens?,
        })
    }

    /// The models of a simulator that has this one, at these prices.
    pub fn sim_models(&self) -> Vec<ModelSpec> {
        let mut models = models::public_models();
        let known = models::find(&models, &self.id).or(models.first()).cloned();
        models.retain(|model| model.id != self.id);
        models.extend(known.map(|model| ModelSpec {
            id: self.id.clone(),
            price: self.price,
            minimum_tokens: self.minimum_tokens,
            ..model
        }));
        models
    }

    /// The cost of the same tokens without a cache.
    pub fn uncached_usd(&self, usage: &BilledUsage) -> f64 {
        let output = usage.output;
        self.price.cost_usd(&BilledUsage { uncached: usage.prompt(), output, ..BilledUsage::default() })
    }

    pub fn describe(&self) -> String {
        let ModelPrice { input_usd, output_usd, read_multiple, .. } = self.price;
        let multiple = |factor: f64| format!("{:.2}", input_usd * factor);
        let tier = self.price.long_prompt.map_or_else(String::new, |tier| {
            format!(
                "\n  prompts above {} tokens: input {:.2} · output {:.2}",
                super::grouped(tier.above_tokens),
                tier.input_usd,
                tier.output_usd
            )
        });
        format!(
            "Model {}, prices as of {}, in dollars per million tokens:\n  \
             input {input_usd:.2} · output {output_usd:.2} · cache read {} ({read_multiple} of input)\n  \
             cache write {} for five minutes, {} for an hour{tier}",
            self.id,
            self.as_of,
            multiple(read_multiple),
            multiple(self.price.write_5m_multiple),
            multiple(self.price.write_1h_multiple),
        )
    }

    pub fn json(&self) -> Value {
        json!({"id": self.id, "as_of": self.as_of, "price": self.price})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ValueOrigin, load_prices};

    fn prices() -> Prices {
        load_prices(None, &ValueOrigin::Default).unwrap()
    }

    #[test]
    fn the_current_model_is_the_default_and_its_read_price_is_named() {
        let model = DemoModel::named(None, &prices()).unwrap();
        assert_eq!(Some(model.id.as_str()), prices().current().map(|model| model.id.as_str()));
        let read = format!("({} of input)", model.price.read_multiple);
        assert!(
            model.describe().contains(&read) && model.describe().contains(&model.id),
            "{}",
            model.describe()
        );
        assert!(model.describe().lines().all(|line| line.chars().count() <= 80));
    }

    #[test]
    fn the_simulator_bills_every_model_at_the_prices_of_the_table() {
        for row in prices().models() {
            let Some(model) = DemoModel::of(row) else { continue };
            let of_sim = models::find(&model.sim_models(), &model.id).unwrap().price;
            assert_eq!(of_sim, model.price, "{}", model.id);
        }
    }

    #[test]
    fn a_model_without_prices_is_refused_with_those_that_have_some() {
        let failure = DemoModel::named(Some("gpt-2"), &prices()).unwrap_err();
        assert!(failure.message.contains("gpt-2") && failure.hint.unwrap().contains("claude-opus-5-5"));
        let lacking = prices().models().find(|row| DemoModel::of(row).is_none()).unwrap().id.clone();
        let failure = DemoModel::named(Some(&lacking), &prices()).unwrap_err();
        assert!(
            failure.message.contains(&lacking) && failure.message.contains("lacks"),
            "{}",
            failure.message
        );
    }
}
