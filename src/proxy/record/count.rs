//! The metrics of one exchange.

use std::time::Duration;

use http::StatusCode;

use crate::engine::fanout::Dropped;
use crate::engine::gate::Outcome;
use crate::engine::learned::LAYERS;
use crate::engine::turn::Turn;
use crate::engine::types::{Endpoint, Plan};
use crate::engine::usage::Usage;
use crate::engine::volatile::Volatile;
use crate::metrics::Admit;
use crate::proxy::family::Fanout;
use crate::proxy::hold::Held;
use crate::proxy::memo::Verdict;

use super::Recorder;

impl Recorder {
    pub(super) fn count(&self, model: &str, turn: Option<&Turn>, verdict: &Verdict) {
        let Recorder { facts, metrics, .. } = self;
        let (role, plan) = (facts.role.as_str(), facts.plan.as_str());
        let status = facts.status.as_ref().map_or("none", StatusCode::as_str);
        metrics.requests_total.with_label_values(&[role, plan, model, status]).inc();
        metrics.endpoint_requests_total.with_label_values(&[facts.endpoint.as_str()]).inc();
        match facts.fault {
            Some(fault) => metrics.refused_total.with_label_values(&[fault]).inc(),
            None if matches!(facts.plan, Plan::Passthrough(_)) => {
                metrics.passthrough_total.with_label_values(&[facts.plan.reason()]).inc();
            }
            None => {}
        }
        if let Some(sender) = &facts.sender {
            let client = metrics.clients.label(&sender.client, Admit::New);
            metrics.client_requests_total.with_label_values(&[client, plan]).inc();
        }
        if facts.endpoint == Endpoint::Messages {
            let overhead = |phase, time: Duration| {
                metrics.overhead_seconds.with_label_values(&[phase]).observe(time.as_secs_f64());
            };
            overhead("read", facts.read_time);
            overhead("align", facts.align_time);
            overhead("observe", facts.observe_time);
            if let (Some(sent), Some(first)) = (facts.sent_at, facts.first_byte_at) {
                let wait = first.duration_since(sent).as_secs_f64();
                metrics.upstream_first_byte_seconds.with_label_values::<&str>(&[]).observe(wait);
            }
        }
        if let Some(lost) = &verdict.cache_break {
            let labels = [lost.layer.as_str(), lost.cause.as_str()];
            metrics.cache_breaks_total.with_label_values(&labels).inc();
            metrics.cache_break_tokens_total.with_label_values(&labels).inc_by(lost.tokens_lost);
        }
        self.count_volatile(&verdict.volatile);
        if let Some(usage) = turn.and_then(|turn| turn.usage) {
            self.count_tokens(model, &usage);
        }
    }

    /// Of several texts of one kind the first costs what they cost together.
    fn count_volatile(&self, found: &[Volatile]) {
        for (index, volatile) in found.iter().enumerate() {
            let same = |other: &Volatile| (other.layer, other.kind) == (volatile.layer, volatile.kind);
            let labels = [volatile.layer.as_str(), volatile.kind.as_str()];
            self.metrics.volatile_total.with_label_values(&labels).inc();
            if !found[..index].iter().any(same) {
                self.metrics.volatile_tokens_total.with_label_values(&labels).inc_by(volatile.tokens);
            }
        }
    }

    fn count_tokens(&self, model: &str, usage: &Usage) {
        let Recorder { facts, metrics, .. } = self;
        let tenant = facts.sender.as_ref().and_then(|sender| sender.tenant);
        let tenant = tenant.map_or_else(|| "none".to_owned(), |tenant| tenant.to_string());
        let tenant = metrics.tenants.label(&tenant, Admit::New);
        for (kind, count) in usage.kinds() {
            metrics.tokens_total.with_label_values(&[facts.role.as_str(), model, kind]).inc_by(count);
            metrics.tenant_tokens_total.with_label_values(&[tenant, kind]).inc_by(count);
        }
    }

    /// What the store holds, and whether it knew the conversation.
    pub(super) fn count_store(&self) {
        let Some(memo) = &self.memo else { return };
        let (metrics, store) = (&self.metrics, memo.store());
        let outcome = if memo.arrival.predecessor().is_some() { "hit" } else { "miss" };
        metrics.store_ops_total.with_label_values(&[store.name(), "recall", outcome]).inc();
        metrics.store_bytes.with_label_values::<&str>(&[]).set(store.bytes() as i64);
        metrics.forks_live.with_label_values::<&str>(&[]).set(store.forks() as i64);
        for (layer, count) in LAYERS.into_iter().zip(store.prefixes()) {
            metrics.prefixes_live.with_label_values(&[layer.as_str()]).set(count as i64);
        }
    }

    pub(super) fn count_family(&self, turn: Option<&Turn>, fanout: Option<&Fanout>) {
        let Recorder { facts, metrics, .. } = self;
        if self.waits {
            metrics.gate_holds_total.with_label_values(&[Outcome::ClientLeft.as_str()]).inc();
        }
        if let Some(hold) = facts.hold.filter(|hold| hold.outcome != Outcome::Unneeded) {
            metrics.gate_holds_total.with_label_values(&[hold.outcome.as_str()]).inc();
            metrics.gate_hold_seconds.with_label_values::<&str>(&[]).observe(hold.time.as_secs_f64());
        }
        metrics.gate_tokens_total.with_label_values(&["saved"]).inc_by(self.saved_tokens(turn).unwrap_or(0));
        metrics.gate_tokens_total.with_label_values(&["missed"]).inc_by(facts.missed_tokens.unwrap_or(0));
        if facts.child_turn == Some(1) {
            metrics.children_total.with_label_values(&[facts.plan.as_str(), facts.plan.reason()]).inc();
        }
        let ended = turn.and_then(|turn| turn.stop_reason.as_deref()).is_some_and(|why| why != "tool_use");
        if let Some(turns) = facts.child_turn.filter(|_| ended) {
            metrics.child_turns.with_label_values::<&str>(&[]).observe(turns as f64);
        }
        match fanout {
            Some(Ok(fork)) => {
                metrics.show_fork(fork.id.to_string(), fork.prefix.to_string());
                metrics.forks_total.with_label_values(&["sealed"]).inc();
                let children = fork.calls.iter().filter(|call| !call.directives.is_empty()).count();
                metrics.fork_children.with_label_values::<&str>(&[]).observe(children as f64);
            }
            // Most answers are no fan-out at all.
            Some(Err(Dropped::FewCalls)) | None => {}
            Some(Err(why)) => metrics.forks_total.with_label_values(&[why.as_str()]).inc(),
        }
    }

    /// What was read because it was waited for.
    pub(super) fn saved_tokens(&self, turn: Option<&Turn>) -> Option<u64> {
        let hold = self.facts.hold.filter(Held::follows)?;
        let read = turn?.usage?.cache_read;
        Some(if hold.tokens > 0 { read.min(hold.tokens) } else { read })
    }
}
