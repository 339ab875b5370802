//! Blocks that can carry a marker, and the piece that the upstream takes for the end of a conversation.

use memchr::memmem;

use crate::engine::request::anatomy::{Anatomy, Form, Piece};
use crate::engine::request::json::{self, Span, is_key, value_end};
use crate::engine::request::marker;
use crate::engine::words::Layer;

/// Blocks of messages that the API lets carry a marker. Others are walked over, known or not.
const MARKABLE: [&str; 20] = [
    "text",
    "image",
    "document",
    "search_result",
    "tool_use",
    "tool_result",
    "server_tool_use",
    "web_search_tool_result",
    "web_fetch_tool_result",
    "code_execution_tool_result",
    "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result",
    "tool_search_tool_result",
    "mcp_tool_use",
    "mcp_tool_result",
    "container_upload",
    "compaction",
    "mid_conv_system",
    "tool_addition",
    "tool_reference",
];

/// Blocks that are known to have no such field.
const BARRED: [&str; 3] = ["thinking", "redacted_thinking", "fallback"];

/// Words of blocks that bring more tokens than they have bytes: their content is behind a reference.
const REFERENCES: [&[u8]; 5] =
    [b"\"image\"", b"\"document\"", b"\"file_id\"", b"\"tool_reference\"", b"\"container_upload\""];

/// Returns where a marker may be inserted into this piece: after its last member. `None` if it can carry none, or has a
/// `cache_control` already, even one that marks nothing: a second would make readers disagree.
pub fn room(body: &[u8], anatomy: &Anatomy, index: usize) -> Option<usize> {
    let piece = anatomy.pieces.get(index).filter(|piece| !piece.is_marked())?;
    let block = BlockMembers::read(body, piece).filter(|block| block.control.is_none())?;
    is_legal(&block, body, anatomy, index).then_some(block.end)
}

/// Returns where a marker may be inserted into this piece once its own is cut out.
pub fn room_when_cut(body: &[u8], anatomy: &Anatomy, index: usize) -> Option<usize> {
    let piece = anatomy.pieces.get(index)?;
    let block = BlockMembers::read(body, piece)?;
    // A marker that is spelt with escapes is not cut.
    let is_cut = block.control.is_none() || piece.is_marked();
    (is_cut && is_legal(&block, body, anatomy, index)).then_some(block.end_unmarked)
}

/// Returns where a marker may be inserted into a block of a message, given as a value of its own.
pub fn room_alone(block: &[u8]) -> Option<usize> {
    let read = BlockMembers::walked(block, 0)?;
    (read.control.is_none() && is_legal_in_message(&read, block)).then_some(read.end)
}

fn is_legal(block: &BlockMembers, body: &[u8], anatomy: &Anatomy, index: usize) -> bool {
    match anatomy.layer(index) {
        Layer::System => {
            block.is(body, "text")
                && block.says_something(body)
                && !(index == anatomy.tools && anatomy.pieces[index].is_attribution(body))
        }
        Layer::Messages => is_legal_in_message(block, body),
        _ => block.is_named() && !anatomy.pieces[index].deferred,
    }
}

fn is_legal_in_message(block: &BlockMembers, body: &[u8]) -> bool {
    if block.is(body, "text") {
        block.says_something(body)
    } else {
        MARKABLE.iter().any(|kind| block.is(body, kind))
    }
}

/// Returns true if the API refuses a marker on this piece.
pub fn is_barred(body: &[u8], layer: Layer, piece: &Piece) -> bool {
    let may_be = match (layer, piece.kind()) {
        (Layer::Tools, _) => piece.deferred,
        (_, Some(kind)) if is_key_string(body, &kind, "text") => {
            piece.text().is_none_or(|text| is_empty_string(body, &text))
        }
        (_, Some(kind)) => BARRED.iter().any(|barred| is_key_string(body, &kind, barred)),
        (_, None) => true,
    };
    if !may_be {
        return false;
    }
    // One that says a thing twice is the upstream's to judge.
    let Some(block) = BlockMembers::read(body, piece) else { return false };
    match layer {
        Layer::Tools => piece.deferred,
        _ => BARRED.iter().any(|kind| block.is(body, kind)) || block.is_empty_text(body),
    }
}

/// The piece that a top-level marker marks: the last that can carry one, strings included.
pub fn automatic_target(body: &[u8], anatomy: &Anatomy) -> Option<usize> {
    (0..anatomy.pieces.len()).rev().find(|index| {
        let piece = &anatomy.pieces[*index];
        match piece.form {
            Form::Block => !is_barred(body, anatomy.layer(*index), piece),
            Form::Text => !is_empty_string(body, &piece.span),
            Form::Other => false,
        }
    })
}

/// Returns true if something up to this piece may bring more tokens than it has bytes. Asked only of prefixes that
/// seem too short, so the search is short too.
pub fn has_unseen_size(body: &[u8], anatomy: &Anatomy, piece: usize) -> bool {
    anatomy.pieces[..=piece].iter().enumerate().any(|(index, piece)| match anatomy.layer(index) {
        // The upstream writes the definitions of its own tools and toolsets.
        Layer::Tools => {
            BlockMembers::read(body, piece).is_none_or(|tool| tool.kind.is_some() && !tool.is(body, "custom"))
        }
        _ => REFERENCES.iter().any(|word| memmem::find(&body[piece.span.clone()], word).is_some()),
    })
}

pub fn is_empty_string(body: &[u8], span: &Span) -> bool {
    &body[span.clone()] == b"\"\""
}

/// The members of a block that decide whether it can carry a marker.
#[derive(Debug, Default, PartialEq, Eq)]
struct BlockMembers {
    kind: Option<Span>,
    name: Option<Span>,
    text: Option<Span>,
    control: Option<Span>,
    /// The end of its last member, and of its last one that is not a marker.
    end: usize,
    end_unmarked: usize,
}

impl BlockMembers {
    /// `None` if the piece is not an object, is empty, or has a deciding member twice.
    fn read(body: &[u8], piece: &Piece) -> Option<BlockMembers> {
        match piece.form {
            Form::Block if piece.is_unusual => BlockMembers::walked(body, piece.span.start),
            Form::Block => BlockMembers::noted(body, piece),
            Form::Text | Form::Other => None,
        }
    }

    /// As they were noted when the piece was read: the schema of a tool is long, and this is asked of every request.
    fn noted(body: &[u8], piece: &Piece) -> Option<BlockMembers> {
        let inside = body[piece.span.start + 1..piece.span.end - 1].trim_ascii_end();
        if inside.is_empty() {
            return None;
        }
        let end = piece.span.start + 1 + inside.len();
        let mut block = BlockMembers {
            kind: piece.type_name(),
            name: piece.name(),
            text: piece.text(),
            control: None,
            end,
            end_unmarked: end,
        };
        if let Some(marker) = piece.marker() {
            block.control = Some(marker.value);
            if marker.cut.end == end {
                block.end_unmarked = marker.cut.start;
            }
        }
        Some(block)
    }

    fn walked(body: &[u8], start: usize) -> Option<BlockMembers> {
        let (mut block, mut twice) = (BlockMembers::default(), false);
        let walked = json::walk_object(body, start, |key, start| {
            let end = value_end(body, start)?;
            block.end = end;
            let members = [
                ("type", &mut block.kind),
                ("name", &mut block.name),
                ("text", &mut block.text),
                (marker::NAME, &mut block.control),
            ];
            if !is_key(body, &key, marker::NAME) {
                block.end_unmarked = end;
            }
            if let Some((_, member)) = members.into_iter().find(|(name, _)| is_key(body, &key, name)) {
                twice |= member.replace(start..end).is_some();
            }
            Ok(end)
        });
        (walked.is_ok() && !twice && block.end > 0).then_some(block)
    }

    fn is(&self, body: &[u8], kind: &str) -> bool {
        self.kind.as_ref().is_some_and(|span| is_key_string(body, span, kind))
    }

    fn is_named(&self) -> bool {
        self.name.is_some() || self.kind.is_some()
    }

    fn is_empty_text(&self, body: &[u8]) -> bool {
        self.is(body, "text") && self.text.as_ref().is_some_and(|text| is_empty_string(body, text))
    }

    fn says_something(&self, body: &[u8]) -> bool {
        self.text.as_ref().is_some_and(|text| body[text.start] == b'"' && !is_empty_string(body, text))
    }
}

/// Returns true if a value is the string `text`, in any spelling.
fn is_key_string(body: &[u8], span: &Span, text: &str) -> bool {
    body[span.start] == b'"' && is_key(body, span, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_of_a_block_is_what_a_walk_finds() {
        const MARKED: &str = r#""cache_control":{"type":"ephemeral"}"#;
        let members = [
            r#""type":"text""#,
            r#""type" : "custom" "#,
            r#""typ\u0065":"text""#,
            r#""name":"n""#,
            r#" "text":"t\"}" "#,
            r#""input_schema":{"type":"object","name":"n"}"#,
            MARKED,
            r#""cache_control":null"#,
            r#""cache\u005fcontrol":null"#,
        ];
        let lists = (0..members.len().pow(3)).map(|number| {
            let at = |place: u32| members[number / members.len().pow(place) % members.len()];
            [at(0), at(1), at(2)]
        });
        let (mut usual, mut unusual) = (0, 0);
        for list in lists {
            for block in [String::new(), list[0].to_owned(), list[..2].join(" , "), list.join(",\n")] {
                for body in [
                    format!(r#"{{"tools":[{{{block}}}]}}"#),
                    format!(r#"{{"messages":[{{"role":"user","content":[ {{ {block} }} ]}}]}}"#),
                ] {
                    let (body, anatomy) = (body.as_bytes(), Anatomy::read(body.as_bytes()).unwrap());
                    let piece = &anatomy.pieces[0];
                    if piece.is_unusual {
                        unusual += 1;
                        continue;
                    }
                    usual += 1;
                    let mut walked = BlockMembers::walked(body, piece.span.start);
                    // A block that is nothing but a marker has no last member besides it.
                    if let Some(block) = walked.as_mut().filter(|block| block.end_unmarked == 0) {
                        block.end_unmarked = piece.span.start + 1;
                    }
                    assert_eq!(BlockMembers::noted(body, piece), walked, "{}", String::from_utf8_lossy(body));
                }
            }
        }
        assert!(usual > 0 && unusual > 0, "{usual} and {unusual}");
    }
}
