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
use crate::engine::types::Reason;

use super::error::Fault;
use super::forward::SentBody;
use super::stall::Stall;

/// What a client merely announces is not yet counted as held, so only this much room is made for it.
const EXPECTED_BYTES_MAX: usize = 1024 * 1024;

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
    let mut collected = Collector { first: None, joined: None, expected: declared.min(EXPECTED_BYTES_MAX) };
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

/// Chunks in, one piece of bytes out. A body that came as one chunk is copied too: a part of the connection's
/// buffer would keep all of that buffer in memory for as long as the body is remembered.
struct Collector {
    first: Option<Bytes>,
    joined: Option<BytesMut>,
    /// How much room to make at once.
    expected: usize,
}

impl Collector {
    fn len(&self) -> usize {
        self.first.as_ref().map_or(0, Bytes::len) + self.joined.as_ref().map_or(0, BytesMut::len)
    }

    fn push(&mut self, data: Bytes) {
        if self.first.is_none() && self.joined.is_none() {
            self.first = Some(data);
            return;
        }
        let joined = self.joined.get_or_insert_with(|| BytesMut::with_capacity(self.expected));
        if let Some(first) = self.first.take() {
            joined.extend_from_slice(&first);
        }
        joined.extend_from_slice(&data);
    }

    fn finish(self) -> Bytes {
        let first = self.first.map(|first| Bytes::copy_from_slice(&first));
        self.joined.map(BytesMut::freeze).or(first).unwrap_or_default()
    }
}
