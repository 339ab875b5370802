//! The record of one exchange that has ended, declared once.
//!
//! Log line, recording, metrics and traces are views of it. A field of the log line has the same name and value in
//! the recording, so the recording contains everything that the log contains.

use std::fmt::{self, Display};
use std::sync::Arc;
use std::time::Duration;

use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};

use crate::engine::answer::usage::Usage;
use crate::engine::cache::prices::Cost;
use crate::engine::cache::volatile::Volatile;
use crate::engine::family::fanout::ForkPoint;
use crate::engine::words::{Ending, FanOutDropped, GateOutcome, Recall, TenantId};

/// Declares [`ExchangeRecord`]: fields that only the recording has, then those of the log line, then the other
/// fields of the recording. Texts are logged in quotes, or without with `as shown`.
macro_rules! declare {
    (
        recorded { $($first:ident: $first_type:ty,)* }
        logged { $($name:ident: $type:ty $(as $how:ident)?,)* }
        recorded { $($(#[$meta:meta])* $last:ident: $last_type:ty,)* }
    ) => {
        /// One exchange that has ended. Tenant, session, agent and fork are digests; times are milliseconds since the
        /// request arrived.
        #[derive(Clone, Debug, Default, Serialize, Deserialize)]
        #[serde(default)]
        pub struct ExchangeRecord {
            $(pub $first: $first_type,)*
            $(#[serde(skip_serializing_if = "Field::is_absent")] pub $name: $type,)*
            $($(#[$meta])* pub $last: $last_type,)*
            /// The measurements that only metrics and traces show.
            #[serde(skip)]
            pub details: Details,
        }

        impl ExchangeRecord {
            /// The fields of the log line; a recording has them too.
            pub const LOGGED: &[&str] = &[$(stringify!($name)),*];
            /// The fields that only a recording has.
            pub const RECORDED: &[&str] = &[$(stringify!($first),)* $(stringify!($last)),*];
        }

        impl Serialize for Logged<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let mut fields = serializer.serialize_map(None)?;
                $(if !self.0.$name.is_absent() {
                    fields.serialize_entry(stringify!($name), &self.0.$name)?;
                })*
                fields.end()
            }
        }

        impl Display for Logged<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $(if !self.0.$name.is_absent() {
                    f.write_str(concat!(" ", stringify!($name), "="))?;
                    declare!(@ self.0.$name, f $(, $how)?)?;
                })*
                Ok(())
            }
        }
    };
    (@ $value:expr, $f:ident) => { $value.show($f) };
    (@ $value:expr, $f:ident, shown) => { Display::fmt($value.as_deref().unwrap_or_default(), $f) };
}

/// The fields of a record that are logged: as JSON, or as ` name=value` for people.
pub struct Logged<'a>(pub &'a ExchangeRecord);

declare! {
    recorded {
        v: u32,
        time_ms: u64,
    }
    logged {
        id: u64,
        config: u64,
        endpoint: String,
        mode: Option<String>,
        asked_mode: Option<String>,
        role: String,
        plan: String,
        reason: String,
        status: Option<u16>,
        ending: String,
        model: String,
        stream: bool,
        client: Option<String>,
        tenant: Option<String> as shown,
        session: Option<String> as shown,
        agent: Option<String> as shown,
        fork: Option<String> as shown,
        kin: Option<String>,
        child_turn: Option<u64>,
        tool: Option<String>,
        reread_tokens: Option<u64>,
        fork_notes: Option<String> as shown,
        would_fork: Option<String>,
        predicted_unit: Option<String>,
        predicted_turns: Option<u32>,
        predicted_forked: Option<f64>,
        predicted_as_sent: Option<f64>,
        predicted_aligned: Option<f64>,
        predicted_reread: Option<f64>,
        limit_sent: Option<f64>,
        limit_aligned: Option<f64>,
        limit_twice: Option<f64>,
        limit_unknown: Option<f64>,
        fanned_out: Option<String> as shown,
        fanned_out_children: Option<usize>,
        gate: Option<String>,
        gate_ticket: Option<String> as shown,
        gate_leader: Option<String> as shown,
        held_ms: u64,
        gate_saved_tokens: Option<u64>,
        gate_missed_tokens: Option<u64>,
        upstream_request_id: Option<String>,
        trace_id: Option<String> as shown,
        received: Option<String> as shown,
        sent: Option<String> as shown,
        received_bytes: Option<usize>,
        prefix: Option<String> as shown,
        shared_bytes: usize,
        markers_added: usize,
        answer_bytes: u64,
        uncached: Option<u64>,
        cache_read: Option<u64>,
        cache_write_5m: Option<u64>,
        cache_write_1h: Option<u64>,
        output: Option<u64>,
        cost_usd: Option<f64>,
        as_sent_usd: Option<f64>,
        aligned_usd: Option<f64>,
        forked_usd: Option<f64>,
        context_usd: Option<f64>,
        stop_reason: Option<String>,
        error: Option<String>,
        turn: Option<String>,
        recall: Option<String>,
        drift: Option<String>,
        drift_layer: Option<String>,
        drift_at: Option<String>,
        drift_offset: Option<usize>,
        drift_kind: Option<String>,
        break_cause: Option<String>,
        break_layer: Option<String>,
        break_at: Option<String>,
        break_offset: Option<usize>,
        break_tokens: Option<u64>,
        break_cost_usd: Option<f64>,
        volatile: Option<String> as shown,
        volatile_tokens: Option<u64>,
        diagnosis: Option<String>,
        diagnosis_tokens: Option<u64>,
        first_byte_ms: Option<u64>,
        duration_ms: u64,
        overhead_us: u64,
    }
    recorded {
        betas: Vec<String>,
        /// The betas that went out, if they differ from those that came.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        forwarded_betas: Vec<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        sent_ms: Option<u64>,
        /// The time of the first content: from then on others can read the cache entries that this exchange wrote.
        #[serde(skip_serializing_if = "Option::is_none")]
        begun_ms: Option<u64>,
        /// `off`, `redacted` or `full`. With `off` the fields below are absent.
        bodies: String,
        /// `x-forkpoint-parent` and `x-forkpoint-tool-use`.
        #[serde(skip_serializing_if = "Option::is_none")]
        parent: Option<(String, Option<String>)>,
        /// True if the client puts an agent id on every request of a child.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        marks_agents: bool,
        /// The body as it came.
        #[serde(skip_serializing_if = "Option::is_none")]
        request: Option<String>,
        /// The body as it went out, if it differs.
        #[serde(skip_serializing_if = "Option::is_none")]
        forwarded: Option<String>,
        /// The body that went out first, if it was refused.
        #[serde(skip_serializing_if = "Option::is_none")]
        refused: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        message_id: Option<String>,
        /// The assistant message, in the form in which the next request repeats it.
        #[serde(skip_serializing_if = "Option::is_none")]
        answer: Option<String>,
    }
}

impl ExchangeRecord {
    /// Returns true if somebody should look at the exchange: it has no answer, an error as its answer or within it, or
    /// half of an answer. A client that leaves does so for reasons of its own.
    pub fn is_failure(&self) -> bool {
        let has_left = self.ending == Ending::ClientLeft.as_str();
        let is_error = self.status.map_or(!has_left, |status| status >= 400);
        let broke = ![Ending::Complete, Ending::ClientLeft].map(Ending::as_str).contains(&&*self.ending);
        is_error || broke || self.error.is_some()
    }

    /// Returns true if it was answered with a 2xx.
    pub fn is_success(&self) -> bool {
        self.status.is_some_and(|status| (200..300).contains(&status))
    }

    /// Returns the billed tokens, if any were billed.
    pub fn usage(&self) -> Option<Usage> {
        Some(Usage {
            uncached: self.uncached?,
            cache_read: self.cache_read?,
            cache_write_5m: self.cache_write_5m?,
            cache_write_1h: self.cache_write_1h?,
            output: self.output?,
        })
    }
}

/// A run of another model than the one that a request asks for: a fallback, or an adviser.
#[derive(Clone, Debug)]
pub struct OtherModel {
    /// A name that passed through [`Names`](crate::metrics::Names).
    pub model: String,
    pub usage: Usage,
    pub cost: Option<Cost>,
}

/// Measurements of an exchange that are neither logged nor recorded.
#[derive(Clone, Debug, Default)]
pub struct Details {
    pub is_messages: bool,
    pub role: &'static str,
    pub plan: &'static str,
    /// The reason for the plan, even where the reason of the exchange is a fault.
    pub plan_reason: &'static str,
    /// True if the request was not changed, and the upstream answered it.
    pub is_passed_through: bool,
    /// The reason for which forkpoint answered itself.
    pub fault: Option<&'static str>,
    pub tenant: Option<TenantId>,
    /// The whole version of the client, if its family is known.
    pub client_version: Option<String>,
    /// The number of this child among the calls of its fan-out, from 1.
    pub child_number: Option<usize>,
    /// The number of calls of that fan-out, while it is known.
    pub children: Option<usize>,
    /// The bytes of tools, system and messages as they went out.
    pub layer_bytes: Option<[usize; 3]>,
    /// Where the request asked for cache entries: `system[1] 5m added`.
    pub breakpoints: Vec<String>,
    pub times: Times,
    pub overhead: Overhead,
    /// The outcome at the gate, and the time that it took.
    pub gate: Option<(GateOutcome, Duration)>,
    /// True if the client left while its request was held.
    pub left_at_gate: bool,
    /// The time that the request waited for the end of its parent's answer.
    pub awaited: Duration,
    pub volatile: Vec<Volatile>,
    /// The fan-out of the answer, or the reason why it was dropped.
    pub fanout: Option<Result<Arc<ForkPoint>, FanOutDropped>>,
    /// The store that was asked for the conversation, and how well it remembered that.
    pub recall: Option<(&'static str, Recall)>,
    /// The bill, if every model in it has a price.
    pub cost: Option<Cost>,
    /// The parts of the bill that are of another model than the one asked for.
    pub other_models: Vec<OtherModel>,
    /// The cost without a cache.
    pub uncached_usd: Option<f64>,
    /// The cost of the prompt as the ledger predicted it, and as it was billed.
    pub predicted_usd: Option<[f64; 2]>,
    /// The id and the model of the answer.
    pub response_id: Option<String>,
    pub response_model: Option<String>,
    pub is_empty_answer: bool,
    /// Calls of tools that a forked child does not have.
    pub foreign_tool_calls: Option<u64>,
    pub child: Option<ChildTurn>,
}

/// The times of an exchange, in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    pub started: u64,
    /// The start of the first wait, for the parent's answer or at the gate.
    pub waited: Option<u64>,
    pub sent: Option<u64>,
    pub first_byte: Option<u64>,
    pub ended: u64,
}

/// The time that was spent on an exchange, step by step.
#[derive(Clone, Copy, Debug, Default)]
pub struct Overhead {
    pub read: Duration,
    pub align: Duration,
    pub fork: Duration,
    pub observe: Duration,
}

/// A turn of a child that takes part in the comparison of forked and other children.
#[derive(Clone, Copy, Debug)]
pub struct ChildTurn {
    pub arm: &'static str,
    pub is_first: bool,
    pub stop: &'static str,
    pub is_empty: bool,
    pub tool_errors: u64,
    pub output_tokens: u64,
    pub wall_ms: u64,
    pub cost_usd: Option<f64>,
}

/// A field of the log line.
trait Field {
    /// Returns true if the field is left out.
    fn is_absent(&self) -> bool {
        false
    }

    /// Writes the field for people.
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
}

/// Implements [`Field`] for types that people read as they are debugged: texts in quotes.
macro_rules! fields {
    ($($type:ty),*) => {
        $(impl Field for $type {
            fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(self, f)
            }
        })*
    };
}

fields!(u16, u32, u64, usize, f64, bool, String);

impl<T: Field> Field for Option<T> {
    fn is_absent(&self) -> bool {
        self.is_none()
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_ref().map_or(Ok(()), |field| field.show(f))
    }
}
