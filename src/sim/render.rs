//! Blocks as the cache hashes them: rendered, digested, counted.
//!
//! A block renders as compact JSON with its keys as they came, escapes decoded and `cache_control` left out, so white
//! space between tokens and the place of markers do not count and key order does. One token is four bytes of
//! that rendering: deterministic, and an estimate.
//!
//! Text that the model never reads has no piece: the attribution line of a coding agent where it is alone and first,
//! and tools whose loading is deferred.

use serde_json::{Map, Value};

use super::body::{Body, BodyMessage, Content, MessageRole, is_thinking, kind, text};
use super::rules::compaction::is_no_op;
use super::settings::{AttributionRule, KeyOrder, PromptLayer, SimRules};

/// The beginning of a coding agent's attribution line.
pub const ATTRIBUTION: &str = "x-anthropic-billing-header";

/// The position of a block in the request; ordered as the cache hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BlockPlace {
    Tool(usize),
    System(usize),
    Message(usize, usize),
}

impl BlockPlace {
    /// The path as error messages write it.
    pub fn path(self) -> String {
        match self {
            BlockPlace::Tool(index) => format!("tools.{index}"),
            BlockPlace::System(index) => format!("system.{index}"),
            BlockPlace::Message(message, block) => format!("messages.{message}.content.{block}"),
        }
    }
}

/// One block, digested.
#[derive(Debug, Clone, Copy)]
pub struct DigestedBlock {
    pub place: BlockPlace,
    pub layer: PromptLayer,
    pub speaker: Speaker,
    pub form: ContentForm,
    pub nature: Nature,
    pub opens_message: bool,
    /// The meaning of the block: thinking is bound to this, and answers follow from it.
    pub digest: [u8; 32],
    /// The spelling that the cache compares; differs from `digest` only if escapes count.
    pub spelling: [u8; 32],
    pub tokens: u64,
}

/// Whose words a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speaker {
    /// Tools and the top-level system prompt.
    Head,
    Role(MessageRole),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentForm {
    /// `"content": "…"`.
    Bare,
    Block,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nature {
    Thinking,
    Other,
}

/// All blocks of a request in the order of the cache.
pub fn pieces(body: &Body<'_>, rules: &SimRules) -> Vec<DigestedBlock> {
    let mut renderer = Renderer { rules, scratch: Vec::new(), pieces: Vec::new() };
    let web_layer = rules.invalidation.web_tools;
    let is_moved = |tool: &Value| web_layer != PromptLayer::Tools && is_web_tool(tool);
    for (index, tool) in
        body.tools.iter().enumerate().filter(|(_, tool)| !is_moved(tool) && !is_deferred(tool))
    {
        renderer.block(BlockPlace::Tool(index), PromptLayer::Tools, Speaker::Head, tool);
    }
    // Switching the web on or off rewrites the system prompt, not the tool definitions.
    for (index, tool) in body.tools.iter().enumerate().filter(|(_, tool)| is_moved(tool)) {
        renderer.block(BlockPlace::Tool(index), PromptLayer::System, Speaker::Head, tool);
    }
    if let Some(system) = body.system {
        renderer.system(system);
    }
    for (index, message) in body.messages.iter().enumerate() {
        renderer.message(index, message);
    }
    renderer.pieces
}

struct Renderer<'r> {
    rules: &'r SimRules,
    scratch: Vec<u8>,
    pieces: Vec<DigestedBlock>,
}

impl Renderer<'_> {
    fn system(&mut self, system: Content<'_>) {
        let blocks = match system {
            Content::Text(text) => {
                return self.bare(BlockPlace::System(0), PromptLayer::System, Speaker::Head, text);
            }
            Content::Blocks(blocks) => blocks,
        };
        for (index, block) in blocks.iter().enumerate() {
            let is_attribution =
                index == 0 && text(block, "text").is_some_and(|text| text.starts_with(ATTRIBUTION));
            if !(is_attribution && self.rules.attribution == AttributionRule::Stripped) {
                self.block(BlockPlace::System(index), PromptLayer::System, Speaker::Head, block);
            }
        }
    }

    fn message(&mut self, index: usize, message: &BodyMessage<'_>) {
        let first = self.pieces.len();
        let speaker = Speaker::Role(message.role);
        match message.content {
            Content::Text(text) => {
                self.bare(BlockPlace::Message(index, 0), PromptLayer::Messages, speaker, text)
            }
            Content::Blocks(blocks) => {
                let read = blocks.iter().enumerate().filter(|(_, block)| !is_no_op(block));
                for (block_index, block) in read {
                    self.block(
                        BlockPlace::Message(index, block_index),
                        PromptLayer::Messages,
                        speaker,
                        block,
                    );
                }
            }
        }
        let Some(piece) = self.pieces.get_mut(first) else { return };
        piece.opens_message = true;
        // Members of a message besides role and content are part of the prompt.
        for (key, value) in
            message.object.iter().filter(|(key, _)| !matches!(key.as_str(), "role" | "content"))
        {
            let mut hasher = blake3::Hasher::new();
            hasher
                .update(&piece.digest)
                .update(key.as_bytes())
                .update(b"\0")
                .update(value.to_string().as_bytes());
            piece.digest = *hasher.finalize().as_bytes();
        }
        piece.spelling = piece.digest;
    }

    fn bare(&mut self, place: BlockPlace, layer: PromptLayer, speaker: Speaker, text: &str) {
        self.scratch.clear();
        self.scratch.extend_from_slice(br#"{"type":"text","text":"#);
        write_json(&mut self.scratch, text);
        self.scratch.push(b'}');
        let tokens = tokens_of(self.scratch.len(), self.rules);
        self.push(place, layer, speaker, ContentForm::Bare, Nature::Other, tokens);
    }

    fn block(&mut self, place: BlockPlace, layer: PromptLayer, speaker: Speaker, block: &Value) {
        self.scratch.clear();
        match block.as_object() {
            Some(object) => write_members(&mut self.scratch, object, self.rules.key_order),
            None => write_json(&mut self.scratch, block),
        }
        let (images, image_bytes) = images_in(block);
        let text_bytes = self.scratch.len().saturating_sub(image_bytes);
        let tokens =
            tokens_of(text_bytes, self.rules).saturating_add(images.saturating_mul(self.rules.image_tokens));
        let is_thinking = speaker != Speaker::Head && is_thinking(block);
        let nature = if is_thinking { Nature::Thinking } else { Nature::Other };
        self.push(place, layer, speaker, ContentForm::Block, nature, tokens);
    }

    fn push(
        &mut self,
        place: BlockPlace,
        layer: PromptLayer,
        speaker: Speaker,
        form: ContentForm,
        nature: Nature,
        tokens: u64,
    ) {
        let digest = *blake3::hash(&self.scratch).as_bytes();
        self.pieces.push(DigestedBlock {
            place,
            layer,
            speaker,
            form,
            nature,
            opens_message: false,
            digest,
            spelling: digest,
            tokens,
        });
    }
}

/// The token estimate for a number of rendered bytes.
pub fn tokens_of(bytes: usize, rules: &SimRules) -> u64 {
    (bytes as u64).div_ceil(rules.bytes_per_token.max(1))
}

/// Writes a block without its marker, and without those of the blocks a `tool_result` holds.
fn write_members(out: &mut Vec<u8>, object: &Map<String, Value>, key_order: KeyOrder) {
    let mut members: Vec<_> = object.iter().filter(|(key, _)| *key != "cache_control").collect();
    if key_order == KeyOrder::InsideValues {
        members.sort_by_key(|(key, _)| *key);
    }
    out.push(b'{');
    for (index, (key, value)) in members.into_iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_json(out, key);
        out.push(b':');
        match value {
            Value::Array(blocks) if key == "content" => write_nested(out, blocks, key_order),
            _ => write_json(out, value),
        }
    }
    out.push(b'}');
}

fn write_nested(out: &mut Vec<u8>, blocks: &[Value], key_order: KeyOrder) {
    out.push(b'[');
    for (index, block) in blocks.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        match block.as_object() {
            Some(object) => write_members(out, object, key_order),
            None => write_json(out, block),
        }
    }
    out.push(b']');
}

/// Writing to memory cannot fail, and neither keys nor numbers of a parsed tree can be refused.
fn write_json<T: serde::Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    let _ = serde_json::to_writer(out, value);
}

/// How many images a block holds, itself or nested, and the bytes of their data.
pub fn images_in(block: &Value) -> (u64, usize) {
    let own = match kind(block) {
        "image" => {
            let data = block.get("source").and_then(|source| text(source, "data"));
            (1, data.map_or(0, str::len))
        }
        _ => (0, 0),
    };
    let nested = block.get("content").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    nested.iter().filter(|block| kind(block) == "image").fold(own, |(count, bytes), block| {
        let (more, more_bytes) = images_in(block);
        (count + more, bytes + more_bytes)
    })
}

pub fn is_deferred(tool: &Value) -> bool {
    tool.get("defer_loading").and_then(Value::as_bool).unwrap_or_default()
}

fn is_web_tool(tool: &Value) -> bool {
    kind(tool).starts_with("web_search_") || kind(tool).starts_with("web_fetch_")
}
