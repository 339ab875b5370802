use super::*;
use crate::engine::cache::prices::{ModelFacts, Multiplier, Multipliers, Price, Rate, Rates};
use crate::engine::words::{CostUnit, Refusal, Ttl};

const RATES: [f64; 3] = [0.1, 1.25, 2.0];

fn multipliers() -> Multipliers {
    let [read, write_5m, write_1h] = RATES.map(|factor| Some(Multiplier::new(factor)));
    Multipliers { read, write_5m, write_1h }
}

fn cache(siblings: u64) -> PricedCache<'static> {
    PricedCache {
        price: None,
        multipliers: multipliers(),
        facts: ModelFacts {
            minimum_tokens: Some(1024),
            window_tokens: Some(200_000),
            bound_thinking: true,
            string_is_block: false,
        },
        siblings,
        warm: true,
        cold_messages: false,
        own: OwnWarmth::default(),
        gate_tokens: 0,
        entry_ttl: Ttl::FiveMinutes,
        ttl: Ttl::FiveMinutes,
    }
}

/// A parent of 46,000 tokens with a static part of 12,000, and a child as sent of so many.
fn sizes(sent: u64) -> PromptSizes {
    PromptSizes {
        fixed: 12_000,
        entry: 46_000,
        shared: 47_000,
        instructions: 500,
        rest: 200,
        sent,
        sent_fixed: sent - 200,
        sent_tools: sent / 2,
        marks: OwnMarks::default(),
    }
}

fn one_turn() -> ChildHabits {
    ChildHabits { turns: Some(1.0), together: Some(0.0), ..ChildHabits::default() }
}

#[track_caller]
fn forecast(sizes: PromptSizes, habits: ChildHabits, cache: &PricedCache<'_>) -> Forecast {
    forecast_by(sizes, habits, cache, Bills::default(), &ForkPolicy::default())
}

#[track_caller]
fn forecast_by(
    sizes: PromptSizes,
    habits: ChildHabits,
    cache: &PricedCache<'_>,
    so_far: Bills,
    policy: &ForkPolicy,
) -> Forecast {
    Forecast::of(&sizes, &habits, cache, |_| so_far, policy).unwrap()
}

#[track_caller]
fn near(figure: f64, expected: f64) {
    assert!((figure - expected).abs() < 1e-6, "{figure} is not {expected}");
}

#[test]
fn one_turn_is_counted_as_it_is_billed() {
    let found = forecast(sizes(12_000), one_turn(), &cache(5));
    let leader = 0.1 * 46_000.0 + 1.25 * 1_700.0;
    // It is not known that siblings share a system prompt.
    let follower = 0.1 * 47_000.0 + 1.25 * 700.0;
    near(found.forked, (leader + 4.0 * follower) / 5.0);
    let alike = ChildHabits { alike: Some(1.0), ..one_turn() };
    let follower = 0.1 * 47_500.0 + 1.25 * 200.0;
    near(forecast(sizes(12_000), alike, &cache(5)).forked, (leader + 4.0 * follower) / 5.0);
    near(found.as_sent, 12_000.0);
    near(found.aligned, (1.25 * 12_000.0 + 4.0 * (0.1 * 11_800.0 + 1.25 * 200.0)) / 5.0);
    assert_eq!((found.unit, found.turns), (CostUnit::Tokens, 1));
}

#[test]
fn later_turns_read_what_the_turn_before_wrote() {
    let habits = ChildHabits { turns: Some(2.0), growth: 1_000, ..ChildHabits::default() };
    let found = forecast(sizes(12_000), habits, &cache(1));
    let second = 0.1 * 47_700.0 + 1.25 * 1_000.0;
    near(found.forked, 0.1 * 46_000.0 + 1.25 * 1_700.0 + second);
    near(found.as_sent, 12_000.0 + 13_000.0);
    near(found.aligned, 1.25 * 12_000.0 + 0.1 * 12_000.0 + 1.25 * 1_000.0);
    let rolling = OwnMarks { last: 12_000, is_rolling: true, ..OwnMarks::default() };
    let rolling = PromptSizes { marks: rolling, ..sizes(12_000) };
    near(forecast(rolling, habits, &cache(5)).as_sent, found.aligned);
    let fixed = PromptSizes { marks: OwnMarks { last: 11_800, ..OwnMarks::default() }, ..sizes(12_000) };
    let expected = 1.25 * 11_800.0 + 200.0 + 0.1 * 11_800.0 + 1_200.0;
    near(forecast(fixed, habits, &cache(5)).as_sent, expected);
}

#[test]
fn what_is_cold_or_below_the_minimum_is_priced_so() {
    let cold = PricedCache { warm: false, ..cache(1) };
    near(forecast(sizes(12_000), one_turn(), &cold).forked, 1.25 * 47_700.0);
    let betas = PricedCache { cold_messages: true, ..cache(1) };
    near(forecast(sizes(12_000), one_turn(), &betas).forked, 0.1 * 12_000.0 + 1.25 * 35_700.0);
    let marks = OwnMarks { last: 1_000, is_rolling: true, ..OwnMarks::default() };
    let small = PromptSizes { marks, ..sizes(1_000) };
    near(forecast(small, one_turn(), &cache(1)).as_sent, 1_000.0);
    let hour = PricedCache { ttl: Ttl::OneHour, entry_ttl: Ttl::OneHour, ..cache(1) };
    near(forecast(sizes(12_000), one_turn(), &hour).forked, 0.1 * 46_000.0 + 2.0 * 1_700.0);
}

#[test]
fn a_cold_entry_of_one_hour_is_written_at_its_own_price() {
    let mixed = PricedCache { warm: false, entry_ttl: Ttl::OneHour, ..cache(2) };
    let habits = ChildHabits { turns: Some(2.0), growth: 1_000, ..ChildHabits::default() };
    let leader = 2.0 * 46_000.0 + 1.25 * 1_700.0;
    let follower = 0.1 * 47_000.0 + 1.25 * 700.0;
    let second = 0.1 * 47_700.0 + 1.25 * 1_000.0;
    near(forecast(sizes(12_000), habits, &mixed).forked, (leader + follower) / 2.0 + second);
    let betas = PricedCache { cold_messages: true, warm: true, ..mixed };
    let leader = 0.1 * 12_000.0 + 2.0 * 34_000.0 + 1.25 * 1_700.0;
    near(forecast(sizes(12_000), habits, &betas).forked, (leader + follower) / 2.0 + second);
    let warm = PricedCache { warm: true, ..mixed };
    near(forecast(sizes(12_000), habits, &warm).forked, forecast(sizes(12_000), habits, &cache(2)).forked);
}

#[test]
fn only_those_who_may_be_forked_are_siblings() {
    let directed = |id: &str, tool: &str, mut input: Value| {
        input["prompt"] = json!(directive(id));
        call(id, tool, input)
    };
    let calls = [
        directed("a", "Agent", json!({})),
        directed("b", "Agent", json!({"subagent_type": "general-purpose"})),
        directed("c", "Agent", json!({"subagent_type": "Explore"})),
        directed("d", "Agent", json!({"team_name": "blue"})),
        directed("e", "Agent", json!({"isolation": "remote"})),
        directed("f", "write_file", json!({})),
    ];
    let fork = fan_out(&parent_body().to_string(), &calls);
    let mut policy = ForkPolicy::default();
    assert_eq!(siblings(&fork, &policy), 2);
    policy.general_types.push("Explore".into());
    assert_eq!(siblings(&fork, &policy), 3);
    assert_eq!(siblings(&fan_out(&parent_body().to_string(), &calls[2..4]), &ForkPolicy::default()), 1);
}

#[test]
fn with_a_price_the_figures_are_dollars_and_output_counts() {
    let rates = Rates { input: Rate::per_million(1.0), output: Some(Rate::per_million(5.0)) };
    let price = Price { rates, multipliers: multipliers(), tiers: Vec::new() };
    let priced = PricedCache { price: Some(&price), ..cache(5) };
    let habits = ChildHabits { output: 100, ..one_turn() };
    let (dollars, tokens) =
        (forecast(sizes(12_000), habits, &priced), forecast(sizes(12_000), habits, &cache(5)));
    assert_eq!(dollars.unit, CostUnit::Dollars);
    near(dollars.as_sent * 1e6, tokens.as_sent + 500.0);
    near(dollars.forked * 1e6, tokens.forked + 500.0);
}

fn policy(context_premium: f64, max_cost_ratio: f64) -> ForkPolicy {
    ForkPolicy { context_premium, max_cost_ratio, ..ForkPolicy::default() }
}

#[test]
fn the_decision_follows_ratio_and_premium() {
    let decide = |policy: &ForkPolicy| {
        forecast_by(sizes(12_000), one_turn(), &cache(5), Bills::default(), policy).verdict
    };
    let found = forecast(sizes(12_000), one_turn(), &cache(5));
    assert!(found.aligned < found.forked && found.forked < found.as_sent);
    let premium = found.forked / found.aligned - 1.0;
    // The next fan-out finds its prompt warm if this one is aligned, so that the bound over both is lower.
    assert!(found.limits.twice > found.limits.aligned, "{found:?}");
    let twice = found.limits.twice * 1.25 - 1.0;
    assert_eq!(decide(&policy(100.0, 1.0)), Ok(()));
    assert_eq!(decide(&policy(0.0, 1.0)), Err(Refusal::Cost), "aligning is cheaper");
    assert_eq!(decide(&policy(premium + 0.01, 1.0)), Err(Refusal::Cost));
    assert_eq!(decide(&policy(twice + 0.01, 1.0)), Ok(()));
    assert_eq!(decide(&policy(twice - 0.01, 1.0)), Err(Refusal::Cost));
    assert_eq!(decide(&policy(100.0, 0.1)), Err(Refusal::Cost));
    let small = forecast(sizes(2_000), one_turn(), &cache(5));
    assert_eq!(small.verdict, Err(Refusal::Cost), "a small child of a large parent");
}

#[test]
fn what_was_billed_so_far_counts() {
    let allows = |so_far: Bills| {
        forecast_by(sizes(12_000), one_turn(), &cache(5), so_far, &policy(3.0, 1.0)).verdict.is_ok()
    };
    assert!(allows(Bills::default()));
    assert!(allows(Bills { billed: 1e6, sent: 1e6, aligned: 1e6 }));
    assert!(!allows(Bills { billed: 1e6, sent: 9e5, aligned: 1e6 }), "it was a loss so far");
    assert!(!allows(Bills { billed: 1e6, sent: 1e6, aligned: 1e3 }), "context has cost too much so far");
}

#[test]
fn nothing_is_bet_on_a_tool_that_nobody_knows() {
    let marks = OwnMarks { last: 12_000, is_rolling: true, fixed: 11_800, ..OwnMarks::default() };
    let careful = PromptSizes { marks, ..sizes(12_000) };
    let policy = ForkPolicy { horizon_turns: 1, ..policy(100.0, 1.0) };
    let decide = |turns| {
        let habits = ChildHabits { turns, together: Some(1.0), ..ChildHabits::default() };
        forecast_by(careful, habits, &cache(5), Bills::default(), &policy)
    };
    let (known, unknown) = (decide(Some(1.0)), decide(None));
    assert_eq!((known.verdict, known.limits.unknown), (Ok(()), None));
    assert_eq!(unknown.verdict, Err(Refusal::Unlearned), "{unknown:?}");
    assert!(unknown.limits.unknown.is_some_and(|long| long > 1.0) && unknown.limits.sent <= 1.0);
    assert_eq!((known.forked, known.as_sent), (unknown.forked, unknown.as_sent));
    // If they would pay however long they live, there is nothing to be learned first.
    let large = PromptSizes { sent: 60_000, sent_fixed: 59_000, sent_tools: 20_000, ..sizes(60_000) };
    let habits = ChildHabits::default();
    let found = forecast_by(large, habits, &cache(5), Bills::default(), &ForkPolicy::default());
    assert_eq!(found.verdict, Ok(()), "{found:?}");
}

#[test]
fn siblings_that_come_later_or_with_other_prompts_are_priced_so() {
    let marks = OwnMarks { last: 12_000, is_rolling: true, fixed: 11_800, tools: 6_000, hour: 0 };
    let careful = PromptSizes { marks, ..sizes(12_000) };
    let with = |together: f64, alike: f64| {
        forecast(
            careful,
            ChildHabits { together: Some(together), alike: Some(alike), ..one_turn() },
            &cache(2),
        )
    };
    let cold = 1.25 * 12_000.0;
    let reads = |tokens: f64| 0.1 * tokens + 1.25 * (12_000.0 - tokens);
    near(with(1.0, 1.0).as_sent, cold);
    near(with(0.0, 1.0).as_sent, (cold + reads(11_800.0)) / 2.0);
    near(with(0.0, 0.0).as_sent, (cold + reads(6_000.0)) / 2.0);
    near(with(1.0, 1.0).aligned, (cold + reads(11_800.0)) / 2.0);
    near(with(1.0, 0.0).aligned, (cold + reads(6_000.0)) / 2.0);
    let leader = 0.1 * 46_000.0 + 1.25 * 1_700.0;
    near(with(1.0, 0.0).forked, (leader + 0.1 * 47_000.0 + 1.25 * 700.0) / 2.0);
}

#[test]
fn a_pause_above_the_ttl_writes_all_of_it_again() {
    let habits = ChildHabits { turns: Some(2.0), pauses: [1.0, 0.0], ..ChildHabits::default() };
    let found = forecast(sizes(12_000), habits, &cache(1));
    near(found.forked, 0.1 * 46_000.0 + 1.25 * 1_700.0 + 1.25 * 47_700.0);
    near(found.aligned, 2.0 * 1.25 * 12_000.0);
    let hour = PricedCache { ttl: Ttl::OneHour, entry_ttl: Ttl::OneHour, ..cache(1) };
    near(forecast(sizes(12_000), habits, &hour).forked, 0.1 * 46_000.0 + 2.0 * 1_700.0 + 0.1 * 47_700.0);
}

#[test]
fn a_turn_that_loses_the_messages_reads_tools_and_system_prompt() {
    let habits = ChildHabits { turns: Some(2.0), losses: 1.0, ..ChildHabits::default() };
    let (sizes, found) = (sizes(12_000), forecast(sizes(12_000), habits, &cache(1)));
    let (forked, aligned) = (47_700.0 - sizes.fixed as f64, 12_000.0 - sizes.sent_fixed as f64);
    near(found.forked, 0.1 * 46_000.0 + 1.25 * 1_700.0 + 0.1 * sizes.fixed as f64 + 1.25 * forked);
    near(found.aligned, 1.25 * 12_000.0 + 0.1 * sizes.sent_fixed as f64 + 1.25 * aligned);
}

#[test]
fn each_plan_is_priced_from_the_cache_of_its_own_world() {
    let marks = OwnMarks { last: 12_000, is_rolling: true, ..OwnMarks::default() };
    let careful = PromptSizes { marks, ..sizes(12_000) };
    let own = OwnWarmth { sent: 5_000, aligned: 11_800, now: 0 };
    let found = forecast(careful, one_turn(), &PricedCache { own, ..cache(1) });
    near(found.as_sent, 0.1 * 5_000.0 + 1.25 * 7_000.0);
    near(found.aligned, 0.1 * 11_800.0 + 1.25 * 200.0);
    // Over two fan-outs it is the cache as it is that counts, and then the one that the first has left.
    let twice = 1.25 * 12_000.0 + 0.1 * 11_800.0 + 1.25 * 200.0;
    near(found.limits.twice, 2.0 * found.forked / (1.25 * twice));
    // Fan-outs that are known to find nothing warm are written anew each.
    let habits = ChildHabits { starts: Some([0.0, 3.0]), ..one_turn() };
    let cold = PricedCache { own: OwnWarmth::default(), ..cache(1) };
    let found = forecast(careful, habits, &cold);
    near(found.limits.twice, 2.0 * found.forked / (2.0 * 1.25 * 12_000.0));
    assert!(!found.starts_warm);
}

#[test]
fn the_entries_that_the_next_fan_out_would_read_as_sent_count_at_any_premium() {
    let marks = OwnMarks { last: 12_000, is_rolling: true, fixed: 11_800, ..OwnMarks::default() };
    let careful = PromptSizes { marks, ..sizes(12_000) };
    let found = forecast_by(careful, one_turn(), &cache(1), Bills::default(), &policy(100.0, 1.0));
    let next = 0.1 * 11_800.0 + 1.25 * 200.0;
    near(found.limits.twice, 2.0 * found.forked / (1.25 * 12_000.0 + next));
    assert!(found.limits.sent < 0.5 && found.limits.twice > 0.8, "{found:?}");
}

#[test]
fn a_life_is_as_long_as_the_mean_and_not_rounded() {
    let lives = |turns: f64| {
        let habits = ChildHabits { turns: Some(turns), growth: 1_000, ..ChildHabits::default() };
        forecast(sizes(12_000), habits, &cache(3))
    };
    let (two, between, three) = (lives(2.0), lives(2.25), lives(3.0));
    near(between.forked, 0.75 * two.forked + 0.25 * three.forked);
    near(between.as_sent, 0.75 * two.as_sent + 0.25 * three.as_sent);
    near(between.aligned, 0.75 * two.aligned + 0.25 * three.aligned);
    assert_eq!(between.turns, 2);
}

#[test]
fn reading_again_counts_against_the_aligned_child_alone() {
    let habits = ChildHabits { turns: Some(2.0), ..ChildHabits::default() };
    let again = ChildHabits { reread_tokens: 20_000.0, reread_turns: 1.0, ..habits };
    let (plain, found) =
        (forecast(sizes(12_000), habits, &cache(1)), forecast(sizes(12_000), again, &cache(1)));
    // One turn more, which brings 20,000 tokens; the turn after that reads them.
    near(found.reread, 0.1 * 12_000.0 + 1.25 * 20_000.0 + 0.1 * 20_000.0);
    assert_eq!((plain.reread, plain.limits.sent), (0.0, found.limits.sent));
    assert_eq!((plain.forked, plain.as_sent, plain.aligned), (found.forked, found.as_sent, found.aligned));
    assert!(found.limits.aligned < plain.limits.aligned && found.limits.twice < plain.limits.twice);
}

#[test]
fn without_rates_nothing_is_known() {
    let unknown = PricedCache { multipliers: Multipliers::default(), ..cache(5) };
    assert_eq!(
        Forecast::of(&sizes(12_000), &one_turn(), &unknown, |_| Bills::default(), &ForkPolicy::default()),
        None
    );
}

#[test]
fn turns_are_those_of_the_tool_or_of_the_policy_within_reason() {
    let turns =
        |turns| forecast(sizes(12_000), ChildHabits { turns, ..ChildHabits::default() }, &cache(5)).turns;
    assert_eq!((turns(None), turns(Some(2.6)), turns(Some(0.0)), turns(Some(1e9))), (4, 3, 1, 256));
    assert_eq!(turns(Some(f64::NAN)), 4);
}

#[test]
fn sizes_come_from_the_parents_bill_and_scale_by_bytes() {
    let mut body = parent_body();
    body["messages"][0]["content"][0]["text"] = json!("x".repeat(3_000));
    let scene = Scene::of(&body.to_string(), &two_calls());
    let (_, composed) = scene.first(&child_body("a").to_string(), 0);
    let child = read(&child_body("a").to_string());
    let sizes =
        PromptSizes::of(&scene.parent_prefix, &scene.fork, &composed, &child, Some(77.0), None).unwrap();
    let extent = scene.parent_prefix.extent();
    // The bill of the parent: 1,000 tokens of prompt, 50 of answer.
    assert_eq!(sizes.entry, 1_000);
    assert!(sizes.shared > 1_050 && sizes.shared < 1_200, "{sizes:?}");
    let ratio = 1_000.0 / extent.parent as f64;
    assert_eq!(sizes.fixed, (extent.fixed as f64 * ratio).ceil() as u64);
    assert_eq!(sizes.marks, OwnMarks::default());
    let mut unbilled = (*scene.fork).clone();
    unbilled.usage = None;
    assert_eq!(PromptSizes::of(&scene.parent_prefix, &unbilled, &composed, &child, None, None), None);
    let learned =
        PromptSizes::of(&scene.parent_prefix, &unbilled, &composed, &child, Some(0.5), None).unwrap();
    assert_eq!(learned.fixed, extent.fixed.div_ceil(2));
    assert_eq!(siblings(&scene.fork, &scene.policy), 2);
}

#[test]
fn a_childs_own_breakpoints_are_seen() {
    let scene = Scene::new();
    let (_, composed) = scene.first(&child_body("a").to_string(), 0);
    let of = |body: &Value| {
        PromptSizes::of(&scene.parent_prefix, &scene.fork, &composed, &read(&body.to_string()), None, None)
            .unwrap()
    };
    let mut body = child_body("a");
    body["system"][0]["cache_control"] = json!({"type": "ephemeral"});
    let fixed = of(&body);
    assert_eq!(
        (fixed.marks.last, fixed.marks.fixed, fixed.marks.is_rolling),
        (fixed.sent_fixed, fixed.sent_fixed, false)
    );
    body["cache_control"] = json!({"type": "ephemeral"});
    let rolling = of(&body);
    assert_eq!((rolling.marks.last, rolling.marks.is_rolling), (rolling.sent, true));
}

#[test]
fn what_does_not_fit_is_refused() {
    let scene = Scene::new();
    let body = child_body("a").to_string();
    let (_, composed) = scene.first(&body, 0);
    let child = read(&body);
    let judge = |prompt: u64, window: Option<u64>, bytes: usize| {
        let sizes = PromptSizes { shared: prompt, ..PromptSizes::default() };
        let facts = ModelFacts { window_tokens: window, ..cache(1).facts };
        fits(
            &composed,
            Some(&sizes),
            &child,
            &scene.fork.parent.request,
            facts,
            bytes,
            &ForkPolicy::default(),
        )
    };
    let length = composed.body.length;
    assert_eq!(judge(1_000, Some(2_000), length), Ok(()));
    assert_eq!(judge(1_000, Some(2_000), length - 1), Err(Refusal::TooLarge));
    assert_eq!(judge(1_000, Some(1_499), length), Err(Refusal::Window), "the child asks for 500");
    assert_eq!(judge(1_001, Some(2_000), length), Err(Refusal::ContextShare));
    assert_eq!(judge(1_001, None, length), Ok(()));
}
