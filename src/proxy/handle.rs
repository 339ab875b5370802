//! The path of a request, phase by phase.
//!
//! ```text
//! caller ─ collect ─┬─ read ─ plan: prepare, proceed, wait ─ send ─┬─ relay ─ settled, reported
//!                   ├─ observed: sent as it came, read meanwhile ──┤
//!                   ├─ count: of a forked child on its prefix ─────┤
//!                   └─ not a Messages call: unread ────────────────┘
//! ```

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt;
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response};
use http_body::Body;
use hyper::body::Incoming;

use super::account::Payer;
use super::body::CallBody;
use super::caller::{Caller, Modes};
use super::collect::{self, Collected};
use super::error::Fault;
use super::exchange::Exchange;
use super::flight::InFlight;
use super::forward::{self, SentBody, yield_once};
use super::held::goes_on;
use super::large;
use super::observe::AnswerBody;
use super::read::Read;
use super::record::Facts;
use super::stall::Upload;
use super::{Proxy, headers, observe, slow_reader};
use crate::engine::decide;
use crate::engine::prepare::Treatment;
use crate::engine::tenant::{ReadMode, TenantAccess, TenantState, bound_child};
use crate::engine::words::{Endpoint, Moment, Plan, Reason, Role, TenantId, Why};

/// The treatment of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Route {
    /// It streams through.
    Unread(Reason),
    /// It may count the tokens of a child that has a prefix.
    Count,
    /// It goes out as it came, and is read meanwhile.
    Observed(Reason),
    Planned,
}

/// A request that has come, as far as it is collected.
enum Arrived {
    Unread(Request<SentBody>),
    Call(MessagesCall),
}

/// A call with its whole body.
pub(super) struct MessagesCall {
    pub tenant: TenantId,
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
        exchange.caller = Caller::of(request.headers(), &self.config);
        let route = self.route(request.method(), exchange);
        let upload = self.take_place(route, !request.body().is_end_stream(), exchange).await?;
        exchange.facts.plan = route.plan();
        let mut call = match self.collect(request, upload, route, exchange).await? {
            Arrived::Unread(request) => return self.unread(request, exchange).await,
            Arrived::Call(call) => call,
        };
        let route = self.with_prefix(route, &mut call, exchange).await;
        exchange.facts.plan = route.plan();
        let spelt = ReadMode::Spelt(self.policy.align.order);
        match route {
            Route::Count => self.count(call, exchange).await,
            Route::Unread(reason) | Route::Observed(reason) => self.observed(call, reason, exchange).await,
            Route::Planned => match self.read(&mut call, spelt, exchange).await {
                Ok(read) => {
                    let planned = self.plan(read, call.deadline, exchange).await?;
                    self.send(call, planned, exchange).await
                }
                Err(reason) => self.unplanned(call, reason, exchange).await,
            },
        }
    }

    /// Returns how a request is treated, as far as its headers tell.
    fn route(&self, method: &Method, exchange: &Exchange) -> Route {
        let (endpoint, caller) = (exchange.facts.endpoint, &exchange.caller);
        match caller.observed {
            _ if self.may_count_child(method, endpoint, caller) => Route::Count,
            _ if !endpoint.is_planned() => Route::Unread(Reason::Endpoint),
            // Whoever has no credential will get no answer that is worth anything: nothing is kept in memory for it.
            Some(reason) if caller.sender.tenant.is_none() => Route::Unread(reason),
            Some(reason) => Route::Observed(reason),
            None => Route::Planned,
        }
    }

    /// Gives a request its place among the exchanges, and its upload if there is one. A tenant whose request is read is
    /// met before anything is charged: one that only the store knows is no stranger.
    async fn take_place(
        &self,
        route: Route,
        has_body: bool,
        exchange: &mut Exchange,
    ) -> Result<Upload, Fault> {
        let is_read = !matches!(route, Route::Unread(_)) && self.store.is_durable();
        if is_read && let Some(tenant) = exchange.caller.sender.tenant {
            exchange.met = Some(self.store.meet(&tenant).await);
        }
        let payer = Payer::of(&exchange.caller.sender, &self.store);
        exchange.caller.payer = payer;
        let place = self.accounts.exchanges.take_one(payer, self.exchanges_max());
        let place = exchange.place.insert(place.ok_or(Fault::Connections)?);
        let upload = if has_body { place.upload() } else { None };
        Ok(Upload::new(self.config.limits.stall, upload))
    }

    /// Collects the body of a call that is read; everything else streams through.
    async fn collect(
        &self,
        request: Request<Incoming>,
        upload: Upload,
        route: Route,
        exchange: &mut Exchange,
    ) -> Result<Arrived, Fault> {
        let deadline = self.clock.now().after(self.policy.max_hold_ms);
        let (parts, body) = request.into_parts();
        let limits = &self.config.limits;
        let Exchange { caller, facts, .. } = exchange;
        let model = facts.endpoint.model(parts.uri.path());
        facts.model.clone_from(&model);
        let tenant = if let Route::Unread(_) = route { None } else { caller.sender.tenant };
        let Some(tenant) = tenant else {
            let body = SentBody::streamed(body, upload);
            return Ok(Arrived::Unread(Request::from_parts(parts, body)));
        };
        match collect::collect(body, &parts.headers, limits, (caller.payer, &self.accounts), upload).await? {
            Collected::Whole(body, permit) => {
                facts.received_bytes = Some(body.len());
                exchange.permit = Some(permit);
                let body = CallBody::new(body, caller.codings.clone(), model);
                Ok(Arrived::Call(MessagesCall { tenant, parts, body, deadline }))
            }
            Collected::Spilled(body, reason, permit) => {
                facts.plan = Plan::Passthrough(reason);
                exchange.permit = permit;
                Ok(Arrived::Unread(Request::from_parts(parts, body)))
            }
        }
    }

    /// Forwards a request that was not read.
    pub(super) async fn unread(
        &self,
        request: Request<SentBody>,
        exchange: &mut Exchange,
    ) -> Result<Answered, Fault> {
        // Nobody can tell if its parent is known.
        if exchange.needs_parent() {
            return Err(Fault::UnknownParent);
        }
        exchange.facts.sent_at = Some(Instant::now());
        Ok(Answered { answer: self.upstream.send(request).await?, flight: None })
    }

    /// Forwards the bytes as they came. They go out first: nothing in them decides anything, and the upstream takes far
    /// longer to answer than we take to read.
    async fn observed(
        &self,
        mut call: MessagesCall,
        reason: Reason,
        exchange: &mut Exchange,
    ) -> Result<Answered, Fault> {
        if exchange.needs_parent() {
            self.find_parent(&mut call, reason, exchange).await?;
        }
        exchange.facts.sent_at = Some(Instant::now());
        let sent = self.clock.now();
        let request = call.as_it_came();
        let reading = async {
            yield_once().await;
            let read = match self.read(&mut call, ReadMode::AsItCame, exchange).await {
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
            None => self.unknown(answer?, &call, exchange).await,
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
        if exchange.facts.family.role == Role::Child {
            let least = self.config.gate.min_tokens as u64;
            let flight = &departure.flight;
            let missed =
                |state: &mut TenantState| state.underway_tokens(&flight.request.model, flight.prediction());
            let missed = home.tenant.look(missed);
            exchange.facts.missed_tokens = Some(missed).filter(|missed| *missed >= least);
        }
        InFlight::new(home, departure.flight)
    }

    /// Returns how a call is treated of which more than its headers has come. A child that was put on a prefix before keeps
    /// it where the configuration only observes now, unless its client asks for less itself.
    async fn with_prefix(&self, route: Route, call: &mut MessagesCall, exchange: &mut Exchange) -> Route {
        let now = self.clock.now();
        let may_have_one = exchange.caller.modes.keeps_prefix() && self.may_have_prefix(now);
        if route != Route::Observed(Reason::Observe) || !may_have_one {
            return route;
        }
        let Ok(read) = self.read(call, ReadMode::AsItCame, exchange).await else { return route };
        let (tenant, arrival) = (&*read.home.tenant, &read.request.arrival);
        let bound = bound_child(tenant, &arrival.received, arrival.held_child(), &read.who, now);
        if bound.is_some_and(|(_, bound)| bound.is_forked()) { Route::Planned } else { route }
    }
}

impl Route {
    fn plan(self) -> Plan {
        match self {
            Route::Unread(reason) | Route::Observed(reason) => Plan::Passthrough(reason),
            Route::Count => Plan::Passthrough(Reason::Endpoint),
            Route::Planned => Plan::Aligned(Why::Mode),
        }
    }
}

impl MessagesCall {
    /// The request, every byte as it came.
    pub fn as_it_came(&self) -> Request<SentBody> {
        Request::from_parts(self.parts.clone(), SentBody::whole(self.body.came().clone()))
    }
}
