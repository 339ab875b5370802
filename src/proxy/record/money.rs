//! The cost of an exchange, and what it would have cost otherwise.

use crate::engine::answer::usage::{Bill, Usage};
use crate::engine::cache::breaks::Break;
use crate::engine::cache::prices::{Cost, Prices, Usd};
use crate::engine::cache::worlds::OtherBills;
use crate::engine::fork::Forecast;
use crate::engine::words::Plan;
use crate::report::ExchangeRecord;

/// The bills of an exchange, and what is known of them beside.
pub struct Money<'a> {
    pub plan: Plan,
    pub bill: &'a Bill,
    pub bills: OtherBills,
    /// The tokens that the ledger predicted to be read.
    pub predicted_read: u64,
    /// The forecast of a child's cost, made when it came.
    pub forecast: Option<Forecast>,
    pub cache_break: Option<&'a Break>,
    pub prices: &'a Prices,
    /// The model that was asked for.
    pub model: &'a str,
}

impl Money<'_> {
    /// Adds the bill, and estimates of what it might have been, if every model that was billed has a price; of the
    /// prompt alone where the answer has no price.
    pub fn add_to(&self, record: &mut ExchangeRecord) {
        let Money { plan, bill, prices, model, .. } = *self;
        let Some(cost) = prices.cost(bill, model) else { return };
        let Some(price) = prices.price(bill.model().unwrap_or(model)) else { return };
        let usage = &bill.prompt();
        let break_cost = self.cache_break.and_then(|lost| lost.cost(usage, price));
        record.break_cost_usd = break_cost.map(Usd::as_f64);
        record.details.cost = Some(cost);
        // The answer costs the same however its prompt went out: if only its rate is unknown, prompts are compared.
        let compared = |of: Cost| if cost.output.is_some() { of.total() } else { of.prompt() };
        let Some(billed) = compared(cost) else { return };
        let priced = |usage: Usage| compared(price.cost(&usage));
        // Whatever was billed beside the prompt costs the same however it goes out.
        let beside = priced(self.bills.billed).map(|of_prompt| billed.above(of_prompt));
        let otherwise = |usage: Option<Usage>| Some((priced(usage?)? + beside?).as_f64());
        record.cost_usd = Some(billed.as_f64());
        record.as_sent_usd = otherwise(self.bills.sent);
        record.aligned_usd = otherwise(self.bills.aligned);
        let uncached = prices.cost_as(bill, model, |usage| usage.without_cache());
        record.details.uncached_usd = uncached.and_then(compared).map(Usd::as_f64);
        let prompt = |usage: &Usage| price.cost(usage).prompt().map(Usd::as_f64);
        record.details.predicted_usd = prompt(&had_read(usage, self.predicted_read))
            .zip(prompt(usage))
            .map(|(predicted, billed)| [predicted, billed]);
        // The forecast of a fork that was not made is a ratio, and stays in the log line.
        let forecast = self.forecast.filter(|forecast| plan != Plan::Forked && forecast.as_sent > 0.0);
        record.forked_usd = forecast
            .zip(record.as_sent_usd)
            .map(|(forecast, as_sent)| forecast.forked / forecast.as_sent * as_sent);
    }
}

/// The bill of a prompt, had so many of its tokens been read. What was read beyond these would have been written.
fn had_read(usage: &Usage, read: u64) -> Usage {
    let missed = usage.cache_read.saturating_sub(read);
    let less = Usage {
        cache_read: usage.cache_read - missed,
        cache_write_5m: usage.cache_write_5m.saturating_add(missed),
        ..*usage
    };
    less.had_read(read.saturating_sub(usage.cache_read))
}
