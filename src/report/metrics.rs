//! The metrics of one exchange.

use std::borrow::Cow;

use http::StatusCode;

use crate::engine::cache::prices::{Cost, Usd};
use crate::engine::cache::volatile::Volatile;
use crate::engine::request::clients::{NONE, OTHER};
use crate::engine::words::{Baseline, FanOutDropped, GateOutcome, Recall};
use crate::metrics::{Alike, Metrics, Series};

use super::record::{ChildTurn, ExchangeRecord};

/// The API's own status for an overload, which nobody registered.
const OVERLOADED: u16 = 529;

/// Counts one exchange.
pub fn count(metrics: &Metrics, record: &ExchangeRecord) {
    let series = series(metrics, record);
    count_request(metrics, &series, record);
    count_cache(metrics, &series, record);
    count_gate(metrics, &series, record);
    count_family(metrics, record);
    count_money(metrics, &series, record);
    if let Some((store, recall)) = record.details.recall {
        series.recall(metrics, store, recall == Recall::Hit);
        if recall != Recall::Hit {
            metrics.recall_misses_total.with_label_values(&[recall.as_str()]).inc();
        }
    }
    if let Some(child) = &record.details.child {
        count_child(metrics, child);
    }
}

/// Returns the counters of requests like this one.
fn series(metrics: &Metrics, record: &ExchangeRecord) -> std::sync::Arc<Series> {
    let details = &record.details;
    metrics.series(Alike {
        role: details.role,
        plan: details.plan,
        reason: details.is_passed_through.then_some(details.plan_reason),
        status: status(record.status),
        model: Cow::Borrowed(&record.model),
        client: record.client.as_deref().map(Cow::Borrowed),
        tenant: details.tenant,
    })
}

/// The label of a status: of those that an upstream may invent only the registered ones are told apart.
fn status(status: Option<u16>) -> Cow<'static, str> {
    let is_known = |status: u16| {
        status == OVERLOADED || StatusCode::from_u16(status).is_ok_and(|it| it.canonical_reason().is_some())
    };
    match status {
        None => Cow::Borrowed(NONE),
        Some(status) if is_known(status) => Cow::Owned(status.to_string()),
        Some(_) => Cow::Borrowed(OTHER),
    }
}

fn count_request(metrics: &Metrics, series: &Series, record: &ExchangeRecord) {
    let details = &record.details;
    series.count();
    let is_accepted = record.status.is_some_and(|status| (200..300).contains(&status));
    if let (Some(client), Some(version), true) = (&record.client, &details.client_version, is_accepted) {
        metrics.show_client(client, version);
    }
    metrics.endpoint_requests_total.with_label_values(&[&*record.endpoint]).inc();
    if let Some(fault) = details.fault {
        metrics.refused_total.with_label_values(&[fault]).inc();
    }
    if details.is_messages {
        let overhead = &details.overhead;
        let times = [overhead.read, overhead.align, overhead.observe];
        series.overhead(metrics, times.map(|time| time.as_secs_f64()));
        if !overhead.fork.is_zero() {
            let time = overhead.fork.as_secs_f64();
            metrics.overhead_seconds.with_label_values(&["fork"]).observe(time);
        }
        if let (Some(sent), Some(first)) = (details.times.sent, details.times.first_byte) {
            series.first_byte(metrics, first.saturating_sub(sent) as f64 / 1e9);
        }
    }
    if details.is_empty_answer {
        metrics.empty_answers_total.with_label_values(&[details.role, details.plan]).inc();
    }
}

fn count_cache(metrics: &Metrics, series: &Series, record: &ExchangeRecord) {
    if let (Some(layer), Some(cause), Some(tokens)) =
        (&record.break_layer, &record.break_cause, record.break_tokens)
    {
        metrics.cache_breaks_total.with_label_values(&[layer, cause]).inc();
        metrics.cache_break_tokens_total.with_label_values(&[layer, cause]).inc_by(tokens);
        let client = record.client.as_deref().unwrap_or(NONE);
        metrics.client_cache_breaks_total.with_label_values(&[client, cause]).inc();
    }
    let found = &record.details.volatile;
    for (index, volatile) in found.iter().enumerate() {
        let same = |other: &Volatile| (other.layer, other.kind) == (volatile.layer, volatile.kind);
        let labels = [volatile.layer.as_str(), volatile.kind.as_str()];
        metrics.volatile_total.with_label_values(&labels).inc();
        // The tokens of the first text of a kind include those of the others.
        if !found[..index].iter().any(same) {
            metrics.volatile_tokens_total.with_label_values(&labels).inc_by(volatile.tokens);
        }
    }
    if let Some(usage) = record.usage() {
        let others = &record.details.other_models;
        series.tokens(metrics, &others.iter().fold(usage, |own, other| own.minus(&other.usage)));
        others.iter().for_each(|other| series.tokens_of(metrics, &other.model, &other.usage));
    }
}

fn count_gate(metrics: &Metrics, series: &Series, record: &ExchangeRecord) {
    if record.details.left_at_gate {
        metrics.gate_holds_total.with_label_values(&[GateOutcome::ClientLeft.as_str()]).inc();
    }
    if let Some((outcome, time)) = record.details.gate
        && outcome != GateOutcome::Unneeded
    {
        metrics.gate_holds_total.with_label_values(&[outcome.as_str()]).inc();
        metrics.gate_hold_seconds.with_label_values::<&str>(&[]).observe(time.as_secs_f64());
    }
    let tokens = [record.gate_saved_tokens, record.gate_missed_tokens];
    series.gate_tokens(metrics, tokens.map(Option::unwrap_or_default));
}

fn count_family(metrics: &Metrics, record: &ExchangeRecord) {
    let details = &record.details;
    if let Some(turns) = record.child_turn {
        if turns == 1 {
            metrics.children_total.with_label_values(&[details.plan, details.plan_reason]).inc();
        }
        if record.stop_reason.as_deref().is_some_and(|why| why != "tool_use") {
            metrics.child_turns.with_label_values::<&str>(&[]).observe(turns as f64);
        }
    }
    match &details.fanout {
        Some(Ok(fork)) if fork.is_nested => {
            metrics.recursion_blocked_total.with_label_values::<&str>(&[]).inc()
        }
        Some(Ok(fork)) => {
            metrics.show_fork(fork.id.to_string(), fork.prefix.to_string());
            metrics.forks_total.with_label_values(&["sealed"]).inc();
            let children = fork.calls.iter().filter(|call| !call.directives.is_empty()).count();
            metrics.fork_children.with_label_values::<&str>(&[]).observe(children as f64);
        }
        // Most answers are no fan-out, and are not counted.
        Some(Err(FanOutDropped::FewCalls)) | None => {}
        Some(Err(why)) => metrics.forks_total.with_label_values(&[why.as_str()]).inc(),
    }
    if let Some(tokens) = record.reread_tokens {
        metrics.reread_turns_total.with_label_values(&[details.plan]).inc();
        metrics.reread_tokens_total.with_label_values(&[details.plan]).inc_by(tokens);
    }
    if let Some(usd) = record.context_usd {
        metrics.context_usd_total.with_label_values::<&str>(&[]).inc_by(usd);
    }
    if let Some(calls) = details.foreign_tool_calls {
        metrics.foreign_tool_calls_total.with_label_values::<&str>(&[]).inc_by(calls);
    }
}

/// Counts the bill. Every baseline is counted for the same requests, so that the sums can be compared.
fn count_money(metrics: &Metrics, series: &Series, record: &ExchangeRecord) {
    let details = &record.details;
    let uncompared = |reason| metrics.uncompared_total.with_label_values(&[reason]).inc();
    let Some(cost) = &details.cost else {
        if details.is_messages && record.is_success() {
            uncompared(if record.usage().is_some() { "no_price" } else { "no_usage" });
        }
        return;
    };
    let others: Vec<(&str, Cost)> =
        details.other_models.iter().filter_map(|other| Some((&*other.model, other.cost?))).collect();
    let own = others.iter().fold(*cost, |own, (_, cost)| own.minus(cost));
    let usd = |cost: &Cost| cost.kinds().map(|(_, usd)| usd.map(Usd::as_f64));
    series.cost(metrics, usd(&own));
    others.iter().for_each(|(model, cost)| series.cost_of(metrics, model, usd(cost)));
    if let Some([predicted, billed]) = details.predicted_usd {
        metrics.predicted(predicted, billed);
    }
    let (Some(billed), Some(sent), Some(aligned)) = (record.cost_usd, record.as_sent_usd, record.aligned_usd)
    else {
        return uncompared("unknown");
    };
    for (baseline, usd) in [
        (Baseline::Sent, Some(sent)),
        (Baseline::Aligned, Some(aligned)),
        (Baseline::Uncached, details.uncached_usd),
    ] {
        series.counterfactual(metrics, baseline, usd);
    }
    series.owners(metrics, [billed, sent, aligned]);
    if let Some(tool) = &record.tool {
        metrics.tool_costs(tool, [billed, sent, aligned]);
    }
    series.saved(metrics, sent - billed);
}

fn count_child(metrics: &Metrics, turn: &ChildTurn) {
    let arm = turn.arm;
    metrics.arm_children_total.with_label_values(&[arm]).inc_by(u64::from(turn.is_first));
    metrics.arm_turns_total.with_label_values(&[arm]).inc();
    metrics.arm_output_tokens_total.with_label_values(&[arm]).inc_by(turn.output_tokens);
    metrics.arm_empty_answers_total.with_label_values(&[arm]).inc_by(u64::from(turn.is_empty));
    metrics.arm_tool_errors_total.with_label_values(&[arm]).inc_by(turn.tool_errors);
    metrics.arm_stop_reasons_total.with_label_values(&[arm, turn.stop]).inc();
    metrics.arm_wall_seconds_total.with_label_values(&[arm]).inc_by(turn.wall_ms as f64 / 1e3);
    if let Some(usd) = turn.cost_usd {
        metrics.arm_cost_usd_total.with_label_values(&[arm]).inc_by(usd);
    }
}
