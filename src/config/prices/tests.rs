use proptest::prelude::*;

use super::*;
use crate::engine::answer::usage::Usage;
use crate::engine::cache::prices::Usd;

fn built_in() -> Prices {
    load_prices(None, &ValueOrigin::Default).unwrap()
}

fn parsed(text: &str) -> Prices {
    parse(text.as_bytes(), "p.toml").unwrap()
}

/// Returns every problem as it is printed, without the hint.
fn problems(text: &str) -> Vec<String> {
    let problems = parse(text.as_bytes(), "p.toml").unwrap_err();
    problems.iter().map(|problem| problem.to_string().lines().next().unwrap().to_owned()).collect()
}

/// Returns a section with `body`, and its source and date on the lines after it.
fn section(body: &str) -> String {
    format!("[m]\n{body}\nsource = 's'\nas_of = 2026-11-16\n")
}

#[test]
fn every_model_with_a_documented_minimum_has_it() {
    let prices = built_in();
    for (minimum, models) in [
        (512, &["opus-5", "fable-5", "mythos-5", "opus-5-5", "sonnet-5-5", "haiku-5-5", "fable-5-1"][..]),
        (1024, &["opus-4-8", "sonnet-5", "sonnet-4-6", "sonnet-4-5", "opus-4-1", "opus-4", "sonnet-4"]),
        (2048, &["opus-4-7", "mythos-preview", "3-5-haiku"]),
        (4096, &["opus-4-6", "opus-4-5", "haiku-4-5"]),
    ] {
        for model in models {
            let name = format!("claude-{model}-20260901");
            assert_eq!(prices.facts(&name).minimum_tokens, Some(minimum), "{name}");
        }
    }
    for name in ["claude-fable-5-2", "claude-mythos-5-2", "claude-mythos-5-1"] {
        assert_eq!(prices.facts(name).minimum_tokens, None, "{name}: nobody stated it");
    }
    assert_eq!(prices.models().len(), 23);
}

#[test]
fn thinking_is_bound_where_that_is_documented() {
    let prices = built_in();
    let bound: Vec<_> =
        prices.models().filter(|model| model.facts.bound_thinking).map(|model| &*model.id).collect();
    let documented =
        ["opus-5-5", "sonnet-5-5", "haiku-5-5", "fable-5-2", "fable-5-1", "mythos-5-2", "mythos-5-1"];
    assert_eq!(bound, documented.map(|model| format!("claude-{model}")));
    assert!(!prices.facts("claude-opus-5").bound_thinking);
    assert!(prices.facts("claude-opus-6").bound_thinking, "a model that nobody described");
}

#[test]
fn read_multipliers_are_those_of_each_model() {
    let prices = built_in();
    let read = |name: &str| prices.model(name).unwrap().multipliers.read.map(Multiplier::as_f64);
    for (name, multiplier) in [
        ("claude-opus-5-5", Some(0.05)),
        ("claude-fable-5-1", Some(0.025)),
        ("claude-fable-5-2", Some(0.025)),
        ("claude-haiku-5-5", Some(0.1)),
        ("claude-sonnet-4-6", Some(0.1)),
        ("claude-sonnet-5-5", Some(0.05)),
        ("claude-mythos-5-1", Some(0.025)),
        ("claude-mythos-5-2", None),
    ] {
        assert_eq!(read(name), multiplier, "{name}");
    }
}

#[test]
fn only_stated_prices_are_there() {
    let prices = built_in();
    let unpriced: Vec<_> =
        prices.models().filter(|model| model.price.is_none()).map(|model| &*model.id).collect();
    assert_eq!(unpriced, ["claude-mythos-5-2", "claude-mythos-preview"]);
    for (usd, models) in [
        ((10.0, 50.0), &["fable-5-1", "mythos-5-1", "fable-5", "mythos-5"][..]),
        ((8.0, 40.0), &["fable-5-2"]),
        ((4.0, 20.0), &["opus-5-5"]),
        ((5.0, 25.0), &["opus-5", "opus-4-8", "opus-4-7", "opus-4-6", "opus-4-5"]),
        ((15.0, 75.0), &["opus-4-1", "opus-4"]),
        ((2.0, 10.0), &["sonnet-5-5", "sonnet-5"]),
        ((3.0, 15.0), &["sonnet-4-6", "sonnet-4-5", "sonnet-4"]),
        ((0.1, 0.5), &["haiku-5-5"]),
        ((1.0, 5.0), &["haiku-4-5"]),
        ((0.8, 4.0), &["3-5-haiku"]),
    ] {
        let rates = Rates { input: Rate::per_million(usd.0), output: Some(Rate::per_million(usd.1)) };
        for model in models {
            let price = prices.price(&format!("claude-{model}")).unwrap();
            assert_eq!(price.rates, rates, "{model}");
        }
    }
    for (window, models) in [
        (Some(1_000_000), &["opus-5-5", "sonnet-5-5", "haiku-5-5", "fable-5-1", "opus-5", "opus-4-6"][..]),
        (Some(200_000), &["haiku-4-5", "opus-4-5", "sonnet-4-5", "sonnet-4"]),
        (None, &["fable-5-2", "mythos-5-1", "3-5-haiku"]),
    ] {
        for model in models {
            assert_eq!(prices.facts(&format!("claude-{model}")).window_tokens, window, "{model}");
        }
    }
    assert!(prices.models().all(|model| model.as_of.starts_with("2026-")));
}

#[test]
fn the_bill_of_opus_5_5_is_the_listed_one() {
    let prices = built_in();
    let million = Usage {
        uncached: 1_000_000,
        cache_read: 1_000_000,
        cache_write_5m: 1_000_000,
        cache_write_1h: 1_000_000,
        output: 1,
    };
    let cost = prices.price("claude-opus-5-5-20260901").unwrap().cost(&million);
    let usd = [cost.uncached, cost.cache_read, cost.cache_write_5m, cost.cache_write_1h, cost.output];
    assert_eq!(
        usd.map(|usd| usd.map(Usd::as_f64)),
        [Some(4.0), Some(0.2), Some(5.0), Some(8.0), Some(20e-6)]
    );
}

#[test]
fn haiku_5_5_is_dearer_above_its_tier() {
    let prices = built_in();
    let price = prices.price("claude-haiku-5-5").unwrap();
    let usd = |tokens| price.cost(&Usage { uncached: tokens, ..Usage::default() }).prompt().unwrap().as_f64();
    assert_eq!((usd(100_000), usd(200_000)), (0.01, 0.1));
    let read = price.cost(&Usage { cache_read: 200_000, ..Usage::default() }).prompt();
    assert_eq!(read.map(Usd::as_f64), Some(0.01));
}

#[test]
fn a_tier_keeps_what_it_leaves_out_in_both_spellings() {
    let inline = section(
        "input = 1\noutput = 5\ntiers = [{ above_tokens = 10, input = 2 }, { above_tokens = 20, output = 7 }]",
    );
    let spelt_out = section("input = 1\noutput = 5")
        + "[[m.tiers]]\nabove_tokens = 10\ninput = 2\n[[m.tiers]]\nabove_tokens = 20\noutput = 7\n";
    let rates =
        |input, output| Rates { input: Rate::per_million(input), output: Some(Rate::per_million(output)) };
    let expected = vec![
        Tier { above_tokens: 10, rates: rates(2.0, 5.0) },
        Tier { above_tokens: 20, rates: rates(2.0, 7.0) },
    ];
    for text in [inline, spelt_out] {
        assert_eq!(parsed(&text).price("m").unwrap().tiers, expected, "{text}");
    }
}

#[test]
fn an_empty_table_knows_nothing_and_a_bare_section_no_price() {
    assert_eq!(parsed("").models().len(), 0);
    let prices = parsed(&section(""));
    assert_eq!((prices.price("m"), prices.facts("m")), (None, ModelFacts::UNKNOWN));
}

#[test]
fn each_malformed_value_is_refused_at_its_line() {
    for (body, problem) in [
        ("input = -1", "m.input = -1: not a number of USD per million tokens from 0 to 10000"),
        ("input = '4'", "m.input = \"4\": not a number of USD per million tokens from 0 to 10000"),
        ("input = nan", "m.input = NaN: not a number of USD per million tokens from 0 to 10000"),
        (
            "input = 1e300",
            &format!("m.input = {}: not a number of USD per million tokens from 0 to 10000", 1e300),
        ),
        ("read = 101", "m.read = 101: not a multiple of the input price from 0 to 100"),
        ("minimum_tokens = 0", "m.minimum_tokens = 0: not a whole number of tokens from 1 to 1000000000"),
        ("window_tokens = 1.5", "m.window_tokens = 1.5: not a whole number of tokens from 1 to 1000000000"),
        ("bound_thinking = 'no'", "m.bound_thinking = \"no\": not true or false"),
        ("output = 5", "m.output = 5: a price without input"),
        ("write_5 = 1", "m.write_5: unknown key"),
        ("\"\\u001b\" = 1", "m.\"\\u{1b}\": unknown key"),
    ] {
        assert_eq!(problems(&section(body)), [format!("p.toml:2: {problem}")], "{body}");
    }
}

#[test]
fn each_malformed_tier_is_refused_at_its_line() {
    let takes = "not a list of at most 16 tiers, such as [{ above_tokens = 200_000, input = 6.0 }]";
    for (tiers, problem) in [
        ("5", format!("3: m.tiers = 5: {takes}")),
        ("[1]", format!("3: m.tiers = [1]: {takes}")),
        ("[{ input = 1 }]", "3: m.tiers[0]: no above_tokens".into()),
        ("[{ above_tokens = 1, inptu = 1 }]", "3: m.tiers[0].inptu: unknown key".into()),
        (
            "[\n{ above_tokens = 2 },\n{ above_tokens = 2 }]",
            "5: m.tiers[1].above_tokens = 2: not above the tier before it".into(),
        ),
    ] {
        let text = section(&format!("input = 1\ntiers = {tiers}"));
        assert_eq!(problems(&text), [format!("p.toml:{problem}")], "{tiers}");
    }
    assert_eq!(problems(&section("tiers = []")), ["p.toml:2: m.tiers = []: a price without input"]);
}

#[test]
fn source_and_date_are_asked_for() {
    assert_eq!(problems("\n[m]\n"), ["p.toml:2: m: no source", "p.toml:2: m: no as_of"]);
    for (source, date) in [("' '", "2026-11-16"), ("'s'", "'2026-11-16'"), ("'s'", "2026-11-16T00:00:00Z")] {
        assert_eq!(
            problems(&format!("[m]\nsource = {source}\nas_of = {date}\n")).len(),
            1,
            "{source} {date}"
        );
    }
}

#[test]
fn what_is_no_section_of_a_model_is_refused() {
    assert_eq!(problems("input = 4\n"), ["p.toml:1: input: no section of a model"]);
    let name = "not the name of a model";
    assert_eq!(
        problems("['']\n['a b']\n"),
        [format!("p.toml:1: \"\": {name}"), format!("p.toml:2: \"a b\": {name}")]
    );
    let long = "m".repeat(ID_BYTES_MAX + 1);
    assert_eq!(problems(&format!("[{long}]")).len(), 1);
    assert_eq!(problems("[m]\n[m]\n").len(), 1, "one syntax error");
    assert_eq!(problems("[m").len(), 1, "one syntax error");
}

#[test]
fn models_are_counted() {
    let of = |count: usize| -> String {
        (0..count).map(|n| format!("[m{n}]\nsource = 's'\nas_of = 2026-11-16\n")).collect()
    };
    assert_eq!(parsed(&of(MODELS_MAX)).models().len(), MODELS_MAX);
    assert_eq!(problems(&of(MODELS_MAX + 2)), ["p.toml:3073: m1024: more than 1024 models"]);
}

#[test]
fn unknown_keys_have_a_hint() {
    let hint = |body: &str| parse(section(body).as_bytes(), "p.toml").unwrap_err()[0].hint.clone();
    assert_eq!(hint("write-5m = 1"), "did you mean write_5m?");
    assert!(hint("zebra = 1").starts_with("the keys are input, output, read"));
}

proptest! {
    #[test]
    fn no_text_near_a_table_breaks_the_reader(
        lines in prop::collection::vec(
            "(\\[{0,2}(m|claude-opus-5|'\\PC')?(\\.tiers)?\\]{0,2}|(input|output|read|tiers|as_of|source|minimum_tokens|\"\\PC\") = (\\PC{0,6}|2026-11-16|'s'|-?[0-9]{1,20}|[0-9]\\.[0-9]|\\[\\{above_tokens=[0-9],input=1\\}\\]))",
            0..12,
        )
    ) {
        let text = lines.join("\n");
        if let Err(problems) = parse(text.as_bytes(), "p.toml") {
            prop_assert!(!problems.is_empty());
            for problem in problems {
                let ValueOrigin::File { line, .. } = problem.origin else { panic!("{problem}") };
                prop_assert!((1..=lines.len().max(1)).contains(&line), "{}\n{}", problem, text);
                prop_assert!(!problem.hint.is_empty());
            }
        }
    }
}

#[test]
fn one_model_is_current_and_has_all_prices() {
    let prices = built_in();
    let current = prices.current().expect("a model that is marked");
    let price = current.price.as_ref().expect("its price");
    assert!(price.rates.output.is_some() && current.multipliers.read.is_some());
    assert_eq!(prices.models().filter(|model| model.is_current).count(), 1);

    assert!(parsed(&section("input = 1.0")).current().is_none());
    let two = ["a", "b"].map(|id| section("current = true").replace("[m]", &format!("[{id}]"))).concat();
    assert_eq!(problems(&two), ["p.toml:5: b: another model is current"]);
    let wrong = problems(&section("current = 'yes'"));
    assert!(wrong[0].contains("m.current") && wrong[0].contains("true or false"), "{wrong:?}");
}
