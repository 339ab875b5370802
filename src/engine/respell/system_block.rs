//! A string `system` as one text block, which can carry a marker.
//!
//! This is the one place where a string becomes a block: on models that are known to read both as one prompt, or where
//! the operator says so. What was decided for a conversation holds for its life.

use bytes::Bytes;

use super::canonical::Replacement;
use crate::engine::request::anatomy::{Anatomy, Form};
use crate::engine::words::shown_enums;

const OPENING: &[u8] = br#"[{"type":"text","text":"#;
const CLOSING: &[u8] = b"}]";
/// A line that the upstream strips by its place.
const ATTRIBUTION: &[u8] = b"\"x-anthropic-billing-header";

shown_enums! {
    /// Which requests have a string `system` turned into one text block: `canonical.system`.
    pub enum SystemForm {
        /// Those of models that read both as one prompt.
        Auto = "auto",
        /// None.
        Keep = "keep",
        /// All.
        Block = "block",
    }
}

impl SystemForm {
    /// Returns true if a conversation with a model gets a block. `string_is_block`: the model reads both as one prompt.
    pub fn makes_blocks(self, string_is_block: bool) -> bool {
        match self {
            SystemForm::Auto => string_is_block,
            SystemForm::Keep => false,
            SystemForm::Block => true,
        }
    }
}

/// Turns a string `system` into one text block, in the spelling that the replacements give it. Anything else stays: an
/// empty string, an attribution line, and a conversation that the server holds, which compares the fields of later turns.
pub fn wrap(body: &Bytes, anatomy: &Anatomy, replacements: &mut Vec<Replacement>) {
    let system = &anatomy.pieces[anatomy.tools..anatomy.tools + anatomy.system];
    let [text] = system else { return };
    let value = &body[text.span.clone()];
    let is_held = anatomy.is_threaded(body);
    if text.form != Form::Text || value == b"\"\"" || value.starts_with(ATTRIBUTION) || is_held {
        return;
    }
    let at = replacements.partition_point(|other| other.span.start < text.span.start);
    let (opening, closing) = (Bytes::from_static(OPENING), Bytes::from_static(CLOSING));
    match replacements.get_mut(at).filter(|other| other.span == text.span) {
        Some(respelt) => {
            respelt.with.insert(0, opening);
            respelt.with.push(closing);
        }
        None => {
            let with = vec![opening, body.slice(text.span.clone()), closing];
            replacements.insert(at, Replacement { span: text.span.clone(), with });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::respell::canonical::splice;

    fn wrapped(body: &str) -> String {
        let body = Bytes::from(body.to_owned());
        let mut replacements = Vec::new();
        wrap(&body, &Anatomy::read(&body).unwrap(), &mut replacements);
        String::from_utf8(splice(&body, &replacements).concat()).unwrap()
    }

    #[test]
    fn a_string_becomes_one_block_to_the_byte() {
        let body = r#"{ "system" : "a\u0062 \"c\"" , "messages":[]}"#;
        let expected = r#"{ "system" : [{"type":"text","text":"a\u0062 \"c\""}] , "messages":[]}"#;
        assert_eq!(wrapped(body), expected);
        assert_eq!(wrapped(expected), expected, "once");
    }

    #[test]
    fn a_respelt_string_is_wrapped_as_it_was_respelt() {
        let body = Bytes::from_static(br#"{"system":"b","tools":[]}"#);
        let with = vec![Bytes::from_static(br#""\u0062""#)];
        let mut replacements =
            vec![Replacement { span: 10..13, with }, Replacement { span: 22..24, with: vec![] }];
        wrap(&body, &Anatomy::read(&body).unwrap(), &mut replacements);
        assert_eq!(
            splice(&body, &replacements).concat(),
            br#"{"system":[{"type":"text","text":"\u0062"}],"tools":}"#
        );
    }

    #[test]
    fn what_a_block_would_change_stays() {
        for body in [
            r#"{"system":"","messages":[]}"#,
            r#"{"system":"x-anthropic-billing-header: v","messages":[]}"#,
            r#"{"system":[{"type":"text","text":"a"}]}"#,
            r#"{"system":null}"#,
            r#"{"system":"a","thread":{"type":"create"}}"#,
            r#"{"messages":[{"role":"user","content":"a"}]}"#,
        ] {
            assert_eq!(wrapped(body), body);
        }
        assert_ne!(wrapped(r#"{"system":"a","thread":null}"#), r#"{"system":"a","thread":null}"#);
    }
}
