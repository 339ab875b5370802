//! The API's refusals, in its words.
//!
//! Clients recover by matching on error texts, so a refusal with other words is a different API. Each file checks
//! one family; the order here is the order in which the first problem is reported. Where only the rule is public
//! and not its wording, the text is ours and says what to change.
//!
//! Example: five markers → 400 `A maximum of 4 blocks with cache_control may be provided. Found 5.`

pub mod compaction;
mod markers;
mod options;
mod pairing;
pub mod signature;
mod tools;
mod turns;
mod version;

use super::body::Body;
use super::caller::ApiVersion;
use super::error::ApiError;
use super::prompt::RequestedBreakpoint;
use super::settings::{Options, SimRules, UnknownInput};

/// The betas a request names, in order.
pub type RequestBetas<'a> = [&'a str];

/// Checks everything that needs no memory, and returns the breakpoints the request asks for.
pub fn check(
    body: &Body<'_>,
    betas: &RequestBetas<'_>,
    version: ApiVersion,
    rules: &SimRules,
) -> Result<Vec<RequestedBreakpoint>, ApiError> {
    if rules.unknown_input == UnknownInput::Refuse
        && let Some(field) = body.unknown_field()
    {
        return Err(ApiError::invalid(format!("{field}: Extra inputs are not permitted")));
    }
    if rules.options == Options::Checked {
        version::check(body, version)?;
        options::check(body, betas)?;
        tools::check(body)?;
    }
    turns::check(body, rules)?;
    let markers = markers::check(body, rules)?;
    pairing::check(body)?;
    Ok(markers)
}

/// Checks that the prompt and the answer fit the model's window.
pub fn check_window(body: &Body<'_>, prompt_tokens: u64) -> Result<(), ApiError> {
    let window = body.model.window_tokens;
    if prompt_tokens > window {
        return Err(ApiError::invalid(format!(
            "prompt is too long: {prompt_tokens} tokens > {window} maximum"
        )));
    }
    let max_tokens = body.max_tokens.unwrap_or_default();
    if prompt_tokens.saturating_add(max_tokens) > window {
        return Err(ApiError::invalid(format!(
            "input length and `max_tokens` exceed context limit: {prompt_tokens} + {max_tokens} > {window}, \
             decrease input length or `max_tokens` and try again"
        )));
    }
    Ok(())
}
