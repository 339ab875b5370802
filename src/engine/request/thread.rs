//! Conversations that the server holds: the field `thread`.
//!
//! A request with `{"type":"create"}` is whole. One with `{"type":"continue","previous_message_id":"msg_…"}` brings only
//! the messages since that answer; the server has the rest.

use super::anatomy::Anatomy;
use super::json;

/// The field `thread` of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ThreadField {
    /// The request is whole, and its answer can be continued.
    Create,
    /// The request goes on where the answer with this id ended.
    Continue(String),
    /// Nothing that is known: the upstream decides.
    Other,
}

impl ThreadField {
    /// Reads the field; none if it is absent or null.
    pub fn read(body: &[u8], anatomy: &Anatomy) -> Option<ThreadField> {
        let value = anatomy.thread(body)?;
        let member = |name: &str| json::text(body, &json::member(body, value.start, name)?);
        Some(match member("type").as_deref() {
            Some("create") => ThreadField::Create,
            Some("continue") => match member("previous_message_id") {
                Some(id) => ThreadField::Continue(id.into_owned()),
                None => ThreadField::Other,
            },
            _ => ThreadField::Other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(body: &str) -> Option<ThreadField> {
        ThreadField::read(body.as_bytes(), &Anatomy::read(body.as_bytes()).unwrap())
    }

    #[test]
    fn the_field_is_read_wherever_it_stands() {
        let read = |thread: &str| field(&format!(r#"{{"messages":[],{thread}}}"#));
        assert_eq!(read(r#""model":"thread""#), None);
        assert_eq!(read(r#""thread":null"#), None);
        assert_eq!(read(r#""thread":{"type":"create"}"#), Some(ThreadField::Create));
        let continued = read(r#""thread" : { "previous_message_id":"msg_1", "type" : "continue" }"#);
        assert_eq!(continued, Some(ThreadField::Continue("msg_1".into())));
        for other in [r#"{"type":"continue"}"#, r#"{"type":"fork"}"#, "{}", "[]", "1", r#""create""#] {
            assert_eq!(read(&format!(r#""thread":{other}"#)), Some(ThreadField::Other), "{other}");
        }
    }

    #[test]
    fn a_word_in_a_message_is_no_field() {
        let body = r#"{"messages":[{"role":"user","content":[{"type":"text","text":"\"thread\":1"}]}]}"#;
        assert_eq!(field(body), None);
        let nested = r#"{"messages":[{"role":"user","content":[{"thread":{"type":"create"}}]}]}"#;
        assert_eq!(field(nested), None);
    }
}
