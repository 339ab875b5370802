//! The cost of an exchange, and what it would have cost otherwise.

use crate::engine::answer::usage::Usage;
use crate::engine::cache::breaks::Break;
use crate::engine::cache::counterfactual::uncached;
use crate::engine::cache::prices::{Cost, Price, Usd};
use crate::engine::fork::Forecast;
use crate::engine::tenant::OtherBills;
use crate::engine::words::Plan;
use crate::report::ExchangeRecord;

/// The bills of an exchange, and what is known of them beside.
pub struct Money<'a> {
    pub plan: Plan,
    pub usage: &'a Usage,
    pub bills: OtherBills,
    /// The forecast of a child's cost, made when it came.
    pub forecast: Option<Forecast>,
    pub cache_break: Option<&'a Break>,
    pub price: &'a Price,
}

impl Money<'_> {
    /// Adds the bill, and estimates of what it might have been, for a model that has a price; of the prompt alone
    /// where the answer has no price.
    pub fn add_to(&self, record: &mut ExchangeRecord) {
        let Money { plan, usage, price, .. } = *self;
        let break_cost = self.cache_break.and_then(|lost| lost.cost(usage, price));
        record.break_cost_usd = break_cost.map(Usd::as_f64);
        let cost = price.cost(usage);
        record.details.cost = Some(cost);
        // The answer costs the same however its prompt went out: if only its rate is unknown, prompts are compared.
        let compared = |of: Cost| if cost.output.is_some() { of.total() } else { of.prompt() };
        let Some(billed) = compared(cost).map(Usd::as_f64) else { return };
        let as_sent = compared(price.cost(&self.bills.as_sent)).map_or(billed, Usd::as_f64);
        let imagined = self.bills.aligned.and_then(|usage| compared(price.cost(&usage))).map(Usd::as_f64);
        let forecast = self.forecast.filter(|forecast| forecast.as_sent > 0.0);
        let foreseen = |part: fn(&Forecast) -> f64| {
            forecast.map(|forecast| part(&forecast) / forecast.as_sent * as_sent)
        };
        record.aligned_usd = match plan {
            Plan::Aligned(_) => Some(billed),
            // A forecast knows of the siblings, too.
            Plan::Forked | Plan::Passthrough(_) => foreseen(|forecast| forecast.aligned).or(imagined),
        };
        record.forked_usd = match plan {
            Plan::Forked => None,
            Plan::Aligned(_) | Plan::Passthrough(_) => foreseen(|forecast| forecast.forked),
        };
        record.cost_usd = Some(billed);
        record.as_sent_usd = Some(as_sent);
        record.details.uncached_usd = compared(price.cost(&uncached(usage))).map(Usd::as_f64);
    }
}
