//! The totals of a command's requests, read from the metrics: whatever is counted there can be shown here.
//!
//! Its first line is the verdict, `saved $0.0123 (34 %)`; the facts behind it follow.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use super::sheet::{Bills, Sheet};
use crate::config::Mode;
use crate::engine::cache::prices::Prices;
use crate::engine::fork::experiment::Declined;
use crate::engine::words::Reason;
use crate::engine::words::clauses::{REASONS, clause};
use crate::report::figures::{NAME_CHARS_MAX, duration, grouped, harmless, percent, usd};

/// The facts for a receipt that are not in the metrics.
pub struct Receipt<'a> {
    pub upstream: &'a str,
    pub mode: Mode,
    pub prices: &'a Prices,
    pub lasted: Duration,
    /// The tokens that children have read again, by the tool that started them.
    pub rereads: BTreeMap<String, u64>,
    /// The children that were not forked, by the tool that started them and the reason; none where only the mode keeps
    /// them from being forked.
    pub declined: BTreeMap<(String, Option<&'static str>), Declined>,
}

/// The upstream knows none of the paths that were asked for.
const NOT_FOUND: &str = "every request got a 404: does the base URL lack /v1, or have it twice? Anthropic's SDKs add it \
                         themselves; the Vercel AI SDK wants it in ANTHROPIC_BASE_URL, set before `forkpoint run`";

/// The upstream does not know a path that has its version twice: whose URL is to be changed.
const DOUBLED: [(&str, &str); 2] = [
    ("client", "/v1/v1/messages got a 404: leave /v1 out of the client's base URL (ANTHROPIC_BASE_URL)"),
    ("upstream", "/v1/v1/messages got a 404: leave /v1 out of upstream.url, clients add it themselves"),
];

const KINDS: [&str; 5] = ["uncached", "cache_read", "cache_write_5m", "cache_write_1h", "output"];

/// An error of the ledger that is said.
const LEDGER_ERROR_MAX: f64 = 0.05;

/// The columns before the text of a line.
pub const NAME_COLUMNS: usize = 16;

/// A receipt that is being written.
struct Lines(String);

impl Lines {
    fn add(&mut self, name: &str, text: impl AsRef<str>) {
        let _ = writeln!(self.0, "  {name:<0$} {1}", NAME_COLUMNS - 3, text.as_ref());
    }
}

impl Receipt<'_> {
    /// The receipt for what this exposition counts.
    pub fn of(&self, exposition: &str) -> String {
        let sheet = Sheet::read(exposition);
        let requests = sheet.total("requests_total");
        let bills = sheet.bills();
        let mut out = Lines(format!(
            "{}\nforkpoint: {} through mode {} to {}\n",
            verdict(requests, bills.as_ref()),
            duration(self.lasted),
            self.mode.as_str(),
            self.upstream
        ));
        if requests == 0.0 {
            let hint = "none; does the command read ANTHROPIC_BASE_URL, and does nothing else set it?";
            out.add("requests", hint);
            return out.0;
        }
        self.add_requests(&mut out, &sheet, requests);
        self.add_children(&mut out, &sheet);
        self.add_bill(&mut out, &sheet, bills.as_ref());
        out.add(
            "cache breaks",
            counts(sheet.total("cache_breaks_total"), &sheet.by("cache_breaks_total", &["cause"])),
        );
        out.0
    }

    fn add_requests(&self, out: &mut Lines, sheet: &Sheet<'_>, requests: f64) {
        out.add("requests", counts(requests, &sheet.by("requests_total", &["status"])));
        let is_misdirected = |whose: &str| sheet.of("misdirected_total", "url", whose) > 0.0;
        let mut doubled = DOUBLED.iter().filter(|(whose, _)| is_misdirected(whose)).peekable();
        if doubled.peek().is_none() && sheet.of("requests_total", "status", "404") == requests {
            out.add("not found", NOT_FOUND);
        }
        doubled.for_each(|(_, advice)| out.add("not found", advice));
        let mut left_alone = sheet.by("passthrough_total", &["reason"]);
        left_alone.retain(|_, count| *count > 0.0);
        let count: f64 = left_alone.values().sum();
        let is_asked_for = left_alone.keys().all(|reason| reason == Reason::Observe.as_str());
        if count >= requests && !is_asked_for {
            out.add("warning", "nothing could be saved: every request was left alone");
        }
        for (reason, count) in &left_alone {
            let why = clause(REASONS, reason).unwrap_or(reason);
            let each = if *count == 1.0 { "" } else { "each " };
            out.add("left alone", format!("{}, {each}because {why} ({reason})", grouped(*count as u64)));
        }
    }

    fn add_children(&self, out: &mut Lines, sheet: &Sheet<'_>) {
        out.add("fan-outs", grouped(sheet.of("forks_total", "outcome", "sealed") as u64));
        let plans = sheet.by("children_total", &["plan"]);
        let plans: Vec<String> = plans
            .iter()
            .filter(|(_, count)| **count > 0.0)
            .map(|(plan, count)| format!("{} {}", grouped(*count as u64), plan_in_words(plan)))
            .collect();
        let children = grouped(sheet.total("children_total") as u64);
        let split = if plans.is_empty() { String::new() } else { format!(" ({})", plans.join(" · ")) };
        out.add("children", format!("{children}{split}"));
        for ((tool, why), declined) in &self.declined {
            let who = format!("{} {}", declined.children, whose(tool));
            match why {
                Some(why) => out.add("not forked", format!("{who}: {why}{}", prices_of(declined))),
                None => out.add("fork", format!("would have forked {who}{}", prices_of(declined))),
            }
        }
        for (tool, tokens) in &self.rereads {
            let (who, tokens) = (whose(tool), grouped(*tokens));
            out.add(
                "read again",
                format!("{who} read again {tokens} tokens that their parent had already read"),
            );
        }
    }

    fn add_bill(&self, out: &mut Lines, sheet: &Sheet<'_>, bills: Option<&Bills>) {
        let tokens = sheet.by("tokens_total", &["kind"]);
        let tokens =
            KINDS.map(|kind| format!("{} {}", kind.replace('_', " "), grouped(amount(&tokens, kind))));
        out.add("tokens", tokens.join(" · "));
        if let Some(bills) = bills {
            out.add("cost", cost(sheet, bills));
            if self.mode == Mode::Observe {
                out.add("align", would_have_cost(bills));
            }
            add_estimates(out, sheet);
        }
        let uncompared = sheet.total("uncompared_total");
        if uncompared > 0.0 {
            let reasons = counts(uncompared, &sheet.by("uncompared_total", &["reason"]));
            out.add("not compared", reasons.replace('_', " "));
        }
        if let Some(weighed) = sheet.weighed(self.prices) {
            out.add(
                "weighed",
                format!("{} (prompts of models without a price, in uncached tokens)", grouped(weighed)),
            );
        }
    }
}

/// What was saved by tool, what context has cost, and how far off all of it may be.
fn add_estimates(out: &mut Lines, sheet: &Sheet<'_>) {
    for (tool, bills) in sheet.bills_by_tool() {
        let Bills { saved, billed, as_sent, aligned } = bills;
        let share = percent(saved, as_sent).map(|share| format!(" ({share})")).unwrap_or_default();
        out.add(
            "by tool",
            format!(
                "{}: saved {}{share}; billed {} · as sent {} · aligned {}",
                whose(tool),
                usd(saved),
                usd(billed),
                usd(as_sent),
                usd(aligned)
            ),
        );
    }
    let context = sheet.total("context_usd_total");
    if context > 0.0 {
        out.add(
            "context",
            format!("{} more than aligned was billed for the context of forked children", usd(context)),
        );
    }
    let error = sheet.total("ledger_error_ratio");
    if error > LEDGER_ERROR_MAX {
        let share = percent(error, 1.0).unwrap_or_default();
        out.add("ledger", format!("was off by {share}: take the estimates with that"));
    }
}

/// What was saved, in dollars and as a part of what the same requests would have cost as sent.
fn verdict(requests: f64, bills: Option<&Bills>) -> String {
    match bills {
        None if requests == 0.0 => "saved nothing: no requests were seen".to_owned(),
        None => "saved unknown: no answer came whose model has a price".to_owned(),
        Some(Bills { saved, as_sent, .. }) => match percent(*saved, *as_sent) {
            Some(share) => format!("saved {} ({share})", usd(*saved)),
            None => format!("saved {}", usd(*saved)),
        },
    }
}

fn cost(sheet: &Sheet<'_>, bills: &Bills) -> String {
    let Bills { billed, as_sent, aligned, .. } = *bills;
    let unpriced = sheet.unpriced_answers();
    let scope = if unpriced.is_empty() {
        "an estimate, by list prices".to_owned()
    } else {
        format!("prompts only: the output of {} has no price", unpriced.join(", "))
    };
    let share = |dollars| percent(dollars, as_sent).unwrap_or_else(|| "none".to_owned());
    let shares = format!("billed is {} of as sent, aligned {}", share(billed), share(aligned));
    format!(
        "billed {} · as sent {} · aligned {} ({scope}; {shares})",
        usd(billed),
        usd(as_sent),
        usd(aligned)
    )
}

/// What mode `align` would have made of requests that were only observed.
fn would_have_cost(bills: &Bills) -> String {
    let less = bills.as_sent - bills.aligned;
    let share = percent(less, bills.as_sent).map(|share| format!(" ({share})")).unwrap_or_default();
    format!("would have saved {}{share}", usd(less))
}

fn plan_in_words(plan: &str) -> &str {
    match plan {
        "passthrough" => "left alone",
        plan => plan,
    }
}

fn whose(tool: &str) -> String {
    match tool {
        "" => "children".to_owned(),
        tool => format!("children of `{}`", harmless(tool, NAME_CHARS_MAX)),
    }
}

/// What they were predicted to cost forked, aligned and as sent, if that is known.
fn prices_of(declined: &Declined) -> String {
    if declined.aligned_usd <= 0.0 {
        return String::new();
    }
    let Declined { forked_usd, aligned_usd, as_sent_usd, .. } = declined;
    format!(
        "; forked they were predicted to cost {}, aligned {}, as sent {}",
        usd(*forked_usd),
        usd(*aligned_usd),
        usd(*as_sent_usd)
    )
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

#[cfg(test)]
mod tests;
#[cfg(test)]
pub use tests::samples;
