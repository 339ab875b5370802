//! One content block: the raw JSON that opened it, and the deltas spliced into it.

use serde_json::value::RawValue;

use super::Block;
use super::wire::WireDelta;
use crate::engine::request::json;

/// A block while it streams. Text is kept as the *inside* of JSON strings, escapes as they came.
#[derive(Debug)]
pub(super) struct StreamedBlock {
    pub(super) index: u64,
    kind: String,
    start: Box<RawValue>,
    text: String,
    thinking: String,
    input: String,
    citations: Vec<Box<RawValue>>,
    /// Members that a delta replaces as a whole.
    replaced: Vec<(&'static str, Box<RawValue>)>,
    pub(super) stopped: bool,
}

impl StreamedBlock {
    pub(super) fn new(index: u64, kind: String, start: &RawValue) -> StreamedBlock {
        StreamedBlock {
            index,
            kind,
            start: start.to_owned(),
            text: String::new(),
            thinking: String::new(),
            input: String::new(),
            citations: Vec::new(),
            replaced: Vec::new(),
            stopped: false,
        }
    }

    /// `None` if the delta is of no kind we know.
    pub(super) fn apply(&mut self, delta: &RawValue) -> Option<()> {
        let delta: WireDelta<'_> = serde_json::from_str(delta.get()).ok()?;
        match delta.kind.get() {
            r#""text_delta""# => self.text.push_str(inside(delta.text?)?),
            r#""thinking_delta""# => self.thinking.push_str(inside(delta.thinking?)?),
            r#""input_json_delta""# => {
                self.input.push_str(&serde_json::from_str::<String>(delta.partial_json?.get()).ok()?);
            }
            r#""citations_delta""# => self.citations.push(delta.citation?.to_owned()),
            r#""signature_delta""# => self.replace("signature", delta.signature?),
            r#""compaction_delta""# => {
                delta.content.into_iter().for_each(|raw| self.replace("content", raw));
                delta.encrypted_content.into_iter().for_each(|raw| self.replace("encrypted_content", raw));
            }
            _ => return None,
        }
        Some(())
    }

    fn replace(&mut self, member: &'static str, value: &RawValue) {
        self.replaced.retain(|(name, _)| *name != member);
        self.replaced.push((member, value.to_owned()));
    }

    /// The block with its deltas spliced in; `None` if that gives no valid block.
    pub(super) fn rebuild(&self) -> Option<Block> {
        let start = self.start.get();
        let mut edits = self.edits()?;
        let mut out =
            String::with_capacity(start.len() + self.text.len() + self.thinking.len() + self.input.len());
        let mut edited: Vec<&'static str> = Vec::new();
        let mut spliced = Some(());
        let walked = json::walk_object(start.as_bytes(), 0, |key, value_start| {
            let end = json::value_end(start.as_bytes(), value_start)?;
            let value = &start[value_start..end];
            let is = |name: &str| json::is_key(start.as_bytes(), &key, name);
            out.push(if out.is_empty() { '{' } else { ',' });
            out.push_str(&start[key.clone()]);
            out.push(':');
            match edits.iter().position(|(name, _)| is(name)) {
                Some(found) => {
                    let (name, edit) = edits.swap_remove(found);
                    edited.push(name);
                    match edit.onto(value) {
                        Some(value) => out.push_str(&value),
                        None => spliced = None,
                    }
                }
                // A second member of that name: it is not known which of them the deltas meant.
                None if edited.iter().any(|name| is(name)) => spliced = None,
                None => out.push_str(value),
            }
            Ok(end)
        });
        walked.ok().and(spliced)?;
        for (name, edit) in edits {
            out.push_str(&format!(",\"{name}\":{}", edit.onto("null")?));
        }
        out.push('}');
        Some(Block { kind: self.kind.clone(), json: out.into_bytes() })
    }

    fn edits(&self) -> Option<Vec<(&'static str, MemberEdit<'_>)>> {
        let mut edits = Vec::new();
        for (name, text) in [("text", &self.text), ("thinking", &self.thinking)] {
            if !text.is_empty() {
                edits.push((name, MemberEdit::Append(text)));
            }
        }
        if !self.input.is_empty() {
            // The scanner does not look into strings, but the model may have broken one.
            serde_json::from_str::<&RawValue>(&self.input).ok()?;
            let compact = json::compact(self.input.as_bytes()).ok()?;
            edits.push(("input", MemberEdit::Replace(String::from_utf8(compact).ok()?)));
        }
        if !self.citations.is_empty() {
            edits.push(("citations", MemberEdit::Extend(&self.citations)));
        }
        edits.extend(
            self.replaced.iter().map(|(name, raw)| (*name, MemberEdit::Replace(raw.get().to_owned()))),
        );
        Some(edits)
    }
}

/// The change that the deltas make to one member of the block.
enum MemberEdit<'a> {
    /// Put this after the inside of the string.
    Append(&'a str),
    /// Put these after the elements of the list.
    Extend(&'a [Box<RawValue>]),
    /// Put this in its place.
    Replace(String),
}

impl MemberEdit<'_> {
    /// The member's new value, given the one it had at the block's start (`null` if none).
    fn onto(self, value: &str) -> Option<String> {
        match self {
            MemberEdit::Replace(raw) => Some(raw),
            MemberEdit::Append(text) if value == "null" => Some(format!("\"{text}\"")),
            MemberEdit::Append(text) => {
                Some(format!("\"{}{text}\"", value.strip_prefix('"')?.strip_suffix('"')?))
            }
            MemberEdit::Extend(items) => {
                let mut all: Vec<&str> = Vec::new();
                if value != "null" {
                    let bytes = value.as_bytes();
                    let walked = json::walk_array(bytes, 0, |start| {
                        let end = json::value_end(bytes, start)?;
                        all.push(&value[start..end]);
                        Ok(end)
                    });
                    walked.ok()?;
                }
                all.extend(items.iter().map(|raw| raw.get()));
                Some(format!("[{}]", all.join(",")))
            }
        }
    }
}

/// The inside of a JSON string, escapes as they are.
fn inside(raw: &RawValue) -> Option<&str> {
    raw.get().strip_prefix('"')?.strip_suffix('"')
}
