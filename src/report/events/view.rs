//! The JSON of exchanges, underway and ended. Names are those of the log line where it has them too.

use serde::Serialize;

use super::super::record::ExchangeRecord;

/// The most characters of a name that a client chose.
const NAME_CHARS_MAX: usize = 120;

/// A request of a fan-out that goes on. Times are milliseconds since it came.
#[derive(Debug, Serialize)]
pub struct Underway<'a> {
    pub time_ms: u64,
    pub role: &'a str,
    pub fork: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub child: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub child_turn: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "cut")]
    pub tool: Option<&'a str>,
    pub model: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// None while it waits: nothing is decided yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'a str>,
    /// The outcome at the gate, once it is sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gate: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_byte_ms: Option<u64>,
}

/// A request that goes on, with the number by which its end names it.
#[derive(Serialize)]
pub struct Numbered<'a> {
    pub n: u64,
    #[serde(flatten)]
    pub shown: &'a Underway<'a>,
}

/// An exchange that has ended.
#[derive(Serialize)]
pub struct Shown<'a> {
    /// Its number while it went on, if it was shown then.
    #[serde(skip_serializing_if = "Option::is_none")]
    n: Option<u64>,
    id: u64,
    time_ms: u64,
    role: &'a str,
    plan: &'a str,
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    ending: &'a str,
    /// True if somebody should look at it: the log has it as a warning.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    failed: bool,
    /// The reason for which forkpoint answered itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<&'a str>,
    /// The type of the upstream's error, if it is one that the API documents.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    model: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<&'a str>,
    #[serde(flatten)]
    family: Family<'a>,
    #[serde(flatten)]
    times: ShownTimes,
    #[serde(flatten)]
    prompt: Prompt<'a>,
    #[serde(flatten)]
    bill: Bill,
    #[serde(rename = "break", skip_serializing_if = "Option::is_none")]
    cache_break: Option<CacheBreak<'a>>,
}

/// The part of an exchange in fan-outs, and at the gate.
#[derive(Serialize)]
struct Family<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    fork: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    child: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    child_turn: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "cut")]
    tool: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reread_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fork_notes: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    would_fork: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fanned_out: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fanned_out_children: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gate: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gate_ticket: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gate_leader: Option<&'a str>,
}

/// Times, in milliseconds since the request came.
#[derive(Serialize)]
struct ShownTimes {
    #[serde(skip_serializing_if = "Option::is_none")]
    waited_ms: Option<u64>,
    held_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    sent_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_byte_ms: Option<u64>,
    duration_ms: u64,
}

/// The prompt that went out, in digests and sizes.
#[derive(Serialize)]
struct Prompt<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    received: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sent: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefix: Option<&'a str>,
    shared_bytes: usize,
    /// The bytes of tools, system and messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    layer_bytes: Option<[usize; 3]>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    breakpoints: &'a [String],
}

/// Tokens as billed, and dollars in each world.
#[derive(Serialize)]
struct Bill {
    #[serde(skip_serializing_if = "Option::is_none")]
    uncached: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_read: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_write_5m: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_write_1h: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost_usd: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    as_sent_usd: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    aligned_usd: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    context_usd: Option<f64>,
}

#[derive(Serialize)]
struct CacheBreak<'a> {
    cause: &'a str,
    layer: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<usize>,
    tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost_usd: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    volatile: Option<&'a str>,
}

impl<'a> Shown<'a> {
    pub fn of(record: &'a ExchangeRecord, n: Option<u64>) -> Shown<'a> {
        Shown {
            n,
            id: record.id,
            time_ms: record.time_ms,
            role: &record.role,
            plan: &record.plan,
            reason: &record.reason,
            status: record.status,
            ending: &record.ending,
            failed: record.is_failure(),
            fault: record.details.fault,
            error: record.error.as_deref(),
            model: &record.model,
            stop_reason: record.stop_reason.as_deref(),
            client: record.client.as_deref(),
            tenant: record.tenant.as_deref(),
            agent: record.agent.as_deref(),
            family: Family::of(record),
            times: ShownTimes::of(record),
            prompt: Prompt::of(record),
            bill: Bill::of(record),
            cache_break: CacheBreak::of(record),
        }
    }
}

impl<'a> Family<'a> {
    fn of(record: &'a ExchangeRecord) -> Family<'a> {
        Family {
            fork: record.fork.as_deref(),
            child: record.details.child_number,
            child_turn: record.child_turn,
            tool: record.tool.as_deref(),
            reread_tokens: record.reread_tokens,
            fork_notes: record.fork_notes.as_deref(),
            would_fork: record.would_fork.as_deref(),
            fanned_out: record.fanned_out.as_deref(),
            fanned_out_children: record.fanned_out_children,
            gate: record.gate.as_deref(),
            gate_ticket: record.gate_ticket.as_deref(),
            gate_leader: record.gate_leader.as_deref(),
        }
    }
}

impl ShownTimes {
    fn of(record: &ExchangeRecord) -> ShownTimes {
        let times = &record.details.times;
        let ms = |at: u64| at.saturating_sub(times.started) / 1_000_000;
        ShownTimes {
            waited_ms: times.waited.map(ms),
            held_ms: record.held_ms,
            sent_ms: times.sent.map(ms),
            first_byte_ms: record.first_byte_ms,
            duration_ms: record.duration_ms,
        }
    }
}

impl<'a> Prompt<'a> {
    fn of(record: &'a ExchangeRecord) -> Prompt<'a> {
        Prompt {
            received: record.received.as_deref(),
            sent: record.sent.as_deref(),
            prefix: record.prefix.as_deref(),
            shared_bytes: record.shared_bytes,
            layer_bytes: record.details.layer_bytes,
            breakpoints: &record.details.breakpoints,
        }
    }
}

impl Bill {
    fn of(record: &ExchangeRecord) -> Bill {
        Bill {
            uncached: record.uncached,
            cache_read: record.cache_read,
            cache_write_5m: record.cache_write_5m,
            cache_write_1h: record.cache_write_1h,
            output: record.output,
            cost_usd: record.cost_usd,
            as_sent_usd: record.as_sent_usd,
            aligned_usd: record.aligned_usd,
            context_usd: record.context_usd,
        }
    }
}

impl<'a> CacheBreak<'a> {
    fn of(record: &'a ExchangeRecord) -> Option<CacheBreak<'a>> {
        Some(CacheBreak {
            cause: record.break_cause.as_deref()?,
            layer: record.break_layer.as_deref()?,
            at: record.break_at.as_deref(),
            offset: record.break_offset,
            tokens: record.break_tokens?,
            cost_usd: record.break_cost_usd,
            volatile: record.volatile.as_deref(),
        })
    }
}

/// Writes no more of a name than is readable: a client may choose any.
fn cut<S: serde::Serializer>(name: &Option<&str>, serializer: S) -> Result<S::Ok, S::Error> {
    match name.map(|name| (name, name.char_indices().nth(NAME_CHARS_MAX))) {
        Some((name, Some((end, _)))) => serializer.collect_str(&format_args!("{}…", &name[..end])),
        Some((name, None)) => serializer.serialize_str(name),
        None => serializer.serialize_none(),
    }
}
