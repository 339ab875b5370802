//! What a command's requests came to, read from the metrics: whatever is counted there can stand here.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use crate::cli::demo::grouped;

/// What the metrics do not say.
pub struct Receipt<'a> {
    pub upstream: &'a str,
    pub mode: &'a str,
    pub lasted: Duration,
}

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
        line("fan-outs", grouped(sheet.of("forks_total", "outcome", "sealed") as u64));
        line(
            "children",
            counts(sheet.total("children_total"), &sheet.by("children_total", &["plan", "reason"])),
        );
        let tokens = sheet.by("tokens_total", &["kind"]);
        let tokens =
            KINDS.map(|kind| format!("{} {}", kind.replace('_', " "), grouped(amount(&tokens, kind))));
        line("tokens", tokens.join(" · "));
        if let Some(cost) = sheet.cost() {
            line("cost", cost);
        }
        line(
            "cache breaks",
            counts(sheet.total("cache_breaks_total"), &sheet.by("cache_breaks_total", &["cause"])),
        );
        out
    }
}

/// The samples of an exposition.
struct Sheet<'a>(Vec<Sample<'a>>);

struct Sample<'a> {
    family: &'a str,
    labels: Vec<(&'a str, &'a str)>,
    value: f64,
}

impl<'a> Sheet<'a> {
    fn read(exposition: &'a str) -> Sheet<'a> {
        Sheet(exposition.lines().filter_map(Sample::read).collect())
    }

    fn samples(&self, family: &str) -> impl Iterator<Item = &Sample<'a>> {
        self.0.iter().filter(move |sample| sample.family == family)
    }

    fn total(&self, family: &str) -> f64 {
        self.samples(family).map(|sample| sample.value).sum()
    }

    fn of(&self, family: &str, label: &str, value: &str) -> f64 {
        let wanted = |sample: &&Sample<'_>| sample.label(label) == value;
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

    /// What was billed, and what it would have been: of models that have a price.
    fn cost(&self) -> Option<String> {
        let billed = self.samples("cost_usd_total").next().map(|_| self.total("cost_usd_total"))?;
        let mut parts = vec![format!("billed {}", usd(billed))];
        let baselines = self.by("counterfactual_usd_total", &["baseline"]);
        parts.extend(
            baselines.iter().map(|(name, cost)| format!("{} {}", name.replace('_', " "), usd(*cost))),
        );
        Some(format!("{} (an estimate, by list prices)", parts.join(" · ")))
    }
}

impl<'a> Sample<'a> {
    /// Reads `forkpoint_name{label="value"} 1`. Values of our labels need no escapes.
    fn read(line: &'a str) -> Option<Sample<'a>> {
        let (head, value) = line.strip_prefix("forkpoint_")?.rsplit_once(' ')?;
        let (family, mut rest) = head.split_once('{').unwrap_or((head, ""));
        let mut labels = Vec::new();
        while let Some((name, quoted)) = rest.split_once("=\"") {
            let (value, behind) = quoted.split_once('"')?;
            labels.push((name, value));
            rest = behind.trim_start_matches(',');
        }
        Some(Sample { family, labels, value: value.parse().ok()? })
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

    const RECEIPT: Receipt<'static> =
        Receipt { upstream: "http://up.example", mode: "align", lasted: Duration::from_millis(61_500) };

    #[test]
    fn every_family_that_is_counted_has_its_line() {
        let text = RECEIPT.of(r#"# HELP forkpoint_requests_total Requests.
forkpoint_requests_total{role="plain",plan="aligned",model="m",status="200"} 1000
forkpoint_requests_total{role="child",plan="aligned",model="m",status="200"} 234
forkpoint_requests_total{role="plain",plan="passthrough",model="none",status="429"} 1
forkpoint_forks_total{outcome="sealed"} 3
forkpoint_forks_total{outcome="unfinished"} 1
forkpoint_children_total{plan="aligned",reason="align"} 5
forkpoint_tokens_total{role="plain",model="m",kind="uncached"} 12345
forkpoint_tokens_total{role="child",model="m",kind="uncached"} 5
forkpoint_cost_usd_total{role="plain",model="m",kind="output"} 12.5
forkpoint_counterfactual_usd_total{role="plain",model="m",baseline="aligned"} 0.25
forkpoint_counterfactual_usd_total{role="plain",model="m",baseline="as_sent"} 20
forkpoint_cache_breaks_total{layer="tools",cause="tools"} 2
forkpoint_store_bytes 77
"#);
        assert_eq!(
            text,
            "
forkpoint: 1 min 1 s through mode align to http://up.example
  requests      1,235 (200: 1,234 · 429: 1)
  fan-outs      3
  children      5 (aligned: align: 5)
  tokens        uncached 12,350 · cache read 0 · cache write 5m 0 · cache write 1h 0 · output 0
  cost          billed $12.50 · aligned $0.2500 · as sent $20.00 (an estimate, by list prices)
  cache breaks  2 (tools: 2)
"
        );
    }

    #[test]
    fn without_a_price_there_is_no_cost_and_without_requests_a_hint() {
        let some = RECEIPT.of("forkpoint_requests_total{status=\"200\"} 1\n");
        assert!(some.contains("cache breaks  0\n") && !some.contains("cost"), "{some}");
        assert!(RECEIPT.of("").contains("ANTHROPIC_BASE_URL"));
    }
}
