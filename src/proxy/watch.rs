//! Learns from an answer while it passes by: a copy is read, and the state of its tenant hears of what came.
//!
//! A bug in what is made of an answer must not cost the client its bytes: it ends the watching, and nothing else.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::response;

use super::Proxy;
use super::account::{Charge, Payer};
use super::exchange::Exchange;
use super::flight::{AcceptedFlight, InFlight};
use super::large;
use super::observer::Observer;
use super::panic_injection::PanicInjection;
use crate::engine::tenant::Flight;
use crate::engine::words::{Ending, Role, Step};
use crate::metrics::Metrics;

/// The fewest bytes of an answer that are charged at a time.
const CHARGED_BYTES_MIN: usize = 4 << 10;

/// The observer of an answer, and what it is told to.
pub(super) struct Watch {
    metrics: Arc<Metrics>,
    panics: Arc<PanicInjection>,
    pub payer: Payer,
    observer: Option<Observer>,
    /// What is kept of the answer so far, charged to `limits.held_bytes`.
    observed: Option<Charge>,
    held_bytes: usize,
    /// Taken at the end.
    exchange: Option<Exchange>,
    position: Position,
}

/// The request of an answer, in the state of its tenant.
enum Position {
    /// It was not read, or is nobody's.
    Unknown,
    /// It was not accepted.
    Sent(InFlight),
    Accepted(Box<AcceptedFlight>),
}

impl Watch {
    /// The answer's head has come, and with it whatever the client is told about its request.
    pub fn new(
        head: &mut response::Parts,
        mut exchange: Exchange,
        flight: Option<InFlight>,
        proxy: &Proxy,
    ) -> Watch {
        let (config, payer) = (&proxy.config, exchange.caller.payer);
        exchange.answered(head.status, &head.headers, flight.as_ref().and_then(InFlight::flight));
        let is_followed = exchange.facts.endpoint.answers_with_a_message();
        let observer = if is_followed { Observer::new(&head.headers, &config.limits) } else { None };
        if config.server.response_headers {
            exchange.mark(&mut head.headers);
        }
        if flight.is_none() {
            exchange.forget_prompt();
        }
        Watch {
            metrics: Arc::clone(&proxy.metrics),
            panics: Arc::clone(&proxy.panics),
            payer,
            observer,
            observed: Some(proxy.accounts.bytes.open(payer)),
            held_bytes: config.limits.held_bytes,
            exchange: Some(exchange),
            position: flight.map_or(Position::Unknown, Position::Sent),
        }
    }

    /// Lets the watch work. If it panics, the exchange is recorded as far as it is known, and watched no more.
    fn guarded(&mut self, step: Step, work: impl FnOnce(&mut Watch)) {
        let watched = std::panic::catch_unwind(AssertUnwindSafe(|| {
            self.panics.at(step);
            work(self);
        }));
        if watched.is_err() {
            self.metrics.panicked(step);
            self.observer = None;
            let position = std::mem::replace(&mut self.position, Position::Unknown);
            let exchange = self.exchange.take();
            let _ = std::panic::catch_unwind(AssertUnwindSafe(|| drop(position)));
            let _ = std::panic::catch_unwind(AssertUnwindSafe(|| drop(exchange)));
        }
    }

    /// About how many bytes are worked on when the request is accepted, and when its answer has ended.
    pub fn work_bytes(&mut self) -> usize {
        // Of a compressed answer more is kept than came.
        let kept = self.observer.as_mut().map_or(0, Observer::kept_bytes);
        let flight = match &self.position {
            Position::Unknown => None,
            Position::Sent(flight) => flight.flight(),
            Position::Accepted(flight) => flight.accepted().map(|accepted| &*accepted.flight),
        };
        let held = self.exchange.as_ref().map_or(0, Exchange::held_bytes);
        let answered = self.exchange.as_ref().map_or(0, |exchange| exchange.facts.answer_bytes as usize);
        held.max(answered).max(kept).max(flight.map_or(0, Flight::compared_bytes))
    }

    /// The upstream took the request.
    pub fn accepted(&mut self, proxy: &Proxy) {
        self.guarded(Step::Observe, |watch| watch.follow(proxy));
    }

    /// A chunk of the answer has come.
    pub fn see(&mut self, data: &Bytes) {
        self.guarded(Step::Observe, |watch| watch.take(data));
    }

    /// The answer has ended.
    pub fn end(&mut self, ending: Ending) {
        let bytes = self.work_bytes();
        large::aside(bytes, || self.guarded(Step::Settle, |watch| watch.settle(ending)));
    }

    fn follow(&mut self, proxy: &Proxy) {
        let Position::Sent(flight) = std::mem::replace(&mut self.position, Position::Unknown) else { return };
        let Some(accepted) = flight.accept(&proxy.store) else { return };
        let (Some(exchange), Some(flight)) = (&mut self.exchange, accepted.accepted()) else { return };
        exchange.accepted(flight);
        let is_child = flight.flight.relation.role() == Role::Child;
        // A child that is not followed to the end of its answer would lose its prefix, so its body stays where it is.
        if exchange.keeps_prompt(&proxy.accounts, self.held_bytes) || is_child {
            self.position = Position::Accepted(Box::new(accepted));
        } else {
            exchange.metrics.unfollowed_total.with_label_values(&["prompt"]).inc();
            exchange.forget_prompt();
        }
    }

    /// Charges what is kept of the answer, or forgets it if there is no room for more.
    fn charge(&mut self) {
        let (Some(observer), Some(observed)) = (&mut self.observer, &mut self.observed) else { return };
        let more = observer.kept_bytes().saturating_sub(observed.amount());
        if more < CHARGED_BYTES_MIN || observed.grow(more, self.held_bytes) {
            return;
        }
        observer.forget();
        self.observed = None;
        if let Some(exchange) = &self.exchange {
            exchange.metrics.unfollowed_total.with_label_values(&["answer"]).inc();
        }
    }

    fn take(&mut self, data: &Bytes) {
        let Some(exchange) = &mut self.exchange else { return };
        let is_first = exchange.facts.first_byte_at.is_none();
        exchange.facts.answer_chunk(data.len(), Instant::now());
        if is_first {
            exchange.show();
        }
        if let Some(observer) = &mut self.observer {
            let started = Instant::now();
            observer.push(data);
            exchange.facts.overhead.observe += started.elapsed();
        }
        self.charge();
        let Some(exchange) = &mut self.exchange else { return };
        let is_success = exchange.facts.status.is_some_and(|status| status.is_success());
        let begun = self.observer.as_mut().map_or(Some(None), Observer::begun);
        if let (true, Some(usage)) = (is_success, begun) {
            if let Some(draft) = &mut exchange.sinks.draft {
                draft.begun();
            }
            if let Position::Accepted(flight) = &mut self.position
                && !flight.has_begun()
            {
                flight.first_content(usage);
            }
        }
        if let (Position::Accepted(flight), Some(observer)) = (&mut self.position, &mut self.observer)
            && flight.listens()
        {
            observer.finished(|id, block| flight.block(id, block));
        }
    }

    fn settle(&mut self, ending: Ending) {
        let Some(exchange) = self.exchange.take() else { return };
        let mut position = std::mem::replace(&mut self.position, Position::Unknown);
        let turn = self.observer.take().map(|mut observer| {
            let streamed = observer.is_stream();
            let turn = observer.finish();
            if let (false, Position::Accepted(flight)) = (streamed, &mut position) {
                for block in &turn.blocks {
                    flight.block(turn.id.as_deref(), block.clone());
                }
            }
            turn
        });
        let turn = turn.as_ref();
        match position {
            Position::Unknown => exchange.finish(ending, turn, None),
            Position::Sent(flight) => exchange.finish(ending, turn, flight.flight()),
            Position::Accepted(flight) => {
                let prices = Arc::clone(&flight.policy().prices);
                match flight.settle(turn, &exchange.metrics) {
                    Some((settlement, flight)) => {
                        exchange.settled(ending, turn, settlement, &flight, &prices)
                    }
                    None => exchange.finish(ending, turn, None),
                }
            }
        }
    }
}
