//! Random points that once broke a bound, by what did it.

use super::figures;
use super::figures::Verdict;

/// Plays points: each of their bounds holds.
fn check(seeds: &[u64]) {
    let verdict = Verdict::of(seeds.iter().map(|seed| figures(*seed)).collect());
    println!("{verdict}");
    verdict.check();
}

/// One tool, by which clients of one tenant start children that live for otherwise many turns: the mean of both is neither.
#[test]
fn children_of_two_clients_by_one_tool() {
    check(&[60, 334, 1129, 1282, 1544, 1714]);
}

/// Aligned or forked, all messages are written again when the first image comes: on a parent's prefix these are more.
#[test]
fn children_that_are_shown_an_image() {
    check(&[660]);
}

/// A small write is not waited for, so that no sibling reads it.
#[test]
fn siblings_that_come_at_once_with_small_prompts() {
    check(&[1567]);
}

/// What is first written on a later turn, or again after a pause, is a bet as well.
#[test]
fn turns_that_find_nothing_and_are_not_followed_in_time() {
    check(&[858, 1193, 1449]);
}

/// A child that waits goes on later by that, and so does its parent: as sent, they would have come before others had
/// written, or while their own entries lived.
#[test]
fn savings_of_children_that_waited() {
    check(&[870]);
}

/// The beginning of an answer that is not streamed is not seen.
#[test]
fn savings_where_nothing_is_streamed() {
    check(&[766]);
}

/// An entry before an image was taken for lost, since it had fewer tokens than its bytes beside those of the image say; and
/// then for one that somebody else had written, in every world.
#[test]
fn savings_beside_an_image() {
    check(&[457]);
}
