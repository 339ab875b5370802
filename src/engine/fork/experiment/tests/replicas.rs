//! Two processes whose children are of one tool.

use super::*;

/// Why a new fan-out is not forked.
fn verdict(trial: &Trial, now: u64) -> Option<StandDown> {
    trial.arms.verdict(TOOL, fork(u64::MAX), Moment(now))
}

fn hears(trial: &mut Trial, saved: &[SavedTool], now: u64) {
    saved.iter().for_each(|tool| trial.arms.restore(tool.clone(), Moment(now)));
}

#[test]
fn a_stand_down_holds_in_all_processes_whoever_has_seen_more_children() {
    let [mut dear, mut cheap] = [Trial::new(), Trial::new()];
    dear.until_stood_down(|it| it.cost = costs(126.0));
    for _ in 0..30 {
        assert_eq!(cheap.child(Arm::Forked, |it| it.cost = costs(50.0)), None);
    }
    let [of_dear, of_cheap] = [&mut dear, &mut cheap].map(|trial| trial.arms.take_unsaved(false));
    hears(&mut dear, &of_cheap, 1);
    assert_eq!(verdict(&dear, 1), Some(StandDown::Dearer), "nothing that others have seen undoes it");
    assert!(dear.arms.has_unsaved(), "the record that does not say so is written again");
    hears(&mut cheap, &of_dear, 1);
    assert_eq!(verdict(&cheap, 1), Some(StandDown::Dearer));
    assert!(!cheap.arms.has_unsaved());
    let bills = |trial: &Trial| trial.arms.bills(kind(TOOL), CostUnit::Dollars);
    assert_eq!(bills(&dear), bills(&cheap), "beside it, what has seen more counts");
}

#[test]
fn a_stand_down_whose_time_is_over_is_not_brought_back() {
    let [mut dear, mut cheap] = [Trial::new(), Trial::new()];
    dear.until_stood_down(|it| it.cost = costs(126.0));
    cheap.child(Arm::Forked, |it| it.cost = costs(50.0));
    let of_dear = dear.arms.take_unsaved(false);
    let later = STAND_DOWN_MS + 1;
    let tried = |trial: &mut Trial| trial.arms.forked(TOOL, fork(7), Moment(later));
    hears(&mut dear, &cheap.arms.take_unsaved(false), later);
    tried(&mut dear);
    assert_eq!(verdict(&dear, later), Some(StandDown::Dearer), "one fan-out tries it");
    hears(&mut cheap, &of_dear, later);
    assert_eq!(verdict(&cheap, later), None);
}
