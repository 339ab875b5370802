//! Cuts off HTTP/2 clients that stop reading an answer.
//!
//! Over HTTP/1 an answer that is not read fills the socket, and [`super::server`] sees that writes make no progress.
//! Over HTTP/2 the connection stays active while one stream has no window left, and hyper polls the body only once
//! there is room, so neither of the two notices. The task that runs the stream does: it knows when the last chunk was
//! handed on. Ending the task resets the stream and drops the body, and with it the upstream call. Chunks are handed on
//! in small pieces, so that a client that reads slowly is seen to read; a piece that takes longer than `limits.stall_s`
//! to be sent counts as not read.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::rt::Executor;

use super::stall::Stall;

tokio::task_local! {
    static FLOW: Cell<Flow>;
}

/// The side that a stream waits for.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Flow {
    /// Forkpoint or the upstream.
    #[default]
    Ours,
    /// The client, which has yet to read the head or this number of chunks.
    Clients(u64),
}

/// The most bytes of an answer that an HTTP/2 stream is handed at once: as much as one frame may have.
const PIECE_BYTES_MAX: usize = 16 << 10;

/// Takes the piece of a chunk that is to be handed on now; the rest stays. Outside of an HTTP/2 stream that is all of it.
pub fn next_piece(chunk: &mut Bytes) -> Bytes {
    let is_http_2 = FLOW.try_with(|_| ()).is_ok();
    let most = if is_http_2 { PIECE_BYTES_MAX } else { usize::MAX };
    chunk.split_to(chunk.len().min(most))
}

/// Notes that a chunk was handed on to the client. Does nothing outside of an HTTP/2 stream.
pub fn handed_on() {
    let next = |flow| match flow {
        Flow::Ours => Flow::Clients(1),
        Flow::Clients(count) => Flow::Clients(count + 1),
    };
    let _ = FLOW.try_with(|flow| flow.set(next(flow.get())));
}

/// Notes that the client has read everything that there is so far.
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
    /// The flow at the last poll.
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
