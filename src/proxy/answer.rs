//! The body of an upstream's answer, which may be looked into before it is relayed.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, timeout_at};

use super::decode::{Decoder, Sink};

/// Errors are a few hundred bytes; of a longer one the rest does not matter.
const PEEK_BYTES_MAX: usize = 64 << 10;
/// They come together with their head. What comes later is not waited for: the client is to hear of the error at once.
const PEEK_TIME_MAX: Duration = Duration::from_millis(250);

pub struct UpstreamBody {
    /// Frames that were read from it and have yet to be relayed.
    seen: VecDeque<Result<Frame<Bytes>, hyper::Error>>,
    /// The decoded beginning, once it was looked into.
    beginning: Option<Bytes>,
    rest: Incoming,
}

impl UpstreamBody {
    pub fn new(body: Incoming) -> UpstreamBody {
        UpstreamBody { seen: VecDeque::new(), beginning: None, rest: body }
    }

    /// The beginning of the body, decoded, as far as it comes at once; all of it is still relayed. The same however often
    /// it is asked for.
    pub async fn peek(&mut self, headers: &HeaderMap) -> Bytes {
        if let Some(beginning) = &self.beginning {
            return beginning.clone();
        }
        let beginning = Bytes::from(self.read_beginning(headers).await);
        self.beginning.insert(beginning).clone()
    }

    async fn read_beginning(&mut self, headers: &HeaderMap) -> Vec<u8> {
        let deadline = Instant::now() + PEEK_TIME_MAX;
        let mut decoder = Decoder::new(headers, Text(Vec::new()), PEEK_BYTES_MAX);
        let mut read = 0;
        while read < PEEK_BYTES_MAX && !self.rest.is_end_stream() {
            let Ok(Some(frame)) = timeout_at(deadline, self.rest.frame()).await else { break };
            let data = frame.as_ref().ok().and_then(Frame::data_ref);
            read += data.map_or(PEEK_BYTES_MAX, Bytes::len);
            if let (Some(decoder), Some(data)) = (&mut decoder, data) {
                decoder.push(data);
            }
            self.seen.push_back(frame);
        }
        let text = decoder.as_mut().and_then(Decoder::sink).map(|text| std::mem::take(&mut text.0));
        text.unwrap_or_default()
    }
}

struct Text(Vec<u8>);

impl Sink for Text {
    fn take(&mut self, bytes: &[u8]) {
        let room = PEEK_BYTES_MAX.saturating_sub(self.0.len());
        self.0.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.seen.pop_front() {
            Some(frame) => Poll::Ready(Some(frame)),
            None => Pin::new(&mut self.rest).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.seen.is_empty() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let seen: usize =
            self.seen.iter().flatten().filter_map(Frame::data_ref).map(|data: &Bytes| data.len()).sum();
        let mut hint = self.rest.size_hint();
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + seen as u64);
        }
        hint.set_lower(hint.lower() + seen as u64);
        hint
    }
}
