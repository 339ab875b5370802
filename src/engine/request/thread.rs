//! Conversations that the server holds: the field `thread`.
//!
//! A request with `{"type":"create"}` is whole. One with `{"type":"continue","previous_message_id":"msg_…"}` brings only
//! the messages since that answer; the server has the rest.

use memchr::memmem;

use super::json;

const NAME: &str = "thread";
const KEY: &[u8] = b"\"thread\"";

/// What the field `thread` of a request says.
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
    pub fn read(body: &[u8]) -> Option<ThreadField> {
        // Most requests have none, and within a string the quotes would be escaped.
        memmem::find(body, KEY)?;
        let value = json::member(body, 0, NAME).filter(|value| &body[value.clone()] != b"null")?;
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

    #[test]
    fn the_field_is_read_wherever_it_stands() {
        let read = |thread: &str| ThreadField::read(format!(r#"{{"messages":[],{thread}}}"#).as_bytes());
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
        let body = br#"{"messages":[{"role":"user","content":[{"type":"text","text":"\"thread\":1"}]}]}"#;
        assert_eq!(ThreadField::read(body), None);
        let nested = br#"{"messages":[{"role":"user","content":[{"thread":{"type":"create"}}]}]}"#;
        assert_eq!(ThreadField::read(nested), None);
    }
}
