//! A request as it goes out, by the plan that was chosen for it.

use std::sync::Arc;

use bytes::Bytes;

use super::align;
use super::family::conversation::Trace;
use super::fork::{FirstTurn, Forecast};
use super::prepare::{ForkOption, Prepared};
use super::respell::canonical::{News, Pins};
use super::tenant::{FirstPrefix, Flight, FlightPlan, ReadRequest};
use super::words::{ForkNote, Plan, Reason};

/// The content of a request as it is sent.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// The body to send instead of the received one, if it is another.
    pub pieces: Option<Vec<Bytes>>,
    /// The betas of a forked child: its parent's and its own.
    pub betas: Option<String>,
    /// Changes made to a forked child, beside putting it on its parent's prefix.
    pub notes: Vec<ForkNote>,
    /// The bytes of a forked child that it shares with its siblings.
    pub shared_bytes: usize,
    pub markers_added: usize,
}

/// A request that was refused as it went out, to be sent once more as it came.
pub fn again(refused: &Flight, reason: Reason) -> (ReadRequest, FlightPlan) {
    let mut request = refused.request.clone();
    request.arrival.take_as_it_came();
    let plan = FlightPlan {
        plan: Plan::Passthrough(reason),
        relation: refused.relation.clone(),
        own: Arc::clone(&refused.own),
        trace: Arc::new(align::untouched(&request.arrival)),
        conversation: refused.conversation.clone(),
        interns: News::default(),
        pins: Pins::default(),
        as_sent: None,
        aligned: None,
        would_be_as_it_came: true,
        forecast: refused.forecast,
        first: None,
        lesson: None,
    };
    (request, plan)
}

impl Prepared {
    /// The request as it goes out by this plan, and the model that it goes to if it leaves that to its parent.
    pub(super) fn sent_trace(&self, plan: Plan) -> (&Trace, Option<&str>) {
        match (plan, &self.fork) {
            (Plan::Forked, ForkOption::Later(composed)) => (&composed.trace, None),
            (Plan::Forked, ForkOption::First { child, .. }) => match child.first() {
                Some(first) => (&first.composed.trace, Some(&first.model)),
                None => (&self.own.trace, None),
            },
            _ => (&self.own.trace, None),
        }
    }

    /// The request as it goes out by this plan.
    pub(super) fn sent_as(self, plan: Plan, forecast: Option<Forecast>) -> (FlightPlan, Outgoing) {
        let Prepared { words, own, relation, fork, as_sent, imagined } = self;
        let own_outgoing =
            Outgoing { pieces: own.pieces, markers_added: own.markers_added, ..Outgoing::default() };
        let (composed, first) = match (plan, fork) {
            (Plan::Forked, ForkOption::Later(composed)) => (Some(*composed), None),
            (Plan::Forked, ForkOption::First { child, .. }) => match child.into_first() {
                Some(FirstTurn { composed, model, parents, .. }) => {
                    let prefix = Arc::clone(&composed.prefix);
                    (Some(composed), Some(FirstPrefix { prefix, parents, model }))
                }
                None => (None, None),
            },
            _ => (None, None),
        };
        let would_be_as_it_came = imagined.as_ref().is_some_and(|imagined| imagined.is_as_it_came);
        let (trace, as_sent, aligned, outgoing) = match composed {
            None => {
                let aligned = imagined.filter(|imagined| !imagined.is_as_sent).map(|imagined| imagined.trace);
                (own.trace, as_sent, aligned, own_outgoing)
            }
            Some(composed) => {
                let outgoing = Outgoing {
                    shared_bytes: composed.request.shared,
                    markers_added: composed.request.breakpoints.len(),
                    pieces: Some(composed.request.body.pieces),
                    betas: Some(composed.betas),
                    notes: composed.notes,
                };
                let as_sent = as_sent.unwrap_or_else(|| Arc::clone(&own.trace));
                (composed.trace, Some(as_sent), Some(own.trace), outgoing)
            }
        };
        let plan = FlightPlan {
            plan,
            relation,
            own: words,
            trace,
            conversation: own.conversation,
            interns: own.interns,
            pins: own.pins,
            as_sent,
            aligned,
            would_be_as_it_came,
            forecast,
            first,
            lesson: None,
        };
        (plan, outgoing)
    }
}
