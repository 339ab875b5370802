//! Thinking signatures: what they promise and who checks it.
//!
//! A signature says which model wrote which thinking behind which prompt. It comes back with the block on every later
//! turn; forged or edited blocks are refused, blocks of another model are left out in silence, and on models with
//! *bound thinking* a block behind another prompt is refused or dropped, as the request asks.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::Value;

use super::super::body::{Body, MessageRole, kind, text};
use super::super::error::ApiError;
use super::super::models::ThinkingBinding;
use super::super::prompt::{Bond, DigestedPrompt};
use super::super::render::BlockPlace;
use super::super::settings::{Mismatch, Signatures, SimRules};
use super::compaction;

/// Signs and verifies with a key that follows from the seed.
#[derive(Debug, Clone)]
pub struct Signer {
    key: [u8; 32],
}

/// The contents of a valid signature.
struct SignedClaim {
    model: [u8; 8],
    thinking: [u8; 16],
    bond: Bond,
}

const CLAIM_BYTES: usize = 8 + 16 + 8 + 8 + 16;
pub const SEAL_BYTES: usize = 16;
const SIGNATURE_LETTERS: usize = (CLAIM_BYTES + SEAL_BYTES).div_ceil(3) * 4;

/// Blocks that the model does not get to read.
#[derive(Debug, Default)]
pub struct DroppedThinking {
    pub places: Vec<BlockPlace>,
    /// Those the answer reports as `input_transformations`.
    pub reported: Vec<BlockPlace>,
}

impl Signer {
    pub fn new(seed: u64) -> Self {
        Signer { key: blake3::derive_key("forkpoint sim thinking signature v1", &seed.to_le_bytes()) }
    }

    pub fn sign(&self, model: &str, thinking: &str, bond: &Bond) -> String {
        let mut bytes = Vec::with_capacity(CLAIM_BYTES + SEAL_BYTES);
        bytes.extend_from_slice(&digest::<8>(model.as_bytes()));
        bytes.extend_from_slice(&digest::<16>(thinking.as_bytes()));
        bytes.extend_from_slice(&bond.tools);
        bytes.extend_from_slice(&bond.system);
        bytes.extend_from_slice(&bond.prefix);
        let seal = self.seal(&bytes);
        bytes.extend_from_slice(&seal);
        BASE64_STANDARD.encode(&bytes)
    }

    fn verify(&self, signature: &str) -> Option<SignedClaim> {
        // Looked at first, so that megabytes of nonsense are not decoded.
        if signature.len() != SIGNATURE_LETTERS {
            return None;
        }
        let bytes = BASE64_STANDARD.decode(signature).ok()?;
        if bytes.len() != CLAIM_BYTES + SEAL_BYTES {
            return None;
        }
        let (claim, seal) = bytes.split_at(CLAIM_BYTES);
        if self.seal(claim) != seal {
            return None;
        }
        Some(SignedClaim {
            model: take(claim, 0),
            thinking: take(claim, 8),
            bond: Bond { tools: take(claim, 24), system: take(claim, 32), prefix: take(claim, 40) },
        })
    }

    pub fn seal(&self, claim: &[u8]) -> [u8; SEAL_BYTES] {
        take(blake3::keyed_hash(&self.key, claim).as_bytes(), 0)
    }
}

/// Checks every thinking block of the request and says which ones the model does not read.
pub fn check(
    body: &Body<'_>,
    prompt: &DigestedPrompt,
    signer: &Signer,
    rules: &SimRules,
) -> Result<DroppedThinking, ApiError> {
    let mut dropped = DroppedThinking::default();
    if rules.signatures == Signatures::Ignored {
        return Ok(dropped);
    }
    let latest = body.messages.iter().rposition(|message| message.role == MessageRole::Assistant);
    let behaviour = Behaviour::of(body, rules);
    let has_summary = compaction::is_carried(body);
    for (place, bond) in prompt.bonds() {
        let BlockPlace::Message(message, block) = place else { continue };
        let value = &body.messages[message].content.blocks()[block];
        let claim = read_claim(value, place, signer)?;
        if claim.thinking != digest::<16>(text(value, "thinking").unwrap_or_default().as_bytes()) {
            return Err(edited(place, latest == Some(message)));
        }
        if claim.model != digest::<8>(body.model.id.as_bytes()) {
            dropped.places.push(place);
        } else if body.model.binding == ThinkingBinding::Bound && !holds(&claim.bond, &bond, has_summary) {
            match behaviour {
                Behaviour::Refuse => return Err(mismatch(value, place, &claim.bond, &bond)),
                Behaviour::DropAndReport => dropped.reported.push(place),
                Behaviour::DropSilently => {}
            }
            dropped.places.push(place);
        }
    }
    Ok(dropped)
}

/// Behind a summary the messages before the block are gone, so only tools and system prompt are compared.
fn holds(signed: &Bond, found: &Bond, has_summary: bool) -> bool {
    let is_same_head = signed.tools == found.tools && signed.system == found.system;
    is_same_head && (has_summary || signed.prefix == found.prefix)
}

/// The treatment of mismatched blocks in this request.
#[derive(Clone, Copy)]
enum Behaviour {
    Refuse,
    DropAndReport,
    DropSilently,
}

impl Behaviour {
    fn of(body: &Body<'_>, rules: &SimRules) -> Behaviour {
        let binding = body.member("thinking").and_then(|thinking| thinking.get("block_binding"));
        match binding.and_then(|binding| text(binding, "prefix_mismatch_behavior")) {
            Some("drop_block") => Behaviour::DropAndReport,
            Some(_) => Behaviour::Refuse,
            None if rules.mismatch == Mismatch::DropSilently => Behaviour::DropSilently,
            None => Behaviour::Refuse,
        }
    }
}

fn read_claim(block: &Value, place: BlockPlace, signer: &Signer) -> Result<SignedClaim, ApiError> {
    let (kind, member) = signed_member(block);
    let path = place.path();
    let Some(signature) = text(block, member) else {
        return Err(ApiError::invalid(format!("{path}.{kind}.{member}: Field required")));
    };
    signer
        .verify(signature)
        .ok_or_else(|| ApiError::invalid(format!("{path}: Invalid `{member}` in `{kind}` block")))
}

/// A block's type, and the member that carries its signature.
fn signed_member(block: &Value) -> (&'static str, &'static str) {
    match kind(block) {
        "redacted_thinking" => ("redacted_thinking", "data"),
        _ => ("thinking", "signature"),
    }
}

fn edited(place: BlockPlace, is_latest: bool) -> ApiError {
    let path = place.path();
    ApiError::invalid(if is_latest {
        format!(
            "{path}: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. \
             These blocks must remain as they were in the original response."
        )
    } else {
        format!("{path}: Invalid `signature` in `thinking` block")
    })
}

fn mismatch(block: &Value, place: BlockPlace, signed: &Bond, found: &Bond) -> ApiError {
    let detail = if signed.system != found.system {
        " The `system` prompt differs from the one this block was created with."
    } else if signed.tools != found.tools {
        " The `tools` differ from the ones this block was created with."
    } else {
        ""
    };
    let (kind, member) = signed_member(block);
    ApiError::invalid(format!(
        "{}: Invalid `{member}` in `{kind}` block. The block is bound to a different conversation. Remove the \
         block, or set `thinking.block_binding.prefix_mismatch_behavior` to \"drop_block\".{detail}",
        place.path()
    ))
}

pub fn digest<const N: usize>(bytes: &[u8]) -> [u8; N] {
    take(blake3::hash(bytes).as_bytes(), 0)
}

fn take<const N: usize>(bytes: &[u8], from: usize) -> [u8; N] {
    let mut taken = [0; N];
    taken.copy_from_slice(&bytes[from..from + N]);
    taken
}
