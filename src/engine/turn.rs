//! An answer, put together again: from the events of a stream or from one JSON body.
//!
//! Later requests carry the assistant turn back, so it must be rebuilt *faithfully*: each block starts from
//! the raw JSON of its `content_block_start`, unknown members included, and deltas are spliced into it as
//! raw text: `text` and `thinking` append, `signature` replaces, `citation` joins a list, the pieces of
//! `partial_json` concatenate to the input in the model's own key order. A delta of a kind we do not know,
//! a broken event, a stream that stops early or a limit makes the turn less than [`Wholeness::Whole`];
//! usage and ids are still reported, but nobody may replay the blocks.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::json;
use super::usage::Usage;

/// What is charged to the limit for each block besides its text, so that empty blocks are bounded too.
const BLOCK_OVERHEAD_BYTES: usize = 256;
/// Ids, models and stop reasons are short; anything longer is not one.
const NAME_BYTES_MAX: usize = 256;

/// A finished answer.
#[derive(Clone, Debug, Default)]
pub struct Turn {
    pub id: Option<String>,
    pub model: Option<String>,
    pub stop_reason: Option<String>,
    /// `None` until the upstream reported any.
    pub usage: Option<Usage>,
    /// The `error.type` of an error answer or of an `error` event within a stream.
    pub error: Option<String>,
    pub blocks: Vec<Block>,
    pub wholeness: Wholeness,
}

/// One content block as the next request must carry it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub kind: String,
    pub json: Vec<u8>,
}

/// Whether the blocks may stand for what the model said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wholeness {
    /// Every block is there, byte for byte.
    Whole,
    /// The answer stopped before its end.
    #[default]
    Unfinished,
    /// Something could not be rebuilt: an unknown delta, a broken event, invalid tool input.
    Unfaithful,
    /// More bytes or tool calls than the limits allow.
    TooLarge,
}

/// What one turn may keep in memory.
#[derive(Clone, Copy, Debug)]
pub struct TurnLimits {
    pub bytes: usize,
    pub tool_uses: usize,
}

impl Turn {
    /// An answer that came as one JSON body.
    pub fn from_json(body: &[u8], limits: TurnLimits) -> Turn {
        let Ok(message) = serde_json::from_slice::<WireMessage<'_>>(body) else {
            return Turn { wholeness: Wholeness::Unfaithful, ..Turn::default() };
        };
        let mut turn = Turn { error: message.error.and_then(error_type), ..Turn::default() };
        turn.start(&message);
        turn.wholeness = match message.content.map(|raw| blocks_of(raw, limits)) {
            _ if turn.error.is_some() => Wholeness::Unfinished,
            None => Wholeness::Unfinished,
            Some(Err(why)) => why,
            Some(Ok(blocks)) => {
                turn.blocks = blocks;
                Wholeness::Whole
            }
        };
        turn
    }

    /// The assistant message that the next request would carry, if it can be had faithfully.
    pub fn message(&self) -> Option<Vec<u8>> {
        if self.wholeness != Wholeness::Whole {
            return None;
        }
        let blocks: Vec<&[u8]> = self.blocks.iter().map(|block| block.json.as_slice()).collect();
        Some([&b"{\"role\":\"assistant\",\"content\":["[..], &blocks.join(&b","[..]), b"]}"].concat())
    }

    fn start(&mut self, message: &WireMessage<'_>) {
        self.id = message.id.and_then(name);
        self.model = message.model.and_then(name);
        self.stop_reason = message.stop_reason.and_then(name);
        if let Some(usage) = message.usage {
            self.bill(usage);
        }
    }

    fn bill(&mut self, usage: &RawValue) {
        if usage.get().starts_with('{') {
            self.usage.get_or_insert_default().update(usage.get());
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
    stopped: bool,
    content_begun: bool,
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
            stopped: false,
            content_begun: false,
            spoilt: None,
        }
    }

    /// Whether the first `content_block_start` has come: from here on the upstream's cache entry is readable.
    pub fn content_begun(&self) -> bool {
        self.content_begun
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
            r#""message_start""# => match event.message.map(|m| serde_json::from_str(m.get())) {
                Some(Ok(message)) => self.turn.start(&message),
                _ => self.spoil(Wholeness::Unfaithful),
            },
            r#""message_delta""# => self.message_delta(&event),
            r#""message_stop""# => self.stopped = true,
            r#""error""# => self.turn.error = event.error.and_then(error_type).or(Some("unknown".into())),
            _ => {}
        }
    }

    /// The events could not be framed any further.
    pub fn overflow(&mut self) {
        self.spoil(Wholeness::TooLarge);
    }

    pub fn finish(self) -> Turn {
        let mut turn = self.turn;
        let ended = self.stopped && turn.error.is_none() && self.blocks.iter().all(|block| block.stopped);
        turn.wholeness = match self.spoilt {
            Some(why) => why,
            None if !ended => Wholeness::Unfinished,
            None => match self.blocks.iter().map(StreamedBlock::rebuild).collect() {
                Some(blocks) => {
                    turn.blocks = blocks;
                    Wholeness::Whole
                }
                None => Wholeness::Unfaithful,
            },
        };
        turn
    }

    fn block_start(&mut self, event: &WireEvent<'_>) {
        self.content_begun = true;
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
        if let Some(delta) =
            event.delta.and_then(|raw| serde_json::from_str::<WireMessage<'_>>(raw.get()).ok())
            && let Some(reason) = delta.stop_reason.and_then(name)
        {
            self.turn.stop_reason = Some(reason);
        }
        if let Some(usage) = event.usage {
            self.turn.bill(usage);
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

/// A block while it streams. Text is kept as the *inside* of JSON strings, escapes as they came.
#[derive(Debug)]
struct StreamedBlock {
    index: u64,
    kind: String,
    start: Box<RawValue>,
    text: String,
    thinking: String,
    input: String,
    citations: Vec<Box<RawValue>>,
    /// Members that a delta replaces as a whole.
    replaced: Vec<(&'static str, Box<RawValue>)>,
    stopped: bool,
}

impl StreamedBlock {
    fn new(index: u64, kind: String, start: &RawValue) -> StreamedBlock {
        StreamedBlock {
            index,
            kind,
            start: start.to_owned(),
            text: String::new(),
            thinking: String::new(),
            input: String::new(),
            citations: Vec::new(),
            replaced: Vec::new(),
            stopped: false,
        }
    }

    /// `None` if the delta is of no kind we know.
    fn apply(&mut self, delta: &RawValue) -> Option<()> {
        let delta: WireDelta<'_> = serde_json::from_str(delta.get()).ok()?;
        match delta.kind.get() {
            r#""text_delta""# => self.text.push_str(inside(delta.text?)?),
            r#""thinking_delta""# => self.thinking.push_str(inside(delta.thinking?)?),
            r#""input_json_delta""# => {
                self.input.push_str(&serde_json::from_str::<String>(delta.partial_json?.get()).ok()?);
            }
            r#""citations_delta""# => self.citations.push(delta.citation?.to_owned()),
            r#""signature_delta""# => self.replace("signature", delta.signature?),
            r#""compaction_delta""# => {
                delta.content.into_iter().for_each(|raw| self.replace("content", raw));
                delta.encrypted_content.into_iter().for_each(|raw| self.replace("encrypted_content", raw));
            }
            _ => return None,
        }
        Some(())
    }

    fn replace(&mut self, member: &'static str, value: &RawValue) {
        self.replaced.retain(|(name, _)| *name != member);
        self.replaced.push((member, value.to_owned()));
    }

    /// The block with its deltas spliced in; `None` if that gives no valid block.
    fn rebuild(&self) -> Option<Block> {
        let start = self.start.get();
        let mut edits = self.edits()?;
        let mut out =
            String::with_capacity(start.len() + self.text.len() + self.thinking.len() + self.input.len());
        for member in json::members(start.as_bytes(), 0) {
            let member = member.ok()?;
            let (key, value) = (&start[member.key], &start[member.value]);
            out.push(if out.is_empty() { '{' } else { ',' });
            out.push_str(key);
            out.push(':');
            match edits.iter().position(|(name, _)| *name == key.trim_matches('"')) {
                Some(found) => out.push_str(&edits.swap_remove(found).1.onto(value)?),
                None => out.push_str(value),
            }
        }
        for (name, edit) in edits {
            out.push_str(&format!(",\"{name}\":{}", edit.onto("null")?));
        }
        out.push('}');
        Some(Block { kind: self.kind.clone(), json: out.into_bytes() })
    }

    fn edits(&self) -> Option<Vec<(&'static str, Edit<'_>)>> {
        let mut edits = Vec::new();
        for (name, text) in [("text", &self.text), ("thinking", &self.thinking)] {
            if !text.is_empty() {
                edits.push((name, Edit::Append(text)));
            }
        }
        if !self.input.is_empty() {
            let compact = json::compact(self.input.as_bytes()).ok()?;
            edits.push(("input", Edit::Replace(String::from_utf8(compact).ok()?)));
        }
        if !self.citations.is_empty() {
            edits.push(("citations", Edit::Extend(&self.citations)));
        }
        edits.extend(self.replaced.iter().map(|(name, raw)| (*name, Edit::Replace(raw.get().to_owned()))));
        Some(edits)
    }
}

/// What the deltas do to one member of the block.
enum Edit<'a> {
    /// Put this after the inside of the string.
    Append(&'a str),
    /// Put these after the elements of the list.
    Extend(&'a [Box<RawValue>]),
    /// Put this in its place.
    Replace(String),
}

impl Edit<'_> {
    /// The member's new value, given the one it had at the block's start (`null` if none).
    fn onto(self, value: &str) -> Option<String> {
        match self {
            Edit::Replace(raw) => Some(raw),
            Edit::Append(text) if value == "null" => Some(format!("\"{text}\"")),
            Edit::Append(text) => Some(format!("\"{}{text}\"", value.strip_prefix('"')?.strip_suffix('"')?)),
            Edit::Extend(items) => {
                let mut all: Vec<&str> = Vec::new();
                if value != "null" {
                    for element in json::elements(value.as_bytes(), 0) {
                        all.push(&value[element.ok()?]);
                    }
                }
                all.extend(items.iter().map(|raw| raw.get()));
                Some(format!("[{}]", all.join(",")))
            }
        }
    }
}

fn blocks_of(content: &RawValue, limits: TurnLimits) -> Result<Vec<Block>, Wholeness> {
    let bytes = content.get().as_bytes();
    let mut blocks = Vec::new();
    let (mut kept_bytes, mut tool_uses) = (0, 0);
    for element in json::elements(bytes, 0) {
        let json = &bytes[element.map_err(|_| Wholeness::Unfaithful)?];
        let kind = block_kind(json).ok_or(Wholeness::Unfaithful)?;
        kept_bytes += json.len() + BLOCK_OVERHEAD_BYTES;
        tool_uses += usize::from(kind == "tool_use");
        if kept_bytes > limits.bytes || tool_uses > limits.tool_uses {
            return Err(Wholeness::TooLarge);
        }
        blocks.push(Block { kind, json: json.to_vec() });
    }
    Ok(blocks)
}

fn block_kind(block: &[u8]) -> Option<String> {
    json::members(block, 0)
        .map_while(Result::ok)
        .filter(|member| json::is_key(block, &member.key, "type"))
        .find_map(|member| json::text(block, &member.value).map(String::from))
        .filter(|kind| kind.len() <= NAME_BYTES_MAX)
}

/// The text of a short JSON string.
fn name(raw: &RawValue) -> Option<String> {
    serde_json::from_str::<String>(raw.get()).ok().filter(|name| name.len() <= NAME_BYTES_MAX)
}

/// The inside of a JSON string, escapes as they stand.
fn inside(raw: &RawValue) -> Option<&str> {
    raw.get().strip_prefix('"')?.strip_suffix('"')
}

/// The `type` of an error object, if it looks like one: it goes into logs.
fn error_type(raw: &RawValue) -> Option<String> {
    let error: WireError<'_> = serde_json::from_str(raw.get()).ok()?;
    error.kind.and_then(name).filter(|kind| kind.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
}

// Each field is raw so that one of an unexpected type does not cost us the others.
#[derive(Deserialize)]
struct WireEvent<'a> {
    #[serde(borrow, rename = "type")]
    kind: &'a RawValue,
    index: Option<u64>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow)]
    content_block: Option<&'a RawValue>,
    #[serde(borrow)]
    delta: Option<&'a RawValue>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct WireMessage<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    stop_reason: Option<&'a RawValue>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct WireDelta<'a> {
    #[serde(borrow, rename = "type")]
    kind: &'a RawValue,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    thinking: Option<&'a RawValue>,
    #[serde(borrow)]
    signature: Option<&'a RawValue>,
    #[serde(borrow)]
    partial_json: Option<&'a RawValue>,
    #[serde(borrow)]
    citation: Option<&'a RawValue>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    encrypted_content: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct WireError<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<&'a RawValue>,
}

#[cfg(test)]
mod tests;
