//! The events and answers as they come over the wire.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::engine::json::{self, Malformed};

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

/// The members of an answer, each as it is written; none where there is `null`.
#[derive(Default)]
pub(super) struct WireMessage<'a> {
    pub(super) id: Option<&'a str>,
    pub(super) model: Option<&'a str>,
    pub(super) stop_reason: Option<&'a str>,
    pub(super) content: Option<&'a str>,
    pub(super) usage: Option<&'a str>,
    pub(super) error: Option<&'a str>,
    /// Even `null`, which is an answer here.
    pub(super) diagnostics: Option<&'a str>,
}

impl<'a> WireMessage<'a> {
    /// One walk over the text; a parser would look at each byte of the content several times. `None` for what is no
    /// object, or says a thing twice.
    pub(super) fn read(text: &'a str) -> Option<WireMessage<'a>> {
        let bytes = text.as_bytes();
        let (mut message, mut twice) = (WireMessage::default(), false);
        let end = json::walk_object(bytes, 0, |key, start| {
            let end = json::value_end(bytes, start)?;
            let member = match &*json::text(bytes, &key).ok_or(Malformed::At(key.start))? {
                "id" => &mut message.id,
                "model" => &mut message.model,
                "stop_reason" => &mut message.stop_reason,
                "content" => &mut message.content,
                "usage" => &mut message.usage,
                "error" => &mut message.error,
                "diagnostics" => &mut message.diagnostics,
                _ => return Ok(end),
            };
            twice |= member.replace(&text[start..end]).is_some();
            Ok(end)
        });
        let whole = end.is_ok_and(|end| json::skip_space(bytes, end) == bytes.len());
        let WireMessage { id, model, stop_reason, content, usage, error, .. } = &mut message;
        for member in [id, model, stop_reason, content, usage, error] {
            *member = member.filter(|raw| *raw != "null");
        }
        (whole && !twice).then_some(message)
    }
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
