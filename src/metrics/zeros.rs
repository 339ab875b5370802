//! Counters whose labels are enums begin at 0, so that the first event of a kind shows as an increase.

use prometheus::core::{Atomic, GenericCounterVec};

use super::Metrics;
use crate::engine::cache::learned::LAYERS;
use crate::engine::words::{
    Arm, BreakCause, Endpoint, FanOutDropped, GateOutcome, Layer, Reason, Recall, Refusal, Role,
    SightingClass, Skip, StandDown, Step, StopReason, StoreError, StoreOp, UpstreamRefusal, VolatileKind,
    Why,
};

const PLANS: [&str; 3] = ["passthrough", "aligned", "forked"];

impl Metrics {
    pub(super) fn begin_at_zero(&self) {
        let layers = LAYERS.map(Layer::as_str);
        let causes = BreakCause::ALL.map(BreakCause::as_str);
        let arms = Arm::ALL.map(Arm::as_str);
        each(&self.passthrough_total, &Reason::ALL.map(Reason::as_str));
        each(&self.fallbacks_total, &UpstreamRefusal::ALL.map(UpstreamRefusal::as_str));
        each(&self.misdirected_total, &["client", "upstream"]);
        pairs(&self.prefix_sightings_total, &layers, &SightingClass::ALL.map(SightingClass::as_str));
        pairs(&self.cache_breaks_total, &layers, &causes);
        pairs(&self.cache_break_tokens_total, &layers, &causes);
        each(&self.forks_total, &["sealed"]);
        each(&self.forks_total, &FanOutDropped::ALL.map(FanOutDropped::as_str));
        pairs(&self.children_total, &PLANS[..1], &Reason::ALL.map(Reason::as_str));
        let kept = [Why::Mode, Why::ClientFork].into_iter().chain(Refusal::ALL.map(Why::Refused));
        let kept: Vec<_> = kept.chain(Skip::ALL.map(Why::Skipped)).map(Why::as_str).collect();
        pairs(&self.children_total, &PLANS[1..2], &kept);
        pairs(&self.children_total, &PLANS[2..], &["none"]);
        each(&self.standdowns_total, &["refused"]);
        each(&self.standdowns_total, &StandDown::ALL.map(StandDown::as_str));
        each(&self.reread_tokens_total, &PLANS);
        each(&self.reread_turns_total, &PLANS);
        pairs(&self.empty_answers_total, &Role::ALL.map(Role::as_str), &PLANS);
        each(&self.uncompared_total, &["no_usage", "no_price", "unknown"]);
        each(&self.arm_children_total, &arms);
        each(&self.arm_turns_total, &arms);
        each(&self.arm_output_tokens_total, &arms);
        each(&self.arm_empty_answers_total, &arms);
        each(&self.arm_tool_errors_total, &arms);
        pairs(&self.arm_stop_reasons_total, &arms, &StopReason::ALL.map(StopReason::as_str));
        each(&self.arm_cost_usd_total, &arms);
        each(&self.arm_wall_seconds_total, &arms);
        each(&self.gate_holds_total, &GateOutcome::ALL.map(GateOutcome::as_str));
        each(&self.gate_tokens_total, &["saved", "missed"]);
        pairs(&self.volatile_total, &["tools", "system"], &VolatileKind::ALL.map(VolatileKind::as_str));
        pairs(
            &self.volatile_tokens_total,
            &["tools", "system"],
            &VolatileKind::ALL.map(VolatileKind::as_str),
        );
        each(&self.record_dropped_total, &["memory", "queue", "too_long", "write"]);
        each(&self.traces_dropped_total, &["queue", "export"]);
        each(&self.unfollowed_total, &["prompt", "answer"]);
        each(&self.endpoint_requests_total, &Endpoint::ALL.map(Endpoint::as_str));
        each(&self.config_reloads_total, &["loaded", "refused"]);
        let misses = Recall::ALL.into_iter().filter(|recall| *recall != Recall::Hit).map(Recall::as_str);
        each(&self.recall_misses_total, &misses.collect::<Vec<_>>());
        each(&self.panics_total, &Step::ALL.map(Step::as_str));
    }

    /// There is a store behind the memory.
    pub fn has_store(&self, store: &str) {
        let calls = StoreOp::ALL.into_iter().filter(|op| *op != StoreOp::Wait);
        for op in calls.map(StoreOp::as_str) {
            let outcomes = StoreError::ALL.map(StoreError::as_str).into_iter().chain(["ok", "hit", "miss"]);
            for outcome in outcomes {
                self.store_ops_total.with_label_values(&[store, op, outcome]);
            }
        }
        self.store_ops_total.with_label_values(&[store, StoreOp::Wait.as_str(), StoreError::Slow.as_str()]);
        each(&self.store_dropped_total, &[store]);
        each(&self.store_unreadable_total, &[store]);
    }

    /// The reasons for which requests are answered here, which only the proxy knows.
    pub fn may_refuse(&self, reasons: &[&str]) {
        each(&self.refused_total, reasons);
    }
}

fn each<P: Atomic>(counter: &GenericCounterVec<P>, values: &[&str]) {
    for value in values {
        counter.with_label_values(&[value]);
    }
}

fn pairs<P: Atomic>(counter: &GenericCounterVec<P>, first: &[&str], second: &[&str]) {
    for first in first {
        for second in second {
            counter.with_label_values(&[first, second]);
        }
    }
}
