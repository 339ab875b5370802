//! What there is to tell of one exchange.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use tracing::field::display;

use crate::config::Mode;
use crate::engine::breaks::Drift;
use crate::engine::turn::Wholeness;
use crate::engine::words::Endpoint;

use super::money::Money;
use super::told::{Notes, Places, Told};
use super::{Ended, Recorder};

impl Recorder {
    /// What is told of the exchange, which has ended.
    pub(super) fn told<'a>(
        &'a self,
        (model, client): (&'a str, Option<&'a str>),
        ended: &'a Ended,
        money: Money,
    ) -> Told<'a> {
        let (facts, verdict, turn) = (&self.facts, &ended.verdict, ended.turn.as_ref());
        let sender = facts.sender.as_ref();
        let modes = facts.modes.filter(|_| facts.endpoint == Endpoint::Messages);
        let ms = |at: Option<Instant>| at.map(|at| at.duration_since(facts.started).as_millis() as u64);
        let usage = turn.and_then(|turn| turn.usage);
        let drifted = match &verdict.drift {
            Some(Drift::Drifted(divergence)) => Some(divergence),
            _ => None,
        };
        let fanned_out = ended.fanout.as_ref().and_then(|fanout| fanout.as_ref().ok());
        let lost = verdict.cache_break.as_ref();
        let diagnosis = turn.and_then(|turn| turn.diagnostics);
        let (notes, volatile) = (facts.notes.as_slice(), verdict.volatile.as_slice());
        Told {
            id: facts.id,
            config: facts.generation,
            endpoint: facts.endpoint.as_str(),
            mode: modes.map(|modes| modes.in_force.as_str()),
            asked_mode: modes.and_then(|modes| modes.asked).map(Mode::as_str),
            role: facts.role.as_str(),
            plan: facts.plan.as_str(),
            reason: facts.reason(),
            status: facts.status.map(|status| status.as_u16()),
            ending: ended.ending.as_str(),
            model,
            stream: facts.stream,
            client,
            tenant: sender.and_then(|sender| sender.tenant).map(display),
            session: sender.and_then(|sender| sender.session).map(display),
            agent: sender.and_then(|sender| sender.agent).map(display),
            fork: ended.fork.map(display),
            kin: ended.kin,
            child_turn: facts.child_turn,
            fork_notes: (!notes.is_empty()).then(|| display(Notes(notes))),
            would_fork: facts.would_fork,
            predicted_unit: facts.forecast.map(|forecast| forecast.unit.as_str()),
            predicted_turns: facts.forecast.map(|forecast| forecast.turns),
            predicted_forked: facts.forecast.map(|forecast| forecast.forked),
            predicted_as_sent: facts.forecast.map(|forecast| forecast.as_sent),
            predicted_aligned: facts.forecast.map(|forecast| forecast.aligned),
            fanned_out: fanned_out.map(|fork| display(fork.id)),
            fanned_out_children: fanned_out.map(|fork| fork.calls.len()),
            gate: facts.hold.map(|hold| hold.outcome.as_str()),
            gate_ticket: facts.hold.and_then(|hold| hold.ticket).map(display),
            gate_leader: facts.hold.and_then(|hold| hold.leader).map(display),
            held_ms: facts.held_ms(),
            gate_saved_tokens: self.saved_tokens(turn),
            gate_missed_tokens: facts.missed_tokens,
            upstream_request_id: facts.upstream_request_id.as_deref(),
            received: facts.received.map(display),
            sent: facts.sent.map(display),
            received_bytes: facts.received_bytes,
            prefix: facts.prefix.map(display),
            shared_bytes: facts.shared_bytes,
            markers_added: facts.markers_added,
            answer_bytes: facts.answer_bytes,
            uncached: usage.map(|usage| usage.uncached),
            cache_read: usage.map(|usage| usage.cache_read),
            cache_write_5m: usage.map(|usage| usage.cache_write_5m),
            cache_write_1h: usage.map(|usage| usage.cache_write_1h),
            output: usage.map(|usage| usage.output),
            cost_usd: money.billed.map(|usd| usd.as_f64()),
            as_sent_usd: money.as_sent.map(|usd| usd.as_f64()),
            aligned_usd: money.aligned,
            forked_usd: money.forked,
            stop_reason: turn.and_then(|turn| turn.stop_reason.as_deref()).map(stop_reason),
            error: turn.and_then(|turn| turn.error.as_deref()),
            turn: turn.map(|turn| wholeness(turn.wholeness)),
            drift: verdict.drift.as_ref().map(Drift::as_str),
            drift_layer: drifted.map(|divergence| divergence.layer.as_str()),
            drift_at: drifted.map(|divergence| divergence.path.as_str()),
            drift_offset: drifted.and_then(|divergence| divergence.at).map(|[_, now]| now),
            drift_kind: drifted.map(|divergence| divergence.kind.as_str()),
            break_cause: lost.map(|lost| lost.cause.as_str()),
            break_layer: lost.map(|lost| lost.layer.as_str()),
            break_at: lost.map(|lost| lost.path.as_str()),
            break_offset: lost.and_then(|lost| lost.offset),
            break_tokens: lost.map(|lost| lost.tokens_lost),
            break_cost_usd: verdict.break_cost.map(|cost| cost.as_f64()),
            volatile: (!volatile.is_empty()).then(|| display(Places(volatile))),
            volatile_tokens: volatile.first().map(|volatile| volatile.tokens),
            diagnosis: diagnosis.map(|diagnosis| diagnosis.verdict.as_str()),
            diagnosis_tokens: diagnosis.and_then(|diagnosis| diagnosis.missed_tokens),
            first_byte_ms: ms(facts.first_byte_at),
            duration_ms: ended.at.duration_since(facts.started).as_millis() as u64,
            overhead_us: (facts.read_time + facts.align_time + facts.fork_time + facts.observe_time)
                .as_micros() as u64,
        }
    }
}

/// Numbers the requests of this process.
pub(super) fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Relaxed)
}

/// The known stop reasons; text of another kind does not reach the log.
pub fn stop_reason(reason: &str) -> &'static str {
    const KNOWN: [&str; 8] = [
        "end_turn",
        "max_tokens",
        "stop_sequence",
        "tool_use",
        "pause_turn",
        "compaction",
        "refusal",
        "model_context_window_exceeded",
    ];
    KNOWN.iter().find(|known| **known == reason).copied().unwrap_or("other")
}

fn wholeness(wholeness: Wholeness) -> &'static str {
    match wholeness {
        Wholeness::Whole => "whole",
        Wholeness::Unfinished => "unfinished",
        Wholeness::Unfaithful => "unfaithful",
        Wholeness::TooLarge => "too_large",
    }
}
