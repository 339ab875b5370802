//! The cost of an exchange, and what it would have cost otherwise.

use crate::engine::answer::usage::Usage;
use crate::engine::cache::counterfactual::uncached;
use crate::engine::cache::prices::{Cost, Usd};
use crate::engine::fork::{Forecast, weighed};
use crate::engine::words::{CostUnit, Moment, Plan};
use crate::proxy::memo::OtherBills;
use crate::report::ExchangeRecord;

use super::Recorder;

impl Recorder {
    /// Adds the bill, and estimates of what it might have been, for a model that has a price; of the prompt alone
    /// where the answer has no price.
    pub(super) fn add_money(&mut self, record: &mut ExchangeRecord, usage: &Usage, now: Moment) {
        let Some(memo) = &mut self.memo else { return };
        let OtherBills { as_sent: sent, aligned: imagined } = memo.settle_elsewhere(usage, now);
        let Some(price) = memo.price().cloned() else { return };
        let cost = price.cost(usage);
        record.details.cost = Some(cost);
        // The answer costs the same however its prompt went out: if only its rate is unknown, prompts are compared.
        let compared = |of: Cost| if cost.output.is_some() { of.total() } else { of.prompt() };
        let Some(billed) = compared(cost).map(Usd::as_f64) else { return };
        let as_sent = compared(price.cost(&sent)).map_or(billed, Usd::as_f64);
        let imagined = imagined.and_then(|usage| compared(price.cost(&usage))).map(Usd::as_f64);
        let forecast = self.forecast().filter(|forecast| forecast.as_sent > 0.0);
        let foreseen = |part: fn(&Forecast) -> f64| {
            forecast.map(|forecast| part(&forecast) / forecast.as_sent * as_sent)
        };
        record.aligned_usd = match self.facts.plan {
            Plan::Aligned(_) => Some(billed),
            // A forecast knows of the siblings, too.
            Plan::Forked | Plan::Passthrough(_) => foreseen(|forecast| forecast.aligned).or(imagined),
        };
        record.forked_usd = match self.facts.plan {
            Plan::Forked => None,
            Plan::Aligned(_) | Plan::Passthrough(_) => foreseen(|forecast| forecast.forked),
        };
        record.cost_usd = Some(billed);
        record.as_sent_usd = Some(as_sent);
        record.details.uncached_usd = compared(price.cost(&uncached(usage))).map(Usd::as_f64);
    }

    /// A bill in the unit that forecasts of this model are in.
    pub(super) fn units(&self, usage: &Usage) -> Option<(CostUnit, f64)> {
        let memo = self.memo.as_ref()?;
        let dollars = memo.price().and_then(|price| price.cost(usage).total());
        match dollars {
            Some(usd) => Some((CostUnit::Dollars, usd.as_f64())),
            None => Some((CostUnit::Tokens, weighed(usage, memo.multipliers())?)),
        }
    }
}
