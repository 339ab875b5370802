//! The metrics of a proxy, read from their exposition.

use std::collections::BTreeMap;

use crate::engine::answer::usage::Usage;
use crate::engine::cache::prices::Prices;
use crate::engine::fork::weighed;

/// The samples of an exposition.
pub struct Sheet<'a>(Vec<MetricSample<'a>>);

/// Sums in dollars over the same requests.
pub struct Bills {
    pub billed: f64,
    pub as_sent: f64,
    pub aligned: f64,
    /// Less than nothing if it cost more.
    pub saved: f64,
}

struct MetricSample<'a> {
    family: &'a str,
    labels: Vec<(&'a str, &'a str)>,
    value: f64,
}

impl<'a> Sheet<'a> {
    pub fn read(exposition: &'a str) -> Sheet<'a> {
        Sheet(exposition.lines().filter_map(MetricSample::read).collect())
    }

    fn samples(&self, family: &str) -> impl Iterator<Item = &MetricSample<'a>> {
        self.0.iter().filter(move |sample| sample.family == family)
    }

    pub fn total(&self, family: &str) -> f64 {
        self.samples(family).map(|sample| sample.value).sum()
    }

    pub fn of(&self, family: &str, label: &str, value: &str) -> f64 {
        let wanted = |sample: &&MetricSample<'_>| sample.label(label) == value;
        self.samples(family).filter(wanted).map(|sample| sample.value).sum()
    }

    /// Sums by the values of these labels.
    pub fn by(&self, family: &str, labels: &[&str]) -> BTreeMap<String, f64> {
        let mut sums = BTreeMap::new();
        for sample in self.samples(family) {
            let key: Vec<_> = labels.iter().map(|label| sample.label(label)).collect();
            *sums.entry(key.join(": ")).or_default() += sample.value;
        }
        sums
    }

    /// The bill and what it would have been, for the requests of which all three are known.
    pub fn bills(&self) -> Option<Bills> {
        let baselines = self.by("counterfactual_usd_total", &["baseline"]);
        let [as_sent, aligned] = [*baselines.get("sent")?, *baselines.get("aligned")?];
        // What they saved is counted for exactly these, so that it shows which part of the bill is theirs.
        let saved = self.total("saved_usd");
        Some(Bills { billed: (as_sent - saved).max(0.0), as_sent, aligned, saved })
    }

    /// The bills of children, by the tool that started them.
    pub fn bills_by_tool(&self) -> Vec<(&'a str, Bills)> {
        let mut tools: Vec<&str> =
            self.samples("tool_cost_usd_total").map(|sample| sample.label("tool")).collect();
        tools.sort_unstable();
        tools.dedup();
        let bills = |tool: &str| {
            let usd = |baseline: &str| {
                let is_wanted = |sample: &&MetricSample<'_>| {
                    sample.label("tool") == tool && sample.label("baseline") == baseline
                };
                let wanted = self.samples("tool_cost_usd_total").filter(is_wanted);
                wanted.map(|sample| sample.value).sum::<f64>()
            };
            let [billed, as_sent, aligned] = ["billed", "sent", "aligned"].map(usd);
            Bills { billed, as_sent, aligned, saved: as_sent - billed }
        };
        tools.into_iter().map(|tool| (tool, bills(tool))).collect()
    }

    /// Models whose prompts have a price and whose answers have none.
    pub fn unpriced_answers(&self) -> Vec<&'a str> {
        let priced = |model: &str, kind: &str| {
            let mut samples = self.samples("cost_usd_total");
            samples.any(|sample| sample.label("model") == model && sample.label("kind") == kind)
        };
        let mut models: Vec<&str> = self.answering_models();
        models.retain(|model| priced(model, "uncached") && !priced(model, "output"));
        models
    }

    fn answering_models(&self) -> Vec<&'a str> {
        let answered = |sample: &&MetricSample<'a>| sample.label("kind") == "output" && sample.value > 0.0;
        let mut models: Vec<&str> =
            self.samples("tokens_total").filter(answered).map(|sample| sample.label("model")).collect();
        models.sort_unstable();
        models.dedup();
        models
    }

    /// The prompts of models that have no price and whose use of the cache can be weighed all the same.
    pub fn weighed(&self, prices: &Prices) -> Option<u64> {
        let mut units = None;
        for model in self.answering_models() {
            let Some(row) = prices.model(model).filter(|row| row.price.is_none()) else { continue };
            let tokens = |kind: &str| {
                let of_kind = self.samples("tokens_total").filter(|sample| sample.label("kind") == kind);
                let own = of_kind.filter(|sample| sample.label("model") == model);
                own.map(|sample| sample.value).sum::<f64>() as u64
            };
            let usage = Usage {
                uncached: tokens("uncached"),
                cache_read: tokens("cache_read"),
                cache_write_5m: tokens("cache_write_5m"),
                cache_write_1h: tokens("cache_write_1h"),
                output: 0,
            };
            if let Some(prompt) = weighed(&usage, row.multipliers) {
                *units.get_or_insert(0.0) += prompt;
            }
        }
        units.map(|units| units as u64)
    }
}

impl<'a> MetricSample<'a> {
    /// Reads `forkpoint_name{label="value"} 1`. Values of our labels need no escapes.
    fn read(line: &'a str) -> Option<MetricSample<'a>> {
        let (head, value) = line.strip_prefix("forkpoint_")?.rsplit_once(' ')?;
        let (family, mut rest) = head.split_once('{').unwrap_or((head, ""));
        let mut labels = Vec::new();
        while let Some((name, quoted)) = rest.split_once("=\"") {
            let (value, behind) = quoted.split_once('"')?;
            labels.push((name, value));
            rest = behind.trim_start_matches(',');
        }
        Some(MetricSample { family, labels, value: value.parse().ok()? })
    }

    fn label(&self, wanted: &str) -> &'a str {
        self.labels.iter().find(|(name, _)| *name == wanted).map_or("", |(_, value)| value)
    }
}
