//! A request of which only the end came, since the server holds its conversation, made whole from what passed before.
//!
//! Everything that is worked out about a request is worked out about the whole one: what it follows, whose child it is,
//! what the cache holds of it. Only what goes out is the part that came.

use bytes::Bytes;

use crate::engine::request::anatomy::{Anatomy, Member};
use crate::engine::request::edit::{self, Edit};
use crate::engine::request::json::{Malformed, Span, is_key};
use crate::engine::request::recall::Remembered;
use crate::engine::request::strip;

const MESSAGES: &str = "messages";
/// Fields that the server holds, so that a later request may leave them out.
const HELD: [&str; 2] = ["tools", "system"];

/// An answer that the server holds together with everything before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldAnswer {
    /// The assistant message; none if it said nothing.
    pub message: Option<Bytes>,
    /// True if it stands in the place of the messages before it.
    pub is_summary: bool,
}

/// The part of a request that came; the server holds what is before it.
#[derive(Clone, Debug)]
pub struct Delta {
    /// The bytes that came.
    pub body: Bytes,
    /// The number of messages before those that came.
    pub held_messages: usize,
    /// Where the messages that came are: in the whole request, and in the bytes that came.
    whole: Span,
    came: Span,
}

impl Delta {
    /// Makes a request whole. `last` is the one before it, and `answer` the answer that it goes on from.
    /// Returns none if it cannot be told what it says.
    pub fn complete(
        body: &Bytes,
        last: &Remembered,
        answer: &HeldAnswer,
    ) -> Result<Option<(Bytes, Delta)>, Malformed> {
        let anatomy = Anatomy::read(body)?;
        let messages = anatomy.member(body, MESSAGES).filter(|value| body[value.start] == b'[');
        let (Some(messages), false) = (messages, anatomy.ambiguous) else { return Ok(None) };
        let came = inner(body, messages);
        let held = Held { last, cuts: strip::cuts(last.body(), last.anatomy()) };
        let mut whole = Vec::with_capacity(last.body().len() + body.len());
        whole.push(b'{');
        for name in HELD {
            if leaves_out(body, &anatomy, name)
                && let Some(value) = last.anatomy().member(last.body(), name)
            {
                whole.extend_from_slice(format!("\"{name}\":").as_bytes());
                held.append_to(&mut whole, value.clone());
                whole.push(b',');
            }
        }
        let mut at = 0;
        for Member { key, value } in &anatomy.members {
            let is_held =
                |name: &str| is_key(body, key, name) && leaves_out(body, &anatomy, name) && held.has(name);
            if HELD.into_iter().any(is_held) {
                continue;
            }
            whole.extend_from_slice(&body[key.start..value.start]);
            if is_key(body, key, MESSAGES) {
                whole.push(b'[');
                held.append_messages(&mut whole, answer);
                if !came.is_empty() && !whole.ends_with(b"[") {
                    whole.push(b',');
                }
                at = whole.len();
                whole.extend_from_slice(&body[came.clone()]);
                whole.push(b']');
            } else {
                whole.extend_from_slice(&body[value.clone()]);
            }
            whole.push(b',');
        }
        whole.pop();
        whole.push(b'}');
        let before = if answer.is_summary { 0 } else { last.anatomy().messages.len() };
        let held_messages = before + usize::from(answer.message.is_some());
        let delta = Delta { body: body.clone(), held_messages, whole: at..at + came.len(), came };
        Ok(Some((whole.into(), delta)))
    }

    /// The first piece of the whole request that came with this one. `anatomy` is the whole one's.
    pub fn first_piece(&self, anatomy: &Anatomy) -> usize {
        anatomy.messages.get(self.held_messages).map_or(anatomy.pieces.len(), |message| message.pieces.start)
    }

    /// Insertions into the whole request, as insertions into the bytes that came.
    pub fn edits(&self, edits: &[Edit]) -> Vec<Edit> {
        let inside = edits.iter().filter(|edit| (self.whole.start..=self.whole.end).contains(&edit.at()));
        inside.map(|edit| edit.moved(edit.at() - self.whole.start + self.came.start)).collect()
    }

    /// The messages that came, between their brackets, with insertions into the bytes that came.
    pub fn messages(&self, edits: &[Edit]) -> Vec<Bytes> {
        let edits: Vec<Edit> = edits.iter().map(|edit| edit.moved(edit.at() - self.came.start)).collect();
        edit::apply(&self.body.slice(self.came.clone()), &edits).pieces
    }
}

/// The request before, less its markers: caching is asked for on every turn anew.
struct Held<'a> {
    last: &'a Remembered,
    cuts: Vec<Span>,
}

impl Held<'_> {
    fn has(&self, name: &str) -> bool {
        self.last.anatomy().member(self.last.body(), name).is_some()
    }

    fn append_to(&self, out: &mut Vec<u8>, span: Span) {
        let mut parts = Vec::new();
        strip::append_unmarked(&mut parts, self.last.body(), span, &self.cuts);
        parts.iter().for_each(|part| out.extend_from_slice(part));
    }

    /// The messages up to and including the answer, with commas between them.
    fn append_messages(&self, out: &mut Vec<u8>, answer: &HeldAnswer) {
        let body = self.last.body();
        let messages = self.last.anatomy().member(body, MESSAGES).filter(|_| !answer.is_summary);
        if let Some(messages) = messages.map(|value| inner(body, value)).filter(|inner| !inner.is_empty()) {
            self.append_to(out, messages);
            out.extend(answer.message.as_ref().map(|_| b','));
        }
        out.extend(answer.message.iter().flatten());
    }
}

/// Returns true if a request leaves a field to what the server holds: it is not there, null or an empty list or, of a
/// system prompt, only a line that is not part of the prompt.
fn leaves_out(body: &[u8], anatomy: &Anatomy, name: &str) -> bool {
    let Some(value) = anatomy.member(body, name) else { return true };
    match body[value.start] {
        b'n' => return true,
        b'[' if inner(body, value).is_empty() => return true,
        _ => {}
    }
    let system = &anatomy.pieces[anatomy.tools..anatomy.tools + anatomy.system];
    name == "system" && !system.is_empty() && system.iter().all(|piece| piece.is_attribution(body))
}

/// The inside of an array, without the space around it.
fn inner(body: &[u8], array: &Span) -> Span {
    let inside = &body[array.start + 1..array.end - 1];
    let start = array.start + 1 + (inside.len() - inside.trim_ascii_start().len());
    start..start + inside.trim_ascii().len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::request::prefix::Attribution;
    use crate::engine::request::recall::Nothing;

    const MARKER: &str = r#""cache_control":{"type":"ephemeral"}"#;

    fn read(body: &str) -> Remembered {
        Remembered::read(Bytes::from(body.to_owned()), &Nothing, Attribution::Stripped).unwrap()
    }

    fn completed(last: &str, answer: &HeldAnswer, body: &str) -> (String, Delta) {
        let (whole, delta) =
            Delta::complete(&Bytes::from(body.to_owned()), &read(last), answer).unwrap().unwrap();
        let whole = String::from_utf8(whole.to_vec()).unwrap();
        serde_json::from_str::<serde_json::Value>(&whole).unwrap();
        (whole, delta)
    }

    fn said(text: &str) -> HeldAnswer {
        let message = format!(r#"{{"role":"assistant","content":[{{"type":"text","text":"{text}"}}]}}"#);
        HeldAnswer { message: Some(message.into()), is_summary: false }
    }

    fn create() -> String {
        format!(
            r#"{{"model":"m","tools":[{{"name":"t",{MARKER}}}],"system":[{{"type":"text","text":"s",{MARKER}}}],"thread":{{"type":"create"}},"messages":[{{"role":"user","content":[{{"type":"text","text":"a",{MARKER}}}]}}]}}"#
        )
    }

    #[test]
    fn what_the_server_holds_comes_back_without_markers() {
        let body = r#"{"model":"m","thread":{"type":"continue","previous_message_id":"1"},"messages":[ {"role":"user","content":[{"type":"text","text":"c"}]} ],"max_tokens":1}"#;
        let (whole, delta) = completed(&create(), &said("b"), body);
        let expected = r#"{"tools":[{"name":"t"}],"system":[{"type":"text","text":"s"}],"model":"m","thread":{"type":"continue","previous_message_id":"1"},"messages":[{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"assistant","content":[{"type":"text","text":"b"}]},{"role":"user","content":[{"type":"text","text":"c"}]}],"max_tokens":1}"#;
        assert_eq!(whole, expected);
        let read = read(&whole);
        assert_eq!((delta.held_messages, delta.first_piece(read.anatomy())), (2, 4));
    }

    #[test]
    fn what_is_repeated_counts_and_a_line_alone_does_not() {
        let line = r#"{"type":"text","text":"x-anthropic-billing-header: 1"}"#;
        let body = |system: &str| format!(r#"{{"system":{system},"messages":[]}}"#);
        let (whole, delta) = completed(&create(), &said("b"), &body(&format!("[{line}]")));
        assert!(
            whole.starts_with(r#"{"tools":[{"name":"t"}],"system":[{"type":"text","text":"s"}],"messages""#),
            "{whole}"
        );
        assert_eq!(delta.first_piece(read(&whole).anatomy()), 4, "behind everything");
        let (whole, _) = completed(&create(), &said("b"), &body(r#""own""#));
        assert!(whole.contains(r#""system":"own""#) && !whole.contains(r#""text":"s""#), "{whole}");
    }

    #[test]
    fn nothing_is_left_out_as_well() {
        for (tools, system) in [("[]", "null"), ("null", "[ ]"), (" [\n]", "[]")] {
            let body = format!(r#"{{"tools":{tools},"system":{system},"messages":[]}}"#);
            let (whole, _) = completed(&create(), &said("b"), &body);
            let expected =
                r#"{"tools":[{"name":"t"}],"system":[{"type":"text","text":"s"}],"messages":[{"role":"user""#;
            assert!(whole.starts_with(expected), "{whole}");
            assert_eq!(
                whole.matches("\"tools\"").count() + whole.matches("\"system\"").count(),
                2,
                "{whole}"
            );
        }
        // Where the server holds none, what came is all there is.
        let (whole, _) = completed(r#"{"messages":[]}"#, &said("b"), r#"{"tools":[],"messages":[]}"#);
        assert!(whole.starts_with(r#"{"tools":[],"messages":[{"role":"assistant""#), "{whole}");
    }

    #[test]
    fn a_summary_stands_in_the_place_of_what_it_summarizes() {
        let summary = HeldAnswer { is_summary: true, ..said("sum") };
        let (whole, delta) =
            completed(&create(), &summary, r#"{"messages":[{"role":"user","content":"c"}]}"#);
        assert!(!whole.contains(r#""text":"a""#) && whole.contains("sum"), "{whole}");
        assert_eq!(delta.held_messages, 1);
        let silent = HeldAnswer { message: None, is_summary: false };
        let (whole, delta) = completed(&create(), &silent, r#"{"messages":[{"role":"user","content":"c"}]}"#);
        assert!(whole.contains(r#"},{"role":"user","content":"c"}]"#), "{whole}");
        assert_eq!(delta.held_messages, 1);
    }

    #[test]
    fn an_insertion_goes_to_the_same_place_in_what_came() {
        let body = r#"{"messages":[{"role":"user","content":[{"type":"text","text":"c"}]}]}"#;
        let (whole, delta) = completed(&create(), &said("b"), body);
        let at = whole.rfind(r#""c"}"#).unwrap() + r#""c""#.len();
        let edits = delta.edits(&[Edit::inserting(0, "no".into()), Edit::inserting(at, "+".into())]);
        let out = edit::apply(&delta.body, &edits).pieces.concat();
        assert_eq!(out, body.replace(r#""c"}"#, r#""c"+}"#).as_bytes());
        assert_eq!(
            delta.messages(&edits).concat(),
            br#"{"role":"user","content":[{"type":"text","text":"c"+}]}"#
        );
    }

    #[test]
    fn what_cannot_be_read_is_not_made_whole() {
        let last = read(&create());
        for body in [r#"{"messages":1}"#, "{}", r#"{"messages":[],"messages":[]}"#] {
            let made = Delta::complete(&Bytes::from_static(body.as_bytes()), &last, &said("b")).unwrap();
            assert!(made.is_none(), "{body}");
        }
        assert!(Delta::complete(&Bytes::from_static(b"{"), &last, &said("b")).is_err());
    }
}
