//! The outcomes of the children of a tool, forked and not.

use std::sync::Arc;

use crate::engine::answer::turn::Turn;
use crate::engine::fork::Forecast;
use crate::engine::fork::answers::{is_empty, is_foreign, tool_errors};
use crate::engine::fork::experiment::{Answered, Measured};
use crate::engine::words::{Arm, CostUnit, Moment, Plan, StopReason};
use crate::proxy::clock::millis;
use crate::proxy::memo::Memo;
use crate::report::{ChildTurn, Details};
use crate::store::Tenant;

use super::Recorder;

/// Longer than any name of a tool that the API takes.
const TOOL_CHARS_MAX: usize = 128;

/// Says for whom forking stands down. A tool that is not known to start agents is not named.
pub fn warn_of_stand_down(memo: &Memo, tool: &str, reason: &'static str) {
    let is_known = |tenant: Arc<Tenant>| tenant.with_fan_outs(|fan_outs| fan_outs.points().knows_tool(tool));
    let is_name = tool.len() <= TOOL_CHARS_MAX && tool.bytes().all(|byte| byte.is_ascii_graphic());
    let tool = if is_name && memo.tenant().is_some_and(is_known) { tool } else { "other" };
    tracing::warn!(tenant = %memo.tenant_id(), tool, reason, "forking stands down");
}

impl Recorder {
    /// Returns the forecast of this child's cost, made when it came.
    pub(super) fn forecast(&self) -> Option<Forecast> {
        let bound = self.family.as_ref().and_then(|family| family.bound());
        self.facts.forecast.or_else(|| bound.and_then(|bound| bound.forecast))
    }

    /// Adds how a turn of a child went, and tells the tenant's ledger.
    pub(super) fn add_child(&self, details: &mut Details, turn: &Turn, now: Moment) {
        details.is_empty_answer = is_empty(turn);
        let (Some(memo), Some(family)) = (&self.memo, &self.family) else { return };
        let (Some((child, bound)), Some(own), Some(tenant)) = (family.binding(), family.own(), memo.tenant())
        else {
            return;
        };
        if self.facts.plan == Plan::Forked {
            let foreign = turn.blocks.iter().filter(|block| is_foreign(own, block)).count();
            details.foreign_tool_calls = Some(foreign as u64);
        }
        let Some(usage) = turn.usage else { return };
        if bound.is_snapshot {
            return;
        }
        let predicted = bound.forecast.map(|forecast| match bound.arm() {
            Arm::Forked => forecast.forked,
            Arm::Holdout | Arm::Unforked => forecast.aligned,
        });
        let cost = self.units(&usage);
        let started = Moment(now.0.saturating_sub(millis(self.facts.started.elapsed())));
        let grown = tenant
            .with_fan_outs(|fan_outs| fan_outs.child_mut(child).map(|bound| bound.life.grows(started, now)));
        let answered = Answered {
            child,
            fork: bound.fork,
            tool: &bound.tool,
            arm: bound.arm(),
            first: self.facts.child_turn == Some(1),
            stop: StopReason::of(turn.stop_reason.as_deref()),
            is_empty: details.is_empty_answer,
            tool_errors: tool_errors(own),
            prompt_tokens: usage.uncached.saturating_add(usage.cached()),
            output_tokens: usage.output,
            wall_ms: grown.unwrap_or_else(|| bound.life.clone().grows(started, now)),
            cost: cost.map(|(unit, measured)| Measured { unit, measured, predicted }),
        };
        let stood_down = tenant.experiment().record(&answered, now);
        for (tool, why) in stood_down {
            self.metrics.standdowns_total.with_label_values(&[why.as_str()]).inc();
            warn_of_stand_down(memo, &tool, why.as_str());
        }
        details.child = Some(ChildTurn {
            arm: answered.arm.as_str(),
            is_first: answered.first,
            stop: answered.stop.as_str(),
            is_empty: answered.is_empty,
            tool_errors: answered.tool_errors,
            output_tokens: answered.output_tokens,
            wall_ms: answered.wall_ms,
            cost_usd: match cost {
                Some((CostUnit::Dollars, usd)) => Some(usd),
                _ => None,
            },
        });
    }
}
