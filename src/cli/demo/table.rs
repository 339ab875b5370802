//! The table of what each request cost.

use super::stage::DemoArm;
use crate::sim::BilledUsage;

pub struct Row {
    pub who: String,
    pub turn: usize,
    /// The plan that forkpoint chose and the reason, if the request went through one.
    pub plan: Option<String>,
    pub reason: Option<String>,
    pub usage: BilledUsage,
    /// `None` for a model without a price.
    pub cost_usd: Option<f64>,
}

const HEADER: [&str; 8] =
    ["request", "turn", "prompt", "uncached", "cache read", "cache write", "output", "cost"];

/// The bills of one play.
pub struct Column {
    pub arm: DemoArm,
    pub rows: Vec<Row>,
}

/// The columns side by side, children first: they are what a fan-out is about.
pub fn compare(columns: &[Column]) -> String {
    let mut lines: Vec<Vec<String>> = Vec::new();
    let titles = columns.iter().map(|column| column.arm.title());
    lines.push(std::iter::once("").chain(titles).map(String::from).collect());
    for (part, is_part) in [("children", is_child as fn(&&Row) -> bool), ("all", |_| true)] {
        let bills: Vec<(BilledUsage, Option<f64>)> =
            columns.iter().map(|column| total(column.rows.iter().filter(is_part))).collect();
        for (place, kind) in KINDS.iter().enumerate() {
            let cells = bills.iter().map(|(usage, _)| grouped(counts(usage)[place]));
            lines.push(std::iter::once(format!("{part}: {kind}")).chain(cells).collect());
        }
        let cells = bills.iter().map(|(usage, _)| grouped(units(usage).round() as u64));
        lines.push(std::iter::once(format!("{part}: units")).chain(cells).collect());
        let base = bills.first().and_then(|(_, cost)| *cost);
        let cells = bills.iter().enumerate().map(|(place, (_, cost))| {
            let compared_with = if place > 0 { base } else { None };
            price(*cost, compared_with)
        });
        lines.push(std::iter::once(format!("{part}: cost")).chain(cells).collect());
    }
    aligned(&lines, &[1, 7])
}

const KINDS: [&str; 4] = ["uncached", "cache write", "cache read", "output"];

fn counts(usage: &BilledUsage) -> [u64; 4] {
    [usage.uncached, usage.cache_write(), usage.cache_read, usage.output]
}

/// Prompt tokens weighed by price: 1 uncached, 1.25 written, 0.1 read.
pub fn units(usage: &BilledUsage) -> f64 {
    usage.uncached as f64 + 1.25 * usage.cache_write() as f64 + 0.1 * usage.cache_read as f64
}

pub fn is_child(row: &&Row) -> bool {
    row.who != "parent"
}

/// The cost, and how it compares with the first column's.
fn price(cost: Option<f64>, base: Option<f64>) -> String {
    let Some(cost) = cost else { return "unknown".to_owned() };
    match base.filter(|base| *base > 0.0) {
        Some(base) => format!("${cost:.4} ({:+.0} %)", 100.0 * (cost / base - 1.0)),
        None => format!("${cost:.4}"),
    }
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

pub fn total<'a>(rows: impl Iterator<Item = &'a Row>) -> (BilledUsage, Option<f64>) {
    let mut total = BilledUsage::default();
    let mut cost = Some(0.0);
    for Row { usage, cost_usd, .. } in rows {
        total.uncached += usage.uncached;
        total.cache_read += usage.cache_read;
        total.cache_write_5m += usage.cache_write_5m;
        total.cache_write_1h += usage.cache_write_1h;
        total.output += usage.output;
        cost = cost.zip(*cost_usd).map(|(sum, one)| sum + one);
    }
    (total, cost)
}

fn line(who: &str, turn: String, usage: &BilledUsage, cost: Option<f64>) -> [String; 8] {
    [
        who.to_owned(),
        turn,
        grouped(usage.prompt()),
        grouped(usage.uncached),
        grouped(usage.cache_read),
        grouped(usage.cache_write()),
        grouped(usage.output),
        cost.map_or_else(|| "unknown".to_owned(), |cost| format!("${cost:.4}")),
    ]
}

/// `48500` → `48,500`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
    }

    #[test]
    fn sums_are_the_sums_of_the_rows_and_an_unknown_price_stays_unknown() {
        let usage = BilledUsage { uncached: 1_000, cache_read: 200, output: 7, ..BilledUsage::default() };
        let row =
            |who: &str, cost_usd| Row { who: who.into(), turn: 1, plan: None, reason: None, usage, cost_usd };
        let text =
            render(&[row("parent", Some(0.5)), row("child 1", Some(0.25)), row("child 2", Some(0.25))]);
        let last: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(last, ["all", "3,600", "3,000", "600", "0", "21", "$1.0000"]);
        assert!(render(&[row("parent", None)]).contains("unknown"));
    }
}
