//! One scenario under each plan: what it cost, what forkpoint chose, and why.

use serde_json::{Value, json};

use super::super::own_sums::OwnSums;
use super::model::DemoModel;
use super::stage::DemoArm;
use super::table::{self, Column, Row, is_child, total, usd, wrapped};
use super::why::{self, FanOutDecision};
use super::workload::{History, Workload};
use crate::sim::BilledUsage;

/// A scenario that was played under each plan.
pub struct PlanComparison {
    pub name: &'static str,
    pub workload: Workload,
    pub model: DemoModel,
    pub columns: Vec<Column>,
}

impl PlanComparison {
    pub fn column(&self, arm: DemoArm) -> Option<&Column> {
        self.columns.iter().find(|column| column.arm == arm)
    }

    /// The cost of the children.
    pub fn children_usd(&self, arm: DemoArm) -> f64 {
        self.children(arm).1
    }

    fn children(&self, arm: DemoArm) -> (BilledUsage, f64) {
        total(self.column(arm).into_iter().flat_map(Column::children))
    }

    /// Returns true if siblings as sent really ran together: none of them read what another was still writing. Those
    /// of a later fan-out may all read what an earlier one wrote.
    pub fn overlapped(&self) -> bool {
        let Some(sent) = self.column(DemoArm::AsSent) else { return true };
        (1..=self.workload.fan_outs).all(|number| {
            let firsts: Vec<&Row> = sent.fan_out(number).filter(|row| row.turn == 1).collect();
            let readers = firsts.iter().filter(|row| row.usage.cache_read > 0).count();
            readers == 0 || readers == firsts.len()
        })
    }

    /// Puts another play in the place of the same arm's.
    pub fn replace(&mut self, column: Column) {
        if let Some(old) = self.columns.iter_mut().find(|old| old.arm == column.arm) {
            *old = column;
        }
    }

    /// The cost of the children, in multiples of their cost as sent.
    pub fn ratio(&self, arm: DemoArm) -> f64 {
        self.children_usd(arm) / self.children_usd(DemoArm::AsSent).max(f64::MIN_POSITIVE)
    }

    /// The cost of the forked children, in multiples of the same tokens without a cache. `None` if not all are forked:
    /// the others do without the parent's context.
    fn of_uncached(&self) -> Option<f64> {
        let decisions = self.decisions(DemoArm::Forked);
        let all = decisions.iter().all(|decision| decision.reasons().is_empty());
        let (usage, cost) = self.children(DemoArm::Forked);
        all.then(|| cost / self.model.uncached_usd(&usage).max(f64::MIN_POSITIVE))
    }

    fn decisions(&self, arm: DemoArm) -> Vec<FanOutDecision<'_>> {
        let column = self.column(arm);
        column.map_or_else(Vec::new, |column| why::decisions(column, self.workload.fan_outs))
    }

    /// The plan that was chosen, in short.
    pub fn chosen(&self) -> String {
        let decisions = self.decisions(DemoArm::AsChosen);
        match decisions.as_slice() {
            [one] => one.plan(),
            all => {
                let forked = all.iter().filter(|decision| decision.reasons().is_empty()).count();
                format!("forked {forked} of {}", all.len())
            }
        }
    }

    /// What forkpoint itself says of the children as chosen.
    fn own_sums(&self) -> OwnSums {
        let children = self.column(DemoArm::AsChosen).into_iter().flat_map(Column::children);
        OwnSums::of(children.filter_map(|row| row.record.as_ref()))
    }

    /// The table, the decisions and the result in words.
    pub fn text(&self, chooser: &str) -> String {
        let mut out = format!(
            "{}\n\n{}\n",
            self.workload.describe(self.name),
            table::compare(&self.columns, self.workload.fan_outs)
        );
        out += &format!("What {chooser} chose and why, by forkpoint's own records:\n");
        let decisions = self.decisions(DemoArm::AsChosen);
        for decision in &decisions {
            out += &(decision.words() + "\n");
        }
        for reason in why::reasons(&decisions) {
            out += &(wrapped("  ", &reason, "    ") + "\n");
        }
        let OwnSums { billed_usd, as_sent_usd, aligned_usd, unknown, .. } = self.own_sums();
        let mut sums = format!(
            "Its own sums of these requests: billed {}, as sent {}, aligned {}",
            usd(billed_usd),
            usd(as_sent_usd),
            usd(aligned_usd),
        );
        sums += &match (unknown, self.workload.history) {
            (0, History::Told) => ".".to_owned(),
            (0, History::Files) => "; reading that was spared is in none of them.".to_owned(),
            (unknown, _) => format!("; {unknown} requests are not in them."),
        };
        out += &(wrapped("  ", &sums, "    ") + "\n");
        if let Some(ratio) = self.of_uncached() {
            let context = format!(
                "Forked, a child also reads all that its parent knows, for {ratio:.2} of what that costs without a \
                 cache."
            );
            out += &format!("\n{}\n", wrapped("", &context, ""));
        }
        if self.overlapped() { out } else { out + DISTORTED }
    }

    pub fn json(&self) -> Value {
        let Workload { fan_outs, children, turns, context_tokens, tool_tokens, child_tokens, client, .. } =
            self.workload;
        let columns: serde_json::Map<String, Value> = self
            .columns
            .iter()
            .map(|column| (column.arm.title().replace(' ', "_"), bill(column, fan_outs)))
            .collect();
        let decisions = self.decisions(DemoArm::AsChosen);
        json!({
            "scenario": self.name,
            "fan_outs": fan_outs,
            "pause_s": self.workload.pause.as_secs(),
            "children": children,
            "turns": turns,
            "context_tokens": context_tokens,
            "tool_tokens": tool_tokens,
            "instruction_tokens": child_tokens,
            "client": client.name(),
            "columns": columns,
            "aligned_to_as_sent": self.ratio(DemoArm::Aligned),
            "forked_to_as_sent": self.ratio(DemoArm::Forked),
            "as_chosen_to_as_sent": self.ratio(DemoArm::AsChosen),
            "forked_to_same_context_uncached": self.of_uncached(),
            "decisions": decisions.iter().map(FanOutDecision::json).collect::<Vec<_>>(),
            "own_sums": self.own_sums().json(),
            "as_sent_overlapped": self.overlapped(),
        })
    }
}

fn bill(column: &Column, fan_outs: u16) -> Value {
    let sum = |(usage, cost_usd): (BilledUsage, f64)| {
        json!({
            "prompt": usage.prompt(),
            "uncached": usage.uncached,
            "cache_read": usage.cache_read,
            "cache_write": usage.cache_write(),
            "output": usage.output,
            "usd": cost_usd,
        })
    };
    let request = |row: &Row| {
        let mut bill = sum((row.usage, row.cost_usd));
        bill["who"] = json!(row.who);
        bill["fan_out"] = json!(row.fan_out);
        bill["turn"] = json!(row.turn);
        bill["plan"] = json!(row.record.as_ref().map(|record| &record.plan));
        bill["reason"] = json!(row.record.as_ref().map(|record| &record.reason));
        bill
    };
    let fan_out = |number: u16| {
        let mut bill = sum(total(column.fan_out(number)));
        bill["seconds"] = json!(column.children_s.get(usize::from(number) - 1));
        bill
    };
    json!({
        "children": sum(total(column.rows.iter().filter(is_child))),
        "children_seconds": column.children_s.iter().sum::<f64>(),
        "all": sum(total(column.rows.iter())),
        "fan_outs": (1..=fan_outs).map(fan_out).collect::<Vec<Value>>(),
        "requests": column.rows.iter().map(request).collect::<Vec<Value>>(),
    })
}

pub const DISTORTED: &str = "\
Take this with care: this machine is too busy to run the children as sent at
once, so that some read what others had written, and cost less than in life.
";
