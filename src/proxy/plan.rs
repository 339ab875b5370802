//! Plans a request that was read: prepares it, decides, and waits until it may go.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use super::Proxy;
use super::account::Payer;
use super::clock::millis;
use super::error::Fault;
use super::exchange::Exchange;
use super::flight::{Home, InFlight};
use super::handle::MessagesCall;
use super::large;
use super::read::Read;
use super::record::FamilyFacts;
use super::wait::{Waiter, Waits};
use crate::engine::decide::{Circumstances, Departure, Next, proceed};
use crate::engine::family::fanout::Who;
use crate::engine::outgoing::Outgoing;
use crate::engine::prepare::{Preparation, Prepared, Treatment};
use crate::engine::tenant::{ReadMode, ReadRequest, TenantAccess};
use crate::engine::words::{Moment, Reason, Recall, Role, Step};

/// How often a request is prepared: what is known may change while it waits.
const ROUNDS_MAX: usize = 4;

/// A request that goes out now.
pub(super) struct Planned {
    pub flight: InFlight,
    pub outgoing: Outgoing,
}

/// A request that was read, with all that it is prepared by, round after round.
struct Preparing<'a> {
    proxy: &'a Proxy,
    home: Home,
    who: Who,
    treatment: Treatment,
    payer: Payer,
    /// The whole of it, also where only the end of it came.
    bytes: usize,
    /// True if it may be worth asking the store for news.
    may_be_behind: bool,
}

impl Preparing<'_> {
    async fn prepare(&self, request: &ReadRequest, exchange: &mut Exchange) -> Box<Prepared> {
        let prepare = || self.proxy.prepare(request, self.who, self.treatment, &self.home, exchange);
        self.proxy.large.work(self.payer, self.bytes, prepare).await
    }

    /// Prepares a request, and once more if the store has news of what it did not find.
    async fn prepare_first(
        &self,
        request: &ReadRequest,
        exchange: &mut Exchange,
        misses: impl FnOnce(&Prepared) -> bool,
    ) -> Box<Prepared> {
        let prepared = self.prepare(request, exchange).await;
        if self.may_be_behind && misses(&prepared) && self.proxy.store.news(&self.home.tenant).await {
            return self.prepare(request, exchange).await;
        }
        prepared
    }
}

impl Proxy {
    /// Decides how a request goes out, once nothing is to be waited for. One that needs a parent which is not known does
    /// not go.
    pub(super) async fn plan(
        &self,
        read: Read,
        deadline: Moment,
        exchange: &mut Exchange,
    ) -> Result<Planned, Fault> {
        let (ticket, modes) = (self.store.ticket(), exchange.caller.modes);
        let (preparing, mut request) = self.preparing(read, Treatment::Changed, exchange);
        let is_new = request.arrival.recall != Recall::Hit;
        let misses = |prepared: &Prepared| is_new && prepared.relation.role() == Role::Plain;
        let mut prepared = preparing.prepare_first(&request, exchange, misses).await;
        if prepared.relation.names_unknown_parent() && exchange.caller.claims.needs_parent() {
            return Err(Fault::UnknownParent);
        }
        let home = &preparing.home;
        let (mut waits, mut round, mut has_room) = (Waits::default(), 1, None);
        loop {
            let facts = Circumstances {
                ticket,
                mode: modes.in_force,
                keeps_prefix: modes.keeps_prefix(),
                deadline,
                has_room,
                is_last_round: round >= ROUNDS_MAX,
            };
            let now = self.clock.now();
            let next = |state: &mut _| proceed(request, prepared, state, &home.policy, &facts, now);
            match home.tenant.look(next) {
                Next::Send(departure) => {
                    exchange.facts.hold = departure.gate.as_ref().map(|pass| waits.held(ticket, pass));
                    return Ok(self.let_go(departure, preparing.home, deadline, exchange).await);
                }
                Next::Wait(again, same, wait) => {
                    (request, prepared) = (again, same);
                    let waiter =
                        Waiter { tenant: &home.tenant, store: &self.store, clock: &self.clock, ticket };
                    waits.wait(wait, waiter, exchange).await;
                    has_room = None;
                }
                Next::NeedsRoom(again, same, bytes) => {
                    (request, prepared) = (again, same);
                    has_room = Some(self.make_room(home, bytes));
                }
                Next::PrepareAgain(again) => {
                    request = again;
                    (round, has_room) = (round + 1, None);
                    prepared = preparing.prepare(&request, exchange).await;
                }
            }
        }
    }

    fn preparing(
        &self,
        read: Read,
        treatment: Treatment,
        exchange: &Exchange,
    ) -> (Preparing<'_>, ReadRequest) {
        let Read { home, may_be_behind, request, who } = read;
        let bytes = large::read_weight(&request.arrival.received);
        let payer = exchange.caller.payer;
        (Preparing { proxy: self, home, who, treatment, payer, bytes, may_be_behind }, request)
    }

    /// Lets a request go for which a departure was decided, once no other replica writes what it would write.
    async fn let_go(
        &self,
        departure: Box<Departure>,
        home: Home,
        deadline: Moment,
        exchange: &mut Exchange,
    ) -> Planned {
        exchange.facts.departed(&departure);
        if exchange.facts.hold.is_some_and(|held| held.ticket.is_some()) {
            exchange.facts.waits_since.get_or_insert_with(Instant::now);
        }
        if departure.flight.is_forked() {
            let until = self.clock.now().after(millis(self.config.store.child_ttl));
            self.prefixes_until.fetch_max(until.0, Relaxed);
        }
        let mut flight = InFlight::new(home, departure.flight);
        if self.lease(&mut flight, deadline, exchange).await {
            flight.sent_later();
        }
        Planned { flight, outgoing: departure.outgoing }
    }

    /// Looks for the parent without which a request is not to go, before that goes out as it came.
    pub(super) async fn find_parent(
        &self,
        call: &mut MessagesCall,
        reason: Reason,
        exchange: &mut Exchange,
    ) -> Result<(), Fault> {
        let read = self.read(call, ReadMode::AsItCame, exchange).await;
        let read = read.map_err(|_| Fault::UnknownParent)?;
        let (preparing, request) = self.preparing(read, Treatment::Observed(reason), exchange);
        let misses = |prepared: &Prepared| prepared.relation.names_unknown_parent();
        let prepared = preparing.prepare_first(&request, exchange, misses).await;
        if misses(&prepared) { Err(Fault::UnknownParent) } else { Ok(()) }
    }

    /// Prepares a request, and measures the steps of that.
    pub(super) fn prepare(
        &self,
        request: &ReadRequest,
        who: Who,
        treatment: Treatment,
        home: &Home,
        exchange: &mut Exchange,
    ) -> Box<Prepared> {
        let (started, fork_started) = (Instant::now(), Cell::new(None));
        let step = |step: Step| {
            if step == Step::Fork {
                fork_started.set(Some(Instant::now()));
            }
            self.panics.at(step);
        };
        let preparation = Preparation {
            request,
            who,
            claims: &exchange.caller.claims,
            tenant: &*home.tenant,
            treatment,
            policy: &home.policy,
            step: &step,
            now: self.clock.now(),
        };
        let prepared = Box::new(preparation.prepare());
        let ended = Instant::now();
        let fork_started = fork_started.get().unwrap_or(ended);
        exchange.facts.overhead.align += fork_started - started;
        exchange.facts.overhead.fork += ended - fork_started;
        exchange.facts.family = FamilyFacts::of(&prepared.relation);
        prepared
    }

    /// Makes room for the prefix of a child that is forked if there is any. A child keeps it for life: those that work are
    /// not pushed out by those that come.
    fn make_room(&self, home: &Home, bytes: usize) -> bool {
        home.tenant.look(|state| state.fan_outs.make_room(bytes)) && self.store.make_room(bytes)
    }
}
