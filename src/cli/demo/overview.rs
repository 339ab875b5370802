//! The cost of a fan-out under each plan, and of all of them in one table.

use serde_json::{Value, json};

use super::agent::Workload;
use super::stage::DemoArm;
use super::table::{Column, Row, aligned, grouped, is_child, total, units};
use crate::sim::BilledUsage;

/// One fan-out, played under each plan.
pub struct PlanComparison {
    pub name: &'static str,
    pub workload: Workload,
    pub columns: Vec<Column>,
}

impl PlanComparison {
    /// The children's requests under one plan.
    fn rows(&self, arm: DemoArm) -> impl Iterator<Item = &Row> {
        let columns = self.columns.iter().filter(move |column| column.arm == arm);
        columns.flat_map(|column| &column.rows).filter(is_child)
    }

    fn children(&self, arm: DemoArm) -> (BilledUsage, Option<f64>) {
        total(self.rows(arm))
    }

    /// Returns true if the children as sent really ran together: none of them read what another had written.
    pub fn overlapped(&self) -> bool {
        self.rows(DemoArm::AsSent).all(|row| row.turn > 1 || row.usage.cache_read == 0)
    }

    /// Puts another play in the place of the same arm's.
    pub fn replace(&mut self, column: Column) {
        if let Some(old) = self.columns.iter_mut().find(|old| old.arm == column.arm) {
            *old = column;
        }
    }

    /// The cost of the children, in multiples of their cost as sent.
    fn ratio(&self, arm: DemoArm) -> f64 {
        units(&self.children(arm).0) / units(&self.children(DemoArm::AsSent).0).max(1.0)
    }

    /// The cost of the forked children, in multiples of their prompts without a cache. `None` if not all are forked:
    /// the others do without the parent's context.
    fn of_uncached(&self) -> Option<f64> {
        let (usage, _) = self.children(DemoArm::Forked);
        self.declined().is_empty().then(|| units(&usage) / (usage.prompt() as f64).max(1.0))
    }

    /// Why children were not forked, each reason once.
    fn declined(&self) -> Vec<&str> {
        let mut reasons: Vec<&str> = self
            .rows(DemoArm::Forked)
            .filter(|row| row.plan.as_deref() != Some("forked"))
            .map(|row| row.reason.as_deref().unwrap_or("unknown"))
            .collect();
        reasons.sort_unstable();
        reasons.dedup();
        reasons
    }

    /// The result in words.
    pub fn conclusion(&self) -> String {
        let cheaper = |arm: DemoArm| format!("{:.2} of what they cost as sent", self.ratio(arm));
        let concluded = match self.of_uncached() {
            Some(ratio) => format!(
                "Forked, the children read the parent's whole context as well. They cost {}, and {ratio:.2} of what\n\
                 the same context costs without a cache. Aligned, without that context, {}.\n",
                cheaper(DemoArm::Forked),
                cheaper(DemoArm::Aligned),
            ),
            None => format!(
                "forkpoint declined to fork ({}) and aligned the children instead: {}.\n{}",
                self.declined().join(", "),
                cheaper(DemoArm::Forked),
                explained(&self.declined()),
            ),
        };
        if self.overlapped() { concluded } else { concluded + DISTORTED }
    }

    pub fn json(&self) -> Value {
        let Workload { children, turns, context_tokens, tool_tokens, child_tokens, client } = self.workload;
        let columns: serde_json::Map<String, Value> =
            self.columns.iter().map(|column| (column.arm.title().replace(' ', "_"), bill(column))).collect();
        json!({
            "scenario": self.name,
            "children": children,
            "turns": turns,
            "context_tokens": context_tokens,
            "tool_tokens": tool_tokens,
            "instruction_tokens": child_tokens,
            "client": client.name(),
            "columns": columns,
            "aligned_to_as_sent": self.ratio(DemoArm::Aligned),
            "forked_to_as_sent": self.ratio(DemoArm::Forked),
            "forked_to_same_context_uncached": self.of_uncached(),
            "declined": self.declined(),
            "as_sent_overlapped": self.overlapped(),
        })
    }
}

fn bill(column: &Column) -> Value {
    let sum = |usage: BilledUsage, cost_usd: Option<f64>| {
        json!({
            "prompt": usage.prompt(),
            "uncached": usage.uncached,
            "cache_read": usage.cache_read,
            "cache_write": usage.cache_write(),
            "output": usage.output,
            "units": units(&usage),
            "usd": cost_usd,
        })
    };
    let request = |row: &Row| {
        let mut bill = sum(row.usage, row.cost_usd);
        bill["who"] = json!(row.who);
        bill["turn"] = json!(row.turn);
        bill["plan"] = json!(row.plan);
        bill["reason"] = json!(row.reason);
        bill
    };
    let (children, children_usd) = total(column.rows.iter().filter(is_child));
    let (all, all_usd) = total(column.rows.iter());
    json!({
        "children": sum(children, children_usd),
        "all": sum(all, all_usd),
        "requests": column.rows.iter().map(request).collect::<Vec<Value>>(),
    })
}

const HEADER: [&str; 10] = [
    "scenario",
    "parent",
    "children",
    "each",
    "requests",
    "client",
    "aligned",
    "forked",
    "of uncached",
    "forkpoint",
];

/// One line per fan-out.
pub fn table(comparisons: &[PlanComparison]) -> String {
    let mut lines = vec![HEADER.map(String::from).to_vec()];
    lines.extend(comparisons.iter().map(|it| {
        let workload = &it.workload;
        vec![
            it.name.to_owned(),
            grouped(workload.context_tokens.into()),
            workload.children.to_string(),
            grouped((workload.tool_tokens + workload.child_tokens).into()),
            (workload.turns + 1).to_string(),
            workload.client.name().to_owned(),
            format!("{:.2}", it.ratio(DemoArm::Aligned)),
            format!("{:.2}", it.ratio(DemoArm::Forked)),
            it.of_uncached().map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")),
            match it.declined().as_slice() {
                [] => "forked".to_owned(),
                reasons => format!("declined: {}", reasons.join(", ")),
            },
        ]
    }));
    let mut reasons: Vec<&str> = comparisons.iter().flat_map(PlanComparison::declined).collect();
    reasons.sort_unstable();
    reasons.dedup();
    format!(
        "All scenarios: what the children cost, aligned and forked, in multiples of their cost as sent; of uncached:\n\
         forked, in multiples of the same context without a cache. A naive client marks nothing for the cache.\n\n\
         {}\n{}",
        aligned(&lines, &[1]),
        explained(&reasons),
    ) + if comparisons.iter().all(PlanComparison::overlapped) { "" } else { DISTORTED }
}

const DISTORTED: &str = "Take this with care: this machine is too busy to run the children as sent at once, so that some read what\n\
    others had written, and cost less than in life.\n";

/// Explains the most common reason not to fork.
fn explained(reasons: &[&str]) -> &'static str {
    if reasons.contains(&"cost") {
        "cost: on the parent's prefix such small children would be dearer than as sent (fork.max_cost_ratio).\n"
    } else {
        ""
    }
}
