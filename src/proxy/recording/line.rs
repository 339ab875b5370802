//! One line of a recording.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::engine::fanout::ForkPoint;
use crate::engine::turn::Turn;
use crate::engine::types::{Ending, Endpoint, Role};
use crate::engine::usage::Usage;
use crate::proxy::clock::millis;
use crate::proxy::family::Fanout;
use crate::proxy::memo::Verdict;
use crate::proxy::record::{Recorder, stop_reason};

use super::Entry;

/// The version of the format; a reader refuses a later one.
pub const VERSION: u32 = 1;

/// One Messages exchange. Tenant, session, agent and fork are the digests that the log shows, times are
/// milliseconds since the request came.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Line {
    pub v: u32,
    /// That of the log line.
    pub id: u64,
    /// When the request came, in Unix time.
    pub time_ms: u64,
    pub endpoint: String,
    pub role: String,
    pub plan: String,
    pub reason: String,
    pub status: Option<u16>,
    pub ending: String,
    pub model: String,
    pub stream: bool,
    pub client: Option<String>,
    pub tenant: Option<String>,
    pub session: Option<String>,
    pub agent: Option<String>,
    pub betas: Vec<String>,
    /// As they went out, if those are others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forwarded_betas: Vec<String>,
    pub fork: Option<String>,
    pub kin: Option<String>,
    pub child_turn: Option<u64>,
    pub fanned_out: Option<String>,
    pub usage: Option<Billed>,
    pub stop_reason: Option<String>,
    pub break_cause: Option<String>,
    pub break_layer: Option<String>,
    pub break_tokens: Option<u64>,
    /// An estimate.
    pub break_cost_usd: Option<f64>,
    pub gate: Option<String>,
    pub held_ms: u64,
    pub sent_ms: Option<u64>,
    pub first_byte_ms: Option<u64>,
    /// The first content: from then on others can read what this one wrote.
    pub begun_ms: Option<u64>,
    pub duration_ms: u64,
    pub overhead_us: u64,
    pub received: Option<String>,
    pub sent: Option<String>,
    pub received_bytes: Option<usize>,
    pub answer_bytes: u64,
    pub upstream_request_id: Option<String>,
    /// `off`, `redacted` or `full`; what follows is there only if not `off`.
    pub bodies: String,
    /// The tools that started this child and its siblings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// `x-forkpoint-parent` and `x-forkpoint-tool-use`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<(String, Option<String>)>,
    /// Whether this client puts an agent id on every request of a child.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub marks_agents: bool,
    /// The body as it came.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// The body as it went out, if that is another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forwarded: Option<String>,
    /// The body that went out before it, if that was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    /// The assistant message, as the next request carries it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
}

/// Tokens as the upstream billed them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Billed {
    pub uncached: u64,
    pub cache_read: u64,
    pub cache_write_5m: u64,
    pub cache_write_1h: u64,
    pub output: u64,
}

impl From<Usage> for Billed {
    fn from(usage: Usage) -> Billed {
        let Usage { uncached, cache_read, cache_write_5m, cache_write_1h, output } = usage;
        Billed { uncached, cache_read, cache_write_5m, cache_write_1h, output }
    }
}

impl From<Billed> for Usage {
    fn from(billed: Billed) -> Usage {
        let Billed { uncached, cache_read, cache_write_5m, cache_write_1h, output } = billed;
        Usage { uncached, cache_read, cache_write_5m, cache_write_1h, output }
    }
}

impl Recorder {
    /// Writes down a Messages exchange that has ended, if anybody asked for that.
    pub fn tape(
        &mut self,
        (model, client): (&str, Option<&str>),
        ending: Ending,
        turn: Option<&Turn>,
        verdict: &Verdict,
        fanout: Option<&Fanout>,
    ) {
        let Some(tape) = self.tape.take().filter(|_| self.facts.endpoint == Endpoint::Messages) else {
            return;
        };
        let facts = &self.facts;
        let sender = facts.sender.as_ref();
        let since = |at: Instant| millis(at.saturating_duration_since(facts.started));
        let elapsed = facts.started.elapsed();
        let arrived = SystemTime::now().checked_sub(elapsed).unwrap_or(UNIX_EPOCH);
        let lost = verdict.cache_break.as_ref();
        let fork = self.family.as_ref().and_then(|family| family.fork.as_ref());
        let line = Line {
            v: VERSION,
            id: facts.id,
            time_ms: arrived.duration_since(UNIX_EPOCH).map_or(0, millis) + self.clock().skipped_ms(),
            endpoint: facts.endpoint.as_str().into(),
            role: facts.role.as_str().into(),
            plan: facts.plan.as_str().into(),
            reason: facts.reason().into(),
            status: facts.status.map(|status| status.as_u16()),
            ending: ending.as_str().into(),
            model: model.into(),
            stream: facts.stream,
            client: client.map(String::from),
            tenant: sender.and_then(|sender| sender.tenant).map(|tenant| tenant.to_string()),
            session: sender.and_then(|sender| sender.session).map(|session| session.to_string()),
            agent: sender.and_then(|sender| sender.agent).map(|agent| agent.to_string()),
            betas: list(&facts.betas),
            forwarded_betas: tape.betas,
            fork: self.fork_id().map(|fork| fork.to_string()),
            kin: self.family.as_ref().map(|family| family.why.into()),
            child_turn: facts.child_turn,
            fanned_out: fanout.and_then(|fanout| fanout.as_ref().ok()).map(|fork| fork.id.to_string()),
            usage: turn.and_then(|turn| turn.usage).map(Billed::from),
            stop_reason: turn.and_then(|turn| turn.stop_reason.as_deref()).map(|why| stop_reason(why).into()),
            break_cause: lost.map(|lost| lost.cause.as_str().into()),
            break_layer: lost.map(|lost| lost.layer.as_str().into()),
            break_tokens: lost.map(|lost| lost.tokens_lost),
            break_cost_usd: verdict.break_cost.map(|cost| cost.as_f64()),
            gate: facts.hold.map(|hold| hold.outcome.as_str().into()),
            held_ms: facts.held_ms(),
            sent_ms: facts.sent_at.map(since),
            first_byte_ms: facts.first_byte_at.map(since),
            begun_ms: tape.begun.map(since),
            duration_ms: millis(elapsed),
            overhead_us: (facts.read_time + facts.align_time + facts.fork_time + facts.observe_time)
                .as_micros() as u64,
            received: facts.received.map(|digest| digest.to_string()),
            sent: facts.sent.map(|digest| digest.to_string()),
            received_bytes: facts.received_bytes,
            answer_bytes: facts.answer_bytes,
            upstream_request_id: facts.upstream_request_id.clone(),
            ..Line::default()
        };
        let request = self.memo.as_ref().map(|memo| memo.arrival.received.body().clone());
        let changed = facts.sent != facts.received;
        tape.recording.take(Entry {
            line,
            tool: fork.filter(|_| facts.role == Role::Child).map(|fork| tools(fork)),
            parent: facts.claims.parent().cloned(),
            marks_agents: facts.claims.marks_agents(),
            request,
            forwarded: Some(tape.forwarded).filter(|_| changed),
            refused: Some(tape.refused).filter(|refused| !refused.is_empty()),
            message_id: turn.and_then(|turn| turn.id.clone()),
            answer: turn.and_then(Turn::message),
        });
    }
}

/// `a,b`
pub(super) fn list(betas: &str) -> Vec<String> {
    betas.split(',').filter(|beta| !beta.is_empty()).map(String::from).collect()
}

/// The tools that a fan-out called, each once: most call one.
fn tools(fork: &ForkPoint) -> String {
    let mut names: Vec<&str> =
        fork.calls.iter().filter(|call| !call.directives.is_empty()).map(|call| &*call.name).collect();
    names.sort_unstable();
    names.dedup();
    names.join("+")
}
