//! What became of the children of a tool, forked and not.

use std::sync::Arc;
use std::time::Instant;

use crate::engine::fork::Forecast;
use crate::engine::fork::answers::{is_empty, is_foreign, tool_errors};
use crate::engine::fork::experiment::{Answered, Measured};
use crate::engine::turn::Turn;
use crate::engine::words::{Arm, CostUnit, Moment, Plan, StopReason};
use crate::proxy::clock::millis;
use crate::proxy::memo::Memo;
use crate::store::Tenant;

use super::Recorder;

/// Longer than any name of a tool that the API takes.
const TOOL_CHARS_MAX: usize = 128;

/// Says for whom forking stands down. A tool that is not known to start agents is not named.
pub fn warn_of_stand_down(memo: &Memo, tool: &str, reason: &'static str) {
    let is_known = |tenant: Arc<Tenant>| tenant.with_forks(|forks| forks.knows_tool(tool));
    let is_name = tool.len() <= TOOL_CHARS_MAX && tool.bytes().all(|byte| byte.is_ascii_graphic());
    let tool = if is_name && memo.tenant().is_some_and(is_known) { tool } else { "other" };
    tracing::warn!(tenant = %memo.tenant_id(), tool, reason, "forking stands down");
}

impl Recorder {
    /// What this child was predicted to cost when it came.
    pub(super) fn forecast(&self) -> Option<Forecast> {
        let bound = self.family.as_ref().and_then(|family| family.bound());
        self.facts.forecast.or_else(|| bound.and_then(|bound| bound.forecast))
    }

    /// Tells the tenant's ledger how a turn of a child went, and counts it.
    pub(super) fn count_arms(&self, turn: &Turn, now: Moment) {
        let metrics = &self.metrics;
        let empty = is_empty(turn);
        if empty {
            let labels = [self.facts.role.as_str(), self.facts.plan.as_str()];
            metrics.empty_answers_total.with_label_values(&labels).inc();
        }
        let Some((memo, family)) = self.memo.as_ref().zip(self.family.as_ref()) else { return };
        let (Some((child, bound)), Some(own), Some(tenant)) = (family.binding(), family.own(), memo.tenant())
        else {
            return;
        };
        if self.facts.plan == Plan::Forked {
            let foreign = turn.blocks.iter().filter(|block| is_foreign(own, block)).count();
            metrics.foreign_tool_calls_total.with_label_values::<&str>(&[]).inc_by(foreign as u64);
        }
        let Some(usage) = turn.usage.filter(|_| !bound.is_snapshot) else { return };
        let predicted = bound.forecast.map(|forecast| match bound.arm() {
            Arm::Forked => forecast.forked,
            Arm::Holdout | Arm::Unforked => forecast.aligned,
        });
        let answered = Answered {
            child,
            fork: bound.fork,
            tool: &bound.tool,
            arm: bound.arm(),
            first: self.facts.child_turn == Some(1),
            stop: StopReason::of(turn.stop_reason.as_deref()),
            is_empty: empty,
            tool_errors: tool_errors(own),
            prompt_tokens: usage.uncached.saturating_add(usage.cached()),
            output_tokens: usage.output,
            wall_ms: millis(bound.life.grows(self.facts.started, Instant::now())),
            cost: self.units(&usage).map(|(unit, measured)| Measured { unit, measured, predicted }),
        };
        let stood_down = tenant.experiment().record(&answered, now);
        for (tool, why) in stood_down {
            metrics.standdowns_total.with_label_values(&[why.as_str()]).inc();
            warn_of_stand_down(memo, &tool, why.as_str());
        }
        self.count_arm(&answered);
    }

    fn count_arm(&self, turn: &Answered<'_>) {
        let (metrics, arm) = (&self.metrics, turn.arm.as_str());
        metrics.arm_children_total.with_label_values(&[arm]).inc_by(u64::from(turn.first));
        metrics.arm_turns_total.with_label_values(&[arm]).inc();
        metrics.arm_output_tokens_total.with_label_values(&[arm]).inc_by(turn.output_tokens);
        metrics.arm_empty_answers_total.with_label_values(&[arm]).inc_by(u64::from(turn.is_empty));
        metrics.arm_tool_errors_total.with_label_values(&[arm]).inc_by(turn.tool_errors);
        metrics.arm_stop_reasons_total.with_label_values(&[arm, turn.stop.as_str()]).inc();
        metrics.arm_wall_seconds_total.with_label_values(&[arm]).inc_by(turn.wall_ms as f64 / 1e3);
        if let Some(Measured { unit: CostUnit::Dollars, measured, .. }) = turn.cost {
            metrics.arm_cost_usd_total.with_label_values(&[arm]).inc_by(measured);
        }
    }
}
