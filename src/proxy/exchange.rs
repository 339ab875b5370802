//! One exchange from its first byte to its last: what is known of it, and its one report.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::engine::answer::turn::Turn;
use crate::engine::answer::usage::Bill;
use crate::engine::cache::prices::Prices;
use crate::engine::request::anatomy::Anatomy;
use crate::engine::request::clients::NONE;
use crate::engine::tenant::{Accepted, Flight, SettledChild, Settlement, Verdict, drift};
use crate::engine::words::{CostUnit, Ending};
use crate::metrics::{Admit, Metrics};
use crate::proxy::account::{Accounts, Charge};
use crate::report::{ChildTurn, ExchangeRecord, ExchangeSinks, OtherModel, report};
use crate::store::Met;

use super::caller::Caller;
use super::clock::Clock;
use super::collect::Permit;
use super::record::{Facts, Money, add_verdict};

static ROLE: HeaderName = HeaderName::from_static("x-forkpoint-role");
static PLAN: HeaderName = HeaderName::from_static("x-forkpoint-plan");
static REASON: HeaderName = HeaderName::from_static("x-forkpoint-reason");
static PREFIX: HeaderName = HeaderName::from_static("x-forkpoint-prefix");
static BYTES_SHARED: HeaderName = HeaderName::from_static("x-forkpoint-bytes-shared");
static HELD_MS: HeaderName = HeaderName::from_static("x-forkpoint-held-ms");
static FORK: HeaderName = HeaderName::from_static("x-forkpoint-fork");

/// Travels with the exchange and reports it once: in `finish`, or when dropped (the client left).
pub struct Exchange {
    /// Unnamed until its headers are read.
    pub caller: Caller,
    pub facts: Facts,
    /// The body as it came, if it was read and is to be recorded.
    pub body: Option<Bytes>,
    /// The place of its body in memory, while that is there.
    pub permit: Option<Permit>,
    /// The place of its body among the prompts whose answers stream, once it was accepted.
    pub prompt: Option<Charge>,
    /// True while it waits at the gate.
    pub waits_at_gate: bool,
    /// Its place among the exchanges, once it has one.
    pub place: Option<Charge>,
    /// Its tenant, if the store was asked for that before anything was charged, and nobody has read it yet.
    pub met: Option<Met>,
    /// Taken when it is reported.
    pub sinks: ExchangeSinks,
    pub(super) metrics: Arc<Metrics>,
    pub(super) clock: Arc<Clock>,
    is_reported: bool,
}

impl Exchange {
    /// Returns true if this is a Messages call that is not to go out unless the parent is known that it names.
    pub fn needs_parent(&self) -> bool {
        self.facts.endpoint.is_planned() && self.caller.claims.needs_parent()
    }

    pub fn new(
        metrics: Arc<Metrics>,
        clock: Arc<Clock>,
        sinks: ExchangeSinks,
        caller: Caller,
        facts: Facts,
    ) -> Exchange {
        let (body, permit, prompt, place, met) = (None, None, None, None, None);
        let (waits_at_gate, is_reported) = (false, false);
        Exchange {
            caller,
            facts,
            body,
            permit,
            prompt,
            place,
            met,
            waits_at_gate,
            sinks,
            metrics,
            clock,
            is_reported,
        }
    }

    /// Takes over what the body says about itself.
    pub fn learn(&mut self, body: &[u8], anatomy: &Anatomy) {
        self.facts.model = anatomy.model(body).map(String::from);
        self.facts.stream = anatomy.stream(body);
        if let Some(user_id) = anatomy.user_id(body) {
            self.caller.sender.hint(&user_id);
        }
    }

    /// The bytes that its body takes, and what was read of it, while they are in memory.
    pub fn held_bytes(&self) -> usize {
        let charge = self.permit.as_ref().map(Permit::charge).or(self.prompt.as_ref());
        charge.map_or(0, Charge::amount)
    }

    /// Says on the answer what was done and why.
    pub fn mark(&self, headers: &mut HeaderMap) {
        let facts = &self.facts;
        headers.insert(&ROLE, HeaderValue::from_static(facts.family.role.as_str()));
        headers.insert(&PLAN, HeaderValue::from_static(facts.plan.as_str()));
        headers.insert(&REASON, HeaderValue::from_static(facts.reason()));
        if let Some(traced) = &facts.traced
            && let Ok(prefix) = HeaderValue::try_from(traced.prefix.to_string())
        {
            headers.insert(&PREFIX, prefix);
            headers.insert(&BYTES_SHARED, HeaderValue::from(facts.shared_bytes));
        }
        if facts.endpoint.is_planned() {
            headers.insert(&HELD_MS, HeaderValue::from(facts.held_ms()));
        }
        if let Some(fork) = facts.family.fork.and_then(|fork| HeaderValue::try_from(fork.to_string()).ok()) {
            headers.insert(&FORK, fork);
        }
    }

    /// The head of the upstream's answer has come: what the client is told about its request is known now.
    pub fn answered(&mut self, status: StatusCode, headers: &HeaderMap, flight: Option<&Flight>) {
        self.facts.answered(status, headers);
        if let Some(flight) = flight {
            self.facts.traced(flight);
        }
    }

    /// The upstream took the request. What is kept of its body until the end of the answer is charged to those prompts
    /// from now on; `false` if there is no room for it, and it has to be forgotten.
    pub fn keeps_prompt(&mut self, accounts: &Accounts, limit: usize) -> bool {
        let Some(permit) = &self.permit else { return true };
        let mut prompt = accounts.prompts.open(permit.charge().payer());
        if prompt.grow(permit.charge().amount(), limit) {
            (self.permit, self.prompt) = (None, Some(prompt));
        }
        self.prompt.is_some()
    }

    /// Nothing of the body is needed any more, but for a recording.
    pub fn forget_prompt(&mut self) {
        if self.body.is_none() {
            (self.permit, self.prompt) = (None, None);
        }
    }

    /// The upstream took the request.
    pub fn accepted(&mut self, accepted: &Accepted) {
        self.metrics.sighted(accepted.classes);
        self.facts.child_turn = accepted.child_turn;
    }

    /// Reports an exchange of which nothing is known to its tenant: it was not read, or nothing came of it.
    pub fn finish(mut self, ending: Ending, turn: Option<&Turn>, flight: Option<&Flight>) {
        let mut record = self.record(ending, turn, None);
        if let (Some(flight), Some(_)) = (flight, turn) {
            add_verdict(&mut record, drift_alone(flight));
        }
        self.report(record, turn);
    }

    /// Reports an exchange whose answer has ended.
    pub fn settled(
        mut self,
        ending: Ending,
        turn: Option<&Turn>,
        settlement: Settlement,
        flight: &Flight,
        prices: &Prices,
    ) {
        let Settlement { fanout, verdict, bills, child, foreign_tool_calls } = settlement;
        let mut record = self.record(ending, turn, fanout);
        record.details.foreign_tool_calls = foreign_tool_calls;
        let bill = turn.and_then(|turn| turn.bill.as_ref());
        if let Some(bill) = bill {
            record.details.other_models = self.other_models(bill, &record.model, prices);
        }
        if let (Some(bill), Some(bills)) = (bill, bills) {
            let bound = flight.relation.bound().and_then(|bound| bound.forecast);
            let forecast = self.facts.forecast.or(bound);
            let (plan, cache_break) = (flight.plan, verdict.cache_break.as_ref());
            let predicted_read = flight.prediction().tokens();
            let model = &*flight.request.model;
            Money { plan, bill, bills, predicted_read, forecast, cache_break, prices, model }
                .add_to(&mut record);
        }
        add_verdict(&mut record, verdict);
        if let Some(child) = child {
            record.reread_tokens = (child.reread.results > 0).then_some(child.reread.tokens);
            record.context_usd = (child.context_usd > 0.0).then_some(child.context_usd);
            record.details.child = Some(child_turn(&child));
        }
        self.report(record, turn);
    }

    fn report(&mut self, mut record: ExchangeRecord, turn: Option<&Turn>) {
        if std::mem::replace(&mut self.is_reported, true) {
            return;
        }
        let mut sinks = std::mem::take(&mut self.sinks);
        if let Some(draft) = &mut sinks.draft {
            self.complete(draft, &mut record, turn);
        }
        report(record, &self.metrics, sinks);
    }

    /// The runs of a bill by other models than the one that is shown.
    fn other_models(&self, bill: &Bill, shown: &str, prices: &Prices) -> Vec<OtherModel> {
        let named = bill.runs().filter_map(|(model, usage)| Some((model?, usage)));
        let runs = named.map(|(model, usage)| OtherModel {
            model: self.metrics.models.label(model, Admit::New).to_owned(),
            usage,
            cost: prices.price(model).map(|price| price.cost(&usage)),
        });
        runs.filter(|run| run.model != shown).collect()
    }

    /// Returns the names shown for model and client. A new name takes one of the bounded places only once the
    /// upstream accepted it.
    pub(super) fn names(&self) -> (String, Option<String>) {
        let is_accepted = self.facts.status.is_some_and(|status| status.is_success());
        let admit = |newcomer: Admit| if is_accepted { newcomer } else { Admit::KnownOnly };
        let model = self.facts.model.as_deref().unwrap_or(NONE);
        let client = self.caller.client();
        let of_payer = Admit::Of(self.caller.payer.tenant);
        let client = client.map(|client| self.metrics.clients.label(client, admit(of_payer)).to_owned());
        (self.metrics.models.label(model, admit(Admit::Akin)).to_owned(), client)
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        if !self.is_reported {
            let record = self.record(Ending::ClientLeft, None, None);
            self.report(record, None);
        }
    }
}

fn drift_alone(flight: &Flight) -> Verdict {
    Verdict { drift: drift(flight), ..Verdict::default() }
}

fn child_turn(child: &SettledChild) -> ChildTurn {
    ChildTurn {
        arm: child.arm.as_str(),
        is_first: child.is_first,
        stop: child.stop.as_str(),
        is_empty: child.is_empty,
        tool_errors: child.tool_errors,
        output_tokens: child.output_tokens,
        wall_ms: child.wall_ms,
        cost_usd: child.cost.filter(|cost| cost.unit == CostUnit::Dollars).map(|cost| cost.billed),
    }
}
