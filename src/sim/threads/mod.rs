//! Conversations held by the server: `thread: {"type": "create"}`, then `{"type": "continue", …}` with only what is new.
//!
//! Each answer to a request with `thread` is held under its message id with everything before it, and can be
//! continued once, by the same credential, within five minutes. A continue is answered as the whole conversation
//! would be: validated, cached and billed as one. The checks, in order: the shape, markers and options
//! ([`request`]), whether the id is held and free ([`store`]), the fixed fields ([`fingerprint`]).

mod fingerprint;
pub mod request;
pub mod rules;
mod store;

pub use request::ThreadRequest;
pub use store::{Continued, HeldThread, SentContinue, ThreadShown, Threads};

use serde_json::{Map, Value, json};

use super::answer::FinishedAnswer;
use super::caller::Caller;
use super::rules::RequestBetas;
use super::script::StopReason;
use super::settings::SimRules;
use fingerprint::Fingerprint;
use rules::Refusals;

/// What a request with `thread` keeps until its answer ends.
#[derive(Debug)]
pub struct ThreadTurn {
    owner: [u8; 32],
    fingerprint: Fingerprint,
    /// The answer it continues, which nobody else can continue meanwhile.
    previous: Option<String>,
    /// Bytes of the held conversation and of this request.
    bytes: usize,
    /// The id of the answer and what is held under it. Before the request is accepted there is none.
    answered: Option<(String, Option<HeldThread>)>,
}

impl ThreadTurn {
    pub fn create(
        caller: &Caller,
        root: &Map<String, Value>,
        betas: &RequestBetas<'_>,
        bytes: usize,
    ) -> Self {
        let fingerprint = Fingerprint::of(root, betas);
        ThreadTurn { owner: caller.credential, fingerprint, previous: None, bytes, answered: None }
    }

    /// The request was accepted: `value` is its whole conversation, `answer` what it is answered.
    pub fn answer(&mut self, value: Value, answer: &FinishedAnswer, rules: &SimRules) {
        let held = is_held(answer, rules).then(|| self.hold(value, answer));
        self.answered = Some((answer.id.clone(), held));
    }

    fn hold(&self, mut value: Value, answer: &FinishedAnswer) -> HeldThread {
        let content = answer.content();
        let bytes = self.bytes + content.to_string().len();
        let said = json!({"role": "assistant", "content": content});
        let is_silent = answer.blocks.is_empty();
        let mut messages = match value.get_mut("messages").map(Value::take) {
            // A summary stands in place of what it summarizes.
            Some(Value::Array(messages)) if answer.stop_reason != StopReason::Compaction || is_silent => {
                messages
            }
            _ => Vec::new(),
        };
        messages.iter_mut().for_each(unmark_content);
        if !is_silent {
            messages.push(said);
        }
        let mut unmarked = |name: &str| {
            let mut member = value.get_mut(name).map(Value::take).unwrap_or_default();
            unmark(&mut member);
            member
        };
        HeldThread {
            owner: self.owner,
            fingerprint: self.fingerprint.clone(),
            system: unmarked("system"),
            tools: unmarked("tools"),
            messages,
            may_resume: matches!(answer.stop_reason.as_str(), "pause_turn" | "compaction"),
            bytes,
        }
    }
}

/// A reply of a fallback model is never held.
fn is_held(answer: &FinishedAnswer, rules: &SimRules) -> bool {
    let is_refusal = answer.stop_reason.as_str() == "refusal";
    let holds_refusals = rules.threads.refusals == Refusals::Held;
    !answer.is_fallback() && (holds_refusals || !is_refusal)
}

fn unmark_content(message: &mut Value) {
    if let Some(content) = message.get_mut("content") {
        unmark(content);
    }
}

/// Caching is asked for on every turn anew, so held blocks carry no markers.
fn unmark(blocks: &mut Value) {
    for block in blocks.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        block.shift_remove("cache_control");
        if block.get("type").is_some_and(|kind| kind == "tool_result")
            && let Some(content) = block.get_mut("content")
        {
            unmark(content);
        }
    }
}
