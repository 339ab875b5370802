//! The API's refusals: a status, a type, a sentence, and for some of them a code.
//!
//! Clients match on the wording, so each rule carries its own text; this file only knows the envelope
//! `{"type":"error","error":{"type":…,"message":…},"request_id":"req_…"}` and which type goes with which status.
//! Refusals of threads and compactions also have `error.details.error_code`, on which clients branch.

use serde_json::{Map, Value, json};

/// A refusal in the API's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    pub status: u16,
    pub message: String,
    /// Seconds for the `retry-after` header; only faults set it.
    pub retry_after_s: Option<u64>,
    /// `error.details`; without members it is left out.
    pub details: Map<String, Value>,
}

impl ApiError {
    pub fn new(status: u16, message: impl Into<String>) -> Self {
        ApiError { status, message: message.into(), retry_after_s: None, details: Map::new() }
    }

    /// 400: the request itself is wrong.
    pub fn invalid(message: impl Into<String>) -> Self {
        ApiError::new(400, message)
    }

    /// The same refusal with `details.error_code`.
    pub fn coded(self, code: &str) -> Self {
        self.detailed("error_code", json!(code))
    }

    /// The same refusal with one more member of `details`.
    pub fn detailed(mut self, member: &str, value: Value) -> Self {
        self.details.insert(member.to_owned(), value);
        self
    }

    pub fn code(&self) -> Option<&str> {
        self.details.get("error_code").and_then(Value::as_str)
    }

    /// The `error.type` that belongs to the status.
    pub fn kind(&self) -> &'static str {
        kind_of(self.status)
    }

    pub fn body(&self, request_id: &str) -> Vec<u8> {
        let mut envelope = json!({
            "type": "error",
            "error": {"type": self.kind(), "message": self.message},
            "request_id": request_id,
        });
        if !self.details.is_empty() {
            envelope["error"]["details"] = Value::Object(self.details.clone());
        }
        envelope.to_string().into_bytes()
    }
}

/// The `error.type` of a status; unknown client errors are invalid requests, unknown server errors API errors.
pub fn kind_of(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        409 => "conflict_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        504 => "timeout_error",
        529 => "overloaded_error",
        500..=599 => "api_error",
        _ => "invalid_request_error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_type_follows_the_status() {
        let kinds = [
            (400, "invalid_request_error"),
            (401, "authentication_error"),
            (402, "billing_error"),
            (403, "permission_error"),
            (404, "not_found_error"),
            (409, "conflict_error"),
            (413, "request_too_large"),
            (429, "rate_limit_error"),
            (500, "api_error"),
            (504, "timeout_error"),
            (529, "overloaded_error"),
        ];
        for (status, kind) in kinds {
            assert_eq!(kind_of(status), kind, "status {status}");
        }
    }
}
