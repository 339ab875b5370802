//! The facts known about one exchange while it lasts.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, StatusCode};

use crate::engine::cache::breakpoints::Breakpoint;
use crate::engine::decide::Departure;
use crate::engine::family::arrival::Arrival;
use crate::engine::family::fanout::{ForkId, ForkPoint};
use crate::engine::fork::Forecast;
use crate::engine::outgoing::Outgoing;
use crate::engine::request::anatomy::Anatomy;
use crate::engine::request::prefix::PrefixHash;
use crate::engine::tenant::{Flight, Relation};
use crate::engine::words::{BodyDigest, Endpoint, ForkNote, Layer, Plan, Reason, Recall, Role};
use crate::proxy::clock::millis;
use crate::proxy::wait::Held;
use crate::report::Overhead;

/// Longer than any request id; more is not one.
const REQUEST_ID_BYTES_MAX: usize = 128;

static REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// The relation of a request to fan-outs.
pub struct FamilyFacts {
    pub role: Role,
    /// Why it is nobody's, or how sure it is whose.
    pub kin: Option<&'static str>,
    /// The fan-out that it comes from, or brings results back to.
    pub fork: Option<ForkId>,
    /// The tool that started it, if it is a child.
    pub tool: Option<String>,
    /// The number of this child among the calls of its fan-out, from 1.
    pub child_number: Option<usize>,
    /// The number of calls of that fan-out, while it is known.
    pub children: Option<usize>,
}

/// The look of a request to the cache, as it went out.
pub struct Traced {
    /// The prefix that other requests may share: everything before the messages.
    pub prefix: PrefixHash,
    /// The bytes of tools, system and messages.
    pub layer_bytes: [usize; 3],
    /// Where the request asks for cache entries, in words.
    pub breakpoints: Vec<String>,
}

impl FamilyFacts {
    /// Nothing is known of it yet.
    const UNKNOWN: FamilyFacts = FamilyFacts {
        role: Role::Plain,
        kin: None,
        fork: None,
        tool: None,
        child_number: None,
        children: None,
    };

    pub fn of(relation: &Relation) -> FamilyFacts {
        FamilyFacts {
            role: relation.role(),
            kin: Some(relation.why),
            fork: relation.fork_id(),
            tool: tool(relation),
            child_number: relation.call().map(|call| call + 1),
            children: relation.fork().map(|fork| fork.calls.len()),
        }
    }
}

impl Traced {
    fn of(flight: &Flight) -> Traced {
        let forwarded = flight.trace.reading();
        let anatomy = forwarded.anatomy();
        Traced {
            prefix: forwarded.chain().layer(anatomy, Layer::System),
            layer_bytes: layer_bytes(anatomy),
            breakpoints: flight.trace.breakpoints.iter().map(|mark| in_words(mark, anatomy)).collect(),
        }
    }
}

/// The facts known about one exchange. `None` means unknown or not applicable.
pub struct Facts {
    /// The number of the configuration that it began with.
    pub generation: u64,
    pub endpoint: Endpoint,
    pub model: Option<String>,
    pub stream: bool,
    pub received: Option<BodyDigest>,
    /// None if it goes out as it came.
    pub changed: Option<BodyDigest>,
    pub received_bytes: Option<usize>,
    /// The store that was asked for its conversation, and how well it remembered that.
    pub recall: Option<(&'static str, Recall)>,
    pub family: FamilyFacts,
    pub plan: Plan,
    /// The bytes of what goes out that the conversation's last request brought too, or a child's siblings do.
    pub shared_bytes: usize,
    pub markers_added: usize,
    /// Known of a request that was read and answered.
    pub traced: Option<Traced>,
    /// Changes made to a forked child, beside putting it on its parent's prefix.
    pub notes: Vec<ForkNote>,
    /// The predicted cost of a child.
    pub forecast: Option<Forecast>,
    /// Why a child would not be forked in mode fork, or `none` if it would.
    pub would_fork: Option<&'static str>,
    /// The gate's treatment of it.
    pub hold: Option<Held>,
    /// The number of tokens the gate would have saved, had it been asked.
    pub missed_tokens: Option<u64>,
    /// How long it waited for the end of its parent's answer.
    pub awaited: Duration,
    /// When it began to wait, for that or at the gate.
    pub waits_since: Option<Instant>,
    pub child_turn: Option<u64>,
    pub started: Instant,
    pub sent_at: Option<Instant>,
    pub first_byte_at: Option<Instant>,
    pub overhead: Overhead,
    pub status: Option<StatusCode>,
    pub answer_bytes: u64,
    pub upstream_request_id: Option<String>,
    /// The reason of an answer of our own.
    pub fault: Option<&'static str>,
}

impl Facts {
    pub fn new(endpoint: Endpoint, generation: u64) -> Facts {
        Facts {
            generation,
            endpoint,
            model: None,
            stream: false,
            received: None,
            changed: None,
            received_bytes: None,
            recall: None,
            family: FamilyFacts::UNKNOWN,
            plan: Plan::Passthrough(Reason::Endpoint),
            shared_bytes: 0,
            markers_added: 0,
            traced: None,
            notes: Vec::new(),
            forecast: None,
            would_fork: None,
            hold: None,
            missed_tokens: None,
            awaited: Duration::ZERO,
            waits_since: None,
            child_turn: None,
            started: Instant::now(),
            sent_at: None,
            first_byte_at: None,
            overhead: Overhead::default(),
            status: None,
            answer_bytes: 0,
            upstream_request_id: None,
            fault: None,
        }
    }

    /// Takes over how the request goes out.
    pub fn departed(&mut self, departure: &Departure) {
        let Departure { flight, outgoing, would_fork, .. } = departure;
        self.family = FamilyFacts::of(&flight.relation);
        self.plan = flight.plan;
        self.would_fork = *would_fork;
        self.forecast = flight.forecast.or(self.forecast);
        if self.model.is_none() && flight.is_forked() {
            self.model = Some(flight.request.model.clone());
        }
        self.goes_out_as(flight, outgoing);
    }

    /// Takes over the bytes that go out, named by what came, what the model reads now, and their length.
    pub fn goes_out_as(&mut self, flight: &Flight, outgoing: &Outgoing) {
        self.changed = None;
        self.notes.clone_from(&outgoing.notes);
        self.shared_bytes = outgoing.shared_bytes;
        self.markers_added = outgoing.markers_added;
        if let Some(pieces) = &outgoing.pieces {
            let received = self.received.map_or([0; 8], |digest| digest.0);
            let length: usize = pieces.iter().map(Bytes::len).sum();
            let tip = flight.trace.reading().chain().tip();
            self.changed =
                Some(BodyDigest::of_pieces([&received[..], tip.as_bytes(), &length.to_le_bytes()]));
        }
    }

    /// Takes over how the request that was answered looks to the cache.
    pub fn traced(&mut self, flight: &Flight) {
        self.traced = Some(Traced::of(flight));
        if self.plan != Plan::Forked {
            self.shared_bytes = shared_bytes(&flight.request.arrival, flight);
        }
    }

    /// The head of the upstream's answer has come.
    pub fn answered(&mut self, status: StatusCode, headers: &HeaderMap) {
        self.status = Some(status);
        let id = headers.get(&REQUEST_ID).and_then(|id| id.to_str().ok());
        self.upstream_request_id = id.filter(|id| is_request_id(id)).map(String::from);
    }

    pub fn answer_chunk(&mut self, bytes: usize, came: Instant) {
        self.first_byte_at.get_or_insert(came);
        self.answer_bytes += bytes as u64;
    }

    pub fn held_ms(&self) -> u64 {
        millis(self.hold.map_or(Duration::ZERO, |hold| hold.time) + self.awaited)
    }

    pub fn reason(&self) -> &'static str {
        self.fault.unwrap_or(self.plan.reason())
    }
}

/// The bytes of tools, system and messages.
fn layer_bytes(anatomy: &Anatomy) -> [usize; 3] {
    let (tools, rest) = anatomy.pieces.split_at(anatomy.tools);
    let (system, messages) = rest.split_at(anatomy.system);
    [tools, system, messages].map(|pieces| pieces.iter().map(|piece| piece.span.len()).sum())
}

/// The place of a breakpoint, how long its entry lives and whose it is: `system[1] 5m added`.
fn in_words(mark: &Breakpoint, anatomy: &Anatomy) -> String {
    format!("{} {} {}", anatomy.path(mark.piece), mark.ttl.as_str(), mark.origin.as_str())
}

/// The bytes of a request that the one before it brought too.
fn shared_bytes(arrival: &Arrival, flight: &Flight) -> usize {
    let forwarded = flight.trace.reading();
    let before = arrival.before.as_ref();
    let shared = before.map_or(0, |before| before.trace.reading().shared_pieces(forwarded));
    forwarded.anatomy().pieces.iter().take(shared).map(|piece| piece.span.len()).sum()
}

/// The tool that started a child; of one that named its parent and not the call, those that its fan-out called.
fn tool(relation: &Relation) -> Option<String> {
    match relation.tool() {
        _ if relation.role() != Role::Child => None,
        "" => relation.fork().map(|fork| tools(fork)),
        tool => Some(tool.to_owned()),
    }
}

/// Each once: most fan-outs call one.
fn tools(fork: &ForkPoint) -> String {
    let mut names: Vec<&str> =
        fork.calls.iter().filter(|call| !call.directives.is_empty()).map(|call| &*call.name).collect();
    names.sort_unstable();
    names.dedup();
    names.join("+")
}

/// Returns true if this is the id that a provider gives to a request, and not something else that came in its
/// place: `req_` and what follows, or hex digits in groups.
fn is_request_id(id: &str) -> bool {
    let named = |rest: &str| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let is_named = id.strip_prefix("req_").is_some_and(named);
    let is_hex = !id.is_empty() && id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    id.len() <= REQUEST_ID_BYTES_MAX && (is_named || is_hex)
}
