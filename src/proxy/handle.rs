//! The path of a request, phase by phase.
//!
//! ```text
//! collect ─┬─ read ─ plan: prepare, proceed, wait ─ send ─┬─ relay ─ settled, reported
//!          ├─ observed: sent as it came, read meanwhile ──┤
//!          ├─ count: of a forked child on its prefix ─────┤
//!          └─ not a Messages call: unread ────────────────┘
//! ```

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use bytes::Bytes;
use futures_util::FutureExt;
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use hyper::body::Incoming;

use super::body::CallBody;
use super::caller::{Caller, Modes};
use super::collect::{self, Collected};
use super::error::Fault;
use super::exchange::Exchange;
use super::flight::{Home, InFlight};
use super::forward::{self, SentBody, yield_once};
use super::held::goes_on;
use super::large;
use super::observe::AnswerBody;
use super::plan::Read;
use super::record::Facts;
use super::{Proxy, headers, observe, slow_reader};
use crate::engine::decide;
use crate::engine::prepare::Treatment;
use crate::engine::request::recall::Reading;
use crate::engine::tenant::{ReadMode, ReadRequest, TenantAccess, TenantState, View, bound_child};
use crate::engine::words::{BodyDigest, Endpoint, Moment, Plan, Reason, Recall, Role, Step, TenantId, Why};
use crate::store::Met;

/// The time between two notes about forgotten conversations.
const FORGOTTEN_NOTE_MS: u64 = 600_000;

/// A request whose headers were read.
enum Arrived {
    /// It streams through unread.
    Unread(Request<SentBody>),
    Call(MessagesCall),
}

/// A Messages call with its whole body.
pub(super) struct MessagesCall {
    pub parts: Parts,
    pub body: CallBody,
    /// The end of all its waits.
    pub deadline: Moment,
}

/// The upstream's answer, and the request that it belongs to, if that was read and is anybody's.
pub(super) struct Answered {
    pub answer: forward::Answer,
    pub flight: Option<InFlight>,
}

impl Proxy {
    /// One exchange, whatever happens: a fault of ours becomes an answer, never a broken connection.
    pub async fn handle(self: Arc<Self>, mut request: Request<Incoming>) -> Response<AnswerBody> {
        let endpoint = Endpoint::of(request.method(), request.uri().path());
        let doubled = self.upstream.doubled(request.uri().path());
        let is_of_api_path = request.uri().path().ends_with("/v1/messages");
        let mut exchange = self.exchange(endpoint, request.headers_mut());
        // Boxed, since hyper moves the future of an exchange.
        let answered = Box::pin(self.answered(request, &mut exchange));
        let answered = AssertUnwindSafe(answered).catch_unwind().await;
        let response = match answered.unwrap_or(Err(Fault::Internal)) {
            Ok(mut answered) => {
                if endpoint.is_planned() {
                    self.note_not_found(&mut answered.answer, doubled, is_of_api_path).await;
                }
                let (head, tee) = observe::watched(answered, exchange, &self);
                observe::relay(head, tee, &self).await
            }
            Err(fault) => fault.answer(exchange, &self.config),
        };
        slow_reader::handed_on();
        response
    }

    fn exchange(&self, endpoint: Endpoint, headers: &mut HeaderMap) -> Exchange {
        let caller = Caller::unnamed(Modes::of(headers, &self.config));
        let facts = Facts::new(endpoint, self.generation.number);
        let sinks = self.sinks.begin(headers);
        Exchange::new(self.metrics.clone(), self.clock.clone(), sinks, caller, facts)
    }

    /// The phases of a request, up to the head of its answer.
    async fn answered(&self, request: Request<Incoming>, exchange: &mut Exchange) -> Result<Answered, Fault> {
        headers::check(&request)?;
        exchange.caller = Caller::of(request.headers(), &self.config, &self.store);
        let mut call = match self.collect(request, exchange).await? {
            // Nobody can tell if its parent is known.
            Arrived::Unread(_) if exchange.needs_parent() => return Err(Fault::UnknownParent),
            Arrived::Unread(request) => {
                exchange.facts.sent_at = Some(Instant::now());
                return Ok(Answered { answer: self.upstream.send(request).await?, flight: None });
            }
            Arrived::Call(call) if exchange.facts.endpoint == Endpoint::CountTokens => {
                return self.count(call, exchange).await;
            }
            Arrived::Call(call) => call,
        };
        if let Plan::Passthrough(reason) = exchange.facts.plan {
            if !(reason == Reason::Observe && self.has_prefix(&mut call, exchange).await) {
                if exchange.needs_parent() {
                    self.find_parent(&mut call, reason, exchange).await?;
                }
                return self.observed(call, reason, exchange).await;
            }
            exchange.facts.plan = Plan::Aligned(Why::Mode);
        }
        let mode = ReadMode::Spelt(self.policy.align.order);
        match self.read(&mut call.body, mode, exchange).await {
            Ok(read) => {
                let planned = self.plan(read, call.deadline, exchange).await?;
                self.send(call, planned, exchange).await
            }
            Err(reason) => {
                exchange.facts.plan = Plan::Passthrough(reason);
                self.unread(call, reason, exchange).await
            }
        }
    }

    /// Collects the body of a Messages call, and of a count that may be of a forked child;
    /// everything else streams through unread.
    async fn collect(&self, request: Request<Incoming>, exchange: &mut Exchange) -> Result<Arrived, Fault> {
        let deadline = self.clock.now().after(self.policy.max_hold_ms);
        let (parts, body) = request.into_parts();
        let limits = &self.config.limits;
        let Exchange { caller, facts, .. } = exchange;
        let place = self.accounts.exchanges.take_one(caller.payer, self.exchanges_max());
        exchange.place = Some(place.ok_or(Fault::Connections)?);
        let model = facts.endpoint.model(parts.uri.path());
        facts.model.clone_from(&model);
        let is_message = facts.endpoint.is_planned();
        if !is_message && !self.may_count_child(&parts, caller) {
            let body = SentBody::streamed(body, limits.stall);
            return Ok(Arrived::Unread(Request::from_parts(parts, body)));
        }
        if is_message {
            facts.plan = caller.observed.map_or(Plan::Aligned(Why::Mode), Plan::Passthrough);
        }
        if caller.sender.tenant.is_none() {
            // Whoever has no credential will get no answer that is worth anything: nothing is kept in memory for it.
            let body = SentBody::streamed(body, limits.stall);
            return Ok(Arrived::Unread(Request::from_parts(parts, body)));
        }
        match collect::collect(body, &parts.headers, limits, (caller.payer, &self.accounts)).await? {
            Collected::Whole(body, permit) => {
                facts.received_bytes = Some(body.len());
                exchange.permit = Some(permit);
                let body = CallBody::new(body, caller.codings.clone(), model);
                Ok(Arrived::Call(MessagesCall { parts, body, deadline }))
            }
            Collected::Spilled(body, reason, permit) => {
                facts.plan = Plan::Passthrough(reason);
                exchange.permit = permit;
                Ok(Arrived::Unread(Request::from_parts(parts, body)))
            }
        }
    }

    /// Makes a body readable. One that cannot be is named by the bytes that came.
    pub(super) async fn open(&self, body: &mut CallBody, exchange: &mut Exchange) -> Result<(), Reason> {
        let Some(permit) = &mut exchange.permit else { return Err(Reason::Internal) };
        let opened = body.open(permit, &self.config.limits, &self.large).await;
        if opened.is_err() {
            let (payer, came) = (exchange.caller.payer, body.came());
            let digest = self.large.work(payer, came.len(), || BodyDigest::of(came)).await;
            let facts = &mut exchange.facts;
            (facts.received, facts.sent) = (Some(digest), Some(digest));
        }
        opened
    }

    /// Opens a Messages body, and reads it by what is known of its tenant.
    pub(super) async fn read(
        &self,
        body: &mut CallBody,
        mode: ReadMode,
        exchange: &mut Exchange,
    ) -> Result<Read, Reason> {
        self.open(body, exchange).await?;
        let (body, payer) = (body.read(), exchange.caller.payer);
        let tenant = exchange.caller.sender.tenant;
        // Nothing is to be remembered of nobody.
        let met = self.store.meet(&tenant.unwrap_or(TenantId::NOBODY)).await;
        met.tenant.paid_by(payer.tenant);
        let weight = self.bytes_to_read(&met, body, exchange).await?.max(large::weight(body));
        let read = self.large.work(payer, weight, || self.read_by(&met, body, mode, exchange)).await;
        let is_unknown = matches!(read, Err(Reason::UnknownThread));
        if is_unknown && met.was_known && self.store.news(&met.tenant).await {
            let weight = self.bytes_to_read(&met, body, exchange).await?.max(large::weight(body));
            return self.large.work(payer, weight, || self.read_by(&met, body, mode, exchange)).await;
        }
        read
    }

    /// Reads a body. A bug in here must not cost the client its answer.
    fn read_by(
        &self,
        met: &Met,
        body: &Bytes,
        mode: ReadMode,
        exchange: &mut Exchange,
    ) -> Result<Read, Reason> {
        let started = Instant::now();
        let read = AssertUnwindSafe(|| self.recall(met, body, mode, exchange));
        let read = std::panic::catch_unwind(read).unwrap_or_else(|_| {
            self.metrics.panicked(Step::Read);
            Err(Reason::Internal)
        });
        let read = read.and_then(|read| {
            let Some(permit) = &mut exchange.permit else { return Ok(read) };
            let reading = Reading::memory_bytes(&read.request.arrival.received);
            permit.charge_reading(reading, &self.config.limits).map(|()| read)
        });
        let facts = &mut exchange.facts;
        // What was not read is named by its bytes.
        facts.received.get_or_insert_with(|| BodyDigest::of(body));
        facts.sent = facts.received;
        facts.overhead.read += started.elapsed();
        if read.is_ok() && exchange.draft.is_some() {
            exchange.body = Some(body.clone());
        }
        read
    }

    fn recall(
        &self,
        met: &Met,
        body: &Bytes,
        mode: ReadMode,
        exchange: &mut Exchange,
    ) -> Result<Read, Reason> {
        self.panics.at(Step::Read);
        let hint = exchange.caller.hint();
        let tenant = Arc::clone(&met.tenant);
        let view = View { tenant: &*tenant, hint };
        let betas = std::iter::once(exchange.caller.betas.as_str());
        let policy = self.policy_of(exchange.facts.endpoint);
        let arrival = view.read(body, policy.align.attribution, mode, betas)?;
        exchange.learn(arrival.received.body(), arrival.received.anatomy());
        let Exchange { caller, facts, .. } = exchange;
        facts.received = Some(arrival.name());
        if caller.sender.tenant.is_none() {
            return Err(Reason::NoCredential);
        }
        facts.recall = Some((self.store.name(), arrival.recall));
        if arrival.recall == Recall::Forgotten {
            self.note_forgotten();
        }
        let who = caller.claims.who(&arrival.received, &caller.sender);
        let request = ReadRequest {
            arrival: Box::new(arrival),
            hint,
            model: facts.model.clone().unwrap_or_default(),
            betas: caller.betas.clone(),
            version: caller.version.clone(),
            streams: facts.stream,
            came_at: self.clock.now(),
        };
        let home = Home { tenant, policy: Arc::clone(policy), clock: Arc::clone(&self.clock) };
        Ok(Read { home, may_be_behind: met.was_known, request, who })
    }

    /// Says, once in a while, that conversations are forgotten before they go on.
    fn note_forgotten(&self) {
        let (now, quiet) = (self.clock.now(), self.quiet_until.load(Relaxed));
        let is_due = now.0 >= quiet;
        let until = now.after(FORGOTTEN_NOTE_MS).0;
        if is_due && self.quiet_until.compare_exchange(quiet, until, Relaxed, Relaxed).is_ok() {
            tracing::warn!(
                key = "store.recent_bytes",
                "conversations are forgotten before they go on, and their cache breaks go unnoticed: more room is needed"
            );
        }
    }

    /// Forwards the bytes as they came. They go out first: nothing in them decides anything, and the upstream takes far
    /// longer to answer than we take to read.
    async fn observed(
        &self,
        call: MessagesCall,
        reason: Reason,
        exchange: &mut Exchange,
    ) -> Result<Answered, Fault> {
        exchange.facts.sent_at = Some(Instant::now());
        let sent = self.clock.now();
        let MessagesCall { parts, mut body, .. } = call;
        let request = Request::from_parts(parts, SentBody::whole(body.came().clone()));
        let reading = async {
            yield_once().await;
            let read = match self.read(&mut body, ReadMode::AsItCame, exchange).await {
                Ok(read) => read,
                Err(reason) => {
                    exchange.facts.plan = Plan::Passthrough(reason);
                    return None;
                }
            };
            let (payer, bytes) = (exchange.caller.payer, large::read_weight(&read.request.arrival.received));
            let watch = || self.watch(read, reason, sent, exchange);
            Some(self.large.work(payer, bytes, watch).await)
        };
        let (answer, flight) = tokio::join!(self.upstream.send(request), reading);
        match flight {
            None => self.unknown(answer?, body.read(), exchange).await,
            Some(flight) if goes_on(&flight) => self.continued(answer?, flight).await,
            Some(flight) => Ok(Answered { answer: answer?, flight: Some(flight) }),
        }
    }

    /// Enters a request that goes out as it came into the state of its tenant, and works out what would have been done.
    fn watch(&self, read: Read, reason: Reason, sent: Moment, exchange: &mut Exchange) -> InFlight {
        let Read { home, request, who, .. } = read;
        let prepared = self.prepare(&request, who, Treatment::Observed(reason), &home, exchange);
        let ticket = self.store.ticket();
        let departure =
            home.tenant.look(|state| decide::observe(request, prepared, state, &home.policy, ticket, sent));
        exchange.facts.departed(&departure);
        exchange.show();
        if exchange.facts.role == Role::Child {
            let least = self.config.gate.min_tokens as u64;
            let flight = &departure.flight;
            let missed =
                |state: &mut TenantState| state.underway_tokens(&flight.request.model, flight.prediction());
            let missed = home.tenant.look(missed);
            exchange.facts.missed_tokens = Some(missed).filter(|missed| *missed >= least);
        }
        InFlight::new(home, departure.flight)
    }

    /// Forwards the bytes of a request that could not be planned.
    pub(super) async fn unplanned(
        &self,
        call: MessagesCall,
        exchange: &mut Exchange,
    ) -> Result<Answered, Fault> {
        exchange.facts.sent_at = Some(Instant::now());
        let request = Request::from_parts(call.parts, SentBody::whole(call.body.came().clone()));
        let answer = self.upstream.send(request).await?;
        Ok(Answered { answer, flight: None })
    }

    /// Returns true if a request that the configuration only observes now is of a child that was put on a prefix
    /// before: that child keeps it, unless its client asks for less itself.
    async fn has_prefix(&self, call: &mut MessagesCall, exchange: &mut Exchange) -> bool {
        let now = self.clock.now();
        if !exchange.caller.modes.keeps_prefix() || !self.may_have_prefix(now) {
            return false;
        }
        let read = self.read(&mut call.body, ReadMode::AsItCame, exchange).await;
        read.is_ok_and(|Read { home, request, who, .. }| {
            let arrival = &request.arrival;
            let bound = bound_child(&*home.tenant, &arrival.received, arrival.held_child(), &who, now);
            bound.is_some_and(|(_, bound)| bound.is_forked())
        })
    }
}
