//! A rewritten request that the upstream refused: why, as far as it says so, and what to try instead.

use std::borrow::Cow;

use crate::engine::request::anatomy::Anatomy;
use crate::engine::request::edit::Edit;
use crate::engine::request::json;
use crate::engine::words::UpstreamRefusal;

/// The beta under which a request can have thinking blocks dropped that are bound to another prefix.
pub const DROP_BLOCK_BETA: &str = "thinking-binding-controls-2026-08-01";
const DROP_BLOCK: &str = r#""block_binding":{"prefix_mismatch_behavior":"drop_block"}"#;

/// Returns true for the statuses by which an upstream refuses what a request says. Gateways before the API say what they
/// cannot read with 415 or 422.
pub fn is_refusal(status: u16) -> bool {
    matches!(status, 400 | 413 | 415 | 422)
}

/// Returns true if `said` is an error in the form of the API, and not that of a gateway or a web server.
pub fn is_api_error(said: &[u8]) -> bool {
    let Ok(body) = serde_json::from_slice::<serde_json::Value>(said) else { return false };
    body["type"] == "error" && body["error"]["type"].is_string()
}

impl UpstreamRefusal {
    /// `said` is the body of the answer.
    pub fn of(status: u16, said: &[u8]) -> Option<UpstreamRefusal> {
        let says = |words: &str| memchr::memmem::find(said, words.as_bytes()).is_some();
        match status {
            413 => Some(UpstreamRefusal::TooLarge),
            400 if says("bound to a different conversation") => Some(UpstreamRefusal::LostPrefix),
            400 if says("prompt is too long") || says("exceed context limit") => {
                Some(UpstreamRefusal::Window)
            }
            status => is_refusal(status).then_some(UpstreamRefusal::Other),
        }
    }
}

/// The reason why a request that goes on from an answer which the server holds was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadRefusal {
    /// A field is not as it was when the conversation began.
    Mismatch,
    /// Another request goes on from that answer, or has done so.
    Taken,
    /// The server does not hold that answer.
    Lost,
    Other,
}

impl ThreadRefusal {
    /// `said` is the body of the answer.
    pub fn of(status: u16, said: &[u8]) -> Option<ThreadRefusal> {
        if !is_refusal(status) && status != 404 {
            return None;
        }
        match error_code(said).as_deref() {
            Some("thread_not_found") => Some(ThreadRefusal::Lost),
            _ if status == 404 => None,
            Some("thread_fingerprint_mismatch") => Some(ThreadRefusal::Mismatch),
            Some("thread_already_continued" | "thread_continue_in_flight") => Some(ThreadRefusal::Taken),
            _ => Some(ThreadRefusal::Other),
        }
    }
}

/// The refusal of a request that goes on from an answer which the server holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldRefusal {
    pub thread: ThreadRefusal,
    /// Why any other request would have been refused so.
    pub why: Option<UpstreamRefusal>,
    /// True if it is about a marker.
    pub names_marker: bool,
}

impl HeldRefusal {
    /// `said` is the body of the answer.
    pub fn of(status: u16, said: &[u8]) -> Option<HeldRefusal> {
        let names_marker = memchr::memmem::find(said, b"cache_control").is_some();
        let why = UpstreamRefusal::of(status, said);
        ThreadRefusal::of(status, said).map(|thread| HeldRefusal { thread, why, names_marker })
    }
}

/// Returns true if `said` is an error about a conversation that the server holds, or held.
pub fn is_of_thread(said: &[u8]) -> bool {
    error_code(said).is_some_and(|code| code.starts_with("thread_"))
}

/// The code by which clients know an error.
fn error_code(said: &[u8]) -> Option<Cow<'_, str>> {
    let member = |at: usize, name: &str| json::member(said, at, name);
    let details = member(member(0, "error")?.start, "details")?;
    json::text(said, &member(details.start, "error_code")?)
}

/// Asks for blocks to be dropped that are bound to another prefix; none if the request says itself what is to be
/// done with them, or has no thinking to say it of.
pub fn drop_block(body: &[u8], anatomy: &Anatomy) -> Option<Edit> {
    let thinking = anatomy.member(body, "thinking").filter(|value| body[value.start] == b'{')?;
    if json::member(&body[thinking.clone()], 0, "block_binding").is_some() {
        return None;
    }
    let is_empty = body[thinking.start + 1..thinking.end - 1].trim_ascii().is_empty();
    let comma = if is_empty { "" } else { "," };
    Some(Edit::inserting(thinking.end - 1, format!("{comma}{DROP_BLOCK}").into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::request::edit::apply;
    use bytes::Bytes;

    fn with_drop_block(body: &str) -> Option<String> {
        let edit = drop_block(body.as_bytes(), &Anatomy::read(body.as_bytes()).unwrap())?;
        let pieces = apply(&Bytes::copy_from_slice(body.as_bytes()), &[edit]).pieces;
        Some(String::from_utf8(pieces.concat()).unwrap())
    }

    #[test]
    fn blocks_are_dropped_where_nobody_says_what_to_do_with_them() {
        let messages = r#""messages":[]"#;
        for (thinking, expected) in [
            (
                r#""thinking":{"type":"adaptive"},"#,
                Some(
                    r#""thinking":{"type":"adaptive","block_binding":{"prefix_mismatch_behavior":"drop_block"}},"#,
                ),
            ),
            (
                r#""thinking":{ },"#,
                Some(r#""thinking":{ "block_binding":{"prefix_mismatch_behavior":"drop_block"}},"#),
            ),
            (r#""thinking":{"block_binding":{"prefix_mismatch_behavior":"error"}},"#, None),
            (r#""thinking":null,"#, None),
            ("", None),
        ] {
            let made = with_drop_block(&format!("{{{thinking}{messages}}}"));
            assert_eq!(made, expected.map(|thinking| format!("{{{thinking}{messages}}}")));
        }
    }

    #[test]
    fn a_refused_thread_is_named_by_its_code() {
        let said = |code: &str| {
            format!(
                r#"{{"type":"error","error":{{"type":"t","message":"m","details":{{"error_code":"{code}"}}}}}}"#
            )
        };
        for (code, refusal) in [
            ("thread_fingerprint_mismatch", ThreadRefusal::Mismatch),
            ("thread_already_continued", ThreadRefusal::Taken),
            ("thread_continue_in_flight", ThreadRefusal::Taken),
            ("thread_unsupported_request", ThreadRefusal::Other),
        ] {
            assert_eq!(ThreadRefusal::of(400, said(code).as_bytes()), Some(refusal));
            assert_eq!(ThreadRefusal::of(404, said(code).as_bytes()), None);
            assert!(is_of_thread(said(code).as_bytes()), "{code}");
        }
        assert_eq!(ThreadRefusal::of(404, said("thread_not_found").as_bytes()), Some(ThreadRefusal::Lost));
        for odd in ["", "no", r#"{"error":"thread_fingerprint_mismatch"}"#, r#"{"error":{"details":[]}}"#] {
            assert_eq!(ThreadRefusal::of(400, odd.as_bytes()), Some(ThreadRefusal::Other), "{odd}");
            assert!(!is_of_thread(odd.as_bytes()), "{odd}");
        }
    }

    #[test]
    fn an_error_of_the_api_is_known_from_others() {
        let said =
            br#"{"type":"error","error":{"type":"not_found_error","message":"model: x"},"request_id":"r"}"#;
        assert!(is_api_error(said));
        for other in
            ["", "<html>", r#"{"detail":"Not Found"}"#, r#"{"type":"error","error":"no"}"#, "[]", "{"]
        {
            assert!(!is_api_error(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn a_refusal_is_named_by_its_status_and_words() {
        let bound =
            b"messages.1: Invalid `signature`. The block is bound to a different conversation. Remove it";
        assert_eq!(UpstreamRefusal::of(400, bound), Some(UpstreamRefusal::LostPrefix));
        assert_eq!(
            UpstreamRefusal::of(400, b"prompt is too long: 210000 tokens > 200000"),
            Some(UpstreamRefusal::Window)
        );
        for status in [400, 415, 422] {
            assert_eq!(UpstreamRefusal::of(status, b"no"), Some(UpstreamRefusal::Other));
        }
        assert_eq!(UpstreamRefusal::of(413, bound), Some(UpstreamRefusal::TooLarge));
        for status in [200, 401, 429, 500, 529] {
            assert_eq!(UpstreamRefusal::of(status, bound), None);
        }
    }
}
