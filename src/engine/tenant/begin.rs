//! A request goes out.

use std::sync::Arc;

use super::TenantState;
use super::children::{BoundChild, Fate};
use super::flight::{Flight, FlightPlan, ReadRequest};
use super::relation::{FirstSeen, Kind, kind_of, tool_of};
use crate::engine::family::fanout::{Bindable, Binding, Child, Who};
use crate::engine::fork::Forecast;
use crate::engine::fork::experiment::ChildKind;
use crate::engine::words::{Moment, Plan, Ticket, Why};

impl TenantState {
    /// A request goes out as it was decided: enters it into the ledger of what is billed, and binds a child that is put
    /// on its parent's prefix, before its client can come again.
    pub fn begin(
        &mut self,
        mut request: ReadRequest,
        plan: FlightPlan,
        ticket: Ticket,
        now: Moment,
    ) -> Box<Flight> {
        self.newest = self.newest.max(ticket);
        self.unsaved.learned();
        let binding = self.begin_in_fan_out(&plan, request.came_at, now);
        let FlightPlan { trace, first, .. } = plan;
        let prediction = self.predict_as(&trace, Some(ticket), now);
        let before = first.as_ref().map(|first| &first.parents);
        let before = before.or_else(|| Some(&request.arrival.predecessor()?.trace.parameters));
        let trial = before.and_then(|before| self.trial(&trace, before, &prediction, now));
        let streams = request.streams;
        let billed = &mut self.worlds.billed;
        self.woken.extend(self.gate.sent(ticket, &prediction, streams, billed, now));
        if let Some(first) = first {
            request.model = first.model;
        }
        let drops_lost = request.arrival.drops_lost();
        let flight = Flight {
            request,
            plan: plan.plan,
            relation: plan.relation,
            own: plan.own,
            trace,
            conversation: plan.conversation,
            forecast: plan.forecast,
            drops_lost,
            sent_at: now,
            ticket,
            interns: plan.interns,
            pins: plan.pins,
            lesson: plan.lesson,
            would_be_as_it_came: plan.would_be_as_it_came,
            prediction,
            trial,
            as_sent: plan.as_sent,
            aligned: plan.aligned,
            binding,
        };
        self.count_start(&flight);
        Box::new(flight)
    }

    /// Notes what a request that goes out is to its fan-out: results come back, a call has its child, and a child is
    /// decided. Returns the binding of a child that is forked.
    fn begin_in_fan_out(&mut self, plan: &FlightPlan, came_at: Moment, now: Moment) -> Option<Binding> {
        let relation = &plan.relation;
        self.fan_outs.note_agent(&relation.who);
        self.fan_outs.returned(&relation.results);
        if let Some(FirstSeen { child, claim: Some(body), .. }) = relation.newcomer() {
            self.fan_outs.claim(child, &relation.who, *body);
        }
        let binding = match (&relation.kind, &plan.first) {
            (Kind::Bound(binding, _), _) => {
                self.fan_outs.rest(*binding, None);
                Some(*binding)
            }
            (Kind::Child(child), Some(first)) => {
                let fate = Fate::Forked(Arc::clone(&first.prefix), Arc::clone(&child.child.fork));
                let bound = BoundChild::new(child, fate, plan.forecast, came_at);
                Some(self.bind(child, relation.who, bound, now))
            }
            _ => None,
        };
        if let Kind::Child(child) = &relation.kind {
            if let Some(forecast) = plan.forecast {
                let kind = kind_of(&child.child, &plan.own);
                self.decide_fan_out(&child.child, kind, forecast, plan.first.is_some(), now);
            }
            if let Plan::Aligned(Why::Refused(why)) = plan.plan {
                let forecast = plan.forecast.as_ref();
                self.experiment.declined(tool_of(&child.child), Some(why), forecast, now);
            }
        }
        binding
    }

    /// Counts a conversation that begins, or goes on with nothing to read. Before it is answered: of many that begin at once,
    /// the last must know how many were marked before it.
    fn count_start(&mut self, flight: &Flight) {
        let (habits, request) = (&mut self.learned.habits, flight.trace.reading());
        if flight.starts() {
            habits.started(request, flight.sent_at);
        } else if flight.resumes() {
            habits.resumed(request, flight.sent_at);
        }
    }

    /// Takes back what was counted of a request that nothing came of.
    pub(super) fn uncount_start(&mut self, flight: &Flight) {
        let (habits, request) = (&mut self.learned.habits, flight.trace.reading());
        if flight.starts() {
            habits.withdrawn(request);
        } else if flight.resumes() {
            habits.resumed_in_vain(request);
        }
    }

    /// A child on its first turn goes out: what was decided for it holds for its siblings.
    fn decide_fan_out(
        &mut self,
        child: &Child,
        kind: ChildKind<'_>,
        forecast: Forecast,
        is_forked: bool,
        now: Moment,
    ) {
        if self.prefixes.decide(child, forecast, now) {
            self.experiment.started(kind, forecast.starts_warm, now);
        }
        if is_forked {
            self.experiment.forked(kind.tool, child.fork.id, now);
        }
    }

    /// Takes over a request that went out in another state of its tenant: nothing was known of that then, or it was
    /// forgotten since.
    pub fn adopt(&mut self, mut flight: Box<Flight>) -> Box<Flight> {
        // These name a child and a conversation there, and here perhaps others.
        flight.binding = None;
        flight.conversation.id = None;
        let (ticket, streams, at) = (flight.ticket, flight.request.streams, flight.sent_at);
        flight.prediction = self.predict(&flight.trace, at);
        self.gate.sent(ticket, &flight.prediction, streams, &mut self.worlds.billed, at);
        self.count_start(&flight);
        flight
    }

    /// Binds a child on its first turn.
    pub(super) fn bind(&mut self, first: &FirstSeen, who: Who, bound: BoundChild, now: Moment) -> Binding {
        let (bytes, point) = (bound.memory_bytes(), bound.point().cloned());
        self.fan_outs.bind(Bindable { tools: first.tools, who, value: bound, bytes, point }, now)
    }
}
