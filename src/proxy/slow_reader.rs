//! HTTP/2 clients that take nothing of an answer.
//!
//! Over HTTP/1 an answer that nobody takes backs up into the socket, and [`super::server`] sees writes that
//! do not move. Over HTTP/2 the connection stays lively while one stream has no window left, and hyper asks
//! the body for more only once there is room, so neither of the two can notice. The task that runs the
//! stream can: it knows when the last chunk was handed on, and ending it resets the stream and drops the
//! body, and with it the upstream call. A chunk that takes longer than `limits.stall_s` as a whole counts as
//! not taken.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::rt::Executor;

use super::stall::Stall;

tokio::task_local! {
    static FLOW: Cell<Flow>;
}

/// Who is to move next on a stream.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Flow {
    /// We or the upstream.
    #[default]
    Ours,
    /// The client has the head or so many chunks of the answer to take.
    Clients(u64),
}

/// Something was handed on for the client to take. Outside of an HTTP/2 stream nobody listens.
pub fn handed_on() {
    let next = |flow| match flow {
        Flow::Ours => Flow::Clients(1),
        Flow::Clients(count) => Flow::Clients(count + 1),
    };
    let _ = FLOW.try_with(|flow| flow.set(next(flow.get())));
}

/// The client took everything; there is nothing more right now.
pub fn waiting() {
    let _ = FLOW.try_with(|flow| flow.set(Flow::Ours));
}

/// Runs HTTP/2 streams, each until its client stalls.
#[derive(Clone)]
pub struct StreamTasks {
    pub stall: Duration,
}

impl<F> Executor<F> for StreamTasks
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, stream: F) {
        let bounded = Bounded { stream: Box::pin(stream), stall: Stall::new(self.stall), seen: Flow::Ours };
        tokio::spawn(FLOW.scope(Cell::default(), bounded));
    }
}

struct Bounded<F> {
    stream: Pin<Box<F>>,
    stall: Stall,
    /// As it was at the last poll.
    seen: Flow,
}

impl<F: Future> Future for Bounded<F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.stream.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let flow = FLOW.try_with(Cell::get).unwrap_or_default();
        if std::mem::replace(&mut self.seen, flow) != flow {
            self.stall.progress();
        }
        match flow {
            Flow::Ours => Poll::Pending,
            Flow::Clients(_) => self.stall.poll_expired(cx),
        }
    }
}
