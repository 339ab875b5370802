//! An answer, put together again: from the events of a stream or from one JSON body.
//!
//! Later requests carry the assistant turn back, so it must be rebuilt *faithfully*: each block starts from
//! the raw JSON of its `content_block_start`, unknown members included, and deltas are spliced into it as
//! raw text: `text` and `thinking` append, `signature` replaces, `citation` joins a list, the pieces of
//! `partial_json` concatenate to the input in the model's own key order. A delta of a kind we do not know,
//! a broken event, a stream that stops early or a limit makes the turn less than [`Wholeness::Whole`];
//! usage and ids are still reported, but the blocks must not be replayed.

mod block;
mod wire;

use std::borrow::Cow;

use super::diagnosis::Diagnosis;
use super::usage::{Bill, Usage};
use crate::engine::request::json;
use block::StreamedBlock;
use wire::{RawMessage, WireError, WireEvent};

/// Charged to the limit for each block besides its text, so that empty blocks are bounded too.
const BLOCK_OVERHEAD_BYTES: usize = 256;
/// Ids, models and stop reasons are short; anything longer is not one.
const NAME_BYTES_MAX: usize = 256;

/// A finished answer.
#[derive(Clone, Debug, Default)]
pub struct Turn {
    pub id: Option<String>,
    pub model: Option<String>,
    pub stop_reason: Option<String>,
    /// `None` until the upstream reported any usage.
    pub bill: Option<Bill>,
    /// The `error.type` of an error answer or of an `error` event within a stream.
    pub error: Option<String>,
    /// The verdict of the upstream on the prompt, if it was asked.
    pub diagnostics: Option<Diagnosis>,
    pub blocks: Vec<Block>,
    pub wholeness: Wholeness,
}

/// One content block as the next request must carry it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub kind: String,
    pub json: Vec<u8>,
}

impl Block {
    /// The id of a client's tool call.
    pub fn call_id(&self) -> Option<Cow<'_, str>> {
        if self.kind != "tool_use" {
            return None;
        }
        json::text(&self.json, &json::member(&self.json, 0, "id")?)
    }

    /// Returns true if it is a text of nothing but white space.
    pub fn is_blank_text(&self) -> bool {
        self.kind == "text"
            && json::member(&self.json, 0, "text").is_some_and(|text| json::is_blank(&self.json, &text))
    }
}

/// The completeness of the blocks. Only whole ones may be sent as what the model said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wholeness {
    /// Every block is there, byte for byte.
    Whole,
    /// The answer stopped before its end.
    #[default]
    Unfinished,
    /// Something could not be rebuilt: an unknown delta, a broken event, invalid tool input, an answer that another model
    /// took over.
    Unfaithful,
    /// More bytes or tool calls than the limits allow.
    TooLarge,
}

/// The start of an assistant message; its blocks follow, with a comma between them.
pub const MESSAGE_OPENING: &[u8] = br#"{"role":"assistant","content":["#;

/// The assistant message of these blocks.
pub fn assistant_message<'b>(blocks: impl IntoIterator<Item = &'b [u8]>) -> Vec<u8> {
    let blocks: Vec<&[u8]> = blocks.into_iter().collect();
    [MESSAGE_OPENING, &blocks.join(&b","[..]), b"]}"].concat()
}

/// The limits for what one turn keeps in memory.
#[derive(Clone, Copy, Debug)]
pub struct TurnLimits {
    pub bytes: usize,
    pub tool_uses: usize,
}

impl Turn {
    /// An answer that came as one JSON body.
    pub fn from_json(body: &[u8], limits: TurnLimits) -> Turn {
        let Some(message) = RawMessage::read(body) else {
            return Turn { wholeness: Wholeness::Unfaithful, ..Turn::default() };
        };
        let mut turn = Turn { error: message.error.and_then(error_type), ..Turn::default() };
        turn.start(&message);
        turn.wholeness = match message.content.map(|raw| blocks_of(raw, limits)) {
            _ if turn.error.is_some() => Wholeness::Unfinished,
            None => Wholeness::Unfinished,
            Some(Err(why)) => why,
            Some(Ok(blocks)) => turn.take(blocks),
        };
        turn
    }

    /// Returns the usage of the run that read the prompt as it was sent.
    pub fn usage(&self) -> Option<Usage> {
        self.bill.as_ref().map(Bill::prompt)
    }

    /// The assistant message that the next request would carry, if it can be had faithfully.
    pub fn message(&self) -> Option<Vec<u8>> {
        if self.wholeness != Wholeness::Whole {
            return None;
        }
        Some(assistant_message(self.blocks.iter().map(|block| block.json.as_slice())))
    }

    /// Takes over all blocks; how far they can be replayed.
    fn take(&mut self, blocks: Vec<Block>) -> Wholeness {
        self.blocks = blocks;
        // Where another model took over, some of the blocks before must not come back, and which is not said.
        let fell_back = self.blocks.iter().any(|block| block.kind == "fallback");
        if fell_back { Wholeness::Unfaithful } else { Wholeness::Whole }
    }

    fn start(&mut self, message: &RawMessage<'_>) {
        self.id = message.id.and_then(name);
        self.model = message.model.and_then(name);
        self.stop_reason = message.stop_reason.and_then(name);
        self.diagnostics = message.diagnostics.map(Diagnosis::read);
        if let Some(usage) = message.usage {
            self.bill(usage);
        }
    }

    fn bill(&mut self, usage: &str) {
        if usage.starts_with('{') {
            self.bill.get_or_insert_default().update(usage);
        }
    }
}

/// Builds a [`Turn`] from the events of a stream.
#[derive(Debug)]
pub struct TurnBuilder {
    turn: Turn,
    blocks: Vec<StreamedBlock>,
    limits: TurnLimits,
    kept_bytes: usize,
    tool_uses: usize,
    /// The number of blocks that [`TurnBuilder::finished`] has given out.
    given: usize,
    stopped: bool,
    spoilt: Option<Wholeness>,
}

impl TurnBuilder {
    pub fn new(limits: TurnLimits) -> TurnBuilder {
        TurnBuilder {
            turn: Turn::default(),
            blocks: Vec::new(),
            limits,
            kept_bytes: 0,
            tool_uses: 0,
            given: 0,
            stopped: false,
            spoilt: None,
        }
    }

    /// The id of the message, once its start was seen.
    pub fn id(&self) -> Option<&str> {
        self.turn.id.as_deref()
    }

    /// About how many bytes are worked on to give out the blocks that stopped since; 0 if none has.
    pub fn finished_bytes(&self) -> usize {
        let has_stopped = self.blocks.get(self.given).is_some_and(|block| block.stopped);
        if has_stopped { self.kept_bytes } else { 0 }
    }

    /// The blocks that stopped since the last call, in order, each as the finished turn will hold it: clients
    /// act on a block while the next ones still stream.
    pub fn finished(&mut self) -> impl Iterator<Item = Block> {
        std::iter::from_fn(|| {
            let block = self.blocks.get(self.given).filter(|block| block.stopped)?.rebuild();
            self.given += 1;
            if block.is_none() {
                // The end would say so too; until then no further attempt is needed.
                self.spoil(Wholeness::Unfaithful);
            }
            block
        })
    }

    /// Takes in the data of one event. Events of unknown type change nothing.
    pub fn push(&mut self, data: &[u8]) {
        let Ok(event) = serde_json::from_slice::<WireEvent<'_>>(data) else {
            return self.spoil(Wholeness::Unfaithful);
        };
        match event.kind.get() {
            r#""content_block_delta""# => self.delta(&event),
            r#""content_block_start""# => self.block_start(&event),
            r#""content_block_stop""# => self.block_stop(&event),
            r#""message_start""# => {
                match event.message.and_then(|message| RawMessage::read(message.get().as_bytes())) {
                    Some(message) => self.turn.start(&message),
                    _ => self.spoil(Wholeness::Unfaithful),
                }
            }
            r#""message_delta""# => self.message_delta(&event),
            r#""message_stop""# => self.stopped = true,
            r#""error""# => {
                self.turn.error =
                    event.error.and_then(|error| error_type(error.get())).or(Some("unknown".into()))
            }
            _ => {}
        }
    }

    /// Returns true if the first block has begun, or there will be none.
    pub fn has_begun(&self) -> bool {
        !self.blocks.is_empty() || self.stopped || self.spoilt.is_some()
    }

    /// Returns the usage that was billed for the prompt so far. A compaction reports its counts only at its end, and none
    /// until then.
    pub fn usage(&self) -> Option<Usage> {
        self.turn.usage().filter(|usage| usage.prompt() > 0)
    }

    /// The events could not be framed any further.
    pub fn overflow(&mut self) {
        self.spoil(Wholeness::TooLarge);
    }

    /// The number of bytes of blocks that are kept.
    pub fn kept_bytes(&self) -> usize {
        if self.spoilt.is_some() { 0 } else { self.kept_bytes }
    }

    pub fn finish(self) -> Turn {
        let mut turn = self.turn;
        let ended = self.stopped && turn.error.is_none() && self.blocks.iter().all(|block| block.stopped);
        turn.wholeness = match self.spoilt {
            Some(why) => why,
            None if !ended => Wholeness::Unfinished,
            None => match self.blocks.iter().map(StreamedBlock::rebuild).collect() {
                Some(blocks) => turn.take(blocks),
                None => Wholeness::Unfaithful,
            },
        };
        turn
    }

    fn block_start(&mut self, event: &WireEvent<'_>) {
        let (Some(index), Some(start)) = (event.index, event.content_block) else {
            return self.spoil(Wholeness::Unfaithful);
        };
        let Some(kind) = block_kind(start.get().as_bytes()) else {
            return self.spoil(Wholeness::Unfaithful);
        };
        self.tool_uses += usize::from(kind == "tool_use");
        if self.tool_uses > self.limits.tool_uses {
            return self.spoil(Wholeness::TooLarge);
        }
        // Blocks come in order; that also lets a delta find its block by search.
        if self.blocks.last().is_some_and(|last| last.index >= index) {
            return self.spoil(Wholeness::Unfaithful);
        }
        if self.keep(start.get().len() + BLOCK_OVERHEAD_BYTES) {
            self.blocks.push(StreamedBlock::new(index, kind, start));
        }
    }

    fn delta(&mut self, event: &WireEvent<'_>) {
        let Some(delta) = event.delta else { return self.spoil(Wholeness::Unfaithful) };
        if !self.keep(delta.get().len()) {
            return;
        }
        let applied = self.open_block(event).and_then(|block| block.apply(delta));
        if applied.is_none() {
            self.spoil(Wholeness::Unfaithful);
        }
    }

    fn block_stop(&mut self, event: &WireEvent<'_>) {
        match self.open_block(event) {
            Some(block) => block.stopped = true,
            None => self.spoil(Wholeness::Unfaithful),
        }
    }

    fn open_block(&mut self, event: &WireEvent<'_>) -> Option<&mut StreamedBlock> {
        let found = self.blocks.binary_search_by_key(&event.index?, |block| block.index).ok()?;
        self.blocks.get_mut(found).filter(|block| !block.stopped)
    }

    fn message_delta(&mut self, event: &WireEvent<'_>) {
        if let Some(delta) = event.delta.and_then(|raw| RawMessage::read(raw.get().as_bytes()))
            && let Some(reason) = delta.stop_reason.and_then(name)
        {
            self.turn.stop_reason = Some(reason);
        }
        if let Some(usage) = event.usage {
            self.turn.bill(usage.get());
        }
    }

    /// Charges `bytes` to the limit; `false` once the turn is spoilt, so that nothing more is kept.
    fn keep(&mut self, bytes: usize) -> bool {
        self.kept_bytes += bytes;
        if self.kept_bytes > self.limits.bytes {
            self.spoil(Wholeness::TooLarge);
        }
        self.spoilt.is_none()
    }

    /// The blocks can never be replayed: forget them, keep counting usage.
    fn spoil(&mut self, why: Wholeness) {
        self.spoilt.get_or_insert(why);
        self.blocks = Vec::new();
    }
}

fn blocks_of(content: &str, limits: TurnLimits) -> Result<Vec<Block>, Wholeness> {
    let bytes = content.as_bytes();
    let mut blocks = Vec::new();
    let (mut kept_bytes, mut tool_uses) = (0, 0);
    let mut refused = None;
    let walked = json::walk_array(bytes, 0, |start| {
        let end = json::value_end(bytes, start)?;
        let json = &bytes[start..end];
        let kind = block_kind(json);
        kept_bytes += json.len() + BLOCK_OVERHEAD_BYTES;
        tool_uses += usize::from(kind.as_deref() == Some("tool_use"));
        match kind {
            _ if kept_bytes > limits.bytes || tool_uses > limits.tool_uses => {
                refused = Some(Wholeness::TooLarge)
            }
            Some(kind) if refused.is_none() => blocks.push(Block { kind, json: json.to_vec() }),
            Some(_) => {}
            None => refused = Some(Wholeness::Unfaithful),
        }
        Ok(end)
    });
    match refused {
        None if walked.is_ok() => Ok(blocks),
        why => Err(why.unwrap_or(Wholeness::Unfaithful)),
    }
}

fn block_kind(block: &[u8]) -> Option<String> {
    let kind = json::text(block, &json::member(block, 0, "type")?)?;
    (kind.len() <= NAME_BYTES_MAX).then(|| kind.into_owned())
}

/// The text of a short JSON string.
fn name(raw: &str) -> Option<String> {
    let name = json::text(raw.as_bytes(), &(0..raw.len()))?;
    (name.len() <= NAME_BYTES_MAX).then(|| name.into_owned())
}

/// The types of errors that the API documents.
const ERROR_TYPES: [&str; 11] = [
    "invalid_request_error",
    "authentication_error",
    "billing_error",
    "permission_error",
    "not_found_error",
    "conflict_error",
    "request_too_large",
    "rate_limit_error",
    "timeout_error",
    "api_error",
    "overloaded_error",
];

/// The `type` of an error object, if it is a known one: it goes into logs.
fn error_type(raw: &str) -> Option<String> {
    let error: WireError<'_> = serde_json::from_str(raw).ok()?;
    error.kind.and_then(|kind| name(kind.get())).filter(|kind| ERROR_TYPES.contains(&&**kind))
}

#[cfg(test)]
mod tests;
