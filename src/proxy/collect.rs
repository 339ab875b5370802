//! Collecting the body of a Messages call, within limits.
//!
//! One body may be `limits.body_bytes` long; all collected bodies together are at most
//! `limits.held_requests` and `limits.held_bytes`. Whatever does not fit is not refused: the part that was
//! read goes first, the rest streams behind it, and nobody reads it.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::Poll;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame};
use hyper::body::Incoming;
use prometheus::{IntGauge, IntGaugeVec};

use crate::config::Limits;
use crate::engine::recall::KEPT_BYTES_MIN;
use crate::engine::types::Reason;

use super::error::Fault;
use super::forward::SentBody;
use super::stall::Stall;

/// What a client merely announces is not yet counted as held, so only this much room is made for it at first.
const EXPECTED_BYTES_MAX: usize = 1024 * 1024;
/// So many times what has come is made room for, if so much is announced.
const ROOM_FACTOR: usize = 8;

pub enum Collected {
    Whole(Bytes, Permit),
    /// Over a limit: to be streamed through unread, for this reason. What was read until then is still in
    /// memory, and still counts.
    Spilled(SentBody, Reason, Option<Permit>),
}

/// The bodies that are in memory right now.
pub struct Held {
    requests: AtomicUsize,
    bytes: AtomicUsize,
    requests_gauge: IntGauge,
    bytes_gauge: IntGauge,
}

/// One body's share of [`Held`], given back when dropped.
pub struct Permit {
    held: Arc<Held>,
    bytes: usize,
}

impl Held {
    pub fn new(gauge: &IntGaugeVec) -> Held {
        Held {
            requests: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            requests_gauge: gauge.with_label_values(&["requests"]),
            bytes_gauge: gauge.with_label_values(&["bytes"]),
        }
    }

    fn enter(self: &Arc<Self>, limits: &Limits) -> Option<Permit> {
        take(&self.requests, 1, limits.held_requests)?;
        self.requests_gauge.inc();
        Some(Permit { held: self.clone(), bytes: 0 })
    }
}

impl Permit {
    /// Takes room for more bytes, or says that there is none.
    fn grow(&mut self, bytes: usize, limits: &Limits) -> Result<(), Reason> {
        take(&self.held.bytes, bytes, limits.held_bytes).ok_or(Reason::HeldBytes)?;
        self.bytes += bytes;
        self.held.bytes_gauge.add(bytes as i64);
        Ok(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.held.requests.fetch_sub(1, Relaxed);
        self.held.bytes.fetch_sub(self.bytes, Relaxed);
        self.held.requests_gauge.dec();
        self.held.bytes_gauge.sub(self.bytes as i64);
    }
}

fn take(counter: &AtomicUsize, amount: usize, max: usize) -> Option<usize> {
    counter.fetch_update(Relaxed, Relaxed, |now| now.checked_add(amount).filter(|sum| *sum <= max)).ok()
}

pub async fn collect(
    mut body: Incoming,
    headers: &HeaderMap,
    limits: &Limits,
    held: &Arc<Held>,
) -> Result<Collected, Fault> {
    let declared = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if declared > limits.body_bytes {
        return Ok(spilled(Bytes::new(), body, limits, Reason::BodyTooLarge, None));
    }
    // A body that announces trailers is not one piece of bytes; it keeps streaming.
    if headers.contains_key(http::header::TRAILER) {
        return Ok(spilled(Bytes::new(), body, limits, Reason::Trailers, None));
    }
    let Some(mut permit) = held.enter(limits) else {
        return Ok(spilled(Bytes::new(), body, limits, Reason::HeldRequests, None));
    };
    let mut stall = Stall::new(limits.stall);
    let mut collected = Collector { first: None, joined: BytesMut::new(), declared };
    while let Some(frame) = next_frame(&mut body, &mut stall).await? {
        let Ok(data) = frame.into_data() else { continue };
        let fits = match collected.len() + data.len() {
            total if total > limits.body_bytes => Err(Reason::BodyTooLarge),
            _ => permit.grow(data.len(), limits),
        };
        collected.push(data);
        if let Err(reason) = fits {
            return Ok(spilled(collected.finish(), body, limits, reason, Some(permit)));
        }
    }
    Ok(Collected::Whole(collected.finish(), permit))
}

fn spilled(
    head: Bytes,
    rest: Incoming,
    limits: &Limits,
    reason: Reason,
    permit: Option<Permit>,
) -> Collected {
    Collected::Spilled(SentBody::spilled(head, rest, limits.stall), reason, permit)
}

async fn next_frame(body: &mut Incoming, stall: &mut Stall) -> Result<Option<Frame<Bytes>>, Fault> {
    poll_fn(|cx| match Pin::new(&mut *body).poll_frame(cx) {
        Poll::Ready(frame) => {
            stall.progress();
            Poll::Ready(frame.transpose().map_err(|_| Fault::ClientBody))
        }
        Poll::Pending => stall.poll_expired(cx).map(|()| Err(Fault::ClientStalled)),
    })
    .await
}

/// Chunks in, one piece of bytes out.
struct Collector {
    /// The only chunk so far.
    first: Option<Bytes>,
    joined: BytesMut,
    declared: usize,
}

impl Collector {
    fn len(&self) -> usize {
        self.first.as_ref().map_or(0, Bytes::len) + self.joined.len()
    }

    fn push(&mut self, data: Bytes) {
        let came = self.len() + data.len();
        if came == data.len() {
            self.first = Some(data);
            return;
        }
        if came > self.joined.capacity() {
            let room = self.declared.min(EXPECTED_BYTES_MAX.max(came.saturating_mul(ROOM_FACTOR))).max(came);
            self.joined.reserve(room - self.joined.len());
        }
        if let Some(first) = self.first.take() {
            self.joined.extend_from_slice(&first);
        }
        self.joined.extend_from_slice(&data);
    }

    fn finish(self) -> Bytes {
        match self.first {
            Some(whole) if whole.len() >= KEPT_BYTES_MIN => whole,
            // A small part of a connection's buffer would keep all of it in memory.
            Some(whole) => Bytes::copy_from_slice(&whole),
            None => self.joined.freeze(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::recall::BUFFER_BYTES;

    fn collector(declared: usize) -> Collector {
        Collector { first: None, joined: BytesMut::new(), declared }
    }

    /// Where a body ends up that comes in these chunks, and whether that is where its first chunk was.
    fn collected(declared: usize, chunks: &[usize]) -> (Bytes, bool) {
        let mut collector = collector(declared);
        let chunks = chunks.iter().map(|length| Bytes::from(vec![b'x'; *length])).collect::<Vec<_>>();
        let first = chunks.first().map(|chunk| chunk.as_ptr());
        chunks.iter().for_each(|chunk| collector.push(chunk.clone()));
        assert_eq!(collector.len(), chunks.iter().map(Bytes::len).sum::<usize>());
        let whole = collector.finish();
        assert_eq!(whole, chunks.concat());
        let stayed = Some(whole.as_ptr()) == first;
        (whole, stayed)
    }

    #[test]
    fn a_long_body_in_one_chunk_stays_where_it_was_read_to() {
        assert!(collected(KEPT_BYTES_MIN, &[KEPT_BYTES_MIN]).1);
        assert!(!collected(KEPT_BYTES_MIN - 1, &[KEPT_BYTES_MIN - 1]).1);
        assert!(!collected(BUFFER_BYTES, &[BUFFER_BYTES - 1, 1]).1);
        assert!(collected(0, &[]).0.is_empty());
    }

    #[test]
    fn room_is_made_once_for_what_is_announced_and_partly_there() {
        let declared = 3 * EXPECTED_BYTES_MAX;
        let mut collector = collector(declared);
        let chunk = Bytes::from(vec![b'x'; EXPECTED_BYTES_MAX / 4]);
        let mut places = Vec::new();
        for _ in 0..declared / chunk.len() {
            collector.push(chunk.clone());
            places.push(collector.joined.as_ptr());
        }
        // The first chunk stays alone until the second one comes.
        places.remove(0);
        places.dedup();
        assert_eq!(places.len(), 1);
        assert_eq!(collector.joined.capacity(), declared);
    }

    #[test]
    fn little_room_is_made_for_what_is_only_announced() {
        let mut collector = collector(usize::MAX);
        (0..2).for_each(|_| collector.push(Bytes::from_static(b"x")));
        assert!(collector.joined.capacity() <= EXPECTED_BYTES_MAX);
    }
}
