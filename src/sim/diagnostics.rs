//! Cache diagnostics: where a request's prompt first differs from that of an earlier one.
//!
//! A request that carries `diagnostics` leaves a fingerprint under its message id; a later one may name that id and
//! learns the earliest divergence, whether or not the cache hit.

use std::collections::{HashMap, VecDeque};

use serde_json::{Value, json};

use super::cache::{Position, PrefixKey};
use super::settings::{DiagnosisRule, PromptLayer};

/// Positions kept over all fingerprints; a long conversation has a few thousand.
const MOST_POSITIONS: usize = 1_000_000;

#[derive(Debug)]
struct PromptFingerprint {
    /// Who may ask about it: message ids of other workspaces do not exist.
    owner: String,
    model: String,
    positions: Vec<(PrefixKey, PromptLayer)>,
}

#[derive(Debug)]
pub struct Fingerprints {
    by_message: HashMap<String, PromptFingerprint>,
    oldest_first: VecDeque<String>,
    positions: usize,
    most: usize,
}

impl Fingerprints {
    pub fn new(most: usize) -> Self {
        Fingerprints { by_message: HashMap::new(), oldest_first: VecDeque::new(), positions: 0, most }
    }

    /// The answer's `diagnostics` member.
    pub fn compare(
        &self,
        owner: &str,
        previous: Option<&str>,
        model: &str,
        positions: &[Position],
        diagnosis: DiagnosisRule,
    ) -> Value {
        let Some(previous) = previous else { return Value::Null };
        match diagnosis {
            DiagnosisRule::Ready => {}
            DiagnosisRule::Pending => return json!({"cache_miss_reason": null}),
            DiagnosisRule::Unavailable => return json!({"cache_miss_reason": {"type": "unavailable"}}),
        }
        let Some(known) = self.by_message.get(previous).filter(|known| known.owner == owner) else {
            return json!({"cache_miss_reason": {"type": "previous_message_not_found"}});
        };
        let total = positions.last().map_or(0, |position| position.tokens);
        let (kind, shared) = if known.model != model {
            ("model_changed", 0)
        } else {
            match divergence(&known.positions, positions) {
                None => return Value::Null,
                Some((PromptLayer::Tools, index)) => ("tools_changed", index),
                Some((PromptLayer::System, index)) => ("system_changed", index),
                Some((_, index)) => ("messages_changed", index),
            }
        };
        let shared_tokens = shared.checked_sub(1).map_or(0, |last| positions[last].tokens);
        json!({"cache_miss_reason": {"type": kind, "cache_missed_input_tokens": total - shared_tokens}})
    }

    pub fn remember(&mut self, owner: &str, message_id: &str, model: &str, positions: &[Position]) {
        let positions: Vec<_> = positions.iter().map(|position| (position.key, position.layer)).collect();
        self.positions += positions.len();
        let (owner, model) = (owner.to_owned(), model.to_owned());
        let known =
            self.by_message.insert(message_id.to_owned(), PromptFingerprint { owner, model, positions });
        match known {
            None => self.oldest_first.push_back(message_id.to_owned()),
            Some(known) => self.positions -= known.positions.len(),
        }
        while self.oldest_first.len() > self.most || self.positions > MOST_POSITIONS {
            let Some(oldest) = self.oldest_first.pop_front() else { return };
            let gone = self.by_message.remove(&oldest).map_or(0, |fingerprint| fingerprint.positions.len());
            self.positions -= gone;
        }
    }
}

/// The first place where the earlier prompt is not a prefix of this one.
fn divergence(known: &[(PrefixKey, PromptLayer)], now: &[Position]) -> Option<(PromptLayer, usize)> {
    let differs = |index: &usize| now.get(*index).map(|position| position.key) != Some(known[*index].0);
    let index = (0..known.len()).find(differs)?;
    let layer = now.get(index).map_or(known[index].1, |position| position.layer.min(known[index].1));
    Some((layer, index.min(now.len())))
}
