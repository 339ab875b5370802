//! What comes first: the result in two sentences, and the same as bars.

use std::fmt::Write as _;

use super::super::style::Style;
use super::comparison::PlanComparison;
use super::stage::DemoArm;
use super::table::{usd, wrapped};

/// The cells of the longest bar of one scenario, and those of a bar for the cost as sent in a table of many.
const LONG_CELLS: usize = 56;
const CELLS: usize = 8;
/// The cells of a bar in that table; whatever is longer is cut.
const CELLS_MAX: usize = 10;
/// A cell, filled by so many eighths.
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
const FULL: &str = "█";
const CUT: &str = "▶";

/// The result in words, in lines of 80 characters.
pub fn sentences(comparisons: &[PlanComparison]) -> String {
    let Some(first) = comparisons.first() else { return String::new() };
    let [sent, aligned, forked, chosen] = DemoArm::ALL.map(|arm| first.children_usd(arm));
    let children = u32::from(first.workload.fan_outs) * u32::from(first.workload.children);
    let mut text = format!(
        "With forkpoint the {children} sub-agents of '{}' cost {} instead of {}: {}.",
        first.name,
        usd(chosen),
        usd(sent),
        less(chosen / sent.max(f64::MIN_POSITIVE)),
    );
    let mut ratios: Vec<(f64, &str)> =
        comparisons.iter().map(|it| (it.ratio(DemoArm::AsChosen), it.name)).collect();
    ratios.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    if let ([(best, of_best), .., (worst, of_worst)], true) = (&*ratios, comparisons.len() > 1) {
        let sum = |arm: DemoArm| comparisons.iter().map(|it| it.children_usd(arm)).sum::<f64>();
        text += &format!(
            " Over all {} scenarios: {}; at best {} ({of_best}), at worst {} ({of_worst}).",
            comparisons.len(),
            less(sum(DemoArm::AsChosen) / sum(DemoArm::AsSent).max(f64::MIN_POSITIVE)),
            less(*best),
            less(*worst),
        );
    } else {
        text += &format!(" Always aligned they cost {}, always forked {}.", usd(aligned), usd(forked));
    }
    wrapped("", &text, "")
}

/// A cost in multiples of another, in words that stay on one line: `71 % less`.
fn less(ratio: f64) -> String {
    match (100.0 * (ratio - 1.0)).round() as i64 {
        0 => "as much".to_owned(),
        percent if percent < 0 => format!("{}\u{a0}%\u{a0}less", -percent),
        percent => format!("{percent}\u{a0}%\u{a0}more"),
    }
}

/// The cost of the children under each plan, as bars.
pub fn chart(comparisons: &[PlanComparison], style: Style) -> String {
    match comparisons {
        [one] => long_bars(one, style),
        all => bars_by_scenario(all, style),
    }
}

/// One bar below the other.
fn long_bars(comparison: &PlanComparison, style: Style) -> String {
    let costs = DemoArm::ALL.map(|arm| (arm, comparison.children_usd(arm)));
    let dearest = costs.iter().map(|(_, cost)| *cost).fold(f64::MIN_POSITIVE, f64::max);
    let mut out = "What the children cost:\n\n".to_owned();
    for (arm, cost) in costs {
        let bar = bar(cost / dearest, LONG_CELLS, LONG_CELLS);
        let _ = writeln!(out, "{:<10} {} {}", arm.title(), style.paint(colour(arm), &bar), usd(cost));
    }
    out
}

/// A line for each scenario, a column for each plan.
fn bars_by_scenario(comparisons: &[PlanComparison], style: Style) -> String {
    let mut out = "What the children cost, in multiples of their cost as sent:\n\n".to_owned();
    let titles: String = DemoArm::ALL.map(|arm| format!("{:<17}", arm.title())).concat();
    let _ = writeln!(out, "{:<11}{}", "", titles.trim_end());
    for comparison in comparisons {
        let mut line = format!("{:<11}", comparison.name);
        for arm in DemoArm::ALL {
            let ratio = comparison.ratio(arm);
            let bar = bar(ratio, CELLS, CELLS_MAX);
            let rest = " ".repeat(CELLS_MAX - bar.chars().count());
            line += &format!("{}{rest} {ratio:<6.2}", style.paint(colour(arm), &bar));
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

/// A bar of so many cells for 1, and of no more than `most`.
fn bar(value: f64, cells: usize, most: usize) -> String {
    let eighths = (value.max(0.0) * cells as f64 * 8.0).round() as usize;
    if eighths > most * 8 {
        return FULL.repeat(most - 1) + CUT;
    }
    // What costs anything shows.
    let eighths = if value > 0.0 { eighths.max(1) } else { eighths };
    FULL.repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

/// Colours that a light and a dark terminal show.
fn colour(arm: DemoArm) -> &'static str {
    match arm {
        DemoArm::AsSent => "33",
        DemoArm::Aligned => "36",
        DemoArm::Forked => "35",
        DemoArm::AsChosen => "32",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::demo::model::DemoModel;
    use crate::cli::demo::table::{Column, Row, compare};
    use crate::cli::demo::workload::Workload;
    use crate::cli::golden::assert_golden;
    use crate::config::{ValueOrigin, load_prices};
    use crate::sim::BilledUsage;

    #[test]
    fn a_bar_is_as_long_as_its_value_and_is_cut_where_it_would_not_fit() {
        for (value, expected) in [
            (0.0, ""),
            (0.001, "▏"),
            (0.5, "████"),
            (1.0, "████████"),
            (1.25, "██████████"),
            (3.4, "█████████▶"),
        ] {
            assert_eq!(bar(value, CELLS, CELLS_MAX), expected, "{value}");
        }
    }

    #[test]
    fn colour_changes_nothing_but_colour() {
        let prices = load_prices(None, &ValueOrigin::Default).unwrap();
        let model = DemoModel::named(None, &prices).unwrap();
        let played = |name| {
            let (workload, columns) = (Workload::SINGLE, Vec::new());
            PlanComparison { name, workload, model: model.clone(), columns }
        };
        for comparisons in [vec![played("one")], vec![played("one"), played("two")]] {
            let plain = chart(&comparisons, Style { colour: false });
            let coloured = chart(&comparisons, Style { colour: true });
            assert!(!plain.contains('\x1b') && coloured.contains("\x1b[32m"), "{coloured}");
            let stripped = ["\x1b[0m", "\x1b[32m", "\x1b[33m", "\x1b[35m", "\x1b[36m"]
                .iter()
                .fold(coloured, |text, code| text.replace(code, ""));
            assert_eq!(stripped, plain);
        }
    }

    /// Plays with a parent and two children, each of which costs so many cents.
    fn played(name: &'static str, cents: [u32; 4]) -> PlanComparison {
        let prices = load_prices(None, &ValueOrigin::Default).unwrap();
        let model = DemoModel::named(Some("claude-opus-5-5"), &prices).unwrap();
        let columns = DemoArm::ALL.into_iter().zip(cents).map(|(arm, cents)| {
            let row = |who: &str, cost_usd| {
                let usage =
                    BilledUsage { uncached: 3, cache_read: 48_000, output: 310, ..BilledUsage::default() };
                Row { who: who.to_owned(), fan_out: 1, turn: 1, usage, cost_usd, record: None }
            };
            let child = |number: usize| row(&format!("child {number}"), f64::from(cents) / 100.0);
            Column { arm, rows: vec![row("parent", 0.05), child(1), child(2)], children_s: vec![1.5] }
        });
        PlanComparison { name, workload: Workload::SINGLE, model, columns: columns.collect() }
    }

    #[test]
    fn bars_and_table_are_those_of_the_goldens_and_fit_80_columns() {
        let one = [played("single", [12, 7, 3, 3])];
        let two = [played("single", [12, 7, 3, 3]), played("reread", [40, 90, 20, 20])];
        for (suffix, colour) in [("", false), ("-colour", true)] {
            let style = Style { colour };
            let shown = [chart(&one, style), chart(&two, style), compare(&one[0].columns, 1)].join("\n");
            // It looks alike in any terminal that is wide enough.
            for columns in [80, 120] {
                assert_golden(&format!("demo-{columns}{suffix}.txt"), &shown);
            }
            assert!(colour || shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
        }
    }

    #[test]
    fn a_ratio_is_said_as_less_or_more() {
        assert_eq!([0.29, 0.999, 1.04].map(less), ["71\u{a0}%\u{a0}less", "as much", "4\u{a0}%\u{a0}more"]);
    }
}
