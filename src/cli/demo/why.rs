//! What forkpoint decided for each fan-out and why, taken from its own records: the plan, the reason and the forecasts
//! are the fields of its log lines.

use serde_json::{Value, json};

use crate::engine::words::{CostUnit, Plan, Refusal};
use crate::report::ExchangeRecord;

use super::grouped;
use super::table::{Column, usd, wrapped};

/// The decision on the children of one fan-out.
pub struct FanOutDecision<'a> {
    fan_out: u16,
    /// The first records of the children, in their order.
    children: Vec<&'a ExchangeRecord>,
}

/// The decisions of a play, fan-out by fan-out.
pub fn decisions(column: &Column, fan_outs: u16) -> Vec<FanOutDecision<'_>> {
    let decision = |fan_out: u16| {
        let first = column.fan_out(fan_out).filter(|row| row.turn == 1);
        FanOutDecision { fan_out, children: first.filter_map(|row| row.record.as_ref()).collect() }
    };
    (1..=fan_outs).map(decision).filter(|decision| !decision.children.is_empty()).collect()
}

impl FanOutDecision<'_> {
    /// The number of children that were forked.
    pub fn forked(&self) -> usize {
        self.children.iter().filter(|record| is_forked(record)).count()
    }

    /// The reasons for which children were not forked, each once.
    pub fn reasons(&self) -> Vec<&str> {
        let declined = self.children.iter().filter(|record| !is_forked(record));
        let mut reasons: Vec<&str> = declined.map(|record| record.reason.as_str()).collect();
        reasons.sort_unstable();
        reasons.dedup();
        reasons
    }

    /// `forked`, `aligned: cost`, or both with the number of children.
    pub fn plan(&self) -> String {
        let forked = self.forked();
        let aligned = format!("aligned: {}", self.reasons().join(", "));
        match self.children.len() - forked {
            0 => "forked".to_owned(),
            _ if forked == 0 => aligned,
            others => format!("{forked} forked, {others} {aligned}"),
        }
    }

    /// The decision in words.
    pub fn words(&self) -> String {
        let why: Vec<&str> = self.reasons().into_iter().map(explained).collect();
        let why = if why.is_empty() { String::new() } else { format!(" ({})", why.join("; ")) };
        let text = format!("  fan-out {}  {}{why}.{}", self.fan_out, self.plan(), self.foreseen());
        // The first words keep their own indent.
        format!("  {}", wrapped(&text, "    "))
    }

    fn foreseen(&self) -> String {
        let forecast = self.children.iter().find_map(|record| Foreseen::of(record));
        forecast.map_or_else(String::new, |it| {
            let Foreseen { turns, forked, as_sent, aligned, .. } = it;
            let [forked, as_sent, aligned] = [forked, as_sent, aligned].map(|figure| it.amount(figure));
            format!(" Foreseen per child over {turns} turns: {forked} forked, {aligned} aligned, {as_sent} as sent.")
        })
    }

    pub fn json(&self) -> Value {
        let forecast = self.children.iter().find_map(|record| Foreseen::of(record));
        json!({
            "fan_out": self.fan_out,
            "children": self.children.len(),
            "forked": self.forked(),
            "reasons": self.reasons(),
            "predicted": forecast.map(|it| json!({"unit": it.unit, "turns": it.turns, "forked": it.forked,
                "as_sent": it.as_sent, "aligned": it.aligned})),
        })
    }
}

fn is_forked(record: &ExchangeRecord) -> bool {
    record.plan == Plan::Forked.as_str()
}

/// The forecast of a child, as its record has it.
struct Foreseen<'a> {
    unit: &'a str,
    turns: u32,
    forked: f64,
    as_sent: f64,
    aligned: f64,
}

impl<'a> Foreseen<'a> {
    fn of(record: &'a ExchangeRecord) -> Option<Foreseen<'a>> {
        Some(Foreseen {
            unit: record.predicted_unit.as_deref()?,
            turns: record.predicted_turns?,
            forked: record.predicted_forked?,
            as_sent: record.predicted_as_sent?,
            aligned: record.predicted_aligned?,
        })
    }

    fn amount(&self, figure: f64) -> String {
        if self.unit == CostUnit::Dollars.as_str() {
            usd(figure)
        } else {
            format!("{} weighed tokens", grouped(figure.round() as u64))
        }
    }
}

/// The reasons that the demo's children meet; any other is in config/README.md.
fn explained(reason: &str) -> &str {
    let known = [
        (Refusal::Cost, "forking would cost more than fork.max_cost_ratio or fork.context_premium allows"),
        (Refusal::CostUnknown, "what forking would cost is not known"),
        (Refusal::StoodDown, "forking cost more than foreseen before, and stands down"),
    ];
    known.iter().find(|(refusal, _)| refusal.as_str() == reason).map_or(reason, |(_, words)| words)
}
