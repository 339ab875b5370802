//! The body of an answer on its way out: paced, compressed, stalled, cut.
//!
//! Frames leave one by one, so a client sees a stream as a model would send it. A cut is a real one: the bytes before
//! it are flushed, then the body fails, and the connection closes without the end that HTTP promised.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;

use super::config::Encoding;
use super::faults::Weather;
use super::recital::{Cue, Cues};
use super::visit::Visit;

/// A side effect of sending a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    Nothing,
    /// The response has begun: its cache entries become readable.
    Publish,
}

#[derive(Debug)]
pub struct Frame {
    pub wait: Duration,
    /// Not before this cue.
    pub cue: Option<(Cues, Cue)>,
    pub bytes: Bytes,
    pub effect: Effect,
}

/// Waits; not at all for zero, which a timer would round up to its next tick.
pub async fn pause(duration: Duration) {
    if !duration.is_zero() {
        tokio::time::sleep(duration).await;
    }
}

/// Between the last byte and the break, so that the connection has written that byte.
const FLUSH_PAUSE: Duration = Duration::from_millis(5);

struct PacedBody {
    visit: Visit,
    frames: VecDeque<Frame>,
    encoder: Option<Encoder>,
    sent: u64,
    /// The byte before which to pause, and for how long.
    stall: Option<(u64, Duration)>,
    cut_at: Option<u64>,
    /// The rest of a frame that a stall has split.
    held_back: Option<Bytes>,
}

/// A body that sends the frames and tells the visit when it begins and ends.
pub fn body(visit: Visit, frames: Vec<Frame>, encoding: Option<Encoding>, weather: &Weather) -> Body {
    let outgoing = PacedBody {
        visit,
        frames: frames.into(),
        encoder: encoding.map(Encoder::new),
        sent: 0,
        stall: weather.stall.map(|(at, ms)| (at, Duration::from_millis(ms))),
        cut_at: weather.cut_at,
        held_back: None,
    };
    Body::from_stream(stream::unfold(outgoing, |mut outgoing| async move {
        let item = outgoing.next().await?;
        Some((item, outgoing))
    }))
}

impl PacedBody {
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        if self.cut_at.is_some_and(|at| self.sent >= at) {
            tokio::time::sleep(FLUSH_PAUSE).await;
            self.visit.cut();
            self.cut_at = None;
            self.frames.clear();
            self.held_back = None;
            return Some(Err(io::Error::new(io::ErrorKind::ConnectionReset, "cut by a fault")));
        }
        if let Some((at, pause)) = self.stall
            && self.sent >= at
        {
            self.stall = None;
            tokio::time::sleep(pause).await;
        }
        let bytes = match self.held_back.take() {
            Some(bytes) => bytes,
            None => self.next_frame().await?,
        };
        Some(Ok(self.release(bytes)))
    }

    async fn next_frame(&mut self) -> Option<Bytes> {
        loop {
            let frame = self.frames.pop_front()?;
            pause(frame.wait).await;
            if let Some((mut cues, cue)) = frame.cue {
                cues.wait_for(cue).await;
            }
            if frame.effect == Effect::Publish {
                self.visit.publish();
            }
            let bytes = match &mut self.encoder {
                None => frame.bytes,
                Some(encoder) => Bytes::from(encoder.encode(&frame.bytes, self.frames.is_empty())),
            };
            if !bytes.is_empty() {
                return Some(bytes);
            }
        }
    }

    /// Lets go what may leave before the next fault.
    fn release(&mut self, mut bytes: Bytes) -> Bytes {
        self.visit.first_byte();
        let room = |at: u64| usize::try_from(at.saturating_sub(self.sent)).unwrap_or(usize::MAX);
        if let Some(most) = self.cut_at.map(room) {
            bytes.truncate(most);
        }
        if let Some((at, _)) = self.stall
            && room(at) < bytes.len()
        {
            self.held_back = Some(bytes.split_off(room(at)));
        }
        self.sent += bytes.len() as u64;
        // A connection may not ask again after the last byte it expects, so the end is noted here.
        let is_cut = self.cut_at.is_some_and(|at| self.sent >= at);
        if self.frames.is_empty() && self.held_back.is_none() && !is_cut {
            self.visit.complete();
        }
        bytes
    }
}

/// Compresses frame by frame, so that each can be decoded as it arrives.
enum Encoder {
    Gzip(flate2::write::GzEncoder<Vec<u8>>),
    Deflate(flate2::write::ZlibEncoder<Vec<u8>>),
    Br(Box<brotli::CompressorWriter<Vec<u8>>>),
    Zstd(zstd::stream::write::Encoder<'static, Vec<u8>>),
    /// The library refused to start: nothing is compressed, and the client sees a broken body.
    Broken,
}

/// Fast settings: the point is the coding, not the ratio.
const BROTLI_QUALITY: u32 = 3;
const BROTLI_WINDOW_BITS: u32 = 20;
const BROTLI_BUFFER_BYTES: usize = 4096;
const ZSTD_LEVEL: i32 = 1;

impl Encoder {
    fn new(encoding: Encoding) -> Self {
        let level = flate2::Compression::fast();
        match encoding {
            Encoding::Gzip => Encoder::Gzip(flate2::write::GzEncoder::new(Vec::new(), level)),
            Encoding::Deflate => Encoder::Deflate(flate2::write::ZlibEncoder::new(Vec::new(), level)),
            Encoding::Br => Encoder::Br(Box::new(brotli::CompressorWriter::new(
                Vec::new(),
                BROTLI_BUFFER_BYTES,
                BROTLI_QUALITY,
                BROTLI_WINDOW_BITS,
            ))),
            Encoding::Zstd => match zstd::stream::write::Encoder::new(Vec::new(), ZSTD_LEVEL) {
                Ok(encoder) => Encoder::Zstd(encoder),
                Err(_) => Encoder::Broken,
            },
        }
    }

    /// The compressed bytes of one frame, and the trailer behind the last. Writing to memory does not fail.
    fn encode(&mut self, bytes: &[u8], is_last: bool) -> Vec<u8> {
        match self {
            Encoder::Gzip(encoder) => {
                let _ = encoder.write_all(bytes).and_then(|()| encoder.flush());
                let _ = if is_last { encoder.try_finish() } else { Ok(()) };
                std::mem::take(encoder.get_mut())
            }
            Encoder::Deflate(encoder) => {
                let _ = encoder.write_all(bytes).and_then(|()| encoder.flush());
                let _ = if is_last { encoder.try_finish() } else { Ok(()) };
                std::mem::take(encoder.get_mut())
            }
            Encoder::Br(encoder) => {
                let _ = encoder.write_all(bytes).and_then(|()| encoder.flush());
                let mut written = std::mem::take(encoder.get_mut());
                if is_last && let Encoder::Br(encoder) = std::mem::replace(self, Encoder::Broken) {
                    written.extend(encoder.into_inner());
                }
                written
            }
            Encoder::Zstd(encoder) => {
                let _ = encoder.write_all(bytes).and_then(|()| encoder.flush());
                let mut written = std::mem::take(encoder.get_mut());
                if is_last && let Encoder::Zstd(encoder) = std::mem::replace(self, Encoder::Broken) {
                    written.extend(encoder.finish().unwrap_or_default());
                }
                written
            }
            Encoder::Broken => Vec::new(),
        }
    }
}

/// Compresses a whole body at once.
pub fn compress(bytes: &[u8], encoding: Encoding) -> Vec<u8> {
    Encoder::new(encoding).encode(bytes, true)
}
