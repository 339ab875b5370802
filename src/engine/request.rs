//! What a Messages request says about itself, as spans over its own bytes.

use std::borrow::Cow;

use super::json::{self, Malformed, Span};

/// A request body that is one JSON object. Nothing is copied and nothing is checked beyond structure: a
/// body the upstream would refuse is still forwarded for the upstream to refuse.
#[derive(Clone, Debug, Default)]
pub struct RequestSpans {
    model: Option<Span>,
    stream: Option<Span>,
    user_id: Option<Span>,
}

impl RequestSpans {
    /// Of a member that occurs twice the last counts, as in most parsers.
    pub fn read(body: &[u8]) -> Result<RequestSpans, Malformed> {
        let mut spans = RequestSpans::default();
        let end = json::walk_object(body, 0, |key, start| {
            let end = json::value_end(body, start)?;
            let is = |name| json::is_key(body, &key, name);
            if is("model") {
                spans.model = Some(start..end);
            } else if is("stream") {
                spans.stream = Some(start..end);
            } else if is("metadata") {
                spans.user_id = json::member(body, start, "user_id");
            }
            Ok(end)
        })?;
        match json::skip_space(body, end) {
            end if end == body.len() => Ok(spans),
            end => Err(Malformed::At(end)),
        }
    }

    pub fn model<'a>(&self, body: &'a [u8]) -> Option<Cow<'a, str>> {
        json::text(body, self.model.as_ref()?)
    }

    pub fn stream(&self, body: &[u8]) -> bool {
        self.stream.as_ref().is_some_and(|span| &body[span.clone()] == b"true")
    }

    /// `metadata.user_id`, which Claude Code fills with its session.
    pub fn user_id<'a>(&self, body: &'a [u8]) -> Option<Cow<'a, str>> {
        json::text(body, self.user_id.as_ref()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_found_wherever_it_stands() {
        let body = br#"{"messages":[{"role":"user","content":"\"model\":\"no\""}],"stream":true,
            "metadata":{"user_id":"u\u0031"},"model":"claude-x"}"#;
        let spans = RequestSpans::read(body).unwrap();
        assert_eq!(spans.model(body).unwrap(), "claude-x");
        assert!(spans.stream(body));
        assert_eq!(spans.user_id(body).unwrap(), "u1");
    }

    #[test]
    fn odd_types_are_simply_absent() {
        let body = br#"{"model":7,"stream":"true","metadata":[1]}"#;
        let spans = RequestSpans::read(body).unwrap();
        assert_eq!(spans.model(body), None);
        assert!(!spans.stream(body));
        assert_eq!(spans.user_id(body), None);
    }

    #[test]
    fn of_duplicate_members_the_last_counts() {
        let body = br#"{"model":"a","model":"b"}"#;
        assert_eq!(RequestSpans::read(body).unwrap().model(body).unwrap(), "b");
    }

    #[test]
    fn an_escaped_name_is_still_the_name() {
        let body =
            br#"{"model":"a","mod\u0065l":"b","str\u0065am":true,"metad\u0061ta":{"user\u005fid":"u"}}"#;
        let spans = RequestSpans::read(body).unwrap();
        assert_eq!(spans.model(body).unwrap(), "b");
        assert!(spans.stream(body));
        assert_eq!(spans.user_id(body).unwrap(), "u");
    }

    #[test]
    fn what_is_no_object_is_malformed() {
        for body in [&b""[..], b"[]", b"{}x", b"{\"a\":", b"\xff\xfe", b"null"] {
            assert!(RequestSpans::read(body).is_err(), "{body:?}");
        }
        assert!(RequestSpans::read(b" {} \n").is_ok());
    }
}
