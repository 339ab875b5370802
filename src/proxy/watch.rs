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

/// The watch over one answer.
pub(super) struct Watch {
    metrics: Arc<Metrics>,
    panics: Arc<PanicInjection>,
    pub payer: Payer,
    /// Taken when the answer ends, or a bug is met.
    watched: Option<Watched>,
}

/// An answer, as far as it has come.
struct Watched {
    position: Position,
    exchange: Exchange,
    is_success: bool,
    observer: Option<Observer>,
    /// What is kept of the answer so far, charged to `limits.held_bytes`.
    kept: Option<Charge>,
    held_bytes: usize,
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
        let watched = Watched {
            position: flight.map_or(Position::Unknown, Position::Sent),
            exchange,
            is_success: head.status.is_success(),
            observer,
            kept: Some(proxy.accounts.bytes.open(payer)),
            held_bytes: config.limits.held_bytes,
        };
        let (metrics, panics) = (Arc::clone(&proxy.metrics), Arc::clone(&proxy.panics));
        Watch { metrics, panics, payer, watched: Some(watched) }
    }

    /// Takes the watch to where it ends.
    pub fn take(&mut self) -> Watch {
        let (metrics, panics) = (Arc::clone(&self.metrics), Arc::clone(&self.panics));
        Watch { metrics, panics, payer: self.payer, watched: self.watched.take() }
    }

    /// About how many bytes are worked on when the request is accepted, and when its answer has ended.
    pub fn work_bytes(&mut self) -> usize {
        self.watched.as_mut().map_or(0, Watched::work_bytes)
    }

    /// The upstream took the request.
    pub fn accepted(&mut self, proxy: &Proxy) {
        self.guarded(Step::Observe, |watched| {
            if let Some(watched) = watched {
                watched.accepted(proxy);
            }
        });
    }

    /// A chunk of the answer has come.
    pub fn see(&mut self, data: &Bytes) {
        self.guarded(Step::Observe, |watched| {
            if let Some(watched) = watched {
                watched.see(data);
            }
        });
    }

    /// The answer has ended.
    pub fn end(&mut self, ending: Ending) {
        let bytes = self.work_bytes();
        let settle = |watched: &mut Option<Watched>| {
            if let Some(watched) = watched.take() {
                watched.settle(ending);
            }
        };
        large::aside(bytes, || self.guarded(Step::Settle, settle));
    }

    /// Does the work. If it panics, the exchange is recorded as far as it is known, and watched no more.
    fn guarded(&mut self, step: Step, work: impl FnOnce(&mut Option<Watched>)) {
        let done = std::panic::catch_unwind(AssertUnwindSafe(|| {
            self.panics.at(step);
            work(&mut self.watched);
        }));
        if done.is_err() {
            self.metrics.panicked(step);
            let Some(Watched { position, exchange, .. }) = self.watched.take() else { return };
            let _ = std::panic::catch_unwind(AssertUnwindSafe(|| drop(position)));
            let _ = std::panic::catch_unwind(AssertUnwindSafe(|| drop(exchange)));
        }
    }
}

impl Watched {
    fn work_bytes(&mut self) -> usize {
        // Of a compressed answer more is kept than came.
        let kept = self.observer.as_mut().map_or(0, Observer::kept_bytes);
        let flight = match &self.position {
            Position::Unknown => None,
            Position::Sent(flight) => flight.flight(),
            Position::Accepted(flight) => flight.accepted().map(|accepted| &*accepted.flight),
        };
        let (held, answered) = (self.exchange.held_bytes(), self.exchange.facts.answer_bytes as usize);
        held.max(answered).max(kept).max(flight.map_or(0, Flight::compared_bytes))
    }

    fn accepted(&mut self, proxy: &Proxy) {
        let Position::Sent(flight) = std::mem::replace(&mut self.position, Position::Unknown) else { return };
        let Some(accepted) = flight.accept(&proxy.store) else { return };
        let Some(flight) = accepted.accepted() else { return };
        let exchange = &mut self.exchange;
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

    fn see(&mut self, data: &Bytes) {
        let is_first = self.exchange.facts.first_byte_at.is_none();
        self.exchange.facts.answer_chunk(data.len(), Instant::now());
        if is_first {
            self.exchange.show();
        }
        if let Some(observer) = &mut self.observer {
            let started = Instant::now();
            observer.push(data);
            self.exchange.facts.overhead.observe += started.elapsed();
        }
        self.charge();
        let begun = self.observer.as_mut().map_or(Some(None), Observer::begun);
        if let (true, Some(usage)) = (self.is_success, begun) {
            if let Some(draft) = &mut self.exchange.sinks.draft {
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
            let bytes = observer.finished_bytes();
            large::aside(bytes, || observer.finished(|id, block| flight.block(id, block)));
        }
    }

    /// Charges what is kept of the answer, or forgets it if there is no room for more.
    fn charge(&mut self) {
        let (Some(observer), Some(kept)) = (&mut self.observer, &mut self.kept) else { return };
        let more = observer.kept_bytes().saturating_sub(kept.amount());
        if more < CHARGED_BYTES_MIN || kept.grow(more, self.held_bytes) {
            return;
        }
        observer.forget();
        self.kept = None;
        self.exchange.metrics.unfollowed_total.with_label_values(&["answer"]).inc();
    }

    fn settle(self, ending: Ending) {
        let Watched { mut position, exchange, observer, .. } = self;
        let turn = observer.map(|mut observer| {
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
