//! The totals of a command's requests, read from the metrics: whatever is counted there can be shown here.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use crate::cli::demo::grouped;
use crate::engine::answer::usage::Usage;
use crate::engine::cache::prices::Prices;
use crate::engine::fork::experiment::Declined;
use crate::engine::fork::weighed;

/// The facts for a receipt that are not in the metrics.
pub struct Receipt<'a> {
    pub upstream: &'a str,
    pub mode: &'a str,
    pub prices: &'a Prices,
    pub lasted: Duration,
    /// The tokens that children have read again, by the tool that started them.
    pub rereads: BTreeMap<String, u64>,
    /// The children that were not forked, by the tool that started them and the reason in words.
    pub declined: BTreeMap<(String, &'static str), Declined>,
}

/// The upstream knows none of the paths that were asked for.
const NOT_FOUND: &str = "every request got a 404: does the base URL lack /v1, or have it twice? Anthropic's SDKs add it \
                         themselves; the Vercel AI SDK wants it in ANTHROPIC_BASE_URL, set before `forkpoint run`";

const KINDS: [&str; 5] = ["uncached", "cache_read", "cache_write_5m", "cache_write_1h", "output"];

impl Receipt<'_> {
    /// The receipt for what this exposition counts.
    pub fn of(&self, exposition: &str) -> String {
        let sheet = Sheet::read(exposition);
        let mut out = format!(
            "\nforkpoint: {} through mode {} to {}\n",
            duration(self.lasted),
            self.mode,
            self.upstream
        );
        let mut line = |name: &str, text: String| {
            let _ = writeln!(out, "  {name:<13} {text}");
        };
        let requests = sheet.total("requests_total");
        if requests == 0.0 {
            line(
                "requests",
                "none; does the command read ANTHROPIC_BASE_URL, and does nothing else set it?".into(),
            );
            return out;
        }
        line("requests", counts(requests, &sheet.by("requests_total", &["status"])));
        if sheet.of("requests_total", "status", "404") == requests {
            line("not found", NOT_FOUND.into());
        }
        let left_alone = sheet.total("passthrough_total");
        if left_alone > 0.0 {
            line("left alone", counts(left_alone, &sheet.by("passthrough_total", &["reason"])));
        }
        line("fan-outs", grouped(sheet.of("forks_total", "outcome", "sealed") as u64));
        line(
            "children",
            counts(sheet.total("children_total"), &sheet.by("children_total", &["plan", "reason"])),
        );
        for ((tool, why), declined) in &self.declined {
            line(
                "not forked",
                format!("{} {}: {why}{}", declined.children, whose(tool), prices_of(declined)),
            );
        }
        for (tool, tokens) in &self.rereads {
            let (who, tokens) = (whose(tool), grouped(*tokens));
            line(
                "read again",
                format!("{who} read again {tokens} tokens that their parent had already read"),
            );
        }
        let tokens = sheet.by("tokens_total", &["kind"]);
        let tokens =
            KINDS.map(|kind| format!("{} {}", kind.replace('_', " "), grouped(amount(&tokens, kind))));
        line("tokens", tokens.join(" · "));
        if let Some(cost) = sheet.cost() {
            line("cost", cost);
        }
        if let Some(weighed) = sheet.weighed(self.prices) {
            line(
                "weighed",
                format!("{} (prompts of models without a price, in uncached tokens)", grouped(weighed)),
            );
        }
        line(
            "cache breaks",
            counts(sheet.total("cache_breaks_total"), &sheet.by("cache_breaks_total", &["cause"])),
        );
        out
    }
}

fn whose(tool: &str) -> String {
    if tool.is_empty() { "children".to_owned() } else { format!("children of `{tool}`") }
}

/// What they were predicted to cost forked and aligned, if that is known.
fn prices_of(declined: &Declined) -> String {
    if declined.aligned_usd <= 0.0 {
        return String::new();
    }
    let Declined { forked_usd, aligned_usd, .. } = declined;
    format!("; forked they were predicted to cost ${forked_usd:.4}, aligned ${aligned_usd:.4}")
}

/// The samples of an exposition.
struct Sheet<'a>(Vec<MetricSample<'a>>);

struct MetricSample<'a> {
    family: &'a str,
    labels: Vec<(&'a str, &'a str)>,
    value: f64,
}

impl<'a> Sheet<'a> {
    fn read(exposition: &'a str) -> Sheet<'a> {
        Sheet(exposition.lines().filter_map(MetricSample::read).collect())
    }

    fn samples(&self, family: &str) -> impl Iterator<Item = &MetricSample<'a>> {
        self.0.iter().filter(move |sample| sample.family == family)
    }

    fn total(&self, family: &str) -> f64 {
        self.samples(family).map(|sample| sample.value).sum()
    }

    fn of(&self, family: &str, label: &str, value: &str) -> f64 {
        let wanted = |sample: &&MetricSample<'_>| sample.label(label) == value;
        self.samples(family).filter(wanted).map(|sample| sample.value).sum()
    }

    /// Sums by the values of these labels.
    fn by(&self, family: &str, labels: &[&str]) -> BTreeMap<String, f64> {
        let mut sums = BTreeMap::new();
        for sample in self.samples(family) {
            let key: Vec<_> = labels.iter().map(|label| sample.label(label)).collect();
            *sums.entry(key.join(": ")).or_default() += sample.value;
        }
        sums
    }

    /// The bill, and what it would have been, for the requests for which all three are known. What they
    /// saved is counted for exactly these, so that it shows which part of the bill is theirs.
    fn cost(&self) -> Option<String> {
        let baselines = self.by("counterfactual_usd_total", &["baseline"]);
        let [as_sent, aligned] = [baselines.get("sent")?, baselines.get("aligned")?];
        let billed = (as_sent - self.total("saved_usd")).max(0.0);
        let unpriced = self.unpriced_answers();
        let scope = if unpriced.is_empty() {
            "an estimate, by list prices".to_owned()
        } else {
            format!("prompts only: the output of {} has no price", unpriced.join(", "))
        };
        Some(format!(
            "billed {} · as sent {} · aligned {} ({scope})",
            usd(billed),
            usd(*as_sent),
            usd(*aligned)
        ))
    }

    /// Models whose prompts have a price and whose answers have none.
    fn unpriced_answers(&self) -> Vec<&'a str> {
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
    fn weighed(&self, prices: &Prices) -> Option<u64> {
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

fn amount(sums: &BTreeMap<String, f64>, key: &str) -> u64 {
    sums.get(key).copied().unwrap_or(0.0) as u64
}

/// `12 (200: 11 · 429: 1)`.
fn counts(total: f64, parts: &BTreeMap<String, f64>) -> String {
    let parts: Vec<_> = parts
        .iter()
        .filter(|(_, count)| **count > 0.0)
        .map(|(name, count)| format!("{name}: {}", grouped(*count as u64)))
        .collect();
    let total = grouped(total as u64);
    if parts.is_empty() { total } else { format!("{total} ({})", parts.join(" · ")) }
}

/// Cents matter in small sums.
fn usd(dollars: f64) -> String {
    if dollars.abs() < 10.0 { format!("${dollars:.4}") } else { format!("${dollars:.2}") }
}

fn duration(time: Duration) -> String {
    match time.as_secs() {
        0..60 => format!("{:.1} s", time.as_secs_f64()),
        seconds @ 60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        seconds => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::run::reasons::in_words;
    use crate::engine::cache::prices::{Model, ModelFacts, Multiplier, Multipliers};
    use crate::engine::words::Refusal;

    /// With a table of one model, which has multipliers and no price.
    fn receipt(exposition: &str) -> String {
        let multipliers = Multipliers {
            read: Some(Multiplier::new(0.1)),
            write_5m: Some(Multiplier::new(1.25)),
            write_1h: Some(Multiplier::new(2.0)),
        };
        let row = Model {
            id: "w".to_owned(),
            facts: ModelFacts::UNKNOWN,
            multipliers,
            price: None,
            is_current: false,
            source: "a test".to_owned(),
            as_of: "2026-11-16".to_owned(),
        };
        let (prices, lasted) = (Prices::new(vec![row]), Duration::from_millis(61_500));
        let rereads = BTreeMap::from([("Agent".to_owned(), 18_400)]);
        let declined = Declined { children: 5, forked_usd: 0.25, aligned_usd: 0.125 };
        let why = in_words(Refusal::Unlearned);
        let has_children = exposition.contains("children_total");
        let declined = has_children.then(|| (("Agent".to_owned(), why), declined)).into_iter().collect();
        let (upstream, mode) = ("http://up.example", "align");
        Receipt { upstream, mode, prices: &prices, lasted, rereads, declined }.of(exposition)
    }

    #[test]
    fn every_family_that_is_counted_has_its_line() {
        let text = receipt(
            r#"# HELP forkpoint_requests_total Requests.
forkpoint_requests_total{role="plain",plan="aligned",model="m",status="200"} 1000
forkpoint_requests_total{role="child",plan="aligned",model="m",status="200"} 234
forkpoint_requests_total{role="plain",plan="passthrough",model="none",status="429"} 1
forkpoint_passthrough_total{reason="oauth"} 1
forkpoint_forks_total{outcome="sealed"} 3
forkpoint_forks_total{outcome="unfinished"} 1
forkpoint_children_total{plan="aligned",reason="align"} 5
forkpoint_tokens_total{role="plain",model="m",kind="uncached"} 12345
forkpoint_tokens_total{role="child",model="m",kind="uncached"} 5
forkpoint_tokens_total{role="child",model="m",kind="output"} 7
forkpoint_cost_usd_total{role="plain",model="m",kind="output"} 12.5
forkpoint_cost_usd_total{role="plain",model="m",kind="uncached"} 1.5
forkpoint_counterfactual_usd_total{role="plain",model="m",baseline="aligned"} 13
forkpoint_counterfactual_usd_total{role="child",model="m",baseline="aligned"} 0.25
forkpoint_counterfactual_usd_total{role="plain",model="m",baseline="sent"} 20
forkpoint_counterfactual_usd_total{role="plain",model="m",baseline="uncached"} 90
forkpoint_saved_usd{role="plain",model="m"} 7.5
forkpoint_cache_breaks_total{layer="tools",cause="tools"} 2
forkpoint_store_bytes 77
"#,
        );
        assert_eq!(
            text,
            "
forkpoint: 1 min 1 s through mode align to http://up.example
  requests      1,235 (200: 1,234 · 429: 1)
  left alone    1 (oauth: 1)
  fan-outs      3
  children      5 (aligned: align: 5)
  not forked    5 children of `Agent`: nothing is known yet of how such children live, and some would be dearer forked; forked they were predicted to cost $0.2500, aligned $0.1250
  read again    children of `Agent` read again 18,400 tokens that their parent had already read
  tokens        uncached 12,350 · cache read 0 · cache write 5m 0 · cache write 1h 0 · output 7
  cost          billed $12.50 · as sent $20.00 · aligned $13.25 (an estimate, by list prices)
  cache breaks  2 (tools: 2)
"
        );
    }

    #[test]
    fn a_base_url_that_cannot_work_is_said() {
        let lost = "forkpoint_requests_total{status=\"404\"} 3\n";
        assert!(receipt(lost).contains("every request got a 404"), "{}", receipt(lost));
        let found = format!("{lost}forkpoint_requests_total{{status=\"200\"}} 1\n");
        assert!(!receipt(&found).contains("404: does"), "{}", receipt(&found));
    }

    #[test]
    fn without_a_price_there_is_no_cost_and_without_requests_a_hint() {
        let some = receipt("forkpoint_requests_total{status=\"200\"} 1\n");
        assert!(some.contains("cache breaks  0\n") && !some.contains("cost"), "{some}");
        assert!(receipt("").contains("ANTHROPIC_BASE_URL"));
    }

    #[test]
    fn prompts_are_billed_where_answers_have_no_price() {
        let text = receipt(
            r#"forkpoint_requests_total{status="200"} 1
forkpoint_tokens_total{role="plain",model="m",kind="output"} 7
forkpoint_cost_usd_total{role="plain",model="m",kind="uncached"} 0.5
forkpoint_counterfactual_usd_total{role="plain",model="m",baseline="sent"} 0.75
forkpoint_counterfactual_usd_total{role="plain",model="m",baseline="aligned"} 0.5
forkpoint_saved_usd{role="plain",model="m"} 0.25
"#,
        );
        let cost = "  cost          billed $0.5000 · as sent $0.7500 · aligned $0.5000 (prompts only: the output of m has no price)\n";
        assert!(text.contains(cost), "{text}");
    }

    #[test]
    fn a_model_with_multipliers_and_no_price_is_weighed() {
        let text = receipt(
            r#"forkpoint_requests_total{status="200"} 1
forkpoint_tokens_total{role="plain",model="w",kind="uncached"} 100
forkpoint_tokens_total{role="plain",model="w",kind="cache_read"} 1000
forkpoint_tokens_total{role="child",model="w",kind="cache_write_5m"} 400
forkpoint_tokens_total{role="plain",model="w",kind="output"} 9
forkpoint_tokens_total{role="plain",model="unknown",kind="output"} 9
"#,
        );
        let weighed = "  weighed       700 (prompts of models without a price, in uncached tokens)\n";
        assert!(text.contains(weighed) && !text.contains("cost"), "{text}");
    }
}
