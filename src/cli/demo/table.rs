//! Tables of what requests cost.

use std::fmt::Write as _;

use super::stage::DemoArm;
use crate::report::ExchangeRecord;
pub use crate::report::figures::grouped;
use crate::sim::BilledUsage;

/// Every line fits a terminal of this width.
const WIDTH: usize = 80;

/// One request.
pub struct Row {
    pub who: String,
    /// The number of the fan-out that it belongs to, from 1.
    pub fan_out: u16,
    pub turn: usize,
    pub usage: BilledUsage,
    pub cost_usd: f64,
    /// What forkpoint recorded of it, if it went through one.
    pub record: Option<ExchangeRecord>,
}

const HEADER: [&str; 8] =
    ["request", "turn", "prompt", "uncached", "cache read", "cache write", "output", "cost"];

/// The bills of one play.
pub struct Column {
    pub arm: DemoArm,
    pub rows: Vec<Row>,
    /// Of each fan-out, the seconds that its children took, at the pace of the model that is simulated.
    pub children_s: Vec<f64>,
}

impl Column {
    /// The requests of the children.
    pub fn children(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(is_child)
    }

    /// The requests of the children of one fan-out.
    pub fn fan_out(&self, number: u16) -> impl Iterator<Item = &Row> {
        self.children().filter(move |row| row.fan_out == number)
    }
}

/// The columns side by side: what the children of each fan-out cost, their sums, and the whole with the parent.
pub fn compare(columns: &[Column], fan_outs: u16) -> String {
    let mut lines: Vec<Vec<String>> = Vec::new();
    let mut line = |name: &str, cell: &dyn Fn(&Column) -> String| {
        lines.push(std::iter::once(name.to_owned()).chain(columns.iter().map(cell)).collect());
        lines.len()
    };
    let sent = |all: bool| {
        let sent = columns.iter().find(|column| column.arm == DemoArm::AsSent);
        sent.map_or(0.0, |column| cost(column, all))
    };
    let beside = |column: &Column, all: bool| match (column.arm, sent(all)) {
        (DemoArm::AsSent, _) => String::new(),
        (_, sent) => format!("{:+.0} %", 100.0 * (cost(column, all) / sent.max(f64::MIN_POSITIVE) - 1.0)),
    };
    let mut rules = vec![line("", &|column| column.arm.title().to_owned())];
    if fan_outs > 1 {
        for number in 1..=fan_outs {
            let cost = |column: &Column| usd(total(column.fan_out(number)).1);
            line(&format!("children of fan-out {number}"), &cost);
        }
    }
    line("all children", &|column| usd(cost(column, false)));
    line("  beside as sent", &|column| beside(column, false));
    line("  seconds", &|column| format!("{:.1}", column.children_s.iter().sum::<f64>()));
    let last = KINDS.iter().map(|(kind, count)| {
        line(&format!("  {kind}"), &|column| grouped(count(&total(column.children()).0)))
    });
    rules.extend(last.last());
    line("parent and children", &|column| usd(cost(column, true)));
    line("  beside as sent", &|column| beside(column, true));
    aligned(&lines, &rules)
}

type TokenCount = fn(&BilledUsage) -> u64;

const KINDS: [(&str, TokenCount); 4] = [
    ("uncached tokens", |usage| usage.uncached),
    ("cache write", |usage| usage.cache_write()),
    ("cache read", |usage| usage.cache_read),
    ("output", |usage| usage.output),
];

/// The cost of the children, or of all.
fn cost(column: &Column, all: bool) -> f64 {
    total(column.rows.iter().filter(|row| all || is_child(row))).1
}

pub fn is_child(row: &&Row) -> bool {
    row.who != "parent"
}

pub fn usd(dollars: f64) -> String {
    format!("${dollars:.4}")
}

/// One line per request, then the sums of parent and children.
pub fn render(rows: &[Row]) -> String {
    let mut lines: Vec<[String; 8]> = vec![HEADER.map(String::from)];
    lines.extend(rows.iter().map(|row| line(&row.who, row.turn.to_string(), &row.usage, row.cost_usd)));
    lines.push(sum("children", rows.iter().filter(is_child)));
    lines.push(sum("all", rows.iter()));
    let rules = [1, lines.len() - 2];
    let lines: Vec<Vec<String>> = lines.into_iter().map(Vec::from).collect();
    aligned(&lines, &rules)
}

/// Cells in columns, the first to the left and the others to the right, with a rule before some lines.
pub fn aligned(lines: &[Vec<String>], rules: &[usize]) -> String {
    let mut widths = vec![0; lines.first().map_or(0, Vec::len)];
    for line in lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = cell.chars().count().max(*width);
        }
    }
    let rule = "-".repeat(widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1)) + "\n";
    let mut out = String::new();
    for (number, line) in lines.iter().enumerate() {
        if rules.contains(&number) {
            out.push_str(&rule);
        }
        let cells = line.iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        out.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        out.push('\n');
    }
    out
}

fn sum<'a>(who: &str, rows: impl Iterator<Item = &'a Row>) -> [String; 8] {
    let (total, cost) = total(rows);
    line(who, String::new(), &total, cost)
}

pub fn total<'a>(rows: impl Iterator<Item = &'a Row>) -> (BilledUsage, f64) {
    let mut total = BilledUsage::default();
    let mut cost = 0.0;
    for Row { usage, cost_usd, .. } in rows {
        total.uncached += usage.uncached;
        total.cache_read += usage.cache_read;
        total.cache_write_5m += usage.cache_write_5m;
        total.cache_write_1h += usage.cache_write_1h;
        total.output += usage.output;
        cost += cost_usd;
    }
    (total, cost)
}

fn line(who: &str, turn: String, usage: &BilledUsage, cost: f64) -> [String; 8] {
    [
        who.to_owned(),
        turn,
        grouped(usage.prompt()),
        grouped(usage.uncached),
        grouped(usage.cache_read),
        grouped(usage.cache_write()),
        grouped(usage.output),
        usd(cost),
    ]
}

/// The text in lines of at most 80 characters: the first behind one indent, the others behind another.
pub fn wrapped(first: &str, text: &str, others: &str) -> String {
    let mut out = first.to_owned();
    let mut width = first.len();
    let mut is_start = true;
    for word in text.split_ascii_whitespace() {
        let letters = word.chars().count();
        if !is_start && width + 1 + letters > WIDTH {
            let _ = write!(out, "\n{others}{word}");
            width = others.len() + letters;
        } else {
            let space = if is_start { "" } else { " " };
            let _ = write!(out, "{space}{word}");
            width += space.len() + letters;
        }
        is_start = false;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_the_sums_of_the_rows() {
        let usage = BilledUsage { uncached: 1_000, cache_read: 200, output: 7, ..BilledUsage::default() };
        let row =
            |who: &str, cost_usd| Row { who: who.into(), fan_out: 1, turn: 1, usage, cost_usd, record: None };
        let text = render(&[row("parent", 0.5), row("child 1", 0.25), row("child 2", 0.25)]);
        let last: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(last, ["all", "3,600", "3,000", "600", "0", "21", "$1.0000"]);
    }

    #[test]
    fn text_is_wrapped_at_the_width_of_a_terminal() {
        let text = wrapped("- ", &"word ".repeat(40), "  ");
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(
            text.starts_with("- word ") && text.lines().skip(1).all(|line| line.starts_with("  word")),
            "{text}"
        );
        assert_eq!(text.split_whitespace().count(), 1 + 40);
    }
}
