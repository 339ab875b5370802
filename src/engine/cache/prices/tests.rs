use proptest::prelude::*;

use super::*;

fn multipliers(read: f64, write_5m: f64, write_1h: f64) -> Multipliers {
    Multipliers {
        read: Some(Multiplier::new(read)),
        write_5m: Some(Multiplier::new(write_5m)),
        write_1h: Some(Multiplier::new(write_1h)),
    }
}

fn rates(input: f64, output: Option<f64>) -> Rates {
    Rates { input: Rate::per_million(input), output: output.map(Rate::per_million) }
}

fn price() -> Price {
    Price { rates: rates(4.0, Some(20.0)), multipliers: multipliers(0.05, 1.25, 2.0), tiers: Vec::new() }
}

fn model(id: &str) -> Model {
    Model {
        id: id.to_owned(),
        facts: ModelFacts {
            minimum_tokens: Some(512),
            window_tokens: Some(9_000),
            bound_thinking: false,
            string_is_block: false,
        },
        multipliers: Multipliers::default(),
        price: Some(price()),
        is_current: false,
        source: "a test".to_owned(),
        as_of: "2026-11-16".to_owned(),
    }
}

fn prices(ids: &[&str]) -> Prices {
    Prices::new(ids.iter().map(|id| model(id)).collect())
}

fn usage([uncached, cache_read, cache_write_5m, cache_write_1h, output]: [u64; 5]) -> Usage {
    Usage { uncached, cache_read, cache_write_5m, cache_write_1h, output }
}

/// An amount by its picodollars.
fn pico(amount: u128) -> Option<Usd> {
    Some(Usd(amount))
}

#[test]
fn each_run_is_billed_at_the_price_of_its_own_model() {
    let mut half = model("half");
    half.price = Some(Price { rates: rates(2.0, Some(10.0)), ..price() });
    let free = Model { price: None, ..model("free") };
    let prices = Prices::new(vec![model("whole"), half, free]);
    let bill = |others: &str| {
        let mut bill = Bill::default();
        bill.update(&format!(
            r#"{{"input_tokens":100,"output_tokens":10,"iterations":[
                {{"type":"compaction","input_tokens":1000,"output_tokens":20}},
                {{"type":"message","model":null,"input_tokens":100,"output_tokens":10}}{others}]}}"#
        ));
        bill
    };
    let runs = |others: &str, model: &str| prices.cost(&bill(others), model).and_then(|cost| cost.total());
    // 1,100 × $4 and 30 × $20 per million.
    assert_eq!(runs("", "whole"), pico(5_000_000_000));
    let fallback =
        r#",{"type":"fallback_message","model":"half-20260901","input_tokens":100,"output_tokens":10}"#;
    // And 100 × $2 and 10 × $10 per million.
    assert_eq!(runs(fallback, "whole"), pico(5_300_000_000));
    let adviser = r#",{"type":"advisor_message","model":"free","input_tokens":100,"output_tokens":10}"#;
    assert_eq!(runs(adviser, "whole"), None, "a model without a price has tokens and no dollars");
    assert_eq!(runs("", "free"), None);
}

#[test]
fn a_bill_calculated_by_hand() {
    let cost = price().cost(&usage([1_000, 46_000, 2_000, 3_000, 500]));
    // 1,000 × $4 · 46,000 × $0.20 · 2,000 × $5 · 3,000 × $8 · 500 × $20, each per million.
    assert_eq!(cost.uncached, pico(4_000_000_000));
    assert_eq!(cost.cache_read, pico(9_200_000_000));
    assert_eq!(cost.cache_write_5m, pico(10_000_000_000));
    assert_eq!(cost.cache_write_1h, pico(24_000_000_000));
    assert_eq!(cost.output, pico(10_000_000_000));
    assert_eq!(cost.prompt(), pico(47_200_000_000));
    assert_eq!(cost.total().map(Usd::as_f64), Some(0.0572));
}

#[test]
fn kinds_are_spelt_as_those_of_usage() {
    let tokens = usage([1, 2, 3, 4, 5]);
    let spelt = price().cost(&tokens).kinds().map(|(kind, amount)| (kind, amount.is_some()));
    assert_eq!(spelt, tokens.kinds().map(|(kind, _)| (kind, true)));
}

#[test]
fn an_unknown_rate_is_unknown_only_where_it_is_billed() {
    let without_output = Price { rates: rates(4.0, None), ..price() };
    let cost = without_output.cost(&usage([1_000_000, 0, 0, 0, 1]));
    assert_eq!((cost.prompt(), cost.output, cost.total()), (pico(4_000_000_000_000), None, None));
    assert_eq!(without_output.cost(&usage([1_000_000, 0, 0, 0, 0])).total(), pico(4_000_000_000_000));

    let multipliers = Multipliers { write_1h: None, ..price().multipliers };
    let without_1h = Price { multipliers, ..price() };
    assert_eq!(without_1h.cost(&usage([1, 1, 1, 1, 1])).prompt(), None);
    assert!(without_1h.cost(&usage([1, 1, 1, 0, 1])).total().is_some());
}

#[test]
fn a_longer_prompt_has_the_rates_of_its_tier_for_every_token() {
    let tiered = Price {
        tiers: vec![
            Tier { above_tokens: 100, rates: rates(8.0, Some(40.0)) },
            Tier { above_tokens: 1_000, rates: rates(16.0, None) },
        ],
        ..price()
    };
    let uncached = |usage: Usage| tiered.cost(&usage).uncached;
    assert_eq!(uncached(usage([100, 0, 0, 0, 9_999])), pico(400_000_000), "output does not count");
    assert_eq!(uncached(usage([1, 60, 30, 10, 0])), pico(8_000_000), "every kind of the prompt counts");
    assert_eq!(uncached(usage([1_001, 0, 0, 0, 0])), pico(16_016_000_000));
    assert_eq!(tiered.cost(&usage([1_001, 0, 0, 0, 1])).output, None);
}

#[test]
fn a_name_with_date_or_provider_is_the_same_model() {
    let prices = prices(&["claude-opus-5-5", "claude-opus-5"]);
    for name in [
        "claude-opus-5-5",
        "claude-opus-5-5-20260901",
        "claude-opus-5-5@20260901",
        "claude-opus-5-5-latest",
        "claude-opus-5-5@default",
        "anthropic.claude-opus-5-5",
        "anthropic.claude-opus-5-5-v1",
        "anthropic.claude-opus-5-5-20260901-v1:0",
        "us.anthropic.claude-opus-5-5-20260901-v1:0",
        "us-gov.anthropic.claude-opus-5-5-v1:0",
        "global.anthropic.claude-opus-5-5-20260901-v1:0",
    ] {
        assert_eq!(prices.model(name).map(|model| model.id.as_str()), Some("claude-opus-5-5"), "{name}");
    }
    assert_eq!(prices.model("claude-opus-5-20260901").unwrap().id, "claude-opus-5");
}

#[test]
fn a_name_with_anything_else_is_another_model() {
    let prices = prices(&["claude-opus-5"]);
    for name in [
        "",
        "-20260901",
        "claude-opus",
        "claude-opus-5-5",
        "claude-opus-5-6-20260901",
        "claude-opus-50",
        "claude-opus-5 ",
        "Claude-Opus-5",
        "claude-opus-5-2026090",
        "claude-opus-5-202609011",
        "claude-opus-5-19990901",
        "claude-opus-5-2026090\u{661}",
        "claude-opus-5-\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}",
        "claude-opus-5-v",
        "claude-opus-5-v1:",
        "claude-opus-5-v1:0:200k",
        "claude-opus-5-v1234",
        "claude-opus-5-20260901-20260901",
        "evil/claude-opus-5",
        "evil.claude-opus-5",
        "a.b.anthropic.claude-opus-5",
        "US.anthropic.claude-opus-5",
        "anthropic.anthropic.anthropic.claude-opus-5",
        "claude-opus-5\0",
        "claude-opus-5\n",
    ] {
        assert_eq!(prices.model(name), None, "{name:?}");
        assert_eq!(prices.price(name), None, "{name:?}");
        assert_eq!(prices.facts(name), ModelFacts::UNKNOWN, "{name:?}");
    }
}

#[test]
fn the_longest_id_wins_wherever_it_stands() {
    let ids = ["claude-opus-5", "claude-opus-5-20260901", "anthropic.claude-opus-5"];
    for ids in [ids, [ids[2], ids[1], ids[0]]] {
        let prices = prices(&ids);
        let found = |name: &str| prices.model(name).unwrap().id.clone();
        assert_eq!(found("claude-opus-5-20260901"), "claude-opus-5-20260901");
        assert_eq!(found("claude-opus-5-20260902"), "claude-opus-5");
        assert_eq!(found("anthropic.claude-opus-5-v1:0"), "anthropic.claude-opus-5");
        assert_eq!(found("eu.anthropic.claude-opus-5-v1:0"), "claude-opus-5");
    }
}

#[test]
fn on_bedrock_the_minimum_is_not_known_unless_the_row_is_for_bedrock() {
    let minimum = |prices: &Prices| prices.facts("anthropic.claude-opus-5-v1:0").minimum_tokens;
    assert_eq!(minimum(&prices(&["claude-opus-5"])), None);
    assert_eq!(minimum(&prices(&["claude-opus-5", "anthropic.claude-opus-5"])), Some(512));
    let facts = prices(&["claude-opus-5"]).facts("anthropic.claude-opus-5-v1:0");
    assert_eq!((facts.window_tokens, facts.bound_thinking), (Some(9_000), false));
}

#[test]
fn amounts_print_with_the_digits_that_matter() {
    for (amount, shown) in
        [(12_345_000_000_000, "$12.35"), (9_200_000_000, "$0.0092"), (120_000_000, "$0.000120")]
    {
        assert_eq!(Usd(amount).to_string(), shown);
    }
    assert_eq!(Usd(5).above(Usd(3)), Usd(2));
    assert_eq!(Usd(3).above(Usd(5)), Usd(0));
}

proptest! {
    #[test]
    fn no_usage_overflows_and_the_parts_are_the_total(tokens: [u64; 5], input in 0.0..1e4, output in 0.0..1e4) {
        let price = Price { rates: rates(input, Some(output)), ..price() };
        let cost = price.cost(&usage(tokens));
        let parts: Option<Usd> = cost.kinds().into_iter().rev().map(|(_, amount)| amount).sum();
        prop_assert_eq!(cost.total(), parts);
        prop_assert!(cost.total().is_some_and(|total| total.0 < u128::MAX));
    }

    #[test]
    fn a_dearer_kind_never_costs_less(tokens in 0..u64::MAX) {
        let price = price();
        let read = price.cost(&usage([0, tokens, 0, 0, 0])).prompt();
        let uncached = price.cost(&usage([tokens, 0, 0, 0, 0])).prompt();
        let written = price.cost(&usage([0, 0, 0, tokens, 0])).prompt();
        prop_assert!(read <= uncached && uncached <= written);
    }

    #[test]
    fn listed_prices_are_exact(millionths in 0..10_000_000_000_u64) {
        let usd = millionths as f64 / 1e6;
        prop_assert_eq!(Rate::per_million(usd).of(1), Usd(u128::from(millionths)));
    }

    #[test]
    fn no_name_breaks_the_lookup(name in "(us\\.|anthropic\\.|\\PC){0,3}claude-opus-5(-|@|2026|0901|v1|:0|\\PC){0,6}") {
        let prices = prices(&["claude-opus-5"]);
        let found = prices.model(&name).is_some();
        prop_assert!(!found || name.contains("claude-opus-5"));
        prop_assert_eq!(found, prices.facts(&name) != ModelFacts::UNKNOWN);
    }
}
