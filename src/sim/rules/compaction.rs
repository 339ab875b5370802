//! Compaction on demand: a summary that the server signs, and that comes back in place of what it summarizes.
//!
//! The signature covers the summary and its `tool_changes` and nothing else. A block without a signature is one of
//! compaction by threshold, which has a beta of its own and may stand anywhere.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::Value;

use super::super::body::{Body, Content, MessageRole, kind, missing, text, wrong};
use super::super::error::ApiError;
use super::super::render::BlockPlace;
use super::super::settings::{Signatures, SimRules};
use super::RequestBetas;
use super::signature::{SEAL_BYTES, Signer, digest};
use super::turns::KNOWN_BLOCKS;

/// Asks for a summary, and lets one come back.
pub const COMPACTION_BETA: &str = "compact-2026-09-04";

/// Lets blocks of compaction by threshold come back.
pub const THRESHOLD_BETA: &str = "compact-2026-01-12";

/// The API's own limit for `compaction.instructions`.
const INSTRUCTION_CHARS: usize = 16_384;

const BLOCK_MEMBERS: [&str; 6] =
    ["type", "content", "signature", "tool_changes", "encrypted_content", "cache_control"];

const MISPLACED: &str =
    "`compaction` block must be sent first, in place of the messages it summarizes; remove those messages";

/// The digest of a summary, and that of its tool changes.
const DIGEST_BYTES: usize = 16;

/// Signs a summary.
pub fn sign(signer: &Signer, content: &str, tool_changes: Option<&Value>) -> String {
    let mut bytes = claim(content, tool_changes).concat();
    let seal = signer.seal(&bytes);
    bytes.extend_from_slice(&seal);
    BASE64_STANDARD.encode(&bytes)
}

fn claim(content: &str, tool_changes: Option<&Value>) -> [[u8; DIGEST_BYTES]; 2] {
    let changes = tool_changes.filter(|changes| !changes.is_null()).map(Value::to_string).unwrap_or_default();
    // The label keeps these digests apart from those of thinking.
    [digest(format!("summary {content}").as_bytes()), digest(format!("changes {changes}").as_bytes())]
}

/// Returns true if the request carries a summary that the model reads.
pub fn is_carried(body: &Body<'_>) -> bool {
    blocks(body).any(|(_, _, block)| !is_no_op(block))
}

/// Returns true if this is a block of a compaction that brought no summary: it has no effect.
pub fn is_no_op(block: &Value) -> bool {
    kind(block) == "compaction" && block.get("content").is_none_or(Value::is_null)
}

fn blocks<'a>(body: &Body<'a>) -> impl Iterator<Item = (BlockPlace, MessageRole, &'a Value)> {
    let messages: Vec<_> = body.messages.iter().map(|message| (message.role, message.content)).collect();
    let messages = messages.into_iter().enumerate();
    messages.flat_map(|(message, (role, content))| {
        let blocks = content.blocks().iter().enumerate().filter(|(_, block)| kind(block) == "compaction");
        blocks.map(move |(index, block)| (BlockPlace::Message(message, index), role, block))
    })
}

pub fn check(
    body: &Body<'_>,
    betas: &RequestBetas<'_>,
    signer: &Signer,
    rules: &SimRules,
) -> Result<(), ApiError> {
    if body.asks_summary {
        check_asked(body, betas)?;
    }
    check_carried(body, betas, signer, rules)
}

fn check_asked(body: &Body<'_>, betas: &RequestBetas<'_>) -> Result<(), ApiError> {
    let Some(compaction) = body.member("compaction") else { return Ok(()) };
    if !betas.contains(&COMPACTION_BETA) {
        let reason = format!("compaction: this parameter requires anthropic-beta: {COMPACTION_BETA}");
        return Err(ApiError::invalid(reason));
    }
    match compaction.get("type").map(Value::as_str) {
        Some(Some("summarize")) => {}
        None => return Err(missing("compaction.type")),
        Some(_) => return Err(ApiError::invalid("compaction.type: Input should be 'summarize'")),
    }
    match compaction.get("instructions").filter(|instructions| !instructions.is_null()) {
        None => {}
        Some(Value::String(text)) if text.chars().count() <= INSTRUCTION_CHARS => {}
        Some(Value::String(_)) => {
            return Err(ApiError::invalid(format!(
                "compaction.instructions: String should have at most {INSTRUCTION_CHARS} characters"
            )));
        }
        Some(_) => return Err(wrong("compaction.instructions", "string")),
    }
    let output = |name: &str| body.member("output_config").and_then(|config| config.get(name));
    let is_forced = body.member("tool_choice").is_some_and(|choice| matches!(kind(choice), "any" | "tool"));
    let refused = [
        (body.member("context_management").is_some(), "context_management"),
        (body.member("stop_sequences").is_some(), "stop_sequences"),
        (output("format").is_some_and(|format| !format.is_null()), "output_config.format"),
        (is_forced, "tool_choice` of type `any` or `tool"),
        (has_remaining(body), "output_config.task_budget.remaining"),
    ];
    if let Some((_, name)) = refused.into_iter().find(|(is_set, _)| *is_set) {
        return Err(ApiError::invalid(format!("compaction: cannot be combined with `{name}`")));
    }
    check_summarized(body)
}

fn has_remaining(body: &Body<'_>) -> bool {
    let budget = body.member("output_config").and_then(|config| config.get("task_budget"));
    budget.and_then(|budget| budget.get("remaining")).is_some_and(|remaining| !remaining.is_null())
}

fn check_summarized(body: &Body<'_>) -> Result<(), ApiError> {
    let mut spoken = body.messages.iter().filter(|message| message.role != MessageRole::System);
    let says_something = spoken.any(|message| match message.content {
        Content::Text(text) => !text.is_empty(),
        Content::Blocks(blocks) => blocks.iter().any(|block| kind(block) != "compaction"),
    });
    if !says_something {
        let reason = "compaction: there are no messages to summarize";
        return Err(ApiError::invalid(reason).coded("compaction_nothing_to_summarize"));
    }
    let last = body.messages.iter().rfind(|message| message.role != MessageRole::System);
    let is_open = last.is_some_and(|last| {
        last.role == MessageRole::Assistant
            && last.content.blocks().iter().any(|block| kind(block) == "tool_use")
    });
    if is_open {
        let reason =
            "compaction: the last `tool_use` has no `tool_result`; answer it before asking for a summary";
        return Err(ApiError::invalid(reason).coded("compaction_incomplete_turn"));
    }
    Ok(())
}

fn check_carried(
    body: &Body<'_>,
    betas: &RequestBetas<'_>,
    signer: &Signer,
    rules: &SimRules,
) -> Result<(), ApiError> {
    let Some((first, ..)) = blocks(body).next() else { return Ok(()) };
    if !betas.contains(&COMPACTION_BETA) && !betas.contains(&THRESHOLD_BETA) {
        let known: Vec<&str> = KNOWN_BLOCKS.into_iter().filter(|kind| *kind != "compaction").collect();
        return Err(ApiError::invalid(format!(
            "{}: Input tag 'compaction' found using 'type' does not match any of the expected tags: '{}'",
            first.path(),
            known.join("', '")
        )));
    }
    let is_of_threshold = |block: &Value| betas.contains(&THRESHOLD_BETA) && block.get("signature").is_none();
    let signed: Vec<_> = blocks(body).filter(|(_, _, block)| !is_of_threshold(block)).collect();
    for (place, _, block) in &signed {
        check_members(*place, block)?;
    }
    let mut summaries = signed.iter().filter(|(_, _, block)| !is_no_op(block));
    let Some((place, role, block)) = summaries.next() else { return Ok(()) };
    if summaries.next().is_some() {
        let reason = "messages: only one `compaction` block with content may be sent";
        return Err(ApiError::invalid(reason).coded("compaction_block_ambiguous"));
    }
    if *place != BlockPlace::Message(0, 0) || *role == MessageRole::System {
        let reason = format!("{}: {MISPLACED}", place.path());
        return Err(ApiError::invalid(reason).coded("compaction_block_misplaced"));
    }
    check_beside(body)?;
    match rules.signatures {
        Signatures::Checked => check_signature(*place, block, signer),
        Signatures::Ignored => Ok(()),
    }
}

fn check_members(place: BlockPlace, block: &Value) -> Result<(), ApiError> {
    let mut members = block.as_object().into_iter().flat_map(|block| block.keys());
    match members.find(|name| !BLOCK_MEMBERS.contains(&name.as_str())) {
        None => Ok(()),
        Some(name) => {
            let path = place.path();
            Err(ApiError::invalid(format!("{path}.compaction.{name}: Extra inputs are not permitted")))
        }
    }
}

fn check_beside(body: &Body<'_>) -> Result<(), ApiError> {
    let edits = body.member("context_management").and_then(|management| management.get("edits"));
    let mut edits = edits.and_then(Value::as_array).into_iter().flatten();
    let is_threshold = edits.any(|edit| kind(edit) == "compact_20260112");
    let refused = [
        (is_threshold, "context_management.edits` of type `compact_20260112"),
        (has_remaining(body), "output_config.task_budget.remaining"),
    ];
    match refused.into_iter().find(|(is_set, _)| *is_set) {
        None => Ok(()),
        Some((_, name)) => Err(ApiError::invalid(format!(
            "messages.0.content.0: a `compaction` block cannot be combined with `{name}`"
        ))),
    }
}

fn check_signature(place: BlockPlace, block: &Value, signer: &Signer) -> Result<(), ApiError> {
    let path = place.path();
    let refused = |reason: &str, code| Err(ApiError::invalid(format!("{path}: {reason}")).coded(code));
    let Some(signed) = text(block, "signature").and_then(|signature| verify(signer, signature)) else {
        return refused("Invalid `signature` in `compaction` block", "compaction_signature_invalid");
    };
    let [content, changes] = claim(text(block, "content").unwrap_or_default(), block.get("tool_changes"));
    if signed[0] != content {
        return refused(
            "the `content` of a `compaction` block cannot be modified",
            "compaction_content_mismatch",
        );
    }
    if signed[1] != changes {
        return refused(
            "the `tool_changes` of a `compaction` block cannot be modified",
            "compaction_tool_changes_mismatch",
        );
    }
    Ok(())
}

fn verify(signer: &Signer, signature: &str) -> Option<[[u8; DIGEST_BYTES]; 2]> {
    const CLAIM_BYTES: usize = 2 * DIGEST_BYTES;
    // Looked at first, so that megabytes of nonsense are not decoded.
    if signature.len() != (CLAIM_BYTES + SEAL_BYTES).div_ceil(3) * 4 {
        return None;
    }
    let bytes = BASE64_STANDARD.decode(signature).ok()?;
    let (claim, seal) = bytes.split_at_checked(CLAIM_BYTES)?;
    let (content, changes) = claim.split_at(DIGEST_BYTES);
    (signer.seal(claim) == seal).then_some([content.try_into().ok()?, changes.try_into().ok()?])
}
