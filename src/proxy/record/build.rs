//! Builds the record of an exchange that has ended.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::config::Mode;
use crate::engine::answer::turn::{Turn, Wholeness};
use crate::engine::answer::usage::Bill;
use crate::engine::cache::breaks::Drift;
use crate::engine::cache::volatile::Volatile;
use crate::engine::fork::Limits;
use crate::engine::fork::answers::is_empty;
use crate::engine::tenant::{Fanout, Verdict};
use crate::engine::words::{Ending, ForkNote, Plan, StopReason};
use crate::proxy::clock::millis;
use crate::proxy::exchange::Exchange;
use crate::proxy::wait::Held;
use crate::report::events::Underway;
use crate::report::recording::beta_list;
use crate::report::{Details, ExchangeRecord, RecordingDraft, Times};

/// The most characters of a tool's name in a record. The API takes fewer.
const TOOL_CHARS_MAX: usize = 256;

impl Exchange {
    /// Builds the record, but for what it cost.
    pub(in crate::proxy) fn record(
        &self,
        ending: Ending,
        turn: Option<&Turn>,
        fanout: Option<Fanout>,
    ) -> ExchangeRecord {
        let (facts, sender) = (&self.facts, &self.caller.sender);
        let modes = facts.endpoint.is_planned().then_some(self.caller.modes);
        let mut details = self.details(fanout);
        details.is_empty_answer = turn.is_some_and(is_empty);
        details.response_id = turn.and_then(|turn| name(turn.id.as_deref()));
        details.response_model = turn.and_then(|turn| name(turn.model.as_deref()));
        details.client_version = sender.client_version.clone();
        let ms = |at: Instant| millis(at.saturating_duration_since(facts.started));
        let overhead = facts.overhead;
        let overhead = overhead.read + overhead.align + overhead.fork + overhead.observe;
        let fanned_out = details.fanout.as_ref().and_then(|fanout| fanout.as_ref().ok());
        let (model, client) = self.names();
        let limit = |of: fn(Limits) -> Option<f64>| {
            let limit = of(facts.forecast?.limits).filter(|limit| limit.is_finite());
            limit.map(|limit| (limit * 1e3).round() / 1e3)
        };
        ExchangeRecord {
            time_ms: details.times.started / 1_000_000 + self.clock.skipped_ms(),
            id: next_id(),
            config: facts.generation,
            endpoint: facts.endpoint.as_str().to_owned(),
            mode: text(modes.map(|modes| modes.in_force.as_str())),
            asked_mode: text(modes.and_then(|modes| modes.asked).map(Mode::as_str)),
            role: facts.family.role.as_str().to_owned(),
            plan: facts.plan.as_str().to_owned(),
            reason: facts.reason().to_owned(),
            status: facts.status.map(|status| status.as_u16()),
            ending: ending.as_str().to_owned(),
            model,
            stream: facts.stream,
            client,
            tenant: text(sender.tenant),
            session: text(sender.session),
            agent: text(sender.agent),
            fork: text(facts.family.fork),
            kin: text(facts.family.kin),
            child_turn: facts.child_turn,
            tool: facts.family.tool.as_deref().map(|tool| tool.chars().take(TOOL_CHARS_MAX).collect()),
            fork_notes: notes(&facts.notes),
            would_fork: text(facts.would_fork),
            predicted_unit: text(facts.forecast.map(|forecast| forecast.unit.as_str())),
            predicted_turns: facts.forecast.map(|forecast| forecast.turns),
            predicted_forked: facts.forecast.map(|forecast| forecast.forked),
            predicted_as_sent: facts.forecast.map(|forecast| forecast.as_sent),
            predicted_aligned: facts.forecast.map(|forecast| forecast.aligned),
            predicted_reread: facts.forecast.map(|forecast| forecast.reread).filter(|cost| *cost > 0.0),
            limit_sent: limit(|limits| Some(limits.sent)),
            limit_aligned: limit(|limits| Some(limits.aligned)),
            limit_twice: limit(|limits| Some(limits.twice)),
            limit_unknown: limit(|limits| limits.unknown),
            recall: text(facts.recall.and_then(|(_, recall)| recall.logged())),
            fanned_out: text(fanned_out.map(|fork| fork.id)),
            fanned_out_children: fanned_out.map(|fork| fork.calls.len()),
            gate: text(facts.hold.map(|hold| hold.outcome.as_str())),
            gate_ticket: text(facts.hold.and_then(|hold| hold.ticket)),
            gate_leader: text(facts.hold.and_then(|hold| hold.leader)),
            held_ms: facts.held_ms(),
            gate_saved_tokens: self.saved_tokens(turn),
            gate_missed_tokens: facts.missed_tokens,
            upstream_request_id: facts.upstream_request_id.clone(),
            trace_id: text(self.sinks.trace_id),
            received: text(facts.received),
            sent: text(facts.changed.or(facts.received)),
            received_bytes: facts.received_bytes,
            prefix: text(facts.traced.as_ref().map(|traced| traced.prefix)),
            shared_bytes: facts.shared_bytes,
            markers_added: facts.markers_added,
            answer_bytes: facts.answer_bytes,
            first_byte_ms: facts.first_byte_at.map(ms),
            duration_ms: ms(Instant::now()),
            overhead_us: overhead.as_micros() as u64,
            details,
            ..turn.map(of_turn).unwrap_or_default()
        }
    }

    fn details(&self, fanout: Option<Fanout>) -> Details {
        let facts = &self.facts;
        Details {
            is_messages: facts.endpoint.is_planned(),
            role: facts.family.role.as_str(),
            plan: facts.plan.as_str(),
            plan_reason: facts.plan.reason(),
            is_passed_through: facts.fault.is_none() && matches!(facts.plan, Plan::Passthrough(_)),
            fault: facts.fault,
            tenant: self.caller.sender.tenant,
            child_number: facts.family.child_number,
            children: facts.family.children,
            layer_bytes: facts.traced.as_ref().map(|traced| traced.layer_bytes),
            breakpoints: facts.traced.as_ref().map_or_else(Vec::new, |traced| traced.breakpoints.clone()),
            times: self.times(),
            overhead: facts.overhead,
            gate: facts.hold.map(|hold| (hold.outcome, hold.time)),
            left_at_gate: self.waits_at_gate,
            awaited: facts.awaited,
            fanout,
            recall: facts.recall,
            ..Details::default()
        }
    }

    fn times(&self) -> Times {
        let facts = &self.facts;
        let (now, end) = (Instant::now(), SystemTime::now());
        let nanos = |at: Instant| {
            let time = end.checked_sub(now.saturating_duration_since(at)).unwrap_or(UNIX_EPOCH);
            time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
        };
        Times {
            started: nanos(facts.started),
            waited: facts.waits_since.map(nanos),
            sent: facts.sent_at.map(nanos),
            first_byte: facts.first_byte_at.map(nanos),
            ended: nanos(now),
        }
    }

    /// Shows a request of a fan-out as far as it has come.
    pub(in crate::proxy) fn show(&mut self) {
        let (Some(fork), true) = (self.facts.family.fork, self.facts.endpoint.is_planned()) else { return };
        let (model, client) = self.names();
        let (facts, Some(feed)) = (&self.facts, &mut self.sinks.feed) else { return };
        let ms = |at: Instant| millis(at.saturating_duration_since(facts.started));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, millis);
        let sender = &self.caller.sender;
        let is_sent = facts.sent_at.is_some();
        feed.show(&Underway {
            time_ms: now.saturating_sub(ms(Instant::now())) + self.clock.skipped_ms(),
            role: facts.family.role.as_str(),
            fork: fork.to_string(),
            child: facts.family.child_number,
            child_turn: facts.child_turn,
            tool: facts.family.tool.as_deref(),
            model,
            client,
            tenant: text(sender.tenant),
            agent: text(sender.agent),
            plan: is_sent.then(|| facts.plan.as_str()),
            reason: is_sent.then(|| facts.reason()),
            gate: if is_sent { facts.hold.map(|hold| hold.outcome.as_str()) } else { None },
            waited_ms: facts.waits_since.map(ms),
            sent_ms: facts.sent_at.map(ms),
            first_byte_ms: facts.first_byte_at.map(ms),
        });
    }

    /// The tokens that were read because they were waited for.
    fn saved_tokens(&self, turn: Option<&Turn>) -> Option<u64> {
        let hold = self.facts.hold.filter(Held::follows)?;
        let read = turn?.usage()?.cache_read;
        Some(if hold.tokens > 0 { read.min(hold.tokens) } else { read })
    }

    /// Completes the recording's draft, and the record by what only a recording keeps.
    pub(in crate::proxy) fn complete(
        &self,
        draft: &mut RecordingDraft,
        record: &mut ExchangeRecord,
        turn: Option<&Turn>,
    ) {
        let (facts, caller) = (&self.facts, &self.caller);
        let ms = |at: Instant| millis(at.saturating_duration_since(facts.started));
        record.betas = beta_list(&caller.betas);
        record.sent_ms = facts.sent_at.map(ms);
        record.begun_ms = draft.begun.map(ms);
        let entry = &mut draft.entry;
        entry.parent = caller.claims.parent().cloned();
        entry.marks_agents = caller.claims.marks_agents();
        entry.request = self.body.clone();
        entry.message_id = turn.and_then(|turn| turn.id.clone());
        entry.answer = turn.and_then(Turn::message);
    }
}

/// Adds what the cache did.
pub fn add_verdict(record: &mut ExchangeRecord, verdict: Verdict) {
    let Verdict { drift, volatile, cache_break } = verdict;
    record.drift = text(drift.as_ref().map(Drift::as_str));
    if let Some(Drift::Drifted(divergence)) = drift {
        record.drift_layer = Some(divergence.layer.as_str().to_owned());
        record.drift_offset = divergence.at.map(|[_, now]| now);
        record.drift_kind = Some(divergence.kind.as_str().to_owned());
        record.drift_at = Some(divergence.path);
    }
    if let Some(lost) = cache_break {
        record.break_cause = Some(lost.cause.as_str().to_owned());
        record.break_layer = Some(lost.layer.as_str().to_owned());
        record.break_offset = lost.offset;
        record.break_tokens = Some(lost.tokens_lost);
        record.break_at = Some(lost.path);
    }
    record.volatile = places(&volatile);
    record.volatile_tokens = volatile.first().map(|volatile| volatile.tokens);
    record.details.volatile = volatile;
}

/// The part of a record that the answer decides.
fn of_turn(turn: &Turn) -> ExchangeRecord {
    let (usage, diagnosis) = (turn.bill.as_ref().map(Bill::total), turn.diagnostics);
    ExchangeRecord {
        uncached: usage.map(|usage| usage.uncached),
        cache_read: usage.map(|usage| usage.cache_read),
        cache_write_5m: usage.map(|usage| usage.cache_write_5m),
        cache_write_1h: usage.map(|usage| usage.cache_write_1h),
        output: usage.map(|usage| usage.output),
        stop_reason: text(turn.stop_reason.as_deref().map(StopReason::logged)),
        error: turn.error.clone(),
        turn: Some(wholeness(turn.wholeness).to_owned()),
        diagnosis: text(diagnosis.map(|diagnosis| diagnosis.verdict.as_str())),
        diagnosis_tokens: diagnosis.and_then(|diagnosis| diagnosis.missed_tokens),
        ..ExchangeRecord::default()
    }
}

fn text(value: Option<impl ToString>) -> Option<String> {
    value.map(|value| value.to_string())
}

/// An id or a name that the upstream gave, if it has the form of one.
fn name(given: Option<&str>) -> Option<String> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._:@/-".contains(&byte);
    let given = given.filter(|given| !given.is_empty() && given.bytes().all(is_name))?;
    Some(given.to_owned())
}

/// Numbers the requests of this process.
fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Relaxed)
}

/// The changes to a forked child: `instructions,tools`.
fn notes(notes: &[ForkNote]) -> Option<String> {
    if notes.is_empty() {
        return None;
    }
    Some(notes.iter().map(|note| note.as_str()).collect::<Vec<_>>().join(","))
}

/// Kinds and places of texts that changed, never the texts: `date@system[1],clock@tools[3]`.
fn places(found: &[Volatile]) -> Option<String> {
    if found.is_empty() {
        return None;
    }
    let mut places: Vec<String> =
        found.iter().map(|volatile| format!("{}@{}", volatile.kind.as_str(), volatile.path)).collect();
    places.dedup();
    Some(places.join(","))
}

fn wholeness(wholeness: Wholeness) -> &'static str {
    match wholeness {
        Wholeness::Whole => "whole",
        Wholeness::Unfinished => "unfinished",
        Wholeness::Unfaithful => "unfaithful",
        Wholeness::TooLarge => "too_large",
    }
}
