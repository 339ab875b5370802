//! The cost of each run, by client, by spawning tool and by cause of cache breaks.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::engine::answer::usage::Usage;
use crate::engine::cache::prices::{Multiplier, Multipliers, Prices, Usd};
use crate::engine::words::{Plan, Role};
use crate::report::ExchangeRecord;
use crate::report::figures::{NAME_CHARS_MAX, harmless};

use super::super::demo::{aligned, grouped};
use super::super::own_sums::OwnSums;
use super::run::Outcome;
use super::script::Script;

/// One run, added up.
pub struct Total {
    pub title: String,
    /// The settings that make this run, as in the configuration.
    pub settings: String,
    pub all: Sum,
    clients: BTreeMap<String, Sum>,
    tools: BTreeMap<String, Sum>,
    breaks: BTreeMap<String, Breaks>,
    pub held_ms: u64,
    /// Requests that the simulator refused; they are in none of the sums.
    refused: usize,
    /// The children that were recognised, each once however many requests it made, and those of them that were forked.
    children: usize,
    forked: usize,
    /// What the forkpoint of this run itself says of it.
    own: OwnSums,
}

/// The cost of some requests. Outputs are the same in every run, so only prompts are weighed and priced.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    pub requests: usize,
    pub usage: Usage,
    /// Prompt tokens in multiples of an uncached one.
    pub weighed: f64,
    prompt: Usd,
    /// Requests of models without a price.
    pub unpriced: usize,
}

/// Usual prices, for models whose own are not known: multiples of an uncached token.
const READ: f64 = 0.1;
const WRITE_5M: f64 = 1.25;
const WRITE_1H: f64 = 2.0;

#[derive(Clone, Copy, Default)]
struct Breaks {
    count: usize,
    tokens: u64,
    cost_usd: f64,
}

impl Sum {
    fn add(&mut self, usage: &Usage, weighed: f64, prompt: Option<Usd>) {
        self.requests += 1;
        self.usage.uncached += usage.uncached;
        self.usage.cache_read += usage.cache_read;
        self.usage.cache_write_5m += usage.cache_write_5m;
        self.usage.cache_write_1h += usage.cache_write_1h;
        self.usage.output += usage.output;
        self.weighed += weighed;
        match prompt {
            Some(prompt) => self.prompt = self.prompt + prompt,
            None => self.unpriced += 1,
        }
    }

    /// The dollars, if all of them are known.
    fn usd(&self) -> Option<Usd> {
        (self.unpriced == 0).then_some(self.prompt)
    }
}

/// The prompt of a request in multiples of an uncached token of its model.
fn weigh(usage: &Usage, multipliers: Option<&Multipliers>) -> f64 {
    let or = |multiplier: Option<Multiplier>, usual| multiplier.map_or(usual, Multiplier::as_f64);
    let Multipliers { read, write_5m, write_1h } = multipliers.copied().unwrap_or_default();
    usage.uncached as f64
        + or(read, READ) * usage.cache_read as f64
        + or(write_5m, WRITE_5M) * usage.cache_write_5m as f64
        + or(write_1h, WRITE_1H) * usage.cache_write_1h as f64
}

impl Total {
    pub fn of<'o>(
        title: &str,
        settings: &str,
        script: &Script,
        outcomes: impl Iterator<Item = &'o Outcome> + Clone,
        prices: &Prices,
        refused: usize,
    ) -> Total {
        let records = outcomes.clone().map(|outcome| &outcome.record);
        let mut total = Total {
            title: title.to_owned(),
            settings: settings.to_owned(),
            all: Sum::default(),
            clients: BTreeMap::new(),
            tools: BTreeMap::new(),
            breaks: BTreeMap::new(),
            held_ms: 0,
            refused,
            children: children(records.clone()),
            forked: children(records.clone().filter(|record| record.plan == Plan::Forked.as_str())),
            own: OwnSums::of(records),
        };
        for Outcome { part, usage, record } in outcomes {
            let part = &script.parts[*part];
            let model = prices.model(&part.model);
            let weighed = weigh(usage, model.map(|model| &model.multipliers));
            let prompt = prices.price(&part.model).and_then(|price| price.cost(usage).prompt());
            let client = part.record.client.clone().unwrap_or_else(|| "none".to_owned());
            let tool = record.tool.clone().unwrap_or_else(|| "(no child)".to_owned());
            for sum in [
                &mut total.all,
                total.clients.entry(client).or_default(),
                total.tools.entry(tool).or_default(),
            ] {
                sum.add(usage, weighed, prompt);
            }
            if let Some(cause) = &record.break_cause {
                let breaks = total.breaks.entry(cause.clone()).or_default();
                breaks.count += 1;
                breaks.tokens += record.break_tokens.unwrap_or_default();
                breaks.cost_usd += record.break_cost_usd.unwrap_or_default();
            }
            total.held_ms += record.held_ms;
        }
        total
    }

    /// The cost of this run and of another: dollars where all of both are known, weighed tokens else.
    pub fn cost(&self, other: &Total) -> (f64, f64) {
        match (self.all.usd(), other.all.usd()) {
            (Some(one), Some(other)) => (one.as_f64(), other.as_f64()),
            _ => (self.all.weighed, other.all.weighed),
        }
    }

    pub fn is_cheaper(&self, than: &Total) -> bool {
        let (one, other) = self.cost(than);
        one < other
    }

    pub fn json(&self) -> Value {
        let sum = |sum: &Sum| {
            json!({"requests": sum.requests, "tokens": tokens(&sum.usage), "weighed": sum.weighed,
                "prompt_usd": sum.usd().map(Usd::as_f64), "unpriced": sum.unpriced})
        };
        let sums = |sums: &BTreeMap<String, Sum>| -> Value {
            sums.iter().map(|(name, one)| (name.clone(), sum(one))).collect::<serde_json::Map<_, _>>().into()
        };
        let breaks: serde_json::Map<String, Value> = self
            .breaks
            .iter()
            .map(|(cause, breaks)| {
                let Breaks { count, tokens, cost_usd } = breaks;
                (cause.clone(), json!({"count": count, "tokens": tokens, "cost_usd": cost_usd}))
            })
            .collect();
        json!({
            "run": self.title,
            "settings": self.settings,
            "all": sum(&self.all),
            "clients": sums(&self.clients),
            "tools": sums(&self.tools),
            "breaks": breaks,
            "held_ms": self.held_ms,
            "refused": self.refused,
            "children": self.children,
            "forked": self.forked,
            "own_sums": self.own.json(),
        })
    }
}

/// The number of children that made these requests: calls of fan-outs, and first turns of those without a call.
fn children<'r>(records: impl Iterator<Item = &'r ExchangeRecord>) -> usize {
    let (mut called, mut others) = (BTreeSet::new(), 0);
    for record in records.filter(|record| record.role == Role::Child.as_str()) {
        match (&record.fork, record.details.child_number) {
            (Some(fork), Some(number)) => {
                called.insert((&record.tenant, fork, number));
            }
            _ => others += usize::from(record.child_turn == Some(1)),
        }
    }
    called.len() + others
}

/// By kind.
pub fn tokens(usage: &Usage) -> Value {
    let kinds = usage.kinds().into_iter().map(|(kind, tokens)| (kind.to_owned(), tokens.into()));
    Value::Object(kinds.collect())
}

/// One of the ways that a run is divided.
type Division = fn(&Total) -> &BTreeMap<String, Sum>;

/// The runs side by side.
pub fn table(totals: &[&Total]) -> String {
    let mut lines: Vec<Vec<String>> = Vec::new();
    let mut rules = Vec::new();
    let row = |name: &str, cell: &dyn Fn(&Total) -> String| -> Vec<String> {
        std::iter::once(name.to_owned()).chain(totals.iter().map(|total| cell(total))).collect()
    };
    lines.push(row("", &|total| total.title.clone()));
    rules.push(lines.len());
    for (place, (kind, _)) in Usage::default().kinds().into_iter().enumerate() {
        lines.push(row(kind, &|total| grouped(total.all.usage.kinds()[place].1)));
    }
    let base = totals.first().copied();
    lines.push(row("prompt cost", &|total| cost(&total.all) + &compared(total, base)));
    if totals.iter().any(|total| total.own.unknown < total.all.requests) {
        lines.push(row("saved, by its own sums", &|total| signed_usd(total.own.saved_usd())));
    }
    lines.push(row("held, seconds", &|total| format!("{:.1}", total.held_ms as f64 / 1e3)));
    lines.push(row("children, forked", &|total| format!("{}, {}", total.children, total.forked)));
    if totals.iter().any(|total| total.refused > 0) {
        lines.push(row("refused", &|total| grouped(total.refused as u64)));
    }
    let groups: [(&str, Division); 2] = [("client", |total| &total.clients), ("tool", |total| &total.tools)];
    for (what, group) in groups {
        rules.push(lines.len());
        for name in names(totals.iter().flat_map(|total| group(total).keys())) {
            let cell = |total: &Total| group(total).get(&name).map_or_else(|| "-".into(), cost);
            lines.push(row(&format!("{what} {}", harmless(&name, NAME_CHARS_MAX)), &cell));
        }
    }
    let causes = names(totals.iter().flat_map(|total| total.breaks.keys()));
    if !causes.is_empty() {
        rules.push(lines.len());
    }
    for cause in causes {
        let cell = |total: &Total| match total.breaks.get(&cause) {
            Some(Breaks { count, tokens, cost_usd }) => {
                let usd = if *cost_usd > 0.0 { format!(" ${cost_usd:.4}") } else { String::new() };
                format!("{count}x {} tokens{usd}", grouped(*tokens))
            }
            None => "-".to_owned(),
        };
        lines.push(row(&format!("cache break {}", harmless(&cause, NAME_CHARS_MAX)), &cell));
    }
    aligned(&lines, &rules)
}

/// The settings that were tried beside the modes, and what they come to.
pub fn tried(totals: &[Total], base: Option<&Total>) -> String {
    if totals.is_empty() {
        return String::new();
    }
    let head = ["other settings", "prompt cost", "held, seconds"].map(str::to_owned).to_vec();
    let row = |total: &Total| {
        let cost = cost(&total.all) + &compared(total, base);
        vec![total.title.clone(), cost, format!("{:.1}", total.held_ms as f64 / 1e3)]
    };
    let lines: Vec<_> = std::iter::once(head).chain(totals.iter().map(row)).collect();
    format!("\n{}", aligned(&lines, &[1]))
}

/// How much more or less a run costs than another.
fn compared(total: &Total, base: Option<&Total>) -> String {
    match base {
        Some(base) if base.title != total.title => {
            let (one, base) = total.cost(base);
            if base > 0.0 { format!(" ({:+.0} %)", 100.0 * (one / base - 1.0)) } else { String::new() }
        }
        _ => String::new(),
    }
}

/// `-$0.1310`: what was saved may be less than nothing.
fn signed_usd(dollars: f64) -> String {
    let sign = if dollars < 0.0 { "-" } else { "" };
    format!("{sign}${:.4}", dollars.abs())
}

fn names<'t>(names: impl Iterator<Item = &'t String>) -> Vec<String> {
    let mut names: Vec<String> = names.cloned().collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Weighed tokens, and dollars where they are known.
fn cost(sum: &Sum) -> String {
    let mut cell = grouped(sum.weighed.round() as u64);
    if let Some(usd) = sum.usd() {
        cell += &format!(" {usd}");
    }
    cell
}

/// The cheapest run, and of equally cheap ones the first.
pub fn best(totals: &[Total]) -> Option<&Total> {
    totals.iter().reduce(|best, other| if other.is_cheaper(best) { other } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_with_a_hostile_name_does_nothing_to_the_terminal() {
        let hostile = || "Agent\u{1b}[2J\u{202e}".to_owned();
        let total = Total {
            title: "as recorded".to_owned(),
            settings: String::new(),
            all: Sum::default(),
            clients: BTreeMap::from([(hostile(), Sum::default())]),
            tools: BTreeMap::from([(hostile(), Sum::default())]),
            breaks: BTreeMap::from([(hostile(), Breaks::default())]),
            held_ms: 0,
            refused: 0,
            children: 0,
            forked: 0,
            own: OwnSums::default(),
        };
        let table = table(&[&total]);
        assert!(!table.contains(['\u{1b}', '\u{202e}']), "{table}");
        for row in ["client", "tool", "cache break"] {
            assert!(table.contains(&format!("{row} Agent\\u{{1b}}[2J\\u{{202e}}")), "{table}");
        }
    }
}
