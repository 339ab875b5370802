use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::engine::words::TenantId;

const TOOL: &str = "Agent";
const HORIZON: usize = 4;

fn fork(number: u64) -> ForkId {
    ForkId::of(TenantId([1; 32]), &number.to_string())
}

fn turn(child: u64, arm: Arm) -> Answered<'static> {
    Answered {
        child: Binding::named(child),
        fork: fork(child / 3),
        tool: TOOL,
        arm,
        first: true,
        stop: StopReason::EndTurn,
        is_empty: false,
        tool_errors: 0,
        prompt_tokens: 1_000,
        output_tokens: 100,
        wall_ms: 10,
        cost: Some(Measured { unit: CostUnit::Tokens, measured: 100.0, predicted: Some(100.0) }),
    }
}

/// Children of one turn each, until forking stands down.
struct Trial {
    arms: ForkExperiment,
    children: u64,
    now: Moment,
}

impl Trial {
    /// Enough was seen of the tool to predict what its children do.
    fn new() -> Trial {
        let mut trial = Trial { arms: ForkExperiment::default(), children: 0, now: Moment(0) };
        (0..4).for_each(|_| assert_eq!(trial.child(Arm::Unforked, |_| ()), None));
        trial
    }

    fn child(&mut self, arm: Arm, change: impl FnOnce(&mut Answered<'_>)) -> Option<StandDown> {
        self.children += 1;
        let mut answered = turn(self.children, arm);
        change(&mut answered);
        let found = self.arms.record(&answered, self.now);
        assert!(found.iter().all(|(tool, why)| {
            **tool == *answered.tool && self.arms.verdict(tool, self.now) == Some(*why)
        }));
        found.first().map(|(_, why)| *why)
    }

    /// How many forked children it took.
    fn until_stood_down(&mut self, change: impl Fn(&mut Answered<'_>)) -> Option<(u64, StandDown)> {
        (1..=1_000).find_map(|count| self.child(Arm::Forked, &change).map(|why| (count, why)))
    }
}

fn measured(measured: f64) -> Option<Measured> {
    Some(Measured { unit: CostUnit::Dollars, measured, predicted: Some(100.0) })
}

#[test]
fn children_that_cost_more_than_a_tenth_more_stop_the_forking() {
    let stopped = |cost: f64| Trial::new().until_stood_down(|it| it.cost = measured(cost));
    assert_eq!(stopped(111.0), Some((8, StandDown::Cost)));
    assert_eq!(stopped(100.0), None);
    assert_eq!(stopped(110.0), None);
    assert_eq!(stopped(1.0), None);
}

#[test]
fn a_cost_that_nobody_foresaw_proves_nothing() {
    let dear = |it: &mut Answered<'_>| it.cost = measured(1_000.0);
    let blind = |it: &mut Answered<'_>| {
        it.cost = Some(Measured { unit: CostUnit::Tokens, measured: 1e6, predicted: None });
    };
    assert_eq!(Trial::new().until_stood_down(blind), None);
    assert_eq!(Trial::new().until_stood_down(|it| it.cost = measured(f64::NAN)), None);
    // The first four are those that the tool is known by.
    let mut fresh = Trial { arms: ForkExperiment::default(), children: 0, now: Moment(0) };
    assert_eq!(fresh.until_stood_down(dear), Some((12, StandDown::Cost)));
}

#[test]
fn one_fan_out_proves_nothing() {
    let same = |it: &mut Answered<'_>| {
        it.cost = measured(1_000.0);
        it.is_empty = true;
        it.fork = fork(1_000);
    };
    assert_eq!(Trial::new().until_stood_down(same), None);
}

#[test]
fn empty_answers_are_held_against_those_of_the_others() {
    let empty = |it: &mut Answered<'_>| it.is_empty = true;
    assert_eq!(Trial::new().until_stood_down(empty), Some((8, StandDown::EmptyAnswers)));
    for arm in [Arm::Holdout, Arm::Unforked] {
        let mut trial = Trial::new();
        // Whoever answers with nothing anyway is not made worse by a fork.
        let mut half = false;
        let mut often = |it: &mut Answered<'_>| {
            half = !half;
            it.is_empty = half;
        };
        (0..60).for_each(|_| assert_eq!(trial.child(arm, &mut often), None));
        (0..500).for_each(|_| assert_eq!(trial.child(Arm::Forked, &mut often), None, "{arm:?}"));
        let mut trial = Trial::new();
        (0..60).for_each(|_| assert_eq!(trial.child(arm, |_| ()), None));
        let stopped = (0..30).any(|_| trial.child(Arm::Forked, &mut often).is_some());
        assert!(stopped, "{arm:?}");
    }
}

#[test]
fn the_holdout_comes_before_other_children() {
    let mut trial = Trial::new();
    for _ in 0..30 {
        trial.child(Arm::Unforked, |it| it.is_empty = true);
        trial.child(Arm::Holdout, |_| ());
    }
    let empty = |it: &mut Answered<'_>| it.is_empty = true;
    assert_eq!(trial.until_stood_down(empty), Some((8, StandDown::EmptyAnswers)));
}

#[test]
fn forking_is_tried_again_after_a_while() {
    let mut trial = Trial::new();
    let dear = |it: &mut Answered<'_>| it.cost = measured(200.0);
    assert!(trial.until_stood_down(dear).is_some());
    // Those that were forked before say nothing new, however many they are.
    (0..100).for_each(|_| assert_eq!(trial.child(Arm::Forked, dear), None));
    let until = trial.now.after(STAND_DOWN_MS);
    assert_eq!(trial.arms.verdict(TOOL, Moment(until.0 - 1)), Some(StandDown::Cost));
    assert_eq!(trial.arms.verdict(TOOL, until), None);
    assert_eq!(trial.arms.verdict("Other", Moment(0)), None);
    trial.now = until;
    assert_eq!(trial.until_stood_down(dear).map(|(count, _)| count), Some(8));
}

#[test]
fn a_life_is_all_turns_of_a_child() {
    let mut trial = Trial::new();
    for _ in 0..200 {
        // Three turns at 40 each: more than the 100 that were predicted for all of them.
        let mut answered = turn(trial.children + 1, Arm::Forked);
        let mut stopped = Vec::new();
        for number in 0..3_u64 {
            answered.first = number == 0;
            answered.stop = if number == 2 { StopReason::EndTurn } else { StopReason::ToolUse };
            answered.cost = measured(40.0);
            answered.prompt_tokens = 1_000 + 300 * number;
            stopped.extend(trial.arms.record(&answered, Moment(0)));
        }
        trial.children += 1;
        if !stopped.is_empty() {
            break;
        }
    }
    assert_eq!(trial.arms.verdict(TOOL, Moment(0)), Some(StandDown::Cost));
    let habits = trial.arms.habits(TOOL, HORIZON);
    assert_eq!((habits.turns, habits.growth, habits.output), (Some(28.0 / 12.0), 300, 100));
    let totals: HashMap<_, _> = trial.arms.totals().map(|(_, arm, totals)| (arm, *totals)).collect();
    let forked = totals[&Arm::Forked];
    assert_eq!((forked.children, forked.turns, forked.output_tokens, forked.wall_ms), (8, 24, 2_400, 240));
    assert_eq!(forked.dollars, [960.0, 800.0]);
    assert_eq!(forked.stops, [8, 16, 0, 0, 0, 0, 0, 0]);
    assert_eq!(totals[&Arm::Unforked].tokens, [400.0, 400.0]);
}

#[test]
fn habits_are_unknown_until_some_children_ended_and_follow_the_newer_ones() {
    let mut arms = ForkExperiment::default();
    assert_eq!(arms.habits(TOOL, HORIZON), ChildHabits::default());
    let run = |arms: &mut ForkExperiment, child: u64, turns: u64| {
        for number in 0..turns {
            let mut answered = turn(child, Arm::Forked);
            answered.first = number == 0;
            answered.stop = if number + 1 == turns { StopReason::EndTurn } else { StopReason::ToolUse };
            arms.record(&answered, Moment(0));
        }
    };
    (0..3).for_each(|child| run(&mut arms, child, 2));
    assert_eq!(arms.habits(TOOL, HORIZON).turns, None);
    run(&mut arms, 3, 2);
    assert_eq!(arms.habits(TOOL, HORIZON).turns, Some(2.0));
    (4..400).for_each(|child| run(&mut arms, child, 9));
    assert!(arms.habits(TOOL, HORIZON).turns.is_some_and(|turns| turns > 8.5));
    assert_eq!(arms.habits("Other", HORIZON), ChildHabits::default());
}

/// A child that has had so many turns and goes on.
fn lives(arms: &mut ForkExperiment, child: u64, turns: u64) {
    for number in 0..turns {
        let answered = Answered { first: number == 0, stop: StopReason::ToolUse, ..turn(child, Arm::Forked) };
        arms.record(&answered, Moment(0));
    }
}

#[test]
fn children_that_live_longer_than_expected_teach_before_they_end() {
    let mut arms = ForkExperiment::default();
    lives(&mut arms, 0, 4);
    assert_eq!(arms.habits(TOOL, HORIZON), ChildHabits::default(), "as long as everybody is taken to");
    for turns in 5..=20 {
        lives(&mut arms, 0, turns);
        assert_eq!(arms.habits(TOOL, HORIZON).turns, Some(turns as f64));
    }
    assert_eq!(arms.habits(TOOL, 20), ChildHabits::default());
    // Those that may still end tomorrow say nothing.
    (1..9).for_each(|child| lives(&mut arms, child, 2));
    assert_eq!(arms.habits(TOOL, HORIZON).turns, Some(20.0));
    // Ended or not, each counts once; and nobody's short life hides a long one.
    (10..14).for_each(|child| drop(arms.record(&turn(child, Arm::Forked), Moment(0))));
    assert_eq!(arms.habits(TOOL, HORIZON).turns, Some((20.0 + 4.0 * 1.0 + 8.0 * 2.0) / 13.0));
    assert_eq!(arms.habits("Other", HORIZON), ChildHabits::default());
}

#[test]
fn a_few_that_have_ended_teach_only_that_children_live_long() {
    for (turns, known) in [(4, None), (13, Some(13.0))] {
        let mut arms = ForkExperiment::default();
        lives(&mut arms, 0, turns - 1);
        arms.record(&Answered { first: false, ..turn(0, Arm::Forked) }, Moment(0));
        assert!(arms.open.is_empty());
        assert_eq!(arms.habits(TOOL, HORIZON).turns, known);
    }
}

#[test]
fn a_child_that_falls_silent_has_ended_and_one_that_comes_back_does_not_begin() {
    let mut arms = ForkExperiment::default();
    for child in 0..4 {
        arms.record(&Answered { stop: StopReason::ToolUse, ..turn(child, Arm::Forked) }, Moment(0));
    }
    let later = Answered { first: false, ..turn(99, Arm::Forked) };
    arms.record(&later, Moment(QUIET_MS));
    assert_eq!(arms.habits(TOOL, HORIZON).turns, None);
    arms.record(&later, Moment(QUIET_MS + 1));
    assert_eq!(arms.habits(TOOL, HORIZON).turns, Some(1.0));
    assert!(arms.open.is_empty() && arms.heard.is_empty());
    arms.record(&Answered { first: false, ..turn(0, Arm::Forked) }, Moment(QUIET_MS + 2));
    assert_eq!(arms.habits(TOOL, HORIZON).turns, Some(1.0));
}

#[test]
fn everything_is_bounded() {
    let mut arms = ForkExperiment::default();
    for child in 0..2 * OPEN_MAX as u64 {
        let tool = format!("tool {}", child % 200);
        let answered = Answered { stop: StopReason::ToolUse, tool: &tool, ..turn(child, Arm::Forked) };
        arms.record(&answered, Moment(child));
    }
    assert_eq!((arms.tools.len(), arms.open.len(), arms.heard.len()), (TOOLS_MAX, OPEN_MAX, OPEN_MAX));
    let mut last: Vec<_> = arms.tools.keys().map(|name| name.to_string()).collect();
    last.retain(|name| name == &format!("tool {}", (2 * OPEN_MAX - 1) % 200));
    assert_eq!(last.len(), 1, "the newest stay");
}

#[test]
fn every_word_has_its_own_spelling_and_stop_reasons_are_read_by_theirs() {
    let words: BTreeSet<_> = StopReason::ALL.map(StopReason::as_str).into();
    assert_eq!(words.len(), StopReason::ALL.len());
    assert!(StopReason::ALL.iter().all(|stop| StopReason::of(Some(stop.as_str())) == *stop));
    assert_eq!(
        (StopReason::of(None), StopReason::of(Some("of a later version"))),
        (StopReason::Other, StopReason::Other)
    );
    assert_ne!(StandDown::Cost.as_str(), StandDown::EmptyAnswers.as_str());
    for (index, arm) in Arm::ALL.into_iter().enumerate() {
        assert_eq!(arm as usize, index, "totals are kept in that order");
    }
}

/// Dice by a seed: chance must be the same on every run.
struct Dice(u64);

impl Dice {
    fn share(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// The cost of a child: most are cheap, some cost five times as much; the mean is 100.
    fn cost(&mut self) -> f64 {
        if self.share() < 0.15 { 300.0 + 100.0 * self.share() } else { 36.0 + 39.0 * self.share() }
    }
}

/// How many of 100 tenants stop forking within 200 children of each arm.
fn stopped(forked_empty: f64, other_empty: f64, cost: f64) -> usize {
    let stops = |seed: u64| {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut trial = Trial::new();
        (0..200).any(|_| {
            let empty = dice.share() < other_empty;
            let before = trial.child(Arm::Holdout, |it| it.is_empty = empty);
            let (empty, dollars) = (dice.share() < forked_empty, cost * dice.cost());
            let change = |it: &mut Answered<'_>| {
                it.is_empty = empty;
                it.cost = measured(dollars);
            };
            trial.child(Arm::Forked, change).or(before).is_some()
        })
    };
    (0..100).filter(|seed| stops(*seed)).count()
}

#[test]
fn chance_stops_few_and_what_is_wrong_stops_nearly_all() {
    for (empty, cost) in [(0.0, 1.0), (0.02, 1.0), (0.1, 0.9), (0.3, 0.9)] {
        let few = stopped(empty, empty, cost);
        assert!(few <= 5, "{few} of 100 with {empty} empty at {cost}");
    }
    assert!(stopped(0.2, 0.02, 0.9) >= 95, "{}", stopped(0.2, 0.02, 0.9));
    assert!(stopped(0.0, 0.0, 2.0) >= 95, "{}", stopped(0.0, 0.0, 2.0));
}

proptest! {
    #[test]
    fn whatever_is_recorded_the_ledger_stays_whole(
        turns in prop::collection::vec((0_u64..20, 0_usize..3, any::<bool>(), 0_usize..8, any::<bool>(), prop::num::f64::ANY, 0_u64..1_000_000), 0..200),
    ) {
        let mut arms = ForkExperiment::default();
        let mut now = Moment(0);
        for (child, arm, first, stop, is_empty, cost, later) in turns {
            now = now.after(later);
            let before = arms.verdict(TOOL, now);
            let answered = Answered {
                first, is_empty, stop: StopReason::ALL[stop],
                prompt_tokens: later, cost: measured(cost),
                ..turn(child, Arm::ALL[arm])
            };
            let found = arms.record(&answered, now);
            prop_assert!(found.len() <= 1 && (found.is_empty() || before.is_none()));
            prop_assert_eq!(arms.open.len(), arms.heard.len());
            prop_assert!(arms.open.iter().all(|(child, open)| arms.heard.contains(&(open.heard, *child))));
            let habits = arms.habits(TOOL, HORIZON);
            prop_assert!(habits.turns.is_none_or(|turns| turns.is_finite() && turns >= 1.0));
        }
    }
}

#[test]
fn what_children_read_again_is_learned_from_those_that_were_not_forked() {
    let mut trial = Trial::new();
    // The four that the tool is known by have read nothing again, as far as anybody was told.
    assert_eq!(trial.arms.habits(TOOL, HORIZON).rereads_tokens, 0.0);
    for (arm, tokens) in [(Arm::Forked, 5), (Arm::Holdout, 1_000), (Arm::Unforked, 3_000)] {
        for _ in 0..2 {
            trial.child(arm, |_| ());
            trial.arms.reread(TOOL, arm, true, tokens, true);
        }
    }
    let habits = trial.arms.habits(TOOL, HORIZON);
    assert_eq!((habits.rereads_tokens, habits.rereads_turns), (2_000.0, 1.0));
    let forked = trial.arms.rereads().find(|(_, arm, _)| *arm == Arm::Forked);
    assert!(
        forked.is_some_and(|(tool, _, rereads)| tool == TOOL && (rereads.tokens, rereads.turns) == (10, 2))
    );
    trial.arms.reread("unknown", Arm::Unforked, true, 7, true);
    assert_eq!(trial.arms.habits("unknown", HORIZON), ChildHabits::default());
}
