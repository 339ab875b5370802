//! Collects the body of a Messages call, within limits.
//!
//! One body may have `limits.body_bytes`. All collected bodies together may be `limits.held_requests` and have
//! `limits.held_bytes`. A body that does not fit is not refused: the part that was read is sent first, and the rest
//! is streamed after it, unread.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame};
use hyper::body::Incoming;

use crate::config::Limits;
use crate::engine::words::Reason;
use crate::proxy::account::{Accounts, Charge, Payer};

use super::displaced::UploadPlace;
use super::error::Fault;
use super::forward::SentBody;
use super::large;
use super::stall::Upload;

/// The most bytes that are allocated up front for a body of announced length: bytes to come are not counted as held.
const EXPECTED_BYTES_MAX: usize = 2 * 1024 * 1024;
/// Beyond that, a body may allocate this many times the bytes that have come, up to the announced length.
const ROOM_FACTOR: usize = 8;

pub enum Collected {
    Whole(Bytes, Permit),
    /// The body is streamed through unread, for this reason. The part that was read before is still in memory, and
    /// still counts as held.
    Spilled(SentBody, Reason, Option<Permit>),
}

/// The place of one body in memory, given back when dropped.
pub struct Permit {
    request: Charge,
    bytes: Charge,
    /// How many of them are not the body's, but of the conversation that it goes on from.
    conversation: usize,
    /// How many of them what was read of the body takes beside its bytes.
    reading: usize,
}

impl Permit {
    fn new(payer: Payer, limits: &Limits, accounts: &Accounts) -> Option<Permit> {
        let request = accounts.requests.take_one(payer, limits.held_requests)?;
        let bytes = accounts.bytes.open(payer);
        Some(Permit { request, bytes, conversation: 0, reading: 0 })
    }

    #[cfg(test)]
    pub fn of_a_test(limits: &Limits) -> Permit {
        use super::account::Standing;
        let payer =
            Payer { tenant: crate::engine::words::TenantId::NOBODY, standing: Standing::WithChildren };
        Permit::new(payer, limits, &Accounts::default()).unwrap()
    }

    /// What the bytes of the body are charged to.
    pub fn charge(&self) -> &Charge {
        &self.bytes
    }

    /// Counts the conversation that a body goes on from as held too, once, or returns the reason why that is not allowed.
    pub(super) fn hold_conversation(&mut self, bytes: usize, limits: &Limits) -> Result<(), Reason> {
        self.grow(bytes.saturating_sub(self.conversation), limits)?;
        self.conversation = self.conversation.max(bytes);
        Ok(())
    }

    /// Counts what was read of the body as held: small parts take many times their bytes. A body that is read again takes
    /// no more than before.
    pub(super) fn charge_reading(&mut self, bytes: usize, limits: &Limits) -> Result<(), Reason> {
        self.grow(bytes.saturating_sub(self.reading), limits)?;
        self.reading = self.reading.max(bytes);
        Ok(())
    }

    /// Counts more bytes as held, or returns the reason why that is not allowed.
    pub(super) fn grow(&mut self, bytes: usize, limits: &Limits) -> Result<(), Reason> {
        if self.bytes.grow(bytes, limits.held_bytes) { Ok(()) } else { Err(Reason::HeldBytes) }
    }
}

pub async fn collect(
    mut body: Incoming,
    headers: &HeaderMap,
    limits: &Limits,
    (payer, accounts): (Payer, &Accounts),
    mut upload: Upload,
) -> Result<Collected, Fault> {
    let declared = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if declared > limits.body_bytes {
        return Ok(spilled(Bytes::new(), body, upload, Reason::BodyTooLarge, None));
    }
    // A body with trailers is more than its bytes, so it is streamed.
    if headers.contains_key(http::header::TRAILER) {
        return Ok(spilled(Bytes::new(), body, upload, Reason::Trailers, None));
    }
    let Some(mut permit) = Permit::new(payer, limits, accounts) else {
        return Ok(spilled(Bytes::new(), body, upload, Reason::HeldRequests, None));
    };
    let mut collected = Collector { joined: Vec::new(), declared };
    let place = if body.is_end_stream() { None } else { permit.request.upload() };
    loop {
        let frame = match next_frame(&mut body, &mut upload, place.as_ref()).await? {
            NextPart::Frame(frame) => frame,
            NextPart::End => break,
            NextPart::MakeRoom => {
                let head = collected.finish();
                return Ok(spilled(head, body, upload, Reason::HeldRequests, Some(permit)));
            }
        };
        let Ok(data) = frame.into_data() else { continue };
        let fits = match collected.joined.len() + data.len() {
            total if total > limits.body_bytes => Err(Reason::BodyTooLarge),
            _ => permit.grow(data.len(), limits),
        };
        collected.push(&data);
        if let Err(reason) = fits {
            return Ok(spilled(collected.finish(), body, upload, reason, Some(permit)));
        }
    }
    Ok(Collected::Whole(collected.finish(), permit))
}

fn spilled(head: Bytes, rest: Incoming, upload: Upload, reason: Reason, permit: Option<Permit>) -> Collected {
    Collected::Spilled(SentBody::spilled(head, rest, upload), reason, permit)
}

enum NextPart {
    Frame(Frame<Bytes>),
    End,
    /// Another takes the place in memory.
    MakeRoom,
}

async fn next_frame(
    body: &mut Incoming,
    upload: &mut Upload,
    place: Option<&UploadPlace>,
) -> Result<NextPart, Fault> {
    poll_fn(|cx| match Pin::new(&mut *body).poll_frame(cx) {
        Poll::Ready(frame) => {
            let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()).and_then(Frame::data_ref);
            upload.progress(data.map_or(0, Bytes::len));
            if let Some(place) = place {
                place.moved();
            }
            let frame = frame.transpose().map_err(|_| Fault::ClientBody);
            Poll::Ready(frame.map(|frame| frame.map_or(NextPart::End, NextPart::Frame)))
        }
        Poll::Pending if place.is_some_and(|place| place.poll_taken(cx).is_ready()) => {
            Poll::Ready(Ok(NextPart::MakeRoom))
        }
        Poll::Pending => upload.poll_end(cx).map(|end| Err(end.into())),
    })
    .await
}

/// Joins chunks into one piece of bytes. A body that came as one chunk is copied too: it is a part of the
/// connection's buffer, which would stay in memory for as long as the body is remembered, credentials included.
struct Collector {
    joined: Vec<u8>,
    /// The length that the client announced; 0 if it announced none.
    declared: usize,
}

impl Collector {
    fn push(&mut self, chunk: &[u8]) {
        let came = self.joined.len() + chunk.len();
        let room = self.declared.min(EXPECTED_BYTES_MAX.max(came.saturating_mul(ROOM_FACTOR)));
        if (self.joined.capacity() + 1..=room).contains(&came) {
            self.joined.reserve_exact(room - self.joined.len());
        }
        self.joined.extend_from_slice(chunk);
    }

    fn finish(self) -> Bytes {
        large::aside(self.joined.len(), || without_spare(self.joined))
    }
}

/// The bytes of a vector, which may have much unused capacity if it grew chunk by chunk.
pub(super) fn without_spare(bytes: Vec<u8>) -> Bytes {
    if bytes.capacity() - bytes.len() > bytes.len() / 8 {
        Bytes::copy_from_slice(&bytes)
    } else {
        Bytes::from(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_conversation_that_a_body_goes_on_from_is_charged_once() {
        let limits = crate::config::Config::default().limits;
        let mut permit = Permit::of_a_test(&limits);
        for (bytes, charged) in [(1_000, 1_000), (1_000, 1_000), (1_500, 1_500), (500, 1_500)] {
            permit.hold_conversation(bytes, &limits).unwrap();
            assert_eq!(permit.charge().amount(), charged);
        }
        let most = limits.held_bytes + 1_500;
        assert_eq!(permit.hold_conversation(most, &limits), Err(Reason::HeldBytes));
        assert_eq!(permit.charge().amount(), 1_500);
    }

    /// Collects a body in these chunks, and counts how often it was moved.
    fn collected(declared: usize, chunks: impl Iterator<Item = usize>) -> (Collector, usize) {
        let mut collector = Collector { joined: Vec::new(), declared };
        let (mut places, mut whole) = (Vec::new(), Vec::new());
        for (number, length) in chunks.enumerate() {
            let chunk = vec![number as u8; length];
            collector.push(&chunk);
            places.push(collector.joined.as_ptr());
            whole.extend(chunk);
        }
        assert!(collector.joined == whole);
        places.dedup();
        (collector, places.len().saturating_sub(1))
    }

    #[test]
    fn room_is_made_for_what_is_announced_and_not_for_more() {
        for (declared, moves) in [(1, 0), (200_000, 0), (1_100_000, 0), (EXPECTED_BYTES_MAX + 1, 1)] {
            for chunk in [1 << 13, 1 << 17, 1 << 24] {
                let chunks = (0..declared).step_by(chunk).map(|from| chunk.min(declared - from));
                let (collector, moved) = collected(declared, chunks);
                assert_eq!(collector.joined.capacity(), declared, "in chunks of {chunk}");
                assert!(moved <= moves, "{moved} for {declared} in chunks of {chunk}");
                let at = collector.joined.as_ptr();
                assert_eq!(collector.finish().as_ptr(), at, "nothing to spare");
            }
        }
    }

    #[test]
    fn little_room_is_made_for_what_is_only_announced() {
        let (collector, _) = collected(usize::MAX, [1, 1].into_iter());
        assert_eq!(collector.joined.capacity(), EXPECTED_BYTES_MAX);
    }

    #[test]
    fn what_was_not_announced_keeps_no_room_to_spare() {
        let (collector, _) = collected(0, std::iter::repeat_n(1_000, 33));
        let (room, at) = (collector.joined.capacity(), collector.joined.as_ptr());
        assert!(room > 33_000 + 33_000 / 8, "{room}");
        let body = collector.finish();
        assert!(body.len() == 33_000 && body.as_ptr() != at);
        assert!(collected(0, [].into_iter()).0.finish().is_empty());
    }

    #[test]
    fn more_than_was_announced_is_collected_all_the_same() {
        assert_eq!(collected(10, [8, 8].into_iter()).0.finish().len(), 16);
    }
}
