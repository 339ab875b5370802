//! The events and answers as they come over the wire.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::engine::answer::diagnosis::present;
use crate::engine::request::json;

// Each field is raw so that one of an unexpected type does not cost us the others.
#[derive(Deserialize)]
pub(super) struct WireEvent<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) kind: &'a RawValue,
    pub(super) index: Option<u64>,
    #[serde(borrow)]
    pub(super) message: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) content_block: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) delta: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) usage: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) error: Option<&'a RawValue>,
}

/// A message, each member as its JSON; `None` for `null` too.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RawMessage<'a> {
    pub(super) id: Option<&'a str>,
    pub(super) model: Option<&'a str>,
    pub(super) stop_reason: Option<&'a str>,
    pub(super) content: Option<&'a str>,
    pub(super) usage: Option<&'a str>,
    pub(super) error: Option<&'a str>,
    /// Also if it is `null`.
    pub(super) diagnostics: Option<&'a str>,
}

impl<'a> RawMessage<'a> {
    /// `None` for what a strict reader refuses.
    pub(super) fn read(json: &'a [u8]) -> Option<RawMessage<'a>> {
        RawMessage::walked(json)
            .or_else(|| serde_json::from_slice::<WireMessage<'a>>(json).ok().map(RawMessage::from))
    }

    /// The usual message, several times faster than by a reader that knows all others too. `None` says nothing.
    fn walked(json: &'a [u8]) -> Option<RawMessage<'a>> {
        let text = json::sound(json)?;
        let mut message = RawMessage::default();
        let (mut seen, mut is_usual) = ([false; 7], true);
        let end = json::walk_object(json, 0, |key, start| {
            let end = json::value_end(json, start)?;
            let (number, member) = match &text[key.start + 1..key.end - 1] {
                "id" => (0, &mut message.id),
                "model" => (1, &mut message.model),
                "stop_reason" => (2, &mut message.stop_reason),
                "content" => (3, &mut message.content),
                "usage" => (4, &mut message.usage),
                "error" => (5, &mut message.error),
                "diagnostics" => (6, &mut message.diagnostics),
                other => {
                    is_usual &= !other.contains('\\');
                    return Ok(end);
                }
            };
            is_usual &= !std::mem::replace(&mut seen[number], true);
            *member = Some(&text[start..end]).filter(|value| *value != "null" || number == 6);
            Ok(end)
        });
        let end = json::skip_space(json, end.ok()?);
        (is_usual && end == json.len()).then_some(message)
    }
}

impl<'a> From<WireMessage<'a>> for RawMessage<'a> {
    fn from(wire: WireMessage<'a>) -> RawMessage<'a> {
        let WireMessage { id, model, stop_reason, content, usage, error, diagnostics } = wire;
        let [id, model, stop_reason, content, usage, error, diagnostics] =
            [id, model, stop_reason, content, usage, error, diagnostics].map(|raw| raw.map(RawValue::get));
        RawMessage { id, model, stop_reason, content, usage, error, diagnostics }
    }
}

#[derive(Deserialize)]
struct WireMessage<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    model: Option<&'a RawValue>,
    #[serde(borrow)]
    stop_reason: Option<&'a RawValue>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    diagnostics: Option<&'a RawValue>,
}

#[derive(Deserialize)]
pub(super) struct WireDelta<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) kind: &'a RawValue,
    #[serde(borrow)]
    pub(super) text: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) thinking: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) signature: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) partial_json: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) citation: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) content: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) encrypted_content: Option<&'a RawValue>,
}

#[derive(Deserialize)]
pub(super) struct WireError<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) kind: Option<&'a RawValue>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn strict(json: &[u8]) -> Option<RawMessage<'_>> {
        serde_json::from_slice::<WireMessage<'_>>(json).ok().map(RawMessage::from)
    }

    #[test]
    fn a_usual_message_is_walked() {
        let json = br#"{"id":"m","type":"message","content":[{"type":"text","text":"a\nb"}],"usage":{},"error":null}"#;
        assert_eq!(RawMessage::walked(json), strict(json));
        assert!(RawMessage::walked(json).is_some());
        for odd in [r#"{"id":1,"id":2}"#, r#"{"\u0069d":1}"#, "{\"id\":\"\n\"}", r#"{"id":"\q"}"#, "{} x"] {
            assert_eq!(RawMessage::walked(odd.as_bytes()), None, "{odd}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn it_is_read_as_a_strict_reader_reads_it(members in prop::collection::vec((
            prop::sample::select(vec!["\"id\"", "\"content\"", "\"diagnostics\"", "\"x\"", "\"\\u0069d\"", "id"]),
            prop::sample::select(vec!["null", "1", "01", "\"a\"", "\"\\q\"", "\"\\u00zz\"", "[{}]", "[", " {} ", "\"\t\""]),
        ), 0..4), end in prop::sample::select(vec!["}", "} ", "}x", ""])) {
            let members: Vec<_> = members.iter().map(|(key, value)| format!("{key}:{value}")).collect();
            let json = format!("{{{}{end}", members.join(","));
            prop_assert_eq!(RawMessage::read(json.as_bytes()), strict(json.as_bytes()));
        }
    }
}
