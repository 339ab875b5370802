//! The facts known about one exchange while it lasts.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, StatusCode};

use crate::engine::cache::breakpoints;
use crate::engine::family::conversation::Trace;
use crate::engine::fork::Forecast;
use crate::engine::request::anatomy::Anatomy;
use crate::engine::request::identify::Sender;
use crate::engine::request::prefix::PrefixHash;
use crate::engine::request::recall::Reading;
use crate::engine::words::{
    BodyDigest, BreakpointPlace, Endpoint, ForkNote, Layer, Plan, Reason, Role, Skip, TenantId, Why,
};
use crate::proxy::Modes;
use crate::proxy::clock::millis;
use crate::proxy::family::Claims;
use crate::proxy::hold::Held;
use crate::store::Hint;

/// Longer than any request id; more is not one.
const REQUEST_ID_BYTES_MAX: usize = 128;

static REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// The facts known about one exchange.
pub struct Facts {
    /// The number of the configuration that it began with.
    pub generation: u64,
    pub endpoint: Endpoint,
    /// How much may be done to it.
    pub(in crate::proxy) modes: Option<Modes>,
    pub role: Role,
    pub plan: Plan,
    pub sender: Option<Sender>,
    /// Its claims about its family.
    pub claims: Claims,
    /// The gate's treatment of it.
    pub hold: Option<Held>,
    /// The number of tokens the gate would have saved, had it been asked.
    pub missed_tokens: Option<u64>,
    pub child_turn: Option<u64>,
    /// As the request listed them.
    pub betas: String,
    pub model: Option<String>,
    pub stream: bool,
    pub received: Option<BodyDigest>,
    pub sent: Option<BodyDigest>,
    pub received_bytes: Option<usize>,
    /// The prefix that other requests may share: everything before the messages.
    pub prefix: Option<PrefixHash>,
    /// How much of what goes out the conversation's last request brought too.
    pub shared_bytes: usize,
    pub markers_added: usize,
    /// It is a child for which nothing is to be written at its end.
    pub ends_without_tail: bool,
    pub started: Instant,
    pub sent_at: Option<Instant>,
    pub first_byte_at: Option<Instant>,
    pub read_time: Duration,
    pub align_time: Duration,
    pub fork_time: Duration,
    /// How long it waited for the end of its parent's answer.
    pub awaited: Duration,
    /// When it began to wait, for that or at the gate.
    pub waits_since: Option<Instant>,
    /// Changes made to a forked child, beside putting it on its parent's prefix.
    pub notes: Vec<ForkNote>,
    /// The predicted cost of a child.
    pub forecast: Option<Forecast>,
    /// Why a child would not be forked in mode fork, or `none` if it would.
    pub would_fork: Option<&'static str>,
    pub observe_time: Duration,
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
            modes: None,
            role: Role::Plain,
            plan: Plan::Passthrough(Reason::Endpoint),
            sender: None,
            claims: Claims::default(),
            hold: None,
            missed_tokens: None,
            child_turn: None,
            betas: String::new(),
            model: None,
            stream: false,
            received: None,
            sent: None,
            received_bytes: None,
            prefix: None,
            shared_bytes: 0,
            markers_added: 0,
            ends_without_tail: false,
            started: Instant::now(),
            sent_at: None,
            first_byte_at: None,
            read_time: Duration::ZERO,
            align_time: Duration::ZERO,
            fork_time: Duration::ZERO,
            awaited: Duration::ZERO,
            waits_since: None,
            notes: Vec::new(),
            forecast: None,
            would_fork: None,
            observe_time: Duration::ZERO,
            status: None,
            answer_bytes: 0,
            upstream_request_id: None,
            fault: None,
        }
    }

    /// Whose request it is, and of which conversation by its headers.
    pub fn of_whom(&self) -> (Option<TenantId>, Option<Hint>) {
        let sender = self.sender.as_ref();
        let hint =
            sender.and_then(|sender| Some(Hint { session: sender.session?.hints, agent: sender.agent }));
        (sender.and_then(|sender| sender.tenant), hint)
    }

    /// Takes over what the body says about itself.
    pub fn learn(&mut self, body: &[u8], anatomy: &Anatomy) {
        self.model = anatomy.model(body).map(String::from);
        self.stream = anatomy.stream(body);
        if let (Some(sender), Some(user_id)) = (&mut self.sender, anatomy.user_id(body)) {
            sender.hint(&user_id);
        }
    }

    /// How the request goes out, as seen by the cache.
    pub fn traced(&mut self, trace: &Trace, before: Option<&Trace>) {
        let forwarded = trace.reading();
        self.prefix = Some(forwarded.chain().layer(forwarded.anatomy(), Layer::System));
        if self.plan == Plan::Forked {
            return;
        }
        let shared = before.map_or(0, |before| before.reading().shared_pieces(forwarded));
        self.shared_bytes =
            forwarded.anatomy().pieces.iter().take(shared).map(|piece| piece.span.len()).sum();
    }

    /// Other bytes than came go out: named by what came, what the model reads now, and their length.
    pub fn changed(&mut self, forwarded: &Reading, pieces: &[Bytes]) {
        let received = self.received.map_or([0; 8], |digest| digest.0);
        let length: usize = pieces.iter().map(Bytes::len).sum();
        let tip = forwarded.chain().tip();
        self.sent = Some(BodyDigest::of_pieces([&received[..], tip.as_bytes(), &length.to_le_bytes()]));
    }

    /// Which breakpoints were added, and why none where none was.
    pub fn planned(&mut self, plan: &breakpoints::Plan) {
        self.markers_added = plan.edits.len();
        let matters = |place| matches!(place, BreakpointPlace::Request | BreakpointPlace::Tail);
        let skipped = plan.skipped.iter().find(|(place, _)| matters(*place));
        self.plan = Plan::Aligned(skipped.map_or(Why::Mode, |(_, skip)| Why::Skipped(*skip)));
    }

    /// Returns true if this is a child for which nothing is written at its end: it will not go on.
    pub fn is_child_without_tail(&self) -> bool {
        let ends = matches!(self.plan, Plan::Aligned(Why::Skipped(Skip::OneShot | Skip::SeldomContinues)));
        self.role == Role::Child && ends
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

/// Returns true if this is the id that a provider gives to a request, and not something else that came in its
/// place: `req_` and what follows, or hex digits in groups.
fn is_request_id(id: &str) -> bool {
    let named = |rest: &str| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let is_named = id.strip_prefix("req_").is_some_and(named);
    let is_hex = !id.is_empty() && id.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    id.len() <= REQUEST_ID_BYTES_MAX && (is_named || is_hex)
}
