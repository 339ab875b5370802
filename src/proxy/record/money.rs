//! What an exchange cost, and what it would have cost otherwise.

use crate::engine::counterfactual::uncached;
use crate::engine::fork::{Forecast, weighed};
use crate::engine::prices::{Cost, Price, Usd};
use crate::engine::usage::Usage;
use crate::engine::words::{Baseline, CostUnit, Plan};
use crate::metrics::Series;

use super::Recorder;

/// A bill, and estimates of what it might have been; of the prompt alone where the answer has no price.
#[derive(Clone, Copy, Debug, Default)]
pub struct Money {
    pub billed: Option<Usd>,
    pub as_sent: Option<Usd>,
    pub aligned: Option<f64>,
    pub forked: Option<f64>,
}

/// What was billed for a model that has a price, and what would have been otherwise.
pub(super) struct Bill {
    pub price: Price,
    pub billed: Usage,
    /// For the request as its client sent it.
    pub as_sent: Usage,
    /// In mode `align`, if it went out as it came.
    pub imagined: Option<Usage>,
    /// What this child was predicted to cost when it came.
    pub forecast: Option<Forecast>,
}

impl Recorder {
    /// Counts what was billed. Baselines are counted for the same requests, each of them for every one, so that their
    /// sums can be compared.
    pub(super) fn count_money(&self, series: &Series, bill: &Bill) -> Money {
        let Bill { price, billed: usage, as_sent, imagined, forecast } = bill;
        let cost = price.cost(usage);
        series.cost(&self.metrics, cost.kinds().map(|(_, usd)| usd.map(Usd::as_f64)));
        // The answer costs the same however its prompt went out: if only its rate is unknown, prompts are compared.
        let compared = |of: Cost| if cost.output.is_some() { of.total() } else { of.prompt() };
        let Some(billed) = compared(cost) else { return Money::default() };
        let as_sent = compared(price.cost(as_sent)).unwrap_or(billed);
        let of_as_sent = |part: f64, forecast: &Forecast| {
            (forecast.as_sent > 0.0).then(|| part / forecast.as_sent * as_sent.as_f64())
        };
        let imagined = imagined.and_then(|usage| compared(price.cost(&usage))).map(Usd::as_f64);
        let foreseen =
            |part: fn(&Forecast) -> f64| forecast.and_then(|forecast| of_as_sent(part(&forecast), &forecast));
        let aligned = match self.facts.plan {
            Plan::Aligned(_) => Some(billed.as_f64()),
            // A forecast knows of the siblings, too.
            Plan::Forked | Plan::Passthrough(_) => foreseen(|forecast| forecast.aligned).or(imagined),
        };
        let forked = match self.facts.plan {
            Plan::Forked => None,
            Plan::Aligned(_) | Plan::Passthrough(_) => foreseen(|forecast| forecast.forked),
        };
        for (baseline, usd) in [
            (Baseline::AsSent, Some(as_sent.as_f64())),
            (Baseline::Aligned, aligned.or(Some(billed.as_f64()))),
            (Baseline::Forked, forked),
            (Baseline::Uncached, compared(price.cost(&uncached(usage))).map(Usd::as_f64)),
        ] {
            series.counterfactual(&self.metrics, baseline, usd);
        }
        series.saved(&self.metrics, as_sent.as_f64() - billed.as_f64());
        Money { billed: Some(billed), as_sent: Some(as_sent), aligned, forked }
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
