//! Plans a request that was read: prepares it, decides, and waits until it may go.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use super::Proxy;
use super::clock::millis;
use super::error::Fault;
use super::exchange::Exchange;
use super::flight::{Home, InFlight};
use super::handle::MessagesCall;
use super::large;
use super::read::Read;
use super::wait::{Waiter, Waits};
use crate::engine::decide::{Circumstances, Next, proceed};
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

impl Proxy {
    /// Decides how a request goes out, once nothing is to be waited for. One that needs a parent which is not known does
    /// not go.
    pub(super) async fn plan(
        &self,
        read: Read,
        deadline: Moment,
        exchange: &mut Exchange,
    ) -> Result<Planned, Fault> {
        let Read { home, may_be_behind, mut request, who } = read;
        let (ticket, modes) = (self.store.ticket(), exchange.caller.modes);
        let mut waits = Waits::default();
        let (mut round, mut has_room) = (1, None);
        // The whole of it, also where only the end of it came.
        let (payer, bytes) = (exchange.caller.payer, large::read_weight(&request.arrival.received));
        let changed = Treatment::Changed;
        let prepare = || self.prepare(&request, who, changed, &home, exchange);
        let mut prepared = self.large.work(payer, bytes, prepare).await;
        let is_unknown = request.arrival.recall != Recall::Hit && prepared.relation.role() == Role::Plain;
        if may_be_behind && is_unknown && self.store.news(&home.tenant).await {
            let prepare = || self.prepare(&request, who, changed, &home, exchange);
            prepared = self.large.work(payer, bytes, prepare).await;
        }
        if prepared.relation.names_unknown_parent() && exchange.caller.claims.needs_parent() {
            return Err(Fault::UnknownParent);
        }
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
                    exchange.facts.departed(&departure);
                    exchange.facts.hold = departure.gate.as_ref().map(|pass| waits.held(ticket, pass));
                    if exchange.facts.hold.is_some_and(|held| held.ticket.is_some()) {
                        exchange.facts.waits_since.get_or_insert_with(Instant::now);
                    }
                    if departure.flight.is_forked() {
                        let until = now.after(millis(self.config.store.child_ttl));
                        self.prefixes_until.fetch_max(until.0, Relaxed);
                    }
                    let mut flight = InFlight::new(home, departure.flight);
                    if self.lease(&mut flight, deadline, exchange).await {
                        flight.sent_later();
                    }
                    return Ok(Planned { flight, outgoing: departure.outgoing });
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
                    has_room = Some(self.make_room(&home, bytes));
                }
                Next::PrepareAgain(again) => {
                    request = again;
                    (round, has_room) = (round + 1, None);
                    let prepare = || self.prepare(&request, who, changed, &home, exchange);
                    prepared = self.large.work(payer, bytes, prepare).await;
                }
            }
        }
    }

    /// Looks for the parent without which a request is not to go, before that goes out as it came.
    pub(super) async fn find_parent(
        &self,
        call: &mut MessagesCall,
        reason: Reason,
        exchange: &mut Exchange,
    ) -> Result<(), Fault> {
        let read = self.read(call, ReadMode::AsItCame, exchange).await;
        let Read { home, may_be_behind, request, who } = read.map_err(|_| Fault::UnknownParent)?;
        let (payer, bytes) = (exchange.caller.payer, large::read_weight(&request.arrival.received));
        for asks in [may_be_behind, false] {
            let prepare = || self.prepare(&request, who, Treatment::Observed(reason), &home, exchange);
            if !self.large.work(payer, bytes, prepare).await.relation.names_unknown_parent() {
                return Ok(());
            }
            if !(asks && self.store.news(&home.tenant).await) {
                break;
            }
        }
        Err(Fault::UnknownParent)
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
        exchange.facts.related(&prepared.relation);
        prepared
    }

    /// Makes room for the prefix of a child that is forked if there is any. A child keeps it for life: those that work are
    /// not pushed out by those that come.
    fn make_room(&self, home: &Home, bytes: usize) -> bool {
        home.tenant.look(|state| state.fan_outs.make_room(bytes)) && self.store.make_room(bytes)
    }
}
