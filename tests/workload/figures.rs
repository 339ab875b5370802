//! What a conversation cost and read, and the table that says so.

use std::fmt::Write as _;

use forkpoint::sim::BilledUsage;
use forkpoint::sim::models::{find, public_models};

use super::client::{Client, Letter};
use super::line::{Exchange, Line, play, resend};

/// The bill of several requests on one line.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bill {
    pub requests: usize,
    pub refused: usize,
    /// Prompt tokens weighed by price: 1 uncached, 1.25 and 2 written, 0.1 read.
    pub units: f64,
    pub read: u64,
    /// What a perfect client would have read: on every turn the whole prompt of the turn before.
    pub readable: u64,
}

impl Bill {
    pub fn of(exchanges: &[Exchange]) -> Bill {
        let models = public_models();
        let mut bill = Bill { requests: exchanges.len(), ..Bill::default() };
        let mut before = 0;
        for exchange in exchanges {
            let Some(usage) = exchange.usage else {
                bill.refused += 1;
                continue;
            };
            let minimum = find(&models, &exchange.model).unwrap().minimum_tokens;
            bill.units += units(&usage);
            bill.read += usage.cache_read;
            bill.readable += if before >= minimum { before } else { 0 };
            before = usage.prompt();
        }
        bill
    }

    /// The part read of what could be; all of it where nothing could.
    pub fn share(&self) -> f64 {
        if self.readable == 0 { 1.0 } else { self.read as f64 / self.readable as f64 }
    }
}

fn units(usage: &BilledUsage) -> f64 {
    usage.uncached as f64
        + 1.25 * usage.cache_write_5m as f64
        + 2.0 * usage.cache_write_1h as f64
        + 0.1 * usage.cache_read as f64
}

/// One client, on both lines.
#[derive(Clone, Debug)]
pub struct Row {
    pub name: String,
    pub direct: Bill,
    pub aligned: Bill,
}

impl Row {
    /// Lets a client speak on one line, and sends what it said on the other.
    pub async fn of(
        name: String,
        mut client: Client,
        turns: usize,
        aligned: &Line<'_>,
        direct: &Line<'_>,
    ) -> Row {
        let spoken = play(&mut client, aligned, turns).await;
        let letters: Vec<Letter> = spoken.iter().map(|exchange| exchange.sent.clone()).collect();
        let direct = resend(letters, direct).await;
        Row { name, direct: Bill::of(&direct), aligned: Bill::of(&spoken) }
    }
}

/// The rows as a Markdown table.
pub fn table(rows: &[Row]) -> String {
    let mut out = String::from(
        "| client | read direct | read aligned | cost direct | cost aligned | saved |\n|---|--:|--:|--:|--:|--:|\n",
    );
    for Row { name, direct, aligned } in rows {
        let (read, cost, saved) = match direct.refused {
            0 => (
                format!("{:.1} %", 100.0 * direct.share()),
                format!("{:.0}", direct.units),
                format!("{:.0} %", 100.0 * (1.0 - aligned.units / direct.units)),
            ),
            refused => ("–".to_owned(), format!("{refused} refused"), "–".to_owned()),
        };
        let (share, units) = (100.0 * aligned.share(), aligned.units);
        let _ = writeln!(out, "| {name} | {read} | {share:.1} % | {cost} | {units:.0} | {saved} |");
    }
    out
}
