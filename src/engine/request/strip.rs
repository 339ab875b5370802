//! Bytes less their markers, as slices of what they were.

use bytes::Bytes;
use memchr::memmem;

use super::anatomy::{Anatomy, Form, Piece};
use super::json::{self, Span, skip_space};
use super::marker;
use crate::engine::words::Layer;

/// Every marker of a request, as what to leave out, in the order of the body: the pieces' own, and those of
/// blocks inside of results and documents, which count too.
pub fn cuts(body: &[u8], anatomy: &Anatomy) -> Vec<Span> {
    let (mut cuts, key) = (Vec::new(), memmem::Finder::new(marker::KEY));
    for (index, piece) in anatomy.pieces.iter().enumerate() {
        cuts_of(body, piece, anatomy.layer(index), &key, &mut cuts);
    }
    cuts.sort_unstable_by_key(|cut| cut.start);
    cuts
}

fn cuts_of(body: &[u8], piece: &Piece, layer: Layer, key: &memmem::Finder<'_>, cuts: &mut Vec<Span>) {
    let own = piece.marker().map(|marker| marker.cut);
    cuts.extend(own.clone());
    if layer == Layer::Messages && piece.form == Form::Block && piece.may_hold_blocks(body) {
        nested(body, piece, own, key, cuts);
    }
}

/// A stretch of a body less its cuts.
pub fn append_unmarked(out: &mut Vec<Bytes>, body: &Bytes, span: Span, cuts: &[Span]) {
    let mut from = span.start;
    let first = cuts.partition_point(|cut| cut.end <= span.start);
    for cut in cuts.iter().skip(first).take_while(|cut| cut.start < span.end) {
        push(out, body, from..cut.start.min(span.end));
        from = from.max(cut.end);
    }
    push(out, body, from..span.end);
}

/// A piece of the messages less its markers, copied: what is kept must not hold the body it came from.
pub fn copied(out: &mut Vec<u8>, body: &[u8], piece: &Piece) {
    let mut cuts = Vec::new();
    cuts_of(body, piece, Layer::Messages, &memmem::Finder::new(marker::KEY), &mut cuts);
    cuts.sort_unstable_by_key(|cut| cut.start);
    let mut from = piece.span.start;
    for cut in cuts {
        out.extend_from_slice(&body[from..cut.start.max(from)]);
        from = from.max(cut.end);
    }
    out.extend_from_slice(&body[from..piece.span.end]);
}

fn push(out: &mut Vec<Bytes>, body: &Bytes, span: Span) {
    if span.start < span.end {
        out.push(body.slice(span));
    }
}

/// Keys are found by their bytes: within a string their quotes would be escaped.
fn nested(body: &[u8], piece: &Piece, own: Option<Span>, key: &memmem::Finder<'_>, cuts: &mut Vec<Span>) {
    let mut last_end = 0;
    for found in key.find_iter(&body[piece.span.clone()]) {
        let start = piece.span.start + found;
        let colon = skip_space(body, start + marker::KEY.len());
        let in_own = own.as_ref().is_some_and(|own| own.contains(&start));
        if in_own || start < last_end || body.get(colon) != Some(&b':') {
            continue;
        }
        let Ok(end) = json::value_end(body, skip_space(body, colon + 1)) else { continue };
        let before = body[..start].trim_ascii_end();
        // With the comma before it or, if there is none, with the one after it.
        let cut = match before.last() {
            Some(b',') if before.len() > last_end => before.len() - 1..end,
            _ => start..after_comma(body, end),
        };
        last_end = cut.end;
        cuts.push(cut);
    }
}

fn after_comma(body: &[u8], end: usize) -> usize {
    let comma = skip_space(body, end);
    match body.get(comma) {
        Some(b',') => skip_space(body, comma + 1),
        _ => end,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stripped(content: &str) -> String {
        let body = Bytes::from(format!(r#"{{"messages":[{{"role":"user","content":{content}}}]}}"#));
        let anatomy = Anatomy::read(&body).unwrap();
        let mut out = Vec::new();
        append_unmarked(&mut out, &body, 0..body.len(), &cuts(&body, &anatomy));
        let whole = String::from_utf8(out.concat()).unwrap();
        let mut copies = Vec::new();
        anatomy.pieces.iter().for_each(|piece| copied(&mut copies, &body, piece));
        assert!(whole.replace(", ", "").contains(&*String::from_utf8(copies).unwrap().replace(", ", "")));
        serde_json::from_str::<serde_json::Value>(&whole).unwrap();
        whole[r#"{"messages":[{"role":"user","content":"#.len()..whole.len() - 3].to_owned()
    }

    #[test]
    fn markers_go_wherever_they_stand_and_data_stays() {
        let block = r#"[{"type":"text","text":"x","cache_control":{"type":"ephemeral"}}]"#;
        assert_eq!(stripped(block), r#"[{"type":"text","text":"x"}]"#);
        let nested = r#"[{"type":"tool_result","cache_control":{"a":1},"content":[{"cache_control":{"b":2}, "type":"text"},{"type":"text" , "cache_control" : null}]}]"#;
        assert_eq!(
            stripped(nested),
            r#"[{"type":"tool_result","content":[{"type":"text"},{"type":"text" }]}]"#
        );
        let twice = r#"[{"type":"tool_result","content":[{"cache_control":1,"cache_control":2},{"x":1,"cache_control":1,"cache_control":2}]}]"#;
        assert_eq!(stripped(twice), r#"[{"type":"tool_result","content":[{},{"x":1}]}]"#);
        for data in [
            r#"[{"type":"tool_use","id":"t","name":"n","input":{"cache_control":{"type":"ephemeral"}}}]"#,
            r#"[{"type":"tool_result","content":"\"cache_control\":1"}]"#,
            r#"[{"type":"tool_result","content":[{"type":"cache_control"}]}]"#,
            r#""\"cache_control\"""#,
        ] {
            assert_eq!(stripped(data), data);
        }
    }
}
