//! What is told of an exchange that has ended, declared once.
//!
//! [`Told`] borrows it, and its fields are exactly those of the log line. [`Line`] owns the same under the same names,
//! with what only a recording keeps: whoever has the recording has all that the log says. A field that is declared
//! here is in both.

use std::fmt::{self, Display};

use serde::{Deserialize, Serialize};
use tracing::field::DisplayValue;

use crate::engine::fanout::ForkId;
use crate::engine::gate::Ticket;
use crate::engine::identify::Session;
use crate::engine::prefix::PrefixHash;
use crate::engine::usage::Usage;
use crate::engine::volatile::Volatile;
use crate::engine::words::{BodyDigest, ForkNote, IdDigest, TenantId};

/// `name: as it is logged as what is recorded`.
macro_rules! declare {
    (
        recorded { $($first:ident: $first_type:ty,)* }
        told<$a:lifetime> { $($name:ident: $told:ty as $kept:ty,)* }
        recorded { $($(#[$meta:meta])* $last:ident: $last_type:ty,)* }
    ) => {
        /// One exchange, for its log line.
        #[derive(Debug)]
        pub struct Told<$a> {
            $(pub $name: $told,)*
        }

        impl Told<'_> {
            pub fn log(&self) {
                tracing::info!(target: "forkpoint::request", $($name = self.$name,)*);
            }
        }

        /// One Messages exchange in a recording. Tenant, session, agent and fork are digests, times are milliseconds
        /// since the request came.
        #[derive(Clone, Debug, Default, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Line {
            $(pub $first: $first_type,)*
            $(#[serde(skip_serializing_if = "Kept::is_absent")] pub $name: $kept,)*
            $($(#[$meta])* pub $last: $last_type,)*
        }

        impl Line {
            /// The members that it has in common with the log line.
            pub const TOLD: &[&str] = &[$(stringify!($name)),*];
            /// The others.
            pub const RECORDED: &[&str] = &[$(stringify!($first),)* $(stringify!($last)),*];

            pub fn of(told: &Told<'_>) -> Line {
                Line { $($name: Keep::keep(&told.$name),)* ..Line::default() }
            }
        }
    };
}

declare! {
    recorded {
        v: u32,
        time_ms: u64,
    }
    told<'a> {
        id: u64 as u64,
        config: u64 as u64,
        endpoint: &'a str as String,
        mode: Option<&'a str> as Option<String>,
        asked_mode: Option<&'a str> as Option<String>,
        role: &'a str as String,
        plan: &'a str as String,
        reason: &'a str as String,
        status: Option<u16> as Option<u16>,
        ending: &'a str as String,
        model: &'a str as String,
        stream: bool as bool,
        client: Option<&'a str> as Option<String>,
        tenant: Shown<TenantId> as Option<String>,
        session: Shown<Session> as Option<String>,
        agent: Shown<IdDigest> as Option<String>,
        fork: Shown<ForkId> as Option<String>,
        kin: Option<&'a str> as Option<String>,
        child_turn: Option<u64> as Option<u64>,
        fork_notes: Shown<Notes<'a>> as Option<String>,
        would_fork: Option<&'a str> as Option<String>,
        predicted_unit: Option<&'a str> as Option<String>,
        predicted_turns: Option<u32> as Option<u32>,
        predicted_forked: Option<f64> as Option<f64>,
        predicted_as_sent: Option<f64> as Option<f64>,
        predicted_aligned: Option<f64> as Option<f64>,
        fanned_out: Shown<ForkId> as Option<String>,
        fanned_out_children: Option<usize> as Option<usize>,
        gate: Option<&'a str> as Option<String>,
        gate_ticket: Shown<Ticket> as Option<String>,
        gate_leader: Shown<Ticket> as Option<String>,
        held_ms: u64 as u64,
        gate_saved_tokens: Option<u64> as Option<u64>,
        gate_missed_tokens: Option<u64> as Option<u64>,
        upstream_request_id: Option<&'a str> as Option<String>,
        received: Shown<BodyDigest> as Option<String>,
        sent: Shown<BodyDigest> as Option<String>,
        received_bytes: Option<usize> as Option<usize>,
        prefix: Shown<PrefixHash> as Option<String>,
        shared_bytes: usize as usize,
        markers_added: usize as usize,
        answer_bytes: u64 as u64,
        uncached: Option<u64> as Option<u64>,
        cache_read: Option<u64> as Option<u64>,
        cache_write_5m: Option<u64> as Option<u64>,
        cache_write_1h: Option<u64> as Option<u64>,
        output: Option<u64> as Option<u64>,
        cost_usd: Option<f64> as Option<f64>,
        as_sent_usd: Option<f64> as Option<f64>,
        aligned_usd: Option<f64> as Option<f64>,
        forked_usd: Option<f64> as Option<f64>,
        stop_reason: Option<&'a str> as Option<String>,
        error: Option<&'a str> as Option<String>,
        turn: Option<&'a str> as Option<String>,
        drift: Option<&'a str> as Option<String>,
        drift_layer: Option<&'a str> as Option<String>,
        drift_at: Option<&'a str> as Option<String>,
        drift_offset: Option<usize> as Option<usize>,
        drift_kind: Option<&'a str> as Option<String>,
        break_cause: Option<&'a str> as Option<String>,
        break_layer: Option<&'a str> as Option<String>,
        break_at: Option<&'a str> as Option<String>,
        break_offset: Option<usize> as Option<usize>,
        break_tokens: Option<u64> as Option<u64>,
        break_cost_usd: Option<f64> as Option<f64>,
        volatile: Shown<Places<'a>> as Option<String>,
        volatile_tokens: Option<u64> as Option<u64>,
        diagnosis: Option<&'a str> as Option<String>,
        diagnosis_tokens: Option<u64> as Option<u64>,
        first_byte_ms: Option<u64> as Option<u64>,
        duration_ms: u64 as u64,
        overhead_us: u64 as u64,
    }
    recorded {
        betas: Vec<String>,
        /// As they went out, if those are others.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        forwarded_betas: Vec<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        sent_ms: Option<u64>,
        /// The first content: from then on others can read what this one wrote.
        #[serde(skip_serializing_if = "Option::is_none")]
        begun_ms: Option<u64>,
        /// `off`, `redacted` or `full`; what follows is there only if not `off`.
        bodies: String,
        /// The tool that started this child.
        #[serde(skip_serializing_if = "Option::is_none")]
        tool: Option<String>,
        /// `x-forkpoint-parent` and `x-forkpoint-tool-use`.
        #[serde(skip_serializing_if = "Option::is_none")]
        parent: Option<(String, Option<String>)>,
        /// Whether this client puts an agent id on every request of a child.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        marks_agents: bool,
        /// The body as it came.
        #[serde(skip_serializing_if = "Option::is_none")]
        request: Option<String>,
        /// The body as it went out, if that is another.
        #[serde(skip_serializing_if = "Option::is_none")]
        forwarded: Option<String>,
        /// The body that went out before it, if that was refused.
        #[serde(skip_serializing_if = "Option::is_none")]
        refused: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        message_id: Option<String>,
        /// The assistant message, as the next request carries it.
        #[serde(skip_serializing_if = "Option::is_none")]
        answer: Option<String>,
    }
}

impl Line {
    /// What was billed, if anything was.
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

/// What is logged in the words of its `Display`.
pub type Shown<T> = Option<DisplayValue<T>>;

/// What was done to a forked child: `instructions,tools`
#[derive(Debug)]
pub struct Notes<'a>(pub &'a [ForkNote]);

impl Display for Notes<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, note) in self.0.iter().enumerate() {
            let comma = if place > 0 { "," } else { "" };
            write!(out, "{comma}{}", note.as_str())?;
        }
        Ok(())
    }
}

/// Kinds and places of what changed, never its text: `date@system[1],clock@tools[3]`.
#[derive(Debug)]
pub struct Places<'a>(pub &'a [Volatile]);

impl Display for Places<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = None;
        for volatile in self.0 {
            let place = Some((volatile.kind.as_str(), &*volatile.path));
            if place != last {
                let comma = if last.is_some() { "," } else { "" };
                write!(out, "{comma}{}@{}", volatile.kind.as_str(), volatile.path)?;
            }
            last = place;
        }
        Ok(())
    }
}

/// A value of the log line, as a recording keeps it.
trait Keep<T> {
    fn keep(&self) -> T;
}

impl<T: Copy> Keep<T> for T {
    fn keep(&self) -> T {
        *self
    }
}

impl Keep<String> for &str {
    fn keep(&self) -> String {
        (*self).to_owned()
    }
}

impl Keep<Option<String>> for Option<&str> {
    fn keep(&self) -> Option<String> {
        self.map(str::to_owned)
    }
}

impl<T: Display> Keep<Option<String>> for Shown<T> {
    fn keep(&self) -> Option<String> {
        self.as_ref().map(DisplayValue::to_string)
    }
}

/// A value of a recording; what is absent from the log line is absent there too.
trait Kept {
    fn is_absent(&self) -> bool {
        false
    }
}

impl Kept for u64 {}
impl Kept for usize {}
impl Kept for bool {}
impl Kept for String {}

impl<T> Kept for Option<T> {
    fn is_absent(&self) -> bool {
        self.is_none()
    }
}
