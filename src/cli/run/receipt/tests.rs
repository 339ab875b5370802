//! What a receipt says of an exposition.

use super::*;
use crate::cli::run::reasons::in_words;
use crate::engine::cache::prices::{Model, ModelFacts, Multiplier, Multipliers};
use crate::engine::words::Refusal;

const WHOLE: &str = r#"# HELP forkpoint_requests_total Requests.
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
forkpoint_tool_cost_usd_total{tool="Agent",baseline="billed"} 3
forkpoint_tool_cost_usd_total{tool="Agent",baseline="sent"} 4
forkpoint_tool_cost_usd_total{tool="Agent",baseline="aligned"} 2.5
forkpoint_context_usd_total 0.5
forkpoint_ledger_error_ratio 0.068
forkpoint_cache_breaks_total{layer="tools",cause="tools"} 2
forkpoint_store_bytes 77
"#;

const OBSERVED: &str = r#"forkpoint_requests_total{status="200"} 6
forkpoint_passthrough_total{reason="observe"} 6
forkpoint_passthrough_total{reason="oauth"} 0
forkpoint_children_total{plan="passthrough",reason="observe"} 5
forkpoint_counterfactual_usd_total{role="plain",model="m",baseline="sent"} 1
forkpoint_counterfactual_usd_total{role="plain",model="m",baseline="aligned"} 0.25
forkpoint_saved_usd{role="plain",model="m"} 0
"#;

const LOSS: &str = r#"forkpoint_requests_total{status="200"} 1
forkpoint_counterfactual_usd_total{role="plain",model="m",baseline="sent"} 0.1333
forkpoint_counterfactual_usd_total{role="plain",model="m",baseline="aligned"} 0.1333
forkpoint_saved_usd{role="plain",model="m"} -0.004
"#;

/// Receipts, with names.
pub fn samples() -> [(&'static str, String); 4] {
    [
        ("whole", receipt(WHOLE)),
        ("observed", receipt_in(Mode::Observe, OBSERVED)),
        ("loss", receipt(LOSS)),
        ("nothing", receipt("")),
    ]
}

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
    let text = receipt(WHOLE);
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
  by tool       children of `Agent`: saved $1.0000 (25 %); billed $3.0000 · as sent $4.0000 · aligned $2.5000
  context       $0.5000 more than aligned was billed for the context of forked children
  ledger        was off by 7 %: take the estimates with that
  cache breaks  2 (tools: 2)
"
    );
}

#[test]
fn a_small_error_of_the_ledger_is_not_said() {
    let sheet = WHOLE.replace("ledger_error_ratio 0.068", "ledger_error_ratio 0.049");
    assert!(receipt(WHOLE).contains("  ledger ") && !receipt(&sheet).contains("  ledger "));
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
    assert!(some.starts_with("saved unknown: no answer came whose model has a price\nforkpoint: "), "{some}");
    let none = receipt("");
    assert!(none.starts_with("saved nothing: no requests were seen\n"), "{none}");
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
    let text = receipt(LOSS);
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
    let text = receipt_in(Mode::Observe, OBSERVED);
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
