//! Sizes of a child's prompt in tokens, on its parent's prefix and as sent.
//!
//! They come from what the upstream billed for the parent, the rest by bytes at the ratio or the weights that bills have
//! shown; without a bill nothing is known, and nothing is assumed.

use super::eligible::check_kind;
use super::layout::Composed;
use super::parent_prefix::ParentPrefix;
use super::policy::ForkPolicy;
use crate::engine::cache::breakpoints::{self, Breakpoint};
use crate::engine::cache::entry::prefix_bytes;
use crate::engine::cache::prices::ModelFacts;
use crate::engine::cache::worlds::{Sizes, Weights};
use crate::engine::family::fanout::{Call, ForkPoint};
use crate::engine::request::anatomy::Anatomy;
use crate::engine::request::recall::Remembered;
use crate::engine::words::{Layer, Refusal, Spawning, Ttl};

/// Tokens of a child's prompt, forked and as sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptSizes {
    /// The parent's tools and system.
    pub fixed: u64,
    /// Up to where the parent's last entry ends.
    pub entry: u64,
    /// Up to and including the placeholders.
    pub shared: u64,
    /// From there up to the directive.
    pub instructions: u64,
    /// The directive, and what follows it.
    pub rest: u64,
    /// The whole child as sent.
    pub sent: u64,
    /// Of that its tools and system, which siblings share.
    pub sent_fixed: u64,
    /// Of that its tools alone.
    pub sent_tools: u64,
    /// Its own breakpoints.
    pub marks: OwnMarks,
}

/// The breakpoints of a child as sent, in tokens of its prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnMarks {
    /// Up to the last one.
    pub last: u64,
    /// True if that one moves along with the conversation.
    pub is_rolling: bool,
    /// Up to the last one in its tools and system, and in its tools alone.
    pub fixed: u64,
    pub tools: u64,
    /// Up to the last one of an hour.
    pub hour: u64,
}

impl PromptSizes {
    /// `tokens_per_byte` as learned from bills; the parent's own bill is better, and is used instead, unless the
    /// parent shows images or documents. The child's own prompt is sized by `weights`, where these are known: its blocks
    /// may be of other kinds than its parent's. None if nothing was billed yet.
    pub fn of(
        parent_prefix: &ParentPrefix,
        fork: &ForkPoint,
        composed: &Composed,
        child: &Remembered,
        tokens_per_byte: Option<f64>,
        weights: Option<Weights>,
    ) -> Option<PromptSizes> {
        let extent = parent_prefix.extent();
        let billed = fork.usage.map(|usage| usage.uncached.saturating_add(usage.cached()));
        let billed = billed.filter(|tokens| *tokens > 0 && extent.parent > 0);
        let own_ratio = billed.map(|tokens| tokens as f64 / extent.parent as f64);
        let usable = |ratio: &f64| ratio.is_finite() && *ratio > 0.0;
        // The bytes of an image say nothing about those of text.
        let parent = &fork.parent.request;
        let ratio = if parent.anatomy().has_payload() {
            tokens_per_byte.filter(usable).or(own_ratio)
        } else {
            own_ratio.or(tokens_per_byte)
        };
        let ratio = ratio.filter(usable)?;
        let tokens = |bytes: u64| (bytes as f64 * ratio).ceil() as u64;
        let turn = if fork.is_sealed() { fork.usage.map(|usage| usage.output) } else { None };
        let turn = turn.filter(|tokens| *tokens > 0);
        let (body, anatomy) = (child.body(), child.anatomy());
        let until = |pieces: usize| match weights {
            Some(weights) => weights.tokens(Sizes::of(anatomy, child.chain(), pieces)).ceil() as u64,
            None => tokens(pieces.checked_sub(1).map_or(0, |last| prefix_bytes(anatomy, last))),
        };
        let parent = billed.unwrap_or_else(|| tokens(extent.parent));
        Some(PromptSizes {
            fixed: tokens(extent.fixed).min(parent),
            entry: tokens(extent.entry).min(parent),
            shared: parent + turn.unwrap_or_else(|| tokens(extent.turn)) + tokens(extent.results),
            instructions: tokens(composed.extent.instructions),
            rest: tokens(composed.extent.rest),
            sent: until(anatomy.pieces.len()),
            sent_fixed: until(anatomy.tools + anatomy.system),
            sent_tools: until(anatomy.tools),
            marks: OwnMarks::of(&breakpoints::of_client(body, anatomy), anatomy, |piece| until(piece + 1)),
        })
    }

    /// The whole forked prompt.
    pub fn forked(&self) -> u64 {
        self.shared + self.instructions + self.rest
    }
}

impl OwnMarks {
    fn of(marks: &[Breakpoint], anatomy: &Anatomy, tokens: impl Fn(usize) -> u64) -> OwnMarks {
        let last = |is_meant: &dyn Fn(&Breakpoint) -> bool| {
            marks.iter().rfind(|mark| is_meant(mark)).map_or(0, |mark| tokens(mark.piece))
        };
        let is_rolling = |mark: &Breakpoint| anatomy.layer(mark.piece) == Layer::Messages;
        OwnMarks {
            last: last(&|_| true),
            is_rolling: marks.last().is_some_and(is_rolling),
            fixed: last(&|mark| !is_rolling(mark)),
            tools: last(&|mark| anatomy.layer(mark.piece) == Layer::Tools),
            hour: last(&|mark| mark.ttl == Ttl::OneHour),
        }
    }
}

/// Children that share the first writes of this fork point: one per call with a directive that may be forked.
/// Before the seal each child goes on from a turn of its own.
pub fn siblings(fork: &ForkPoint, policy: &ForkPolicy) -> u64 {
    let may_be_forked = |(number, call): &(usize, &Call)| {
        !call.directives.is_empty()
            && call.spawning != Spawning::Unknown
            && check_kind(fork, *number, policy).is_ok()
    };
    let children = fork.calls.iter().enumerate().filter(may_be_forked).count();
    if fork.is_sealed() { children.max(1) as u64 } else { 1 }
}

/// Checks that upstream and model take the forked request; what the child leaves out is its parent's.
/// `body_bytes`: what the upstream takes.
pub fn fits(
    composed: &Composed,
    sizes: Option<&PromptSizes>,
    child: &Remembered,
    parent: &Remembered,
    facts: ModelFacts,
    body_bytes: usize,
    policy: &ForkPolicy,
) -> Result<(), Refusal> {
    if composed.body.length > body_bytes {
        return Err(Refusal::TooLarge);
    }
    let (Some(sizes), Some(window)) = (sizes, facts.window_tokens) else { return Ok(()) };
    let prompt = sizes.forked();
    let answer = max_tokens(child).or_else(|| max_tokens(parent)).unwrap_or(0);
    if prompt.saturating_add(answer) > window {
        Err(Refusal::Window)
    } else if prompt as f64 > policy.max_context_share * window as f64 {
        Err(Refusal::ContextShare)
    } else {
        Ok(())
    }
}

fn max_tokens(request: &Remembered) -> Option<u64> {
    let span = request.anatomy().member(request.body(), "max_tokens")?;
    let number = std::str::from_utf8(&request.body()[span.clone()]).ok();
    // What is no number is refused, whatever it says.
    Some(number.and_then(|number| number.parse().ok()).unwrap_or(0))
}
