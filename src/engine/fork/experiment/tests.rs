mod kinds;

use proptest::prelude::*;

use super::net::STAND_DOWN_MS;
use super::*;
use crate::engine::words::TenantId;

mod replicas;

const TOOL: &str = "Agent";
const HORIZON: usize = 4;

fn fork(number: u64) -> ForkId {
    ForkId::of(TenantId([1; 32]), &number.to_string())
}

/// The children of a tool that have the tools of [`turn`]'s.
fn kind(tool: &str) -> ChildKind<'_> {
    ChildKind { tool, tools: PrefixHash::numbered(1) }
}

/// The only turn of a child, one of three of its fan-out, that costs what it would have cost as sent.
fn turn(child: u64, arm: Arm) -> Answered<'static> {
    Answered {
        child: Binding::named(child),
        fork: fork(child / 3),
        tool: TOOL,
        arm,
        first: true,
        stop: StopReason::EndTurn,
        is_cut: false,
        is_empty: false,
        prompt_tokens: 1_000,
        output_tokens: 100,
        reread_tokens: None,
        tools: PrefixHash::numbered(1),
        prompt: PrefixHash::numbered(1),
        loses_messages: false,
        siblings: 3,
        came_at: Moment(0),
        begun_at: Moment(0),
        cost: costs(100.0),
    }
}

/// A bill beside 100 as sent and 80 aligned.
fn costs(billed: f64) -> Option<Measured> {
    Some(Measured { unit: CostUnit::Dollars, billed, sent: Some(100.0), aligned: Some(80.0) })
}

/// Children of one turn each, until forking stands down.
struct Trial {
    arms: ForkExperiment,
    children: u64,
    now: Moment,
}

impl Trial {
    fn new() -> Trial {
        Trial { arms: ForkExperiment::default(), children: 0, now: Moment(0) }
    }

    fn child(&mut self, arm: Arm, change: impl FnOnce(&mut Answered<'_>)) -> Option<StandDown> {
        let mut answered = turn(self.children, arm);
        self.children += 1;
        change(&mut answered);
        if arm == Arm::Forked {
            self.arms.forked(answered.tool, answered.fork, self.now);
        }
        let found = self.arms.record(&answered, 1.0, self.now);
        assert!(found.iter().all(|(tool, why)| {
            **tool == *answered.tool && self.arms.verdict(tool, fork(u64::MAX), self.now) == Some(*why)
        }));
        found.first().map(|(_, why)| *why)
    }

    /// How many forked children it took.
    fn until_stood_down(&mut self, change: impl Fn(&mut Answered<'_>)) -> Option<(u64, StandDown)> {
        (1..=1_000).find_map(|count| self.child(Arm::Forked, &change).map(|why| (count, why)))
    }
}

#[test]
fn children_that_are_dearer_than_as_sent_stop_the_forking() {
    let stopped = |cost: f64| Trial::new().until_stood_down(|it| it.cost = costs(cost));
    assert_eq!(stopped(126.0), Some((3, StandDown::Dearer)), "after one fan-out");
    assert_eq!(stopped(106.0), Some((9, StandDown::Dearer)), "after three");
    assert_eq!(stopped(105.0), None);
    assert_eq!(stopped(1.0), None);
}

#[test]
fn a_fan_out_is_judged_as_a_whole() {
    let mut trial = Trial::new();
    // The first child writes what the others read.
    assert_eq!(trial.child(Arm::Forked, |it| it.cost = costs(250.0)), None);
    assert_eq!(trial.child(Arm::Forked, |it| it.cost = costs(20.0)), None);
    assert_eq!(trial.child(Arm::Forked, |it| it.cost = costs(20.0)), None);
    // One that comes no more is not waited for.
    for cost in [300.0, 300.0] {
        assert_eq!(trial.child(Arm::Forked, |it| it.cost = costs(cost)), None);
    }
    trial.now = Moment(QUIET_MS + 1);
    assert_eq!(trial.child(Arm::Unforked, |it| it.fork = fork(77)), Some(StandDown::Dearer));
}

#[test]
fn a_cost_that_cannot_be_compared_proves_nothing() {
    let unknown = |it: &mut Answered<'_>| {
        it.cost = Some(Measured { unit: CostUnit::Tokens, billed: 1e6, sent: None, aligned: None });
    };
    assert_eq!(Trial::new().until_stood_down(unknown), None);
    assert_eq!(Trial::new().until_stood_down(|it| it.cost = costs(f64::NAN)), None);
    assert_eq!(Trial::new().until_stood_down(|it| it.cost = None), None);
}

#[test]
fn more_may_be_spent_where_that_was_asked_for() {
    let mut arms = ForkExperiment::default();
    for child in 0..9 {
        let dear = Answered { cost: costs(190.0), ..turn(child, Arm::Forked) };
        assert!(arms.record(&dear, 2.0, Moment(0)).is_empty());
    }
}

#[test]
fn bills_so_far_are_those_of_all_children_that_can_be_compared() {
    let mut trial = Trial::new();
    trial.child(Arm::Forked, |it| it.cost = costs(50.0));
    trial.child(Arm::Unforked, |it| it.cost = costs(90.0));
    trial.child(Arm::Unforked, |it| it.cost = None);
    let bills = Bills { billed: 140.0, sent: 200.0, aligned: 160.0 };
    assert_eq!(trial.arms.bills(kind(TOOL), CostUnit::Dollars), bills);
    assert_eq!(trial.arms.bills(kind(TOOL), CostUnit::Tokens), Bills::default());
    assert_eq!(trial.arms.bills(kind("Other"), CostUnit::Dollars), Bills::default());
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
fn forking_is_tried_again_with_one_fan_out_after_a_while_that_doubles() {
    let mut trial = Trial::new();
    let dear = |it: &mut Answered<'_>| it.cost = costs(200.0);
    let mut while_ms = STAND_DOWN_MS;
    for _ in 0..3 {
        assert_eq!(trial.until_stood_down(dear), Some((3, StandDown::Dearer)));
        // Those that were forked before say nothing new, however many they are.
        let mut arms = std::mem::take(&mut trial.arms);
        for child in 1_000..1_100 {
            let dear = Answered { cost: costs(200.0), ..turn(child, Arm::Forked) };
            assert!(arms.record(&dear, 1.0, trial.now).is_empty());
        }
        trial.arms = arms;
        let (until, next) = (trial.now.after(while_ms), fork(trial.children / 3));
        assert_eq!(trial.arms.verdict(TOOL, next, Moment(until.0 - 1)), Some(StandDown::Dearer));
        assert_eq!(trial.arms.verdict(TOOL, next, until), None);
        assert_eq!(trial.arms.verdict("Other", next, Moment(0)), None);
        trial.now = until;
        // While it is tried with one fan-out, no other is forked.
        trial.arms.forked(TOOL, next, until);
        assert_eq!(trial.arms.verdict(TOOL, fork(9_999), until), Some(StandDown::Dearer));
        while_ms *= 2;
    }
    // A trial that goes well ends it.
    (0..3).for_each(|_| assert_eq!(trial.child(Arm::Forked, |it| it.cost = costs(90.0)), None));
    assert_eq!(trial.arms.verdict(TOOL, fork(9_999), trial.now), None);
}

#[test]
fn a_life_is_all_turns_of_a_child() {
    let mut arms = ForkExperiment::default();
    for child in 0..4 {
        for number in 0..3_u64 {
            let answered = Answered {
                first: number == 0,
                stop: if number == 2 { StopReason::EndTurn } else { StopReason::ToolUse },
                prompt_tokens: 1_000 + 300 * number,
                came_at: Moment([0, 1_000, 6 * 60_000][number as usize]),
                ..turn(child, Arm::Unforked)
            };
            arms.record(&answered, 1.0, Moment(0));
        }
    }
    let habits = arms.habits(kind(TOOL), HORIZON);
    assert_eq!((habits.turns, habits.growth, habits.output), (Some(3.0), 300, 100));
    assert_eq!(habits.pauses, [0.5, 0.0], "every second later turn came after more than five minutes");
}

#[test]
fn siblings_are_known_by_how_they_come_and_what_they_bring() {
    let mut arms = ForkExperiment::default();
    let habits = |arms: &ForkExperiment| {
        let ChildHabits { together, alike, starts, .. } = arms.habits(kind(TOOL), HORIZON);
        (together, alike, starts)
    };
    assert_eq!(habits(&arms), (None, None, None));
    arms.started(kind(TOOL), false, Moment(0));
    assert_eq!(habits(&arms).2, Some([0.0, 0.0]), "the first says nothing about the next");
    let other = PrefixHash::numbered(2);
    // Recorded in another order than they came: one at once and alike, one later and with another prompt.
    for (child, came_at, prompt) in
        [(1, 500, PrefixHash::numbered(1)), (0, 0, PrefixHash::numbered(1)), (2, 9_000, other)]
    {
        let (came_at, begun_at) = (Moment(came_at), Moment(came_at + 1_000));
        let answered = Answered { came_at, begun_at, prompt, ..turn(child, Arm::Unforked) };
        arms.record(&answered, 1.0, Moment(10_000));
    }
    arms.started(kind(TOOL), true, Moment(0));
    assert_eq!(habits(&arms), (Some(0.5), Some(0.5), Some([1.0, 1.0])));
}

#[test]
fn habits_are_unknown_until_some_children_ended_and_follow_the_newer_ones() {
    let mut arms = ForkExperiment::default();
    assert_eq!(arms.habits(kind(TOOL), HORIZON), ChildHabits::default());
    let run = |arms: &mut ForkExperiment, child: u64, turns: u64| {
        for number in 0..turns {
            let mut answered = turn(child, Arm::Forked);
            answered.first = number == 0;
            answered.stop = if number + 1 == turns { StopReason::EndTurn } else { StopReason::ToolUse };
            arms.record(&answered, 1.0, Moment(0));
        }
    };
    (0..3).for_each(|child| run(&mut arms, child, 2));
    assert_eq!(arms.habits(kind(TOOL), HORIZON).turns, None);
    run(&mut arms, 3, 2);
    assert_eq!(arms.habits(kind(TOOL), HORIZON).turns, Some(2.0));
    (4..400).for_each(|child| run(&mut arms, child, 9));
    assert!(arms.habits(kind(TOOL), HORIZON).turns.is_some_and(|turns| turns > 8.5));
    assert_eq!(arms.habits(kind("Other"), HORIZON), ChildHabits::default());
}

/// A child that has had so many turns and goes on.
fn lives(arms: &mut ForkExperiment, child: u64, turns: u64) {
    for number in 0..turns {
        let answered = Answered { first: number == 0, stop: StopReason::ToolUse, ..turn(child, Arm::Forked) };
        arms.record(&answered, 1.0, Moment(0));
    }
}

#[test]
fn children_that_live_longer_than_expected_teach_before_they_end() {
    let mut arms = ForkExperiment::default();
    lives(&mut arms, 0, 4);
    assert_eq!(arms.habits(kind(TOOL), HORIZON), ChildHabits::default(), "as long as everybody is taken to");
    for turns in 5..=20 {
        lives(&mut arms, 0, turns);
        assert_eq!(arms.habits(kind(TOOL), HORIZON).turns, Some(turns as f64));
    }
    assert_eq!(arms.habits(kind(TOOL), 20), ChildHabits::default());
    // Those that may still end tomorrow say nothing.
    (1..9).for_each(|child| lives(&mut arms, child, 2));
    assert_eq!(arms.habits(kind(TOOL), HORIZON).turns, Some(20.0));
    // Ended or not, each counts once; and nobody's short life hides a long one.
    (10..14).for_each(|child| drop(arms.record(&turn(child, Arm::Forked), 1.0, Moment(0))));
    assert_eq!(arms.habits(kind(TOOL), HORIZON).turns, Some((20.0 + 4.0 * 1.0 + 8.0 * 2.0) / 13.0));
    assert_eq!(arms.habits(kind("Other"), HORIZON), ChildHabits::default());
}

#[test]
fn a_few_that_have_ended_teach_only_that_children_live_long() {
    for (turns, known) in [(4, None), (13, Some(13.0))] {
        let mut arms = ForkExperiment::default();
        lives(&mut arms, 0, turns - 1);
        arms.record(&Answered { first: false, ..turn(0, Arm::Forked) }, 1.0, Moment(0));
        assert!(arms.open.is_empty());
        assert_eq!(arms.habits(kind(TOOL), HORIZON).turns, known);
    }
}

#[test]
fn a_child_lives_on_when_its_client_leaves_and_asks_again() {
    let mut arms = ForkExperiment::default();
    for child in 0..4 {
        let cut = Answered { stop: StopReason::Other, is_cut: true, ..turn(child, Arm::Forked) };
        arms.record(&cut, 1.0, Moment(0));
        for number in 1..8 {
            let stop = if number < 7 { StopReason::ToolUse } else { StopReason::EndTurn };
            arms.record(&Answered { first: false, stop, ..turn(child, Arm::Forked) }, 1.0, Moment(0));
        }
    }
    assert!(arms.open.is_empty());
    assert_eq!(arms.habits(kind(TOOL), HORIZON).turns, Some(8.0));
}

#[test]
fn a_child_that_falls_silent_has_ended_and_one_that_comes_back_does_not_begin() {
    let mut arms = ForkExperiment::default();
    for child in 0..4 {
        arms.record(&Answered { stop: StopReason::ToolUse, ..turn(child, Arm::Forked) }, 1.0, Moment(0));
    }
    let later = Answered { first: false, ..turn(99, Arm::Forked) };
    arms.record(&later, 1.0, Moment(QUIET_MS));
    assert_eq!(arms.habits(kind(TOOL), HORIZON).turns, None);
    arms.record(&later, 1.0, Moment(QUIET_MS + 1));
    assert_eq!(arms.habits(kind(TOOL), HORIZON).turns, Some(1.0));
    assert!(arms.open.is_empty() && arms.heard.is_empty());
    arms.record(&Answered { first: false, ..turn(0, Arm::Forked) }, 1.0, Moment(QUIET_MS + 2));
    assert_eq!(arms.habits(kind(TOOL), HORIZON).turns, Some(1.0));
}

#[test]
fn everything_is_bounded() {
    let mut arms = ForkExperiment::default();
    for child in 0..2 * OPEN_MAX as u64 {
        let tool = format!("tool {}", child % 200);
        let answered = Answered { stop: StopReason::ToolUse, tool: &tool, ..turn(child, Arm::Forked) };
        arms.record(&answered, 1.0, Moment(child));
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
    assert_ne!(StandDown::Dearer.as_str(), StandDown::EmptyAnswers.as_str());
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
            let (empty, dollars) = (dice.share() < forked_empty, dice.cost());
            let change = |it: &mut Answered<'_>| {
                it.is_empty = empty;
                let (unit, sent) = (CostUnit::Dollars, Some(dollars));
                it.cost = Some(Measured { unit, billed: cost * dollars, sent, aligned: sent });
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
            let before = arms.verdict(TOOL, fork(child / 3), now);
            let answered = Answered {
                first, is_empty, stop: StopReason::ALL[stop],
                prompt_tokens: later, cost: costs(cost),
                ..turn(child, Arm::ALL[arm])
            };
            let found = arms.record(&answered, 1.0, now);
            prop_assert!(found.len() <= 1 && (found.is_empty() || before.is_none()));
            prop_assert_eq!(arms.open.len(), arms.heard.len());
            prop_assert!(arms.open.iter().all(|(child, open)| arms.heard.contains(&(open.heard, *child))));
            let habits = arms.habits(kind(TOOL), HORIZON);
            prop_assert!(habits.turns.is_none_or(|turns| turns.is_finite() && turns >= 1.0));
        }
    }
}

#[test]
fn what_children_read_again_is_learned_from_those_that_were_not_forked() {
    let mut trial = Trial::new();
    for (arm, tokens) in [(Arm::Forked, 5), (Arm::Holdout, 1_000), (Arm::Unforked, 3_000)] {
        for _ in 0..2 {
            trial.child(arm, |it| it.reread_tokens = Some(tokens));
        }
    }
    let habits = trial.arms.habits(kind(TOOL), HORIZON);
    assert_eq!((habits.reread_tokens, habits.reread_turns), (2_000.0, 1.0));
    let forked = trial.arms.rereads().find(|(_, arm, _)| *arm == Arm::Forked);
    assert!(
        forked.is_some_and(|(tool, _, rereads)| tool == TOOL && (rereads.tokens, rereads.turns) == (10, 2))
    );
}

#[test]
fn turns_and_tokens_that_only_read_again_are_no_part_of_a_life() {
    let mut arms = ForkExperiment::default();
    for child in 0..4 {
        for number in 0..3_u64 {
            let answered = Answered {
                first: number == 0,
                stop: if number == 2 { StopReason::EndTurn } else { StopReason::ToolUse },
                prompt_tokens: [1_000, 6_000, 6_300][number as usize],
                reread_tokens: (number == 1).then_some(5_000),
                ..turn(child, Arm::Unforked)
            };
            arms.record(&answered, 1.0, Moment(0));
        }
    }
    let habits = arms.habits(kind(TOOL), HORIZON);
    assert_eq!((habits.turns, habits.growth), (Some(2.0), 300));
    assert_eq!((habits.reread_turns, habits.reread_tokens), (1.0, 5_000.0));
}
