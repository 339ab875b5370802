//! The answers that are held, by message id.

use std::collections::{HashMap, VecDeque};

use serde::Serialize;
use serde_json::{Map, Value};

use super::super::body::{missing, wrong};
use super::super::caller::Caller;
use super::super::clock::VirtualMs;
use super::super::error::ApiError;
use super::super::refusal::{
    thread_already_continued, thread_continue_in_flight, thread_fingerprint_mismatch, thread_not_found,
};
use super::super::rules::RequestBetas;
use super::ThreadTurn;
use super::fingerprint::{Fingerprint, has_system, has_tools};
use super::rules::{BrokenAnswers, ThreadRules};

/// A conversation up to and including an answer.
#[derive(Debug, Clone)]
pub struct HeldThread {
    pub(super) owner: [u8; 32],
    pub(super) fingerprint: Fingerprint,
    pub(super) system: Value,
    pub(super) tools: Value,
    pub(super) messages: Vec<Value>,
    /// The answer stopped where a continue may bring nothing new.
    pub(super) may_resume: bool,
    pub(super) bytes: usize,
}

#[derive(Debug)]
struct ThreadSlot {
    owner: [u8; 32],
    /// Of one that runs it does not count.
    expires_ms: VirtualMs,
    state: SlotState,
}

#[derive(Debug)]
enum SlotState {
    Open(HeldThread),
    Running(HeldThread),
    /// Continued; kept to say so.
    Spent,
}

impl SlotState {
    fn bytes(&self) -> usize {
        match self {
            SlotState::Open(held) | SlotState::Running(held) => held.bytes,
            SlotState::Spent => 0,
        }
    }
}

/// A held answer as `/sim/threads` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ThreadShown {
    pub message_id: String,
    pub state: &'static str,
    pub messages: usize,
    pub bytes: usize,
    pub expires_ms: VirtualMs,
}

/// All held answers of all callers, bounded in number and bytes; the oldest go first.
#[derive(Debug)]
pub struct Threads {
    slots: HashMap<String, ThreadSlot>,
    oldest_first: VecDeque<String>,
    bytes: usize,
    most: usize,
    most_bytes: usize,
    seed: u64,
}

/// A continue as it came.
#[derive(Debug, Clone, Copy)]
pub struct SentContinue<'a> {
    pub previous: &'a str,
    pub root: &'a Map<String, Value>,
    /// Of its body.
    pub bytes: usize,
    pub betas: &'a RequestBetas<'a>,
    pub caller: &'a Caller,
}

/// A continue that was let in: the whole conversation as one request.
#[derive(Debug)]
pub struct Continued {
    pub value: Value,
    pub turn: ThreadTurn,
    /// It brings nothing new: the model goes on with its own answer.
    pub is_resumption: bool,
}

impl Threads {
    pub fn new(most: usize, most_bytes: usize, seed: u64) -> Self {
        Threads { slots: HashMap::new(), oldest_first: VecDeque::new(), bytes: 0, most, most_bytes, seed }
    }

    /// Lets a continue in, or refuses it. What is let in must be [settled](Threads::settle).
    pub fn resume(
        &mut self,
        sent: SentContinue<'_>,
        now_ms: VirtualMs,
        rules: &ThreadRules,
    ) -> Result<Continued, ApiError> {
        let is_lost = self.drawn(b"thread loss", sent.previous) % 100 < rules.loss_percent;
        let refused = self.drawn(b"thread refusal", sent.previous);
        let is_callers = |slot: &&mut ThreadSlot| slot.owner == sent.caller.credential && !is_lost;
        let slot = self.slots.get_mut(sent.previous).filter(is_callers);
        let slot = slot.ok_or_else(thread_not_found)?;
        let is_running = matches!(slot.state, SlotState::Running(_));
        if slot.expires_ms < now_ms && !is_running {
            return Err(thread_not_found());
        }
        let held = match &slot.state {
            SlotState::Open(_) if refused % 100 < rules.refusal_percent => {
                let is_running = (refused / 100).is_multiple_of(2);
                return Err(if is_running {
                    thread_continue_in_flight()
                } else {
                    thread_already_continued()
                });
            }
            SlotState::Open(held) => held,
            SlotState::Running(_) => return Err(thread_continue_in_flight()),
            SlotState::Spent => return Err(thread_already_continued()),
        };
        let differing = held.fingerprint.differences(sent.root, sent.betas, rules.repeated_fields);
        if !differing.is_empty() {
            return Err(thread_fingerprint_mismatch(&differing));
        }
        let continued = join(held, &sent)?;
        if let SlotState::Open(held) = std::mem::replace(&mut slot.state, SlotState::Spent) {
            slot.state = SlotState::Running(held);
        }
        Ok(continued)
    }

    /// The exchange has ended: the old answer is spent, the new one held. A refused request leaves all as it was.
    pub fn settle(&mut self, turn: ThreadTurn, is_whole: bool, now_ms: VirtualMs, rules: &ThreadRules) {
        let ThreadTurn { previous, answered, .. } = turn;
        let expires_ms = now_ms.saturating_add(rules.lifetime_s.saturating_mul(1_000));
        if let Some(slot) = previous.and_then(|previous| self.slots.get_mut(&previous)) {
            let before = std::mem::replace(&mut slot.state, SlotState::Spent);
            match (before, &answered) {
                (SlotState::Running(held), None) => slot.state = SlotState::Open(held),
                (before, _) => {
                    self.bytes -= before.bytes();
                    slot.expires_ms = expires_ms;
                }
            }
        }
        let Some((message_id, Some(held))) = answered else { return };
        if is_whole || rules.broken_answers == BrokenAnswers::Held {
            self.hold(message_id, held, expires_ms, now_ms);
        }
    }

    fn hold(&mut self, message_id: String, held: HeldThread, expires_ms: VirtualMs, now_ms: VirtualMs) {
        self.bytes += held.bytes;
        let slot = ThreadSlot { owner: held.owner, expires_ms, state: SlotState::Open(held) };
        match self.slots.insert(message_id.clone(), slot) {
            None => self.oldest_first.push_back(message_id),
            Some(known) => self.bytes -= known.state.bytes(),
        }
        while let Some(oldest) = self.oldest_first.front() {
            let is_expired = self.slots.get(oldest).is_none_or(|slot| slot.expires_ms < now_ms);
            if !is_expired && self.oldest_first.len() <= self.most && self.bytes <= self.most_bytes {
                return;
            }
            let gone = self.slots.remove(oldest);
            self.bytes -= gone.map_or(0, |slot| slot.state.bytes());
            self.oldest_first.pop_front();
        }
    }

    pub fn shown(&self) -> Vec<ThreadShown> {
        let slots = self.oldest_first.iter().filter_map(|id| Some((id, self.slots.get(id)?)));
        let shown = slots.map(|(id, slot)| {
            let (state, messages) = match &slot.state {
                SlotState::Open(held) => ("open", held.messages.len()),
                SlotState::Running(held) => ("running", held.messages.len()),
                SlotState::Spent => ("spent", 0),
            };
            let (bytes, expires_ms) = (slot.state.bytes(), slot.expires_ms);
            ThreadShown { message_id: id.clone(), state, messages, bytes, expires_ms }
        });
        shown.collect()
    }

    /// Loses every thread; continues that run go on, and what they leave is held.
    pub fn clear(&mut self) {
        self.slots.clear();
        self.oldest_first.clear();
        self.bytes = 0;
    }

    /// A number for an answer that follows from its id, so that what is lost stays lost and a run can be repeated.
    fn drawn(&self, purpose: &[u8], message_id: &str) -> u64 {
        let digest = blake3::Hasher::new()
            .update(purpose)
            .update(&self.seed.to_le_bytes())
            .update(message_id.as_bytes())
            .finalize();
        let mut first = [0; 8];
        first.copy_from_slice(&digest.as_bytes()[..8]);
        u64::from_le_bytes(first)
    }
}

/// The whole conversation as one request: the members of the continue, and the held history before its messages.
fn join(held: &HeldThread, sent: &SentContinue<'_>) -> Result<Continued, ApiError> {
    let news = sent.root.get("messages").ok_or_else(|| missing("messages"))?;
    let news = news.as_array().ok_or_else(|| wrong("messages", "list"))?;
    if news.is_empty() && !held.may_resume {
        return Err(ApiError::invalid("messages: at least one message is required"));
    }
    let mut whole = sent.root.clone();
    for (name, is_sent, value) in
        [("system", has_system(sent.root), &held.system), ("tools", has_tools(sent.root), &held.tools)]
    {
        if !is_sent {
            whole.insert(name.to_owned(), value.clone());
        }
    }
    let messages = held.messages.iter().chain(news).cloned().collect();
    whole.insert("messages".to_owned(), Value::Array(messages));
    let turn = ThreadTurn {
        owner: held.owner,
        fingerprint: held.fingerprint.clone(),
        previous: Some(sent.previous.to_owned()),
        bytes: held.bytes.saturating_add(sent.bytes),
        answered: None,
    };
    Ok(Continued { value: Value::Object(whole), turn, is_resumption: news.is_empty() })
}
