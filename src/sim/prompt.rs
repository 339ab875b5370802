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

use super::body::{Body, BodyMessage, Content, MessageRole, kind};
use super::cache::{EntryTtl, Position, PrefixKey};
use super::models::{KeptThinking, StringContent};
use super::parameters::ParameterDigests;
use super::render::{BlockPlace, ContentForm, DigestedBlock, Nature, Speaker, pieces};
use super::settings::{Escapes, Merging, MixedMessages, PromptLayer, SimRules};
use super::spelling;

/// The digested prompt of one request.
#[derive(Debug)]
pub struct DigestedPrompt {
    pieces: Vec<DigestedBlock>,
    parameters: ParameterDigests,
}

/// A breakpoint the request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestedBreakpoint {
    pub place: BlockPlace,
    pub ttl: EntryTtl,
}

/// The prompt before a thinking block, and the block's place among the thinking blocks of its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bond {
    pub tools: [u8; 8],
    pub system: [u8; 8],
    pub prefix: [u8; 16],
}

impl DigestedPrompt {
    /// `bytes` are those the body was parsed from.
    pub fn render(body: &Body<'_>, bytes: &[u8], betas: &[&str], rules: &SimRules) -> DigestedPrompt {
        let mut pieces = pieces(body, rules);
        if rules.escapes == Escapes::Significant {
            spelling::note(&mut pieces, bytes, body, rules);
        }
        DigestedPrompt { pieces, parameters: ParameterDigests::of(body, betas, rules) }
    }

    /// All tokens of the prompt, less the blocks in `dropped` (sorted).
    pub fn tokens(&self, dropped: &[BlockPlace]) -> u64 {
        let kept = self.pieces.iter().filter(|piece| dropped.binary_search(&piece.place).is_err());
        kept.fold(0, |sum: u64, piece| sum.saturating_add(piece.tokens))
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
        markers: &[RequestedBreakpoint],
        dropped: &[BlockPlace],
        rules: &SimRules,
    ) -> Vec<Position> {
        let seed = [workspace.as_bytes(), b"\0", body.model.id.as_bytes()].concat();
        let mut chain = link(self.parameters.of_layer(PromptLayer::Tools), b"seed", &seed);
        let mut layer = PromptLayer::Tools;
        let mut tokens = 0_u64;
        let mut positions = Vec::with_capacity(self.pieces.len());
        for piece in self.pieces.iter().filter(|piece| dropped.binary_search(&piece.place).is_err()) {
            while layer < piece.layer {
                layer = if layer == PromptLayer::Tools { PromptLayer::System } else { PromptLayer::Messages };
                chain = link(&chain, b"layer", self.parameters.of_layer(layer));
            }
            chain = link(&chain, &tag(piece, body.model.string_content, rules.merging), &piece.spelling);
            tokens = tokens.saturating_add(piece.tokens);
            let marker = markers.iter().find(|marker| marker.place == piece.place).map(|marker| marker.ttl);
            positions.push(Position { key: PrefixKey::of(&chain), tokens, layer, marker });
        }
        positions
    }

    /// The bonds of the request's thinking blocks, in order of place.
    pub fn bonds(&self) -> Vec<(BlockPlace, Bond)> {
        let mut found = Vec::new();
        let mut walk = BindingWalk::new(self);
        for piece in &self.pieces {
            walk.enter(piece);
            if piece.nature == Nature::Thinking {
                found.push((piece.place, walk.bond()));
            }
            walk.pass(piece);
        }
        found
    }

    /// The bond of the `ordinal`-th thinking block of the answer to this request.
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
    pub fn stripped_thinking(&self, body: &Body<'_>, rules: &SimRules) -> Vec<BlockPlace> {
        if body.model.kept_thinking == KeptThinking::All {
            return Vec::new();
        }
        let newest = body.messages.iter().rposition(|message| opens_turn(message, rules.mixed_messages));
        let Some(newest) = newest else { return Vec::new() };
        let thinking =
            self.pieces.iter().filter(|piece| piece.nature == Nature::Thinking).map(|piece| piece.place);
        thinking.filter(|place| matches!(place, BlockPlace::Message(index, _) if *index < newest)).collect()
    }
}

fn opens_turn(message: &BodyMessage<'_>, mixed: MixedMessages) -> bool {
    if message.role != MessageRole::User {
        return false;
    }
    let Content::Blocks(blocks) = message.content else { return true };
    let mut results = blocks.iter().map(|block| kind(block) == "tool_result");
    match mixed {
        MixedMessages::NewTurn => results.any(|is_result| !is_result),
        MixedMessages::SameTurn => !results.any(|is_result| is_result),
    }
}

/// The bytes that enter the chain with a block: its speaker, and as much of its spelling as the settings count.
fn tag(piece: &DigestedBlock, string_content: StringContent, merging: Merging) -> [u8; 3] {
    let speaker = match piece.speaker {
        Speaker::Head => b'-',
        Speaker::Role(MessageRole::User) => b'u',
        Speaker::Role(MessageRole::Assistant) => b'a',
        Speaker::Role(MessageRole::System) => b's',
    };
    let is_bare = piece.form == ContentForm::Bare && string_content == StringContent::Different;
    let is_boundary = piece.opens_message && merging == Merging::Separate;
    [speaker, if is_bare { b'"' } else { b'{' }, if is_boundary { b'|' } else { b'.' }]
}

/// Walks the binding chain. It ignores how strings are spelt and where messages end, since clients turn one text
/// block into a string between turns and their thinking is accepted all the same.
struct BindingWalk {
    tools: [u8; 8],
    system: [u8; 8],
    chain: [u8; 32],
    turn_start: [u8; 32],
    speaker: Speaker,
    ordinal: usize,
}

impl BindingWalk {
    fn new(prompt: &DigestedPrompt) -> Self {
        let of_layer = |layer: PromptLayer| {
            let pieces = prompt.pieces.iter().filter(|piece| piece.layer == layer);
            short(&pieces.fold([0; 32], |chain, piece| link(&chain, b"bond", &piece.digest)))
        };
        let (tools, system) = (of_layer(PromptLayer::Tools), of_layer(PromptLayer::System));
        BindingWalk { tools, system, chain: [0; 32], turn_start: [0; 32], speaker: Speaker::Head, ordinal: 0 }
    }

    fn enter(&mut self, piece: &DigestedBlock) {
        if piece.speaker != self.speaker {
            self.start_turn();
            self.speaker = piece.speaker;
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

    fn pass(&mut self, piece: &DigestedBlock) {
        let tag = tag(piece, StringContent::SameAsOneBlock, Merging::OneTurn);
        self.chain = link(&self.chain, &tag, &piece.digest);
        self.ordinal += usize::from(piece.nature == Nature::Thinking);
    }
}

/// One step of a chain: the hash of what came before, a tag, and the new bytes.
pub fn link(chain: &[u8; 32], tag: &[u8], bytes: &[u8]) -> [u8; 32] {
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
