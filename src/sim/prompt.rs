//! The prompt as the cache sees it: tools, then system, then messages, one position per block.
//!
//! Each block is rendered (compact JSON, keys in the order they came, escapes decoded, `cache_control` left out) and
//! digested once. Two chains run over the digests: the *cache chain*, seeded with workspace, model and parameters,
//! whose links are the keys of cache entries; and the *binding chain*, which knows only tools, system and messages
//! and is what thinking blocks are bound to.
//!
//! ```text
//! seed(workspace, model) ─ tool ─ tool ─┬─ system ─┬─ block ─ block ─ block
//!                     speed, web, citations    tool_choice, thinking, betas, images …
//! ```

use serde_json::{Map, Value};

use super::body::{Body, Content, Message, Role, Thinking, is_thinking, kind, text};
use super::cache::{Key, Position, Ttl};
use super::config::{Attribution, KeyOrder, Layer, Merging, MixedMessages, Rules};
use super::models::{KeptThinking, StringContent};

/// What the attribution line of a coding agent starts with.
const ATTRIBUTION: &str = "x-anthropic-billing-header";

/// Where a block stands in the request; ordered as the cache hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Tool(usize),
    System(usize),
    Message(usize, usize),
}

impl Place {
    pub fn layer(self) -> Layer {
        match self {
            Place::Tool(_) => Layer::Tools,
            Place::System(_) => Layer::System,
            Place::Message(..) => Layer::Messages,
        }
    }

    /// The path as error messages write it.
    pub fn path(self) -> String {
        match self {
            Place::Tool(index) => format!("tools.{index}"),
            Place::System(index) => format!("system.{index}"),
            Place::Message(message, block) => format!("messages.{message}.content.{block}"),
        }
    }
}

/// One block, digested.
#[derive(Debug, Clone, Copy)]
struct Piece {
    place: Place,
    role: Option<Role>,
    form: Form,
    digest: [u8; 32],
    tokens: u64,
    is_thinking: bool,
    opens_message: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// `"content": "…"`.
    Bare,
    Block,
}

/// The digested prompt of one request.
#[derive(Debug)]
pub struct Prompt {
    pieces: Vec<Piece>,
    parameters: Parameters,
}

/// A breakpoint the request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marker {
    pub place: Place,
    pub ttl: Ttl,
}

/// What a thinking block is tied to: the prompt before it, and its place among the thinking blocks of its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bond {
    pub tools: [u8; 8],
    pub system: [u8; 8],
    pub prefix: [u8; 16],
}

impl Prompt {
    pub fn render(body: &Body<'_>, betas: &[&str], rules: &Rules) -> Prompt {
        let mut renderer = Renderer { rules, scratch: Vec::new(), pieces: Vec::new() };
        let mut web_tools = Vec::new();
        for (index, tool) in body.tools.iter().enumerate() {
            if is_web_tool(tool) && rules.invalidation.web_tools != Layer::Tools {
                renderer.write_block(tool);
                web_tools.append(&mut renderer.scratch);
            } else if !is_deferred(tool) {
                renderer.block(Place::Tool(index), None, tool, false);
            }
        }
        if let Some(system) = body.system {
            renderer.system(system);
        }
        for (index, message) in body.messages.iter().enumerate() {
            renderer.message(index, message);
        }
        let parameters = Parameters::of(body, betas, &web_tools, rules);
        Prompt { pieces: renderer.pieces, parameters }
    }

    /// All tokens of the prompt, less the blocks in `dropped` (sorted).
    pub fn tokens(&self, dropped: &[Place]) -> u64 {
        let kept = self.pieces.iter().filter(|piece| dropped.binary_search(&piece.place).is_err());
        kept.map(|piece| piece.tokens).sum()
    }

    /// A digest of the whole prompt: what the script derives its words and ids from.
    pub fn digest(&self) -> [u8; 32] {
        self.pieces.iter().fold([0; 32], |chain, piece| link(&chain, &[], &piece.digest))
    }

    /// The cache chain: one position per block that the model reads, so without those in `dropped` (sorted).
    pub fn positions(
        &self,
        workspace: &str,
        body: &Body<'_>,
        markers: &[Marker],
        dropped: &[Place],
        rules: &Rules,
    ) -> Vec<Position> {
        let seed = [workspace.as_bytes(), b"\0", body.model.id.as_bytes()].concat();
        let mut chain = link(&self.parameters.tools, b"seed", &seed);
        let mut layer = Layer::Tools;
        let mut tokens = 0;
        let mut positions: Vec<Position> = Vec::with_capacity(self.pieces.len());
        let distinct_form = body.model.string_content == StringContent::Different;
        for piece in self.pieces.iter().filter(|piece| dropped.binary_search(&piece.place).is_err()) {
            while layer < piece.place.layer() {
                layer = if layer == Layer::Tools { Layer::System } else { Layer::Messages };
                chain = link(&chain, b"layer", self.parameters.of_layer(layer));
            }
            let tag = piece.tag(distinct_form, rules.merging);
            chain = link(&chain, &tag, &piece.digest);
            tokens += piece.tokens;
            positions.push(Position { key: Key::of(&chain), tokens, layer, marker: None });
        }
        let kept: Vec<Place> = self
            .pieces
            .iter()
            .map(|piece| piece.place)
            .filter(|place| dropped.binary_search(place).is_err())
            .collect();
        for marker in markers {
            // A marker on a block that is not in the prompt acts on the block before it in the same layer.
            let Some(index) = kept.partition_point(|place| *place <= marker.place).checked_sub(1) else {
                continue;
            };
            if kept[index].layer() == marker.place.layer() {
                positions[index].marker = Some(marker.ttl);
            }
        }
        positions
    }

    /// What the thinking blocks of the request are bound to, in order of place.
    pub fn bonds(&self) -> Vec<(Place, Bond)> {
        let mut found = Vec::new();
        let mut walk = BindingWalk::new(self);
        for piece in &self.pieces {
            walk.enter(piece);
            if piece.is_thinking {
                found.push((piece.place, walk.bond()));
            }
            walk.pass(piece);
        }
        found
    }

    /// What the `ordinal`-th thinking block of the answer to this request is bound to.
    pub fn bond_of_answer(&self, ordinal: usize) -> Bond {
        let mut walk = BindingWalk::new(self);
        for piece in &self.pieces {
            walk.enter(piece);
            walk.pass(piece);
        }
        walk.start_turn();
        walk.ordinal = ordinal;
        walk.bond()
    }

    /// Thinking that the model does not keep: of turns before the newest one, on models that keep only that.
    pub fn stripped_thinking(&self, body: &Body<'_>, rules: &Rules) -> Vec<Place> {
        if body.model.kept_thinking == KeptThinking::All {
            return Vec::new();
        }
        let newest = body.messages.iter().rposition(|message| opens_turn(message, rules.mixed_messages));
        let Some(newest) = newest else { return Vec::new() };
        let thinking = self.pieces.iter().filter(|piece| piece.is_thinking).map(|piece| piece.place);
        thinking.filter(|place| matches!(place, Place::Message(index, _) if *index < newest)).collect()
    }
}

fn opens_turn(message: &Message<'_>, mixed: MixedMessages) -> bool {
    if message.role != Role::User {
        return false;
    }
    let Content::Blocks(blocks) = message.content else { return true };
    let mut results = blocks.iter().map(|block| kind(block) == "tool_result");
    match mixed {
        MixedMessages::NewTurn => results.any(|is_result| !is_result),
        MixedMessages::SameTurn => !results.any(|is_result| is_result),
    }
}

impl Piece {
    fn tag(&self, distinct_form: bool, merging: Merging) -> [u8; 3] {
        let role = match self.role {
            None => b'-',
            Some(Role::User) => b'u',
            Some(Role::Assistant) => b'a',
            Some(Role::System) => b's',
        };
        let form = if distinct_form && self.form == Form::Bare { b'"' } else { b'{' };
        let boundary = if merging == Merging::Separate && self.opens_message { b'|' } else { b'.' };
        [role, form, boundary]
    }
}

/// Walks the binding chain. It ignores how strings are spelt and where messages end, since clients turn one text
/// block into a string between turns and their thinking is accepted all the same.
struct BindingWalk {
    tools: [u8; 8],
    system: [u8; 8],
    chain: [u8; 32],
    turn_start: [u8; 32],
    role: Option<Role>,
    ordinal: usize,
}

impl BindingWalk {
    fn new(prompt: &Prompt) -> Self {
        let of_layer = |layer: Layer| {
            let pieces = prompt.pieces.iter().filter(|piece| piece.place.layer() == layer);
            short(&pieces.fold([0; 32], |chain, piece| link(&chain, b"bond", &piece.digest)))
        };
        let (tools, system) = (of_layer(Layer::Tools), of_layer(Layer::System));
        BindingWalk { tools, system, chain: [0; 32], turn_start: [0; 32], role: None, ordinal: 0 }
    }

    fn enter(&mut self, piece: &Piece) {
        if piece.role != self.role {
            self.start_turn();
            self.role = piece.role;
        }
    }

    fn start_turn(&mut self) {
        self.turn_start = self.chain;
        self.ordinal = 0;
    }

    fn bond(&self) -> Bond {
        let tied = link(&self.turn_start, b"bond", &self.ordinal.to_le_bytes());
        let mut prefix = [0; 16];
        prefix.copy_from_slice(&tied[..16]);
        Bond { tools: self.tools, system: self.system, prefix }
    }

    fn pass(&mut self, piece: &Piece) {
        self.chain = link(&self.chain, &piece.tag(false, Merging::OneTurn), &piece.digest);
        self.ordinal += usize::from(piece.is_thinking);
    }
}

struct Renderer<'r> {
    rules: &'r Rules,
    scratch: Vec<u8>,
    pieces: Vec<Piece>,
}

impl Renderer<'_> {
    fn system(&mut self, system: Content<'_>) {
        match system {
            Content::Text(text) => self.bare(Place::System(0), None, text),
            Content::Blocks(blocks) => {
                for (index, block) in blocks.iter().enumerate() {
                    let is_attribution =
                        index == 0 && text(block, "text").is_some_and(|text| text.starts_with(ATTRIBUTION));
                    if !(is_attribution && self.rules.attribution == Attribution::Stripped) {
                        self.block(Place::System(index), None, block, false);
                    }
                }
            }
        }
    }

    fn message(&mut self, index: usize, message: &Message<'_>) {
        let first = self.pieces.len();
        match message.content {
            Content::Text(text) => self.bare(Place::Message(index, 0), Some(message.role), text),
            Content::Blocks(blocks) => {
                for (block_index, block) in blocks.iter().enumerate() {
                    self.block(
                        Place::Message(index, block_index),
                        Some(message.role),
                        block,
                        block_index == 0,
                    );
                }
            }
        }
        let extras = message.object.iter().filter(|(key, _)| !matches!(key.as_str(), "role" | "content"));
        if let Some(piece) = self.pieces.get_mut(first) {
            for (key, value) in extras {
                piece.digest = link(&piece.digest, key.as_bytes(), value.to_string().as_bytes());
            }
        }
    }

    fn bare(&mut self, place: Place, role: Option<Role>, text: &str) {
        self.scratch.clear();
        self.scratch.extend_from_slice(br#"{"type":"text","text":"#);
        write_json(&mut self.scratch, text);
        self.scratch.push(b'}');
        let tokens = self.tokens_of(self.scratch.len(), 0);
        self.push(place, role, Form::Bare, tokens, false, true);
    }

    fn block(&mut self, place: Place, role: Option<Role>, block: &Value, opens_message: bool) {
        self.write_block(block);
        let (images, image_bytes) = images_in(block);
        let tokens = self.tokens_of(self.scratch.len().saturating_sub(image_bytes), images);
        let is_thinking = role.is_some() && is_thinking(block);
        self.push(place, role, Form::Block, tokens, is_thinking, opens_message);
    }

    fn push(
        &mut self,
        place: Place,
        role: Option<Role>,
        form: Form,
        tokens: u64,
        is_thinking: bool,
        opens_message: bool,
    ) {
        let digest = *blake3::hash(&self.scratch).as_bytes();
        self.pieces.push(Piece { place, role, form, digest, tokens, is_thinking, opens_message });
    }

    fn tokens_of(&self, bytes: usize, images: u64) -> u64 {
        tokens_of(bytes, self.rules) + images * self.rules.image_tokens
    }

    fn write_block(&mut self, block: &Value) {
        self.scratch.clear();
        match block.as_object() {
            Some(object) => write_members(&mut self.scratch, object, self.rules.key_order),
            None => write_json(&mut self.scratch, block),
        }
    }
}

/// The token estimate for so many rendered bytes.
pub fn tokens_of(bytes: usize, rules: &Rules) -> u64 {
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
fn images_in(block: &Value) -> (u64, usize) {
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

/// Digests of the parameters that each layer's entries depend on.
#[derive(Debug)]
struct Parameters {
    tools: [u8; 32],
    system: [u8; 32],
    messages: [u8; 32],
}

impl Parameters {
    fn of(body: &Body<'_>, betas: &[&str], web_tools: &[u8], rules: &Rules) -> Parameters {
        let table = &rules.invalidation;
        let mut parameters = Parameters { tools: [0; 32], system: [0; 32], messages: [0; 32] };
        let mut note = |layer: Layer, name: &str, value: &[u8]| match layer {
            Layer::Tools => parameters.tools = link(&parameters.tools, name.as_bytes(), value),
            Layer::System => parameters.system = link(&parameters.system, name.as_bytes(), value),
            Layer::Messages => parameters.messages = link(&parameters.messages, name.as_bytes(), value),
            Layer::Nothing => {}
        };
        let rendered = |value: Option<&Value>| value.map(Value::to_string).unwrap_or_default().into_bytes();
        let output_config = body.member("output_config").and_then(Value::as_object);
        let effort = output_config.and_then(|config| config.get("effort")).filter(|effort| *effort != "high");
        let mut format = rendered(body.member("output_format"));
        for (key, value) in output_config.into_iter().flatten().filter(|(key, _)| *key != "effort") {
            format.extend_from_slice(format!("{key}:{value}").as_bytes());
        }
        let thinking = match body.thinking() {
            Thinking::Unset => String::new(),
            Thinking::Disabled => "disabled".to_owned(),
            Thinking::Adaptive => "adaptive".to_owned(),
            Thinking::Enabled { budget } => {
                format!("enabled {}", budget.map(Value::to_string).unwrap_or_default())
            }
        };
        let blocks = || body.messages.iter().flat_map(|message| message.content.blocks());
        let has_images = blocks().any(|block| images_in(block).0 > 0);
        let has_citations = blocks().any(asks_for_citations);
        let speed = body.member("speed").filter(|speed| *speed != "standard");
        let beta_set: std::collections::BTreeSet<&str> = betas.iter().copied().collect();
        let beta_set: Vec<&str> = beta_set.into_iter().collect();

        note(table.speed, "speed", &rendered(speed));
        note(table.web_tools, "web_tools", web_tools);
        note(table.citations, "citations", &[u8::from(has_citations)]);
        note(table.tool_choice, "tool_choice", &rendered(body.member("tool_choice")));
        note(table.images, "images", &[u8::from(has_images)]);
        note(table.thinking, "thinking", thinking.as_bytes());
        note(table.effort, "effort", &rendered(effort));
        note(table.output_format, "output_format", &format);
        note(table.context_management, "context_management", &rendered(body.member("context_management")));
        note(table.betas, "betas", beta_set.join(",").as_bytes());
        parameters
    }

    fn of_layer(&self, layer: Layer) -> &[u8; 32] {
        match layer {
            Layer::Tools => &self.tools,
            Layer::System => &self.system,
            Layer::Messages | Layer::Nothing => &self.messages,
        }
    }
}

fn asks_for_citations(block: &Value) -> bool {
    let citations = block.get("citations").and_then(|citations| citations.get("enabled"));
    citations.and_then(Value::as_bool).unwrap_or_default()
}

/// One step of a chain: the hash of what came before, a tag, and the new bytes.
fn link(chain: &[u8; 32], tag: &[u8], bytes: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(chain);
    hasher.update(&[u8::try_from(tag.len()).unwrap_or(u8::MAX)]);
    hasher.update(tag);
    hasher.update(bytes);
    *hasher.finalize().as_bytes()
}

fn short(digest: &[u8; 32]) -> [u8; 8] {
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    first
}
