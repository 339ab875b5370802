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
        let text = format!("fan-out {} {}.{}", self.fan_out, self.plan(), self.foreseen());
        wrapped("  ", &text, "    ")
    }

    fn foreseen(&self) -> String {
        self.children.iter().find_map(|record| Foreseen::of(record)).map_or_else(String::new, |it| it.words())
    }

    pub fn json(&self) -> Value {
        let forecast = self.children.iter().find_map(|record| Foreseen::of(record));
        json!({
            "fan_out": self.fan_out,
            "children": self.children.len(),
            "forked": self.forked(),
            "reasons": self.reasons(),
            "predicted": forecast.map(|it| it.json()),
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
    /// Of an aligned child, for what it reads again of what its parent has read.
    reread: Option<f64>,
    /// What forking costs, in multiples of what it may cost, beside each of what it is held to.
    limits: [(&'static str, Option<f64>); 4],
}

impl<'a> Foreseen<'a> {
    fn of(record: &'a ExchangeRecord) -> Option<Foreseen<'a>> {
        Some(Foreseen {
            unit: record.predicted_unit.as_deref()?,
            turns: record.predicted_turns?,
            forked: record.predicted_forked?,
            as_sent: record.predicted_as_sent?,
            aligned: record.predicted_aligned?,
            reread: record.predicted_reread,
            limits: [
                ("beside as sent", record.limit_sent),
                ("beside aligned", record.limit_aligned),
                ("over two such fan-outs", record.limit_twice),
                ("if children live one turn, or eight times as many", record.limit_unknown),
            ],
        })
    }

    fn words(&self) -> String {
        let [forked, as_sent, aligned] =
            [self.forked, self.as_sent, self.aligned].map(|figure| self.amount(figure));
        let reread = self
            .reread
            .map_or_else(String::new, |reread| format!(" and {} for reading again", self.amount(reread)));
        let mut out = format!(
            " Foreseen per child over {} turns: {forked} forked, {aligned} aligned{reread}, {as_sent} as sent.",
            self.turns
        );
        let limits =
            self.limits.iter().filter_map(|(beside, limit)| Some(format!("{:.2} {beside}", (*limit)?)));
        let limits: Vec<String> = limits.collect();
        if !limits.is_empty() {
            out += &format!(" Of what a fork may cost: {}.", limits.join(", "));
        }
        out
    }

    fn json(&self) -> Value {
        let [sent, aligned, twice, unknown] = self.limits.map(|(_, limit)| limit);
        json!({
            "unit": self.unit,
            "turns": self.turns,
            "forked": self.forked,
            "as_sent": self.as_sent,
            "aligned": self.aligned,
            "reread": self.reread,
            "limits": {"sent": sent, "aligned": aligned, "twice": twice, "unknown": unknown},
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

/// The reasons in these decisions, each once and in words.
pub fn reasons(decisions: &[FanOutDecision<'_>]) -> Vec<String> {
    let mut reasons: Vec<&str> = decisions.iter().flat_map(FanOutDecision::reasons).collect();
    reasons.sort_unstable();
    reasons.dedup();
    reasons.into_iter().map(|reason| format!("{reason}: {}", explained(reason))).collect()
}

fn explained(reason: &str) -> &str {
    let known = [
        (Refusal::Cost, "forking costs more than fork.max_cost_ratio or fork.context_premium allows"),
        (Refusal::Unlearned, "too dear if children live long, and how long these live is not known yet"),
        (Refusal::CostUnknown, "what forking would cost is not known"),
        (Refusal::StoodDown, "forked children cost more than as sent, and forking stands down"),
    ];
    known
        .iter()
        .find(|(refusal, _)| refusal.as_str() == reason)
        .map_or("see config/README.md", |(_, words)| words)
}
