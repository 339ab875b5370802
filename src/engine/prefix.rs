//! The chain of prefix hashes: one per piece, each over everything before it.
//!
//! The prompt cache is keyed by what the model would read up to a block. So a hash here covers model, tools,
//! system and messages in that order, and leaves out what the model never sees: markers, white space between
//! tokens, and the order of a block's own members. Values inside are raw: another key order *within* a schema
//! or a tool's input is another prompt. A string is not a block, though they may say the same.
//!
//! ```
//! use forkpoint::engine::{anatomy::Anatomy, prefix::{Attribution, Chain}};
//! let chain = |body: &[u8]| Chain::of(body, &Anatomy::read(body).unwrap(), Attribution::Counted);
//! let one = chain(br#"{"model":"m","system":[{"type":"text","text":"s"}]}"#);
//! let two = chain(br#"{"system": [{"text": "s", "type": "text", "cache_control": null}], "model": "m"}"#);
//! assert_eq!(one, two);
//! ```

use std::fmt;

use super::anatomy::{Anatomy, Form, Layer, Member, Piece};
use super::json::{self, Span, is_key, value_end};
use super::types::first;

/// How the line starts that some clients put before their system prompt, and some upstreams strip.
const ATTRIBUTION: &[u8] = b"\"x-anthropic-billing-header";

/// The hash of a prompt up to and including one piece; shown as 16 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrefixHash([u8; 32]);

impl fmt::Display for PrefixHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(first(&self.0)))
    }
}

/// Whether the attribution line is part of the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribution {
    /// The upstream strips it when it stands alone in `system[0]`.
    Stripped,
    Counted,
}

/// Every prefix hash of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    pub model: PrefixHash,
    /// One per piece of the anatomy.
    pub pieces: Vec<PrefixHash>,
}

impl Chain {
    pub fn of(body: &[u8], anatomy: &Anatomy, attribution: Attribution) -> Chain {
        let model = anatomy.member(body, "model").map_or(&b""[..], |span| &body[span.clone()]);
        let mut link = PrefixHash(blake3::derive_key("forkpoint chain v1", model));
        let mut chain = Chain { model: link, pieces: Vec::with_capacity(anatomy.pieces.len()) };
        let layers = anatomy.tools + anatomy.system;
        for (index, piece) in anatomy.pieces[..layers].iter().enumerate() {
            if !(attribution == Attribution::Stripped && is_attribution(body, anatomy, index)) {
                link = link.then(anatomy.layer(index), body, piece);
            }
            chain.pieces.push(link);
        }
        for message in &anatomy.messages {
            link = link.enter(body, message.role.as_ref(), &message.extra);
            for piece in &anatomy.pieces[message.pieces.clone()] {
                link = link.then(Layer::Messages, body, piece);
                chain.pieces.push(link);
            }
        }
        chain
    }

    /// The hash of a whole layer: of its last piece, or of what stands before it.
    pub fn layer(&self, anatomy: &Anatomy, layer: Layer) -> PrefixHash {
        let end = match layer {
            Layer::Model => 0,
            Layer::Tools => anatomy.tools,
            Layer::System => anatomy.tools + anatomy.system,
            Layer::Messages => self.pieces.len(),
        };
        end.checked_sub(1).map_or(self.model, |last| self.pieces[last])
    }
}

/// Whether this piece is the attribution line: a text block, the first of the system list.
fn is_attribution(body: &[u8], anatomy: &Anatomy, piece: usize) -> bool {
    let Piece { form, text, .. } = &anatomy.pieces[piece];
    let text = text.as_ref().map_or(&b""[..], |text| &body[text.clone()]);
    piece == anatomy.tools && *form == Form::Block && text.starts_with(ATTRIBUTION)
}

impl PrefixHash {
    /// The hash after one more piece.
    fn then(self, layer: Layer, body: &[u8], piece: &Piece) -> PrefixHash {
        let mut link = Link::after(self, layer.as_str());
        match piece.form {
            Form::Block => link.members(body, piece.span.start),
            Form::Text => link.part(b"string", &body[piece.span.clone()]),
            Form::Other => link.part(b"value", &compact(&body[piece.span.clone()])),
        }
        link.finish()
    }

    /// The hash after the head of a message.
    fn enter(self, body: &[u8], role: Option<&Span>, extra: &[Member]) -> PrefixHash {
        let mut link = Link::after(self, "message");
        link.part(b"role", role.map_or(&b""[..], |role| &body[role.clone()]));
        for member in extra {
            link.part(&body[member.key.clone()], &compact(&body[member.value.clone()]));
        }
        link.finish()
    }
}

struct Link(blake3::Hasher);

impl Link {
    fn after(previous: PrefixHash, kind: &str) -> Link {
        let mut link = Link(blake3::Hasher::new());
        link.0.update(&previous.0);
        link.part(b"kind", kind.as_bytes());
        link
    }

    /// The members of a block in the order of their names, without its marker.
    fn members(&mut self, body: &[u8], start: usize) {
        let mut members: Vec<Member> = Vec::with_capacity(8);
        let _ = json::walk_object(body, start, |key, start| {
            let end = value_end(body, start)?;
            if !is_key(body, &key, "cache_control") {
                members.push(Member { key, value: start..end });
            }
            Ok(end)
        });
        members.sort_by(|a, b| body[a.key.clone()].cmp(&body[b.key.clone()]));
        for member in members {
            self.part(&body[member.key], &compact(&body[member.value]));
        }
    }

    /// Lengths keep one part from running into the next.
    fn part(&mut self, name: &[u8], value: &[u8]) {
        for bytes in [name, value] {
            self.0.update(&(bytes.len() as u64).to_le_bytes());
            self.0.update(bytes);
        }
    }

    fn finish(self) -> PrefixHash {
        PrefixHash(*self.0.finalize().as_bytes())
    }
}

/// The value without white space between its tokens; strings, the bulk of a prompt, are not copied.
fn compact(value: &[u8]) -> std::borrow::Cow<'_, [u8]> {
    match value.first() {
        Some(b'{' | b'[') => json::compact(value).map_or(value.into(), Into::into),
        _ => value.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(body: &str) -> Chain {
        chain_with(body, Attribution::Counted)
    }

    fn chain_with(body: &str, attribution: Attribution) -> Chain {
        Chain::of(body.as_bytes(), &Anatomy::read(body.as_bytes()).unwrap(), attribution)
    }

    /// How many leading pieces two bodies share.
    fn shared(a: &str, b: &str) -> usize {
        let (a, b) = (chain(a), chain(b));
        a.pieces.iter().zip(&b.pieces).take_while(|(a, b)| a == b).count()
    }

    const BODY: &str = r#"{"model":"m","tools":[{"name":"t","input_schema":{"a":1,"b":2}}],"system":"s","messages":[{"role":"user","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]},{"role":"assistant","content":[{"type":"tool_use","id":"i","name":"t","input":{"x":1,"y":2}}]}]}"#;

    #[test]
    fn what_the_model_never_sees_does_not_count() {
        assert_eq!(shared(BODY, BODY), 5);
        let markers =
            BODY.replace(r#""text":"one"}"#, r#""text":"one","cache_control":{"type":"ephemeral"}}"#);
        assert_eq!(shared(BODY, &markers), 5);
        let spaced = BODY.replace(':', " : ").replace(',', " ,\n");
        assert_eq!(shared(BODY, &spaced), 5);
        let members = BODY.replace(r#"{"type":"text","text":"two"}"#, r#"{"text":"two","type":"text"}"#);
        assert_eq!(shared(BODY, &members), 5);
        let order =
            r#"{"messages":[],"system":"s","tools":[{"name":"t","input_schema":{"a":1,"b":2}}],"model":"m"}"#;
        assert_eq!(shared(BODY, order), 2);
        assert_eq!(shared(BODY, &BODY.replace(r#""model":"m""#, r#""max_tokens":5,"model":"m""#)), 5);
    }

    #[test]
    fn each_change_breaks_the_chain_where_it_stands() {
        assert_eq!(shared(BODY, &BODY.replace(r#""m""#, r#""n""#)), 0);
        assert_eq!(shared(BODY, &BODY.replace(r#"{"a":1,"b":2}"#, r#"{"b":2,"a":1}"#)), 0);
        assert_eq!(shared(BODY, &BODY.replace(r#""system":"s""#, r#""system":"S""#)), 1);
        assert_eq!(
            shared(BODY, &BODY.replace(r#""system":"s""#, r#""system":[{"type":"text","text":"s"}]"#)),
            1
        );
        assert_eq!(shared(BODY, &BODY.replace("one", "One")), 2);
        assert_eq!(shared(BODY, &BODY.replace(r#""role":"user""#, r#""role":"system""#)), 2);
        assert_eq!(shared(BODY, &BODY.replace(r#"{"x":1,"y":2}"#, r#"{"y":2,"x":1}"#)), 4);
        assert_eq!(shared(BODY, &BODY.replace(r#"{"x":1,"y":2}"#, r#"{"x":1.0,"y":2}"#)), 4);
        assert_eq!(
            shared(BODY, &BODY.replace(r#"{"role":"assistant","#, r#"{"role":"assistant","x":1,"#)),
            4
        );
    }

    #[test]
    fn a_longer_conversation_keeps_the_hashes_of_a_shorter_one() {
        let longer = BODY.replace("]}]}", r#"]},{"role":"user","content":"next"}]}"#);
        assert_eq!(shared(BODY, &longer), 5);
        assert_eq!(chain(&longer).pieces.len(), 6);
    }

    #[test]
    fn the_attribution_line_counts_only_where_the_upstream_reads_it() {
        let line = |n: u32| {
            format!(
                r#"{{"system":[{{"type":"text","text":"x-anthropic-billing-header: v={n};"}},{{"type":"text","text":"s"}}]}}"#
            )
        };
        let last = |n, attribution| *chain_with(&line(n), attribution).pieces.last().unwrap();
        assert_eq!(last(1, Attribution::Stripped), last(2, Attribution::Stripped));
        assert_ne!(last(1, Attribution::Counted), last(2, Attribution::Counted));
        let second = r#"{"system":[{"type":"text","text":"s"},{"type":"text","text":"x-anthropic-billing-header: 1"}]}"#;
        let chain = chain_with(second, Attribution::Stripped);
        assert_ne!(chain.pieces[0], chain.pieces[1]);
    }

    #[test]
    fn a_layer_ends_with_its_last_piece() {
        let anatomy = Anatomy::read(BODY.as_bytes()).unwrap();
        let chain = chain(BODY);
        assert_eq!(chain.layer(&anatomy, Layer::Model), chain.model);
        assert_eq!(chain.layer(&anatomy, Layer::Tools), chain.pieces[0]);
        assert_eq!(chain.layer(&anatomy, Layer::System), chain.pieces[1]);
        assert_eq!(chain.layer(&anatomy, Layer::Messages), chain.pieces[4]);
        assert_eq!(chain.model.to_string().len(), 16);
    }
}
