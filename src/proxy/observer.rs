//! Reads a copy of an answer while it passes by.

use http::{HeaderMap, header};

use crate::config::Limits;
use crate::engine::answer::sse::Framer;
use crate::engine::answer::turn::{Block, Turn, TurnBuilder, TurnLimits};
use crate::engine::answer::usage::Usage;

use super::decode::{Decoder, Sink};

/// The most of an unfinished event that an answer without a charge may keep.
const FREE_EVENT_BYTES: usize = 256 << 10;

/// Reads a copy of an answer.
pub struct Observer {
    decoder: Decoder<Answer>,
}

/// The decoded answer as far as it is known.
enum Answer {
    Stream { framer: Framer, builder: Box<TurnBuilder> },
    Json { body: Vec<u8>, limits: TurnLimits, overflowed: bool },
}

impl Observer {
    pub fn new(headers: &HeaderMap, limits: &Limits) -> Option<Observer> {
        let turn_limits = TurnLimits { bytes: limits.observe_bytes, tool_uses: limits.tool_uses };
        let kind = headers.get(header::CONTENT_TYPE)?.as_bytes().to_ascii_lowercase();
        let answer = if kind.starts_with(b"text/event-stream") {
            Answer::Stream {
                framer: Framer::new(limits.observe_bytes),
                builder: Box::new(TurnBuilder::new(turn_limits)),
            }
        } else if kind.starts_with(b"application/json") {
            Answer::Json { body: Vec::new(), limits: turn_limits, overflowed: false }
        } else {
            return None;
        };
        Some(Observer { decoder: Decoder::new(headers, answer, limits.observe_bytes)? })
    }

    pub fn push(&mut self, data: &[u8]) {
        self.decoder.push(data);
    }

    /// The number of bytes of the answer that are kept.
    pub fn kept_bytes(&mut self) -> usize {
        match self.decoder.sink() {
            Some(Answer::Stream { framer, builder }) => framer.kept_bytes() + builder.kept_bytes(),
            Some(Answer::Json { body, .. }) => body.capacity(),
            None => 0,
        }
    }

    /// Forgets what was said, and goes on counting what is billed while events are small.
    pub fn forget(&mut self) {
        match self.decoder.sink() {
            Some(Answer::Stream { framer, builder }) => {
                builder.overflow();
                if framer.kept_bytes() > FREE_EVENT_BYTES {
                    framer.give_up();
                }
            }
            Some(Answer::Json { body, overflowed, .. }) => (*body, *overflowed) = (Vec::new(), true),
            None => {}
        }
    }

    /// Returns the usage billed so far, once the first content has come. One JSON body comes all at once, and what
    /// cannot be decoded is taken at its first byte.
    pub fn begun(&mut self) -> Option<Option<Usage>> {
        match self.decoder.sink() {
            Some(Answer::Stream { builder, .. }) => builder.has_begun().then(|| builder.usage()),
            Some(Answer::Json { .. }) | None => Some(None),
        }
    }

    /// About how many bytes are worked on to hand out the blocks that finished since; 0 if none has.
    pub fn finished_bytes(&mut self) -> usize {
        match self.decoder.sink() {
            Some(Answer::Stream { builder, .. }) => builder.finished_bytes(),
            _ => 0,
        }
    }

    /// Hands out the blocks of a stream that finished since, with the id of their message.
    pub fn finished(&mut self, mut give: impl FnMut(Option<&str>, Block)) {
        if let Some(Answer::Stream { builder, .. }) = self.decoder.sink() {
            let blocks: Vec<Block> = builder.finished().collect();
            blocks.into_iter().for_each(|block| give(builder.id(), block));
        }
    }

    pub fn is_stream(&mut self) -> bool {
        matches!(self.decoder.sink(), Some(Answer::Stream { .. }))
    }

    pub fn finish(mut self) -> Turn {
        let failed = self.decoder.failed();
        match self.decoder.sink() {
            Some(Answer::Stream { builder, .. }) => {
                let empty = TurnBuilder::new(TurnLimits { bytes: 0, tool_uses: 0 });
                let mut builder = std::mem::replace(&mut **builder, empty);
                if failed {
                    builder.overflow();
                }
                builder.finish()
            }
            Some(Answer::Json { body, limits, overflowed: false }) if !failed => {
                Turn::from_json(body, *limits)
            }
            _ => Turn::default(),
        }
    }
}

impl Sink for Answer {
    fn take(&mut self, bytes: &[u8]) {
        match self {
            Answer::Stream { framer, builder } => {
                framer.push(bytes, |event| builder.push(event.data));
                if framer.overflowed() {
                    builder.overflow();
                }
            }
            Answer::Json { body, limits, overflowed } => {
                *overflowed |= body.len() + bytes.len() > limits.bytes;
                if *overflowed {
                    *body = Vec::new();
                } else {
                    body.extend_from_slice(bytes);
                }
            }
        }
    }
}
