//! What version 2026-10-21 of the API refuses, and the one before it accepts.

use super::super::body::{Body, MessageRole, kind};
use super::super::caller::ApiVersion;
use super::super::error::ApiError;

/// Parameters that are gone.
const SAMPLING: [&str; 3] = ["temperature", "top_p", "top_k"];

pub fn check(body: &Body<'_>, version: ApiVersion) -> Result<(), ApiError> {
    if version == ApiVersion::V20230601 {
        return Ok(());
    }
    if let Some(name) = SAMPLING.into_iter().find(|name| body.member(name).is_some()) {
        return Err(ApiError::invalid(format!("{name}: Extra inputs are not permitted")));
    }
    for (index, message) in body.messages.iter().enumerate() {
        for (place, block) in message.content.blocks().iter().enumerate() {
            let path = format!("messages.{index}.content.{place}");
            let has_citations = block.get("citations").is_some_and(|citations| !citations.is_null());
            match (message.role, kind(block)) {
                (MessageRole::Assistant, "document") => {
                    let reason = "`document` blocks are not permitted in assistant messages";
                    return Err(ApiError::invalid(format!("{path}: {reason}")));
                }
                (MessageRole::User, "text") if has_citations => {
                    let reason = "Extra inputs are not permitted";
                    return Err(ApiError::invalid(format!("{path}.text.citations: {reason}")));
                }
                _ => {}
            }
        }
    }
    Ok(())
}
