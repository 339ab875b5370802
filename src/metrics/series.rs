//! The counters of requests that are alike, looked up once and kept: to find one by its labels costs more than
//! to count.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use prometheus::{Counter, Gauge, Histogram, IntCounter};

use super::{Admit, Metrics};
use crate::engine::answer::usage::Usage;
use crate::engine::cache::learned::LAYERS;
use crate::engine::request::clients::NONE;
use crate::engine::words::{Baseline, SightingClass, TenantId};

/// Kinds of requests that are kept at once. Two that share a place take turns.
const PLACES: usize = 256;
/// A prediction counts half after some seventy more.
const FADING: f64 = 0.99;

/// The labels that requests of one kind share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Alike<'a> {
    pub role: &'static str,
    pub plan: &'static str,
    /// Of a request that was left alone.
    pub reason: Option<&'static str>,
    pub status: Cow<'a, str>,
    /// A name that passed through [`super::Names`].
    pub model: Cow<'a, str>,
    /// Also such a name.
    pub client: Option<Cow<'a, str>>,
    pub tenant: Option<TenantId>,
}

impl Alike<'_> {
    fn place(&self) -> usize {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish() as usize % PLACES
    }

    fn into_owned(self) -> Alike<'static> {
        let owned = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        Alike {
            role: self.role,
            plan: self.plan,
            reason: self.reason,
            status: owned(self.status),
            model: owned(self.model),
            client: self.client.map(owned),
            tenant: self.tenant,
        }
    }
}

/// The counters of all requests of one kind. A counter that only some of them have is looked up when it is first
/// used, so that no metric is shown that never had a sample.
pub struct Series {
    of: Alike<'static>,
    requests: IntCounter,
    passthrough: Option<IntCounter>,
    client_requests: Option<IntCounter>,
    overhead: OnceLock<[Histogram; 3]>,
    first_byte: OnceLock<Histogram>,
    tokens: OnceLock<[[IntCounter; 3]; 5]>,
    cost: [OnceLock<Counter>; 5],
    counterfactual: [OnceLock<Counter>; Baseline::ALL.len()],
    saved: OnceLock<Gauge>,
    owners: OnceLock<[[Counter; 3]; 2]>,
    gate_tokens: OnceLock<[IntCounter; 2]>,
    recalls: [OnceLock<IntCounter>; 2],
}

pub(super) struct SeriesCache {
    series: Box<[Mutex<Option<Arc<Series>>>]>,
    /// By layer and class.
    sightings: [[OnceLock<IntCounter>; SightingClass::ALL.len()]; LAYERS.len()],
    /// How far the predicted cost of prompts was off, and what they were billed; older ones count less.
    ledger: Mutex<[f64; 2]>,
}

impl Default for SeriesCache {
    fn default() -> SeriesCache {
        SeriesCache {
            series: (0..PLACES).map(|_| Mutex::default()).collect(),
            sightings: Default::default(),
            ledger: Mutex::default(),
        }
    }
}

impl Metrics {
    /// The counters of requests like this one.
    pub fn series(&self, of: Alike<'_>) -> Arc<Series> {
        let mut place = self.kept.series[of.place()].lock().unwrap_or_else(PoisonError::into_inner);
        match &*place {
            Some(series) if series.of == of => Arc::clone(series),
            _ => Arc::clone(place.insert(Arc::new(self.find(of.into_owned())))),
        }
    }

    /// How each layer of a request relates to what came before.
    pub fn sighted(&self, classes: [SightingClass; 4]) {
        for ((layer, class), kept) in LAYERS.into_iter().zip(classes).zip(&self.kept.sightings) {
            let labels = [layer.as_str(), class.as_str()];
            let find = || self.prefix_sightings_total.with_label_values(&labels);
            kept[class as usize].get_or_init(find).inc();
        }
    }

    /// The predicted cost of a prompt, and its bill.
    pub fn predicted(&self, predicted: f64, billed: f64) {
        let mut sums = self.kept.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        *sums = [sums[0] * FADING + (predicted - billed).abs(), sums[1] * FADING + billed];
        if sums[1] > 0.0 {
            self.ledger_error_ratio.with_label_values::<&str>(&[]).set(sums[0] / sums[1]);
        }
    }

    /// Dollars of a child by the tool that started it: billed, as sent, and aligned.
    pub fn tool_costs(&self, tool: &str, usd: [f64; 3]) {
        let tool = self.tools.label(tool, Admit::New);
        for (baseline, usd) in baselines().into_iter().zip(usd) {
            self.tool_cost_usd_total.with_label_values(&[tool, baseline]).inc_by(usd);
        }
    }

    fn find(&self, of: Alike<'static>) -> Series {
        let client_requests = of
            .client
            .as_deref()
            .map(|client| self.client_requests_total.with_label_values(&[client, of.plan]));
        let requests = [of.role, of.plan, &of.model, &of.status];
        Series {
            requests: self.requests_total.with_label_values(&requests),
            passthrough: of.reason.map(|reason| self.passthrough_total.with_label_values(&[reason])),
            client_requests,
            overhead: OnceLock::new(),
            first_byte: OnceLock::new(),
            tokens: OnceLock::new(),
            cost: Default::default(),
            counterfactual: Default::default(),
            saved: OnceLock::new(),
            owners: OnceLock::new(),
            gate_tokens: OnceLock::new(),
            recalls: Default::default(),
            of,
        }
    }
}

/// What a bill is shown beside, with the bill itself.
fn baselines() -> [&'static str; 3] {
    ["billed", Baseline::Sent.as_str(), Baseline::Aligned.as_str()]
}

impl Series {
    /// One more of them.
    pub fn count(&self) {
        self.requests.inc();
        for counter in self.passthrough.iter().chain(&self.client_requests) {
            counter.inc();
        }
    }

    /// Seconds of our own: reading, aligning, observing.
    pub fn overhead(&self, metrics: &Metrics, seconds: [f64; 3]) {
        let phase = |phase| metrics.overhead_seconds.with_label_values(&[phase]);
        let phases = self.overhead.get_or_init(|| ["read", "align", "observe"].map(phase));
        for (phase, seconds) in phases.iter().zip(seconds) {
            phase.observe(seconds);
        }
    }

    pub fn first_byte(&self, metrics: &Metrics, seconds: f64) {
        let find = || metrics.upstream_first_byte_seconds.with_label_values::<&str>(&[]);
        self.first_byte.get_or_init(find).observe(seconds);
    }

    pub fn tokens(&self, metrics: &Metrics, usage: &Usage) {
        let find = || {
            let tenant = &*metrics.tenant_label(self.of.tenant);
            let client = self.of.client.as_deref().unwrap_or(NONE);
            usage.kinds().map(|(kind, _)| {
                let labels = [self.of.role, &self.of.model, kind];
                let tokens = metrics.tokens_total.with_label_values(&labels);
                let tenant = metrics.tenant_tokens_total.with_label_values(&[tenant, kind]);
                [tokens, tenant, metrics.client_tokens_total.with_label_values(&[client, kind])]
            })
        };
        for (counters, (_, count)) in self.tokens.get_or_init(find).iter().zip(usage.kinds()) {
            counters.iter().for_each(|counter| counter.inc_by(count));
        }
    }

    /// Tokens of another model than the one that was asked for; too few to keep its counters.
    pub fn tokens_of(&self, metrics: &Metrics, model: &str, usage: &Usage) {
        let tenant = &*metrics.tenant_label(self.of.tenant);
        let client = self.of.client.as_deref().unwrap_or(NONE);
        for (kind, count) in usage.kinds() {
            metrics.tokens_total.with_label_values(&[self.of.role, model, kind]).inc_by(count);
            metrics.tenant_tokens_total.with_label_values(&[tenant, kind]).inc_by(count);
            metrics.client_tokens_total.with_label_values(&[client, kind]).inc_by(count);
        }
    }

    /// Dollars of another model than the one that was asked for.
    pub fn cost_of(&self, metrics: &Metrics, model: &str, usd: [Option<f64>; 5]) {
        for ((kind, _), usd) in Usage::default().kinds().into_iter().zip(usd) {
            if let Some(usd) = usd {
                metrics.cost_usd_total.with_label_values(&[self.of.role, model, kind]).inc_by(usd);
            }
        }
    }

    /// Dollars as billed, in the order of [`Usage::kinds`]; a kind without a rate costs an unknown amount, which is
    /// not nothing.
    pub fn cost(&self, metrics: &Metrics, usd: [Option<f64>; 5]) {
        for ((kept, (kind, _)), usd) in self.cost.iter().zip(Usage::default().kinds()).zip(usd) {
            let labels = [self.of.role, &self.of.model, kind];
            let find = || metrics.cost_usd_total.with_label_values(&labels);
            if let Some(usd) = usd {
                kept.get_or_init(find).inc_by(usd);
            }
        }
    }

    /// Counts the cost under another plan, if it is known.
    pub fn counterfactual(&self, metrics: &Metrics, baseline: Baseline, usd: Option<f64>) {
        let labels = [self.of.role, &self.of.model, baseline.as_str()];
        let find = || metrics.counterfactual_usd_total.with_label_values(&labels);
        if let Some(usd) = usd {
            self.counterfactual[baseline as usize].get_or_init(find).inc_by(usd);
        }
    }

    /// Against the request as sent; what was dearer is taken off.
    pub fn saved(&self, metrics: &Metrics, usd: f64) {
        let find = || metrics.saved_usd.with_label_values(&[self.of.role, &self.of.model]);
        self.saved.get_or_init(find).add(usd);
    }

    /// Dollars of the tenant and of the client: billed, as sent, and aligned.
    pub fn owners(&self, metrics: &Metrics, usd: [f64; 3]) {
        let find = || {
            let tenant = &*metrics.tenant_label(self.of.tenant);
            let client = self.of.client.as_deref().unwrap_or(NONE);
            let baselines = baselines();
            [(&metrics.tenant_cost_usd_total, tenant), (&metrics.client_cost_usd_total, client)]
                .map(|(family, owner)| baselines.map(|baseline| family.with_label_values(&[owner, baseline])))
        };
        for counters in self.owners.get_or_init(find) {
            counters.iter().zip(usd).for_each(|(counter, usd)| counter.inc_by(usd));
        }
    }

    /// Tokens that the gate saved, and that it missed.
    pub fn gate_tokens(&self, metrics: &Metrics, tokens: [u64; 2]) {
        let kind = |kind| metrics.gate_tokens_total.with_label_values(&[kind]);
        let kinds = self.gate_tokens.get_or_init(|| ["saved", "missed"].map(kind));
        for (kind, tokens) in kinds.iter().zip(tokens) {
            kind.inc_by(tokens);
        }
    }

    /// Counts a hit or a miss of the store.
    pub fn recall(&self, metrics: &Metrics, store: &str, hit: bool) {
        let outcome = if hit { "hit" } else { "miss" };
        let find = || metrics.store_ops_total.with_label_values(&[store, "recall", outcome]);
        self.recalls[usize::from(hit)].get_or_init(find).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alike(model: &str, status: &str) -> Alike<'static> {
        Alike {
            role: "plain",
            plan: "passthrough",
            reason: Some("observe"),
            status: Cow::Owned(status.to_owned()),
            model: Cow::Owned(model.to_owned()),
            client: Some(Cow::Borrowed("a client")),
            tenant: None,
        }
    }

    #[test]
    fn requests_that_are_alike_share_their_counters_and_others_do_not() {
        let metrics = Metrics::new().unwrap();
        let first = metrics.series(alike("m", "200"));
        assert!(Arc::ptr_eq(&first, &metrics.series(alike("m", "200"))));
        // More kinds than places: each is still counted as what it is.
        for round in 0..2 {
            for model in 0..PLACES {
                metrics.series(alike(&format!("m{model}"), "200")).count();
                metrics.series(alike(&format!("m{model}"), "400")).count();
            }
            for model in ["m0", "m77", "m255"] {
                let count = metrics.requests_total.with_label_values(&["plain", "passthrough", model, "400"]);
                assert_eq!(count.get(), round + 1, "{model}");
            }
        }
        assert_eq!(metrics.passthrough_total.with_label_values(&["observe"]).get(), 4 * PLACES as u64);
    }

    #[test]
    fn predictions_that_are_off_to_both_sides_do_not_cancel_out() {
        let metrics = Metrics::new().unwrap();
        let ratio = || metrics.ledger_error_ratio.with_label_values::<&str>(&[]).get();
        metrics.predicted(1.0, 1.0);
        assert_eq!(ratio(), 0.0);
        (0..500).for_each(|_| [1.5, 0.5].into_iter().for_each(|predicted| metrics.predicted(predicted, 1.0)));
        assert!((ratio() - 0.5).abs() < 0.001, "{}", ratio());
    }

    #[test]
    fn tools_are_counted_by_name_as_far_as_there_is_room() {
        let metrics = Metrics::new().unwrap();
        for number in 0..60 {
            metrics.tool_costs(&format!("tool-{number}"), [1.0, 2.0, 3.0]);
        }
        metrics.tool_costs("two words", [1.0, 2.0, 3.0]);
        let sent = |tool| metrics.tool_cost_usd_total.with_label_values(&[tool, "sent"]).get();
        // Two places are those of `none` and `other`.
        assert_eq!([sent("tool-0"), sent("tool-47"), sent("other")], [2.0, 2.0, 26.0]);
    }

    #[test]
    fn tokens_are_counted_by_kind_for_the_model_and_for_the_tenant() {
        let metrics = Metrics::new().unwrap();
        let series = metrics.series(alike("m", "200"));
        assert!(!metrics.render().unwrap().contains("forkpoint_tokens_total{"));
        let usage = Usage { uncached: 1, cache_read: 2, cache_write_5m: 3, cache_write_1h: 4, output: 5 };
        series.tokens(&metrics, &usage);
        series.tokens(&metrics, &usage);
        for (kind, count) in usage.kinds() {
            let tokens = metrics.tokens_total.with_label_values(&["plain", "m", kind]);
            let tenant = metrics.tenant_tokens_total.with_label_values(&["none", kind]);
            assert_eq!([tokens.get(), tenant.get()], [2 * count; 2], "{kind}");
        }
    }
}
