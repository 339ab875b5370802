//! Cache diagnostics: asking the upstream where a prompt departs from an earlier one, and reading its verdict.
//!
//! The question is one member of the request, which names the answer to the earlier prompt; the verdict is a member
//! of the answer. Neither is part of the prompt, and the verdict says nothing about whether the cache hit.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::engine::request::anatomy::Anatomy;
use crate::engine::request::edit::Edit;
use crate::engine::words::DiagnosisVerdict;

/// Message ids are short; anything longer is not one.
const MESSAGE_ID_BYTES_MAX: usize = 128;

/// The statement of the upstream about the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    pub verdict: DiagnosisVerdict,
    /// The part of the prompt behind the divergence, as the upstream estimates.
    pub missed_tokens: Option<u64>,
}

impl DiagnosisVerdict {
    fn named(name: &str) -> DiagnosisVerdict {
        let known = [
            DiagnosisVerdict::ModelChanged,
            DiagnosisVerdict::SystemChanged,
            DiagnosisVerdict::ToolsChanged,
            DiagnosisVerdict::MessagesChanged,
            DiagnosisVerdict::PreviousMessageNotFound,
            DiagnosisVerdict::Unavailable,
        ];
        known.into_iter().find(|verdict| verdict.as_str() == name).unwrap_or(DiagnosisVerdict::Other)
    }
}

impl Diagnosis {
    /// Reads the `diagnostics` member of an answer.
    pub fn read(json: &str) -> Diagnosis {
        let only = |verdict| Diagnosis { verdict, missed_tokens: None };
        let Ok(Some(wire)) = serde_json::from_str::<Option<WireDiagnosis<'_>>>(json) else {
            return only(if json == "null" { DiagnosisVerdict::None } else { DiagnosisVerdict::Other });
        };
        let Some(reason) = wire.cache_miss_reason else { return only(DiagnosisVerdict::Other) };
        match serde_json::from_str::<Option<WireReason>>(reason.get()) {
            Ok(None) => only(DiagnosisVerdict::Pending),
            Ok(Some(WireReason { kind, cache_missed_input_tokens })) => Diagnosis {
                verdict: DiagnosisVerdict::named(&kind),
                missed_tokens: cache_missed_input_tokens,
            },
            Err(_) => only(DiagnosisVerdict::Other),
        }
    }
}

#[derive(Deserialize)]
struct WireDiagnosis<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    cache_miss_reason: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct WireReason {
    #[serde(rename = "type")]
    kind: String,
    cache_missed_input_tokens: Option<u64>,
}

/// Keeps `null` apart from nothing: here they mean different things.
pub(in crate::engine) fn present<'de, D: serde::Deserializer<'de>>(
    from: D,
) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(from).map(Some)
}

/// The question for a request: how it compares with the prompt that `previous` answered, or `None` on a first turn,
/// which leaves a fingerprint for the next. It goes last, so that the head of the body stays as stable as it was.
/// Nothing is asked if the client asks by itself or readers could disagree about the body.
pub fn question(body: &[u8], anatomy: &Anatomy, previous: Option<&str>) -> Option<Edit> {
    let last = anatomy.members.last()?;
    if anatomy.ambiguous || anatomy.member(body, "diagnostics").is_some() {
        return None;
    }
    let bytes = match previous {
        None => Bytes::from_static(br#","diagnostics":{"previous_message_id":null}"#),
        Some(id) if is_message_id(id) => {
            Bytes::from(format!(r#","diagnostics":{{"previous_message_id":"{id}"}}"#))
        }
        Some(_) => return None,
    };
    Some(Edit::inserting(last.value.end, bytes))
}

/// Returns true if the id needs no escapes and is not prose.
fn is_message_id(id: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    !id.is_empty() && id.len() <= MESSAGE_ID_BYTES_MAX && id.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::request::edit::apply;

    #[test]
    fn every_verdict_is_read_by_its_spelling() {
        let read = |json: &str| Diagnosis::read(json).verdict;
        assert_eq!(read("null"), DiagnosisVerdict::None);
        assert_eq!(read(r#"{"cache_miss_reason":null}"#), DiagnosisVerdict::Pending);
        for verdict in &DiagnosisVerdict::ALL[2..8] {
            let json = format!(r#"{{"cache_miss_reason":{{"type":"{}"}}}}"#, verdict.as_str());
            assert_eq!(read(&json), *verdict);
        }
        let unknown =
            [r#"{"cache_miss_reason":{"type":"pending"}}"#, "{}", "[]", "7", r#"{"cache_miss_reason":7}"#];
        for json in unknown {
            assert_eq!(read(json), DiagnosisVerdict::Other, "{json}");
        }
        let spellings: std::collections::HashSet<_> =
            DiagnosisVerdict::ALL.iter().map(|it| it.as_str()).collect();
        assert_eq!(spellings.len(), DiagnosisVerdict::ALL.len());
    }

    #[test]
    fn missed_tokens_come_along_where_they_are_said() {
        let json =
            r#"{"cache_miss_reason":{"type":"tools_changed","cache_missed_input_tokens":812,"new":1}}"#;
        let read = Diagnosis::read(json);
        assert_eq!((read.verdict, read.missed_tokens), (DiagnosisVerdict::ToolsChanged, Some(812)));
        assert_eq!(Diagnosis::read("null").missed_tokens, None);
    }

    fn asked(body: &str, previous: Option<&str>) -> Option<String> {
        let anatomy = Anatomy::read(body.as_bytes()).unwrap();
        let edit = question(body.as_bytes(), &anatomy, previous)?;
        let forwarded = apply(&Bytes::copy_from_slice(body.as_bytes()), &[edit]);
        Some(String::from_utf8(forwarded.pieces.concat()).unwrap())
    }

    #[test]
    fn the_question_becomes_the_last_member() {
        let body = "{ \"model\":\"m\", \"messages\":[] \n}";
        let first = asked(body, None).unwrap();
        assert_eq!(
            first,
            "{ \"model\":\"m\", \"messages\":[],\"diagnostics\":{\"previous_message_id\":null} \n}"
        );
        let next: serde_json::Value =
            serde_json::from_str(&asked(body, Some("msg_01Ab-9")).unwrap()).unwrap();
        assert_eq!(next["diagnostics"]["previous_message_id"], "msg_01Ab-9");
        assert_eq!(asked(&first, Some("msg_1")), None, "asked already");
    }

    #[test]
    fn nothing_is_asked_where_it_could_do_harm() {
        assert_eq!(asked("{}", None), None);
        assert_eq!(asked(r#"{"diagnostics":null}"#, None), None);
        assert_eq!(asked(r#"{"diagn\u006fstics":null}"#, None), None);
        assert_eq!(asked(r#"{"system":"a","system":"b"}"#, None), None);
        let long = "m".repeat(200);
        for id in ["", "a\"b", "a b", "\u{e9}", &long] {
            assert_eq!(asked(r#"{"model":"m"}"#, Some(id)), None, "{id}");
        }
    }
}
