//! The refusals that carry a code and can be ordered as a fault.
//!
//! ```json
//! {"fault": "refusal", "code": "thread_not_found", "match": {"body_contains": "previous_message_id"}}
//! ```

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::error::ApiError;

/// A refusal that clients know by its `error.details.error_code`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    ThreadNotFound,
    ThreadAlreadyContinued,
    ThreadContinueInFlight,
    ThreadFingerprintMismatch,
    ThreadUnsupportedRequest,
    CompactionUnavailable,
}

impl RefusalCode {
    pub const ALL: [RefusalCode; 6] = [
        RefusalCode::ThreadNotFound,
        RefusalCode::ThreadAlreadyContinued,
        RefusalCode::ThreadContinueInFlight,
        RefusalCode::ThreadFingerprintMismatch,
        RefusalCode::ThreadUnsupportedRequest,
        RefusalCode::CompactionUnavailable,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            RefusalCode::ThreadNotFound => "thread_not_found",
            RefusalCode::ThreadAlreadyContinued => "thread_already_continued",
            RefusalCode::ThreadContinueInFlight => "thread_continue_in_flight",
            RefusalCode::ThreadFingerprintMismatch => "thread_fingerprint_mismatch",
            RefusalCode::ThreadUnsupportedRequest => "thread_unsupported_request",
            RefusalCode::CompactionUnavailable => "compaction_unavailable",
        }
    }

    pub fn parse(name: &str) -> Option<RefusalCode> {
        RefusalCode::ALL.into_iter().find(|code| code.as_str() == name.trim())
    }

    /// The refusal as a fault orders it, without a cause in the request.
    pub fn ordered(self) -> ApiError {
        match self {
            RefusalCode::ThreadNotFound => thread_not_found(),
            RefusalCode::ThreadAlreadyContinued => thread_already_continued(),
            RefusalCode::ThreadContinueInFlight => thread_continue_in_flight(),
            RefusalCode::ThreadFingerprintMismatch => thread_fingerprint_mismatch(&["system", "tools"]),
            RefusalCode::ThreadUnsupportedRequest => {
                thread_unsupported("thread: this request cannot be part of a thread.", "inference_hooks")
            }
            RefusalCode::CompactionUnavailable => ApiError::new(529, "Overloaded").coded(self.as_str()),
        }
    }
}

pub fn thread_not_found() -> ApiError {
    let message = "No thread state was found for the requested `previous_message_id`. Replay the full conversation \
                   with thread: {\"type\": \"create\"} to start a new Thread.";
    ApiError::new(404, message).coded(RefusalCode::ThreadNotFound.as_str())
}

pub fn thread_already_continued() -> ApiError {
    let message = "The response named by `previous_message_id` has already been continued. Replay the full \
                   conversation with thread: {\"type\": \"create\"} to start a new Thread.";
    ApiError::invalid(message).coded(RefusalCode::ThreadAlreadyContinued.as_str())
}

pub fn thread_continue_in_flight() -> ApiError {
    let message =
        "Another request that continues the response named by `previous_message_id` is in progress.";
    ApiError::invalid(message).coded(RefusalCode::ThreadContinueInFlight.as_str())
}

pub fn thread_fingerprint_mismatch(fields: &[&str]) -> ApiError {
    let fields = fields.join(", ");
    let message = format!("The request does not match the thread it continues; differing field(s): {fields}");
    ApiError::invalid(message).coded(RefusalCode::ThreadFingerprintMismatch.as_str())
}

/// `unsupported` is the member of the request that a thread cannot have.
pub fn thread_unsupported(message: impl Into<String>, unsupported: &str) -> ApiError {
    let refusal = ApiError::invalid(message).coded(RefusalCode::ThreadUnsupportedRequest.as_str());
    refusal.detailed("unsupported", json!([unsupported]))
}
