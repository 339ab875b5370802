//! The fork point that a fan-out turn leaves behind, from its first finished block to the seal.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::directive::Call;
use super::holdings::{HoldingNumber, Holdings};
use super::leaves::DirectiveOwner;
use super::rules::{Rules, Who};
use super::shape;
use crate::engine::answer::turn::{Block, Turn, Wholeness, assistant_message};
use crate::engine::answer::usage::{Bill, Usage};
use crate::engine::cache::breakpoints::Breakpoint;
use crate::engine::request::json;
use crate::engine::request::prefix::PrefixHash;
use crate::engine::request::recall::Remembered;
use crate::engine::words::{FanOutDropped, Hex, Layer, TenantId, digits, first};

/// The memory of a call beside its texts: its slots in the maps, and its placeholder in the turn that children go on
/// from.
const CALL_BYTES: usize = 512;

/// The name of a fork point: a digest of the tenant and the message id, so that a client that names its parent
/// by message id finds it, and no other tenant's. Shown as 8 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ForkId(#[serde(with = "digits")] [u8; 16]);

impl ForkId {
    pub fn of(tenant: TenantId, message_id: &str) -> ForkId {
        let key = [&tenant.0[..], message_id.as_bytes()].concat();
        ForkId(first(&blake3::derive_key("forkpoint fork v1", &key)))
    }

    /// Its name in a store: all of its digits.
    pub fn name(self) -> String {
        digits::of(&self.0)
    }

    /// Reads the name of one.
    pub fn named(name: &str) -> Option<ForkId> {
        digits::read(name).map(ForkId)
    }
}

impl fmt::Display for ForkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Hex(&self.0[..4]).fmt(f)
    }
}

/// The request that an answer belongs to.
#[derive(Clone, Debug)]
pub struct Parent {
    pub request: Arc<Remembered>,
    /// The value of `anthropic-beta`.
    pub betas: String,
    /// The value of `anthropic-version`.
    pub version: String,
    pub who: Who,
    /// The end of its last cache entry, if it asked for one.
    pub written: Option<Breakpoint>,
    /// True if the request is as it was forwarded. That of a child may be in its own words, which are enough to know its
    /// children by.
    pub is_forwarded: bool,
}

impl Parent {
    /// One that sent no betas and asked for no cache entry.
    pub fn new(request: Arc<Remembered>, who: Who) -> Parent {
        Parent {
            request,
            betas: String::new(),
            version: String::new(),
            who,
            written: None,
            is_forwarded: true,
        }
    }

    /// About how much memory this takes.
    pub fn memory_bytes(&self) -> usize {
        self.request.memory_bytes() + self.betas.len() + self.version.len()
    }
}

impl FanOutDropped {
    /// Returns why a turn of this wholeness cannot be replayed.
    pub(super) fn of(wholeness: Wholeness) -> Option<FanOutDropped> {
        match wholeness {
            Wholeness::Whole => None,
            Wholeness::Unfinished => Some(FanOutDropped::Unfinished),
            Wholeness::Unfaithful => Some(FanOutDropped::Unfaithful),
            Wholeness::TooLarge => Some(FanOutDropped::TooLarge),
        }
    }
}

/// A fan-out turn and the request before it. Shared, and never changed once given out.
#[derive(Clone, Debug)]
pub struct ForkPoint {
    pub id: ForkId,
    pub parent: Arc<Parent>,
    /// True if the parent is itself a child: its children are recognised and gated, and never put on its prompt. A
    /// question to its turn may be.
    pub is_nested: bool,
    /// The hash of the parent's whole prompt: equal for a parent that was retried.
    pub prefix: PrefixHash,
    /// The blocks of the turn, or those finished so far.
    pub blocks: Vec<Bytes>,
    /// Every client call of those blocks, with directives or without.
    pub calls: Vec<Call>,
    /// The whole assistant message; none while pending.
    pub message: Option<Bytes>,
    /// The tokens of its conversation when the turn was written, and those of the turn.
    pub usage: Option<Usage>,
    /// Counts its memory beside its parent, once it is kept.
    pub(super) number: HoldingNumber,
    /// Counts its parent's memory: equal for all that is kept of one answer.
    pub(super) parent_number: HoldingNumber,
}

impl ForkPoint {
    pub fn is_sealed(&self) -> bool {
        self.message.is_some()
    }

    /// The input of a call, as the model wrote it.
    pub fn input(&self, call: usize) -> Option<Bytes> {
        let call = self.calls.get(call)?;
        Some(self.blocks.get(call.block)?.slice(call.input.clone()))
    }

    /// The assistant message up to and including a call: all that a child can go on from before the seal. None if a
    /// server tool has not answered by then.
    pub fn up_to(&self, call: usize) -> Option<Bytes> {
        let blocks = self.blocks.get(..=self.calls.get(call)?.block)?;
        let mut unresolved = BTreeSet::new();
        for block in blocks {
            note_server_tool(&mut unresolved, &member(block, "type").unwrap_or_default(), block);
        }
        if !unresolved.is_empty() {
            return None;
        }
        Some(assistant_message(blocks.iter().map(|block| &block[..])).into())
    }

    /// The owner of the directives of a call.
    pub(super) fn owner(&self, call: usize) -> DirectiveOwner {
        DirectiveOwner { fork: self.id, parent_number: self.parent_number, call }
    }

    /// The call of this id.
    pub(super) fn call(&self, id: &str) -> Option<usize> {
        self.calls.iter().position(|call| &*call.id == id)
    }

    /// About how much memory this takes, the parent's request included.
    pub(super) fn memory_bytes(&self) -> usize {
        self.parent.memory_bytes() + self.own_bytes()
    }

    /// About how much memory this takes beside the parent's request.
    pub(super) fn own_bytes(&self) -> usize {
        let directives = self.calls.iter().flat_map(|call| &call.directives).map(|text| text.len());
        let blocks = self.blocks.iter().map(Bytes::len);
        self.calls.len() * CALL_BYTES + directives.chain(blocks).sum::<usize>()
    }
}

/// An answer that may become a fork point, held by its reader.
#[derive(Debug)]
pub struct Draft {
    pub(super) parent: Arc<Parent>,
    is_nested: bool,
    /// None until anything of it is kept.
    parent_number: Option<HoldingNumber>,
    pub(super) blocks: Vec<Bytes>,
    /// Blocks of the answer that were looked at; those that say nothing are left out.
    taken: usize,
    pub(super) calls: Vec<Call>,
    ids: BTreeSet<Arc<str>>,
    /// Server tools that have not answered yet.
    unresolved: BTreeSet<String>,
    pub(super) spoilt: Option<FanOutDropped>,
    /// The id under which it was made known, so that it can be taken back even if the answer loses its id.
    pub(super) pending: Option<ForkId>,
}

impl Draft {
    /// `is_child`: the request was recognised as a child, or bound as one. The other signs hold after lost state.
    pub fn begin(parent: impl Into<Arc<Parent>>, is_child: bool) -> Draft {
        let parent = parent.into();
        let is_nested = is_child || parent.who.agent.is_some() || shape::is_forked_by_shape(&parent.request);
        Draft::of(parent, is_nested)
    }

    fn of(parent: Arc<Parent>, is_nested: bool) -> Draft {
        Draft {
            parent,
            is_nested,
            parent_number: None,
            blocks: Vec::new(),
            taken: 0,
            calls: Vec::new(),
            ids: BTreeSet::new(),
            unresolved: BTreeSet::new(),
            spoilt: None,
            pending: None,
        }
    }

    /// Takes in the next finished block; `true` if it is a call with a directive, which a child may follow at
    /// once: the time for [`FanOuts::pending`](super::FanOuts::pending).
    pub fn push(&mut self, block: Block, rules: &Rules) -> bool {
        let number = self.blocks.len();
        let mut directed = false;
        self.taken += 1;
        match block.kind.as_str() {
            _ if self.spoilt.is_some() => return false,
            // The API gives out empty texts and takes none back; its clients leave them out too.
            "text" if block.is_blank_text() => return false,
            "tool_use" => match Call::read(&block.json, number, rules) {
                None => self.spoilt = Some(FanOutDropped::BadCall),
                Some(call) if !self.ids.insert(Arc::clone(&call.id)) => {
                    self.spoilt = Some(FanOutDropped::ReusedId)
                }
                Some(_) if !is_direct(&block.json) => self.spoilt = Some(FanOutDropped::ServerTools),
                Some(call) => {
                    directed = !call.directives.is_empty();
                    self.calls.push(call);
                }
            },
            // Some blocks before it must not come back, and which is not said.
            "fallback" => self.spoilt = Some(FanOutDropped::Unfaithful),
            kind => note_server_tool(&mut self.unresolved, kind, &block.json),
        }
        self.blocks.push(block.json.into());
        directed
    }

    /// Returns true if its request is a child's.
    pub fn is_nested(&self) -> bool {
        self.is_nested
    }

    /// Returns true if its request is as it was forwarded.
    pub fn is_forwarded(&self) -> bool {
        self.parent.is_forwarded
    }

    /// The fork point that it was made known as before its answer ended.
    pub fn pending(&self) -> Option<ForkId> {
        self.pending
    }

    /// About how much memory its fork point takes, as far as it is known.
    pub fn memory_bytes(&self) -> usize {
        let blocks: usize = self.blocks.iter().map(Bytes::len).sum();
        // The directives are stretches of the blocks, and kept once more to be found by.
        self.parent.memory_bytes() + self.calls.len() * CALL_BYTES + 2 * blocks
    }

    /// The fork point as far as it is known, to be kept.
    pub(super) fn pending_point(&mut self, id: ForkId, holdings: &mut Holdings) -> ForkPoint {
        self.point(id, self.blocks.clone(), self.calls.clone(), holdings)
    }

    /// The fork point of the finished turn, to be kept.
    pub(super) fn whole_point(
        &mut self,
        id: ForkId,
        turn: FinishedTurn,
        holdings: &mut Holdings,
    ) -> ForkPoint {
        let mut point = self.point(id, turn.blocks, turn.calls, holdings);
        point.message = Some(turn.message);
        point.usage = turn.usage;
        point
    }

    fn point(
        &mut self,
        id: ForkId,
        blocks: Vec<Bytes>,
        calls: Vec<Call>,
        holdings: &mut Holdings,
    ) -> ForkPoint {
        let request = &self.parent.request;
        ForkPoint {
            id,
            parent: Arc::clone(&self.parent),
            is_nested: self.is_nested,
            prefix: request.chain().layer(request.anatomy(), Layer::Messages),
            blocks,
            calls,
            message: None,
            usage: None,
            number: holdings.number(),
            parent_number: *self.parent_number.get_or_insert_with(|| holdings.number()),
        }
    }

    /// Takes in the end of the answer, for [`FanOuts::seal`](super::FanOuts::seal).
    pub fn end(mut self, turn: &Turn, rules: &Rules) -> EndedDraft {
        let turn = match FanOutDropped::of(turn.wholeness) {
            // What broke off before its first call is as little a fan-out as any other answer.
            Some(FanOutDropped::Unfinished) if self.calls.is_empty() => Err(FanOutDropped::FewCalls),
            Some(why) => Err(why),
            None => self.sealed(turn, rules),
        };
        EndedDraft { draft: self, turn }
    }

    /// Reads the finished turn of this answer, if it is a fan-out that can be replayed.
    fn sealed(&mut self, turn: &Turn, rules: &Rules) -> Result<FinishedTurn, FanOutDropped> {
        let message_id = turn.id.clone().ok_or(FanOutDropped::NoMessageId)?;
        let message = self.take_in(turn, rules)?;
        let directed = self.calls.iter().filter(|call| !call.directives.is_empty()).count();
        match self.spoilt {
            Some(why) => return Err(why),
            None if self.calls.len() < rules.min_children => return Err(FanOutDropped::FewCalls),
            None if directed < rules.min_children => return Err(FanOutDropped::FewDirectives),
            None if turn.stop_reason.as_deref() != Some("tool_use") => return Err(FanOutDropped::StopReason),
            None if !self.unresolved.is_empty() => return Err(FanOutDropped::ServerTools),
            None => {}
        }
        Ok(self.finished(message_id, message, turn))
    }

    /// Reads the finished turn of this answer, which need not be a fan-out, if another message may follow it. For
    /// [`FanOuts::record`](super::FanOuts::record).
    pub fn snapshot(&self, turn: &Turn, rules: &Rules) -> Result<FinishedTurn, FanOutDropped> {
        if !self.parent.is_forwarded {
            return Err(FanOutDropped::Child);
        }
        let message_id = turn.id.clone().ok_or(FanOutDropped::NoMessageId)?;
        let mut whole = Draft::of(Arc::clone(&self.parent), false);
        let message = whole.take_in(turn, rules)?;
        let ended = matches!(turn.stop_reason.as_deref(), Some("end_turn" | "tool_use" | "stop_sequence"));
        match whole.spoilt {
            Some(why) => Err(why),
            None if !ended || whole.blocks.is_empty() => Err(FanOutDropped::StopReason),
            None if !whole.unresolved.is_empty() => Err(FanOutDropped::ServerTools),
            None => Ok(whole.finished(message_id, message, turn)),
        }
    }

    /// Takes in the blocks that are still missing; the whole message, if it can be replayed.
    fn take_in(&mut self, turn: &Turn, rules: &Rules) -> Result<Bytes, FanOutDropped> {
        let why = FanOutDropped::of(turn.wholeness).unwrap_or(FanOutDropped::Unfaithful);
        let message = turn.message().map(Bytes::from).ok_or(why)?;
        for block in turn.blocks.iter().skip(self.taken) {
            self.push(block.clone(), rules);
        }
        if self.blocks.len() == turn.blocks.len() {
            return Ok(message);
        }
        Ok(assistant_message(self.blocks.iter().map(|block| &block[..])).into())
    }

    fn finished(&mut self, message_id: String, message: Bytes, turn: &Turn) -> FinishedTurn {
        let mut blocks = std::mem::take(&mut self.blocks);
        share(&mut blocks, &message);
        let calls = std::mem::take(&mut self.calls);
        FinishedTurn { message_id, blocks, calls, message, usage: turn.bill.as_ref().map(Bill::context) }
    }
}

/// An assistant turn as a fork point keeps it.
#[derive(Debug)]
pub struct FinishedTurn {
    pub(super) message_id: String,
    blocks: Vec<Bytes>,
    calls: Vec<Call>,
    message: Bytes,
    usage: Option<Usage>,
}

/// A draft whose answer has ended, and the turn to be sealed or why there is none.
#[derive(Debug)]
pub struct EndedDraft {
    pub(super) draft: Draft,
    pub(super) turn: Result<FinishedTurn, FanOutDropped>,
}

/// Returns true if an answer calls enough tools with a directive to be a fan-out.
pub fn fans_out(turn: &Turn, rules: &Rules) -> bool {
    let calls = turn.blocks.iter().filter(|block| block.kind == "tool_use").enumerate();
    let directed = calls.filter_map(|(number, block)| Call::read(&block.json, number, rules));
    directed.filter(|call| !call.directives.is_empty()).count() >= rules.min_children
}

/// Lets the blocks be stretches of the message, which ends with them, so that they are kept once.
pub(super) fn share(blocks: &mut [Bytes], message: &Bytes) {
    let mut end = message.len().saturating_sub(b"]}".len());
    for block in blocks.iter_mut().rev() {
        let start = end.saturating_sub(block.len());
        *block = message.slice(start..end);
        end = start.saturating_sub(b",".len());
    }
}

/// Keeps the ids of server tools that have not answered yet.
fn note_server_tool(unresolved: &mut BTreeSet<String>, kind: &str, block: &[u8]) {
    if kind == "tool_use" {
        return;
    }
    if kind.ends_with("tool_use") {
        unresolved.insert(member(block, "id").unwrap_or_default());
    } else if kind.ends_with("tool_result") {
        unresolved.remove(&member(block, "tool_use_id").unwrap_or_default());
    }
}

/// Returns true if the model itself makes this call, not a program that it runs.
fn is_direct(block: &[u8]) -> bool {
    match json::member(block, 0, "caller") {
        None => true,
        Some(caller) => member(&block[caller], "type").is_none_or(|kind| kind == "direct"),
    }
}

fn member(block: &[u8], name: &str) -> Option<String> {
    json::text(block, &json::member(block, 0, name)?).map(|text| text.into_owned())
}
