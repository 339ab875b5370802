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

/// A receipt that is being written.
struct Lines(String);

impl Lines {
    fn add(&mut self, name: &str, text: impl AsRef<str>) {
        let _ = writeln!(self.0, "  {name:<13} {}", text.as_ref());
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
        let left_alone = sheet.by("passthrough_total", &["reason"]);
        let count: f64 = left_alone.values().sum();
        let is_asked_for = left_alone.keys().all(|reason| reason == Reason::Observe.as_str());
        if count >= requests && !is_asked_for {
            out.add("warning", "nothing could be saved: every request was left alone");
        }
        for (reason, count) in left_alone.iter().filter(|(_, count)| **count > 0.0) {
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

/// What was saved, in dollars and as a part of what the same requests would have cost as sent.
fn verdict(requests: f64, bills: Option<&Bills>) -> String {
    match bills {
        None if requests == 0.0 => "saved nothing: no request came".to_owned(),
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
mod tests {
    use super::*;
    use crate::cli::run::reasons::in_words;
    use crate::engine::cache::prices::{Model, ModelFacts, Multiplier, Multipliers};
    use crate::engine::words::Refusal;

    fn receipt(exposition: &str) -> String {
        receipt_in(Mode::Align, exposition)
    }

    /// With a table of one model, which has multipliers and no price.
    fn receipt_in(mode: Mode, exposition: &str) -> String {
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
        let declined = Declined { children: 5, forked_usd: 0.25, aligned_usd: 0.125, as_sent_usd: 0.5 };
        let why = (mode != Mode::Observe).then(|| in_words(Refusal::Unlearned));
        let has_children = exposition.contains("children_total");
        let declined = has_children.then(|| (("Agent".to_owned(), why), declined)).into_iter().collect();
        let upstream = "http://up.example";
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
            "saved $7.5000 (38 %)
forkpoint: 1 min 1 s through mode align to http://up.example
  requests      1,235 (200: 1,234 · 429: 1)
  left alone    1, because it comes from a consumer login (oauth)
  fan-outs      3
  children      5 (5 aligned)
  not forked    5 children of `Agent`: nothing is known yet of how such children live, and some would be dearer forked; forked they were predicted to cost $0.2500, aligned $0.1250, as sent $0.5000
  read again    children of `Agent` read again 18,400 tokens that their parent had already read
  tokens        uncached 12,350 · cache read 0 · cache write 5m 0 · cache write 1h 0 · output 7
  cost          billed $12.50 · as sent $20.00 · aligned $13.25 (an estimate, by list prices; billed is 62 % of as sent, aligned 66 %)
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
        for (whose, url) in [("client", "ANTHROPIC_BASE_URL"), ("upstream", "upstream.url")] {
            let doubled = format!("{found}forkpoint_misdirected_total{{url=\"{whose}\"}} 3\n");
            let receipt = receipt(&doubled);
            assert!(receipt.contains("/v1/v1/messages got a 404") && receipt.contains(url), "{receipt}");
        }
    }

    #[test]
    fn without_a_price_there_is_no_cost_and_without_requests_a_hint() {
        let some = receipt("forkpoint_requests_total{status=\"200\"} 1\n");
        assert!(some.contains("cache breaks  0\n") && !some.contains("cost"), "{some}");
        assert!(
            some.starts_with("saved unknown: no answer came whose model has a price\nforkpoint: "),
            "{some}"
        );
        let none = receipt("");
        assert!(none.starts_with("saved nothing: no request came\n"), "{none}");
        assert!(none.contains("ANTHROPIC_BASE_URL"), "{none}");
    }

    #[test]
    fn a_tool_with_a_hostile_name_does_nothing_to_the_terminal() {
        for name in ["Agent\u{1b}[2J\u{202e}", &"x\u{1b}".repeat(200)] {
            let shown = whose(name);
            assert!(!shown.contains(['\u{1b}', '\u{202e}']) && shown.chars().count() < 80, "{shown}");
        }
        assert_eq!(whose("Agent\u{1b}[2J\u{202e}"), "children of `Agent\\u{1b}[2J\\u{202e}`");
    }

    #[test]
    fn a_loss_is_said_as_one() {
        let text = receipt(
            r#"forkpoint_requests_total{status="200"} 1
forkpoint_counterfactual_usd_total{role="plain",model="m",baseline="sent"} 0.1333
forkpoint_counterfactual_usd_total{role="plain",model="m",baseline="aligned"} 0.1333
forkpoint_saved_usd{role="plain",model="m"} -0.004
"#,
        );
        assert!(text.starts_with("saved -$0.0040 (-3 %)\n"), "{text}");
        assert!(text.contains("billed $0.1373 · as sent $0.1333"), "{text}");
    }

    #[test]
    fn a_command_that_was_left_alone_throughout_is_warned_about_in_words() {
        let some = |reason: &str| {
            let requests = "forkpoint_requests_total{status=\"200\"} 2\n";
            receipt(&format!("{requests}forkpoint_passthrough_total{{reason=\"{reason}\"}} 2\n"))
        };
        let warned = some("no_credential");
        assert!(
            warned.contains("  warning       nothing could be saved: every request was left alone\n"),
            "{warned}"
        );
        assert!(
            warned.contains("  left alone    2, each because it brings no credential (no_credential)\n"),
            "{warned}"
        );
        let asked_for = some("observe");
        assert!(!asked_for.contains("warning"), "{asked_for}");
    }

    #[test]
    fn what_was_only_observed_is_told_what_the_other_modes_would_have_made_of_it() {
        let text = receipt_in(
            Mode::Observe,
            r#"forkpoint_requests_total{status="200"} 6
forkpoint_passthrough_total{reason="observe"} 6
forkpoint_children_total{plan="passthrough",reason="observe"} 5
forkpoint_counterfactual_usd_total{role="plain",model="m",baseline="sent"} 1
forkpoint_counterfactual_usd_total{role="plain",model="m",baseline="aligned"} 0.25
forkpoint_saved_usd{role="plain",model="m"} 0
"#,
        );
        assert!(text.starts_with("saved $0.0000 (0 %)\n"), "{text}");
        assert!(text.contains("  children      5 (5 left alone)\n"), "{text}");
        assert!(text.contains("  align         would have saved $0.7500 (75 %)\n"), "{text}");
        let forked = "  fork          would have forked 5 children of `Agent`; forked they were predicted to cost $0.2500, aligned $0.1250, as sent $0.5000\n";
        assert!(text.contains(forked), "{text}");
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
        let cost = "  cost          billed $0.5000 · as sent $0.7500 · aligned $0.5000 (prompts only: the output of m has no price; billed is 67 % of as sent, aligned 67 %)\n";
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
