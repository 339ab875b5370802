//! Response headers and short answers: what every reply of the API carries.

use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::response::Response;
use http::{HeaderName, HeaderValue, StatusCode, header};
use serde_json::Value;

use super::caller::Caller;
use super::encode::rfc3339;
use super::error::ApiError;
use super::visit::Visit;

/// The organization every credential belongs to.
const ORGANIZATION: &str = "5f0c1a52-0000-4000-8000-73696d756c61";

/// The limits the headers show; nobody is really limited.
const RATE_LIMITS: [(&str, u64); 4] =
    [("requests", 4_000), ("tokens", 2_400_000), ("input-tokens", 2_000_000), ("output-tokens", 400_000)];

/// A response with the API's own headers.
pub fn bare(status: StatusCode, request_id: &str, caller: Option<&Caller>, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    let mut set = |name: &str, value: &str| {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            headers.insert(name, value);
        }
    };
    set("request-id", request_id);
    set("anthropic-organization-id", ORGANIZATION);
    let Some(caller) = caller else { return response };
    set("anthropic-workspace-id", &caller.workspace);
    let reset = rfc3339(SystemTime::now() + Duration::from_secs(60));
    for (name, limit) in RATE_LIMITS {
        set(&format!("anthropic-ratelimit-{name}-limit"), &limit.to_string());
        set(&format!("anthropic-ratelimit-{name}-remaining"), &(limit - 1).to_string());
        set(&format!("anthropic-ratelimit-{name}-reset"), &reset);
    }
    response
}

/// A refusal in the API's envelope.
pub fn refuse(mut visit: Visit, caller: Option<&Caller>, error: &ApiError) -> Response {
    visit.note(|record| {
        record.status = Some(error.status);
        record.error = Some(error.message.clone());
        record.error_code = error.code().map(str::to_owned);
    });
    // A fault may order any number; one that cannot end an exchange would leave its client waiting.
    let ends = |status: &StatusCode| !status.is_informational();
    let status = StatusCode::from_u16(error.status).ok().filter(ends);
    let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let request_id = visit.request_id.clone();
    let body = whole(&mut visit, error.body(&request_id));
    let mut response = bare(status, &request_id, caller, body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(seconds) = error.retry_after_s {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

/// A JSON answer that is not a message.
pub fn json(mut visit: Visit, caller: Option<&Caller>, value: &Value) -> Response {
    visit.note(|record| record.status = Some(200));
    let request_id = visit.request_id.clone();
    let body = whole(&mut visit, value.to_string().into_bytes());
    let mut response = bare(StatusCode::OK, &request_id, caller, body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn whole(visit: &mut Visit, bytes: Vec<u8>) -> Body {
    visit.first_byte();
    visit.complete();
    Body::from(bytes)
}
