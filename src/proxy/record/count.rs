//! The metrics of one exchange.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use crate::engine::clients::NONE;
use crate::engine::learned::LAYERS;
use crate::engine::turn::Turn;
use crate::engine::volatile::Volatile;
use crate::engine::words::{Endpoint, FanOutDropped, GateOutcome, Plan};
use crate::metrics::{Alike, Metrics, Series};
use crate::proxy::family::Fanout;
use crate::proxy::hold::Held;
use crate::proxy::memo::Verdict;
use crate::store::Store;

use super::{Facts, Recorder};

/// What the store holds is asked when somebody wants to know.
pub fn show_store(metrics: &Metrics, store: Arc<dyn Store>) {
    metrics.at_scrape(move |metrics| {
        metrics.store_bytes.with_label_values::<&str>(&[]).set(store.bytes() as i64);
        metrics.forks_live.with_label_values::<&str>(&[]).set(store.forks() as i64);
        for (layer, count) in LAYERS.into_iter().zip(store.prefixes()) {
            metrics.prefixes_live.with_label_values(&[layer.as_str()]).set(count as i64);
        }
    });
}

impl Recorder {
    /// The counters of requests like this one.
    pub(super) fn series(&self, model: &str, client: Option<&str>) -> Arc<Series> {
        let Facts { role, plan, fault, status, sender, .. } = &self.facts;
        let left_alone = fault.is_none() && matches!(plan, Plan::Passthrough(_));
        self.metrics.series(Alike {
            role: role.as_str(),
            plan: plan.as_str(),
            reason: left_alone.then(|| plan.reason()),
            status: Cow::Borrowed(status.as_ref().map_or("none", StatusCode::as_str)),
            model: Cow::Borrowed(model),
            client: client.map(Cow::Borrowed),
            tenant: sender.as_ref().and_then(|sender| sender.tenant),
        })
    }

    pub(super) fn count(
        &self,
        series: &Series,
        client: Option<&str>,
        turn: Option<&Turn>,
        verdict: &Verdict,
    ) {
        let Recorder { facts, metrics, .. } = self;
        series.count();
        metrics.endpoint_requests_total.with_label_values(&[facts.endpoint.as_str()]).inc();
        if let Some(fault) = facts.fault {
            metrics.refused_total.with_label_values(&[fault]).inc();
        }
        if facts.endpoint == Endpoint::Messages {
            let times = [facts.read_time, facts.align_time, facts.observe_time];
            series.overhead(metrics, times.map(|time| time.as_secs_f64()));
            if facts.fork_time > Duration::ZERO {
                let time = facts.fork_time.as_secs_f64();
                metrics.overhead_seconds.with_label_values(&["fork"]).observe(time);
            }
            if let (Some(sent), Some(first)) = (facts.sent_at, facts.first_byte_at) {
                series.first_byte(metrics, first.duration_since(sent).as_secs_f64());
            }
        }
        if let Some(lost) = &verdict.cache_break {
            let labels = [lost.layer.as_str(), lost.cause.as_str()];
            metrics.cache_breaks_total.with_label_values(&labels).inc();
            metrics.cache_break_tokens_total.with_label_values(&labels).inc_by(lost.tokens_lost);
            let labels = [client.unwrap_or(NONE), lost.cause.as_str()];
            metrics.client_cache_breaks_total.with_label_values(&labels).inc();
        }
        self.count_volatile(&verdict.volatile);
        if let Some(usage) = turn.and_then(|turn| turn.usage) {
            series.tokens(metrics, &usage);
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

    pub(super) fn count_family(&self, series: &Series, turn: Option<&Turn>, fanout: Option<&Fanout>) {
        let Recorder { facts, metrics, .. } = self;
        if self.waits {
            metrics.gate_holds_total.with_label_values(&[GateOutcome::ClientLeft.as_str()]).inc();
        }
        if let Some(hold) = facts.hold.filter(|hold| hold.outcome != GateOutcome::Unneeded) {
            metrics.gate_holds_total.with_label_values(&[hold.outcome.as_str()]).inc();
            metrics.gate_hold_seconds.with_label_values::<&str>(&[]).observe(hold.time.as_secs_f64());
        }
        let tokens = [self.saved_tokens(turn), facts.missed_tokens];
        series.gate_tokens(metrics, tokens.map(Option::unwrap_or_default));
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
            Some(Err(FanOutDropped::FewCalls)) | None => {}
            Some(Err(FanOutDropped::Child)) => {
                metrics.recursion_blocked_total.with_label_values::<&str>(&[]).inc();
            }
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
