//! A client's connection, with a limit on how long it may take nothing of what is written to it.
//!
//! A client that has sent its request may close its side and wait for the answer. Whether it does, or has left, cannot be
//! seen until something is sent to it: whoever has left answers that with a reset. So before the answer begins, an interim
//! `100 Continue` is sent, which every HTTP/1.1 client has to ignore. Within an answer, a client that closes has left.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::stall::Stall;

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// The connection as hyper reads and writes it.
pub struct ClientIo {
    line: Arc<Mutex<Line>>,
    came: Came,
}

/// Told of the bytes that come.
pub type Came = Box<dyn Fn(usize) + Send>;

/// The same connection, to see whether anybody is there. Both are used by one task, so nobody waits for the lock.
pub struct Lookout(Arc<Mutex<Line>>);

struct Line {
    stream: TcpStream,
    write: Stall,
    /// True if nothing is written of which more is to come.
    is_flushed: bool,
}

/// Returns a connection, and a view of it. `came` is told of the bytes that come.
pub fn client_io(stream: TcpStream, stall: Duration, came: Came) -> (ClientIo, Lookout) {
    let line = Arc::new(Mutex::new(Line { stream, write: Stall::new(stall), is_flushed: true }));
    (ClientIo { line: Arc::clone(&line), came }, Lookout(line))
}

impl Lookout {
    /// Ready once the client has closed its side and everything before that was read.
    pub fn poll_closed(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut byte = [0; 1];
        match lock(&self.0).stream.poll_peek(cx, &mut ReadBuf::new(&mut byte)) {
            Poll::Ready(Ok(0) | Err(_)) => Poll::Ready(()),
            _ => Poll::Pending,
        }
    }

    /// Sends something that a client which waits ignores. Returns false if it could not be sent.
    pub fn probe(&self) -> bool {
        let line = lock(&self.0);
        line.is_flushed && line.stream.try_write(CONTINUE).is_ok_and(|sent| sent == CONTINUE.len())
    }

    /// Returns true if the client has reset the connection.
    pub fn is_reset(&self) -> bool {
        lock(&self.0).stream.take_error().is_ok_and(|error| error.is_some())
    }
}

fn lock(line: &Mutex<Line>) -> MutexGuard<'_, Line> {
    line.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Line {
    fn written(&mut self, polled: Poll<io::Result<usize>>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.is_flushed = false;
        match polled {
            Poll::Pending => self
                .write
                .poll_expired(cx)
                .map(|()| Err(io::Error::new(io::ErrorKind::TimedOut, "client stalled"))),
            ready => {
                self.write.progress();
                ready
            }
        }
    }
}

impl AsyncRead for ClientIo {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut lock(&self.line).stream).poll_read(cx, buffer);
        let bytes = buffer.filled().len() - before;
        if bytes > 0 {
            (self.came)(bytes);
        }
        polled
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut line = lock(&self.line);
        let polled = Pin::new(&mut line.stream).poll_write(cx, bytes);
        line.written(polled, cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut line = lock(&self.line);
        let polled = Pin::new(&mut line.stream).poll_write_vectored(cx, slices);
        line.written(polled, cx)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut line = lock(&self.line);
        // Whoever flushes has written all that it had.
        line.is_flushed = true;
        Pin::new(&mut line.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut lock(&self.line).stream).poll_shutdown(cx)
    }
}
