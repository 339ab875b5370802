//! The request path: collect, read, align, forward, observe, record.
//!
//! # Disconnects
//!
//! A client that leaves drops the future (or the answer's body) of its request, and with it the upstream
//! call: HTTP/1 closes that upstream connection, HTTP/2 resets the one stream. The recorder travels with
//! whichever of the two is alive, so the exchange is recorded exactly once.

pub mod answer;
pub mod attempt;
pub mod fork;
pub mod rules;
pub mod server;
pub mod live;
pub mod collect;
pub mod headers;
pub mod forward;
pub mod lanes;
pub mod gate;
pub mod observe;
pub mod decode;
pub mod record;
pub mod memo;
pub mod family;
pub mod awaiting;
pub mod hold;
pub mod clock;
pub mod panic_injection;
pub mod stall;
pub mod slow_reader;
pub mod error;

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use http::header::CONTENT_ENCODING;
use http::{HeaderMap, HeaderName, Request, Response};
use hyper::body::Incoming;

use crate::config::{self, Config, GateScope, Mode, OAuth};
use crate::engine::align;
use crate::engine::cache::prices::Prices;
use crate::engine::family::fanout;
use crate::engine::request::identify::{self, TenantRule};
use crate::engine::words::{BodyDigest, Endpoint, Moment, Plan, Reason, Role, TenantId, Why};
use crate::metrics::Metrics;
use crate::report::Sinks;
use crate::store::{self, Memory, ReadMode, Store, View};

use awaiting::Awaiting;
use clock::Clock;
use collect::{Collected, Held};
use error::Fault;
use family::{Claims, Family};
use forward::{Answer, SentBody, Upstream, yield_once};
use hold::{Gate, Held as HeldBack};
use live::Generation;
use memo::{Memo, Owner};
use observe::AnswerBody;
use panic_injection::{PanicInjection, Step};
use record::{Facts, Recorder};

static MODE: HeaderName = HeaderName::from_static("x-forkpoint-mode");

/// Everything that requests share.
pub struct Proxy {
    config: Config,
    prices: Arc<Prices>,
    rules: align::Rules,
    fanout_rules: fanout::Rules,
    generation: Generation,
    upstream: Arc<Upstream>,
    held: Arc<Held>,
    store: Arc<dyn Store>,
    gate: Arc<Gate>,
    /// Children that wait for the end of their parent's answer.
    awaiting: Arc<Awaiting>,
    /// Until when somebody may stand on a prefix, in milliseconds of the clock.
    prefixes_until: Arc<AtomicU64>,
    clock: Arc<Clock>,
    panics: Arc<PanicInjection>,
    metrics: Arc<Metrics>,
    sinks: Arc<Sinks>,
}

/// How much may be done to a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Modes {
    /// The most that the request allows, if it says so.
    asked: Option<Mode>,
    /// The configured mode, or a lower one that the request asks for.
    in_force: Mode,
}

/// A request that is ready to go upstream.
struct Outgoing {
    request: Request<SentBody>,
    /// The body of a Messages call.
    body: Option<Bytes>,
    /// Gives the body's place under the hold limits back when dropped.
    permit: Option<collect::Permit>,
}

impl Proxy {
    pub fn new(config: Config, prices: Prices, metrics: Arc<Metrics>) -> Result<Proxy, forward::SetupError> {
        let upstream = Arc::new(Upstream::new(&config.upstream)?);
        let held = Arc::new(Held::new(&metrics.held));
        metrics.models.reserve(prices.models().map(|model| &*model.id));
        metrics.name_tenants(config.tenants.clone());
        let config::Store { max_bytes, tenant_share, recent_bytes, .. } = config.store;
        let limits = store::Limits { max_bytes, recent_bytes, tenant_share };
        let (rules, fanout_rules) = (rules::align(&config), rules::fanout(&config));
        let store: Arc<dyn Store> = Arc::new(Memory::new(limits, fanout_rules.clone()));
        let clock = Arc::new(Clock::new());
        record::show_store(&metrics, Arc::clone(&store));
        let prices = Arc::new(prices);
        let gate = Arc::new(Gate::new(hold::settings(&config.gate), Arc::clone(&clock)));
        let generation = Generation::first(&metrics);
        Ok(Proxy {
            sinks: record::start_sinks(&config, &metrics, &clock)?,
            config,
            prices,
            rules,
            fanout_rules,
            generation,
            upstream,
            held,
            store,
            gate,
            awaiting: Arc::default(),
            prefixes_until: Arc::default(),
            clock,
            panics: Arc::default(),
            metrics,
        })
    }

    /// One exchange, whatever happens: a fault of ours becomes an answer, never a broken connection.
    pub async fn handle(
        self: Arc<Self>,
        mut request: Request<Incoming>,
    ) -> Result<Response<AnswerBody>, Infallible> {
        let endpoint = Endpoint::of(request.method(), request.uri().path());
        let mut recorder = self.recorder(endpoint, request.headers_mut());
        let exchange = AssertUnwindSafe(self.exchange(request, &mut recorder)).catch_unwind().await;
        let answer = match exchange.unwrap_or(Err(Fault::Internal)) {
            Ok(answer) => observe::relay(answer, recorder, &self.config),
            Err(fault) => fault.answer(recorder, &self.config),
        };
        slow_reader::handed_on();
        Ok(answer)
    }

    /// An answer for a request that is not even looked at.
    pub fn refuse(&self, fault: Fault) -> Response<AnswerBody> {
        fault.answer(self.recorder(Endpoint::Other, &mut HeaderMap::new()), &self.config)
    }

    fn recorder(&self, endpoint: Endpoint, headers: &mut HeaderMap) -> Recorder {
        let facts = Facts::new(endpoint, self.generation.number);
        let sinks = self.sinks.begin(headers);
        Recorder::new(self.metrics.clone(), self.clock.clone(), self.gate.clone(), sinks, facts)
    }

    async fn exchange(&self, request: Request<Incoming>, recorder: &mut Recorder) -> Result<Answer, Fault> {
        headers::check(&request)?;
        let deadline = self.clock.now().after(self.max_hold_ms());
        let modes = self.modes(request.headers());
        recorder.facts.modes = Some(modes);
        let outgoing = self.prepare(request, modes.in_force, &mut recorder.facts).await?;
        let answer = match (outgoing.body, recorder.facts.plan) {
            (Some(body), Plan::Aligned(_)) => {
                self.rewritten(outgoing.request, body, modes, deadline, recorder).await
            }
            (Some(body), Plan::Passthrough(Reason::Observe)) if self.keeps_prefix(&body, modes, recorder) => {
                recorder.facts.plan = Plan::Aligned(Why::Mode);
                self.rewritten(outgoing.request, body, modes, deadline, recorder).await
            }
            (body, _) => self.untouched(outgoing.request, body, recorder).await,
        };
        drop(outgoing.permit);
        answer
    }

    /// Forwards the bytes as they came. They go out first: nothing in them decides anything, and the upstream
    /// takes far longer to answer than we take to read.
    async fn untouched(
        &self,
        request: Request<SentBody>,
        body: Option<Bytes>,
        recorder: &mut Recorder,
    ) -> Result<Answer, Fault> {
        recorder.facts.sent_at = Some(Instant::now());
        let now = self.clock.now();
        let reading = async {
            yield_once().await;
            let Some(body) = &body else { return };
            self.read(body, ReadMode::AsItCame, recorder);
            if let Some(memo) = &mut recorder.memo {
                memo.untouched();
                memo.imagine(self.rules, now);
            }
            self.recognise(recorder);
            self.forecast_fork(recorder);
            recorder.sent(now);
            self.note_missed_hold(recorder);
        };
        let (answer, ()) = tokio::join!(self.upstream.send(request), reading);
        answer
    }

    /// Names the sender and collects the body of a Messages call; everything else streams through unread.
    async fn prepare(
        &self,
        request: Request<Incoming>,
        mode: Mode,
        facts: &mut Facts,
    ) -> Result<Outgoing, Fault> {
        let (parts, body) = request.into_parts();
        let limits = &self.config.limits;
        let sender = identify::sender(&parts.headers, self.tenant_rule(), &self.config.identity.clients);
        let observed = match mode {
            _ if parts.headers.contains_key(CONTENT_ENCODING) => Some(Reason::ContentEncoding),
            _ if identify::is_signed(&parts.headers) => Some(Reason::Signed),
            _ if sender.tenant.is_none() => Some(Reason::NoCredential),
            _ if self.config.identity.oauth == OAuth::Observe && identify::is_oauth(&parts.headers) => {
                Some(Reason::OAuth)
            }
            Mode::Observe => Some(Reason::Observe),
            Mode::Align | Mode::Fork => None,
        };
        facts.sender = Some(sender);
        facts.claims = Claims::of(&parts.headers);
        facts.betas = identify::betas(&parts.headers).collect::<Vec<_>>().join(",");
        if facts.endpoint != Endpoint::Messages {
            facts.model = facts.endpoint.model(parts.uri.path());
            let body = SentBody::streamed(body, limits.stall);
            return Ok(Outgoing { request: Request::from_parts(parts, body), body: None, permit: None });
        }
        facts.plan = observed.map_or(Plan::Aligned(Why::Mode), Plan::Passthrough);
        match collect::collect(body, &parts.headers, limits, &self.held).await? {
            Collected::Whole(body, permit) => Ok(Outgoing {
                request: Request::from_parts(parts, SentBody::whole(body.clone())),
                body: Some(body),
                permit: Some(permit),
            }),
            Collected::Spilled(body, reason, permit) => {
                facts.plan = Plan::Passthrough(reason);
                Ok(Outgoing { request: Request::from_parts(parts, body), body: None, permit })
            }
        }
    }

    /// Reads a Messages body. A bug in here must not cost the client its answer.
    fn read(&self, body: &Bytes, way: ReadMode, recorder: &mut Recorder) {
        let started = Instant::now();
        let facts = &mut recorder.facts;
        facts.received_bytes = Some(body.len());
        if facts.plan != Plan::Passthrough(Reason::ContentEncoding) {
            let read = AssertUnwindSafe(|| self.recall(body, way, facts));
            match std::panic::catch_unwind(read) {
                Ok(Ok(memo)) => recorder.memo = memo,
                Ok(Err(reason)) => facts.plan = Plan::Passthrough(reason),
                Err(_) => facts.plan = Plan::Passthrough(Reason::Internal),
            }
        }
        // What was not read is named by its bytes.
        facts.received.get_or_insert_with(|| BodyDigest::of(body));
        facts.sent = facts.received;
        facts.read_time = started.elapsed();
    }

    /// Reads a body by what is known of its tenant; nothing is to be remembered of nobody.
    fn recall(&self, body: &Bytes, way: ReadMode, facts: &mut Facts) -> Result<Option<Memo>, Reason> {
        self.panics.at(Step::Read);
        let (tenant_id, hint) = facts.of_whom();
        let tenant = tenant_id.and_then(|id| self.store.tenant(&id));
        let view = View { id: tenant_id.unwrap_or(TenantId::NOBODY), tenant: tenant.as_deref(), hint };
        let attribution = self.rules.attribution;
        let betas = std::iter::once(facts.betas.as_str());
        let arrival = view.read(body, attribution, way, betas).map_err(|_| Reason::NotJson)?;
        facts.learn(arrival.received.body(), arrival.received.anatomy());
        facts.received = Some(arrival.name());
        let model = facts.model.clone().unwrap_or_default();
        let owner = |tenant| Owner {
            tenant,
            hint,
            facts: self.prices.facts(&model),
            max_hold_ms: self.max_hold_ms(),
            prices: Arc::clone(&self.prices),
            reports_volatile: self.config.canonical.volatile == config::Volatile::Report,
            model,
        };
        Ok(tenant_id.map(|tenant| Memo::new(&self.store, owner(tenant), arrival, self.clock.now())))
    }

    /// Returns the pieces to send instead of the body, if anything else is sent.
    fn align(&self, body: &Bytes, recorder: &mut Recorder) -> Option<Vec<Bytes>> {
        let started = Instant::now();
        let Recorder { facts, memo, .. } = recorder;
        let memo = memo.as_mut()?;
        if memo.arrival.similar_conversation().is_some_and(|conversation| conversation.is_stood_down()) {
            facts.plan = Plan::Passthrough(Reason::Refused);
            return None;
        }
        let plan = || {
            self.panics.at(Step::Align);
            memo.plan(self.rules, self.clock.now())
        };
        let planned = std::panic::catch_unwind(AssertUnwindSafe(plan));
        let aligned = match planned.unwrap_or(Err(Reason::Internal)) {
            Ok(aligned) => aligned,
            Err(reason) => {
                facts.plan = Plan::Passthrough(reason);
                return None;
            }
        };
        facts.planned(&aligned.plan);
        let pieces = aligned.body.pieces.clone();
        let untouched = matches!(&pieces[..], [piece] if piece.as_ptr() == body.as_ptr() || piece == body);
        memo.aligned(aligned);
        if let (false, Some(trace)) = (untouched, &memo.trace) {
            facts.changed(trace.reading(), &pieces);
        }
        facts.align_time = started.elapsed();
        (!untouched).then_some(pieces)
    }

    /// Whose child the request is, or whose parent.
    fn recognise(&self, recorder: &mut Recorder) {
        let Recorder { facts, memo, family, .. } = recorder;
        let (Some(memo), Some(sender)) = (memo.as_ref(), &facts.sender) else { return };
        let Some(trace) = &memo.trace else { return };
        let who = facts.claims.who(&trace.received, sender);
        let (now, snapshots) = (self.clock.now(), self.config.fork.policy.snapshots);
        let meet = || match memo.tenant() {
            Some(tenant) => {
                Family::recognise(&tenant, &trace.forwarded(), who, &facts.claims, snapshots, now)
            }
            None => Family::none(who, snapshots),
        };
        let mut met =
            std::panic::catch_unwind(AssertUnwindSafe(meet)).unwrap_or_else(|_| Family::none(who, snapshots));
        facts.role = met.role;
        met.before = memo.arrival.predecessor().and_then(|last| last.answer()?.message_id.clone());
        *family = Some(met);
    }

    /// Waits, if another request is writing what this one would write too.
    async fn hold(&self, recorder: &mut Recorder, deadline: Moment) {
        if self.config.gate.scope == GateScope::Children && recorder.facts.role != Role::Child {
            return;
        }
        let Some(memo) = &recorder.memo else { return };
        let Some(tenant) = memo.tenant() else { return };
        let Some(prediction) = memo.predict(&tenant, self.clock.now()) else { return };
        let arrival = hold::arrival(memo, &tenant, &prediction, recorder.facts.stream, deadline);
        let Some(most) = arrival.writes.iter().map(|write| write.tokens).max() else { return };
        if most < u64::MAX && tenant.learned().is_slow(memo.model(), most) {
            recorder.facts.hold = Some(HeldBack::TOO_SLOW);
            return;
        }
        let tokens = hold::underway_tokens(memo, &tenant, &prediction);
        recorder.waits = true;
        recorder.facts.waits_since.get_or_insert_with(Instant::now);
        let pass = self.gate.enter(arrival).await;
        recorder.waits = false;
        let before = recorder.facts.hold.map_or(Duration::ZERO, |held| held.time);
        let held = HeldBack::of(&pass, tokens);
        recorder.facts.hold = Some(HeldBack { time: held.time + before, ..held });
        recorder.pass = Some(pass);
    }

    /// Notes how many tokens holding this request back would have saved.
    fn note_missed_hold(&self, recorder: &mut Recorder) {
        if recorder.facts.role != Role::Child {
            return;
        }
        let Some(memo) = &recorder.memo else { return };
        let (Some(tenant), Some(prediction)) = (memo.tenant(), memo.prediction()) else { return };
        let tokens = hold::underway_tokens(memo, &tenant, prediction);
        recorder.facts.missed_tokens =
            Some(tokens).filter(|tokens| *tokens >= self.config.gate.min_tokens as u64);
    }

    fn modes(&self, headers: &HeaderMap) -> Modes {
        let asked = headers.get(&MODE).and_then(|value| value.to_str().ok());
        let asked = asked.and_then(Mode::named);
        Modes { asked, in_force: asked.unwrap_or(Mode::Fork).min(self.config.server.mode) }
    }

    fn max_hold_ms(&self) -> u64 {
        clock::millis(self.config.gate.max_hold)
    }

    fn tenant_rule(&self) -> TenantRule<'_> {
        let identity = &self.config.identity;
        TenantRule { pepper: identity.pepper.reveal(), headers: &identity.tenant_headers }
    }
}
