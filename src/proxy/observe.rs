//! The answer on its way back: bytes untouched, a copy to the engine, ended exactly once.
//!
//! A chunk is decoded, framed and indexed before it is handed on, in the same poll: a child cannot come before its
//! parent's call is known. The end of a stream is one of four things, and the first that happens counts: no more
//! frames, `is_end_stream()` (hyper may not poll again after it), an error, or a drop (the client left).
//!
//! [`super::watch`] has what is made of the copy.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Response, response};
use http_body::{Body, Frame, SizeHint};
use tokio::runtime::Handle;

use super::Proxy;
use super::answer::UpstreamBody;
use super::client_pool::PoolSlot;
use super::door::Answer;
use super::exchange::Exchange;
use super::forward::{self, BoxError};
use super::handle::Answered;
use super::headers;
use super::large::{self, LargeBodies, Place};
use super::slow_reader;
use super::stall::Stall;
use super::watch::Watch;
use crate::engine::words::Ending;

/// The body of an answer: the upstream's, watched, or one of our own.
pub enum AnswerBody {
    Relayed(Box<Tee>),
    Own(Option<Bytes>),
}

/// Returns the head of the upstream's answer with our headers added, and the body that watches what passes through it.
/// Not a part of `relay`, whose future would hold the exchange three times.
pub(super) fn watched(answered: Answered, exchange: Exchange, proxy: &Proxy) -> (response::Parts, Box<Tee>) {
    let Answered { answer: forward::Answer { response, slot }, flight } = answered;
    let (mut head, body) = response.into_parts();
    headers::for_client(&mut head);
    let watch = Watch::new(&mut head, exchange, flight, proxy);
    let (idle, large) = (Stall::new(proxy.config.upstream.idle), Arc::clone(&proxy.large));
    let (state, unsent, unflushed) = (RelayState::Relaying, Bytes::new(), false);
    (head, Box::new(Tee { body, watch, state, idle, unsent, unflushed, large, _slot: slot }))
}

/// Hands the upstream's answer to the client, unchanged but for our headers.
pub(super) async fn relay(head: response::Parts, mut tee: Box<Tee>, proxy: &Proxy) -> Response<AnswerBody> {
    let (payer, bytes) = (tee.watch.payer, tee.watch.work_bytes());
    if head.status.is_success() {
        proxy.large.work(payer, bytes, || tee.watch.accepted(proxy)).await;
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
    state: RelayState,
    idle: Stall,
    /// The rest of a chunk that is handed on piece by piece.
    unsent: Bytes,
    /// True if anything was handed on since the last wait.
    unflushed: bool,
    large: Arc<LargeBodies>,
    _slot: PoolSlot,
}

/// How far an answer has come, apart from what is not handed on yet.
enum RelayState {
    Relaying,
    /// All has come of a large exchange, which waits for its place.
    Ending(PlannedEnd),
    /// The upstream broke off. The client hears of it once what came before is on its way.
    Broken(BoxError),
    Ended,
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
        match std::mem::replace(&mut self.state, RelayState::Ended) {
            RelayState::Relaying => {
                self.state = RelayState::Relaying;
                self.poll_upstream(cx)
            }
            RelayState::Ending(end) => self.poll_end(end, cx),
            RelayState::Broken(error) => Poll::Ready(Some(Err(error))),
            RelayState::Ended => Poll::Ready(None),
        }
    }

    fn poll_upstream(&mut self, cx: &mut Context<'_>) -> PolledFrame {
        let Poll::Ready(polled) = Pin::new(&mut self.body).poll_frame(cx) else {
            self.unflushed = false;
            slow_reader::waiting();
            return self.idle.poll_expired(cx).map(|()| {
                self.end(Ending::UpstreamBroke);
                Some(Err(Silent.into()))
            });
        };
        self.idle.progress();
        match polled {
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    self.watch.see(data);
                }
                if self.body.is_end_stream() {
                    return self.complete(Some(frame), cx);
                }
                self.deliver(Some(frame))
            }
            Some(Err(error)) => {
                self.end(Ending::UpstreamBroke);
                if !self.unflushed {
                    return Poll::Ready(Some(Err(error.into())));
                }
                // The connection throws away what it has not written when it hears of an error.
                self.state = RelayState::Broken(error.into());
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            None => self.complete(None, cx),
        }
    }

    /// Ends the exchange, and then hands on the last frame, if there is one. A large exchange waits for its place first.
    fn complete(&mut self, frame: Option<Frame<Bytes>>, cx: &mut Context<'_>) -> PolledFrame {
        let bytes = self.watch.work_bytes();
        if !large::is_large(bytes) {
            self.end(Ending::Complete);
            return self.deliver(frame);
        }
        let place = Box::pin(self.large.place(self.watch.payer, bytes));
        self.poll_end(PlannedEnd { place, frame }, cx)
    }

    fn poll_end(&mut self, mut end: PlannedEnd, cx: &mut Context<'_>) -> PolledFrame {
        let Poll::Ready(_place) = end.place.as_mut().poll(cx) else {
            self.state = RelayState::Ending(end);
            slow_reader::waiting();
            return Poll::Pending;
        };
        self.end(Ending::Complete);
        self.deliver(end.frame)
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
        let last = match &self.state {
            RelayState::Ending(end) => end.frame.as_ref().and_then(Frame::data_ref).map_or(0, Bytes::len),
            _ => 0,
        };
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

    /// Ends the exchange.
    fn end(&mut self, ending: Ending) {
        self.state = RelayState::Ended;
        self.watch.end(ending);
    }

    fn is_end_stream(&self) -> bool {
        let has_more = matches!(self.state, RelayState::Ending(_) | RelayState::Broken(_));
        !has_more && self.unsent.is_empty() && self.body.is_end_stream()
    }
}

impl Drop for Tee {
    fn drop(&mut self) {
        let (RelayState::Relaying | RelayState::Ending(_)) = self.state else { return };
        let bytes = self.watch.work_bytes();
        match Handle::try_current() {
            // Clients that leave take turns as those do that stay.
            Ok(runtime) if large::is_large(bytes) => {
                let (place, mut watch) = (self.large.place(self.watch.payer, bytes), self.watch.take());
                runtime.spawn(async move {
                    let _place = place.await;
                    watch.end(Ending::ClientLeft);
                });
            }
            _ => self.end(Ending::ClientLeft),
        }
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
            AnswerBody::Relayed(tee) => tee.is_end_stream(),
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
