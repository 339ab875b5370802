//! The measurements: a table, a conclusion, and a chart.

use std::time::Duration;

use super::super::model::DemoModel;
use super::super::plot::{Chart, Panel, PlotLine, Stroke};
use super::super::table::{aligned, grouped, wrapped};
use super::super::workload::Client;
use crate::sim::Latency;

/// Under what all cells were played.
pub struct GateSetting {
    /// As in life, not as played.
    pub latency: Latency,
    pub max_hold: Duration,
    pub speed: u32,
    pub turns: u16,
    pub client: Client,
    pub model: DemoModel,
}

/// One fan-out, played both ways.
pub struct Cell {
    pub children: u16,
    /// Tokens of the instructions that the children share.
    pub prefix: u32,
    pub ungated: ChildrenOutcome,
    pub gated: ChildrenOutcome,
}

/// The cost and the time of the children of one play, scaled back to real time.
pub struct ChildrenOutcome {
    pub cost_usd: f64,
    /// From the first child's request to the last child's last byte.
    pub took: Duration,
    /// The part of it that the slowest child's model took.
    pub answering: Duration,
}

impl GateSetting {
    pub fn describe(&self) -> String {
        let requests = match self.turns {
            0 => "one request each".to_owned(),
            turns => format!("{} requests each", turns + 1),
        };
        let paragraphs = [
            format!(
                "Children that share their instructions and start at once, {requests}, through forkpoint without \
                 the gate and with it. {}",
                self.client.describe(),
            ),
            format!(
                "Simulated: {} ms to the first token and {} µs per uncached token. The gate holds at most {} ms. {}",
                self.latency.base.as_millis(),
                self.latency.per_uncached_token.as_micros(),
                self.max_hold.as_millis(),
                match self.speed {
                    1 => "Played and shown in real time.".to_owned(),
                    speed => format!(
                        "Played {speed} times as fast, the gate too; the times shown are scaled back."
                    ),
                },
            ),
        ];
        let paragraphs = paragraphs.map(|paragraph| wrapped("", &paragraph, ""));
        format!("{}\n\n{}", self.model.describe(), paragraphs.join("\n"))
    }
}

impl Cell {
    /// The part of the ungated cost that the gate saved.
    fn saved(&self) -> f64 {
        if self.ungated.cost_usd > 0.0 { 1.0 - self.gated.cost_usd / self.ungated.cost_usd } else { 0.0 }
    }

    /// How much later the last child was done.
    fn paid_s(&self) -> f64 {
        self.gated.took.as_secs_f64() - self.ungated.took.as_secs_f64()
    }
}

const HEADER: [&str; 8] =
    ["children", "prefix", "ungated $", "gated $", "saved", "ungated s", "gated s", "latency paid"];

pub fn table(cells: &[Cell]) -> String {
    let mut lines = vec![HEADER.map(String::from).to_vec()];
    lines.extend(cells.iter().map(|cell| {
        vec![
            cell.children.to_string(),
            grouped(cell.prefix.into()),
            format!("{:.4}", cell.ungated.cost_usd),
            format!("{:.4}", cell.gated.cost_usd),
            format!("{:.0} %", 100.0 * cell.saved()),
            format!("{:.2}", cell.ungated.took.as_secs_f64()),
            format!("{:.2}", cell.gated.took.as_secs_f64()),
            format!("{:+.2} s", cell.paid_s()),
        ]
    }));
    let is_new = |at: &usize| *at == 0 || cells[*at].prefix != cells[*at - 1].prefix;
    let rules: Vec<usize> = (0..cells.len()).filter(is_new).map(|at| at + 1).collect();
    aligned(&lines, &rules)
}

/// Less than this is not worth a wait.
const WORTHWHILE: f64 = 0.01;
/// The share of a play's time that the machine may add before the figures describe it rather than the gate.
const MACHINE_SHARE_MAX: f64 = 0.25;

pub fn conclusion(cells: &[Cell], setting: &GateSetting) -> String {
    let (worth, vain): (Vec<&Cell>, Vec<&Cell>) = cells.iter().partition(|cell| cell.saved() >= WORTHWHILE);
    let mut lines = Vec::new();
    if let Some(((least, most), (soonest, latest))) =
        range(&worth, Cell::saved).zip(range(&worth, Cell::paid_s))
    {
        lines.push(format!(
            "The gate saved {:.0} to {:.0} % of the children's cost; the last child's end moved by {soonest:+.1} to {latest:+.1} s.",
            100.0 * least,
            100.0 * most
        ));
    }
    if let Some((soonest, latest)) = range(&vain, Cell::paid_s) {
        lines.push(format!(
            "It saved nothing in {} of {} fan-outs, and their end moved by {soonest:+.1} to {latest:+.1} s.",
            vain.len(),
            cells.len()
        ));
    }
    let write = |cell: &&Cell| setting.latency.to_first_token(cell.prefix.into());
    if let Some(longest) = vain.iter().map(write).max().filter(|longest| *longest > setting.max_hold) {
        lines.push(format!(
            "There the first answer begins after {:.1} s, longer than the gate holds; try --max-hold-ms {}.",
            longest.as_secs_f64(),
            (longest.as_secs() + 2) * 1_000
        ));
    }
    lines.extend(distortion(cells));
    let lines: Vec<String> = lines.iter().map(|line| wrapped("", line, "  ")).collect();
    lines.join("\n")
}

/// Ungated children wait for nobody: what they took beyond the model's time, this machine took.
fn distortion(cells: &[Cell]) -> Option<String> {
    let share = |cell: &Cell| {
        let ChildrenOutcome { took, answering, .. } = &cell.ungated;
        took.saturating_sub(*answering).as_secs_f64() / took.as_secs_f64().max(f64::MIN_POSITIVE)
    };
    let worst = cells.iter().max_by(|a, b| share(a).total_cmp(&share(b)))?;
    (share(worst) > MACHINE_SHARE_MAX).then(|| {
        format!(
            "Take these with care: this machine itself took {:.0} % of the time of {} ungated children with {} \
             tokens. A release build or --speed 1 is nearer to life.",
            100.0 * share(worst),
            worst.children,
            grouped(worst.prefix.into())
        )
    })
}

fn range(cells: &[&Cell], figure: impl Fn(&Cell) -> f64) -> Option<(f64, f64)> {
    let figures = || cells.iter().map(|cell| figure(cell));
    Some((figures().min_by(f64::total_cmp)?, figures().max_by(f64::total_cmp)?))
}

pub fn chart(cells: &[Cell], setting: &GateSetting) -> Chart {
    let mut prefixes: Vec<u32> = cells.iter().map(|cell| cell.prefix).collect();
    prefixes.dedup();
    let lines = |figure: fn(&ChildrenOutcome) -> f64| {
        let line = |group: usize, prefix: u32, stroke: Stroke| {
            let (name, outcome): (&str, fn(&Cell) -> &ChildrenOutcome) = match stroke {
                Stroke::Solid => (GATED, |cell| &cell.gated),
                Stroke::Dashed => (UNGATED, |cell| &cell.ungated),
            };
            let cells = cells.iter().filter(|cell| cell.prefix == prefix);
            PlotLine {
                name: format!("{}, {name}", thousands(prefix)),
                group,
                stroke,
                points: cells.map(|cell| (f64::from(cell.children), figure(outcome(cell)))).collect(),
            }
        };
        let both = |(group, prefix): (usize, &u32)| {
            [Stroke::Solid, Stroke::Dashed].map(|stroke| line(group, *prefix, stroke))
        };
        prefixes.iter().enumerate().flat_map(both).collect::<Vec<PlotLine>>()
    };
    Chart {
        title: "What the gate saves, and what it delays".to_owned(),
        subtitle: format!(
            "Simulated: {} ms to the first token, {} µs per uncached token; the gate holds at most {} ms.",
            setting.latency.base.as_millis(),
            setting.latency.per_uncached_token.as_micros(),
            setting.max_hold.as_millis()
        ),
        over: "children",
        groups: prefixes.iter().map(|prefix| format!("{} prefix", thousands(*prefix))).collect(),
        strokes: [GATED, UNGATED],
        panels: vec![
            Panel {
                title: "Cost of all children".to_owned(),
                show: |value| format!("${value}"),
                lines: lines(|outcome| outcome.cost_usd),
            },
            Panel {
                title: "Time until the last child is done".to_owned(),
                show: |value| format!("{value} s"),
                lines: lines(|outcome| outcome.took.as_secs_f64()),
            },
        ],
    }
}

const GATED: &str = "gated";
const UNGATED: &str = "ungated";

/// `50000` → `50k`.
fn thousands(tokens: u32) -> String {
    format!("{}k", tokens / 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ValueOrigin, load_prices};

    fn cell(prefix: u32, costs: [f64; 2], seconds: [f64; 2]) -> Cell {
        let outcome = |at: usize| {
            let took = Duration::from_secs_f64(seconds[at]);
            ChildrenOutcome { cost_usd: costs[at], took, answering: took.mul_f64(0.9) }
        };
        Cell { children: 5, prefix, ungated: outcome(0), gated: outcome(1) }
    }

    fn setting() -> GateSetting {
        GateSetting {
            latency: super::super::LATENCY,
            max_hold: Duration::from_secs(5),
            speed: 2,
            turns: 0,
            client: Client::Careful,
            model: DemoModel::named(None, &load_prices(None, &ValueOrigin::Default).unwrap()).unwrap(),
        }
    }

    #[test]
    fn a_row_says_what_was_saved_and_what_was_paid() {
        let text = table(&[cell(50_000, [1.0, 0.25], [3.0, 3.5])]);
        let row: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(row, ["5", "50,000", "1.0000", "0.2500", "75", "%", "3.00", "3.50", "+0.50", "s"]);
    }

    #[test]
    fn fan_outs_that_saved_nothing_are_told_apart_and_a_deadline_that_would_do_is_named() {
        let cells = [cell(2_000, [1.0, 0.4], [1.0, 1.5]), cell(200_000, [9.0, 9.0], [11.0, 16.0])];
        let text = conclusion(&cells, &setting());
        assert!(text.contains("saved 60 to 60 %") && text.contains("+0.5 to +0.5 s"), "{text}");
        assert!(text.contains("nothing in 1 of 2") && text.contains("--max-hold-ms 12000"), "{text}");
        assert!(!text.contains("with care"), "{text}");
    }

    #[test]
    fn a_busy_machine_is_owned_up_to() {
        let mut slow = cell(2_000, [1.0, 0.4], [4.0, 4.0]);
        slow.ungated.answering = Duration::from_secs(1);
        assert!(conclusion(&[slow], &setting()).contains("took 75 %"));
    }

    #[test]
    fn the_chart_has_a_line_per_prefix_arm_and_panel() {
        let cells = [cell(2_000, [1.0, 0.4], [1.0, 1.5]), cell(10_000, [2.0, 0.6], [1.2, 1.8])];
        let chart = chart(&cells, &setting());
        let last: Vec<_> = chart.panels.iter().map(|panel| &panel.lines[2]).collect();
        assert_eq!(last[0].points, [(5.0, 0.6)]);
        assert_eq!(last[1].points, [(5.0, 1.8)]);
        assert_eq!((last[0].name.as_str(), last[0].stroke, last[0].group), ("10k, gated", Stroke::Solid, 1));
    }
}
