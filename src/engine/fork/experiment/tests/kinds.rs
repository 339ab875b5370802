//! What is learned of children with the same tools, and of others that the same tool starts.

use super::*;

/// A life of this many turns, of a child with these tools.
fn life(arms: &mut ForkExperiment, child: u64, tools: u64, turns: u64) {
    for number in 0..turns {
        let answered = Answered {
            first: number == 0,
            stop: if number + 1 == turns { StopReason::EndTurn } else { StopReason::ToolUse },
            tools: PrefixHash::numbered(tools),
            ..turn(child, Arm::Unforked)
        };
        arms.record(&answered, 1.0, Moment(0));
    }
}

fn kind(tools: u64) -> ChildKind<'static> {
    ChildKind { tool: TOOL, tools: PrefixHash::numbered(tools) }
}

#[test]
fn children_with_other_tools_live_their_own_lives() {
    let mut arms = ForkExperiment::default();
    (0..4).for_each(|child| life(&mut arms, child, 1, 7));
    assert_eq!(arms.habits(kind(1), HORIZON).turns, Some(7.0));
    assert_eq!(arms.habits(kind(2), HORIZON), ChildHabits::default(), "nothing is known of them");
    assert_eq!(arms.bills(kind(2), CostUnit::Dollars), Bills::default());
    (4..8).for_each(|child| life(&mut arms, child, 2, 1));
    let turns = [1, 2].map(|tools| arms.habits(kind(tools), HORIZON).turns);
    assert_eq!(turns, [Some(7.0), Some(1.0)], "and not the mean of both, which is neither");
    let sent = [1, 2].map(|tools| arms.bills(kind(tools), CostUnit::Dollars).sent);
    assert_eq!(sent, [2_800.0, 400.0]);
}

#[test]
fn one_that_lives_long_says_nothing_of_others_while_it_does() {
    let mut arms = ForkExperiment::default();
    let living =
        |number: u64| Answered { first: number == 0, stop: StopReason::ToolUse, ..turn(0, Arm::Forked) };
    (0..20).for_each(|number| drop(arms.record(&living(number), 1.0, Moment(0))));
    assert_eq!(arms.habits(kind(1), HORIZON).turns, Some(20.0));
    assert_eq!(arms.habits(kind(2), HORIZON).turns, None);
}

#[test]
fn what_children_read_again_is_learned_of_the_whole_tool() {
    let mut arms = ForkExperiment::default();
    for child in 0..4 {
        arms.record(&Answered { reread_tokens: Some(500), ..turn(child, Arm::Unforked) }, 1.0, Moment(0));
    }
    assert_eq!([1, 2].map(|tools| arms.habits(kind(tools), HORIZON).reread_tokens), [500.0, 500.0]);
}

#[test]
fn kinds_are_bounded_and_the_oldest_is_forgotten() {
    let mut arms = ForkExperiment::default();
    for tools in 1..=100 {
        for child in 0..4 {
            life(&mut arms, 4 * tools + child, tools, 2);
            life(&mut arms, 4_000 + 4 * tools + child, 1, 2);
        }
    }
    let known = (1..=100).filter(|tools| arms.habits(kind(*tools), HORIZON).turns.is_some());
    let known: Vec<u64> = known.collect();
    assert!(known.len() == 16 && known[0] == 1 && known[1] == 86, "{known:?}");
}

#[test]
fn turns_that_can_read_nothing_of_the_messages_are_told_from_those_that_came_late() {
    let mut arms = ForkExperiment::default();
    for child in 0..4 {
        for number in 0..5_u64 {
            let answered = Answered {
                first: number == 0,
                stop: if number == 4 { StopReason::EndTurn } else { StopReason::ToolUse },
                loses_messages: number == 2 || number == 4,
                came_at: Moment([0, 1_000, 2_000, 3_000, 10 * 60_000][number as usize]),
                ..turn(child, Arm::Unforked)
            };
            arms.record(&answered, 1.0, Moment(0));
        }
    }
    let habits = arms.habits(kind(1), HORIZON);
    assert_eq!((habits.pauses, habits.losses), ([0.25, 0.0], 0.25));
}
