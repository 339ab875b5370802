//! What is uncertain about threads, as settings.

use serde::{Deserialize, Serialize};

/// The rules of server-held threads, under `threads.` in [`SimRules`](super::super::SimRules).
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThreadRules {
    /// Markers per request with `thread`, the top-level one included. The API said 3 in September and 4 in November.
    pub markers: usize,
    /// How long a thread is held after its last request ended.
    pub lifetime_s: u64,
    /// How many of a hundred held answers are lost, chosen by the seed.
    pub loss_percent: u64,
    /// How many of a hundred held answers cannot be continued, by the seed: a continue is in progress, or was.
    pub refusal_percent: u64,
    pub repeated_fields: RepeatedFields,
    pub unsupported_options: UnsupportedOptions,
    pub broken_answers: BrokenAnswers,
    pub refusals: Refusals,
    pub cache: ThreadCache,
}

impl Default for ThreadRules {
    fn default() -> Self {
        ThreadRules {
            markers: 3,
            lifetime_s: 5 * 60,
            loss_percent: 0,
            refusal_percent: 0,
            repeated_fields: RepeatedFields::Compared,
            unsupported_options: UnsupportedOptions::Refused,
            broken_answers: BrokenAnswers::Forgotten,
            refusals: Refusals::Forgotten,
            cache: ThreadCache::Shared,
        }
    }
}

/// The treatment of `system` and `tools` on a continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RepeatedFields {
    /// They must equal those of the create.
    Compared,
    /// They must not be there, equal or not.
    Refused,
}

/// The treatment of `fallbacks` and of context edits that rewrite the history, beside `thread`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnsupportedOptions {
    Refused,
    Accepted,
}

/// What is held of an answer whose stream ended before `message_stop`: all of it or nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BrokenAnswers {
    Forgotten,
    Held,
}

/// What is held of an answer with the stop reason `refusal`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusals {
    Forgotten,
    Held,
}

/// Decides if whole requests read the cache entries that requests with `thread` wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThreadCache {
    Shared,
    Separate,
}
