//! The answer on its way back: bytes untouched, a copy to the engine, ended exactly once.
//!
//! A chunk is decoded, framed and indexed before it is handed on, in the same poll: a child cannot come before its
//! parent's call is known. The end of a stream is one of four things, and the first that happens counts: no more
//! frames, `is_end_stream()` (hyper may not poll again after it), an error, or a drop (the client left).
//!
//! A bug in what is made of an answer must not cost the client its bytes: it ends the watching, and nothing else.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http::{Response, response};
use http_body::{Body, Frame, SizeHint};

use crate::engine::tenant::Flight;
use crate::engine::words::{Ending, Role, Step};
use crate::metrics::Metrics;
use crate::proxy::account::{Charge, Payer};

use super::Proxy;
use super::answer::UpstreamBody;
use super::client_pool::PoolSlot;
use super::door::Answer;
use super::exchange::Exchange;
use super::flight::{AcceptedFlight, InFlight};
use super::forward::{self, BoxError};
use super::handle::Answered;
use super::headers;
use super::large::{self, LargeBodies, Place};
use super::observer::Observer;
use super::panic_injection::PanicInjection;
use super::slow_reader;
use super::stall::Stall;

/// The fewest bytes of an answer that are charged at a time.
const CHARGED_BYTES_MIN: usize = 4 << 10;

/// The body of an answer: the upstream's, watched, or one of our own.
pub enum AnswerBody {
    Relayed(Box<Tee>),
    Own(Option<Bytes>),
}

/// Returns the head of the upstream's answer with our headers added, and the body that watches what passes through it.
/// Not a part of `relay`, whose future would hold the exchange three times.
pub(super) fn watched(
    answered: Answered,
    mut exchange: Exchange,
    proxy: &Proxy,
) -> (response::Parts, Box<Tee>) {
    let Answered { answer: forward::Answer { response, slot }, flight } = answered;
    let (mut head, body) = response.into_parts();
    headers::for_client(&mut head);
    exchange.answered(head.status, &head.headers, flight.as_ref().and_then(InFlight::flight));
    let config = &proxy.config;
    let observer = match exchange.facts.endpoint {
        endpoint if endpoint.answers_with_a_message() => Observer::new(&head.headers, &config.limits),
        _ => None,
    };
    if config.server.response_headers {
        exchange.mark(&mut head.headers);
    }
    let idle = Stall::new(config.upstream.idle);
    let (ended, unsent, unflushed, broken, end) = (false, Bytes::new(), false, None, None);
    let position = flight.map_or(Position::Unknown, Position::Sent);
    if let Position::Unknown = position {
        exchange.forget_prompt();
    }
    let held_bytes = config.limits.held_bytes;
    let payer = exchange.caller.payer;
    let observed = Some(proxy.accounts.bytes.open(payer));
    let (metrics, panics) = (Arc::clone(&proxy.metrics), Arc::clone(&proxy.panics));
    let large = Arc::clone(&proxy.large);
    let exchange = Some(exchange);
    let watch = Watch { metrics, panics, payer, observer, observed, held_bytes, exchange, position };
    (head, Box::new(Tee { body, watch, ended, idle, unsent, unflushed, broken, end, large, _slot: slot }))
}

/// Hands the upstream's answer to the client, unchanged but for our headers.
pub(super) async fn relay(head: response::Parts, mut tee: Box<Tee>, proxy: &Proxy) -> Response<AnswerBody> {
    let (payer, bytes) = (tee.watch.payer, tee.watch.work_bytes());
    if head.status.is_success() {
        let accept = || tee.guarded(Step::Observe, |watch| watch.accepted(proxy));
        proxy.large.work(payer, bytes, accept).await;
    }
    // An answer without a body is never polled.
    if tee.body.is_end_stream() {
        let _place = proxy.large.place(payer, bytes).await;
        tee.end(Ending::Complete);
    }
    Response::from_parts(head, AnswerBody::Relayed(tee))
}

pub struct Tee {
    body: UpstreamBody,
    watch: Watch,
    ended: bool,
    idle: Stall,
    /// What has come and was not handed on yet.
    unsent: Bytes,
    /// True if anything was handed on since the last wait.
    unflushed: bool,
    /// How the upstream broke off, to be said once what came before is on its way.
    broken: Option<BoxError>,
    /// The end of a large exchange, which waits for its place.
    end: Option<PlannedEnd>,
    large: Arc<LargeBodies>,
    _slot: PoolSlot,
}

/// The end of an exchange, and the last frame, which is handed on behind it.
struct PlannedEnd {
    place: Pin<Box<dyn Future<Output = Place> + Send>>,
    frame: Option<Frame<Bytes>>,
}

type PolledFrame = Poll<Option<Result<Frame<Bytes>, BoxError>>>;

#[derive(Debug, thiserror::Error)]
#[error("the upstream stayed silent for too long")]
struct Silent;

impl Tee {
    fn poll(&mut self, cx: &mut Context<'_>) -> PolledFrame {
        if !self.unsent.is_empty() {
            return Poll::Ready(Some(Ok(self.hand_on())));
        }
        if let Some(error) = self.broken.take() {
            return Poll::Ready(Some(Err(error)));
        }
        if self.end.is_some() {
            return self.poll_end(cx);
        }
        let polled = match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(polled) => polled,
            Poll::Pending => {
                self.unflushed = false;
                slow_reader::waiting();
                return self.idle.poll_expired(cx).map(|()| {
                    self.end(Ending::UpstreamBroke);
                    Some(Err(Silent.into()))
                });
            }
        };
        self.idle.progress();
        match polled {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    self.see(data);
                }
                if self.body.is_end_stream() {
                    return self.complete(Some(frame), cx);
                }
                self.deliver(Some(frame))
            }
            Some(Err(error)) if self.unflushed => {
                // The connection throws away what it has not written when it hears of an error.
                self.end(Ending::UpstreamBroke);
                self.broken = Some(error.into());
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Some(Err(error)) => {
                self.end(Ending::UpstreamBroke);
                Poll::Ready(Some(Err(error.into())))
            }
            None => self.complete(None, cx),
        }
    }

    /// Ends the exchange, and then hands on the last frame, if there is one. A large exchange waits for its place first.
    fn complete(&mut self, frame: Option<Frame<Bytes>>, cx: &mut Context<'_>) -> PolledFrame {
        let bytes = self.watch.work_bytes();
        if self.ended || !large::is_large(bytes) {
            self.end(Ending::Complete);
            return self.deliver(frame);
        }
        let place = Box::pin(self.large.place(self.watch.payer, bytes));
        self.end = Some(PlannedEnd { place, frame });
        self.poll_end(cx)
    }

    fn poll_end(&mut self, cx: &mut Context<'_>) -> PolledFrame {
        let Some(end) = &mut self.end else { return Poll::Ready(None) };
        let Poll::Ready(_place) = end.place.as_mut().poll(cx) else {
            slow_reader::waiting();
            return Poll::Pending;
        };
        let frame = self.end.take().and_then(|planned| planned.frame);
        self.end(Ending::Complete);
        self.deliver(frame)
    }

    /// Hands a frame on, data piece by piece.
    fn deliver(&mut self, frame: Option<Frame<Bytes>>) -> PolledFrame {
        Poll::Ready(frame.map(|frame| match frame.into_data() {
            Ok(data) => {
                self.unsent = data;
                Ok(self.hand_on())
            }
            Err(trailers) => Ok(trailers),
        }))
    }

    fn size_hint(&self) -> SizeHint {
        let last = self.end.as_ref().and_then(|end| end.frame.as_ref()?.data_ref()).map_or(0, Bytes::len);
        let (mut hint, unsent) = (self.body.size_hint(), (self.unsent.len() + last) as u64);
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + unsent);
        }
        hint.set_lower(hint.lower() + unsent);
        hint
    }

    /// Hands on the next piece of what has come.
    fn hand_on(&mut self) -> Frame<Bytes> {
        slow_reader::handed_on();
        self.unflushed = true;
        Frame::data(slow_reader::next_piece(&mut self.unsent))
    }

    fn see(&mut self, data: &Bytes) {
        self.guarded(Step::Observe, |watch| watch.see(data));
    }

    fn end(&mut self, ending: Ending) {
        if !std::mem::replace(&mut self.ended, true) {
            let bytes = self.watch.work_bytes();
            large::aside(bytes, || self.guarded(Step::Settle, |watch| watch.end(ending)));
        }
    }

    /// Lets the watch work. If it panics, the exchange is recorded as far as it is known, and watched no more.
    fn guarded(&mut self, step: Step, work: impl FnOnce(&mut Watch)) {
        let watched = std::panic::catch_unwind(AssertUnwindSafe(|| {
            self.watch.panics.at(step);
            work(&mut self.watch);
        }));
        if watched.is_err() {
            self.watch.metrics.panicked(step);
            self.watch.observer = None;
            let position = std::mem::replace(&mut self.watch.position, Position::Unknown);
            let exchange = self.watch.exchange.take();
            let _ = std::panic::catch_unwind(AssertUnwindSafe(|| drop(position)));
            let _ = std::panic::catch_unwind(AssertUnwindSafe(|| drop(exchange)));
        }
    }
}

/// The observer of an answer, and what it is told to.
struct Watch {
    metrics: Arc<Metrics>,
    panics: Arc<PanicInjection>,
    payer: Payer,
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
    /// About how many bytes are worked on when the request is accepted, and when its answer has ended.
    fn work_bytes(&mut self) -> usize {
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
    fn accepted(&mut self, proxy: &Proxy) {
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

    fn see(&mut self, data: &Bytes) {
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
            if let Some(draft) = &mut exchange.draft {
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

    fn end(&mut self, ending: Ending) {
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

impl Drop for Tee {
    fn drop(&mut self) {
        self.end(Ending::ClientLeft);
    }
}

impl AnswerBody {
    pub fn own(body: Bytes) -> AnswerBody {
        AnswerBody::Own(Some(body))
    }
}

impl Answer for AnswerBody {
    fn is_at_hand(&self) -> bool {
        matches!(self, AnswerBody::Own(_))
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> PolledFrame {
        match &mut *self {
            AnswerBody::Relayed(tee) => tee.poll(cx),
            AnswerBody::Own(body) => Poll::Ready(body.take().map(|body| Ok(Frame::data(body)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            AnswerBody::Relayed(tee) => {
                tee.end.is_none() && tee.unsent.is_empty() && tee.body.is_end_stream()
            }
            AnswerBody::Own(body) => body.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            AnswerBody::Relayed(tee) => tee.size_hint(),
            AnswerBody::Own(body) => SizeHint::with_exact(body.as_ref().map_or(0, |body| body.len() as u64)),
        }
    }
}
