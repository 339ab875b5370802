//! Prompts compared as their strings are spelt, for the reading in which escapes count.
//!
//! A parsed tree has forgotten its escapes. So the body is parsed once more with every escape escaped: what was
//! `"\u0041\n"` is then a string of eight characters, and two bodies are equal only if they were spelt alike. Only
//! the cache chain sees this; thinking is bound to what was said, since clients re-serialize it and are accepted.

use serde_json::Value;

use super::body::{Body, PromptEndpoint};
use super::render::{DigestedBlock, pieces};
use super::settings::SimRules;

/// Replaces the spelling of every piece by the digest of the block as it came.
pub fn note(pieces: &mut [DigestedBlock], bytes: &[u8], body: &Body<'_>, rules: &SimRules) {
    match as_spelt(bytes, body, rules) {
        Some(spelt) if spelt.len() == pieces.len() => {
            for (piece, spelt) in pieces.iter_mut().zip(spelt) {
                piece.spelling = spelt.digest;
            }
        }
        // Escapes in names or types hide the structure. Such a body shares its prefix with its own repetition only.
        _ => {
            let whole = *blake3::hash(bytes).as_bytes();
            pieces.iter_mut().for_each(|piece| piece.spelling = whole);
        }
    }
}

fn as_spelt(bytes: &[u8], body: &Body<'_>, rules: &SimRules) -> Option<Vec<DigestedBlock>> {
    let tree: Value = serde_json::from_slice(&with_escapes_escaped(bytes)).ok()?;
    let models = std::slice::from_ref(body.model);
    let spelt = Body::read(&tree, models, PromptEndpoint::CountTokens, usize::MAX).ok()?;
    Some(pieces(&spelt, rules))
}

/// In valid JSON a backslash occurs only in strings and always takes the next byte with it.
fn with_escapes_escaped(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + bytes.len() / 8);
    let mut rest = bytes.iter();
    while let Some(&byte) = rest.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        out.extend_from_slice(br"\\");
        match rest.next() {
            Some(&escaped @ (b'"' | b'\\')) => out.extend_from_slice(&[b'\\', escaped]),
            Some(&escaped) => out.push(escaped),
            None => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_keeps_its_escapes_as_characters() {
        for text in [r#""plain""#, r#""\u0041\n""#, r#""a\"b""#, r#""\\\\\"\\""#, r#""\\n""#] {
            let spelt: Value = serde_json::from_slice(&with_escapes_escaped(text.as_bytes())).unwrap();
            assert_eq!(spelt.as_str().unwrap(), &text[1..text.len() - 1]);
        }
    }
}
