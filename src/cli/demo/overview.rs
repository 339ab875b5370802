//! All scenarios in one table.

use super::comparison::{DISTORTED, PlanComparison};
use super::stage::DemoArm;
use super::table::{aligned, grouped};

const HEADER: [&str; 8] = ["scenario", "parent", "children", "each", "aligned", "forked", "chosen", "plan"];

/// One line per scenario.
pub fn table(comparisons: &[PlanComparison], chooser: &str) -> String {
    let mut lines = vec![HEADER.map(String::from).to_vec()];
    lines.extend(comparisons.iter().map(|it| {
        let workload = &it.workload;
        let ratio = |arm: DemoArm| format!("{:.2}", it.ratio(arm));
        vec![
            it.name.to_owned(),
            grouped(workload.context_tokens.into()),
            match workload.fan_outs {
                1 => workload.children.to_string(),
                fan_outs => format!("{fan_outs} x {}", workload.children),
            },
            grouped((workload.tool_tokens + workload.child_tokens).into()),
            ratio(DemoArm::Aligned),
            ratio(DemoArm::Forked),
            ratio(DemoArm::AsChosen),
            it.chosen(),
        ]
    }));
    let distorted = if comparisons.iter().all(PlanComparison::overlapped) { "" } else { DISTORTED };
    format!(
        "All scenarios: what the children cost, in multiples of their cost as sent:\n\
         always aligned, always forked, and as {chooser} chose.\n\n{}{distorted}",
        aligned(&lines, &[1]),
    )
}
